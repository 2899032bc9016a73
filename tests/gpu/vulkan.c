// Vulkan without a screen, for nvcap to trace: fills and copies of buffers, an image cleared and read back, and compute
// dispatches, each checked by what the GPU made of it. Needs libvulkan.so.1 (or, without a loader, the driver's own
// library) and no headers; the few declarations are below, with the names of the specification.
//
//   gcc -O2 -o vulkan vulkan.c -ldl && ./vulkan
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void *Handle;       // dispatchable
typedef uint64_t Object;    // not dispatchable
typedef uint64_t Size;
typedef int Result;
#define HEAD uint32_t sType; const void *pNext
enum { X = 5, Y = 3, Z = 2, LOCAL = 64, CELLS = X * Y * Z * LOCAL, BYTES = 4 * CELLS, ROUNDS = 3, SIDE = 32 };

typedef struct { HEAD; const char *app; uint32_t appVersion; const char *engine; uint32_t engineVersion, apiVersion; } ApplicationInfo;
typedef struct { HEAD; uint32_t flags; const ApplicationInfo *app; uint32_t layers; const char *const *layerNames;
                 uint32_t extensions; const char *const *extensionNames; } InstanceCreateInfo;
typedef struct { uint32_t flags, count, timestampBits, granularity[3]; } QueueFamily;
typedef struct { HEAD; uint32_t flags, family, count; const float *priorities; } QueueCreateInfo;
typedef struct { HEAD; uint32_t flags, queues; const QueueCreateInfo *queue; uint32_t layers; const char *const *layerNames;
                 uint32_t extensions; const char *const *extensionNames; const void *features; } DeviceCreateInfo;
typedef struct { uint32_t types; struct { uint32_t flags, heap; } type[32];
                 uint32_t heaps; struct { Size size; uint32_t flags; } heap[16]; } MemoryProperties;
typedef struct { Size size, alignment; uint32_t types; } MemoryRequirements;
typedef struct { HEAD; uint32_t flags; Size size; uint32_t usage, sharing, families; const uint32_t *family; } BufferCreateInfo;
typedef struct { HEAD; uint32_t flags, imageType, format, extent[3], mipLevels, arrayLayers, samples, tiling, usage, sharing,
                 families; const uint32_t *family; uint32_t layout; } ImageCreateInfo;
typedef struct { HEAD; Size size; uint32_t type; } MemoryAllocateInfo;
typedef struct { uint32_t binding, type, count, stages; const void *samplers; } LayoutBinding;
typedef struct { HEAD; uint32_t flags, count; const void *items; } SetLayoutCreateInfo;
typedef struct { HEAD; uint32_t flags, sets; const Object *set; uint32_t ranges; const void *range; } PipelineLayoutCreateInfo;
typedef struct { HEAD; uint32_t flags; size_t bytes; const uint32_t *code; } ShaderModuleCreateInfo;
typedef struct { HEAD; uint32_t flags, stage; Object module; const char *name; const void *specialization; } StageCreateInfo;
typedef struct { HEAD; uint32_t flags; StageCreateInfo stage; Object layout, base; int32_t baseIndex; } ComputePipelineCreateInfo;
typedef struct { uint32_t type, count; } PoolSize;
typedef struct { HEAD; uint32_t flags, sets, sizes; const PoolSize *size; } DescriptorPoolCreateInfo;
typedef struct { HEAD; Object pool; uint32_t count; const Object *layouts; } SetAllocateInfo;
typedef struct { Object buffer; Size offset, range; } BufferInfo;
typedef struct { HEAD; Object set; uint32_t binding, element, count, type; const void *image; const BufferInfo *buffer;
                 const void *view; } WriteSet;
typedef struct { HEAD; uint32_t flags, type, count, statistics; } QueryPoolCreateInfo;
typedef struct { HEAD; uint32_t flags, family; } PoolCreateInfo;
typedef struct { HEAD; Object pool; uint32_t level, count; } CommandAllocateInfo;
typedef struct { HEAD; uint32_t flags; const void *inheritance; } BeginInfo;
typedef struct { HEAD; uint32_t from, to; } MemoryBarrier;
typedef struct { HEAD; uint32_t from, to, oldLayout, newLayout, oldFamily, newFamily; Object image;
                 uint32_t aspect, level, levels, layer, layers; } ImageBarrier;
