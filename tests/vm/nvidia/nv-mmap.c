// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Mappings into a process, in the shapes of the NVIDIA driver: memory of a GPU is VM_IO | VM_PFNMAP through
 * /dev/nvidiaN, system memory is inserted page by page through /dev/nvidiactl. Both can be read through
 * /proc/PID/mem (.access), and both need a context that NV_ESC_RM_MAP_MEMORY left on the file.
 */
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/version.h>
#include "standin.h"

unsigned long standin_doorbell_peeks;
module_param_named(doorbell_peeks, standin_doorbell_peeks, ulong, 0444);
MODULE_PARM_DESC(doorbell_peeks, "reads of doorbell pages through /proc/PID/mem: a real one takes 4 ms");

/* What a mapping shows; shared by the pieces that a mapping is split or copied into. */
struct shown {
	struct kref ref;
	struct nvs_mem *mem;
	u64 offset;
};

static void shown_free(struct kref *ref)
{
	struct shown *shown = container_of(ref, struct shown, ref);

	nvs_mem_put(shown->mem);
	kfree(shown);
}

static void nvidia_vma_open(struct vm_area_struct *vma)
{
	struct shown *shown = vma->vm_private_data;

	kref_get(&shown->ref);
}

static void nvidia_vma_release(struct vm_area_struct *vma)
{
	struct shown *shown = vma->vm_private_data;

	kref_put(&shown->ref, shown_free);
}

/* vm_pgoff was 0 at mmap, and a split keeps it true for each piece. */
static u64 offset_of(struct vm_area_struct *vma, unsigned long addr)
{
	struct shown *shown = vma->vm_private_data;

	return shown->offset + ((u64)vma->vm_pgoff << PAGE_SHIFT) + (addr - vma->vm_start);
}

static vm_fault_t nvidia_fault(struct vm_fault *vmf)
{
	struct vm_area_struct *vma = vmf->vma;
	struct nvs_mem *mem = ((struct shown *)vma->vm_private_data)->mem;
	vm_fault_t ret = VM_FAULT_SIGBUS;
	unsigned long at;

	if (!mem->video)
		return ret;
	/* The driver puts a whole mapping back at the first touch after it was revoked. */
	for (at = vma->vm_start; at < vma->vm_end; at += PAGE_SIZE) {
		ret = vmf_insert_pfn(vma, at, page_to_pfn(nvs_mem_page(mem, offset_of(vma, at))));
		if (ret != VM_FAULT_NOPAGE)
			break;
	}
	return ret;
}

static int nvidia_vma_access(struct vm_area_struct *vma, unsigned long addr, void *buf, int len, int write)
{
	struct nvs_mem *mem = ((struct shown *)vma->vm_private_data)->mem;
	u64 offset = offset_of(vma, addr);
	void *at;

	len = min_t(int, len, PAGE_SIZE - offset_in_page(addr));
	if (mem->doorbell)
		standin_doorbell_peeks++;
	at = nvs_mem_at(mem, offset);
	if (write)
		memcpy(at, buf, len);
	else if (mem->doorbell)
		memset(buf, 0, len); /* the register is write-only */
	else
		memcpy(buf, at, len);
	return len;
}

static const struct vm_operations_struct nv_vm_ops = {
	.open = nvidia_vma_open,
	.close = nvidia_vma_release,
	.fault = nvidia_fault,
	.access = nvidia_vma_access,
};

static void flag(struct vm_area_struct *vma, unsigned long flags)
{
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 3, 0)
	vma->vm_flags |= flags;
#else
	vm_flags_set(vma, flags);
#endif
}

/* Not static and not inlined: a probe finds it in kallsyms, and vma is its fourth argument as in the driver. */
int nvidia_mmap_helper(void *nv, struct nvs_file *nvlfp, void *sp, struct vm_area_struct *vma, void *vm_priv);
noinline int nvidia_mmap_helper(void *nv, struct nvs_file *nvlfp, void *sp, struct vm_area_struct *vma, void *vm_priv)
{
	unsigned long size = vma->vm_end - vma->vm_start, at;
	struct shown *shown;
	struct nvs_mem *mem;
	u64 offset;
	int ret = 0;

	if (vma->vm_pgoff)
		return -EINVAL;
	shown = kzalloc(sizeof(*shown), GFP_KERNEL);
	if (!shown)
		return -ENOMEM;
	mutex_lock(&standin_lock);
	mem = nvlfp->pending.mem;
	offset = nvlfp->pending.offset;
	if (!mem)
		ret = -EINVAL;
	else if (mem->video ? size != nvlfp->pending.size : size > nvlfp->pending.size)
		ret = -ENXIO;
	else
		nvlfp->pending.mem = NULL; /* its reference goes to the mapping */
	mutex_unlock(&standin_lock);
	if (ret) {
		kfree(shown);
		return ret;
	}
	kref_init(&shown->ref);
	shown->mem = mem;
	shown->offset = offset;

	if (mem->video) {
		for (at = 0; at < size && !ret; at += PAGE_SIZE)
			ret = remap_pfn_range(vma, vma->vm_start + at, page_to_pfn(nvs_mem_page(mem, offset + at)),
					      PAGE_SIZE, vma->vm_page_prot);
		flag(vma, VM_IO | VM_PFNMAP | VM_DONTEXPAND | VM_DONTDUMP);
	} else {
		for (at = 0; at < size && !ret; at += PAGE_SIZE)
			ret = vm_insert_page(vma, vma->vm_start + at, nvs_mem_page(mem, offset + at));
		flag(vma, VM_DONTEXPAND | VM_DONTDUMP);
	}
	if (ret) {
		kref_put(&shown->ref, shown_free);
		return -EAGAIN;
	}
	vma->vm_private_data = shown;
	vma->vm_ops = &nv_vm_ops;
	return 0;
}

noinline int nvidia_mmap(struct file *file, struct vm_area_struct *vma)
{
	int status = nvidia_mmap_helper(NULL, file->private_data, NULL, vma, NULL);

	barrier(); /* no tail call: a return probe sees this frame */
	return status;
}
