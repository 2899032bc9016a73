// Logs every ioctl on /dev/nvidia* and every mmap of these files, from within the process (LD_PRELOAD): what
// `nvcap ioctls` of the same run is compared with (check.py ioctls), and what `nvcap ... --from ioctl-log` reads.
//
//   IOCTL_LOG=FILE LD_PRELOAD=./ioctl_log.so PROGRAM
//
// A record is written whole, by one write, after the call: the order of one thread's records is the order of its calls.
// Argument and parameters are read by process_vm_readv, so that a pointer to nothing harms nobody. Where a request or
// a parameter structure does not say its size, more is logged than there is: the reader knows how much of it counts.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { MOST = 64 << 10, UVM = 9472, GUESS = 512 };
enum { NV_ESC_RM_CONTROL = 0x2a, NV_ESC_RM_ALLOC = 0x2b, NV_ESC_IOCTL_XFER_CMD = 0xd3 };

// Bytes as they were, and how many there were.
struct copy { size_t len; unsigned char *bytes; };
struct text { size_t len, room; char *at; };

// The device file that a descriptor names, else NULL.
static const char *device(int fd, char path[64]) {
    char link[40];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, 63);
    if (n <= 0) return NULL;
    path[n] = 0;
    const char *prefix = getenv("IOCTL_LOG_DEVICES");
    if (!prefix) prefix = "/dev/nvidia";
    return strncmp(path, prefix, strlen(prefix)) ? NULL : path;
}

static struct copy copy_of(uint64_t address, uint64_t len) {
    struct copy c = {0, NULL};
    if (!address || !len) return c;
    if (len > MOST) len = MOST;
    c.bytes = malloc(len);
    if (!c.bytes) return c;
    // Page by page, so that what is there is taken where its end is not.
    while (c.len < len) {
        size_t part = 4096 - ((address + c.len) & 4095);
        if (part > len - c.len) part = len - c.len;
        struct iovec to = {c.bytes + c.len, part}, from = {(void *)(address + c.len), part};
        ssize_t n = process_vm_readv(getpid(), &to, 1, &from, 1, 0);
        if (n <= 0) break;
        c.len += n;
    }
    return c;
}

static void add(struct text *t, const char *format, ...) {
    va_list args;
    for (;;) {
        va_start(args, format);
        int n = vsnprintf(t->at + t->len, t->room - t->len, format, args);
        va_end(args);
        if (n < 0) return;
        if (t->len + n < t->room) { t->len += n; return; }
        size_t room = 2 * t->room + n + 1;
        char *more = realloc(t->at, room);
        if (!more) return;
        t->at = more;
        t->room = room;
    }
}

static void add_bytes(struct text *t, const char *name, struct copy *c) {
    if (c->bytes) {
        add(t, " %s[%zu] ", name, c->len);
        for (size_t i = 0; i < c->len; i++) add(t, i % 4 == 3 ? "%02x " : "%02x", c->bytes[i]);
        add(t, "\n");
    }
    free(c->bytes);
}

static void emit(struct text *t) {
    static int log = -1;
    int saved = errno;
    if (log < 0) {
        const char *path = getenv("IOCTL_LOG");
        int fd = open(path ? path : "ioctl.log", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
        if (fd < 0) { perror("ioctl_log"); _exit(3); }
        // Out of the way of the numbers that the program gets.
        log = fcntl(fd, F_DUPFD_CLOEXEC, 900);
        close(fd);
    }
    if (write(log, t->at, t->len) != (ssize_t)t->len) { perror("ioctl_log"); _exit(3); }
    free(t->at);
    errno = saved;
}

static uint64_t field(const struct copy *c, size_t at, size_t len) {
    uint64_t value = 0;
    if (at + len <= c->len) memcpy(&value, c->bytes + at, len);
    return value;
}

int ioctl(int fd, unsigned long request, ...) {
    static int (*next)(int, unsigned long, void *);
    if (!next) next = dlsym(RTLD_NEXT, "ioctl");
    va_list args;
    va_start(args, request);
    uint64_t argument = (uint64_t)va_arg(args, void *);
    va_end(args);
    char path[64];
    if (!device(fd, path)) return next(fd, request, (void *)argument);

    int uvm = strstr(path, "uvm") != NULL;
    unsigned nr = request & 0xff, size = request >> 16 & 0x3fff;
    struct copy in = copy_of(argument, uvm ? UVM : size);
    uint64_t pointer = 0, length = 0;
    if (!uvm) switch (nr) {
    case NV_ESC_RM_CONTROL:
        pointer = field(&in, 16, 8);
        length = field(&in, 24, 4);
        break;
    case NV_ESC_RM_ALLOC:
        pointer = field(&in, 16, 8);
        length = field(&in, size >= 48 ? 32 : 24, 4);
        if (!length || size < 32) length = GUESS;
        break;
    case NV_ESC_IOCTL_XFER_CMD:
        pointer = field(&in, 8, 8);
        length = field(&in, 4, 4);
        break;
    }
    struct copy inside = copy_of(pointer, length);

    int result = next(fd, request, (void *)argument), error = errno;

    struct text t = {0, 4096, malloc(4096)};
    if (!t.at) _exit(3);
    add(&t, "IOCTL %s fd=%d nr=0x%x size=%u pid=%d tid=%ld req=0x%lx\n", path, fd, nr, size, getpid(),
        syscall(SYS_gettid), request);
    size_t len = in.len, inside_len = inside.len;
    add_bytes(&t, "in", &in);
    add_bytes(&t, "pin", &inside);
    add(&t, " ret=%d fd=%d nr=0x%x\n", result < 0 ? -error : result, fd, nr);
    struct copy out = copy_of(argument, len), after = copy_of(pointer, inside_len);
    add_bytes(&t, "out", &out);
    add_bytes(&t, "pout", &after);
    emit(&t);
    errno = error;
    return result;
}

static void mapped(void *address, size_t len, int prot, int flags, int fd, long offset) {
    char path[64];
    if (fd < 0 || address == MAP_FAILED || !device(fd, path)) return;
    struct text t = {0, 512, malloc(512)};
    if (!t.at) _exit(3);
    add(&t, "MMAP %s fd=%d addr=%p len=0x%zx prot=%d flags=0x%x off=0x%lx pid=%d tid=%ld\n", path, fd, address, len,
        prot, flags, offset, getpid(), syscall(SYS_gettid));
    emit(&t);
}

void *mmap(void *address, size_t len, int prot, int flags, int fd, off_t offset) {
    static void *(*next)(void *, size_t, int, int, int, off_t);
    if (!next) next = dlsym(RTLD_NEXT, "mmap");
    void *at = next(address, len, prot, flags, fd, offset);
    mapped(at, len, prot, flags, fd, offset);
    return at;
}

void *mmap64(void *address, size_t len, int prot, int flags, int fd, off64_t offset) {
    static void *(*next)(void *, size_t, int, int, int, off64_t);
    if (!next) next = dlsym(RTLD_NEXT, "mmap64");
    void *at = next(address, len, prot, flags, fd, offset);
    mapped(at, len, prot, flags, fd, offset);
    return at;
}
