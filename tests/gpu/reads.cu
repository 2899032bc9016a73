// What a read of video memory costs, by size, alignment and instruction: `reads` maps a CUDA context, takes the first
// mapping of /dev/nvidia0 of 2 MiB or more that can be read (libcuda's rings and USERD, through BAR1), reads from it and
// prints medians in ns. The kernel copies user memory with `rep movsb` where the processor has fast short copies
// (fsrm), and strings with plain loads: these are the two that a BPF program has.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <vector>
#include <cuda_runtime.h>

static double now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

template <class F> static double median(F f) {
    std::vector<double> v;
    for (int i = 0; i < 400; i++) {
        double t = now();
        f();
        v.push_back(now() - t);
    }
    std::sort(v.begin(), v.end());
    return v[v.size() / 2];
}

static char to[256] __attribute__((aligned(64)));

static void rep_movsb(const void *from, size_t n) {
    void *d = to;
    asm volatile("rep movsb" : "+D"(d), "+S"(from), "+c"(n)::"memory");
}

int main() {
    if (cudaFree(0) != cudaSuccess) return 1;
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512], access[8];
    char *base = nullptr;
    while (!base && fgets(line, sizeof line, maps)) {
        unsigned long from, to;
        if (sscanf(line, "%lx-%lx %7s", &from, &to, access) == 3 && strstr(line, "/dev/nvidia0") && access[0] == 'r' &&
            to - from >= 2 << 20)
            base = (char *)from;
    }
    if (!base) {
        fprintf(stderr, "reads: no readable mapping of /dev/nvidia0\n");
        return 1;
    }
    printf("clock alone %.0f\n", median([] {}));
    const size_t sizes[] = {8, 16, 32, 64, 128};
    printf("rep movsb, by offset from a multiple of 128:\n%6s", "bytes");
    for (int o = 0; o < 128; o += 8) printf("%6d", o);
    for (size_t n : sizes) {
        printf("\n%6zu", n);
        for (int o = 0; o < 128; o += 8) printf("%6.0f", median([&] { rep_movsb(base + 0x2080 + o, n); }));
    }
    printf("\nplain loads: 4 bytes %.0f, 8 bytes %.0f, 8 bytes at 4 modulo 8 %.0f, two of 8 bytes %.0f\n",
           median([&] { (void)*(volatile uint32_t *)(base + 0x208c); }),
           median([&] { (void)*(volatile uint64_t *)(base + 0x2088); }),
           median([&] { (void)*(volatile uint64_t *)(base + 0x208c); }), median([&] {
               (void)*(volatile uint64_t *)(base + 0x2080);
               (void)*(volatile uint64_t *)(base + 0x2088);
           }));
}
