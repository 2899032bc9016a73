// A module of loads.cu: nvcc -DSET=0 -cubin. The functions of one set are alike but for a number; of another set they are longer.
#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define NAME(n) JOIN(JOIN(JOIN(f, SET), _), n)
#define VARIABLE JOIN(v, SET)
extern "C" {
__constant__ float c[100];
__device__ float VARIABLE[100];
#define F(n) __global__ void NAME(n)(float *p, int v) { float x = c[v % 100] * n + VARIABLE[threadIdx.x]; for (int i = 0; i < SET * v; i++) x = x * x + n; p[threadIdx.x] = x; }
F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7) F(8) F(9) F(10) F(11)
}
