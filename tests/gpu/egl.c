// OpenGL without a screen, through EGL, for nvcap to trace: clears, draws and a compute dispatch, each checked by what
// the GPU made of it. Needs libEGL.so.1 (glvnd) and no headers; the few declarations are below.
//
//   gcc -O2 -o egl egl.c -ldl && ./egl
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void *Handle;
enum {
    EGL_SURFACE_TYPE = 0x3033, EGL_PBUFFER_BIT = 1, EGL_RED_SIZE = 0x3024, EGL_GREEN_SIZE = 0x3023, EGL_BLUE_SIZE = 0x3022,
    EGL_ALPHA_SIZE = 0x3021, EGL_RENDERABLE_TYPE = 0x3040, EGL_OPENGL_BIT = 8, EGL_NONE = 0x3038, EGL_WIDTH = 0x3057,
    EGL_HEIGHT = 0x3056, EGL_OPENGL_API = 0x30a2, EGL_PLATFORM_DEVICE_EXT = 0x313f, EGL_CONTEXT_MAJOR_VERSION = 0x3098,
    EGL_CONTEXT_MINOR_VERSION = 0x30fb,
};
enum {
    GL_TRIANGLES = 4, GL_UNSIGNED_BYTE = 0x1401, GL_UNSIGNED_SHORT = 0x1403, GL_FLOAT = 0x1406, GL_RGBA = 0x1908,
    GL_RENDERER = 0x1f01, GL_VERSION = 0x1f02, GL_COLOR_BUFFER_BIT = 0x4000, GL_ARRAY_BUFFER = 0x8892,
    GL_ELEMENT_ARRAY_BUFFER = 0x8893, GL_STATIC_DRAW = 0x88e4, GL_FRAGMENT_SHADER = 0x8b30, GL_VERTEX_SHADER = 0x8b31,
    GL_COMPILE_STATUS = 0x8b81, GL_LINK_STATUS = 0x8b82, GL_SHADER_STORAGE_BUFFER = 0x90d2, GL_COMPUTE_SHADER = 0x91b9,
    GL_BUFFER_UPDATE_BARRIER_BIT = 0x200,
};
enum { SIZE = 64, FRAMES = 4, GROUPS_X = 5, GROUPS_Y = 3, LOCAL = 32, CELLS = GROUPS_X * GROUPS_Y * LOCAL };

static Handle (*get)(const char *);
// A function by its name: of libEGL or of OpenGL.
#define CALL(type, name) ((type)function(name))
static Handle function(const char *name) {
    Handle f = get(name);
    if (!f) { fprintf(stderr, "egl: no %s\n", name); exit(2); }
    return f;
}
static void need(int ok, const char *what) {
    if (!ok) { fprintf(stderr, "egl: %s failed (EGL error 0x%x)\n", what, CALL(int (*)(void), "eglGetError")()); exit(2); }
}

static unsigned shader(unsigned kind, const char *text) {
    unsigned s = CALL(unsigned (*)(unsigned), "glCreateShader")(kind);
    int ok = 0;
    CALL(void (*)(unsigned, int, const char **, const int *), "glShaderSource")(s, 1, &text, NULL);
    CALL(void (*)(unsigned), "glCompileShader")(s);
    CALL(void (*)(unsigned, unsigned, int *), "glGetShaderiv")(s, GL_COMPILE_STATUS, &ok);
    need(ok, "compiling a shader");
    return s;
}
static unsigned program(unsigned first, unsigned second) {
    unsigned p = CALL(unsigned (*)(void), "glCreateProgram")();
    int ok = 0;
    CALL(void (*)(unsigned, unsigned), "glAttachShader")(p, first);
    if (second) CALL(void (*)(unsigned, unsigned), "glAttachShader")(p, second);
    CALL(void (*)(unsigned), "glLinkProgram")(p);
    CALL(void (*)(unsigned, unsigned, int *), "glGetProgramiv")(p, GL_LINK_STATUS, &ok);
    need(ok, "linking a program");
    return p;
}
static unsigned buffer(unsigned target, long size, const void *data) {
    unsigned b;
    CALL(void (*)(int, unsigned *), "glGenBuffers")(1, &b);
    CALL(void (*)(unsigned, unsigned), "glBindBuffer")(target, b);
    CALL(void (*)(unsigned, long, const void *, unsigned), "glBufferData")(target, size, data, GL_STATIC_DRAW);
    return b;
}

