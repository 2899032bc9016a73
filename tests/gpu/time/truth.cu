// Kernels that write when they began and ended, by the GPU's own clock: the truth that `nvcap --gpu-time` is compared with.
//
//   truth [-w] [-o FILE] [PHASE...]
//
//   -w       when all is prepared print `ready` and wait for a line; after the last phase print `done` and wait for another
//   -o FILE  where the times are written (default: standard output)
//
//   queue    kernels of 2, 5, 20, 100 us, 20,000 each, back to back: 500 at a time behind a kernel that waits for the CPU, so that
//            they are queued ahead however slow the CPU is
//   sync     the same durations, 5,000 each: the CPU waits for the end of each before the next
//   pause    the same durations, 5,000 each: nothing is waited for, but each is launched after the one before has ended
//   write    4,000 kernels that write 32 MiB each, queued ahead: writes of theirs are on their way when they end
//   two      5,000 kernels of 20 us in each of two streams at once, queued ahead
//   copy     200 copies of 8 MiB to the host in one stream, kernels of 100 us in another
//   graph    a graph of 32 kernels of 5 us in a chain: replayed 500 times with a wait between, 400 times queued ahead
//   load     a kernel of 100 us every 10 ms, 300 times
//   fast     empty kernels from four threads, a stream each, 25,000 each, as fast as they can
//   rate     the same with one every 13.3 us in each thread: 300,000 a second together
//
// Written, one a line (times of the GPU are %globaltimer, ns; times of the host CLOCK_MONOTONIC, ns):
//
//   phase NAME US BEGIN END                      host times; the device is idle at both
//   ping  HOST GPU HOST                          the GPU read its clock between these two host times
//   k     PHASE SEQ STREAM BEGIN END BEFORE AFTER   a kernel; BEGIN and END of the GPU, host times before and after its launch
//   g     REPLAY BEGIN END BEFORE AFTER          a replay: the first kernel's begin and the last one's end
//   c     NUMBER BYTES AFTER BEFORE              a copy began after and ended before these times of the GPU
//
// A kernel of stream S has blocks of 96 + S threads and the arguments (begin, end, SEQ, ns); a graph's have blocks of 128 threads.
#include <cuda_runtime.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CHECK(call)                                                                            \
    do {                                                                                       \
        cudaError_t error_ = (call);                                                           \
        if (error_ != cudaSuccess) {                                                           \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(error_)); \
            exit(1);                                                                           \
        }                                                                                      \
    } while (0)

typedef unsigned long long u64;

static const int BLOCKS = 4, WRITERS = 4096, STREAMS = 4, TAG = 96, NODE_TAG = 128, NODES = 32, WAITED = 500, REPLAYS = WAITED + 400, BATCH = 500;
static const int MOST = 400000, PINGS = 200, COPIES = 200;
static const size_t COPY_BYTES = (8 << 20) + 4096;
static const size_t WRITTEN = 32 << 20;
static const unsigned DURATIONS[] = {2, 5, 20, 100};

__device__ inline u64 gpu_clock() {
    u64 t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}

// The first block's begin and the last one's end.
__global__ void work(u64 *begin, u64 *end, unsigned seq, unsigned ns) {
    if (threadIdx.x != 0) return;
    u64 start = gpu_clock(), now = start;
    atomicMin(begin + seq, start);
    while (now - start < ns) now = gpu_clock();
    atomicMax(end + seq, now);
}

// The same of a kernel that does nothing but write memory.
__global__ void work_writes(u64 *begin, u64 *end, unsigned seq, unsigned ns, uint4 *memory) {
    if (threadIdx.x == 0) atomicMin(begin + seq, gpu_clock());
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < WRITTEN / sizeof *memory; i += gridDim.x * blockDim.x)
        memory[i] = make_uint4(seq, i, ns, 0);
    __syncthreads();
    if (threadIdx.x == 0) atomicMax(end + seq, gpu_clock());
}

// A node of the graph; the last one counts the replays.
__global__ void node(u64 *begin, u64 *end, unsigned *replay, unsigned place, unsigned ns) {
    if (threadIdx.x != 0) return;
    u64 start = gpu_clock(), now = start;
    unsigned at = *(volatile unsigned *)replay * NODES + place;
    begin[at] = start;
    while (now - start < ns) now = gpu_clock();
    end[at] = now;
    if (place == NODES - 1) *(volatile unsigned *)replay += 1;
}

// Waits for the CPU, two seconds at most.
__global__ void hold(volatile unsigned *flag, unsigned until) {
    u64 start = gpu_clock();
    while (*flag < until && gpu_clock() - start < 2000000000ull) {}
}

