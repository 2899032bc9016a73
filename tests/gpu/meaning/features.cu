// What CUDA 12 and 13 offer beyond cuda.cu, phase by phase, for a comparison of nvcap with CUPTI: arrays, copies of two and
// three dimensions, memsets of each width, symbols, large parameters, memory pools, virtual memory, stream memory
// operations, host functions, priorities, further contexts, graphs with every kind of node.
//
//   features [-w] [PHASE...]     as cuda.cu
//
// nvcc -O2 -arch=sm_90 features.cu -lcuda.
#include <cuda.h>
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <thread>
#include <time.h>
#include <unistd.h>
#include <vector>

static bool bad(const char *call, int line, const char *text) {
    fprintf(stderr, "features.cu:%d: %s: %s\n", line, call, text);
    exit(1);
}
#define CHECK(call) do { cudaError_t error_ = (call); if (error_ != cudaSuccess) bad(#call, __LINE__, cudaGetErrorString(error_)); } while (0)
#define DRIVER(call) do { CUresult error_ = (call); const char *text_ = ""; if (error_ != CUDA_SUCCESS) { cuGetErrorString(error_, &text_); bad(#call, __LINE__, text_); } } while (0)

static const int N = 1 << 20;
static float *data, *more;
static char *host, *far;
static cudaStream_t side;

struct Large { int words[7500]; };
__constant__ float constants[256];
__device__ float variables[256];
__global__ void add(float *x, float v) { x[blockIdx.x * blockDim.x + threadIdx.x] += v; }
__global__ void of_large(float *x, Large l) { x[threadIdx.x] = l.words[threadIdx.x] + l.words[7499]; }
__global__ void of_shared(float *x) { extern __shared__ float part[]; part[threadIdx.x] = x[threadIdx.x]; __syncthreads(); x[threadIdx.x] = part[127 - threadIdx.x]; }
__global__ void of_symbols(float *x) { x[threadIdx.x] = constants[threadIdx.x] + variables[threadIdx.x]; }
__global__ void of_texture(float *x, cudaTextureObject_t t) { x[threadIdx.x] = tex2D<float>(t, threadIdx.x, 1); }
__global__ void of_surface(cudaSurfaceObject_t s) { surf2Dwrite((float)threadIdx.x, s, threadIdx.x * 4, 0); }
__global__ void of_mapped(float *x, volatile int *p) { x[threadIdx.x] = p[threadIdx.x]; }
__global__ void says(int v) { if (v < 0) printf("%d\n", v); }
__global__ void picks(cudaGraphConditionalHandle h, unsigned v) { cudaGraphSetConditional(h, v); }

static unsigned long long now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

// ---- launches

