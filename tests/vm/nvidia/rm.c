// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The escapes: clients, objects, memory, mapping contexts, channels. As in the driver, an escape that is
 * understood returns 0 and reports in the status field of its structure.
 */
#include <linux/file.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include "standin.h"

static LIST_HEAD(clients);
static u32 next_client = 0xc1d0001f;

struct nvs_client *nvs_client_find(u32 handle)
{
	struct nvs_client *client;

	list_for_each_entry(client, &clients, link)
		if (client->handle == handle)
			return client;
	return NULL;
}

struct nvs_object *nvs_object_find(struct nvs_client *client, u32 handle)
{
	struct nvs_object *object;

	list_for_each_entry(object, &client->objects, link)
		if (object->handle == handle)
			return object;
	return NULL;
}

static void object_free(struct nvs_client *client, struct nvs_object *object)
{
	struct nvs_object *child;
again:
	list_for_each_entry(child, &client->objects, link) {
		if (child->parent == object->handle && child != object) {
			object_free(client, child);
			goto again; /* the recursion may have taken the next one too */
		}
	}
	list_del(&object->link);
	if (object->channel)
		nvs_channel_del(object->channel);
	nvs_mem_put(object->mem);
	kfree(object);
}

static void client_free(struct nvs_client *client)
{
	while (!list_empty(&client->objects))
		object_free(client, list_first_entry(&client->objects, struct nvs_object, link));
	nvs_va_del(client, ~0ull, 0);
	list_del(&client->link);
	kfree(client);
}

void nvs_file_gone(struct nvs_file *nf)
{
	struct nvs_client *client, *next;

	mutex_lock(&standin_lock);
	list_for_each_entry_safe(client, next, &clients, link)
		if (client->owner == nf)
			client_free(client);
	nvs_mem_put(nf->pending.mem);
	nf->pending.mem = NULL;
	mutex_unlock(&standin_lock);
}

static u32 client_new(void *owner, u32 *handle)
{
	struct nvs_client *client;

	if (*handle && nvs_client_find(*handle))
		return NV_ERR_INSERT_DUPLICATE_NAME;
	client = kzalloc(sizeof(*client), GFP_KERNEL);
	if (!client)
		return NV_ERR_NO_MEMORY;
	client->handle = *handle ? *handle : next_client++;
	client->next = 0xcaf00000;
	client->owner = owner;
	INIT_LIST_HEAD(&client->objects);
	INIT_LIST_HEAD(&client->vas);
	list_add(&client->link, &clients);
	*handle = client->handle;
	return NV_OK;
}

/* How large the parameters of a class are; RM copies that much whatever the caller says. */
static int params_size(u32 class)
{
	switch (class) {
	case CLASS_DEVICE: return 56;
	case CLASS_SUBDEVICE: return 4;
	case CLASS_MEMORY_SYSTEM:
	case CLASS_MEMORY_LOCAL_USER: return MEMORY_PARAMS_SIZE;
	case CLASS_VASPACE: return VASPACE_PARAMS_SIZE;
	case CLASS_MEMORY_VIRTUAL: return 24;
	case CLASS_CTXSHARE: return 12;
	case CLASS_TSG: return 20;
	case CLASS_HOPPER_USERMODE: return 2;
	case 0xc36f: case 0xc46f: case 0xc56f: case 0xc76f:
	case CLASS_HOPPER_CHANNEL: return CHANNEL_PARAMS_SIZE;
	case 0xc8b5: case 0xc7b5: case 0xc6b5: return 8;
	case 0xcbc0: case 0xc7c0: case 0xc6c0: return 16;
	case 0x0079: case 0x0005: return 24;
	case 0x50a0: return MEMORY_PARAMS_SIZE;
	case 0x00de: return NV_BRANCH >= 545 ? 8 : 4;
	case 0x83de: return 12;
	case 0x503c: case 0xcb33: return 4;
	case 0x90e6:
	case 0xc361: case 0xc461: case 0xc561: return 0;
	}
	return -1;
}

