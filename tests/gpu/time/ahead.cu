// Work that ends seconds after its submission: `ahead queue|long|beside`.
//
// queue:  600 kernels of 5 ms, submitted at once to one stream.
// long:   a kernel of 1 ms, one of 6 s, one of 1 ms, in one stream.
// beside: 200 kernels of 10 ms, submitted at once, and copies and short kernels of another stream while they run, each waited for.
//
// Each kernel writes %globaltimer at its begin and its end. Says "pid N" and "ready", waits for a line, works, and says
// `truth kernels=N span_ns=N union_ns=N`: the time from the first begin to the last end, and that in which a kernel ran.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unistd.h>
#include <utility>
#include <vector>
#include <cuda_runtime.h>

#define CHECK(call)                                                                     \
    do {                                                                                \
        cudaError_t e = (call);                                                         \
        if (e != cudaSuccess) {                                                         \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(e));  \
            exit(1);                                                                    \
        }                                                                               \
    } while (0)

typedef unsigned long long u64;

__device__ u64 now_ns() {
    u64 t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}

__global__ void busy(u64 *times, int n, u64 ns) {
    u64 begin = now_ns();
    while (now_ns() - begin < ns) {
    }
    times[2 * n] = begin;
    times[2 * n + 1] = now_ns();
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "queue";
    const int most = 8192;
    int kernels = 0;
    u64 *times;
    char *from, *to;
    cudaStream_t a, b;
    CHECK(cudaMalloc(&times, most * 16));
    CHECK(cudaMalloc(&to, 8 << 20));
    CHECK(cudaMallocHost(&from, 8 << 20));
    CHECK(cudaMemset(times, 0, most * 16));
    CHECK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
    busy<<<1, 1, 0, a>>>(times, 0, 1000);
    busy<<<1, 1, 0, b>>>(times, 0, 1000);
    CHECK(cudaDeviceSynchronize());
    printf("pid %d\nready\n", getpid());
    fflush(stdout);
    char line[16];
    if (!fgets(line, sizeof line, stdin)) return 1;
    if (!strcmp(mode, "queue")) {
        for (; kernels < 600; kernels++) busy<<<1, 1, 0, a>>>(times, kernels, 5000000);
    } else if (!strcmp(mode, "long")) {
        u64 lengths[] = {1000000, 6000000000ull, 1000000};
        for (; kernels < 3; kernels++) busy<<<1, 1, 0, a>>>(times, kernels, lengths[kernels]);
    } else {
        for (; kernels < 200; kernels++) busy<<<1, 1, 0, a>>>(times, kernels, 10000000);
        while (cudaStreamQuery(a) == cudaErrorNotReady && kernels < most) {
            CHECK(cudaMemcpyAsync(to, from, 8 << 20, cudaMemcpyHostToDevice, b));
            busy<<<1, 1, 0, b>>>(times, kernels++, 100000);
            CHECK(cudaStreamSynchronize(b));
            usleep(2000);
        }
    }
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());
    std::vector<u64> all(2 * kernels);
    CHECK(cudaMemcpy(all.data(), times, all.size() * 8, cudaMemcpyDeviceToHost));
    std::vector<std::pair<u64, u64>> spans;
    for (int n = 0; n < kernels; n++) spans.push_back({all[2 * n], all[2 * n + 1]});
    std::sort(spans.begin(), spans.end());
    u64 last = spans[0].first, sum = 0;
    for (auto &s : spans) {
        if (s.second > last) sum += s.second - std::max(last, s.first);
        last = std::max(last, s.second);
    }
    printf("truth kernels=%d span_ns=%llu union_ns=%llu\n", kernels, last - spans[0].first, sum);
    fflush(stdout);
    // The tracer ends first.
    return fgets(line, sizeof line, stdin) ? 0 : 1;
}
