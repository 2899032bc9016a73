// A launch loop: `loop LAUNCHES PASSES [wait]` launches an empty kernel and prints what one launch cost the CPU.
// With `wait` it says "ready" once warm and starts when a byte comes on standard input, so that a tracer or a
// breakpoint can be put in place first.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <unistd.h>
#include <cuda_runtime.h>

#define CHECK(call)                                                                     \
    do {                                                                                \
        cudaError_t e = (call);                                                         \
        if (e != cudaSuccess) {                                                         \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(e));  \
            exit(1);                                                                    \
        }                                                                               \
    } while (0)

__global__ void empty() {}

static double now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

int main(int argc, char **argv) {
    int launches = argc > 1 ? atoi(argv[1]) : 50000, passes = argc > 2 ? atoi(argv[2]) : 3;
    for (int i = 0; i < 1000; i++) empty<<<1, 32>>>();
    CHECK(cudaDeviceSynchronize());
    printf("pid %d\nready\n", getpid());
    fflush(stdout);
    if (argc > 3 && !strcmp(argv[3], "wait")) {
        char c;
        if (read(0, &c, 1) != 1) return 1;
    }
    bool turns = argc > 3 && !strcmp(argv[3], "turns");
    for (int p = 0; p < passes; p++) {
        // With `turns` each pass waits for a byte, so that a tracer can come and go between them.
        if (turns) {
            char c;
            if (read(0, &c, 1) != 1) return 1;
        }
        double begin = now();
        for (int i = 0; i < launches; i++) empty<<<1, 32>>>();
        double issued = now();
        CHECK(cudaDeviceSynchronize());
        double end = now();
        printf("loop pass=%d launches=%d issue_ns=%.1f total_ns=%.1f\n", p, launches, (issued - begin) / launches,
               (end - begin) / launches);
        fflush(stdout);
    }
    // What came right before a process's end cannot be told from what came after the last look at it.
    usleep(100000);
    return 0;
}