static int wrong;
static void pixel(const uint8_t *image, int x, int y, uint8_t r, uint8_t g, uint8_t b, const char *what) {
    const uint8_t *p = image + 4 * (SIZE * y + x), want[4] = {r, g, b, 255};
    for (int i = 0; i < 4; i++) if (abs(p[i] - want[i]) > 1) {
        fprintf(stderr, "egl: %s at %d,%d: %d %d %d %d\n", what, x, y, p[0], p[1], p[2], p[3]);
        wrong++;
        return;
    }
}

static Handle begin(void) {
    Handle egl = dlopen("libEGL.so.1", RTLD_NOW);
    if (!egl) { fprintf(stderr, "egl: %s\n", dlerror()); exit(2); }
    get = (Handle (*)(const char *))dlsym(egl, "eglGetProcAddress");
    Handle devices[16], display, config, surface, context;
    int n = 0, found = 0;
    need(CALL(int (*)(int, Handle *, int *), "eglQueryDevicesEXT")(16, devices, &n) && n > 0, "eglQueryDevicesEXT");
    int at = 0;
    // Mesa's software device may be among them: the one that CUDA has, too, is the GPU.
    for (; at < n; at++) {
        const char *e = CALL(const char *(*)(Handle, int), "eglQueryDeviceStringEXT")(devices[at], 0x3055);
        if (e && strstr(e, "EGL_NV_device_cuda")) break;
    }
    display = CALL(Handle (*)(unsigned, Handle, const int *), "eglGetPlatformDisplayEXT")(
        EGL_PLATFORM_DEVICE_EXT, devices[at < n ? at : 0], NULL);
    need(display != NULL, "eglGetPlatformDisplayEXT");
    need(CALL(int (*)(Handle, int *, int *), "eglInitialize")(display, NULL, NULL), "eglInitialize");
    need(CALL(int (*)(unsigned), "eglBindAPI")(EGL_OPENGL_API), "eglBindAPI");
    int wants[] = {EGL_SURFACE_TYPE, EGL_PBUFFER_BIT, EGL_RENDERABLE_TYPE, EGL_OPENGL_BIT, EGL_RED_SIZE, 8,
                   EGL_GREEN_SIZE, 8, EGL_BLUE_SIZE, 8, EGL_ALPHA_SIZE, 8, EGL_NONE};
    need(CALL(int (*)(Handle, const int *, Handle *, int, int *), "eglChooseConfig")(display, wants, &config, 1, &found) &&
             found, "eglChooseConfig");
    int pbuffer[] = {EGL_WIDTH, SIZE, EGL_HEIGHT, SIZE, EGL_NONE};
    surface = CALL(Handle (*)(Handle, Handle, const int *), "eglCreatePbufferSurface")(display, config, pbuffer);
    need(surface != NULL, "eglCreatePbufferSurface");
    int version[] = {EGL_CONTEXT_MAJOR_VERSION, 4, EGL_CONTEXT_MINOR_VERSION, 3, EGL_NONE};
    context = CALL(Handle (*)(Handle, Handle, Handle, const int *), "eglCreateContext")(display, config, NULL, version);
    need(context != NULL, "eglCreateContext");
    need(CALL(int (*)(Handle, Handle, Handle, Handle), "eglMakeCurrent")(display, surface, surface, context), "eglMakeCurrent");
    return display;
}