static u32 channel_new(struct nvs_client *client, struct nvs_object *object, struct nvs_object *parent, void *p)
{
	struct nvs_object *userd = nvs_object_find(client, nvs_rd32(p, 32));
	struct nvs_object *notifier = nvs_object_find(client, nvs_rd32(p, 0));
	u32 entries = nvs_rd32(p, 16), engine = parent->class == CLASS_TSG ? parent->engine : nvs_rd32(p, 128);
	u64 offset = nvs_rd64(p, 64);
	struct nvs_channel *channel;

	if (!userd || !userd->mem)
		return NV_ERR_OBJECT_NOT_FOUND;
	if (offset % USERD_SIZE || offset > userd->mem->size - USERD_SIZE)
		return NV_ERR_INVALID_OFFSET;
	if (entries < 2 || entries & (entries - 1))
		return NV_ERR_INVALID_ARGUMENT;
	channel = kzalloc(sizeof(*channel), GFP_KERNEL);
	if (!channel)
		return NV_ERR_NO_MEMORY;
	channel->client = client;
	channel->handle = object->handle;
	channel->gpu = object->gpu;
	channel->entries = entries;
	channel->ring = nvs_rd64(p, 8);
	channel->userd = userd->mem;
	nvs_mem_get(channel->userd);
	channel->userd_offset = offset;
	if (notifier && notifier->mem) {
		channel->notifier = notifier->mem;
		nvs_mem_get(channel->notifier);
	}
	memset(nvs_mem_at(channel->userd, offset), 0, USERD_SIZE);
	object->channel = channel;
	return nvs_channel_add(channel, engine);
}

static u32 fill_object(struct nvs_client *client, struct nvs_object *object, struct nvs_object *parent, void *p, bool given)
{
	u64 size;

	object->gpu = parent ? parent->gpu : 0;
	switch (object->class) {
	case CLASS_DEVICE:
		if (!given)
			return NV_ERR_INVALID_PARAM_STRUCT;
		object->gpu = nvs_rd32(p, 0);
		return object->gpu < standin_gpus ? NV_OK : NV_ERR_INVALID_DEVICE;
	case CLASS_MEMORY_SYSTEM:
	case CLASS_MEMORY_LOCAL_USER:
		if (!given)
			return NV_ERR_INVALID_PARAM_STRUCT;
		size = nvs_rd64(p, 64);
		if (!size)
			return NV_ERR_INVALID_LIMIT;
		object->mem = nvs_mem_new(size, object->class == CLASS_MEMORY_LOCAL_USER, object->gpu);
		if (!object->mem)
			return NV_ERR_NO_MEMORY;
		nvs_wr64(p, 88, object->mem->size - 1);
		return NV_OK;
	case CLASS_TSG:
		if (!given)
			return NV_ERR_INVALID_PARAM_STRUCT;
		object->engine = nvs_rd32(p, 12);
		return NV_OK;
	case 0xc361: case 0xc461: case 0xc561:
	case CLASS_HOPPER_USERMODE:
		object->mem = nvs_mem_new(USERMODE_SIZE, true, object->gpu);
		if (!object->mem)
			return NV_ERR_NO_MEMORY;
		object->mem->doorbell = true;
		/* Parameters absent or bBar1Mapping = 0: the register in BAR0. */
		if (!given || !*(u8 *)p)
			object->mem->bus = BAR0_BASE + object->gpu * GPU_STRIDE + BAR0_USERMODE;
		return NV_OK;
	case 0x00de: /* the page of counters that every process may read */
		object->mem = nvs_mem_new(PAGE_SIZE, false, object->gpu);
		return object->mem ? NV_OK : NV_ERR_NO_MEMORY;
	case 0xc36f: case 0xc46f: case 0xc56f: case 0xc76f:
	case CLASS_HOPPER_CHANNEL:
		if (!given)
			return NV_ERR_INVALID_PARAM_STRUCT;
		return channel_new(client, object, parent, p);
	}
	return NV_OK;
}

