// Replays a CUDA graph of two kernels: graph.cu SECONDS [other]. First prints how long each takes in a graph of its own, then its replays a second, every half second.
// With "other" the kernels have other names, which must not be seen where another process is sampled.
#include <cstdio>
#include <cstdlib>
#include <ctime>

__global__ void arithmetic(float *out, int rounds) {
    float x = threadIdx.x;
    for (int i = 0; i < rounds; i++)
        x = x * 1.0001f + .5f;
    out[blockIdx.x * blockDim.x + threadIdx.x] = x;
}
__global__ void memory_walk(const float *from, float *to, int count) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
        to[i] = from[i] + 1;
}
__global__ void other_work(float *out, int rounds) {
    float x = threadIdx.x;
    for (int i = 0; i < rounds; i++)
        x = x * .9999f - .5f;
    out[blockIdx.x * blockDim.x + threadIdx.x] = x;
}

static double now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

int main(int argc, char **argv) {
    const int count = 32 << 20, rounds = 150000;
    const bool other = argc > 2;
    float *a, *b;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t begin, end;
    if (argc < 2 || cudaMalloc(&a, count * sizeof *a) || cudaMalloc(&b, count * sizeof *b) || cudaStreamCreate(&stream))
        return 1;
    cudaEventCreate(&begin);
    cudaEventCreate(&end);
    auto first = [&] { other ? other_work<<<264, 256, 0, stream>>>(a, rounds) : arithmetic<<<264, 256, 0, stream>>>(a, rounds); };
    auto second = [&] { if (!other) memory_walk<<<1056, 256, 0, stream>>>(a, b, count); };
    auto captured = [&](auto work) {
        cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
        work();
        cudaStreamEndCapture(stream, &graph);
        return cudaGraphInstantiate(&exec, graph, 0);
    };
    auto alone = [&](const char *name, auto work) {
        float ms = 0;
        captured(work);
        for (int i = 0; i < 20; i++)
            cudaGraphLaunch(exec, stream);
        cudaEventRecord(begin, stream);
        for (int i = 0; i < 500; i++)
            cudaGraphLaunch(exec, stream);
        cudaEventRecord(end, stream);
        cudaStreamSynchronize(stream);
        cudaEventElapsedTime(&ms, begin, end);
        printf("alone %s %.4f ms\n", name, ms / 500);
    };
    alone(other ? "other_work" : "arithmetic", first);
    if (!other)
        alone("memory_walk", second);
    if (captured([&] { first(), second(); }))
        return 1;
    puts("ready");
    fflush(stdout);
    long replays = 0;
    for (double start = now(), half = start; now() < start + atof(argv[1]);) {
        for (int i = 0; i < 50; i++)
            cudaGraphLaunch(exec, stream);
        cudaStreamSynchronize(stream);
        replays += 50;
        double t = now();
        if (t - half > .5) {
            printf("%.3f %.1f replays/s\n", t, replays / (t - half));
            fflush(stdout);
            half = t;
            replays = 0;
        }
    }
    return cudaDeviceSynchronize() != cudaSuccess;
}
