// A translation unit of its own for cpp.cu; and one more, under the name `library`, by cpp_library.cu.
// Its kernels have names that cpp.cu and the other unit have too, with other code, where the language allows that.
#include "cpp.h"

#ifndef UNIT
#define UNIT unit
#endif
#define unit_NUMBER 64
#define library_NUMBER 96
#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define FIRST JOIN(UNIT, _NUMBER)

// `hidden` and `apart` are in every unit, with other code in each.
static __global__ void hidden(float *x, int n) {
    int i = place();
    if (i < n) x[i] = x[i] * FIRST + 1.f;
}
namespace {
__global__ void apart(float *x, int n) {
    int i = place();
    if (i < n) x[i] = FIRST - x[i];
}
// The same code as `unit_same` below, in each unit.
__global__ void anonymous_same(float *x, int n) {
    int i = place();
    if (i < n) x[i] += 41.f;
}
} // namespace

namespace UNIT {
__global__ void unit_same(float *x, int n) {
    int i = place();
    if (i < n) x[i] += 41.f;
}
template <int Rounds> __global__ void rounds(float *x, int n) {
    int i = place();
    if (i >= n) return;
    float v = x[i];
#pragma unroll
    for (int r = 0; r < Rounds; r++) v = v * 0.5f + r;
    x[i] = v;
}
#ifdef RDC
__device__ float far(float v) { return v * FIRST + 0.25f; }
#endif

void run() {
    LAUNCH(FIRST + 0, (hidden), data, N);
    LAUNCH(FIRST + 1, (apart), data, N);
    LAUNCH(FIRST + 2, (anonymous_same), data, N);
    LAUNCH(FIRST + 3, (unit_same), data, N);
    LAUNCH(FIRST + 4, (rounds<3>), data, N);
    LAUNCH(FIRST + 5, (rounds<9>), data, N);
    LAUNCH(FIRST + 6, (everywhere<float>), data, N, 1.5f);
}
} // namespace UNIT
