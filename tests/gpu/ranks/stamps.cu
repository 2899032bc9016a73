// Stamps of the GPU's own clock for a job of several ranks: the truth that `nvcap ranks` is held against. A library that job.py loads.
//
//   stamps_open(MOST, DEVICE)    room for so many stamps on a device
//   stamp(NUMBER, STREAM)        a kernel of one thread that waits for stamps_queued, then writes %globaltimer, in the order of the stream
//   stamps_queued(NEXT)          what comes behind the stamps below NEXT is queued: so what lies between is the GPU's time, not the host's
//   stamps_ping(STREAM)          asks the GPU for its clock between two readings of CLOCK_MONOTONIC; the device should be idle
//   stamps_save(FILE)            writes them, a line each: `ping HOST GPU HOST`, `stamp NUMBER GPU` (ns)
//
// Each answers 0, or CUDA's error.
#include <cuda_runtime.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

typedef unsigned long long u64;

static const unsigned ASKED = 100, MOST_PINGS = 100000;
static u64 *stamps, *answers, pings[MOST_PINGS][3];
static unsigned *question, *queued, most, pinged;

__device__ static u64 gpu_clock() {
    u64 t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}

// Waits 20 ms at most: the host may wait for the GPU where it loads a kernel.
__global__ void write_stamp(u64 *at, volatile unsigned *queued, unsigned number) {
    u64 start = gpu_clock();
    while (*queued <= number && gpu_clock() - start < 20000000ull) {}
    *at = gpu_clock();
}

// Answers questions of the CPU with its time, two seconds at most.
__global__ void answer_pings(volatile unsigned *asked, volatile u64 *told, unsigned count) {
    u64 start = gpu_clock();
    for (unsigned i = 1; i <= count; i++) {
        while (*asked < i)
            if (gpu_clock() - start > 2000000000ull) return;
        told[i] = gpu_clock();
        __threadfence_system();
    }
}

static u64 now() {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

extern "C" int stamps_open(unsigned count, int device) {
    most = count;
    cudaError_t error = cudaSetDevice(device);
    if (!error) error = cudaMalloc(&stamps, most * sizeof *stamps);
    if (!error) error = cudaMemset(stamps, 0, most * sizeof *stamps);
    if (!error) error = cudaHostAlloc(&answers, (ASKED + 1) * sizeof *answers, cudaHostAllocMapped);
    if (!error) error = cudaHostAlloc(&question, 2 * sizeof *question, cudaHostAllocMapped);
    if (!error) queued = question + 1, *queued = 0;
    return error;
}

extern "C" int stamp(unsigned number, cudaStream_t stream) {
    if (number >= most) return cudaErrorInvalidValue;
    write_stamp<<<1, 1, 0, stream>>>(stamps + number, queued, number);
    return cudaGetLastError();
}

extern "C" int stamps_queued(unsigned next) {
    if (queued) *(volatile unsigned *)queued = next;
    return 0;
}

extern "C" int stamps_ping(cudaStream_t stream) {
    if (pinged == MOST_PINGS) return cudaErrorInvalidValue;
    memset(answers, 0, (ASKED + 1) * sizeof *answers);
    *question = 0;
    __sync_synchronize();
    answer_pings<<<1, 1, 0, stream>>>(question, answers, ASKED);
    u64 *best = pings[pinged++], limit = now() + 2000000000ull;
    for (unsigned i = 1; i <= ASKED; i++) {
        u64 asked = now(), told = 0;
        *(volatile unsigned *)question = i;
        while (!(told = ((volatile u64 *)answers)[i]))
            if (now() > limit) return cudaErrorTimeout;
        u64 got = now();
        if (i == 1 || got - asked < best[2] - best[0]) best[0] = asked, best[1] = told, best[2] = got;
    }
    return cudaStreamSynchronize(stream);
}

extern "C" int stamps_save(const char *path) {
    u64 *all = new u64[most];
    cudaError_t error = cudaMemcpy(all, stamps, most * sizeof *all, cudaMemcpyDeviceToHost);
    FILE *file = error ? NULL : fopen(path, "w");
    if (!file) return error ? error : cudaErrorOperatingSystem;
    for (unsigned i = 0; i < pinged; i++) fprintf(file, "ping %llu %llu %llu\n", pings[i][0], pings[i][1], pings[i][2]);
    for (unsigned i = 0; i < most; i++)
        if (all[i]) fprintf(file, "stamp %u %llu\n", i, all[i]);
    delete[] all;
    return fclose(file) ? cudaErrorOperatingSystem : cudaSuccess;
}
