// What CUDA C++ can ask of a GPU, phase by phase, for a comparison of nvcap with CUPTI: launches with clusters,
// cooperative and programmatic dependent ones, streams, graphs of every kind, copies and memsets.
//
//   cuda [-w] [PHASE...]     -w: prepare everything (graphs instantiated and launched once), print `ready`, wait for a line;
//                            and for another one before the end
//
// Prints `pid N`, `ready NS`, per phase `phase NAME NS NS` (CLOCK_MONOTONIC; the device is idle at each of these times), and
// `done`.
#include <cooperative_groups.h>
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

namespace cg = cooperative_groups;

#define CHECK(call)                                                                                                         \
    do {                                                                                                                    \
        cudaError_t error_ = (call);                                                                                             \
        if (error_ != cudaSuccess) {  \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(error_));                           \
            exit(1);                                                                                                        \
        }                                                                                                                   \
    } while (0)

static float *data;
static const int N = 1 << 20;

__global__ void add(float *x, int n, float v) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] += v;
}
__global__ void with_static(float *x, float v) {
    __shared__ float part[256];
    part[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = part[255 - threadIdx.x] + v;
}
__global__ void with_dynamic(float *x, int n) {
    extern __shared__ float part[];
    part[threadIdx.x % n] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = part[0];
}
__global__ void with_both(float *x, int n) {
    extern __shared__ float part[];
    __shared__ float fixed[64];
    fixed[threadIdx.x % 64] = part[threadIdx.x % n] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = part[0] + fixed[1];
}
__global__ void __cluster_dims__(2, 1, 1) fixed_cluster(float *x) {
    cg::cluster_group c = cg::this_cluster();
    c.sync();
    if (threadIdx.x == 0) x[blockIdx.x] += c.block_rank();
}
__global__ void free_cluster(float *x) {
    cg::cluster_group c = cg::this_cluster();
    c.sync();
    if (threadIdx.x == 0) x[blockIdx.x] += c.block_rank();
}
__global__ void together(float *x) {
    cg::grid_group g = cg::this_grid();
    g.sync();
    if (g.thread_rank() == 0) x[0] += 1;
    g.sync();
}
__global__ void first(float *x) {
    x[threadIdx.x] += 1;
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}
__global__ void second(float *x) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;");
#endif
    x[threadIdx.x] += 2;
}

static unsigned long long now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static void launch_ex(void (*f)(float *), dim3 grid, dim3 block, cudaStream_t s, cudaLaunchAttribute *a, int n) {
    cudaLaunchConfig_t c = {};
    c.gridDim = grid;
    c.blockDim = block;
    c.stream = s;
    c.attrs = a;
    c.numAttrs = n;
    CHECK(cudaLaunchKernelEx(&c, f, data));
}

// ---- launches

static void plain() {
    for (int i = 1; i <= 20; i++) add<<<dim3(i, 1, 1), 32 * (1 + i % 8)>>>(data, N, 1.f);
    add<<<dim3(7, 5, 3), dim3(32, 4, 2)>>>(data, N, 1.f);
    with_static<<<3, 256>>>(data, 1.f);
    with_dynamic<<<2, 128, 1000>>>(data, 16);
    CHECK(cudaFuncSetAttribute(with_dynamic, cudaFuncAttributeMaxDynamicSharedMemorySize, 48000));
    with_dynamic<<<2, 128, 48000>>>(data, 16);
    with_both<<<2, 128, 4096>>>(data, 16);
}
static void cluster() {
    fixed_cluster<<<8, 64>>>(data);
    dim3 shapes[4][2] = {{dim3(16, 6, 1), dim3(8, 1, 1)}, {dim3(4, 4, 1), dim3(2, 2, 1)}, {dim3(4, 2, 6), dim3(1, 1, 2)}, {dim3(5, 1, 1), dim3(1, 1, 1)}};
    for (auto &s : shapes) {
        cudaLaunchAttribute a;
        a.id = cudaLaunchAttributeClusterDimension;
        a.val.clusterDim.x = s[1].x;
        a.val.clusterDim.y = s[1].y;
        a.val.clusterDim.z = s[1].z;
        launch_ex(free_cluster, s[0], dim3(64), 0, &a, 1);
    }
}
static void cooperative() {
    void *args[] = {&data};
    CHECK(cudaLaunchCooperativeKernel((void *)together, dim3(20), dim3(64), args, 0, 0));
    CHECK(cudaLaunchCooperativeKernel((void *)together, dim3(4, 5), dim3(32), args, 0, 0));
    CHECK(cudaLaunchCooperativeKernel((void *)together, dim3(2, 3, 4), dim3(32, 2), args, 0, 0));
}
static void programmatic() {
    cudaLaunchAttribute a;
    a.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    a.val.programmaticStreamSerializationAllowed = 1;
    for (int i = 1; i <= 10; i++) {
        first<<<i, 32>>>(data);
        launch_ex(second, dim3(i + 20), dim3(64), 0, &a, 1);
    }
}
static cudaStream_t streams_[4];
static void make_streams() {
    for (auto &s : streams_) CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
}
static void streams() {
    cudaEvent_t e;
    CHECK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    for (int i = 0; i < 25; i++) {
        for (int s = 0; s < 4; s++) add<<<1 + 4 * i + s, 32 * (s + 1), 0, streams_[s]>>>(data, N, 1.f);
        if (i % 5 == 0) {
            CHECK(cudaEventRecord(e, streams_[i % 4]));
            CHECK(cudaStreamWaitEvent(streams_[(i + 1) % 4], e, 0));
        }
    }
    CHECK(cudaEventDestroy(e));
}

