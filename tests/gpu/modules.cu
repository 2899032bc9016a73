// Modules that are loaded and unloaded all the time. Truth: N launches, N copies of 4096 B; nothing else is the program's. modules MODULE.cubin N; nvcc -arch=sm_90 modules.cu -lcuda
#include <cstdio>
#include <cstring>
#include <cstdlib>
#include <string>
#include <cuda.h>
#include <cuda_runtime.h>
int main(int argc, char **argv) {
    int n = argc > 2 ? atoi(argv[2]) : 10; FILE *f = fopen(argv[1], "rb"); std::string image; char buf[4096]; size_t r; while ((r = fread(buf, 1, sizeof buf, f)) > 0) image.append(buf, r); fclose(f);
    cuInit(0); CUdevice dv; cuDeviceGet(&dv, 0); CUcontext c; cuDevicePrimaryCtxRetain(&c, dv); cuCtxSetCurrent(c);
    CUdeviceptr d; cuMemAlloc(&d, 1 << 20); char host[4096]; memset(host, 2, sizeof host);
    for (int i = 0; i < n; i++) {
        CUmodule m; CUresult e = cuModuleLoadData(&m, image.c_str()); if (e) { printf("load %d\n", e); return 1; }
        CUfunction k; e = cuModuleGetFunction(&k, m, "f3"); if (e) { printf("get %d\n", e); return 1; }
        int v = i; void *args[] = {&d, &v};
        cuMemcpyHtoD(d, host, 4096);
        cuLaunchKernel(k, 1, 1, 1, 32, 1, 1, 0, 0, args, 0); cuCtxSynchronize(); cuModuleUnload(m);
    }
    printf("truth: %d launches, %d copies of 4096 B, 0 memsets\n", n, n);
}