static u32 alloc(struct nvs_file *nf, void *arg)
{
	u32 root = nvs_rd32(arg, 0), parent_handle = nvs_rd32(arg, 4), handle = nvs_rd32(arg, 8), class = nvs_rd32(arg, 12);
	void __user *user = (void __user *)nvs_rd64(arg, 16);
	struct nvs_client *client;
	struct nvs_object *object, *parent;
	u8 p[CHANNEL_PARAMS_SIZE] = {};
	int size = params_size(class);
	u32 status;

	if (class == CLASS_ROOT || class == CLASS_ROOT_NON_PRIV || class == CLASS_ROOT_CLIENT) {
		status = client_new(nf, &handle);
		nvs_wr32(arg, 8, handle);
		return status;
	}
	client = nvs_client_find(root);
	if (!client)
		return NV_ERR_INVALID_CLIENT;
	if (size < 0)
		return NV_ERR_INVALID_CLASS;
	parent = nvs_object_find(client, parent_handle);
	if (!parent && parent_handle != root)
		return NV_ERR_INVALID_OBJECT_PARENT;
	if (!handle)
		handle = client->next++;
	if (nvs_object_find(client, handle))
		return NV_ERR_INSERT_DUPLICATE_NAME;
	if (user && size && copy_from_user(p, user, size))
		return NV_ERR_INVALID_PARAM_STRUCT;
	object = kzalloc(sizeof(*object), GFP_KERNEL);
	if (!object)
		return NV_ERR_NO_MEMORY;
	object->handle = handle;
	object->parent = parent_handle;
	object->class = class;
	list_add(&object->link, &client->objects);
	status = fill_object(client, object, parent, p, user && size);
	if (status == NV_OK && user && size && copy_to_user(user, p, size))
		status = NV_ERR_INVALID_PARAM_STRUCT;
	if (status != NV_OK)
		object_free(client, object);
	nvs_wr32(arg, 8, handle);
	return status;
}

static u32 free_object(void *arg)
{
	u32 root = nvs_rd32(arg, 0), old = nvs_rd32(arg, 8);
	struct nvs_client *client = nvs_client_find(root);
	struct nvs_object *object;

	if (!client)
		return NV_ERR_INVALID_CLIENT;
	if (old == root) {
		client_free(client);
		return NV_OK;
	}
	object = nvs_object_find(client, old);
	/* libcuda frees handles it has not allocated and goes on: that is no error here either. */
	if (object)
		object_free(client, object);
	return NV_OK;
}

static u32 dup_object(void *arg)
{
	struct nvs_client *to = nvs_client_find(nvs_rd32(arg, 0)), *from = nvs_client_find(nvs_rd32(arg, 12));
	struct nvs_object *source, *object;
	u32 handle = nvs_rd32(arg, 8);

	if (!to || !from)
		return NV_ERR_INVALID_CLIENT;
	source = nvs_object_find(from, nvs_rd32(arg, 16));
	if (!source)
		return NV_ERR_OBJECT_NOT_FOUND;
	if (source->channel)
		return NV_ERR_NOT_SUPPORTED;
	if (!handle)
		handle = to->next++;
	if (nvs_object_find(to, handle))
		return NV_ERR_INSERT_DUPLICATE_NAME;
	object = kmemdup(source, sizeof(*source), GFP_KERNEL);
	if (!object)
		return NV_ERR_NO_MEMORY;
	object->handle = handle;
	object->parent = nvs_rd32(arg, 4);
	if (object->mem)
		nvs_mem_get(object->mem);
	list_add(&object->link, &to->objects);
	nvs_wr32(arg, 8, handle);
	return NV_OK;
}

static struct nvs_mem *memory_of(u32 hclient, u32 hmemory, u32 *status)
{
	struct nvs_client *client = nvs_client_find(hclient);
	struct nvs_object *object = client ? nvs_object_find(client, hmemory) : NULL;

	*status = !client ? NV_ERR_INVALID_CLIENT : !object || !object->mem ? NV_ERR_OBJECT_NOT_FOUND : NV_OK;
	return *status == NV_OK ? object->mem : NULL;
}

/* Leaves a mapping context on the file that the argument names, for the mmap that follows. */
static u32 map_memory(void *arg)
{
	u64 offset = nvs_rd64(arg, 16), length = nvs_rd64(arg, 24);
	struct nvs_file *nf;
	struct nvs_mem *mem;
	struct file *file;
	u32 status;

	mem = memory_of(nvs_rd32(arg, 0), nvs_rd32(arg, 8), &status);
	if (!mem)
		return status;
	if (offset > mem->size || !length || length > mem->size - offset)
		return NV_ERR_INVALID_LIMIT;
	file = fget(nvs_rd32(arg, 48));
	if (!file)
		return NV_ERR_INVALID_ARGUMENT;
	nf = file->private_data;
	if (file->f_op != &nvidia_fops || (nf->minor == NV_MINOR_CTL) == mem->video || (mem->video && nf->minor != mem->gpu)) {
		status = NV_ERR_INVALID_ARGUMENT;
	} else if (nf->pending.mem) {
		status = NV_ERR_STATE_IN_USE;
	} else {
		nvs_mem_get(mem);
		nf->pending.mem = mem;
		nf->pending.offset = offset & PAGE_MASK;
		nf->pending.size = PAGE_ALIGN(length + offset_in_page(offset));
		nvs_wr64(arg, 32, mem->bus + offset);
	}
	fput(file);
	return status;
}