// Answers questions of the CPU with its time, two seconds at most.
__global__ void answer(volatile unsigned *question, volatile u64 *answers, unsigned count) {
    u64 start = gpu_clock();
    for (unsigned i = 1; i <= count; i++) {
        while (*question < i)
            if (gpu_clock() - start > 2000000000ull) return;
        answers[i] = gpu_clock();
        __threadfence_system();
    }
}

static u64 now() {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static FILE *out;
static cudaStream_t streams[STREAMS];
static u64 *begins, *ends, *node_begins, *node_ends, *answers, copies[COPIES][2];
static u64 before[MOST], after[MOST], replay_before[REPLAYS], replay_after[REPLAYS];
static const char *phase_of[MOST];
static unsigned char stream_of[MOST];
static unsigned *replay, *flag, *question;
static unsigned used, held;
static cudaGraphExec_t graph;
static char *on_device, *on_host;
// What kernels write, in the phase where they do.
static uint4 *written, *writable;

static void wait_all() { CHECK(cudaDeviceSynchronize()); }

// Launches one and keeps when; of one stream from one thread at a time.
static void launch_as(const char *phase, unsigned seq, int stream, unsigned ns) {
    phase_of[seq] = phase;
    stream_of[seq] = stream;
    before[seq] = now();
    if (written) work_writes<<<WRITERS, TAG + stream, 0, streams[stream]>>>(begins, ends, seq, ns, written);
    else work<<<BLOCKS, TAG + stream, 0, streams[stream]>>>(begins, ends, seq, ns);
    after[seq] = now();
}
static unsigned launch(const char *phase, int stream, unsigned ns) {
    if (used == MOST) { fprintf(stderr, "more than %d kernels\n", MOST); exit(1); }
    launch_as(phase, used, stream, ns);
    return used++;
}

static void hold_stream(int stream) { hold<<<1, 1, 0, streams[stream]>>>(flag, held + 1); }
static void release_all() {
    held++;
    __sync_synchronize();
    *(volatile unsigned *)flag = held;
}

// The host time of a GPU time: the quickest of many answers.
static void ping() {
    memset(answers, 0, (PINGS + 1) * sizeof *answers);
    *question = 0;
    __sync_synchronize();
    answer<<<1, 1, 0, streams[0]>>>(question, answers, PINGS);
    CHECK(cudaGetLastError());
    u64 best[3] = {0, 0, 0}, limit = now() + 2000000000ull;
    for (int i = 1; i <= PINGS; i++) {
        u64 asked = now(), told = 0;
        *(volatile unsigned *)question = i;
        while (!(told = ((volatile u64 *)answers)[i]))
            if (now() > limit) { fprintf(stderr, "the GPU does not answer\n"); exit(1); }
        u64 got = now();
        if (!best[0] || got - asked < best[2] - best[0]) best[0] = asked, best[1] = told, best[2] = got;
    }
    wait_all();
    fprintf(out, "ping %llu %llu %llu\n", best[0], best[1], best[2]);
}

static void phase(const char *name, unsigned us, u64 begin) {
    wait_all();
    u64 end = now();
    fprintf(out, "phase %s %u %llu %llu\n", name, us, begin, end);
    ping();
}

static const char *named(const char *kind, unsigned us) {
    char *text = (char *)malloc(32);
    snprintf(text, 32, "%s%u", kind, us);
    return text;
}

static void queue() {
    for (unsigned us : DURATIONS) {
        const char *name = named("queue", us);
        u64 begin = now();
        for (int batch = 0; batch < 40; batch++) {
            hold_stream(0);
            for (int i = 0; i < BATCH; i++) launch(name, 0, us * 1000);
            release_all();
            wait_all();
        }
        phase(name, us, begin);
    }
}

static void sync_each() {
    for (unsigned us : DURATIONS) {
        const char *name = named("sync", us);
        u64 begin = now();
        for (int i = 0; i < 5000; i++) {
            launch(name, 0, us * 1000);
            CHECK(cudaStreamSynchronize(streams[0]));
        }
        phase(name, us, begin);
    }
}

static void pause_each() {
    for (unsigned us : DURATIONS) {
        const char *name = named("pause", us);
        u64 begin = now();
        for (int i = 0; i < 5000; i++) {
            unsigned seq = launch(name, 0, us * 1000);
            // Nothing is asked of the driver meanwhile.
            while (now() < after[seq] + us * 1000 + 30000) {}
        }
        phase(name, us, begin);
    }
}

static void write_all() {
    u64 begin = now();
    written = writable;
    for (int batch = 0; batch < 8; batch++) {
        hold_stream(0);
        for (int i = 0; i < BATCH; i++) launch("write", 0, 0);
        release_all();
        wait_all();
    }
    written = NULL;
    phase("write", 0, begin);
}

static void two() {
    u64 begin = now();
    for (int batch = 0; batch < 10; batch++) {
        hold_stream(0);
        hold_stream(1);
        for (int i = 0; i < BATCH; i++)
            for (int stream = 0; stream < 2; stream++) launch("two", stream, 20000);
        release_all();
        wait_all();
    }
    phase("two", 20, begin);
}

static void copy() {
    static unsigned marks[COPIES][2];
    u64 begin = now();
    for (int i = 0; i < COPIES; i++) {
        for (int k = 0; k < 3; k++) launch("beside", 0, 100000);
        marks[i][0] = launch("mark", 1, 1000);
        CHECK(cudaMemcpyAsync(on_host, on_device, COPY_BYTES, cudaMemcpyDeviceToHost, streams[1]));
        marks[i][1] = launch("mark", 1, 1000);
        if (i % 20 == 19) wait_all();
    }
    phase("copy", 100, begin);
    for (int i = 0; i < COPIES; i++) {
        CHECK(cudaMemcpy(&copies[i][0], ends + marks[i][0], sizeof(u64), cudaMemcpyDeviceToHost));
        CHECK(cudaMemcpy(&copies[i][1], begins + marks[i][1], sizeof(u64), cudaMemcpyDeviceToHost));
        fprintf(out, "c %d %zu %llu %llu\n", i, COPY_BYTES, copies[i][0], copies[i][1]);
    }
}

static void replay_once(int i) {
    replay_before[i] = now();
    CHECK(cudaGraphLaunch(graph, streams[0]));
    replay_after[i] = now();
}
static void replays() {
    CHECK(cudaMemset(replay, 0, sizeof *replay));
    wait_all();
    u64 begin = now();
    int i = 0;
    while (i < WAITED) {
        replay_once(i++);
        CHECK(cudaStreamSynchronize(streams[0]));
    }
    phase("graph-sync", 5, begin);
    begin = now();
    while (i < REPLAYS) {
        hold_stream(0);
        for (int k = 0; k < 50; k++) replay_once(i++);
        release_all();
        wait_all();
    }
    phase("graph-queue", 5, begin);
    u64 *host = (u64 *)malloc(2 * REPLAYS * NODES * sizeof(u64)), *host_ends = host + REPLAYS * NODES;
    CHECK(cudaMemcpy(host, node_begins, REPLAYS * NODES * sizeof(u64), cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(host_ends, node_ends, REPLAYS * NODES * sizeof(u64), cudaMemcpyDeviceToHost));
    for (i = 0; i < REPLAYS; i++)
        fprintf(out, "g %d %llu %llu %llu %llu\n", i, host[i * NODES], host_ends[i * NODES + NODES - 1], replay_before[i], replay_after[i]);
    free(host);
}

static void load() {
    u64 begin = now();
    for (int i = 0; i < 300; i++) {
        unsigned seq = launch("load", 0, 100000);
        u64 next = before[seq] + 10000000;
        struct timespec t = {(time_t)(next / 1000000000), (long)(next % 1000000000)};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
    }
    phase("load", 100, begin);
}

static const int EACH = 25000;
static const u64 APART = 13333;
// When the threads begin to launch one every `APART` ns; 0: as fast as they can.
static u64 paced;
static void *of_thread(void *argument) {
    int stream = (int)(size_t)argument;
    for (int i = 0; i < EACH; i++) {
        while (paced && now() < paced + i * APART) {}
        launch_as(paced ? "rate" : "fast", used + stream * EACH + i, stream, 0);
    }
    return NULL;
}
static void of_threads(bool is_paced) {
    const char *name = is_paced ? "rate" : "fast";
    if (used + STREAMS * EACH > MOST) { fprintf(stderr, "more than %d kernels\n", MOST); exit(1); }
    pthread_t threads[STREAMS];
    u64 begin = now();
    paced = is_paced ? begin + 1000000 : 0;
    for (size_t s = 0; s < STREAMS; s++) pthread_create(&threads[s], NULL, of_thread, (void *)s);
    for (pthread_t &thread : threads) pthread_join(thread, NULL);
    u64 issued = now();
    used += STREAMS * EACH;
    phase(name, 0, begin);
    printf("%s: %.0f submissions a second\n", name, STREAMS * EACH * 1e9 / (issued - begin));
}
static void fast() { of_threads(false); }
static void rate() { of_threads(true); }

static void prepare() {
    for (cudaStream_t &stream : streams) CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaMalloc(&begins, MOST * sizeof(u64)));
    CHECK(cudaMalloc(&ends, MOST * sizeof(u64)));
    CHECK(cudaMalloc(&node_begins, (REPLAYS + 1) * NODES * sizeof(u64)));
    CHECK(cudaMalloc(&node_ends, (REPLAYS + 1) * NODES * sizeof(u64)));
    CHECK(cudaMalloc(&replay, sizeof *replay));
    CHECK(cudaMemset(replay, 0, sizeof *replay));
    CHECK(cudaMalloc(&on_device, COPY_BYTES));
    CHECK(cudaMalloc(&writable, WRITTEN));
    CHECK(cudaHostAlloc(&on_host, COPY_BYTES, cudaHostAllocDefault));
    CHECK(cudaHostAlloc(&flag, sizeof *flag, cudaHostAllocMapped));
    CHECK(cudaHostAlloc(&question, sizeof *question, cudaHostAllocMapped));
    CHECK(cudaHostAlloc(&answers, (PINGS + 1) * sizeof *answers, cudaHostAllocMapped));
    *flag = 0;
    // Everything is loaded and has run once; blocks of 32 threads are nobody's.
    for (cudaStream_t stream : streams) work<<<BLOCKS, 32, 0, stream>>>(begins, ends, 0, 1000);
    work_writes<<<WRITERS, 32, 0, streams[0]>>>(begins, ends, 0, 0, writable);
    hold<<<1, 1, 0, streams[0]>>>(flag, 0);
    CHECK(cudaMemcpyAsync(on_host, on_device, 4 << 20, cudaMemcpyDeviceToHost, streams[1]));
    cudaGraph_t chain;
    CHECK(cudaStreamBeginCapture(streams[0], cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < NODES; i++) node<<<1, NODE_TAG, 0, streams[0]>>>(node_begins, node_ends, replay, i, 5000);
    CHECK(cudaStreamEndCapture(streams[0], &chain));
    CHECK(cudaGraphInstantiate(&graph, chain, 0));
    CHECK(cudaGraphLaunch(graph, streams[0]));
    wait_all();
    CHECK(cudaMemset(begins, 0xff, MOST * sizeof(u64)));
    CHECK(cudaMemset(ends, 0, MOST * sizeof(u64)));
    wait_all();
}

static void wait_for_line() {
    char c;
    do
        if (read(0, &c, 1) != 1) return;
    while (c != '\n');
}

int main(int count, char **args) {
    const struct { const char *name; void (*run)(); } all[] = {{"queue", queue}, {"sync", sync_each}, {"pause", pause_each},
        {"write", write_all}, {"two", two}, {"copy", copy}, {"graph", replays}, {"load", load}, {"fast", fast}, {"rate", rate}};
    bool waits = false, chosen = false;
    out = stdout;
    for (int i = 1; i < count; i++) {
        if (!strcmp(args[i], "-w")) waits = true, args[i] = NULL;
        else if (!strcmp(args[i], "-o") && i + 1 < count) {
            out = fopen(args[i + 1], "w");
            if (!out) { perror(args[i + 1]); return 1; }
            args[i++] = NULL;
            args[i] = NULL;
        } else chosen = true;
    }
    printf("pid %d\n", getpid());
    fflush(stdout);
    prepare();
    printf("ready\n");
    fflush(stdout);
    if (waits) wait_for_line();
    ping();
    for (auto &one : all) {
        bool run = !chosen;
        for (int i = 1; i < count; i++) run |= args[i] && !strcmp(args[i], one.name);
        if (run) one.run();
    }
    u64 *host = (u64 *)malloc(2 * MOST * sizeof(u64)), *host_ends = host + MOST;
    CHECK(cudaMemcpy(host, begins, MOST * sizeof(u64), cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(host_ends, ends, MOST * sizeof(u64), cudaMemcpyDeviceToHost));
    for (unsigned i = 0; i < used; i++)
        fprintf(out, "k %s %u %u %llu %llu %llu %llu\n", phase_of[i], i, stream_of[i], host[i], host_ends[i], before[i], after[i]);
    fflush(out);
    // What is observed is seen a little later than it was submitted.
    usleep(500000);
    printf("done\n");
    fflush(stdout);
    if (waits) wait_for_line();
    return 0;
}
