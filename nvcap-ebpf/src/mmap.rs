//! Mappings of the driver's device files, and unmappings.
//!
//! One body is reached in three ways: by kprobes on nvidia.ko's functions, by fentry/fexit on them, and by raw tracepoints
//! on all system calls (in `ioctl`, which shares them).

use aya_ebpf::{
    macros::{kprobe, kretprobe, map},
    maps::HashMap,
    programs::{ProbeContext, RetProbeContext},
};
use nvcap_common::{Mmap, Munmap, Proc, kind};

use crate::{
    kernel,
    maps::{WAKEUP, count, reserve, submit, traced},
};

/// A mapping call under way, by thread: file, vm_area_struct.
#[map]
static MAPPING: HashMap<u64, [u64; 2]> = HashMap::with_max_entries(4096, 0);

/// Records a mapping. Called at the return of mmap, if raw tracepoints are in use.
#[inline(always)]
pub fn mapped(proc: Proc, file: u64, fd: i32, start: u64, size: u64, prot: u32) {
    let Some(dev) = kernel::nvidia_device(file) else {
        return;
    };
    let p = reserve(size_of::<Mmap>());
    if p.is_null() {
        count(|s| s.dropped += 1);
        return;
    }
    // SAFETY: p has room for an Mmap.
    unsafe {
        p.cast::<Mmap>().write(Mmap {
            header: kernel::header(kind::MMAP),
            file: kernel::opaque(file),
            start,
            size,
            prot,
            dev,
            fd,
            space: proc.space,
        });
    }
    submit(p, WAKEUP);
}

#[inline(always)]
pub fn unmapped(start: u64, size: u64) {
    let p = reserve(size_of::<Munmap>());
    if p.is_null() {
        count(|s| s.dropped += 1);
        return;
    }
    // SAFETY: p has room for a Munmap.
    unsafe {
        p.cast::<Munmap>().write(Munmap {
            header: kernel::header(kind::MUNMAP),
            start,
            size,
        })
    };
    submit(p, crate::maps::NO_WAKEUP);
}

fn thread() -> u64 {
    let (pid, tid) = kernel::ids();
    u64::from(pid) << 32 | u64::from(tid)
}

/// Records a mapping of a traced process from the kernel's own description of it.
#[inline(always)]
pub fn mapped_by(file: u64, vma: u64) {
    let (pid, _) = kernel::ids();
    let Some(proc) = traced(pid) else { return };
    let o = kernel::offsets();
    let start = kernel::read64(vma, o.vma_start);
    let end = kernel::read64(vma, o.vma_end);
    // VM_READ and VM_WRITE are 1 and 2, as PROT_READ and PROT_WRITE are.
    let prot = kernel::read64(vma, o.vma_flags) as u32 & 3;
    mapped(proc, file, -1, start, end - start, prot);
}

/// Records that the driver released a mapping of a traced process.
#[inline(always)]
pub fn released(vma: u64) {
    let (pid, _) = kernel::ids();
    if traced(pid).is_some() {
        let o = kernel::offsets();
        let start = kernel::read64(vma, o.vma_start);
        unmapped(start, kernel::read64(vma, o.vma_end) - start);
    }
}

/// nvidia_mmap(struct file *, struct vm_area_struct *)
#[kprobe]
pub fn kprobe_mmap(ctx: ProbeContext) -> u32 {
    let (Some(file), Some(vma)) = (ctx.arg::<u64>(0), ctx.arg::<u64>(1)) else {
        return 0;
    };
    let (pid, _) = kernel::ids();
    if traced(pid).is_some() {
        let _ = MAPPING.insert(thread(), [file, vma], 0);
    }
    0
}

#[kretprobe]
pub fn kretprobe_mmap(ctx: RetProbeContext) -> u32 {
    let key = thread();
    let Some(m) = MAPPING.get_ptr(key) else {
        return 0;
    };
    // SAFETY: plain integers.
    let [file, vma] = unsafe { *m };
    let _ = MAPPING.remove(key);
    if ctx.ret::<i32>() == 0 {
        mapped_by(file, vma);
    }
    0
}

/// nvidia_vma_release(struct vm_area_struct *)
#[kprobe]
pub fn kprobe_unmap(ctx: ProbeContext) -> u32 {
    if let Some(vma) = ctx.arg::<u64>(0) {
        released(vma);
    }
    0
}
