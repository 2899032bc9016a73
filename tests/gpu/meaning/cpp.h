// What cpp.cu and cpp_unit.cu share: shapes of launches, and a kernel that is instantiated in several translation units.
#pragma once
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(call)                                                                                                         \
    do {                                                                                                                    \
        cudaError_t error_ = (call);                                                                                        \
        if (error_ != cudaSuccess) {                                                                                        \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(error_));                      \
            exit(1);                                                                                                        \
        }                                                                                                                   \
    } while (0)

static const int N = 1 << 16;
extern float *data;

// SHAPES: how often each kernel is launched in a phase, each time with another grid and block. No two kernels have a grid in common,
// so that a name given to the wrong kernel is no launch of CUPTI's.
#define SHAPES 5
static inline dim3 grid_of(int kernel, int i) { return dim3(1 + kernel * SHAPES + i, 1 + i % 2, 1); }
static inline dim3 block_of(int kernel, int i) { return dim3(32 * (1 + (kernel + i) % 4), 1 + i % 3, 1); }
// LAUNCH(NUMBER, KERNEL, ARGUMENTS...): KERNEL in parentheses where it has a comma.
#define PLAIN_(...) __VA_ARGS__
#define LAUNCH(number, kernel, ...)                                                                                         \
    do {                                                                                                                    \
        for (int i_ = 0; i_ < SHAPES; i_++) {                                                                               \
            PLAIN_ kernel<<<grid_of(number, i_), block_of(number, i_)>>>(__VA_ARGS__);                                      \
            CHECK(cudaGetLastError());                                                                                      \
        }                                                                                                                   \
    } while (0)

__device__ inline int place() { return (blockIdx.y * gridDim.x + blockIdx.x) * blockDim.x * blockDim.y + threadIdx.y * blockDim.x + threadIdx.x; }

// The same name and code in every unit that uses it: one function with -rdc=true, otherwise one in each unit's module.
template <class T> __global__ void everywhere(T *x, int n, T v) {
    int i = place();
    if (i < n) x[i] = x[i] * v + T(1);
}

namespace unit {
void run();
}
namespace library {
void run();
}
#ifdef RDC
namespace unit {
__device__ float far(float v);
}
namespace library {
__device__ float far(float v);
}
#endif
