// Kernels with every kind of name that CUDA C++ makes, for a comparison of nvcap's names with CUPTI's: templates, lambdas, extern "C",
// internal linkage, several translation units, equal code under several names.
//
//   cpp [-w] [PHASE...]     as cuda.cu: -w launches everything once, prints `ready`, and waits for a line; and for another one
//                           before the end
//
// Prints `pid N`, `ready NS`, per phase `phase NAME NS NS` (CLOCK_MONOTONIC; the device is idle at each of these times), and `done`.
// Links with cpp_unit.cu, and with a static library of cpp_library.cu. With -rdc=true also -DRDC: kernels then call functions of
// other units. Needs --extended-lambda.
#include "cpp.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

float *data;

// ---- templates

// int and unsigned have the same code.
template <class T> __global__ void add(T *x, int n, T v) {
    int i = place();
    if (i < n) x[i] += v;
}
template <int Rounds> __global__ void rounds(float *x, int n) {
    int i = place();
    if (i >= n) return;
    float v = x[i];
#pragma unroll
    for (int r = 0; r < Rounds; r++) v = v * v + r;
    x[i] = v;
}
enum class Way { Up, Down };
template <Way W, bool Twice> __global__ void steps(float *x, int n) {
    int i = place();
    if (i >= n) return;
    x[i] += W == Way::Up ? 1.f : -1.f;
    if (Twice) x[i] *= 2.f;
}
template <class... T> __global__ void pack(float *x, int n, T... v) {
    int i = place();
    if (i < n) x[i] = (x[i] + ... + float(v));
}
template <class F> __global__ void apply(float *x, int n, F f) {
    int i = place();
    if (i < n) x[i] = f(x[i]);
}
struct Scale {
    float v;
    __device__ float operator()(float x) const { return x * v; }
};
namespace outer {
inline namespace v1 {
template <class T> struct Shift {
    T v;
    __device__ float operator()(float x) const { return x + v; }
};
} // namespace v1
} // namespace outer

static void templates() {
    LAUNCH(0, (add<float>), data, N, 1.f);
    LAUNCH(1, (add<int>), (int *)data, N, 1);
    LAUNCH(2, (add<unsigned>), (unsigned *)data, N, 1u);
    LAUNCH(3, (add<double>), (double *)data, N / 2, 1.);
    LAUNCH(4, (pack<int>), data, N, 1);
    LAUNCH(5, (pack<int, float, short>), data, N, 1, 2.f, short(3));
    LAUNCH(6, (apply<Scale>), data, N, Scale{2.f});
    LAUNCH(7, (apply<outer::Shift<float>>), data, N, outer::Shift<float>{2.f});
    LAUNCH(8, (apply<outer::Shift<int>>), data, N, outer::Shift<int>{2});
    LAUNCH(9, (everywhere<float>), data, N, 1.5f);
    LAUNCH(10, (everywhere<int>), (int *)data, N, 3);
}
static void values() {
    LAUNCH(11, (rounds<1>), data, N);
    LAUNCH(12, (rounds<2>), data, N);
    LAUNCH(13, (rounds<3>), data, N);
    LAUNCH(14, (rounds<8>), data, N);
    LAUNCH(15, (steps<Way::Up, false>), data, N);
    LAUNCH(16, (steps<Way::Up, true>), data, N);
    LAUNCH(17, (steps<Way::Down, false>), data, N);
    LAUNCH(18, (steps<Way::Down, true>), data, N);
}

// ---- lambdas. What encloses them must not be local to this unit.

void lambdas() {
    float v = 3.f;
    auto times = [=] __device__(float x) { return x * v; };
    auto plus = [=] __device__(float x) { return x + v; };
    auto both = [=] __host__ __device__(float x) { return x - v; };
    LAUNCH(19, (apply), data, N, times);
    LAUNCH(20, (apply), data, N, plus);
    LAUNCH(21, (apply), data, N, both);
    LAUNCH(22, (apply), data, N, [] __device__(float x) { return x * x; });
}
template <class T> void lambdas_of(int number, T v) {
    auto less = [=] __device__(float x) { return x - float(v); };
    LAUNCH(number, (apply), data, N, less);
}
static void template_lambdas() {
    lambdas_of<float>(23, 4.f);
    lambdas_of<int>(24, 4);
}

// ---- names that are as they are written, and such that are of this unit alone

