// Hangs that end by themselves: `hang spin|wait|peer [SECONDS]`.
//
// spin: a kernel that spins for SECONDS, 19 launches queued behind it on its stream, a second stream that waits for an
//       event recorded behind the kernel, with launches of its own behind that.
// wait: a stream that waits for a value nobody writes (cuStreamWaitValue32), until the program itself writes it.
// peer: two processes; a kernel of each waits for the other's flag in shared host memory, and one process has gone
//       without setting its own. (Not an event that was never recorded: waiting for one is no wait at all in CUDA.)
//
// Says "hung ..." with what is to be found once all is submitted, and "ended" at the end. No managed memory.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cuda.h>
#include <cuda_runtime.h>

#define CHECK(call)                                                                     \
    do {                                                                                \
        cudaError_t e = (call);                                                         \
        if (e != cudaSuccess) {                                                         \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(e));  \
            exit(1);                                                                    \
        }                                                                               \
    } while (0)
#define DRIVER(call)                                                                    \
    do {                                                                                \
        CUresult e = (call);                                                            \
        if (e != CUDA_SUCCESS) {                                                        \
            fprintf(stderr, "%s:%d: CUresult %d\n", __FILE__, __LINE__, (int)e);        \
            exit(1);                                                                    \
        }                                                                               \
    } while (0)

__device__ unsigned long long now_ns() {
    unsigned long long t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}

// Spins until the flag is set or the time is over.
__global__ void spin(volatile int *flag, unsigned long long ns) {
    unsigned long long begin = now_ns();
    while (now_ns() - begin < ns)
        if (flag && *flag) break;
}

__global__ void add(int *x, int n) { *x += n; }

static int work(const char *mode, double seconds, volatile int *flag) {
    int *x;
    cudaStream_t a, b;
    cudaEvent_t event;
    CHECK(cudaMalloc(&x, 4));
    CHECK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
    CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    unsigned long long ns = (unsigned long long)(seconds * 1e9);
    // Everything once, so that what follows is no first time: lazy loading waits for the GPU.
    spin<<<dim3(3, 2, 1), dim3(64, 2, 1), 0, a>>>(nullptr, 1000);
    add<<<1, 1, 0, a>>>(x, 1);
    add<<<1, 1, 0, b>>>(x, 1);
    int *host = nullptr, *seen = nullptr;
    CHECK(cudaHostAlloc(&host, 4096, cudaHostAllocMapped));
    host[0] = 0;
    if (flag) {
        CHECK(cudaHostRegister((void *)flag, 4096, cudaHostRegisterMapped));
        CHECK(cudaHostGetDevicePointer(&seen, (void *)flag, 0));
    }
    CHECK(cudaDeviceSynchronize());
    if (!strcmp(mode, "spin")) {
        spin<<<dim3(3, 2, 1), dim3(64, 2, 1), 0, a>>>(nullptr, ns);
        CHECK(cudaEventRecord(event, a));
        for (int i = 0; i < 19; i++) add<<<1, 32, 0, a>>>(x, i);
        CHECK(cudaStreamWaitEvent(b, event, 0));
        for (int i = 0; i < 3; i++) add<<<1, 64, 0, b>>>(x, i);
        printf("hung mode=spin pid=%d grid=3x2x1 block=64x2x1\n", getpid());
    } else if (!strcmp(mode, "wait")) {
        void *device;
        CHECK(cudaHostGetDevicePointer(&device, host, 0));
        DRIVER(cuStreamWaitValue32((CUstream)a, (CUdeviceptr)device, 77, CU_STREAM_WAIT_VALUE_GEQ));
        for (int i = 0; i < 4; i++) add<<<1, 32, 0, a>>>(x, i);
        printf("hung mode=wait pid=%d address=%p payload=77\n", getpid(), device);
    } else {
        spin<<<dim3(1, 1, 1), dim3(32, 1, 1), 0, a>>>(seen, ns);
        printf("hung mode=peer pid=%d grid=1x1x1 block=32x1x1\n", getpid());
    }
    fflush(stdout);
    if (!strcmp(mode, "wait")) {
        usleep((useconds_t)(seconds * 1e6));
        *(volatile int *)host = 77;
    }
    CHECK(cudaDeviceSynchronize());
    printf("ended\n");
    return 0;
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "spin";
    double seconds = argc > 2 ? atof(argv[2]) : 8;
    volatile int *flag = nullptr;
    if (!strcmp(mode, "peer")) {
        flag = (volatile int *)mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        pid_t child = fork();
        if (child == 0) {
            // The peer: it comes up, and goes without a word.
            CHECK(cudaFree(0));
            usleep(200000);
            _exit(7);
        }
        int status;
        waitpid(child, &status, 0);
        printf("peer %d gone with status %d\n", child, WEXITSTATUS(status));
    }
    return work(mode, seconds, flag);
}
