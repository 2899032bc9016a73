// What a tracer's floor is: `bp PID` sets a write breakpoint on the doorbell word of every 64 KiB write-only mapping of
// /dev/nvidiaN that PID has, on every thread, with a sample period of 1 and no BPF program, no signal and no buffer:
// the trap and nothing else. It says "armed N", and at the end of its standard input the number of hits.
// `bp PID fill [N]` takes all four debug registers of every thread instead, or N, on addresses that nothing writes.
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <linux/hw_breakpoint.h>
#include <linux/perf_event.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static int fds[4096], count;

static void watch(int tid, uint64_t address, uint64_t period) {
    struct perf_event_attr a;
    memset(&a, 0, sizeof a);
    a.type = PERF_TYPE_BREAKPOINT;
    a.size = sizeof a;
    a.bp_type = HW_BREAKPOINT_W;
    a.bp_addr = address;
    a.bp_len = HW_BREAKPOINT_LEN_4;
    a.sample_period = period;
    a.exclude_kernel = 1;
    a.exclude_hv = 1;
    a.inherit = 1;
    int fd = syscall(SYS_perf_event_open, &a, tid, -1, -1, PERF_FLAG_FD_CLOEXEC);
    if (fd < 0) {
        fprintf(stderr, "bp: thread %d, address %lx: %s\n", tid, (unsigned long)address, strerror(errno));
        return;
    }
    if (count < (int)(sizeof fds / sizeof *fds)) fds[count++] = fd;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "bp PID [fill [N]]\n");
        return 2;
    }
    uint64_t addresses[16];
    int n = 0;
    char path[64], line[512];
    if (argc > 2 && !strcmp(argv[2], "fill")) {
        // Addresses of this program's: in the other process nothing is there, or nothing that is written.
        static uint32_t words[4];
        int most = argc > 3 ? atoi(argv[3]) : 4;
        for (; n < 4 && n < most; n++) addresses[n] = (uint64_t)&words[n];
    } else {
        snprintf(path, sizeof path, "/proc/%s/maps", argv[1]);
        FILE *maps = fopen(path, "r");
        if (!maps) {
            perror(path);
            return 1;
        }
        while (n < 16 && fgets(line, sizeof line, maps)) {
            unsigned long start, end;
            char rights[8];
            if (sscanf(line, "%lx-%lx %7s", &start, &end, rights) == 3 && end - start == 0x10000 && rights[0] == '-' &&
                rights[1] == 'w' && strstr(line, "/dev/nvidia"))
                addresses[n++] = start + 0x90;
        }
        fclose(maps);
    }
    snprintf(path, sizeof path, "/proc/%s/task", argv[1]);
    DIR *tasks = opendir(path);
    if (!tasks) {
        perror(path);
        return 1;
    }
    struct dirent *e;
    while ((e = readdir(tasks)))
        if (atoi(e->d_name) > 0)
            for (int i = 0; i < n; i++) watch(atoi(e->d_name), addresses[i], 1);
    closedir(tasks);
    printf("armed %d\n", count);
    fflush(stdout);
    if (!count) return 1;
    char byte;
    while (read(0, &byte, 1) == 1) {
    }
    uint64_t hits = 0;
    for (int i = 0; i < count; i++) {
        uint64_t value;
        if (read(fds[i], &value, sizeof value) == sizeof value) hits += value;
    }
    printf("hits %lu\n", (unsigned long)hits);
    return 0;
}
