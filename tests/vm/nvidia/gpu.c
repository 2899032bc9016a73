// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The "GPU": a thread that fetches what lies between GP_GET and GP_PUT of every scheduled channel, walks the
 * methods, and does what a program waits for: semaphores of the host, compute and copy classes with their
 * timestamps, inline writes and one-dimensional copies. Everything else it walks over.
 */
#include <linux/bitmap.h>
#include <linux/delay.h>
#include <linux/kthread.h>
#include <linux/ktime.h>
#include <linux/module.h>
#include <linux/slab.h>
#include "standin.h"

static LIST_HEAD(channels);
static struct task_struct *thread;
static DECLARE_BITMAP(ids[STANDIN_MAX_GPUS], 4096);

static bool paused;
module_param(paused, bool, 0644);
MODULE_PARM_DESC(paused, "the GPU fetches nothing: a hung one");
static unsigned long entries_done, releases_done, releases_unmapped, bytes_done, faults;
module_param(entries_done, ulong, 0444);
module_param(releases_done, ulong, 0444);
module_param(releases_unmapped, ulong, 0444);
MODULE_PARM_DESC(releases_unmapped, "releases to memory that the process gave no GPU address: synthetic streams have them");
module_param(bytes_done, ulong, 0444);
module_param(faults, ulong, 0444);
MODULE_PARM_DESC(faults, "addresses the GPU could not reach: each a submission that a real one would fault on");

/* NV2080 engine to runlist, as the H200 showed: graphics 0, COPY2 1, COPY3 3, COPY4 10. */
static u32 runlist_of(u32 engine)
{
	switch (engine) {
	case 0x0b: return 1;
	case 0x0c: return 3;
	case 0x0d: return 10;
	}
	return engine <= 8 ? 0 : engine;
}

u32 nvs_channel_add(struct nvs_channel *channel, u32 engine)
{
	/* The driver keeps the first ids for itself. */
	u32 id = find_next_zero_bit(ids[channel->gpu], 4096, 0x0a);

	INIT_LIST_HEAD(&channel->link);
	if (id >= 2048)
		return NV_ERR_NO_MEMORY;
	__set_bit(id, ids[channel->gpu]);
	channel->token = runlist_of(engine) << 16 | id;
	list_add_tail(&channel->link, &channels);
	return NV_OK;
}

void nvs_channel_del(struct nvs_channel *channel)
{
	if (channel->token)
		__clear_bit(channel->token & 0xfff, ids[channel->gpu]);
	list_del(&channel->link);
	nvs_mem_put(channel->userd);
	nvs_mem_put(channel->notifier);
	kfree(channel);
}

/* Copies to or from a channel's address space, page by page. */
static bool gpu_copy(struct nvs_channel *ch, u64 va, void *buf, u64 len, bool write)
{
	while (len) {
		u64 have, n;
		void *at = nvs_va_at(ch->client, va, 1, &have);

		if (!at) {
			faults++;
			pr_warn_ratelimited("nvidia stand-in: channel %#x cannot reach %#llx\n", ch->token, va);
			return false;
		}
		n = min(len, have);
		if (write)
			memcpy(at, buf, n);
		else
			memcpy(buf, at, n);
		va += n;
		buf = (u8 *)buf + n;
		len -= n;
	}
	return true;
}

static void release(struct nvs_channel *ch, u64 va, u64 payload, bool wide, bool stamp)
{
	u64 words[2] = { payload, ktime_get_real_ns() };

	if (!nvs_va_at(ch->client, va, stamp ? 16 : wide ? 8 : 4, NULL)) {
		releases_unmapped++;
		return;
	}
	if (!wide)
		words[0] &= ~0u;
	/* The payload last: who polls it may then read the time. */
	if (stamp && !gpu_copy(ch, va + 8, &words[1], 8, true))
		return;
	smp_wmb();
	if (gpu_copy(ch, va, words, stamp || wide ? 8 : 4, true))
		releases_done++;
}

