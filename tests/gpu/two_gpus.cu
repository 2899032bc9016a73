// Work on every GPU of the machine from one process, for nvcap to tell apart. Each GPU has a number of launches and
// sizes of its own, and the program says which, with the addresses, so that check.py can hold each operation against
// the GPU it was submitted on. One thread for each GPU, and one that turns from GPU to GPU.
//
//   nvcc -arch=sm_90 -o two_gpus two_gpus.cu && ./two_gpus
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>
#include <cuda_runtime.h>

#define CK(x) do { cudaError_t e_ = (x); if (e_ != cudaSuccess) { \
    fprintf(stderr, "%s:%d %s\n", __FILE__, __LINE__, cudaGetErrorString(e_)); exit(1); } } while (0)

__global__ void scale(uint32_t *p, uint32_t n, uint32_t by) {
    uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) p[i] = p[i] * by + i;
}

struct Gpu {
    int number;
    uint32_t launches, blocks, n, by;
    uint32_t *host, *device;
};

static long wrong(const Gpu &g, uint32_t times) {
    long bad = 0;
    for (uint32_t i = 0; i < g.n; i++) {
        uint32_t want = i;
        for (uint32_t k = 0; k < times; k++) want = want * g.by + i;
        bad += g.host[i] != want;
    }
    return bad;
}

static void work(Gpu &g) {
    CK(cudaSetDevice(g.number));
    for (uint32_t i = 0; i < g.n; i++) g.host[i] = i;
    CK(cudaMemcpy(g.device, g.host, 4 * g.n, cudaMemcpyHostToDevice));
    for (uint32_t k = 0; k < g.launches; k++) scale<<<g.blocks, 128>>>(g.device, g.n, g.by);
    CK(cudaMemcpy(g.host, g.device, 4 * g.n, cudaMemcpyDeviceToHost));
}

int main() {
    int count = 0;
    CK(cudaGetDeviceCount(&count));
    std::vector<Gpu> gpus(count);
    for (int i = 0; i < count; i++) {
        Gpu &g = gpus[i];
        g = {i, 11u + 6u * i, 1000u + 512u * i, 0, 3u + 2u * i, nullptr, nullptr};
        g.n = g.blocks * 128;
        CK(cudaSetDevice(i));
        CK(cudaMallocHost(&g.host, 4 * g.n));
        CK(cudaMalloc(&g.device, 4 * g.n));
        char pci[32];
        CK(cudaDeviceGetPCIBusId(pci, sizeof pci, i));
        // Twice: once by its own thread, once in turn.
        printf("gpu %d pci %s launches %u blocks %u bytes %u device %p host %p\n", i, pci, 2 * g.launches, g.blocks,
               4 * g.n, (void *)g.device, (void *)g.host);
    }
    fflush(stdout);
    std::vector<std::thread> threads;
    for (auto &g : gpus) threads.emplace_back(work, std::ref(g));
    for (auto &t : threads) t.join();
    long bad = 0;
    for (auto &g : gpus) bad += wrong(g, g.launches);
    for (auto &g : gpus) {
        CK(cudaSetDevice(g.number));
        for (uint32_t i = 0; i < g.n; i++) g.host[i] = i;
        CK(cudaMemcpy(g.device, g.host, 4 * g.n, cudaMemcpyHostToDevice));
    }
    for (uint32_t k = 0;; k++) {
        bool more = false;
        for (auto &g : gpus) {
            if (k >= g.launches) continue;
            more = true;
            CK(cudaSetDevice(g.number));
            scale<<<g.blocks, 128>>>(g.device, g.n, g.by);
        }
        if (!more) break;
    }
    for (auto &g : gpus) {
        CK(cudaSetDevice(g.number));
        CK(cudaMemcpy(g.host, g.device, 4 * g.n, cudaMemcpyDeviceToHost));
        bad += wrong(g, g.launches);
    }
    if (count > 1) {
        // Between GPUs, by whatever way there is.
        CK(cudaMemcpyPeer(gpus[1].device, 1, gpus[0].device, 0, 4 * gpus[0].n));
        CK(cudaDeviceSynchronize());
        printf("peer bytes %u\n", 4 * gpus[0].n);
    }
    printf("gpus %d wrong %ld\n", count, bad);
    return bad != 0;
}
