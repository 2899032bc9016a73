// SPDX-License-Identifier: GPL-2.0 OR MIT
/* Memory objects and GPU address spaces. Knows no ioctl and no mapping into a process. */
#include <linux/io.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>
#include "standin.h"

#define MAX_SIZE (256ull << 20)

static u64 bar1_next[STANDIN_MAX_GPUS];

static unsigned long chunk_size(const struct nvs_mem *mem)
{
	return PAGE_SIZE << mem->order;
}

static void mem_free(struct kref *ref)
{
	struct nvs_mem *mem = container_of(ref, struct nvs_mem, ref);
	unsigned long i;

	for (i = 0; i < mem->chunks; i++)
		__free_pages(mem->chunk[i], mem->order);
	kvfree(mem->chunk);
	kfree(mem);
}

struct nvs_mem *nvs_mem_new(u64 size, bool video, u32 gpu)
{
	struct nvs_mem *mem;
	unsigned long n;

	size = PAGE_ALIGN(size);
	if (!size || size > MAX_SIZE)
		return NULL;
	mem = kzalloc(sizeof(*mem), GFP_KERNEL);
	if (!mem)
		return NULL;
	kref_init(&mem->ref);
	mem->size = size;
	mem->video = video;
	mem->gpu = gpu;
	/* 64 KiB runs where there is so much, so that a large BAR mapping is several remapped ranges. */
	mem->order = size >= 0x10000 ? 4 : 0;
	n = DIV_ROUND_UP(size, chunk_size(mem));
	mem->chunk = kvcalloc(n, sizeof(*mem->chunk), GFP_KERNEL);
	if (!mem->chunk)
		goto fail;
	for (; mem->chunks < n; mem->chunks++) {
		mem->chunk[mem->chunks] = alloc_pages(GFP_KERNEL | __GFP_ZERO | (mem->order ? __GFP_COMP : 0), mem->order);
		if (!mem->chunk[mem->chunks])
			goto fail;
	}
	if (video) {
		mem->bus = BAR1_BASE + gpu * GPU_STRIDE + bar1_next[gpu];
		bar1_next[gpu] += ALIGN(size, 0x10000);
	} else {
		mem->bus = page_to_phys(mem->chunk[0]);
	}
	return mem;
fail:
	nvs_mem_put(mem);
	return NULL;
}

void nvs_mem_get(struct nvs_mem *mem)
{
	kref_get(&mem->ref);
}

void nvs_mem_put(struct nvs_mem *mem)
{
	if (mem)
		kref_put(&mem->ref, mem_free);
}

struct page *nvs_mem_page(struct nvs_mem *mem, u64 offset)
{
	return mem->chunk[offset / chunk_size(mem)] + offset % chunk_size(mem) / PAGE_SIZE;
}

void *nvs_mem_at(struct nvs_mem *mem, u64 offset)
{
	return (u8 *)page_address(nvs_mem_page(mem, offset)) + offset_in_page(offset);
}

int nvs_va_add(struct nvs_client *client, u64 base, u64 len, struct nvs_mem *mem, u64 offset)
{
	struct nvs_va *va;

	if (!len || offset > mem->size || len > mem->size - offset)
		return -EINVAL;
	va = kzalloc(sizeof(*va), GFP_KERNEL);
	if (!va)
		return -ENOMEM;
	va->base = base;
	va->len = len;
	va->offset = offset;
	va->mem = mem;
	nvs_mem_get(mem);
	list_add(&va->link, &client->vas); /* the latest mapping of an address wins */
	return 0;
}

/* Forgets the mappings that begin at `base` (any length when `len` is 0); all of them when `base` is ~0. */
void nvs_va_del(struct nvs_client *client, u64 base, u64 len)
{
	struct nvs_va *va, *next;

	list_for_each_entry_safe(va, next, &client->vas, link) {
		if (base != ~0ull && (va->base != base || (len && va->len != len)))
			continue;
		list_del(&va->link);
		nvs_mem_put(va->mem);
		kfree(va);
	}
}

/* The kernel's address of a GPU virtual address; `have`: bytes from there to the end of its page. */
void *nvs_va_at(struct nvs_client *client, u64 at, u64 need, u64 *have)
{
	struct nvs_va *va;

	list_for_each_entry(va, &client->vas, link) {
		u64 from = at - va->base;

		if (at < va->base || from >= va->len || need > va->len - from)
			continue;
		if (have)
			*have = min_t(u64, va->len - from, PAGE_SIZE - offset_in_page(va->offset + from));
		return nvs_mem_at(va->mem, va->offset + from);
	}
	return NULL;
}