static u32 map_dma(void *arg)
{
	struct nvs_client *client = nvs_client_find(nvs_rd32(arg, 0));
	u64 offset = nvs_rd64(arg, 16), length = nvs_rd64(arg, 24), at = nvs_rd64(arg, NVOS46_DMA_OFFSET);
	static u64 next = 0x4000000;
	struct nvs_mem *mem;
	u32 status;

	mem = memory_of(nvs_rd32(arg, 0), nvs_rd32(arg, 12), &status);
	if (!mem)
		return status;
	if (!(nvs_rd32(arg, 32) & 0x8000)) { /* DMA_OFFSET_FIXED not asked: an address of RM's own choice */
		at = next;
		next += ALIGN(length, 0x200000);
	}
	if (nvs_va_add(client, at, length, mem, offset))
		return NV_ERR_INVALID_LIMIT;
	nvs_wr64(arg, NVOS46_DMA_OFFSET, at);
	return NV_OK;
}

static u32 vid_heap_control(void *arg)
{
	/* NVOS32: hRoot, hObjectParent, function, hVASpace; data.AllocSize of function 2 begins at 40. */
	struct nvs_client *client = nvs_client_find(nvs_rd32(arg, 0));
	struct nvs_object *object, *parent;
	u32 handle = nvs_rd32(arg, 44);
	u64 size = nvs_rd64(arg, 88);

	if (!client)
		return NV_ERR_INVALID_CLIENT;
	if (nvs_rd32(arg, 8) != 2)
		return NV_ERR_NOT_SUPPORTED;
	parent = nvs_object_find(client, nvs_rd32(arg, 4));
	if (!parent)
		return NV_ERR_INVALID_OBJECT_PARENT;
	if (!handle)
		handle = client->next++;
	if (nvs_object_find(client, handle))
		return NV_ERR_INSERT_DUPLICATE_NAME;
	object = kzalloc(sizeof(*object), GFP_KERNEL);
	if (!object)
		return NV_ERR_NO_MEMORY;
	object->mem = nvs_mem_new(size, true, parent->gpu);
	if (!object->mem) {
		kfree(object);
		return NV_ERR_NO_MEMORY;
	}
	object->handle = handle;
	object->parent = parent->handle;
	object->class = CLASS_MEMORY_LOCAL_USER;
	object->gpu = parent->gpu;
	list_add(&object->link, &client->objects);
	nvs_wr32(arg, 44, handle);
	nvs_wr64(arg, 112, object->mem->size - 1);
	return NV_OK;
}

static void card_info(void *arg, unsigned int size)
{
	unsigned int i;

	memset(arg, 0, size);
	for (i = 0; i < standin_gpus && (i + 1) * 72 <= size; i++) {
		u8 *card = (u8 *)arg + i * 72;

		card[0] = 1;
		card[8] = 6 + i;
		nvs_wr32(card, 12, 0x233510de);
		nvs_wr32(card, 16, nvs_gpu_id(i));
		nvs_wr64(card, 24, BAR0_BASE + i * GPU_STRIDE);
		nvs_wr64(card, 32, BAR0_SIZE);
		nvs_wr64(card, 40, BAR1_BASE + i * GPU_STRIDE);
		nvs_wr64(card, 48, BAR1_SIZE);
		nvs_wr32(card, 56, i);
	}
}

