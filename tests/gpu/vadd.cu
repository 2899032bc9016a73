// The vector addition that README and docs/verification.md show: 1,048,576 floats, copied there, added by
// vadd<<<4096,256>>>, copied back and checked. `vadd pageable` uses ordinary memory, which the driver stages.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_runtime.h>

#define CHECK(call)                                                                     \
    do {                                                                                \
        cudaError_t e = (call);                                                         \
        if (e != cudaSuccess) {                                                         \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(e));  \
            exit(1);                                                                    \
        }                                                                               \
    } while (0)

__global__ void vadd(const float *a, const float *b, float *c, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i];
}

static float *host(size_t bytes, bool pageable) {
    void *p = nullptr;
    if (pageable) {
        p = malloc(bytes);
        if (!p) exit(1);
    } else {
        CHECK(cudaMallocHost(&p, bytes));
    }
    return static_cast<float *>(p);
}

int main(int argc, char **argv) {
    bool pageable = argc > 1 && !strcmp(argv[1], "pageable");
    const int n = 1 << 20;
    const size_t bytes = n * sizeof(float);
    float *a = host(bytes, pageable), *b = host(bytes, pageable), *c = host(bytes, pageable);
    for (int i = 0; i < n; i++) {
        a[i] = float(i % 1000);
        b[i] = float(i % 77) * 0.5f;
        c[i] = -1.0f;
    }
    float *da, *db, *dc;
    CHECK(cudaMalloc(&da, bytes));
    CHECK(cudaMalloc(&db, bytes));
    CHECK(cudaMalloc(&dc, bytes));
    CHECK(cudaMemcpy(da, a, bytes, cudaMemcpyHostToDevice));
    CHECK(cudaMemcpy(db, b, bytes, cudaMemcpyHostToDevice));
    vadd<<<4096, 256>>>(da, db, dc, n);
    CHECK(cudaGetLastError());
    CHECK(cudaMemcpy(c, dc, bytes, cudaMemcpyDeviceToHost));
    int wrong = 0;
    for (int i = 0; i < n; i++) wrong += c[i] != a[i] + b[i];
    printf("vadd of %d floats: %d wrong; a %p b %p c %p\n", n, wrong, (void *)da, (void *)db, (void *)dc);
    return wrong != 0;
}
