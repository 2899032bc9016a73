/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * The border that a tracer of the NVIDIA driver sees: escape numbers, structure sizes and offsets, status
 * codes, class and control numbers. Facts of the public headers, per driver branch; nothing here is code
 * of that driver. A structure's size is part of its ioctl number, so a client of another branch is refused.
 */
#ifndef STANDIN_LAYOUT_H
#define STANDIN_LAYOUT_H

#if NV_BRANCH == 535
#define NV_VERSION "535.288.01"
#elif NV_BRANCH == 550
#define NV_VERSION "550.163.01"
#elif NV_BRANCH == 580
#define NV_VERSION "580.159.04"
#else
#error "NV_BRANCH must be 535, 550 or 580"
#endif

#define NV_MAJOR 195
#define NV_MINOR_CTL 255
#define NV_IOCTL_MAGIC 'F'

/* Escapes. */
#define ESC_ALLOC_MEMORY 0x27
#define ESC_FREE 0x29
#define ESC_CONTROL 0x2a
#define ESC_ALLOC 0x2b
#define ESC_DUP_OBJECT 0x34
#define ESC_SHARE 0x35
#define ESC_VID_HEAP_CONTROL 0x4a
#define ESC_MAP_MEMORY 0x4e
#define ESC_UNMAP_MEMORY 0x4f
#define ESC_MAP_MEMORY_DMA 0x57
#define ESC_UNMAP_MEMORY_DMA 0x58
#define ESC_UPDATE_DEVICE_MAPPING_INFO 0x5e
#define ESC_CARD_INFO 0xc8
#define ESC_REGISTER_FD 0xc9
#define ESC_ALLOC_OS_EVENT 0xce
#define ESC_FREE_OS_EVENT 0xcf
#define ESC_CHECK_VERSION_STR 0xd2
#define ESC_XFER_CMD 0xd3
#define ESC_ATTACH_GPUS_TO_FD 0xd4
#define ESC_SYS_PARAMS 0xd6
#define ESC_NUMA_INFO 0xd7
#define ESC_WAIT_OPEN_COMPLETE 0xda

/* Status. */
#define NV_OK 0x00
#define NV_ERR_INSERT_DUPLICATE_NAME 0x19
#define NV_ERR_INVALID_ARGUMENT 0x1f
#define NV_ERR_INVALID_CLASS 0x22
#define NV_ERR_INVALID_CLIENT 0x23
#define NV_ERR_INVALID_DEVICE 0x26
#define NV_ERR_INVALID_LIMIT 0x2e
#define NV_ERR_INVALID_OBJECT_HANDLE 0x33
#define NV_ERR_INVALID_OBJECT_PARENT 0x36
#define NV_ERR_INVALID_OFFSET 0x37
#define NV_ERR_INVALID_PARAM_STRUCT 0x3a
#define NV_ERR_NO_MEMORY 0x51
#define NV_ERR_NOT_SUPPORTED 0x56
#define NV_ERR_OBJECT_NOT_FOUND 0x57
#define NV_ERR_STATE_IN_USE 0x63

/* Classes. */
#define CLASS_ROOT 0x0000
#define CLASS_ROOT_NON_PRIV 0x0001
#define CLASS_ROOT_CLIENT 0x0041
#define CLASS_MEMORY_SYSTEM 0x003e
#define CLASS_MEMORY_LOCAL_USER 0x0040
#define CLASS_MEMORY_VIRTUAL 0x0070
#define CLASS_DEVICE 0x0080
#define CLASS_SUBDEVICE 0x2080
#define CLASS_VASPACE 0x90f1
#define CLASS_CTXSHARE 0x9067
#define CLASS_TSG 0xa06c
#define CLASS_HOPPER_USERMODE 0xc661
#define CLASS_HOPPER_CHANNEL 0xc86f

/* Structures whose layout changed between the branches. */
#define NVOS46_SIZE (NV_BRANCH >= 580 ? 64 : 56)
#define NVOS46_DMA_OFFSET (NV_BRANCH >= 580 ? 48 : 40)
#define NVOS46_STATUS (NV_BRANCH >= 580 ? 56 : 48)
#define NVOS47_SIZE (NV_BRANCH >= 550 ? 48 : 40)
#define NVOS47_STATUS (NV_BRANCH >= 550 ? 40 : 32)
#define CHANNEL_PARAMS_SIZE (NV_BRANCH >= 570 ? 368 : 360)
#define MEMORY_PARAMS_SIZE (NV_BRANCH >= 545 ? 128 : 120)
#define VASPACE_PARAMS_SIZE (NV_BRANCH >= 580 ? 56 : 48)
#define UVM_MAP_EXTERNAL_SIZE (NV_BRANCH >= 550 ? 9264 : 1200)
#define UVM_MAP_EXTERNAL_TAIL (NV_BRANCH >= 550 ? 9240 : 1176)
#define UVM_SEMAPHORE_POOL_SIZE (NV_BRANCH >= 550 ? 9248 : 1184)
#define UVM_SEMAPHORE_POOL_STATUS (NV_BRANCH >= 550 ? 9240 : 1176)

/* Where the parts of a GPU lie in physical space, as the H200 showed them. */
#define BAR0_BASE 0x104002000000ull
#define BAR0_SIZE 0x1000000ull
#define BAR1_BASE 0x100000000000ull
#define BAR1_SIZE 0x4000000000ull
#define BAR0_USERMODE 0xbb0000ull
#define GPU_STRIDE 0x200000000000ull
#define USERMODE_SIZE 0x10000u

/* USERD. */
#define USERD_GP_GET 0x88
#define USERD_GP_PUT 0x8c
#define USERD_SIZE 0x200

/* The stand-in's own ioctls, on any of its files: nothing here is NVIDIA's. */
#define STANDIN_MAGIC 'S'
#define STANDIN_REVOKE 1 /* _IO: drop every PTE of this device file's mappings, as the driver does when it suspends a GPU */

#endif
