//! fentry and fexit on the driver's functions. They give the same records as the kprobes of `mmap` and `ioctl`.
//!
//! The context holds the function's arguments in order and, at its exit, the result behind them. They are read as memory
//! and not by `ctx.arg()`, because the verifier would then track them as kernel pointers, and refuse to let one be hashed
//! into an opaque number.

use aya_ebpf::{
    EbpfContext,
    helpers::generated::bpf_probe_read_kernel,
    macros::{fentry, fexit},
    programs::{FEntryContext, FExitContext},
};

use crate::{ioctl, mmap};

/// The first `N` words of the context; zeroes where they cannot be read.
#[inline(always)]
fn words<const N: usize>(ctx: &impl EbpfContext) -> [u64; N] {
    let mut words = [0u64; N];
    // SAFETY: the helper checks the address; the destination is N words of ours.
    unsafe { bpf_probe_read_kernel((&raw mut words).cast(), 8 * N as u32, ctx.as_ptr()) };
    words
}

/// int nvidia_mmap(struct file *, struct vm_area_struct *)
#[fexit(function = "nvidia_mmap")]
pub fn fexit_mmap(ctx: FExitContext) -> i32 {
    let [file, vma, result] = words(&ctx);
    if result as i32 == 0 {
        mmap::mapped_by(file, vma);
    }
    0
}

/// void nvidia_vma_release(struct vm_area_struct *)
#[fentry(function = "nvidia_vma_release")]
pub fn fentry_unmap(ctx: FEntryContext) -> i32 {
    let [vma] = words(&ctx);
    mmap::released(vma);
    0
}

/// int nvidia_ioctl(struct inode *, struct file *, unsigned int cmd, unsigned long arg)
#[fentry(function = "nvidia_ioctl")]
pub fn fentry_ioctl(ctx: FEntryContext) -> i32 {
    let [_inode, file, request, arg] = words(&ctx);
    ioctl::begin(file, request as u32, arg);
    0
}

#[fexit(function = "nvidia_ioctl")]
pub fn fexit_ioctl(ctx: FExitContext) -> i32 {
    let [_inode, _file, _request, _arg, result] = words(&ctx);
    ioctl::end(i64::from(result as i32));
    0
}

/// long uvm_unlocked_ioctl_entry(struct file *, unsigned int cmd, unsigned long arg)
#[fentry(function = "uvm_unlocked_ioctl_entry")]
pub fn fentry_uvm(ctx: FEntryContext) -> i32 {
    let [file, request, arg] = words(&ctx);
    ioctl::begin(file, request as u32, arg);
    0
}

#[fexit(function = "uvm_unlocked_ioctl_entry")]
pub fn fexit_uvm(ctx: FExitContext) -> i32 {
    let [_file, _request, _arg, result] = words(&ctx);
    ioctl::end(i64::from(result as i32));
    0
}
