// Small copies whose source the GPU itself has just written: the front end's macro fetches them (FIELD.md). nvcc -arch=sm_90
// Truth: for each size one copy device to host, one within the device, two host to device; all four are the program's.
#include <cstdio>
#include <cstring>
__constant__ float cst[512];
__device__ float dev[512];
__global__ void spin(long n) { long t = clock64(); while (clock64() - t < n); }
__global__ void use(float *p) { p[threadIdx.x] = cst[threadIdx.x] + dev[threadIdx.x]; }
int main() {
    char *a, *b, *pin; cudaStream_t s;
    cudaMalloc(&a, 4 << 20); cudaMalloc(&b, 4 << 20); cudaMallocHost(&pin, 2 << 20); memset(pin, 5, 2 << 20); cudaStreamCreate(&s);
    for (int pass = 0; pass < 2; pass++)
        for (size_t n : {1, 4, 63, 256, 1000, 4096, 20000, 24576, 30000}) {
            spin<<<1, 1, 0, s>>>(4000000);
            cudaMemcpyAsync(pin, a, n, cudaMemcpyDeviceToHost, s);
            cudaMemcpyAsync(a, pin, n, cudaMemcpyHostToDevice, s);
            cudaMemcpyAsync(b, a, n, cudaMemcpyDeviceToDevice, s);
            cudaMemcpyAsync(b, pin, n, cudaMemcpyHostToDevice, s);
        }
    spin<<<1, 1, 0, s>>>(4000000);
    cudaMemcpyToSymbolAsync(cst, pin, 1024, 0, cudaMemcpyHostToDevice, s);
    cudaMemcpyToSymbolAsync(dev, pin, 1024, 0, cudaMemcpyHostToDevice, s);
    use<<<1, 64, 0, s>>>((float *)a);
    printf("%d\n", cudaStreamSynchronize(s));
}