long nvs_escape(struct file *file, unsigned int nr, void *arg, unsigned int size)
{
	struct nvs_file *nf = file->private_data;
	struct nvs_client *client;
	unsigned int want = 0, at = 0;
	u32 status = NV_OK;
	long rc = 0;

	/* The size is checked first, and where the status goes is known by it. */
	switch (nr) {
	case ESC_ALLOC: want = size == 32 ? 32 : 48; at = size == 32 ? 28 : 40; break;
	case ESC_CONTROL: want = 32; at = 28; break;
	case ESC_FREE: want = 16; at = 12; break;
	case ESC_ALLOC_MEMORY: want = 56; at = 40; break;
	case ESC_DUP_OBJECT: want = 28; at = 24; break;
	case ESC_SHARE: want = 24; at = 20; break;
	case ESC_VID_HEAP_CONTROL: want = 184; at = 20; break;
	case ESC_MAP_MEMORY: want = 56; at = 40; break;
	case ESC_UNMAP_MEMORY: want = 32; at = 24; break;
	case ESC_MAP_MEMORY_DMA: want = NVOS46_SIZE; at = NVOS46_STATUS; break;
	case ESC_UNMAP_MEMORY_DMA: want = NVOS47_SIZE; at = NVOS47_STATUS; break;
	case ESC_UPDATE_DEVICE_MAPPING_INFO: want = 40; at = 32; break;
	case ESC_REGISTER_FD: want = 4; break;
	case ESC_ALLOC_OS_EVENT:
	case ESC_FREE_OS_EVENT: want = 16; at = 12; break;
	case ESC_CHECK_VERSION_STR: want = 72; break;
	case ESC_SYS_PARAMS: want = 8; break;
	case ESC_WAIT_OPEN_COMPLETE: want = 8; break;
	case ESC_NUMA_INFO:
	case ESC_ATTACH_GPUS_TO_FD:
	case ESC_CARD_INFO: want = size; break;
	default: return -EINVAL;
	}
	if (size != want)
		return -EINVAL;

	mutex_lock(&standin_lock);
	switch (nr) {
	case ESC_ALLOC: status = alloc(nf, arg); break;
	case ESC_FREE: status = free_object(arg); break;
	case ESC_CONTROL:
		client = nvs_client_find(nvs_rd32(arg, 0));
		status = client ? nvs_control(client, nvs_rd32(arg, 4), nvs_rd32(arg, 8), nvs_rd64(arg, 16), nvs_rd32(arg, 24))
				: NV_ERR_INVALID_CLIENT;
		break;
	case ESC_DUP_OBJECT: status = dup_object(arg); break;
	case ESC_VID_HEAP_CONTROL: status = vid_heap_control(arg); break;
	case ESC_MAP_MEMORY: status = map_memory(arg); break;
	case ESC_MAP_MEMORY_DMA: status = map_dma(arg); break;
	case ESC_UNMAP_MEMORY_DMA:
		client = nvs_client_find(nvs_rd32(arg, 0));
		if (client)
			nvs_va_del(client, nvs_rd64(arg, 24), 0);
		status = client ? NV_OK : NV_ERR_INVALID_CLIENT;
		break;
	case ESC_ALLOC_MEMORY: status = NV_ERR_NOT_SUPPORTED; break;
	case ESC_CARD_INFO: card_info(arg, size); break;
	case ESC_SYS_PARAMS: nvs_wr64(arg, 0, 0x40000000); break;
	case ESC_CHECK_VERSION_STR:
		nvs_wr32(arg, 4, strncmp((char *)arg + 8, NV_VERSION, 64) ? 0 : 1);
		strscpy((char *)arg + 8, NV_VERSION, 64);
		break;
	case ESC_NUMA_INFO:
		if (nf->minor == NV_MINOR_CTL)
			rc = -EINVAL;
		else
			nvs_wr32(arg, 0, ~0u);
		break;
	}
	if (at)
		nvs_wr32(arg, at, status);
	mutex_unlock(&standin_lock);
	return rc;
}

/* For nvidia-uvm, which has its own ioctls and its own lock-free callers. */
int nvs_uvm_map(u32 hclient, u32 hmemory, struct nvs_mem *own, u64 base, u64 len, u64 offset, u32 *status)
{
	struct nvs_client *client;
	struct nvs_mem *mem = own;

	mutex_lock(&standin_lock);
	client = nvs_client_find(hclient);
	*status = client ? NV_OK : NV_ERR_INVALID_CLIENT;
	if (client && !mem)
		mem = memory_of(hclient, hmemory, status);
	if (*status == NV_OK && nvs_va_add(client, base, len, mem, offset))
		*status = NV_ERR_INVALID_LIMIT;
	mutex_unlock(&standin_lock);
	return 0;
}
EXPORT_SYMBOL_GPL(nvs_uvm_map);

void nvs_uvm_unmap(u32 hclient, u64 base, u64 len)
{
	struct nvs_client *client;

	mutex_lock(&standin_lock);
	client = nvs_client_find(hclient);
	if (client)
		nvs_va_del(client, base, len);
	mutex_unlock(&standin_lock);
}
EXPORT_SYMBOL_GPL(nvs_uvm_unmap);
EXPORT_SYMBOL_GPL(nvs_mem_new);
EXPORT_SYMBOL_GPL(nvs_mem_get);
EXPORT_SYMBOL_GPL(nvs_mem_put);
EXPORT_SYMBOL_GPL(nvs_mem_page);