typedef struct { Size from, to, size; } BufferCopy;
typedef struct { Size offset; uint32_t row, rows, aspect, level, layer, layers; int32_t at[3]; uint32_t extent[3]; } ImageCopy;
typedef struct { HEAD; uint32_t waits; const void *wait, *stages; uint32_t commands; const Handle *command;
                 uint32_t signals; const void *signal; } SubmitInfo;
typedef struct { HEAD; uint32_t flags; } FenceCreateInfo;
enum { HOST_VISIBLE = 2, HOST_COHERENT = 4, DEVICE_LOCAL = 1 };

// compute.comp, by glslangValidator -V -g0:
//   layout(local_size_x = 64) in; layout(std430, binding = 0) buffer B { uint v[]; };
//   void main() { uint g = (gl_WorkGroupID.z * gl_NumWorkGroups.y + gl_WorkGroupID.y) * gl_NumWorkGroups.x
//       + gl_WorkGroupID.x; uint i = g * 64u + gl_LocalInvocationID.x; v[i] = v[i] * 3u + i; }
static const uint32_t COMPUTE[] = {
    0x7230203, 0x10000, 0x8000b, 0x38, 0x0, 0x20011, 0x1, 0x6000b, 0x1, 0x4c534c47,
    0x6474732e, 0x3035342e, 0x0, 0x3000e, 0x0, 0x1, 0x8000f, 0x5, 0x4, 0x6e69616d,
    0x0, 0xb, 0x10, 0x23, 0x60010, 0x4, 0x11, 0x40, 0x1, 0x1,
    0x40047, 0xb, 0xb, 0x1a, 0x40047, 0x10, 0xb, 0x18, 0x40047, 0x23,
    0xb, 0x1b, 0x40047, 0x27, 0x6, 0x4, 0x50048, 0x28, 0x0, 0x23,
    0x0, 0x30047, 0x28, 0x3, 0x40047, 0x2a, 0x22, 0x0, 0x40047, 0x2a,
    0x21, 0x0, 0x40047, 0x37, 0xb, 0x19, 0x20013, 0x2, 0x30021, 0x3,
    0x2, 0x40015, 0x6, 0x20, 0x0, 0x40020, 0x7, 0x7, 0x6, 0x40017,
    0x9, 0x6, 0x3, 0x40020, 0xa, 0x1, 0x9, 0x4003b, 0xa, 0xb,
    0x1, 0x4002b, 0x6, 0xc, 0x2, 0x40020, 0xd, 0x1, 0x6, 0x4003b,
    0xa, 0x10, 0x1, 0x4002b, 0x6, 0x11, 0x1, 0x4002b, 0x6, 0x18,
    0x0, 0x4002b, 0x6, 0x21, 0x40, 0x4003b, 0xa, 0x23, 0x1, 0x3001d,
    0x27, 0x6, 0x3001e, 0x28, 0x27, 0x40020, 0x29, 0x2, 0x28, 0x4003b,
    0x29, 0x2a, 0x2, 0x40015, 0x2b, 0x20, 0x1, 0x4002b, 0x2b, 0x2c,
    0x0, 0x40020, 0x2f, 0x2, 0x6, 0x4002b, 0x6, 0x32, 0x3, 0x6002c,
    0x9, 0x37, 0x21, 0x11, 0x11, 0x50036, 0x2, 0x4, 0x0, 0x3,
    0x200f8, 0x5, 0x4003b, 0x7, 0x8, 0x7, 0x4003b, 0x7, 0x1f, 0x7,
    0x50041, 0xd, 0xe, 0xb, 0xc, 0x4003d, 0x6, 0xf, 0xe, 0x50041,
    0xd, 0x12, 0x10, 0x11, 0x4003d, 0x6, 0x13, 0x12, 0x50084, 0x6,
    0x14, 0xf, 0x13, 0x50041, 0xd, 0x15, 0xb, 0x11, 0x4003d, 0x6,
    0x16, 0x15, 0x50080, 0x6, 0x17, 0x14, 0x16, 0x50041, 0xd, 0x19,
    0x10, 0x18, 0x4003d, 0x6, 0x1a, 0x19, 0x50084, 0x6, 0x1b, 0x17,
    0x1a, 0x50041, 0xd, 0x1c, 0xb, 0x18, 0x4003d, 0x6, 0x1d, 0x1c,
    0x50080, 0x6, 0x1e, 0x1b, 0x1d, 0x3003e, 0x8, 0x1e, 0x4003d, 0x6,
    0x20, 0x8, 0x50084, 0x6, 0x22, 0x20, 0x21, 0x50041, 0xd, 0x24,
    0x23, 0x18, 0x4003d, 0x6, 0x25, 0x24, 0x50080, 0x6, 0x26, 0x22,
    0x25, 0x3003e, 0x1f, 0x26, 0x4003d, 0x6, 0x2d, 0x1f, 0x4003d, 0x6,
    0x2e, 0x1f, 0x60041, 0x2f, 0x30, 0x2a, 0x2c, 0x2e, 0x4003d, 0x6,
    0x31, 0x30, 0x50084, 0x6, 0x33, 0x31, 0x32, 0x4003d, 0x6, 0x34,
    0x1f, 0x50080, 0x6, 0x35, 0x33, 0x34, 0x60041, 0x2f, 0x36, 0x2a,
    0x2c, 0x2d, 0x3003e, 0x36, 0x35, 0x100fd, 0x10038,};