/* SEM_EXECUTE. False: an acquire whose time has not come. */
static bool host_semaphore(struct nvs_channel *ch, u32 how)
{
	struct nvs_walker *w = &ch->walk;
	u64 va = (u64)w->sem_addr[1] << 32 | (w->sem_addr[0] & ~3u), want = w->sem_payload[0], now = 0;
	bool wide = how & 1 << 24;

	if (wide)
		want |= (u64)w->sem_payload[1] << 32;
	if ((how & 7) == 1) {
		release(ch, va, want, wide, how & 1 << 25);
		return true;
	}
	/* Reductions are not done, and what no process mapped no one can release: it does not hang the channel. */
	if ((how & 7) == 6 || !nvs_va_at(ch->client, va, wide ? 8 : 4, NULL))
		return true;
	gpu_copy(ch, va, &now, wide ? 8 : 4, false);
	switch (how & 7) {
	case 0: return now == want;
	case 2: return now >= want;
	case 3: return wide ? (s64)(now - want) >= 0 : (s32)((u32)now - (u32)want) >= 0;
	case 4: return (now & want) != 0;
	case 5: return (now & want) != (wide ? ~0ull : 0xffffffffull);
	}
	return true;
}

static void compute(struct nvs_channel *ch, u32 method, u32 data)
{
	struct nvs_walker *w = &ch->walk;

	switch (method) {
	case 0x180: w->inline_len = data; break;
	case 0x188: w->inline_out[1] = data; break;
	case 0x18c: w->inline_out[0] = data; break;
	case 0x1b0: w->inline_done = 0; break;
	case 0x1b4: /* LOAD_INLINE_DATA */
		if (w->inline_done < w->inline_len) {
			u32 n = min(4u, w->inline_len - w->inline_done);
			u64 out = ((u64)w->inline_out[1] << 32 | w->inline_out[0]) + w->inline_done;

			/* Most inline data goes to GPU memory that no process maps: not reaching it is no fault. */
			if (nvs_va_at(ch->client, out, n, NULL))
				gpu_copy(ch, out, &data, n, true);
			w->inline_done += 4;
		}
		break;
	case 0x1b00: case 0x1b04: case 0x1b08: w->report[(method - 0x1b00) / 4] = data; break;
	case 0x1b0c: /* SET_REPORT_SEMAPHORE_D, operation RELEASE */
		if (!(data & 3))
			release(ch, (u64)w->report[0] << 32 | w->report[1], w->report[2], false, !(data & 1 << 28));
		break;
	}
}

static void copy_1d(struct nvs_channel *ch)
{
	struct nvs_walker *w = &ch->walk;
	u64 in = (u64)w->ce_io[0] << 32 | w->ce_io[1], out = (u64)w->ce_io[2] << 32 | w->ce_io[3], done = 0;
	u64 len = w->ce_io[6];

	while (done < len) {
		u64 have_in = 0, have_out = 0, n;
		void *from = nvs_va_at(ch->client, in + done, 1, &have_in), *to = nvs_va_at(ch->client, out + done, 1, &have_out);

		if (!from || !to)
			return; /* as above: GPU memory that no process maps */
		n = min3(len - done, have_in, have_out);
		memmove(to, from, n);
		done += n;
	}
}

static void copy_engine(struct nvs_channel *ch, u32 method, u32 data)
{
	struct nvs_walker *w = &ch->walk;

	if (method >= 0x200 && method < 0x300)
		w->ce[(method - 0x200) / 4] = data;
	else if (method >= 0x400 && method < 0x420)
		w->ce_io[(method - 0x400) / 4] = data;
	else if (method == 0x300) { /* LAUNCH_DMA */
		u32 *sem = &w->ce[(0x240 - 0x200) / 4];

		if ((data & 3) && !(data & (1 << 9 | 1 << 10 | 3 << 12)))
			copy_1d(ch);
		if (data & 3 << 3)
			release(ch, (u64)sem[0] << 32 | sem[1], sem[2], false, (data >> 3 & 3) == 2);
	}
}

