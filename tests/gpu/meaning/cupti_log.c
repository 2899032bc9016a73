// The second truth: every kernel, copy and memset that CUPTI's activity records tell of, as JSON lines.
//
//   CUDA_INJECTION64_PATH=./cupti_log.so CUPTI_LOG=FILE PROGRAM      (libcuda loads it when it is initialised)
//
// Times are CLOCK_MONOTONIC, ns, as nvcap's are. Built by meaning.sh with -DKERNEL, -DMEMCPY and -DMEMSET set to the
// newest record types of the CUPTI header that is there. CUPTI's own writes to the GPU are not told by CUPTI.
#include <cupti.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static FILE *out;
static uint64_t dropped;

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static void name(const char *text) {
    for (; text && *text; text++) {
        if (*text == '"' || *text == '\\') fputc('\\', out);
        if ((unsigned char)*text >= 0x20) fputc(*text, out);
    }
}

static void kernel(const KERNEL *k) {
    fprintf(out,
            "{\"type\":\"kernel\",\"start\":%" PRIu64 ",\"end\":%" PRIu64
            ",\"grid\":[%d,%d,%d],\"block\":[%d,%d,%d],\"cluster\":[%u,%u,%u],\"static\":%d,\"dynamic\":%d,\"regs\":%u"
            ",\"device\":%u,\"context\":%u,\"stream\":%u,\"correlation\":%u,\"graph\":%u,\"node\":%" PRIu64 ",\"name\":\"",
            k->start, k->end, k->gridX, k->gridY, k->gridZ, k->blockX, k->blockY, k->blockZ, k->clusterX, k->clusterY,
            k->clusterZ, k->staticSharedMemory, k->dynamicSharedMemory, k->registersPerThread, k->deviceId, k->contextId,
            k->streamId, k->correlationId, k->graphId, k->graphNodeId);
    name(k->name);
    fputs("\"}\n", out);
}

static void copy(const MEMCPY *m) {
    static const char *const kinds[] = {"?", "h2d", "d2h", "h2a", "a2h", "a2a", "a2d", "d2a", "d2d", "h2h", "p2p"};
    const char *kind = m->copyKind < sizeof kinds / sizeof *kinds ? kinds[m->copyKind] : "?";
    fprintf(out,
            "{\"type\":\"copy\",\"start\":%" PRIu64 ",\"end\":%" PRIu64 ",\"kind\":\"%s\",\"bytes\":%" PRIu64
            ",\"src\":%u,\"dst\":%u,\"device\":%u,\"stream\":%u,\"correlation\":%u,\"graph\":%u}\n",
            m->start, m->end, kind, m->bytes, m->srcKind, m->dstKind, m->deviceId, m->streamId, m->correlationId, m->graphId);
}

static void set(const MEMSET *m) {
    fprintf(out,
            "{\"type\":\"memset\",\"start\":%" PRIu64 ",\"end\":%" PRIu64 ",\"bytes\":%" PRIu64
            ",\"value\":%u,\"device\":%u,\"stream\":%u,\"correlation\":%u,\"graph\":%u}\n",
            m->start, m->end, m->bytes, m->value, m->deviceId, m->streamId, m->correlationId, m->graphId);
}

static void CUPTIAPI give(uint8_t **buffer, size_t *size, size_t *most) {
    *size = 8 << 20;
    *buffer = aligned_alloc(8, *size);
    *most = 0;
}

static void CUPTIAPI take(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid) {
    CUpti_Activity *record = NULL;
    (void)size;
    while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
        switch (record->kind) {
        case CUPTI_ACTIVITY_KIND_KERNEL:
        case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: kernel((const KERNEL *)record); break;
        case CUPTI_ACTIVITY_KIND_MEMCPY: copy((const MEMCPY *)record); break;
        case CUPTI_ACTIVITY_KIND_MEMSET: set((const MEMSET *)record); break;
        default: break;
        }
    }
    size_t lost = 0;
    cuptiActivityGetNumDroppedRecords(context, stream, &lost);
    dropped += lost;
    free(buffer);
}

static void end(void) {
    cuptiActivityFlushAll(1);
    fprintf(out, "{\"type\":\"end\",\"dropped\":%" PRIu64 "}\n", dropped);
    fflush(out);
}

int InitializeInjection(void) {
    const char *file = getenv("CUPTI_LOG");
    char path[4096];
    // One file a process: children are injected too.
    snprintf(path, sizeof path, "%s.%d", file ? file : "cupti", getpid());
    out = fopen(path, "w");
    if (!out) return 1;
    setvbuf(out, NULL, _IOFBF, 1 << 20);
    CUptiResult bad = cuptiActivityRegisterTimestampCallback(now);
    if (bad == CUPTI_SUCCESS) bad = cuptiActivityRegisterCallbacks(give, take);
    if (bad == CUPTI_SUCCESS) bad = cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
    if (bad == CUPTI_SUCCESS) bad = cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMCPY);
    if (bad == CUPTI_SUCCESS) bad = cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMSET);
    if (bad != CUPTI_SUCCESS) {
        fprintf(stderr, "cupti_log: CUPTI error %d\n", bad);
        return 1;
    }
    atexit(end);
    return 1;
}