static void parameters() {
    Large l = {};
    for (int i = 1; i <= 5; i++) { l.words[7499] = i; of_large<<<i, 64, 0, side>>>(data, l); }
}
static void shared() {
    CHECK(cudaFuncSetAttribute(of_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, 200 << 10));
    for (int i = 1; i <= 4; i++) of_shared<<<i, 128, (50 * i) << 10, side>>>(data);
}
static void attributes() {
    cudaEvent_t e;
    CHECK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    for (int i = 0; i < 4; i++) {
        cudaLaunchAttribute a[2] = {};
        int n = 0;
        if (i == 0) { a[n].id = cudaLaunchAttributePriority; a[n++].val.priority = -1; }
        if (i == 1) { a[n].id = cudaLaunchAttributeMemSyncDomain; a[n++].val.memSyncDomain = cudaLaunchMemSyncDomainRemote; }
        if (i == 2) { a[n].id = cudaLaunchAttributeLaunchCompletionEvent; a[n].val.launchCompletionEvent.event = e; a[n++].val.launchCompletionEvent.flags = 0; }
        cudaLaunchConfig_t c = {};
        c.gridDim = dim3(30 + i); c.blockDim = dim3(32); c.stream = side; c.attrs = a; c.numAttrs = n;
        CHECK(cudaLaunchKernelEx(&c, add, data, 1.f));
    }
    CHECK(cudaStreamSynchronize(side));
    CHECK(cudaEventDestroy(e));
}
static cudaStream_t prioritised[3];
static void make_priorities() {
    int least, greatest;
    CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    for (int i = 0; i < 3; i++) CHECK(cudaStreamCreateWithPriority(&prioritised[i], cudaStreamNonBlocking, greatest + i <= least ? greatest + i : least));
}
static void priorities() {
    for (int i = 0; i < 9; i++) add<<<40 + i, 32, 0, prioritised[i % 3]>>>(data, 1.f);
}
static void host_functions() {
    static int called;
    for (int i = 1; i <= 5; i++) {
        add<<<i, 96, 0, side>>>(data, 1.f);
        CHECK(cudaLaunchHostFunc(side, [](void *p) { ++*(int *)p; }, &called));
    }
    CHECK(cudaStreamSynchronize(side));
}
static void events() {
    cudaEvent_t a, b;
    CHECK(cudaEventCreate(&a));
    CHECK(cudaEventCreateWithFlags(&b, cudaEventBlockingSync));
    for (int i = 1; i <= 5; i++) {
        CHECK(cudaEventRecord(a, side));
        add<<<i, 224, 0, side>>>(data, 1.f);
        CHECK(cudaEventRecord(b, side));
        CHECK(cudaEventSynchronize(b));
        float ms;
        CHECK(cudaEventElapsedTime(&ms, a, b));
    }
    CHECK(cudaEventDestroy(a));
    CHECK(cudaEventDestroy(b));
}
static void threads() {
    std::vector<std::thread> all;
    for (int t = 0; t < 4; t++) all.emplace_back([t] {
        for (int i = 1; i <= 5; i++) add<<<10 * t + i, 160, 0, cudaStreamPerThread>>>(data, 1.f);
        CHECK(cudaStreamSynchronize(cudaStreamPerThread));
    });
    for (auto &t : all) t.join();
}
static void prints() {
    for (int i = 1; i <= 3; i++) says<<<i, 32, 0, side>>>(i);
}
static void mapped() {
    static int *registered;
    if (!registered) {
        registered = (int *)aligned_alloc(4096, 1 << 20);
        memset(registered, 0, 1 << 20);
        CHECK(cudaHostRegister(registered, 1 << 20, cudaHostRegisterMapped));
    }
    int *seen;
    CHECK(cudaHostGetDevicePointer((void **)&seen, registered, 0));
    of_mapped<<<3, 64, 0, side>>>(data, seen);
    CHECK(cudaMemcpyAsync(data, registered, 1 << 18, cudaMemcpyHostToDevice, side));
    CHECK(cudaMemcpyAsync(registered, data, 1 << 19, cudaMemcpyDeviceToHost, side));
}

// ---- memory

