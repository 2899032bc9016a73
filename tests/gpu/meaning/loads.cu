// Modules that are loaded, used and unloaded all the time, for a comparison of nvcap with CUPTI.
//
//   loads FOLDER [-w]      FOLDER: module-0.cubin to module-2.cubin, of loads_module.cu. -w: as cuda.cu
//
// In each step a module is loaded (one of three, so that addresses are used again for other functions), a variable of it is written,
// memory is set, two of its kernels are launched with grids that tell them apart, and it is unloaded. `kept`: three are kept loaded.
#include <cuda.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>
#include <unistd.h>

#define DRIVER(call) do { CUresult error_ = (call); if (error_ != CUDA_SUCCESS) { const char *text_ = ""; cuGetErrorString(error_, &text_); fprintf(stderr, "loads.cu:%d: %s: %s\n", __LINE__, #call, text_); exit(1); } } while (0)

static std::string images[3];
static CUdeviceptr data;
static CUstream side;
static char *host;

static unsigned long long now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}
// use MODULE SET I: sets, copies and launches; functions differ from step to step.
static void use(CUmodule m, int set, int i) {
    CUdeviceptr variable;
    size_t size;
    std::string name = "v" + std::to_string(set);
    DRIVER(cuModuleGetGlobal(&variable, &size, m, name.c_str()));
    DRIVER(cuMemcpyHtoDAsync(variable, host, 400, side));
    DRIVER(cuMemcpyHtoDAsync(data, host, 4096, side));
    DRIVER(cuMemsetD32Async(data, i, 1000, side));
    for (int k = 0; k < 2; k++) {
        int f = (i + 5 * k) % 12, v = i;
        CUfunction function;
        name = "f" + std::to_string(set) + "_" + std::to_string(f);
        DRIVER(cuModuleGetFunction(&function, m, name.c_str()));
        void *args[] = {&data, &v};
        DRIVER(cuLaunchKernel(function, 1 + 12 * set + f, 1, 1, 32, 1, 1, 0, side, args, nullptr));
    }
    DRIVER(cuStreamSynchronize(side));
}
static void reloaded(int steps, int pause_us) {
    for (int i = 0; i < steps; i++) {
        CUmodule m;
        int set = i % 3;
        DRIVER(cuModuleLoadData(&m, images[set].c_str()));
        use(m, set, i);
        usleep(pause_us);
        DRIVER(cuModuleUnload(m));
    }
}
static void kept() {
    CUmodule all[3];
    for (int set = 0; set < 3; set++) DRIVER(cuModuleLoadData(&all[set], images[set].c_str()));
    for (int i = 0; i < 60; i++) use(all[i % 3], i % 3, i);
    usleep(300000);
    for (auto &m : all) DRIVER(cuModuleUnload(m));
}
static void fast() { reloaded(300, 0); }
static void slow() { reloaded(60, 30000); }

int main(int argc, char **argv) {
    bool wait = argc > 2 && !strcmp(argv[2], "-w");
    setvbuf(stdout, nullptr, _IOLBF, 0);
    printf("pid %d\n", getpid());
    for (int set = 0; set < 3; set++) {
        std::string path = std::string(argv[1]) + "/module-" + std::to_string(set) + ".cubin";
        FILE *f = fopen(path.c_str(), "rb");
        char part[4096];
        size_t n;
        while (f && (n = fread(part, 1, sizeof part, f)) > 0) images[set].append(part, n);
        if (!f || fclose(f)) { fprintf(stderr, "loads: %s cannot be read\n", path.c_str()); return 1; }
    }
    DRIVER(cuInit(0));
    CUdevice device;
    CUcontext context;
    DRIVER(cuDeviceGet(&device, 0));
    DRIVER(cuDevicePrimaryCtxRetain(&context, device));
    DRIVER(cuCtxSetCurrent(context));
    DRIVER(cuMemAlloc(&data, 1 << 20));
    DRIVER(cuMemAllocHost((void **)&host, 4096));
    memset(host, 1, 4096);
    DRIVER(cuStreamCreate(&side, CU_STREAM_NON_BLOCKING));
    if (wait) reloaded(6, 0);
    printf("ready %llu\n", now());
    char line[16];
    if (wait && !fgets(line, sizeof line, stdin)) return 1;
    struct { const char *name; void (*run)(); } phases[] = {{"kept", kept}, {"slow", slow}, {"fast", fast}};
    for (auto &p : phases) {
        unsigned long long begun = now();
        p.run();
        usleep(200000);
        printf("phase %s %llu %llu\n", p.name, begun, now());
    }
    printf("done\n");
    if (wait && !fgets(line, sizeof line, stdin)) return 1;
    return 0;
}