static Handle (*get_instance)(Handle, const char *), (*get_device)(Handle, const char *);
static Handle instance, device;
static Handle function(const char *name) {
    Handle f = device ? get_device(device, name) : get_instance(instance, name);
    if (!f && device) f = get_instance(instance, name);
    if (!f) { fprintf(stderr, "vulkan: no %s\n", name); exit(2); }
    return f;
}
#define CALL(type, name) ((type)function(name))
static void need(Result r, const char *what) {
    if (r) { fprintf(stderr, "vulkan: %s: result %d\n", what, r); exit(2); }
}
// vkCreate...(device, info, no allocator, &object)
static Object create(const char *name, const void *info) {
    Object object = 0;
    need(CALL(Result (*)(Handle, const void *, const void *, Object *), name)(device, info, NULL, &object), name);
    return object;
}

static Handle begin(Handle *queue, uint32_t *family) {
    Handle loader = dlopen("libvulkan.so.1", RTLD_NOW);
    if (loader) get_instance = (Handle (*)(Handle, const char *))dlsym(loader, "vkGetInstanceProcAddr");
    if (!get_instance) {
        // The driver's own entry; what a loader would have done is to negotiate the interface's version.
        if (!(loader = dlopen("libGLX_nvidia.so.0", RTLD_NOW))) { fprintf(stderr, "vulkan: %s\n", dlerror()); exit(2); }
        uint32_t version = 5;
        Result (*negotiate)(uint32_t *) = (Result (*)(uint32_t *))dlsym(loader, "vk_icdNegotiateLoaderICDInterfaceVersion");
        if (negotiate) negotiate(&version);
        get_instance = (Handle (*)(Handle, const char *))dlsym(loader, "vk_icdGetInstanceProcAddr");
    }
    ApplicationInfo app = {.sType = 0, .app = "nvcap test", .apiVersion = 1u << 22 | 1u << 12};
    InstanceCreateInfo info = {.sType = 1, .app = &app};
    need(CALL(Result (*)(const void *, const void *, Handle *), "vkCreateInstance")(&info, NULL, &instance), "vkCreateInstance");
    uint32_t n = 8;
    Handle all[8], chosen = NULL;
    Result r = CALL(Result (*)(Handle, uint32_t *, Handle *), "vkEnumeratePhysicalDevices")(instance, &n, all);
    if (r < 0 || !n) need(r ? r : -1, "vkEnumeratePhysicalDevices");
    static union { uint32_t words[1024]; char bytes[4096]; } properties;
    for (uint32_t i = 0; i < n && !chosen; i++) {
        CALL(void (*)(Handle, void *), "vkGetPhysicalDeviceProperties")(all[i], &properties);
        // vendorID; on a machine without such a GPU the first device will do.
        if (properties.words[2] == 0x10de || i == n - 1) chosen = all[i];
    }
    CALL(void (*)(Handle, void *), "vkGetPhysicalDeviceProperties")(chosen, &properties);
    printf("device %s\n", properties.bytes + 20);
    uint32_t families = 16;
    QueueFamily family_of[16];
    CALL(void (*)(Handle, uint32_t *, void *), "vkGetPhysicalDeviceQueueFamilyProperties")(chosen, &families, family_of);
    for (*family = 0; *family < families && (family_of[*family].flags & 3) != 3; ++*family);
    if (*family == families) need(-1, "a queue for graphics and compute");
    float priority = 1;
    QueueCreateInfo q = {.sType = 2, .family = *family, .count = 1, .priorities = &priority};
    DeviceCreateInfo d = {.sType = 3, .queues = 1, .queue = &q};
    Handle made = NULL;
    need(CALL(Result (*)(Handle, const void *, const void *, Handle *), "vkCreateDevice")(chosen, &d, NULL, &made), "vkCreateDevice");
    get_device = CALL(Handle (*)(Handle, const char *), "vkGetDeviceProcAddr");
    device = made;
    CALL(void (*)(Handle, uint32_t, uint32_t, Handle *), "vkGetDeviceQueue")(device, *family, 0, queue);
    return chosen;
}