int main(void) {
    Handle display = begin();
    printf("renderer %s\nversion %s\n", CALL(const char *(*)(unsigned), "glGetString")(GL_RENDERER),
           CALL(const char *(*)(unsigned), "glGetString")(GL_VERSION));

    unsigned draw = program(
        shader(GL_VERTEX_SHADER, "#version 430\nlayout(location=0) in vec2 at; void main() { gl_Position = vec4(at, 0, 1); }"),
        shader(GL_FRAGMENT_SHADER, "#version 430\nuniform vec3 colour; out vec4 pixel; void main() { pixel = vec4(colour, 1); }"));
    CALL(void (*)(unsigned), "glUseProgram")(draw);
    int colour = CALL(int (*)(unsigned, const char *), "glGetUniformLocation")(draw, "colour");
    unsigned array;
    CALL(void (*)(int, unsigned *), "glGenVertexArrays")(1, &array);
    CALL(void (*)(unsigned), "glBindVertexArray")(array);
    // The left half as two triangles, by index, then the right upper quarter, by order.
    static const float corners[] = {-1, -1, 0, -1, 0, 1, -1, 1, 0, 0, 1, 0, 1, 1, 0, 0, 1, 1, 0, 1};
    static const uint16_t order[] = {0, 1, 2, 0, 2, 3};
    buffer(GL_ARRAY_BUFFER, sizeof corners, corners);
    buffer(GL_ELEMENT_ARRAY_BUFFER, sizeof order, order);
    CALL(void (*)(unsigned, int, unsigned, uint8_t, int, const void *), "glVertexAttribPointer")(0, 2, GL_FLOAT, 0, 8, NULL);
    CALL(void (*)(unsigned), "glEnableVertexAttribArray")(0);

    static uint8_t image[4 * SIZE * SIZE];
    for (int frame = 0; frame < FRAMES; frame++) {
        uint8_t grey = 40 * frame + 20;
        CALL(void (*)(float, float, float, float), "glClearColor")(grey / 255.f, grey / 255.f, 0.5f, 1);
        CALL(void (*)(unsigned), "glClear")(GL_COLOR_BUFFER_BIT);
        CALL(void (*)(int, float, float, float), "glUniform3f")(colour, 1, 0, 0);
        CALL(void (*)(unsigned, int, unsigned, const void *), "glDrawElements")(GL_TRIANGLES, 6, GL_UNSIGNED_SHORT, NULL);
        CALL(void (*)(int, float, float, float), "glUniform3f")(colour, 0, 1, 0);
        CALL(void (*)(unsigned, int, int), "glDrawArrays")(GL_TRIANGLES, 4, 6);
        CALL(void (*)(int, int, int, int, unsigned, unsigned, void *), "glReadPixels")(
            0, 0, SIZE, SIZE, GL_RGBA, GL_UNSIGNED_BYTE, image);
        pixel(image, 16, 32, 255, 0, 0, "indexed draw");
        pixel(image, 48, 48, 0, 255, 0, "draw");
        pixel(image, 48, 16, grey, grey, 128, "clear");
    }
    printf("frames %d wrong %d\n", FRAMES, wrong);

    unsigned compute = program(shader(GL_COMPUTE_SHADER,
        "#version 430\nlayout(local_size_x = 32) in; layout(std430, binding = 0) buffer B { uint v[]; };\n"
        "void main() { uint i = (gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x) * 32u + gl_LocalInvocationID.x;\n"
        "v[i] = v[i] * 3u + i; }"), 0);
    static uint32_t cells[CELLS];
    for (int i = 0; i < CELLS; i++) cells[i] = 1000 + i;
    unsigned b = buffer(GL_SHADER_STORAGE_BUFFER, sizeof cells, cells);
    CALL(void (*)(unsigned, unsigned, unsigned), "glBindBufferBase")(GL_SHADER_STORAGE_BUFFER, 0, b);
    CALL(void (*)(unsigned), "glUseProgram")(compute);
    CALL(void (*)(unsigned, unsigned, unsigned), "glDispatchCompute")(GROUPS_X, GROUPS_Y, 1);
    CALL(void (*)(unsigned), "glMemoryBarrier")(GL_BUFFER_UPDATE_BARRIER_BIT);
    CALL(void (*)(unsigned, long, long, void *), "glGetBufferSubData")(GL_SHADER_STORAGE_BUFFER, 0, sizeof cells, cells);
    int bad = 0;
    for (int i = 0; i < CELLS; i++) bad += cells[i] != (uint32_t)(3 * (1000 + i) + i);
    unsigned error = CALL(unsigned (*)(void), "glGetError")();
    printf("dispatch %d %d 1 local %d wrong %d\nOpenGL error 0x%x\n", GROUPS_X, GROUPS_Y, LOCAL, bad, error);
    CALL(int (*)(Handle), "eglTerminate")(display);
    return wrong || bad || error;
}
