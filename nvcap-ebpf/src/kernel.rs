//! Reading kernel structures. Offsets come from BTF and are set by the loader, because Rust has no CO-RE relocations.

use aya_ebpf::{
    Global,
    cty::c_void,
    helpers::{
        bpf_get_current_pid_tgid, bpf_ktime_get_ns,
        generated::{
            bpf_get_current_comm, bpf_get_current_task, bpf_probe_read_kernel, bpf_probe_read_user,
        },
    },
};
use nvcap_common::{Header, Offsets};

use crate::maps::CONFIG;

#[unsafe(no_mangle)]
static OFFSETS: Global<Offsets> = Global::new(Offsets {
    task_pid: 0,
    task_tgid: 0,
    task_files: 0,
    task_signal: 0,
    task_exit_code: 0,
    signal_live: 0,
    files_fdt: 0,
    fdt_fd: 0,
    fdt_max: 0,
    file_inode: 0,
    inode_rdev: 0,
    vma_start: 0,
    vma_end: 0,
    vma_flags: 0,
    vma_file: 0,
    task_events: 0,
    context_events: 0,
    event_entry: 0,
    event_type: 0,
    event_parent: 0,
    event_id: 0,
    event_prog: 0,
    regs: [0; 5],
    syscalls: [0; 3],
});

/// Kernel structure offsets.
#[inline(always)]
pub fn offsets() -> Offsets {
    OFFSETS.load()
}

/// Reads 8 bytes of kernel memory; 0 if they cannot be read.
#[inline(always)]
pub fn read64(base: u64, offset: u32) -> u64 {
    let mut v = 0u64;
    // SAFETY: the helper checks the address; the destination is 8 bytes of ours.
    unsafe {
        bpf_probe_read_kernel(
            (&raw mut v).cast(),
            8,
            (base + u64::from(offset)) as *const c_void,
        )
    };
    v
}

/// Reads 4 bytes of kernel memory; 0 if they cannot be read.
#[inline(always)]
pub fn read32(base: u64, offset: u32) -> u32 {
    let mut v = 0u32;
    // SAFETY: as above, 4 bytes.
    unsafe {
        bpf_probe_read_kernel(
            (&raw mut v).cast(),
            4,
            (base + u64::from(offset)) as *const c_void,
        )
    };
    v
}

/// Reads 8 bytes of the process's memory; 0 if they cannot be read.
#[inline(always)]
pub fn user64(at: u64) -> u64 {
    let mut v = 0u64;
    // SAFETY: as above.
    unsafe { bpf_probe_read_user((&raw mut v).cast(), 8, at as *const c_void) };
    v
}

/// Reads 4 bytes of the process's memory; 0 if they cannot be read.
#[inline(always)]
pub fn user32(at: u64) -> u32 {
    let mut v = 0u32;
    // SAFETY: as above.
    unsafe { bpf_probe_read_user((&raw mut v).cast(), 4, at as *const c_void) };
    v
}

#[inline(always)]
pub fn ids() -> (u32, u32) {
    let both = bpf_get_current_pid_tgid();
    ((both >> 32) as u32, both as u32)
}

#[inline(always)]
pub fn now() -> u64 {
    // SAFETY: a helper without arguments.
    unsafe { bpf_ktime_get_ns() }
}

#[inline(always)]
pub fn comm() -> [u8; 16] {
    let mut name = [0u8; 16];
    comm_into(&mut name);
    name
}

/// The same, where it is kept.
#[inline(always)]
pub fn comm_into(name: &mut [u8; 16]) {
    // SAFETY: the buffer is as long as said.
    unsafe { bpf_get_current_comm(name.as_mut_ptr().cast(), 16) };
}

/// Makes a header with the present time and this thread.
#[inline(always)]
pub fn header(kind: u16) -> Header {
    let (pid, tid) = ids();
    Header {
        kind,
        flags: 0,
        len: 0,
        time_ns: now(),
        pid,
        tid,
    }
}

/// The open file behind a descriptor of the current process; 0 when there is none.
#[inline(always)]
pub fn file_of(fd: i32) -> u64 {
    let o = offsets();
    // SAFETY: a helper without arguments.
    let task = unsafe { bpf_get_current_task() };
    let files = read64(task, o.task_files);
    let table = read64(files, o.files_fdt);
    if fd < 0 || fd as u32 >= read32(table, o.fdt_max) {
        return 0;
    }
    read64(read64(table, o.fdt_fd) + 8 * fd as u64, 0)
}

/// The device number of a file; 0 when it is not a device file.
#[inline(always)]
pub fn device_of(file: u64) -> u32 {
    let o = offsets();
    if file == 0 {
        return 0;
    }
    read32(read64(file, o.file_inode), o.inode_rdev)
}

/// The device number of a file, if it is one of the NVIDIA driver's.
#[inline(always)]
pub fn nvidia_device(file: u64) -> Option<u32> {
    let dev = device_of(file);
    let config = CONFIG.get(0)?;
    let major = dev >> 20;
    (major != 0 && (major == config.nvidia_major || major == config.uvm_major)).then_some(dev)
}

/// A number for an open file that does not reveal its kernel address.
#[inline(always)]
pub fn opaque(file: u64) -> u64 {
    if file == 0 {
        return 0;
    }
    let secret = CONFIG.get(0).map_or(0, |c| c.secret);
    let mut h = (file ^ secret).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    h ^= h >> 29;
    h.wrapping_mul(secret | 1) | 1
}
