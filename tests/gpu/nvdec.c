// Video decoding by NVDEC for nvcap to trace: decodes the stream of stream.py and compares every sample. Needs
// libcuda.so.1 and libnvcuvid.so.1 and no headers; the few declarations are below, with the names of NVIDIA's Video
// Codec SDK.
//
//   gcc -O2 -o nvdec nvdec.c -ldl && ./stream.py 128 64 8 >s.h264 && ./nvdec s.h264
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CODEC_H264 = 4, PKT_ENDOFSTREAM = 1 };

typedef struct {
    int codec;
    uint32_t rate[2];
    uint8_t progressive, luma_depth, chroma_depth, surfaces;
    uint32_t width, height;
    int display[4], chroma;
    uint32_t bitrate;
    int aspect[2];
    uint8_t signal[4];
    uint32_t more;
} Format;
typedef struct {
    unsigned long width, height, surfaces;
    int codec, chroma;
    unsigned long flags, depth, intra_only, max_width, max_height, reserved;
    int16_t display[4];
    int output, deinterlace;
    unsigned long target_width, target_height, outputs;
    void *lock;
    int16_t target[4];
    unsigned long histogram, reserved2[4];
} CreateInfo;
typedef struct { int mbs_wide, mbs_high, index; } PicParams;   // the beginning of it
typedef struct { int index, progressive, top_first, repeat; long long timestamp; } DisplayInfo;
typedef struct {
    int progressive, second_field, top_first, unpaired;
    uint32_t reserved[2];
    unsigned long long raw_in;
    uint32_t raw_in_pitch, raw_in_format;
    unsigned long long raw_out;
    uint32_t raw_out_pitch, reserved1;
    void *stream;
    uint32_t reserved2[46];
    void *histogram, *reserved3[1];
} ProcParams;
typedef struct {
    int codec;
    uint32_t surfaces, clock, threshold, delay, flags, reserved[4];
    void *user;
    int (*sequence)(void *, Format *), (*decode)(void *, PicParams *), (*display)(void *, DisplayInfo *);
    void *point, *reserved2[6], *extended;
} ParserParams;
typedef struct { unsigned long flags, size; const uint8_t *payload; long long timestamp; } Packet;
_Static_assert(sizeof(Format) == 64 && sizeof(CreateInfo) == 176 && sizeof(ProcParams) == 264 && sizeof(ParserParams) == 136,
               "as the SDK lays them out");

static void *cuda, *video;
#define CU(type, name) ((type)symbol(cuda, name))
#define VID(type, name) ((type)symbol(video, name))
static void *symbol(void *library, const char *name) {
    void *f = dlsym(library, name);
    if (!f) { fprintf(stderr, "nvdec: no %s\n", name); exit(2); }
    return f;
}
static void need(int result, const char *what) {
    if (result) { fprintf(stderr, "nvdec: %s: result %d\n", what, result); exit(2); }
}

static void *decoder;
static unsigned width, height, decoded, shown;
static long wrong;

static int on_sequence(void *user, Format *f) {
    (void)user;
    width = f->width;
    height = f->height;
    int surfaces = f->surfaces + 3;
    CreateInfo info = {.width = width, .height = height, .surfaces = surfaces, .codec = f->codec, .chroma = f->chroma,
                       .max_width = width, .max_height = height, .target_width = width, .target_height = height,
                       .outputs = 2, .flags = 4};
    need(VID(int (*)(void **, CreateInfo *), "cuvidCreateDecoder")(&decoder, &info), "cuvidCreateDecoder");
    return surfaces;
}

static int on_decode(void *user, PicParams *p) {
    (void)user;
    need(VID(int (*)(void *, void *), "cuvidDecodePicture")(decoder, p), "cuvidDecodePicture");
    decoded++;
    return 1;
}

static int sample(int plane, int x, int y, int frame) { return 16 + (7 * x + 3 * y + 11 * frame + 37 * plane) % 200; }

static int on_display(void *user, DisplayInfo *d) {
    (void)user;
    if (!d) return 1;
    unsigned long long at = 0;
    unsigned pitch = 0;
    ProcParams p = {.progressive = 1, .top_first = d->top_first};
    need(VID(int (*)(void *, int, unsigned long long *, unsigned *, ProcParams *), "cuvidMapVideoFrame64")(
        decoder, d->index, &at, &pitch, &p), "cuvidMapVideoFrame64");
    // NV12: the luma plane, then one of chroma pairs.
    size_t size = (size_t)pitch * height * 3 / 2;
    uint8_t *frame = malloc(size);
    need(CU(int (*)(void *, unsigned long long, size_t), "cuMemcpyDtoH_v2")(frame, at, size), "cuMemcpyDtoH");
    need(VID(int (*)(void *, unsigned long long), "cuvidUnmapVideoFrame64")(decoder, at), "cuvidUnmapVideoFrame64");
    for (unsigned y = 0; y < height; y++)
        for (unsigned x = 0; x < width; x++) wrong += frame[y * pitch + x] != sample(0, x, y, shown);
    const uint8_t *pairs = frame + (size_t)pitch * height;
    for (unsigned y = 0; y < height / 2; y++)
        for (unsigned x = 0; x < width; x++) wrong += pairs[y * pitch + x] != sample(1 + (x & 1), x / 2, y, shown);
    free(frame);
    shown++;
    return 1;
}

int main(int argc, char **argv) {
    FILE *file = argc > 1 ? fopen(argv[1], "rb") : NULL;
    if (!file) { fprintf(stderr, "usage: nvdec FILE.h264\n"); return 2; }
    static uint8_t stream[16 << 20];
    size_t size = fread(stream, 1, sizeof stream, file);
    cuda = dlopen("libcuda.so.1", RTLD_NOW);
    if (cuda) video = dlopen("libnvcuvid.so.1", RTLD_NOW);
    if (!video) { fprintf(stderr, "nvdec: %s\n", dlerror()); return 2; }
    int device;
    void *context;
    need(CU(int (*)(unsigned), "cuInit")(0), "cuInit");
    need(CU(int (*)(int *, int), "cuDeviceGet")(&device, 0), "cuDeviceGet");
    need(CU(int (*)(void **, unsigned, int), "cuCtxCreate_v2")(&context, 0, device), "cuCtxCreate");
    ParserParams params = {.codec = CODEC_H264, .surfaces = 4, .threshold = 100, .delay = 0, .sequence = on_sequence,
                           .decode = on_decode, .display = on_display};
    void *parser;
    need(VID(int (*)(void **, ParserParams *), "cuvidCreateVideoParser")(&parser, &params), "cuvidCreateVideoParser");
    Packet packet = {0, size, stream, 0}, end = {PKT_ENDOFSTREAM, 0, NULL, 0};
    need(VID(int (*)(void *, Packet *), "cuvidParseVideoData")(parser, &packet), "cuvidParseVideoData");
    need(VID(int (*)(void *, Packet *), "cuvidParseVideoData")(parser, &end), "cuvidParseVideoData");
    need(VID(int (*)(void *), "cuvidDestroyVideoParser")(parser), "cuvidDestroyVideoParser");
    if (decoder) need(VID(int (*)(void *), "cuvidDestroyDecoder")(decoder), "cuvidDestroyDecoder");
    need(CU(int (*)(void *), "cuCtxDestroy_v2")(context), "cuCtxDestroy");
    printf("%ux%u decoded %u shown %u wrong %ld\n", width, height, decoded, shown, wrong);
    return wrong || !shown || shown != decoded;
}
