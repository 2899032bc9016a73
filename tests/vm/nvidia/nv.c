// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * A stand-in for nvidia.ko with no GPU behind it: the device files, the entry points by their names and
 * signatures, and the escapes a CUDA process makes, for tests of what traces them. This file: module, files
 * and ioctl entry. Written for nvcap; it shares names and layouts with NVIDIA's driver and no code.
 */
#include <linux/cdev.h>
#include <linux/module.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include "standin.h"

DEFINE_MUTEX(standin_lock);
unsigned int standin_gpus = 1;
module_param_named(gpus, standin_gpus, uint, 0444);
MODULE_PARM_DESC(gpus, "GPUs to show: 0 to 8");

/* The largest argument of an escape; larger ones travel in NV_ESC_IOCTL_XFER_CMD up to this too. */
#define MAX_ARG 16384

static long standin_ioctl(struct file *file, unsigned int nr)
{
	if (nr != STANDIN_REVOKE)
		return -ENOTTY;
	unmap_mapping_range(file->f_mapping, 0, 0, 1);
	return 0;
}

int nvidia_ioctl(struct inode *inode, struct file *file, unsigned int cmd, unsigned long i_arg);
noinline int nvidia_ioctl(struct inode *inode, struct file *file, unsigned int cmd, unsigned long i_arg)
{
	unsigned int nr = _IOC_NR(cmd), size = _IOC_SIZE(cmd);
	void __user *user = (void __user *)i_arg;
	u32 xfer[4];
	void *arg;
	long rc;

	if (_IOC_TYPE(cmd) == STANDIN_MAGIC)
		return standin_ioctl(file, nr);
	if (_IOC_TYPE(cmd) != NV_IOCTL_MAGIC)
		return -EINVAL;
	if (nr == ESC_XFER_CMD) {
		if (size != sizeof(xfer))
			return -EINVAL;
		if (copy_from_user(xfer, user, sizeof(xfer)))
			return -EFAULT;
		nr = xfer[0];
		size = xfer[1];
		user = (void __user *)nvs_rd64(xfer, 8);
	}
	if (size > MAX_ARG)
		return -EINVAL;
	arg = kzalloc(max(size, 8u), GFP_KERNEL);
	if (!arg)
		return -ENOMEM;
	rc = copy_from_user(arg, user, size) ? -EFAULT : nvs_escape(file, nr, arg, size);
	if (!rc && copy_to_user(user, arg, size))
		rc = -EFAULT;
	kfree(arg);
	return rc;
}

#if NV_BRANCH >= 545
long nvidia_unlocked_ioctl(struct file *file, unsigned int cmd, unsigned long i_arg);
noinline long nvidia_unlocked_ioctl(struct file *file, unsigned int cmd, unsigned long i_arg)
{
	long rc = nvidia_ioctl(file_inode(file), file, cmd, i_arg);

	barrier();
	return rc;
}
#define ENTRY_IOCTL nvidia_unlocked_ioctl
#define ENTRY_MMAP nvidia_mmap
#else
/* Up to 535 a front end owned the device files. */
long nvidia_frontend_unlocked_ioctl(struct file *file, unsigned int cmd, unsigned long i_arg);
noinline long nvidia_frontend_unlocked_ioctl(struct file *file, unsigned int cmd, unsigned long i_arg)
{
	long rc = nvidia_ioctl(file_inode(file), file, cmd, i_arg);

	barrier();
	return rc;
}

int nvidia_frontend_mmap(struct file *file, struct vm_area_struct *vma);
noinline int nvidia_frontend_mmap(struct file *file, struct vm_area_struct *vma)
{
	int rc = nvidia_mmap(file, vma);

	barrier();
	return rc;
}
#define ENTRY_IOCTL nvidia_frontend_unlocked_ioctl
#define ENTRY_MMAP nvidia_frontend_mmap
#endif

static int nvidia_open(struct inode *inode, struct file *file)
{
	struct nvs_file *nf;

	if (iminor(inode) != NV_MINOR_CTL && iminor(inode) >= standin_gpus)
		return -ENODEV;
	nf = kzalloc(sizeof(*nf), GFP_KERNEL);
	if (!nf)
		return -ENOMEM;
	nf->minor = iminor(inode);
	file->private_data = nf;
	return 0;
}

static int nvidia_close(struct inode *inode, struct file *file)
{
	struct nvs_file *nf = file->private_data;

	nvs_file_gone(nf);
	kfree(nf);
	return 0;
}

const struct file_operations nvidia_fops = {
	.owner = THIS_MODULE,
	.unlocked_ioctl = ENTRY_IOCTL,
	.compat_ioctl = ENTRY_IOCTL,
	.mmap = ENTRY_MMAP,
	.open = nvidia_open,
	.release = nvidia_close,
};

static int version_show(struct seq_file *m, void *v)
{
	seq_puts(m, "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  " NV_VERSION "  Release Build  (nvcap stand-in)\n");
	seq_puts(m, "GCC version:  " CONFIG_CC_VERSION_TEXT "\n");
	return 0;
}

static struct cdev nv_cdev;
static struct proc_dir_entry *nv_proc;

static int __init nvidia_init_module(void)
{
	int rc;

	if (standin_gpus > STANDIN_MAX_GPUS)
		return -EINVAL;
	rc = register_chrdev_region(MKDEV(NV_MAJOR, 0), 256, "nvidia");
	if (rc)
		return rc;
	cdev_init(&nv_cdev, &nvidia_fops);
	nv_cdev.owner = THIS_MODULE;
	rc = cdev_add(&nv_cdev, MKDEV(NV_MAJOR, 0), 256);
	if (rc)
		goto no_cdev;
	rc = nvs_gpu_start();
	if (rc)
		goto no_gpu;
	nv_proc = proc_mkdir("driver/nvidia", NULL);
	if (nv_proc)
		proc_create_single("version", 0444, nv_proc, version_show);
	return 0;
no_gpu:
	cdev_del(&nv_cdev);
no_cdev:
	unregister_chrdev_region(MKDEV(NV_MAJOR, 0), 256);
	return rc;
}

static void __exit nvidia_exit_module(void)
{
	proc_remove(nv_proc);
	nvs_gpu_stop();
	cdev_del(&nv_cdev);
	unregister_chrdev_region(MKDEV(NV_MAJOR, 0), 256);
}

module_init(nvidia_init_module);
module_exit(nvidia_exit_module);
MODULE_DESCRIPTION("nvcap's test stand-in for the border of NVIDIA's kernel module");
MODULE_VERSION(NV_VERSION);
MODULE_LICENSE("Dual MIT/GPL");
