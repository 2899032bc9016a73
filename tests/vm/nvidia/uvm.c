// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * A stand-in for nvidia-uvm.ko: the ioctls by which CUDA gives GPU addresses to its memory, and a mapping of
 * the file at its own address (semaphore pools, managed memory). Its requests are plain numbers.
 */
#include <linux/cdev.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include "standin.h"

struct uvm_range {
	struct list_head link;
	u64 base, len;
	struct nvs_mem *mem;
};

struct uvm_file {
	struct mutex lock;
	struct list_head ranges; /* mapped through this file */
	u32 hclient;             /* of UVM_REGISTER_GPU_VASPACE */
};

static int status_at(void __user *user, unsigned int at, u32 status)
{
	return put_user(status, (u32 __user *)(user + at)) ? -EFAULT : 0;
}

static int map_external(struct uvm_file *uf, void __user *user)
{
	u8 head[24], tail[24];
	u32 status;

	if (copy_from_user(head, user, sizeof(head)) || copy_from_user(tail, user + UVM_MAP_EXTERNAL_TAIL, sizeof(tail)))
		return -EFAULT;
	nvs_uvm_map(nvs_rd32(tail, 12), nvs_rd32(tail, 16), NULL, nvs_rd64(head, 0), nvs_rd64(head, 8), nvs_rd64(head, 16), &status);
	return status_at(user, UVM_MAP_EXTERNAL_SIZE - 4, status);
}

/* The range was mapped by mmap; now the GPU sees it too. */
static int semaphore_pool(struct uvm_file *uf, void __user *user)
{
	u32 status = NV_ERR_OBJECT_NOT_FOUND;
	struct uvm_range *range;
	u8 head[16];

	if (copy_from_user(head, user, sizeof(head)))
		return -EFAULT;
	mutex_lock(&uf->lock);
	list_for_each_entry(range, &uf->ranges, link)
		if (range->base == nvs_rd64(head, 0) && nvs_rd64(head, 8) <= range->len)
			nvs_uvm_map(uf->hclient, 0, range->mem, range->base, nvs_rd64(head, 8), 0, &status);
	mutex_unlock(&uf->lock);
	return status_at(user, UVM_SEMAPHORE_POOL_STATUS, status);
}

static long uvm_ioctl(struct uvm_file *uf, unsigned int cmd, void __user *user)
{
	u8 p[56];

	switch (cmd) {
	case 0x30000001: return status_at(user, 8, NV_OK); /* INITIALIZE */
	case 0x4b: return status_at(user, 4, NV_OK);       /* MM_INITIALIZE */
	case 0x27: return status_at(user, 4, NV_OK);       /* PAGEABLE_MEM_ACCESS */
	case 0x25: return status_at(user, 36, NV_OK);      /* REGISTER_GPU */
	case 0x26: return status_at(user, 16, NV_OK);      /* UNREGISTER_GPU */
	case 0x17: return status_at(user, 8, NV_OK);       /* CREATE_RANGE_GROUP */
	case 0x19:                                         /* REGISTER_GPU_VASPACE */
		if (copy_from_user(p, user, 32))
			return -EFAULT;
		uf->hclient = nvs_rd32(p, 20);
		return status_at(user, 28, NV_OK);
	case 0x1b: return status_at(user, 48, NV_OK); /* REGISTER_CHANNEL */
	case 0x1c: return status_at(user, 24, NV_OK); /* UNREGISTER_CHANNEL */
	case 0x49: return status_at(user, 16, NV_OK); /* CREATE_EXTERNAL_RANGE */
	case 0x21: return map_external(uf, user);
	case 0x42: /* UNMAP_EXTERNAL */
		if (copy_from_user(p, user, 40))
			return -EFAULT;
		nvs_uvm_unmap(uf->hclient, nvs_rd64(p, 0), nvs_rd64(p, 8));
		return status_at(user, 32, NV_OK);
	case 0x22: /* FREE */
		if (copy_from_user(p, user, 24))
			return -EFAULT;
		nvs_uvm_unmap(uf->hclient, nvs_rd64(p, 0), 0);
		return status_at(user, 16, NV_OK);
	case 0x44: return semaphore_pool(uf, user);
	case 0x41: return status_at(user, 32, NV_OK); /* MAP_DYNAMIC_PARALLELISM_REGION */
	case 0x48: return status_at(user, 16, NV_OK); /* VALIDATE_VA_RANGE */
	}
	return -EINVAL;
}

