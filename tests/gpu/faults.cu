// Twelve ways to end a CUDA context by a fault of its own: faults MODE. The last line of standard error before it is the truth:
//     truth kernel=NAME page=0xADDRESS access=read|write|atomic
// `page` is 0 where the fault is no access to memory that is not mapped. Exit status 1: the error is reported, and it ends.
#include <cassert>
#include <cstdio>
#include <cstring>

__global__ void good(float *p, int n) { if (threadIdx.x < n) p[threadIdx.x] = 1; }
__global__ void spins(float *p, long long n) { long long t = clock64(); while (clock64() - t < n); p[0] = 1; }
__global__ void writes(int, float *p, long long n) { p[n] = 1; }
__global__ void reads(float *q, const float *p, long long n) { q[0] = p[n]; }
__global__ void atomics(int *p, long long n) { atomicAdd(p + n, 1); }
__global__ void misaligned(char *p) { *(long long *)(p + 1) = 1; }
__global__ void traps(float *) { asm volatile("trap;"); }
__global__ void asserts(int n) { assert(n == 0); }
__device__ int deep(int n) {
    volatile char b[1024];
    b[n % 1024] = n;
    return n <= 0 ? b[0] : deep(n - 1) + b[(n * 7) % 1024];
}
__global__ void recurses(int *p, int n) { p[0] = deep(n); }
__global__ void shared_beyond(int *p, int n) {
    extern __shared__ int s[];
    s[n] = 1;
    p[0] = s[n];
}

static void truth(const char *kernel, const void *page, const char *access) {
    fprintf(stderr, "truth kernel=%s page=%#llx access=%s\n", kernel, (unsigned long long)page, access);
}

int main(int count, char **words) {
    const char *mode = count > 1 ? words[1] : "write";
    auto is = [&](const char *name) { return !strcmp(mode, name); };
    float *d, *e;
    cudaMalloc(&d, 4 << 20);
    cudaMalloc(&e, 4 << 20);
    good<<<1, 32>>>(d, 32);
    cudaDeviceSynchronize();
    // 8 GiB behind the allocation: nothing is mapped there.
    const long long far = (8ll << 30) / 4;
    cudaStream_t s[4];
    for (auto &stream : s) cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (is("write")) {
        truth("writes", (void *)0x10000, "write");
        writes<<<1, 1>>>(3, (float *)0x10000, 7);
    } else if (is("beyond")) {
        truth("writes", d + far, "write");
        writes<<<1, 1>>>(3, d, far);
    } else if (is("read")) {
        truth("reads", d + far, "read");
        reads<<<1, 1>>>(e, d, far);
    } else if (is("atomic")) {
        truth("atomics", d + far, "atomic");
        atomics<<<1, 1>>>((int *)d, far);
    } else if (is("free")) {
        float *f;
        cudaMalloc(&f, 64 << 20);
        cudaMemset(f, 0, 64 << 20);
        cudaDeviceSynchronize();
        cudaFree(f);
        truth("writes", f, "write");
        writes<<<1, 1>>>(3, f, 100);
    } else if (is("misaligned")) {
        truth("misaligned", 0, "none");
        misaligned<<<1, 1>>>((char *)d);
    } else if (is("trap")) {
        truth("traps", 0, "none");
        traps<<<1, 1>>>(d);
    } else if (is("assert")) {
        truth("asserts", 0, "none");
        asserts<<<1, 1>>>(3);
    } else if (is("stack")) {
        truth("recurses", 0, "none");
        recurses<<<1, 1>>>((int *)d, 100000);
    } else if (is("shared")) {
        truth("shared_beyond", 0, "none");
        shared_beyond<<<1, 1>>>((int *)d, 100000000);
    } else if (is("streams")) {
        for (int i = 0; i < 3; i++) spins<<<1, 1, 0, s[i]>>>(d, 2000000000ll);
        truth("writes", d + far, "write");
        writes<<<1, 1, 0, s[3]>>>(3, d, far);
    } else if (is("graph")) {
        cudaGraph_t graph;
        cudaGraphExec_t whole;
        cudaStreamBeginCapture(s[0], cudaStreamCaptureModeGlobal);
        for (int i = 0; i < 5; i++) good<<<1, 32, 0, s[0]>>>(d, 32);
        writes<<<1, 1, 0, s[0]>>>(3, d, far);
        good<<<1, 32, 0, s[0]>>>(d, 32);
        cudaStreamEndCapture(s[0], &graph);
        cudaGraphInstantiate(&whole, graph, 0);
        truth("writes", d + far, "write");
        cudaGraphLaunch(whole, s[0]);
    } else {
        fprintf(stderr, "usage: faults write|beyond|read|atomic|free|misaligned|trap|assert|stack|shared|streams|graph\n");
        return 2;
    }
    cudaError_t error = cudaDeviceSynchronize();
    printf("%s\n", cudaGetErrorString(error));
    return error != cudaSuccess;
}