static Object memory(Handle physical, const MemoryRequirements *need_, uint32_t wants) {
    MemoryProperties p;
    CALL(void (*)(Handle, void *), "vkGetPhysicalDeviceMemoryProperties")(physical, &p);
    for (uint32_t i = 0; i < p.types; i++) {
        if (!(need_->types & 1u << i) || (p.type[i].flags & wants) != wants) continue;
        MemoryAllocateInfo info = {.sType = 5, .size = need_->size, .type = i};
        return create("vkAllocateMemory", &info);
    }
    need(-1, "a memory type");
    return 0;
}
static Object buffer(Handle physical, uint32_t wants, Object *of) {
    // TRANSFER_SRC, TRANSFER_DST and STORAGE_BUFFER
    BufferCreateInfo info = {.sType = 12, .size = BYTES, .usage = 1 | 2 | 0x20};
    Object b = create("vkCreateBuffer", &info);
    MemoryRequirements r;
    CALL(void (*)(Handle, Object, void *), "vkGetBufferMemoryRequirements")(device, b, &r);
    *of = memory(physical, &r, wants);
    need(CALL(Result (*)(Handle, Object, Object, Size), "vkBindBufferMemory")(device, b, *of, 0), "vkBindBufferMemory");
    return b;
}

int main(void) {
    Handle queue, physical;
    uint32_t family;
    physical = begin(&queue, &family);

    Object host_memory, local_memory, host = buffer(physical, HOST_VISIBLE | HOST_COHERENT, &host_memory);
    Object local = buffer(physical, DEVICE_LOCAL, &local_memory);
    uint32_t *cells;
    need(CALL(Result (*)(Handle, Object, Size, Size, uint32_t, void **), "vkMapMemory")(device, host_memory, 0, BYTES, 0,
                                                                                       (void **)&cells), "vkMapMemory");
    // R8G8B8A8_UNORM, optimal tiling, TRANSFER_SRC and TRANSFER_DST
    ImageCreateInfo ii = {.sType = 14, .imageType = 1, .format = 37, .extent = {SIDE, SIDE, 1}, .mipLevels = 1,
                          .arrayLayers = 1, .samples = 1, .usage = 3};
    Object image = create("vkCreateImage", &ii);
    MemoryRequirements ir;
    CALL(void (*)(Handle, Object, void *), "vkGetImageMemoryRequirements")(device, image, &ir);
    need(CALL(Result (*)(Handle, Object, Object, Size), "vkBindImageMemory")(
        device, image, memory(physical, &ir, DEVICE_LOCAL), 0), "vkBindImageMemory");

    LayoutBinding binding = {0, 7, 1, 0x20, NULL};   // STORAGE_BUFFER, compute
    SetLayoutCreateInfo si = {.sType = 32, .count = 1, .items = &binding};
    Object set_layout = create("vkCreateDescriptorSetLayout", &si);
    PipelineLayoutCreateInfo pli = {.sType = 30, .sets = 1, .set = &set_layout};
    Object layout = create("vkCreatePipelineLayout", &pli);
    ShaderModuleCreateInfo mi = {.sType = 16, .bytes = sizeof COMPUTE, .code = COMPUTE};
    Object module = create("vkCreateShaderModule", &mi);
    ComputePipelineCreateInfo pi = {.sType = 29, .stage = {.sType = 18, .stage = 0x20, .module = module, .name = "main"},
                                    .layout = layout, .baseIndex = -1};
    Object pipeline = 0;
    need(CALL(Result (*)(Handle, Object, uint32_t, const void *, const void *, Object *), "vkCreateComputePipelines")(
        device, 0, 1, &pi, NULL, &pipeline), "vkCreateComputePipelines");
    PoolSize size = {7, 1};
    DescriptorPoolCreateInfo dpi = {.sType = 33, .sets = 1, .sizes = 1, .size = &size};
    SetAllocateInfo sai = {.sType = 34, .pool = create("vkCreateDescriptorPool", &dpi), .count = 1, .layouts = &set_layout};
    Object set;
    need(CALL(Result (*)(Handle, const void *, Object *), "vkAllocateDescriptorSets")(device, &sai, &set), "vkAllocateDescriptorSets");
    BufferInfo bi = {local, 0, BYTES};
    WriteSet ws = {.sType = 35, .set = set, .count = 1, .type = 7, .buffer = &bi};
    CALL(void (*)(Handle, uint32_t, const void *, uint32_t, const void *), "vkUpdateDescriptorSets")(device, 1, &ws, 0, NULL);

    PoolCreateInfo cpi = {.sType = 39, .flags = 2, .family = family};
    CommandAllocateInfo cai = {.sType = 40, .pool = create("vkCreateCommandPool", &cpi), .count = 1};
    Handle command;
    need(CALL(Result (*)(Handle, const void *, Handle *), "vkAllocateCommandBuffers")(device, &cai, &command), "vkAllocateCommandBuffers");
    FenceCreateInfo fi = {.sType = 8};
    Object fence = create("vkCreateFence", &fi);

    void (*barrier)(Handle, uint32_t, uint32_t, uint32_t, uint32_t, const void *, uint32_t, const void *, uint32_t, const void *) =
        function("vkCmdPipelineBarrier");
    // The GPU's clock before and behind each round's work, written by the GPU: the truth for what nvcap says of its time.
    QueryPoolCreateInfo qpi = {.sType = 11, .type = 2, .count = 2};
    Object queries = create("vkCreateQueryPool", &qpi);
    void (*stamp)(Handle, uint32_t, Object, uint32_t) = function("vkCmdWriteTimestamp");
    MemoryBarrier all = {.sType = 46, .from = 0x1ffff, .to = 0x1ffff};
    enum { COMMANDS = 0x10000 };   // ALL_COMMANDS
    int wrong = 0;
    for (int round = 0; round < ROUNDS; round++) {
        uint32_t pattern = 0x01020304u * (round + 1);
        need(CALL(Result (*)(Handle, uint32_t), "vkResetCommandBuffer")(command, 0), "vkResetCommandBuffer");
        BeginInfo begin_info = {.sType = 42};
        need(CALL(Result (*)(Handle, const void *), "vkBeginCommandBuffer")(command, &begin_info), "vkBeginCommandBuffer");
        CALL(void (*)(Handle, Object, uint32_t, uint32_t), "vkCmdResetQueryPool")(command, queries, 0, 2);
        stamp(command, 1, queries, 0);   // TOP_OF_PIPE
        // The first half is filled, the second copied from the host; the shader works on all of it; all goes back.
        CALL(void (*)(Handle, Object, Size, Size, uint32_t), "vkCmdFillBuffer")(command, local, 0, BYTES / 2, pattern);
        BufferCopy half = {BYTES / 2, BYTES / 2, BYTES / 2}, whole = {0, 0, BYTES};
        CALL(void (*)(Handle, Object, Object, uint32_t, const void *), "vkCmdCopyBuffer")(command, host, local, 1, &half);
        barrier(command, COMMANDS, COMMANDS, 0, 1, &all, 0, NULL, 0, NULL);
        CALL(void (*)(Handle, uint32_t, Object), "vkCmdBindPipeline")(command, 1, pipeline);
        CALL(void (*)(Handle, uint32_t, Object, uint32_t, uint32_t, const Object *, uint32_t, const void *),
             "vkCmdBindDescriptorSets")(command, 1, layout, 0, 1, &set, 0, NULL);
        CALL(void (*)(Handle, uint32_t, uint32_t, uint32_t), "vkCmdDispatch")(command, X, Y, Z);
        barrier(command, COMMANDS, COMMANDS, 0, 1, &all, 0, NULL, 0, NULL);
        CALL(void (*)(Handle, Object, Object, uint32_t, const void *), "vkCmdCopyBuffer")(command, local, host, 1, &whole);
        stamp(command, 0x2000, queries, 1);   // BOTTOM_OF_PIPE
        need(CALL(Result (*)(Handle), "vkEndCommandBuffer")(command), "vkEndCommandBuffer");
        for (int i = 0; i < CELLS; i++) cells[i] = 7 * i + round;
        SubmitInfo submit = {.sType = 4, .commands = 1, .command = &command};
        need(CALL(Result (*)(Handle, uint32_t, const void *, Object), "vkQueueSubmit")(queue, 1, &submit, fence), "vkQueueSubmit");
        need(CALL(Result (*)(Handle, uint32_t, const Object *, uint32_t, uint64_t), "vkWaitForFences")(
            device, 1, &fence, 1, 10000000000u), "vkWaitForFences");
        need(CALL(Result (*)(Handle, uint32_t, const Object *), "vkResetFences")(device, 1, &fence), "vkResetFences");
        uint64_t ticks[2];   // 64 bits each, waited for
        need(CALL(Result (*)(Handle, Object, uint32_t, uint32_t, size_t, void *, Size, uint32_t), "vkGetQueryPoolResults")(
            device, queries, 0, 2, sizeof ticks, ticks, sizeof *ticks, 1 | 2), "vkGetQueryPoolResults");
        printf("ticks %llu %llu\n", (unsigned long long)ticks[0], (unsigned long long)ticks[1]);
        for (int i = 0; i < CELLS; i++) {
            uint32_t was = i < CELLS / 2 ? pattern : (uint32_t)(7 * i + round);
            wrong += cells[i] != was * 3 + i;
        }
    }
    printf("dispatch %d %d %d local %d rounds %d bytes %d wrong %d\n", X, Y, Z, LOCAL, ROUNDS, BYTES, wrong);

    // An image, cleared to one colour and copied to the buffer.
    need(CALL(Result (*)(Handle, uint32_t), "vkResetCommandBuffer")(command, 0), "vkResetCommandBuffer");
    BeginInfo begin_info = {.sType = 42};
    need(CALL(Result (*)(Handle, const void *), "vkBeginCommandBuffer")(command, &begin_info), "vkBeginCommandBuffer");
    ImageBarrier ready = {.sType = 45, .to = 0x1ffff, .newLayout = 1, .oldFamily = ~0u, .newFamily = ~0u, .image = image,
                          .aspect = 1, .levels = 1, .layers = 1};
    barrier(command, COMMANDS, COMMANDS, 0, 0, NULL, 0, NULL, 1, &ready);
    float colour[4] = {0.2f, 0.4f, 0.6f, 1};
    uint32_t range[5] = {1, 0, 1, 0, 1};
    CALL(void (*)(Handle, Object, uint32_t, const void *, uint32_t, const void *), "vkCmdClearColorImage")(
        command, image, 1, colour, 1, range);
    barrier(command, COMMANDS, COMMANDS, 0, 1, &all, 0, NULL, 0, NULL);
    ImageCopy copy = {.aspect = 1, .layers = 1, .extent = {SIDE, SIDE, 1}};
    CALL(void (*)(Handle, Object, uint32_t, Object, uint32_t, const void *), "vkCmdCopyImageToBuffer")(
        command, image, 1, host, 1, &copy);
    need(CALL(Result (*)(Handle), "vkEndCommandBuffer")(command), "vkEndCommandBuffer");
    SubmitInfo submit = {.sType = 4, .commands = 1, .command = &command};
    need(CALL(Result (*)(Handle, uint32_t, const void *, Object), "vkQueueSubmit")(queue, 1, &submit, fence), "vkQueueSubmit");
    need(CALL(Result (*)(Handle), "vkDeviceWaitIdle")(device), "vkDeviceWaitIdle");
    int bad = 0;
    for (int i = 0; i < SIDE * SIDE; i++) bad += cells[i] != 0xff996633;
    printf("image %d %d wrong %d\n", SIDE, SIDE, bad);
    CALL(void (*)(Handle, const void *), "vkDestroyDevice")(device, NULL);
    return wrong || bad;
}
