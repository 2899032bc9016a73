// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The controls of a CUDA process that matter to a tracer are answered as the H200 answered them; the rest of
 * those it makes are accepted unchanged, and any other is refused as not supported.
 */
#include <linux/slab.h>
#include <linux/uaccess.h>
#include "standin.h"

#define MAX_PARAMS 16384

/* CUDA's list of what a GH100 offers, as far as this stand-in takes it. */
static const u32 class_list[] = {
	0x0000, 0x0001, 0x0002, 0x0080, 0x0005, 0x0078, 0x007e, 0x0079, 0x0081, 0x003e, 0x0071, 0x0041, 0x2080,
	0x906f, 0x90cc, 0x90e6, 0x90f1, 0x9067, 0xa06c, 0xc361, 0xc461, 0xc561, 0xc661, 0xc36f, 0xc46f, 0xc56f,
	0xc86f, 0xc8b5, 0xcb97, 0xcba2, 0xcbc0, 0x902d, 0xa140,
};
static const u32 engines[] = { 0x01, 0x09, 0x0a, 0x0b, 0x0c, 0x0d, 0x13, 0x2b };

u32 nvs_gpu_id(u32 gpu)
{
	return 0x600 + gpu * 0x100;
}

void nvs_uuid(u32 gpu, u8 out[16])
{
	static const u8 base[16] = { 0x6e, 0x76, 0x63, 0x61, 0x70, 0x2d, 0x73, 0x74, 0x61, 0x6e, 0x64, 0x2d, 0x69, 0x6e, 0x00, 0x00 };

	memcpy(out, base, 16);
	out[15] = gpu;
}

static void list_gpus(u8 *p, u32 size)
{
	u32 i;

	for (i = 0; i * 4 + 4 <= size && i < 32; i++)
		nvs_wr32(p, i * 4, i < standin_gpus ? nvs_gpu_id(i) : ~0u);
}

static u32 channel_list(struct nvs_client *client, u8 *p)
{
	void __user *handles = (void __user *)nvs_rd64(p, 8), *ids = (void __user *)nvs_rd64(p, 16);
	u32 i, n = nvs_rd32(p, 0), handle, id;

	for (i = 0; i < n && i < 64; i++) {
		struct nvs_object *object;

		if (copy_from_user(&handle, handles + 4 * i, 4))
			return NV_ERR_INVALID_ARGUMENT;
		object = nvs_object_find(client, handle);
		if (!object || !object->channel)
			return NV_ERR_OBJECT_NOT_FOUND;
		id = object->channel->token & 0xfff;
		if (copy_to_user(ids + 4 * i, &id, 4))
			return NV_ERR_INVALID_ARGUMENT;
	}
	return NV_OK;
}

/* NV_CHANNELGPFIFO_NOTIFICATION_TYPE_WORK_SUBMIT_TOKEN: the token also lands in the channel's notifier. */
static void notify_token(struct nvs_channel *channel)
{
	u8 *record;

	if (!channel->notifier)
		return;
	record = nvs_mem_at(channel->notifier, 16);
	nvs_wr32(record, 8, channel->token);
	record[12] = record[13] = 0;
	record[14] = record[15] = 0xff;
}

