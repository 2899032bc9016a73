// Two contexts of one process by turns, a kernel in each: contexts.cu SECONDS.
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <cuda.h>
#include <nvrtc.h>

static const char *const source = R"(
extern "C" __global__ void spin_one(float *out, int rounds) {
    float x = threadIdx.x;
    for (int i = 0; i < rounds; i++)
        x = x * 1.0001f + .5f;
    out[threadIdx.x] = x;
}
extern "C" __global__ void spin_two(float *out, int rounds) {
    float x = threadIdx.x;
    for (int i = 0; i < rounds; i++)
        x = x * .9999f - .25f;
    out[threadIdx.x] = x;
}
)";

int main(int argc, char **argv) {
    CUdevice device;
    nvrtcProgram program;
    const char *options[] = {"-arch=sm_90"};
    size_t len;
    if (argc < 2 || cuInit(0) || cuDeviceGet(&device, 0) || nvrtcCreateProgram(&program, source, "contexts.cu", 0, nullptr, nullptr) ||
        nvrtcCompileProgram(program, 1, options) || nvrtcGetCUBINSize(program, &len))
        return 1;
    char *image = (char *)malloc(len);
    nvrtcGetCUBIN(program, image);
    CUcontext contexts[2];
    CUfunction functions[2];
    CUdeviceptr memory[2];
    for (int i = 0; i < 2; i++) {
        CUmodule module;
        if (cuDevicePrimaryCtxRetain(&contexts[0], device) || (i && cuCtxCreate(&contexts[1], nullptr, 0, device)) || cuCtxSetCurrent(contexts[i]) ||
            cuModuleLoadData(&module, image) || cuModuleGetFunction(&functions[i], module, i ? "spin_two" : "spin_one") || cuMemAlloc(&memory[i], 4096))
            return 1;
    }
    puts("ready");
    fflush(stdout);
    int rounds = 20000;
    for (time_t end = time(nullptr) + atoi(argv[1]); time(nullptr) < end;)
        for (int i = 0; i < 2; i++) {
            cuCtxSetCurrent(contexts[i]);
            void *arguments[] = {&memory[i], &rounds};
            for (int j = 0; j < 20; j++)
                cuLaunchKernel(functions[i], 264, 1, 1, 256, 1, 1, 0, nullptr, arguments, nullptr);
            cuCtxSynchronize();
        }
    return 0;
}