/* One method. False: try again later. */
static bool method(struct nvs_channel *ch, u32 subchannel, u32 addr, u32 data)
{
	struct nvs_walker *w = &ch->walk;

	if (addr < 0x100) {
		switch (addr) {
		case 0x5c: case 0x60: w->sem_addr[(addr - 0x5c) / 4] = data; break;
		case 0x64: case 0x68: w->sem_payload[(addr - 0x64) / 4] = data; break;
		case 0x6c: return host_semaphore(ch, data);
		}
	} else if (subchannel == 1) {
		compute(ch, addr, data);
	} else if (subchannel == 4) {
		copy_engine(ch, addr, data);
	}
	return true;
}

/* Walks on in the current segment. False: stuck at an acquire. */
static bool walk(struct nvs_channel *ch)
{
	struct nvs_walker *w = &ch->walk;
	u32 *page = NULL, word;
	u64 have = 0;

	for (; w->at < w->end; w->at += 4) {
		if (have < 4) {
			page = nvs_va_at(ch->client, w->at, 4, &have);
			if (!page) {
				faults++;
				pr_warn_ratelimited("nvidia stand-in: channel %#x: no pushbuffer at %#llx\n", ch->token, w->at);
				w->at = w->end;
				return true;
			}
		}
		word = *page;
		if (w->left) {
			if (!method(ch, w->subchannel, w->method, word))
				return false;
			if (w->mode == 1)
				w->method += 4;
			else if (w->mode == 5)
				w->method += 4, w->mode = 3;
			w->left--;
		} else {
			w->subchannel = word >> 13 & 7;
			w->method = (word & 0xfff) << 2;
			switch (word >> 29) {
			case 1: case 3: case 5:
				w->mode = word >> 29;
				w->left = word >> 16 & 0x1fff;
				break;
			case 4:
				if (!method(ch, w->subchannel, w->method, word >> 16 & 0x1fff))
					return false;
				break;
			case 0: case 2: /* the old layout, where bits 17:16 are clear */
				if (word & 3 << 16)
					break;
				w->mode = word >> 29 ? 3 : 1;
				w->left = word >> 18 & 0x7ff;
				w->method = word & 0x1ffc;
				break;
			case 7:
				w->at = w->end;
				return true;
			}
		}
		page++;
		have -= 4;
	}
	return true;
}

/* Serves one channel. True: something was done. */
static bool serve(struct nvs_channel *ch)
{
	u8 *userd = nvs_mem_at(ch->userd, ch->userd_offset);
	u32 put = READ_ONCE(*(u32 *)(userd + USERD_GP_PUT));
	bool did = false;

	while (true) {
		u64 entry;
		u32 length;

		if (ch->walk.at < ch->walk.end && !walk(ch))
			return did;
		if (ch->get == put || put >= ch->entries)
			return did;
		did = true;
		smp_rmb();
		if (!gpu_copy(ch, ch->ring + 8ull * ch->get, &entry, 8, false))
			return did;
		length = entry >> 42 & 0x1fffff;
		if (length) {
			ch->walk.at = ch->extended | (entry & 0xfffffffffcull);
			ch->walk.end = ch->walk.at + 4ull * length;
			bytes_done += 4ull * length;
		} else if ((entry >> 32 & 0xff) == 4) {
			ch->extended = (entry >> 8 & 0x1ffff) << 40;
		}
		entries_done++;
		ch->get = (ch->get + 1) & (ch->entries - 1);
		WRITE_ONCE(*(u32 *)(userd + USERD_GP_GET), ch->get);
	}
}

static int gpu_thread(void *unused)
{
	unsigned int idle = 0;

	while (!kthread_should_stop()) {
		struct nvs_channel *ch;
		bool did = false;

		if (!READ_ONCE(paused)) {
			mutex_lock(&standin_lock);
			list_for_each_entry(ch, &channels, link)
				if (ch->scheduled)
					did |= serve(ch);
			mutex_unlock(&standin_lock);
		}
		idle = did ? 0 : min(idle + 1, 40u);
		/* Quick while there is work, and nearly nothing when there is none: the guest has one emulated core. */
		usleep_range(50 + idle * 50, 100 + idle * 100);
	}
	return 0;
}

int nvs_gpu_start(void)
{
	thread = kthread_run(gpu_thread, NULL, "nvidia-standin");
	return PTR_ERR_OR_ZERO(thread);
}

void nvs_gpu_stop(void)
{
	kthread_stop(thread);
}