static u32 answer(struct nvs_client *client, struct nvs_object *object, u32 cmd, u8 *p, u32 size)
{
	struct nvs_object *other;
	u32 i;

	switch (cmd) {
	case 0x00000101: { /* SYSTEM_GET_BUILD_VERSION: three pointers to strings of sizeOfStrings bytes */
		u32 room = nvs_rd32(p, 0);
		void __user *to = (void __user *)nvs_rd64(p, 8);

		if (to && room >= sizeof(NV_VERSION) && copy_to_user(to, NV_VERSION, sizeof(NV_VERSION)))
			return NV_ERR_INVALID_ARGUMENT;
		return NV_OK;
	}
	case 0x00000201: /* GPU_GET_ATTACHED_IDS */
	case 0x00000214: /* GPU_GET_PROBED_IDS */
		list_gpus(p, size);
		return NV_OK;
	case 0x00000202: /* GPU_GET_ID_INFO */
	case 0x00000205: /* GPU_GET_ID_INFO_V2 */
		for (i = 0; i < standin_gpus && nvs_gpu_id(i) != nvs_rd32(p, 0); i++)
			;
		if (i == standin_gpus)
			return NV_ERR_INVALID_ARGUMENT;
		nvs_wr32(p, 8, i); /* deviceInstance */
		return NV_OK;
	case 0x00800292: /* GPU_GET_CLASSLIST_V2 */
		nvs_wr32(p, 0, min_t(u32, ARRAY_SIZE(class_list), (size - 4) / 4));
		memcpy(p + 4, class_list, min_t(size_t, sizeof(class_list), size - 4));
		return NV_OK;
	case 0x0080170d:
		return channel_list(client, p);
	case 0x20800110: /* GPU_GET_NAME_STRING */
		strscpy(p + 4, "NVIDIA H200 (nvcap stand-in)", size - 4);
		return NV_OK;
	case 0x20800111: /* GPU_GET_SHORT_NAME_STRING */
		strscpy(p, "GH100GL-A", size);
		return NV_OK;
	case 0x2080014a: /* GPU_GET_GID_INFO, binary SHA-1 form */
		nvs_wr32(p, 8, 16);
		nvs_uuid(object->gpu, p + 12);
		return NV_OK;
	case 0x20800170: /* GPU_GET_ENGINES_V2 */
		nvs_wr32(p, 0, ARRAY_SIZE(engines));
		memcpy(p + 4, engines, sizeof(engines));
		return NV_OK;
	case 0x20801701: /* MC_GET_ARCH_INFO: GH100, revision A1 */
		nvs_wr32(p, 0, 0x180);
		nvs_wr32(p, 4, 0);
		nvs_wr32(p, 8, 0xa1);
		p[12] = 3;
		return NV_OK;
	case 0x20801801: /* BUS_GET_PCI_INFO */
		nvs_wr32(p, 0, 0x233510de);
		nvs_wr32(p, 4, 0x18bf10de);
		nvs_wr32(p, 8, 0xa1);
		nvs_wr32(p, 12, 0x2335);
		return NV_OK;
	case 0x20801218: /* GR_GET_CTX_BUFFER_SIZE */
		nvs_wr64(p, 8, 0x52f000);
		return NV_OK;
	case 0x906f0101: /* GET_CLASS_ENGINEID */
		other = nvs_object_find(client, nvs_rd32(p, 0));
		if (!other || !object->channel)
			return NV_ERR_OBJECT_NOT_FOUND;
		nvs_wr32(p, 4, other->class);
		nvs_wr32(p, 8, other->class);
		nvs_wr32(p, 12, 1);
		return NV_OK;
	case 0xc36f0108: /* GPFIFO_GET_WORK_SUBMIT_TOKEN */
		if (!object->channel)
			return NV_ERR_INVALID_OBJECT_HANDLE;
		nvs_wr32(p, 0, object->channel->token);
		notify_token(object->channel);
		return NV_OK;
	case 0xa06c0101: /* TSG schedule */
	case 0xa06f0103: /* channel schedule */
		list_for_each_entry(other, &client->objects, link)
			if (other->channel && (other == object || other->parent == object->handle))
				other->channel->scheduled = p[0];
		return NV_OK;
	case 0xa06c0103: case 0xa06f0104: case 0xc36f010a:
	case 0x00000d01: case 0x00000d04: case 0x000001f0: case 0x00000215: case 0x0000027b: case 0x0000013a:
	case 0x00000288: case 0x00000a04: case 0xcb330101: case 0x00801402: case 0x00800280: case 0x00800289:
	case 0x20800102: case 0x20801201: case 0x2080122a: case 0x2080122b: case 0x20801303: case 0x20801803:
	case 0x20801823: case 0x20803601: case 0x90e60102: case 0x503c0102: case 0x503c0104: case 0x83de0309:
		return NV_OK;
	}
	return NV_ERR_NOT_SUPPORTED;
}

/* What the answers above write at least. */
static u32 least(u32 cmd)
{
	switch (cmd) {
	case 0x00000101: return 40;
	case 0x00000201: case 0x00000214: return 128;
	case 0x00000202: return 40;
	case 0x00000205: return 32;
	case 0x00800292: return 8;
	case 0x0080170d: return 24;
	case 0x20800110: return 36;
	case 0x20800111: return 16;
	case 0x2080014a: return 268;
	case 0x20800170: return 4 + sizeof(engines);
	case 0x20801701: case 0x20801801: case 0x20801218: case 0x906f0101: return 16;
	case 0xc36f0108: return 4;
	case 0xa06c0101: case 0xa06f0103: return NV_BRANCH >= 575 ? 3 : 2;
	}
	return 0;
}

u32 nvs_control(struct nvs_client *client, u32 handle, u32 cmd, u64 user, u32 size)
{
	struct nvs_object root = { .handle = client->handle }, *object = &root;
	u32 status = NV_ERR_INVALID_PARAM_STRUCT;
	u8 *p;

	if (handle != client->handle) {
		object = nvs_object_find(client, handle);
		if (!object)
			return NV_ERR_INVALID_OBJECT_HANDLE;
	}
	if (size > MAX_PARAMS || size < least(cmd))
		return status;
	p = kzalloc(max(size, 8u), GFP_KERNEL);
	if (!p)
		return NV_ERR_NO_MEMORY;
	if (!copy_from_user(p, (void __user *)user, size)) {
		status = answer(client, object, cmd, p, size);
		if (status == NV_OK && copy_to_user((void __user *)user, p, size))
			status = NV_ERR_INVALID_PARAM_STRUCT;
	}
	kfree(p);
	return status;
}
