/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* What the stand-in's source files share. One lock, standin_lock, guards every list below. */
#ifndef STANDIN_H
#define STANDIN_H

#include <linux/fs.h>
#include <linux/kref.h>
#include <linux/list.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/types.h>
#include "layout.h"

#define STANDIN_MAX_GPUS 8

extern struct mutex standin_lock;
extern unsigned int standin_gpus;
extern const struct file_operations nvidia_fops;

/* Memory behind an RM memory object: pages of the guest's RAM, whatever aperture they play. */
struct nvs_mem {
	struct kref ref;
	u64 size;
	u64 bus;      /* what NVOS33.pLinearAddress shows */
	bool video;   /* reached through a BAR of /dev/nvidiaN, not through /dev/nvidiactl */
	bool doorbell;
	u32 gpu;
	unsigned int order;
	unsigned long chunks;
	struct page **chunk;
};

/* A range of a GPU's address space. */
struct nvs_va {
	struct list_head link;
	u64 base, len, offset;
	struct nvs_mem *mem;
};

struct nvs_client {
	struct list_head link, objects, vas;
	u32 handle;
	u32 next;
	void *owner; /* the nvs_file that made it, which ends it */
};

/* What the host engine and the walker remember of a channel between words. */
struct nvs_walker {
	u64 at, end;      /* the pushbuffer bytes being walked */
	u32 left, method; /* data words still to come, and where the next one goes */
	u8 subchannel, mode;
	u32 sem_addr[2], sem_payload[2];
	u32 report[3];
	u32 ce[0x200 / 4];  /* copy class methods 0x200..0x3ff */
	u32 ce_io[0x20 / 4]; /* and 0x400..0x41f */
	u32 inline_out[2], inline_len, inline_done;
};

struct nvs_channel {
	struct list_head link;
	struct nvs_client *client;
	u32 handle, gpu, token, entries, get;
	u64 ring, extended; /* extended: bits 56:40 of pushbuffer addresses */
	struct nvs_mem *userd, *notifier;
	u64 userd_offset;
	bool scheduled;
	struct nvs_walker walk;
};

struct nvs_object {
	struct list_head link;
	u32 handle, parent, class, gpu, engine;
	struct nvs_mem *mem;
	struct nvs_channel *channel;
};

/* One open file. A mapping context waits here between NV_ESC_RM_MAP_MEMORY and mmap. */
struct nvs_file {
	int minor;
	struct {
		struct nvs_mem *mem; /* NULL: none waits */
		u64 offset, size;
	} pending;
};

/* memory.c */
struct nvs_mem *nvs_mem_new(u64 size, bool video, u32 gpu);
void nvs_mem_get(struct nvs_mem *mem);
void nvs_mem_put(struct nvs_mem *mem);
void *nvs_mem_at(struct nvs_mem *mem, u64 offset);
struct page *nvs_mem_page(struct nvs_mem *mem, u64 offset);
int nvs_va_add(struct nvs_client *client, u64 base, u64 len, struct nvs_mem *mem, u64 offset);
void nvs_va_del(struct nvs_client *client, u64 base, u64 len);
void *nvs_va_at(struct nvs_client *client, u64 va, u64 need, u64 *have);

/* rm.c; the caller holds standin_lock for all but the last two */
struct nvs_client *nvs_client_find(u32 handle);
struct nvs_object *nvs_object_find(struct nvs_client *client, u32 handle);
long nvs_escape(struct file *file, unsigned int nr, void *arg, unsigned int size);
void nvs_file_gone(struct nvs_file *nf);
int nvs_uvm_map(u32 hclient, u32 hmemory, struct nvs_mem *own, u64 base, u64 len, u64 offset, u32 *status);
void nvs_uvm_unmap(u32 hclient, u64 base, u64 len);

/* rm-control.c */
u32 nvs_control(struct nvs_client *client, u32 object, u32 cmd, u64 user, u32 size);
u32 nvs_gpu_id(u32 gpu);
void nvs_uuid(u32 gpu, u8 out[16]);

/* gpu.c */
int nvs_gpu_start(void);
void nvs_gpu_stop(void);
u32 nvs_channel_add(struct nvs_channel *channel, u32 engine);
void nvs_channel_del(struct nvs_channel *channel);

/* nv-mmap.c */
int nvidia_mmap(struct file *file, struct vm_area_struct *vma);
extern unsigned long standin_doorbell_peeks;

static inline u32 nvs_rd32(const void *p, unsigned int at) { u32 v; memcpy(&v, (const u8 *)p + at, 4); return v; }
static inline u64 nvs_rd64(const void *p, unsigned int at) { u64 v; memcpy(&v, (const u8 *)p + at, 8); return v; }
static inline void nvs_wr32(void *p, unsigned int at, u32 v) { memcpy((u8 *)p + at, &v, 4); }
static inline void nvs_wr64(void *p, unsigned int at, u64 v) { memcpy((u8 *)p + at, &v, 8); }

#endif