static void pool() {
    for (int i = 1; i <= 5; i++) {
        float *p;
        CHECK(cudaMallocAsync((void **)&p, (size_t)i << 20, side));
        CHECK(cudaMemsetAsync(p, i, (size_t)i << 20, side));
        add<<<i, 128, 0, side>>>(p, 1.f);
        CHECK(cudaFreeAsync(p, side));
    }
    CHECK(cudaStreamSynchronize(side));
}
static void virtual_memory() {
    CUmemAllocationProp prop = {};
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    size_t grain;
    DRIVER(cuMemGetAllocationGranularity(&grain, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    CUdeviceptr at;
    CUmemGenericAllocationHandle handle;
    DRIVER(cuMemAddressReserve(&at, grain, 0, 0, 0));
    DRIVER(cuMemCreate(&handle, grain, &prop, 0));
    DRIVER(cuMemMap(at, grain, 0, handle, 0));
    CUmemAccessDesc access = {};
    access.location = prop.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    DRIVER(cuMemSetAccess(at, grain, &access, 1));
    DRIVER(cuMemsetD32Async(at, 5, 1 << 16, side));
    add<<<9, 64, 0, side>>>((float *)at, 1.f);
    CHECK(cudaMemcpyAsync(host, (void *)at, 1 << 16, cudaMemcpyDeviceToHost, side));
    CHECK(cudaStreamSynchronize(side));
    DRIVER(cuMemUnmap(at, grain));
    DRIVER(cuMemRelease(handle));
    DRIVER(cuMemAddressFree(at, grain));
}
static cudaArray_t flat, flat_too, deep;
static cudaTextureObject_t texture;
static cudaSurfaceObject_t surface;
static void make_arrays() {
    cudaChannelFormatDesc d = cudaCreateChannelDesc<float>();
    CHECK(cudaMallocArray(&flat, &d, 512, 128, cudaArraySurfaceLoadStore));
    CHECK(cudaMallocArray(&flat_too, &d, 512, 128));
    CHECK(cudaMalloc3DArray(&deep, &d, make_cudaExtent(64, 32, 16), 0));
    cudaResourceDesc r = {};
    r.resType = cudaResourceTypeArray;
    r.res.array.array = flat;
    cudaTextureDesc t = {};
    CHECK(cudaCreateTextureObject(&texture, &r, &t, nullptr));
    CHECK(cudaCreateSurfaceObject(&surface, &r));
}
static void arrays_to() { CHECK(cudaMemcpy2DToArrayAsync(flat, 0, 0, host, 2048, 2048, 128, cudaMemcpyHostToDevice, side)); }
static void arrays_from() { CHECK(cudaMemcpy2DFromArrayAsync(host, 2048, flat, 0, 0, 2048, 128, cudaMemcpyDeviceToHost, side)); }
static void arrays_device() {
    CHECK(cudaMemcpy2DToArrayAsync(flat, 0, 0, data, 2048, 1024, 64, cudaMemcpyDeviceToDevice, side));
    CHECK(cudaMemcpy2DFromArrayAsync(data, 2048, flat, 64, 3, 512, 32, cudaMemcpyDeviceToDevice, side));
    CHECK(cudaMemcpy2DArrayToArray(flat_too, 0, 0, flat, 0, 0, 2048, 100, cudaMemcpyDeviceToDevice));
}
static void arrays_deep() {
    cudaMemcpy3DParms p = {};
    p.srcPtr = make_cudaPitchedPtr(host, 256, 64, 32);
    p.dstArray = deep;
    p.extent = make_cudaExtent(64, 32, 16);
    p.kind = cudaMemcpyHostToDevice;
    CHECK(cudaMemcpy3DAsync(&p, side));
    cudaMemcpy3DParms q = {};
    q.srcArray = deep;
    q.dstPtr = make_cudaPitchedPtr(host, 256, 64, 32);
    q.extent = make_cudaExtent(32, 16, 8);
    q.kind = cudaMemcpyDeviceToHost;
    CHECK(cudaMemcpy3DAsync(&q, side));
}
static void textures() {
    of_texture<<<2, 64, 0, side>>>(data, texture);
    of_surface<<<3, 64, 0, side>>>(surface);
}
static void copies_flat() {
    for (int i = 0; i < 3; i++) {
        CHECK(cudaMemcpy2DAsync(data, 4096, host, 1024, 100 * (i + 1), 30 + i, cudaMemcpyHostToDevice, side));
        CHECK(cudaMemcpy2DAsync(host, 4096, data, 1024, 200 * (i + 1), 40 + i, cudaMemcpyDeviceToHost, side));
        CHECK(cudaMemcpy2DAsync(more, 4096, data, 1024, 300 * (i + 1), 50 + i, cudaMemcpyDeviceToDevice, side));
    }
}
static void copies_deep() {
    for (auto kind : {cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice}) {
        cudaMemcpy3DParms p = {};
        p.srcPtr = make_cudaPitchedPtr(kind == cudaMemcpyHostToDevice ? (void *)host : data, 1024, 512, 64);
        p.dstPtr = make_cudaPitchedPtr(kind == cudaMemcpyDeviceToHost ? (void *)host : more, 2048, 700, 32);
        p.extent = make_cudaExtent(500, 20, 10);
        p.kind = kind;
        CHECK(cudaMemcpy3DAsync(&p, side));
    }
}
static void copies_peer() {
    for (size_t n : {(size_t)4096, (size_t)1 << 20}) CHECK(cudaMemcpyPeerAsync(more, 0, data, 0, n, side));
}
static void copies_pageable() {
    for (size_t n : {(size_t)3, (size_t)5000, (size_t)300000, (size_t)3 << 20}) {
        CHECK(cudaMemcpyAsync(data, far, n, cudaMemcpyHostToDevice, side));
        CHECK(cudaMemcpyAsync(far, data, n, cudaMemcpyDeviceToHost, side));
    }
    CHECK(cudaMemcpy(far, far + (4 << 20), 1 << 20, cudaMemcpyHostToHost));
}
static void batched() {
#if CUDART_VERSION >= 13000
    const int count = 6;
    const void *from[count];
    void *to[count];
    size_t sizes[count], first[1] = {0};
    for (int i = 0; i < count; i++) { from[i] = host + i * 65536; to[i] = (char *)data + i * 65536; sizes[i] = 1000 * (i + 1); }
    cudaMemcpyAttributes a = {};
    a.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    CHECK(cudaMemcpyBatchAsync((const void **)to, from, sizes, count, &a, first, 1, side));
#endif
}
static void symbols() {
    static float values[256];
    CHECK(cudaMemcpyToSymbolAsync(constants, values, sizeof values, 0, cudaMemcpyHostToDevice, side));
    CHECK(cudaMemcpyToSymbolAsync(variables, host, 400, 0, cudaMemcpyHostToDevice, side));
    of_symbols<<<4, 64, 0, side>>>(data);
    CHECK(cudaMemcpyFromSymbolAsync(host, variables, 800, 0, cudaMemcpyDeviceToHost, side));
    CHECK(cudaMemcpyFromSymbolAsync(more, constants, 600, 0, cudaMemcpyDeviceToDevice, side));
}
static void widths() {
    CUdeviceptr at = (CUdeviceptr)data;
    for (size_t n : {1, 7, 100, 5000, 100000}) {
        DRIVER(cuMemsetD8Async(at, 0x11, n, side));
        DRIVER(cuMemsetD16Async(at, 0x1122, n, side));
        DRIVER(cuMemsetD32Async(at, 0x11223344, n, side));
    }
    DRIVER(cuMemsetD8Async(at + 1, 0x11, 1000, side));
    DRIVER(cuMemsetD16Async(at + 2, 0x1122, 1001, side));
    DRIVER(cuMemsetD32Async(at + 4, 0, 1003, side));
}
static void widths_flat() {
    CUdeviceptr at = (CUdeviceptr)data;
    DRIVER(cuMemsetD2D8Async(at, 4096, 0x11, 100, 30, side));
    DRIVER(cuMemsetD2D16Async(at, 4096, 0x1122, 100, 31, side));
    DRIVER(cuMemsetD2D32Async(at, 4096, 0x11223344, 100, 32, side));
    CHECK(cudaMemset3DAsync(make_cudaPitchedPtr(data, 2048, 1000, 16), 3, make_cudaExtent(900, 10, 5), side));
}
static CUdeviceptr flags;
static void memory_operations() {
    DRIVER(cuStreamWriteValue32(side, flags, 1, 0));
    DRIVER(cuStreamWaitValue32(side, flags, 1, CU_STREAM_WAIT_VALUE_GEQ));
    DRIVER(cuStreamWriteValue64(side, flags + 8, 2, 0));
    DRIVER(cuStreamWaitValue64(side, flags + 8, 2, CU_STREAM_WAIT_VALUE_EQ));
    add<<<17, 32, 0, side>>>(data, 1.f);
    CUstreamBatchMemOpParams p[3] = {};
    for (int i = 0; i < 2; i++) {
        p[i].operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
        p[i].writeValue.address = flags + 16 + 4 * i;
        p[i].writeValue.value = 7;
    }
    p[2].operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    p[2].waitValue.address = flags + 16;
    p[2].waitValue.value = 7;
    p[2].waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
    DRIVER(cuStreamBatchMemOp(side, 3, p, 0));
    add<<<18, 32, 0, side>>>(data, 1.f);
}

// ---- contexts

static CUdevice device;
static CUcontext first_context, second_context;
static CUstream second_stream;
static float *second_data;
static void make_context() {
    DRIVER(cuCtxGetCurrent(&first_context));
#if CUDA_VERSION >= 13000
    DRIVER(cuCtxCreate(&second_context, nullptr, 0, device));
#else
    DRIVER(cuCtxCreate(&second_context, 0, device));
#endif
    CHECK(cudaMalloc((void **)&second_data, 1 << 20));
    DRIVER(cuStreamCreate(&second_stream, CU_STREAM_NON_BLOCKING));
    DRIVER(cuCtxSetCurrent(first_context));
}
static void context() {
    DRIVER(cuCtxSetCurrent(second_context));
    for (int i = 1; i <= 5; i++) {
        CHECK(cudaMemcpyAsync(second_data, host, 30000 + i, cudaMemcpyHostToDevice, second_stream));
        add<<<i, 192, 0, second_stream>>>(second_data, 1.f);
    }
    DRIVER(cuStreamSynchronize(second_stream));
    DRIVER(cuCtxSetCurrent(first_context));
}
#if CUDA_VERSION >= 12050
static CUstream green_stream;
static void make_green() {
    CUdevResource all, part;
    unsigned groups = 1;
    DRIVER(cuDeviceGetDevResource(device, &all, CU_DEV_RESOURCE_TYPE_SM));
    DRIVER(cuDevSmResourceSplitByCount(&part, &groups, &all, nullptr, 0, 16));
    CUdevResourceDesc desc;
    DRIVER(cuDevResourceGenerateDesc(&desc, &part, 1));
    CUgreenCtx green;
    DRIVER(cuGreenCtxCreate(&green, desc, device, CU_GREEN_CTX_DEFAULT_STREAM));
    DRIVER(cuGreenCtxStreamCreate(&green_stream, green, CU_STREAM_NON_BLOCKING, 0));
}
static void green() {
    for (int i = 1; i <= 5; i++) {
        add<<<i, 256, 0, green_stream>>>(data, 1.f);
        CHECK(cudaMemcpyAsync(more, data, 4096 * i, cudaMemcpyDeviceToDevice, green_stream));
    }
    DRIVER(cuStreamSynchronize(green_stream));
}
#endif

// ---- graphs

struct Graph { cudaGraph_t graph = nullptr; cudaGraphExec_t exec = nullptr; };
static void instantiate(Graph &g) {
    CHECK(cudaGraphInstantiate(&g.exec, g.graph, 0));
    CHECK(cudaGraphLaunch(g.exec, side));
    CHECK(cudaStreamSynchronize(side));
}
template <class F> static void capture(Graph &g, F body) {
    CHECK(cudaStreamBeginCapture(side, cudaStreamCaptureModeThreadLocal));
    body();
    CHECK(cudaStreamEndCapture(side, &g.graph));
}
static void replay(Graph &g) { for (int i = 0; i < 3; i++) CHECK(cudaGraphLaunch(g.exec, side)); }
static Graph inner, parent, with_hosts, with_memory, with_arrays, with_deep, if_, switch_, replaced, other_form;
static cudaGraphNode_t add_node(cudaGraph_t g, cudaGraphNode_t after, cudaGraphNodeParams *p) {
    cudaGraphNode_t node;
#if CUDART_VERSION >= 13000
    CHECK(cudaGraphAddNode(&node, g, after ? &after : nullptr, nullptr, after ? 1 : 0, p));
#else
    CHECK(cudaGraphAddNode(&node, g, after ? &after : nullptr, after ? 1 : 0, p));
#endif
    return node;
}
static cudaGraphNode_t add_kernel(cudaGraph_t g, cudaGraphNode_t after, int grid, float *to) {
    float v = 1;
    void *args[] = {&to, &v};
    cudaKernelNodeParams k = {};
    k.func = (void *)add;
    k.gridDim = dim3(grid);
    k.blockDim = dim3(64);
    k.kernelParams = args;
    cudaGraphNode_t node;
    CHECK(cudaGraphAddKernelNode(&node, g, after ? &after : nullptr, after ? 1 : 0, &k));
    return node;
}
static void make_child() {
    capture(inner, [] { for (int i = 1; i <= 4; i++) add<<<200 + i, 32, 0, side>>>(data, 1.f); });
    CHECK(cudaGraphCreate(&parent.graph, 0));
    auto a = add_kernel(parent.graph, nullptr, 210, data);
    cudaGraphNode_t child, again;
    CHECK(cudaGraphAddChildGraphNode(&child, parent.graph, &a, 1, inner.graph));
    auto b = add_kernel(parent.graph, child, 211, data);
    CHECK(cudaGraphAddChildGraphNode(&again, parent.graph, &b, 1, inner.graph));
    instantiate(parent);
}
static void child() { replay(parent); }
static void make_hosts() {
    static cudaEvent_t e;
    CHECK(cudaEventCreate(&e));
    CHECK(cudaGraphCreate(&with_hosts.graph, 0));
    auto a = add_kernel(with_hosts.graph, nullptr, 220, data);
    cudaGraphNode_t h, r, n;
    cudaHostNodeParams p = {};
    p.fn = [](void *) {};
    CHECK(cudaGraphAddHostNode(&h, with_hosts.graph, &a, 1, &p));
    CHECK(cudaGraphAddEventRecordNode(&r, with_hosts.graph, &h, 1, e));
    auto b = add_kernel(with_hosts.graph, r, 221, data);
    CHECK(cudaGraphAddEmptyNode(&n, with_hosts.graph, &b, 1));
    add_kernel(with_hosts.graph, n, 222, data);
    instantiate(with_hosts);
}
static void graph_hosts() { replay(with_hosts); }
static void make_graph_memory() {
    CHECK(cudaGraphCreate(&with_memory.graph, 0));
    cudaMemAllocNodeParams p = {};
    p.poolProps.allocType = cudaMemAllocationTypePinned;
    p.poolProps.location.type = cudaMemLocationTypeDevice;
    p.bytesize = 1 << 20;
    cudaGraphNode_t a, s, f;
    CHECK(cudaGraphAddMemAllocNode(&a, with_memory.graph, nullptr, 0, &p));
    cudaMemsetParams m = {};
    m.dst = p.dptr;
    m.elementSize = 4;
    m.width = 1000;
    m.height = 1;
    CHECK(cudaGraphAddMemsetNode(&s, with_memory.graph, &a, 1, &m));
    auto k = add_kernel(with_memory.graph, s, 230, (float *)p.dptr);
    CHECK(cudaGraphAddMemFreeNode(&f, with_memory.graph, &k, 1, p.dptr));
    instantiate(with_memory);
}
static void graph_memory() { replay(with_memory); }
static void make_graph_arrays() {
    capture(with_arrays, [] { arrays_to(); add<<<240, 32, 0, side>>>(data, 1.f); arrays_from(); });
    instantiate(with_arrays);
    capture(with_deep, [] { copies_deep(); add<<<241, 32, 0, side>>>(data, 1.f); widths_flat(); });
    instantiate(with_deep);
}
static void graph_arrays() { replay(with_arrays); }
static void graph_deep() { replay(with_deep); }
static void conditional_of(Graph &g, cudaGraphConditionalNodeType type, unsigned size, unsigned value) {
    CHECK(cudaGraphCreate(&g.graph, 0));
    cudaGraphConditionalHandle h;
    CHECK(cudaGraphConditionalHandleCreate(&h, g.graph, 0, cudaGraphCondAssignDefault));
    void *args[] = {&h, &value};
    cudaKernelNodeParams k = {};
    k.func = (void *)picks;
    k.gridDim = k.blockDim = dim3(1);
    k.kernelParams = args;
    cudaGraphNode_t pick;
    CHECK(cudaGraphAddKernelNode(&pick, g.graph, nullptr, 0, &k));
    cudaGraphNodeParams p = {};
    p.type = cudaGraphNodeTypeConditional;
    p.conditional.handle = h;
    p.conditional.type = type;
    p.conditional.size = size;
    add_node(g.graph, pick, &p);
    for (unsigned i = 0; i < size; i++) add_kernel(p.conditional.phGraph_out[i], nullptr, 250 + i, data);
    instantiate(g);
}
static void make_conditions() {
    conditional_of(if_, cudaGraphCondTypeIf, 1, 1);
#if CUDART_VERSION >= 12080
    conditional_of(switch_, cudaGraphCondTypeSwitch, 3, 1);
#endif
}
static void conditional_if() { replay(if_); }
static void conditional_switch() { if (switch_.exec) replay(switch_); }
static void make_replaced() {
    capture(replaced, [] { for (int i = 1; i <= 6; i++) add<<<260 + i, 32, 0, side>>>(data, 1.f); });
    instantiate(replaced);
    capture(other_form, [] { for (int i = 1; i <= 6; i++) add<<<270 + i, 64, 0, side>>>(data, 2.f); });
}
static void whole_update() {
    cudaGraphExecUpdateResultInfo info = {};
    CHECK(cudaGraphExecUpdate(replaced.exec, other_form.graph, &info));
    CHECK(cudaGraphLaunch(replaced.exec, side));
    CHECK(cudaGraphExecUpdate(replaced.exec, replaced.graph, &info));
    CHECK(cudaGraphLaunch(replaced.exec, side));
}

struct Phase { const char *name; void (*make)(); void (*run)(); };
static const Phase PHASES[] = {
    {"parameters", nullptr, parameters}, {"shared", nullptr, shared}, {"attributes", nullptr, attributes}, {"priorities", make_priorities, priorities},
    {"host_functions", nullptr, host_functions}, {"events", nullptr, events}, {"threads", nullptr, threads}, {"prints", nullptr, prints}, {"mapped", nullptr, mapped},
    {"pool", nullptr, pool}, {"virtual_memory", nullptr, virtual_memory},
    {"arrays_to", make_arrays, arrays_to}, {"arrays_from", nullptr, arrays_from}, {"arrays_device", nullptr, arrays_device}, {"arrays_deep", nullptr, arrays_deep}, {"textures", nullptr, textures},
    {"copies_flat", nullptr, copies_flat}, {"copies_deep", nullptr, copies_deep}, {"copies_peer", nullptr, copies_peer}, {"copies_pageable", nullptr, copies_pageable},
    {"batched", nullptr, batched}, {"symbols", nullptr, symbols}, {"widths", nullptr, widths}, {"widths_flat", nullptr, widths_flat},
    {"memory_operations", nullptr, memory_operations}, {"context", make_context, context},
#if CUDA_VERSION >= 12050
    {"green", make_green, green},
#endif
    {"child", make_child, child}, {"graph_hosts", make_hosts, graph_hosts}, {"graph_memory", make_graph_memory, graph_memory}, {"graph_arrays", make_graph_arrays, graph_arrays},
    {"graph_deep", nullptr, graph_deep}, {"if", make_conditions, conditional_if}, {"switch", nullptr, conditional_switch}, {"whole_update", make_replaced, whole_update},
};

int main(int argc, char **argv) {
    bool wait = argc > 1 && !strcmp(argv[1], "-w");
    setvbuf(stdout, nullptr, _IOLBF, 0);
    printf("pid %d\n", getpid());
    CHECK(cudaMalloc(&data, 4 * N * sizeof *data));
    CHECK(cudaMalloc(&more, 4 * N * sizeof *more));
    CHECK(cudaMallocHost(&host, 16 << 20));
    far = (char *)malloc(8 << 20);
    memset(far, 1, 8 << 20);
    DRIVER(cuDeviceGet(&device, 0));
    DRIVER(cuMemAlloc(&flags, 4096));
    CHECK(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
    for (auto &p : PHASES)
        if (p.make) p.make();
    CHECK(cudaDeviceSynchronize());
    if (wait) {
        // Every program is loaded by a first launch, so that what follows needs no upload.
        for (auto &p : PHASES) {
            p.run();
            CHECK(cudaDeviceSynchronize());
        }
    }
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
