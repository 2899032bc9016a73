// Loaded by modules.cu. nvcc -arch=sm_90 -cubin -o mod.cubin module.cu
__constant__ float c1[100]; __constant__ int c2[3] = {1, 2, 3}; __device__ float d1[1000]; __device__ int d2[7] = {7, 6, 5};
extern "C" {
#define F(n) __global__ void f##n(float *p, int v) { p[threadIdx.x] = c1[threadIdx.x % 100] * n + d1[threadIdx.x] + c2[v % 3] + d2[v % 7]; }
F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7) F(8) F(9) F(10) F(11)
}