extern "C" __global__ void plain_c(float *x, int n) {
    int i = place();
    if (i < n) x[i] = x[i] / 3.f;
}
extern "C" __global__ void plain_c_too(float *x, int n) {
    int i = place();
    if (i < n) x[i] = 3.f / x[i];
}
static __global__ void hidden(float *x, int n) {
    int i = place();
    if (i < n) x[i] = x[i] * 7.f + 2.f;
}
namespace {
__global__ void apart(float *x, int n) {
    int i = place();
    if (i < n) x[i] = 7.f - x[i];
}
template <class T> __global__ void apart_of(T *x, int n) {
    int i = place();
    if (i < n) x[i] = T(11) - x[i];
}
} // namespace
struct Big {
    float v[64];
};
__global__ void by_value(float *x, int n, Big b) {
    int i = place();
    if (i < n) x[i] += b.v[i % 64];
}
__global__ void overloaded(float *x, int n) {
    int i = place();
    if (i < n) x[i] = sqrtf(fabsf(x[i]));
}
__global__ void overloaded(int *x, int n) {
    int i = place();
    if (i < n) x[i] ^= 0x55;
}
static void linkage() {
    LAUNCH(25, (plain_c), data, N);
    LAUNCH(26, (plain_c_too), data, N);
    LAUNCH(27, (hidden), data, N);
    LAUNCH(28, (apart), data, N);
    LAUNCH(29, (apart_of<float>), data, N);
    LAUNCH(30, (apart_of<int>), (int *)data, N);
    Big b = {};
    b.v[3] = 1.f;
    LAUNCH(31, (by_value), data, N, b);
    LAUNCH(32, (overloaded), data, N);
    LAUNCH(33, (overloaded), (int *)data, N);
}

// ---- the same code under four names

#define SAME(name)                                                                                                          \
    name(float *x, int n) {                                                                                                 \
        int i = place();                                                                                                    \
        if (i < n) x[i] += 41.f;                                                                                            \
    }
__global__ void SAME(same_one)
__global__ void SAME(same_two)
extern "C" __global__ void SAME(same_c)
namespace outer {
__global__ void SAME(same_one)
}
static void same() {
    LAUNCH(34, (same_one), data, N);
    LAUNCH(35, (same_two), data, N);
    LAUNCH(36, (same_c), data, N);
    LAUNCH(37, (outer::same_one), data, N);
}

// ---- functions of other units

#ifdef RDC
__global__ void calls_unit(float *x, int n) {
    int i = place();
    if (i < n) x[i] = unit::far(x[i]);
}
__global__ void calls_library(float *x, int n) {
    int i = place();
    if (i < n) x[i] = library::far(x[i]) - unit::far(x[i]);
}
static void calls() {
    LAUNCH(38, (calls_unit), data, N);
    LAUNCH(39, (calls_library), data, N);
}
#endif

struct Phase {
    const char *name;
    void (*run)();
};
static const Phase PHASES[] = {
    {"templates", templates}, {"values", values}, {"lambdas", lambdas}, {"template_lambdas", template_lambdas}, {"linkage", linkage},
    {"same", same}, {"unit", unit::run}, {"library", library::run},
#ifdef RDC
    {"calls", calls},
#endif
};

static unsigned long long now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

int main(int argc, char **argv) {
    bool wait = argc > 1 && !strcmp(argv[1], "-w");
    setvbuf(stdout, nullptr, _IOLBF, 0);
    printf("pid %d\n", getpid());
    CHECK(cudaMalloc(&data, N * sizeof *data));
    CHECK(cudaMemset(data, 0, N * sizeof *data));
    if (wait)
        for (auto &p : PHASES) p.run();
    CHECK(cudaDeviceSynchronize());
    printf("ready %llu\n", now());
    char line[16];
    if (wait && !fgets(line, sizeof line, stdin)) return 1;
    for (auto &p : PHASES) {
        bool asked = argc <= 1 + wait;
        for (int i = 1 + wait; i < argc; i++) asked |= !strcmp(argv[i], p.name);
        if (!asked) continue;
        unsigned long long begun = now();
        p.run();
        CHECK(cudaDeviceSynchronize());
        // What is observed is told later than it was submitted: it is to fall into its phase, and the end to be seen.
        usleep(100000);
        printf("phase %s %llu %llu\n", p.name, begun, now());
    }
    printf("done\n");
    // A tracer that was attached can go before the end.
    if (wait && !fgets(line, sizeof line, stdin)) return 1;
    return 0;
}