// ---- graphs

struct Graph {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
};
static cudaStream_t side;
static void instantiate(Graph &g) {
    CHECK(cudaGraphInstantiate(&g.exec, g.graph, 0));
    CHECK(cudaGraphLaunch(g.exec, side));
}
static Graph chain40, chain100, chain300, forked, sets, copies_, mixed, conditional_, updated, again, programmatic_, wide;
static cudaGraphNode_t updated_node;
template <class F> static void capture(Graph &g, F body) {
    CHECK(cudaStreamBeginCapture(side, cudaStreamCaptureModeThreadLocal));
    body();
    CHECK(cudaStreamEndCapture(side, &g.graph));
    instantiate(g);
}
static void chain_of(Graph &g, int n) {
    capture(g, [=] { for (int i = 1; i <= n; i++) add<<<i, 64, 0, side>>>(data, N, 1.f); });
}
static void make_chains() {
    chain_of(chain40, 40);
    chain_of(chain100, 100);
    chain_of(chain300, 300);
}
static void chain() { for (int i = 0; i < 3; i++) CHECK(cudaGraphLaunch(chain40.exec, side)); }
static void chains() {
    for (int i = 0; i < 3; i++) {
        CHECK(cudaGraphLaunch(chain100.exec, side));
        CHECK(cudaGraphLaunch(chain40.exec, side));
        CHECK(cudaGraphLaunch(chain300.exec, side));
    }
}
static void fork_body(int branches, int each) {
    cudaEvent_t e, done;
    CHECK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    CHECK(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
    CHECK(cudaEventRecord(e, side));
    for (int b = 1; b < branches; b++) {
        CHECK(cudaStreamWaitEvent(streams_[b], e, 0));
        for (int i = 1; i <= each; i++) add<<<100 * b + i, 32, 0, streams_[b]>>>(data, N, 1.f);
        CHECK(cudaEventRecord(done, streams_[b]));
    }
    for (int i = 1; i <= each; i++) add<<<i, 32, 0, side>>>(data, N, 1.f);
    for (int b = 1; b < branches; b++) {
        CHECK(cudaEventRecord(done, streams_[b]));
        CHECK(cudaStreamWaitEvent(side, done, 0));
    }
    add<<<999, 64, 0, side>>>(data, N, 1.f);
}
static void make_fork() {
    capture(forked, [] { fork_body(2, 30); });
    capture(wide, [] { fork_body(4, 7); });
}
static void fork_() { for (int i = 0; i < 3; i++) CHECK(cudaGraphLaunch(forked.exec, side)); }
static void wide_() { for (int i = 0; i < 3; i++) CHECK(cudaGraphLaunch(wide.exec, side)); }
static char *host;
static void make_memory() {
    capture(sets, [] {
        for (int i = 1; i <= 5; i++) {
            CHECK(cudaMemsetAsync(data, i, 64 << 10, side));
            add<<<i, 96, 0, side>>>(data, N, 1.f);
        }
    });
    capture(copies_, [] {
        for (int i = 1; i <= 5; i++) {
            CHECK(cudaMemcpyAsync(data, data + N / 2, 32 << 10, cudaMemcpyDeviceToDevice, side));
            add<<<i, 160, 0, side>>>(data, N, 1.f);
            CHECK(cudaMemcpyAsync(host, data, 64 << 10, cudaMemcpyDeviceToHost, side));
        }
    });
    capture(mixed, [] {
        CHECK(cudaMemcpyAsync(data, host, 4 << 10, cudaMemcpyHostToDevice, side));
        add<<<11, 32, 0, side>>>(data, N, 1.f);
        CHECK(cudaMemsetAsync(data, 1, 100, side));
        add<<<12, 32, 0, side>>>(data, N, 1.f);
        CHECK(cudaMemcpyAsync(data, host, 1 << 20, cudaMemcpyHostToDevice, side));
        add<<<13, 32, 0, side>>>(data, N, 1.f);
    });
}
static void graph_sets() { for (int i = 0; i < 3; i++) CHECK(cudaGraphLaunch(sets.exec, side)); }
static void graph_copies() { for (int i = 0; i < 3; i++) CHECK(cudaGraphLaunch(copies_.exec, side)); }
static void graph_mixed() { for (int i = 0; i < 3; i++) CHECK(cudaGraphLaunch(mixed.exec, side)); }
__global__ void decide(cudaGraphConditionalHandle h, int *left) {
    if (threadIdx.x == 0) cudaGraphSetConditional(h, --*left > 0);
}
__global__ void refill(int *left, int n) { *left = n; }
static int *left_;
static void make_conditional() {
    CHECK(cudaMalloc(&left_, 4));
    cudaGraph_t g, body;
    CHECK(cudaGraphCreate(&g, 0));
    cudaGraphConditionalHandle h;
    CHECK(cudaGraphConditionalHandleCreate(&h, g, 1, cudaGraphCondAssignDefault));
    int rounds = 5, n = N;
    float v = 1;
    void *first_args[] = {&left_, &rounds}, *add_args[] = {&data, &n, &v}, *decide_args[] = {&h, &left_};
    cudaKernelNodeParams k = {};
    k.func = (void *)refill;
    k.gridDim = dim3(1);
    k.blockDim = dim3(1);
    k.kernelParams = first_args;
    cudaGraphNode_t start, loop, a, b;
    CHECK(cudaGraphAddKernelNode(&start, g, nullptr, 0, &k));
    cudaGraphNodeParams p = {};
    p.type = cudaGraphNodeTypeConditional;
    p.conditional.handle = h;
    p.conditional.type = cudaGraphCondTypeWhile;
    p.conditional.size = 1;
#if CUDART_VERSION >= 13000
    CHECK(cudaGraphAddNode(&loop, g, &start, nullptr, 1, &p));
#else
    CHECK(cudaGraphAddNode(&loop, g, &start, 1, &p));
#endif
    body = p.conditional.phGraph_out[0];
    k.func = (void *)add;
    k.gridDim = dim3(21);
    k.blockDim = dim3(32);
    k.kernelParams = add_args;
    CHECK(cudaGraphAddKernelNode(&a, body, nullptr, 0, &k));
    k.func = (void *)decide;
    k.gridDim = dim3(1);
    k.kernelParams = decide_args;
    CHECK(cudaGraphAddKernelNode(&b, body, &a, 1, &k));
    conditional_.graph = g;
    instantiate(conditional_);
}
static void conditional() { for (int i = 0; i < 3; i++) CHECK(cudaGraphLaunch(conditional_.exec, side)); }
static void make_updated() {
    chain_of(updated, 10);
    size_t n = 10;
    cudaGraphNode_t nodes[10];
    CHECK(cudaGraphGetNodes(updated.graph, nodes, &n));
    updated_node = nodes[4];
}
static void update() {
    CHECK(cudaGraphLaunch(updated.exec, side));
    for (int i = 0; i < 3; i++) {
        cudaKernelNodeParams k = {};
        int n = N;
        float v = 3;
        void *args[] = {&data, &n, &v};
        k.func = (void *)add;
        k.gridDim = dim3(500 + i);
        k.blockDim = dim3(128);
        k.kernelParams = args;
        CHECK(cudaGraphExecKernelNodeSetParams(updated.exec, updated_node, &k));
        CHECK(cudaGraphLaunch(updated.exec, side));
    }
}
static void reinstantiate() {
    for (int i = 0; i < 3; i++) {
        chain_of(again, 5 + i);
        CHECK(cudaStreamSynchronize(side));
        CHECK(cudaGraphExecDestroy(again.exec));
        CHECK(cudaGraphDestroy(again.graph));
    }
}
static void make_programmatic() {
    capture(programmatic_, [] {
        cudaLaunchAttribute a;
        a.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        a.val.programmaticStreamSerializationAllowed = 1;
        for (int i = 1; i <= 6; i++) {
            first<<<i, 32, 0, side>>>(data);
            launch_ex(second, dim3(i + 40), dim3(64), side, &a, 1);
        }
        cudaLaunchAttribute c;
        c.id = cudaLaunchAttributeClusterDimension;
        c.val.clusterDim.x = 4;
        c.val.clusterDim.y = c.val.clusterDim.z = 1;
        launch_ex(free_cluster, dim3(16), dim3(64), side, &c, 1);
    });
}
static void graph_programmatic() { for (int i = 0; i < 3; i++) CHECK(cudaGraphLaunch(programmatic_.exec, side)); }
#ifdef DEVICE_GRAPHS
static Graph inner, outer;
__global__ void launches(cudaGraphExec_t e) { cudaGraphLaunch(e, cudaStreamGraphFireAndForget); }
static void make_device() {
    CHECK(cudaStreamBeginCapture(side, cudaStreamCaptureModeThreadLocal));
    add<<<77, 32, 0, side>>>(data, N, 1.f);
    CHECK(cudaStreamEndCapture(side, &inner.graph));
    CHECK(cudaGraphInstantiate(&inner.exec, inner.graph, cudaGraphInstantiateFlagDeviceLaunch));
    CHECK(cudaGraphUpload(inner.exec, side));
    capture(outer, [] { launches<<<1, 1, 0, side>>>(inner.exec); });
}
static void device() { for (int i = 0; i < 3; i++) CHECK(cudaGraphLaunch(outer.exec, side)); }
#endif

// ---- copies and memsets

static char *other, *big;
static void make_copies() {
    CHECK(cudaMalloc(&other, 64 << 20));
    big = (char *)malloc(16 << 20);
    memset(big, 1, 16 << 20);
}
static void copies() {
    size_t sizes[] = {4, 100, 4096, 24576, 24577, 65536, 1 << 20, 16 << 20};
    for (size_t n : sizes) {
        CHECK(cudaMemcpyAsync(data, host, n < (4u << 20) ? n : 4u << 20, cudaMemcpyHostToDevice, side));
        CHECK(cudaMemcpyAsync(host, data, n < (4u << 20) ? n : 4u << 20, cudaMemcpyDeviceToHost, side));
        CHECK(cudaMemcpyAsync(other, other + (32 << 20), n, cudaMemcpyDeviceToDevice, side));
        CHECK(cudaStreamSynchronize(side));
    }
    CHECK(cudaMemcpy2DAsync(data, 2048, host, 1024, 1000, 64, cudaMemcpyHostToDevice, side));
    CHECK(cudaMemcpy2DAsync(host, 1024, data, 2048, 1000, 64, cudaMemcpyDeviceToHost, side));
    CHECK(cudaMemcpy2DAsync(other, 1024, data, 2048, 1000, 64, cudaMemcpyDeviceToDevice, side));
}
static void pageable() {
    for (size_t n : {(size_t)4, (size_t)65536, (size_t)65537, (size_t)1 << 20, (size_t)16 << 20}) {
        CHECK(cudaMemcpy(other, big, n, cudaMemcpyHostToDevice));
        CHECK(cudaMemcpy(big, other, n, cudaMemcpyDeviceToHost));
    }
}
static void memsets() {
    for (size_t n : {(size_t)1, (size_t)4, (size_t)100, (size_t)4096, (size_t)4097, (size_t)8192, (size_t)65536, (size_t)1 << 20, (size_t)32 << 20}) {
        CHECK(cudaMemsetAsync(other, 7, n, side));
        CHECK(cudaMemsetAsync(other + 1, 0, n, side));
    }
    CHECK(cudaMemset2DAsync(other, 2048, 3, 1000, 64, side));
    CHECK(cudaMemset2DAsync(other + 3, 4096, 3, 100, 2000, side));
}

struct Phase {
    const char *name;
    void (*make)();
    void (*run)();
};
static const Phase PHASES[] = {
    {"plain", nullptr, plain}, {"cluster", nullptr, cluster}, {"cooperative", nullptr, cooperative},
    {"programmatic", nullptr, programmatic}, {"streams", make_streams, streams}, {"chain", make_chains, chain},
    {"chains", nullptr, chains}, {"fork", make_fork, fork_}, {"wide", nullptr, wide_},
    {"graph_sets", make_memory, graph_sets}, {"graph_copies", nullptr, graph_copies}, {"graph_mixed", nullptr, graph_mixed},
    {"update", make_updated, update}, {"reinstantiate", nullptr, reinstantiate},
    {"graph_programmatic", make_programmatic, graph_programmatic}, {"copies", make_copies, copies},
    {"pageable", nullptr, pageable}, {"memsets", nullptr, memsets}, {"conditional", make_conditional, conditional},
#ifdef DEVICE_GRAPHS
    {"device", make_device, device},
#endif
};

int main(int argc, char **argv) {
    bool wait = argc > 1 && !strcmp(argv[1], "-w");
    setvbuf(stdout, nullptr, _IOLBF, 0);
    printf("pid %d\n", getpid());
    CHECK(cudaMalloc(&data, N * sizeof *data));
    CHECK(cudaMallocHost(&host, 8 << 20));
    CHECK(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
    for (auto &p : PHASES)
        if (p.make) p.make();
    CHECK(cudaDeviceSynchronize());
    if (wait) {
        // Every program is loaded by a first launch, so that what follows needs no upload.
        for (auto &p : PHASES) p.run();
        CHECK(cudaDeviceSynchronize());
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
