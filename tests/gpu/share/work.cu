// A program that has the GPU work, and says for how long it really did: work OUT KERNEL_US PAUSE_US SECONDS
//
// Each kernel reads %globaltimer all the time until it has seen KERNEL_US of it pass. A step of more than STEP ns is time in which
// another context had the GPU: it is not counted as work. Between kernels the program waits PAUSE_US; with 0 there are always two in the
// queue. Prints "ready PID" when it begins, and at the end writes a line for each kernel to OUT: begin, end, work, gaps, number of gaps.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <unistd.h>
#include <vector>

static const uint64_t STEP = 20000;
static const int MOST = 1 << 20;

struct Kernel { uint64_t begin, end, work, gaps, count; };

__device__ static uint64_t now() {
    uint64_t t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}

__global__ void work(Kernel *out, uint64_t ns) {
    uint64_t begin = now(), last = begin, sum = 0, gaps = 0, count = 0;
    while (sum < ns) {
        uint64_t t = now(), step = t - last;
        if (step < STEP) sum += step;
        else gaps += step, count++;
        last = t;
    }
    *out = {begin, last, sum, gaps, count};
}

static void check(cudaError_t e) {
    if (e != cudaSuccess) { fprintf(stderr, "work: %s\n", cudaGetErrorString(e)); exit(1); }
}

static double seconds() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

int main(int argc, char **argv) {
    if (argc < 5) return 2;
    uint64_t ns = strtoull(argv[2], 0, 10) * 1000;
    useconds_t pause = atoi(argv[3]);
    double length = atof(argv[4]);
    Kernel *out;
    check(cudaMalloc(&out, sizeof(Kernel) * MOST));
    cudaEvent_t done[2];
    for (auto &event : done) check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    work<<<1, 1>>>(out, 1000);
    check(cudaDeviceSynchronize());
    printf("ready %d\n", (int)getpid());
    fflush(stdout);
    double end = seconds() + length;
    int n = 0;
    while (seconds() < end && n < MOST) {
        if (ns == 0) { usleep(10000); continue; }
        if (n >= 2) check(cudaEventSynchronize(done[n % 2]));
        work<<<1, 1>>>(out + n, ns);
        check(cudaEventRecord(done[n % 2]));
        n++;
        if (pause) { check(cudaDeviceSynchronize()); usleep(pause); }
    }
    check(cudaDeviceSynchronize());
    std::vector<Kernel> all(n);
    if (n) check(cudaMemcpy(all.data(), out, sizeof(Kernel) * n, cudaMemcpyDeviceToHost));
    FILE *file = fopen(argv[1], "w");
    if (!file) return 1;
    for (auto &k : all)
        fprintf(file, "%llu %llu %llu %llu %llu\n", (unsigned long long)k.begin, (unsigned long long)k.end, (unsigned long long)k.work,
                (unsigned long long)k.gaps, (unsigned long long)k.count);
    fclose(file);
    printf("over %d\n", n);
    return 0;
}