long uvm_unlocked_ioctl_entry(struct file *file, unsigned int cmd, unsigned long arg);
noinline long uvm_unlocked_ioctl_entry(struct file *file, unsigned int cmd, unsigned long arg)
{
	long rc = uvm_ioctl(file->private_data, cmd, (void __user *)arg);

	barrier();
	return rc;
}

int uvm_mmap_entry(struct file *file, struct vm_area_struct *vma);
noinline int uvm_mmap_entry(struct file *file, struct vm_area_struct *vma)
{
	unsigned long size = vma->vm_end - vma->vm_start, at;
	struct uvm_file *uf = file->private_data;
	struct uvm_range *range;
	int ret = 0;

	/* UVM memory lies where its offset says: the processors share one address. */
	if ((u64)vma->vm_pgoff << PAGE_SHIFT != vma->vm_start || !(vma->vm_flags & VM_SHARED))
		return -EINVAL;
	range = kzalloc(sizeof(*range), GFP_KERNEL);
	if (!range)
		return -ENOMEM;
	range->base = vma->vm_start;
	range->len = size;
	range->mem = nvs_mem_new(size, false, 0);
	if (!range->mem) {
		kfree(range);
		return -ENOMEM;
	}
	mutex_lock(&uf->lock);
	list_add(&range->link, &uf->ranges);
	mutex_unlock(&uf->lock);
	/* The pages are refcounted by the mapping; the range lives as long as the file. */
	for (at = 0; at < size && !ret; at += PAGE_SIZE)
		ret = vm_insert_page(vma, vma->vm_start + at, nvs_mem_page(range->mem, at));
	return ret;
}

static int uvm_open(struct inode *inode, struct file *file)
{
	struct uvm_file *uf = kzalloc(sizeof(*uf), GFP_KERNEL);

	if (!uf)
		return -ENOMEM;
	mutex_init(&uf->lock);
	INIT_LIST_HEAD(&uf->ranges);
	file->private_data = uf;
	return 0;
}

static int uvm_release(struct inode *inode, struct file *file)
{
	struct uvm_file *uf = file->private_data;
	struct uvm_range *range, *next;

	list_for_each_entry_safe(range, next, &uf->ranges, link) {
		nvs_mem_put(range->mem);
		kfree(range);
	}
	kfree(uf);
	return 0;
}

static const struct file_operations uvm_fops = {
	.owner = THIS_MODULE,
	.unlocked_ioctl = uvm_unlocked_ioctl_entry,
	.mmap = uvm_mmap_entry,
	.open = uvm_open,
	.release = uvm_release,
};

static struct cdev uvm_cdev;
static dev_t uvm_dev;

static int __init uvm_init(void)
{
	int rc = alloc_chrdev_region(&uvm_dev, 0, 2, "nvidia-uvm");

	if (rc)
		return rc;
	cdev_init(&uvm_cdev, &uvm_fops);
	uvm_cdev.owner = THIS_MODULE;
	rc = cdev_add(&uvm_cdev, uvm_dev, 2);
	if (rc)
		unregister_chrdev_region(uvm_dev, 2);
	return rc;
}

static void __exit uvm_exit(void)
{
	cdev_del(&uvm_cdev);
	unregister_chrdev_region(uvm_dev, 2);
}

module_init(uvm_init);
module_exit(uvm_exit);
MODULE_DESCRIPTION("nvcap's test stand-in for the border of NVIDIA's unified memory module");
MODULE_VERSION(NV_VERSION);
MODULE_LICENSE("Dual MIT/GPL");
