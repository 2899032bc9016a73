//! Every ioctl on the driver's device files, with the parameters that its argument points to.
//!
//! The layouts used here (NVOS21, NVOS54, NVOS64, nv_ioctl_nvos33_parameters_with_fd, nv_ioctl_xfer_t) have kept the
//! offsets of pointer and file descriptor in all drivers from 515 to 595. Changes were made only behind these
//! fields.

use aya_ebpf::{
    cty::c_void,
    helpers::generated::bpf_probe_read_user,
    macros::{kprobe, kretprobe, map, raw_tracepoint},
    maps::{Array, HashMap},
    programs::{ProbeContext, RawTracePointContext, RetProbeContext},
};
use nvcap_common::{IoctlEnter, IoctlExit, MAX_NESTED, Nested, Proc, flag, kind, proc_flag};

use crate::{
    kernel::{self, user32, user64},
    maps::{CONFIG, NO_WAKEUP, WAKEUP, count, discard, reserve, submit, traced},
    mmap,
};

/// A call in progress, by thread.
#[repr(C)]
#[derive(Clone, Copy)]
struct Pending {
    request: u32,
    /// System call: 1 ioctl, 2 mmap, 3 munmap.
    call: u32,
    arg: u64,
    nested: u64,
    nested_len: u64,
    file: u64,
    size: u64,
    prot: u32,
    fd: i32,
}

#[map]
static PENDING: HashMap<u64, Pending> = HashMap::with_max_entries(8192, 0);
/// Argument sizes of UVM requests, whose request numbers do not contain them.
#[map]
static UVM_SIZES: Array<u32> = Array::with_max_entries(256, 0);

const CALL_IOCTL: u32 = 1;
const CALL_MMAP: u32 = 2;
const CALL_MUNMAP: u32 = 3;

const NV_ESC_RM_ALLOC_MEMORY: u32 = 0x27;
const NV_ESC_RM_CONTROL: u32 = 0x2a;
const NV_ESC_RM_ALLOC: u32 = 0x2b;
const NV_ESC_RM_MAP_MEMORY: u32 = 0x4e;
const NV_ESC_IOCTL_XFER_CMD: u32 = 0xd3;
/// Number of bytes that are copied of parameters whose size the argument does not give.
const GUESS: u64 = 512;

#[inline(always)]
fn thread() -> u64 {
    let (pid, tid) = kernel::ids();
    u64::from(pid) << 32 | u64::from(tid)
}

/// Size of the argument in bytes.
#[inline(always)]
fn size_of_argument(request: u32, uvm: bool) -> u32 {
    if uvm {
        UVM_SIZES
            .get(request & 0xff)
            .copied()
            .filter(|s| *s != 0)
            .unwrap_or(256)
    } else {
        (request >> 16) & 0x3fff
    }
}

/// Emits a record followed by `len` bytes of the process's memory, in the smallest of three sizes.
macro_rules! with_bytes {
    ($record:expr, $t:ty, $len:expr, $from:expr, $wake:expr) => {{
        let len: u64 = $len;
        if len <= 256 {
            sized!(256, $record, $t, len, $from, $wake)
        } else if len <= 2048 {
            sized!(2048, $record, $t, len, $from, $wake)
        } else {
            sized!(
                MAX_NESTED,
                $record,
                $t,
                if len > MAX_NESTED as u64 {
                    MAX_NESTED as u64
                } else {
                    len
                },
                $from,
                $wake
            )
        }
    }};
}
macro_rules! sized {
    ($size:expr, $record:expr, $t:ty, $len:expr, $from:expr, $wake:expr) => {{
        let p = reserve(size_of::<$t>() + $size);
        if p.is_null() {
            count(|s| s.dropped += 1);
        } else {
            let mut record: $t = $record;
            // Linux 6.1's verifier does not see that this is no more than $size; the compiler does, and would drop the
            // comparison.
            let len: u32 = core::hint::black_box($len as u32);
            if len > $size as u32 {
                discard(p);
            } else {
                // SAFETY: $size bytes follow the fixed part, and len is no more.
                let rc = unsafe {
                    bpf_probe_read_user(p.add(size_of::<$t>()).cast(), len, $from as *const c_void)
                };
                if rc == 0 {
                    record.header.len = len;
                } else {
                    record.header.flags |= flag::UNREADABLE;
                }
                // SAFETY: p has room for the fixed part.
                unsafe { p.cast::<$t>().write(record) };
                submit(p, $wake);
            }
        }
    }};
}

#[inline(always)]
fn nested(address: u64, full_len: u64, flags: u16, wake: u64) {
    with_bytes!(
        {
            let mut header = kernel::header(kind::NESTED);
            header.flags = flags;
            Nested {
                header,
                address,
                full_len,
            }
        },
        Nested,
        full_len,
        address,
        wake
    );
}

/// Records the beginning of an ioctl on one of the driver's files.
#[inline(always)]
fn enter(file: u64, fd: i32, request: u32, arg: u64) {
    let Some(dev) = kernel::nvidia_device(file) else {
        return;
    };
    let uvm = CONFIG.get(0).is_some_and(|c| dev >> 20 == c.uvm_major);
    let full_len = size_of_argument(request, uvm);
    let mut pending = Pending {
        request,
        call: CALL_IOCTL,
        arg,
        nested: 0,
        nested_len: 0,
        file,
        size: u64::from(full_len),
        prot: 0,
        fd,
    };
    let mut named = 0;
    if !uvm {
        match request & 0xff {
            NV_ESC_RM_CONTROL => {
                pending.nested = user64(arg + 16);
                pending.nested_len = u64::from(user32(arg + 24));
            }
            NV_ESC_RM_ALLOC => {
                pending.nested = user64(arg + 16);
                // NVOS21 and NVOS64 give the size since 535; older ones do not, and it is often 0.
                let said = match full_len {
                    48.. => user32(arg + 32),
                    32 => user32(arg + 24),
                    _ => 0,
                };
                pending.nested_len = if said == 0 { GUESS } else { u64::from(said) };
            }
            NV_ESC_IOCTL_XFER_CMD => {
                pending.nested = user64(arg + 8);
                pending.nested_len = u64::from(user32(arg + 4));
            }
            NV_ESC_RM_MAP_MEMORY | NV_ESC_RM_ALLOC_MEMORY if full_len >= 52 => {
                named = kernel::opaque(kernel::file_of(user32(arg + 48) as i32));
            }
            _ => {}
        }
    }
    with_bytes!(
        IoctlEnter {
            header: kernel::header(kind::IOCTL_ENTER),
            file: kernel::opaque(file),
            named_file: named,
            arg,
            dev,
            fd,
            request,
            full_len,
        },
        IoctlEnter,
        u64::from(full_len),
        arg,
        NO_WAKEUP
    );
    if pending.nested != 0 {
        nested(pending.nested, pending.nested_len, 0, NO_WAKEUP);
    }
    let _ = PENDING.insert(thread(), pending, 0);
}

/// Records the return of an ioctl.
#[inline(always)]
fn exit(pending: &Pending, result: i64) {
    with_bytes!(
        IoctlExit {
            header: kernel::header(kind::IOCTL_EXIT),
            result,
            request: pending.request,
            full_len: pending.size as u32,
        },
        IoctlExit,
        pending.size,
        pending.arg,
        if pending.nested == 0 {
            WAKEUP
        } else {
            NO_WAKEUP
        }
    );
    if pending.nested != 0 {
        nested(pending.nested, pending.nested_len, flag::AFTER, WAKEUP);
    }
}

#[inline(always)]
fn wants(proc: Proc) -> bool {
    proc.flags & proc_flag::IOCTLS != 0
}

/// sys_enter(struct pt_regs *, long id)
#[raw_tracepoint(tracepoint = "sys_enter")]
pub fn syscall_enter(ctx: RawTracePointContext) -> i32 {
    let o = kernel::offsets();
    let id = ctx.arg::<u64>(1) as u32;
    let call = if id == o.syscalls[0] {
        CALL_IOCTL
    } else if id == o.syscalls[1] {
        CALL_MMAP
    } else if id == o.syscalls[2] {
        CALL_MUNMAP
    } else {
        return 0;
    };
    let (pid, _) = kernel::ids();
    let Some(proc) = traced(pid) else { return 0 };
    let regs: u64 = ctx.arg(0);
    let first = kernel::read64(regs, o.regs[0]);
    let second = kernel::read64(regs, o.regs[1]);
    let third = kernel::read64(regs, o.regs[2]);
    if call == CALL_IOCTL {
        if wants(proc) {
            enter(
                kernel::file_of(first as i32),
                first as i32,
                second as u32,
                third,
            );
        }
        return 0;
    }
    let mut pending = Pending {
        request: 0,
        call,
        arg: first,
        nested: 0,
        nested_len: 0,
        file: 0,
        size: second,
        prot: third as u32,
        fd: -1,
    };
    if call == CALL_MMAP {
        pending.fd = kernel::read64(regs, o.regs[3]) as i32;
        if pending.fd < 0 {
            return 0;
        }
        pending.file = kernel::file_of(pending.fd);
        if kernel::nvidia_device(pending.file).is_none() {
            return 0;
        }
    }
    let _ = PENDING.insert(thread(), pending, 0);
    0
}

/// sys_exit(struct pt_regs *, long result)
#[raw_tracepoint(tracepoint = "sys_exit")]
pub fn syscall_exit(ctx: RawTracePointContext) -> i32 {
    let (pid, _) = kernel::ids();
    let Some(proc) = traced(pid) else { return 0 };
    let key = thread();
    let Some(p) = PENDING.get_ptr(key) else {
        return 0;
    };
    // SAFETY: only this thread writes its entry.
    let pending = unsafe { *p };
    let _ = PENDING.remove(key);
    let result = ctx.arg::<u64>(1) as i64;
    match pending.call {
        CALL_IOCTL => exit(&pending, result),
        // Errors are -1 .. -4095.
        CALL_MMAP if !(-4095..0).contains(&result) => {
            mmap::mapped(
                proc,
                pending.file,
                pending.fd,
                result as u64,
                pending.size,
                pending.prot,
            );
        }
        CALL_MUNMAP if result == 0 => mmap::unmapped(pending.arg, pending.size),
        _ => {}
    }
    0
}

/// nvidia_ioctl(struct inode *, struct file *, unsigned int cmd, unsigned long arg)
#[kprobe]
pub fn kprobe_ioctl(ctx: ProbeContext) -> u32 {
    let (Some(file), Some(request), Some(arg)) =
        (ctx.arg::<u64>(1), ctx.arg::<u64>(2), ctx.arg::<u64>(3))
    else {
        return 0;
    };
    begin(file, request as u32, arg);
    0
}

/// uvm_unlocked_ioctl_entry(struct file *, unsigned int cmd, unsigned long arg)
#[kprobe]
pub fn kprobe_uvm(ctx: ProbeContext) -> u32 {
    let (Some(file), Some(request), Some(arg)) =
        (ctx.arg::<u64>(0), ctx.arg::<u64>(1), ctx.arg::<u64>(2))
    else {
        return 0;
    };
    begin(file, request as u32, arg);
    0
}

#[kretprobe]
pub fn kretprobe_ioctl(ctx: RetProbeContext) -> u32 {
    end(i64::from(ctx.ret::<i32>()));
    0
}

/// Records the entry of an ioctl that was seen at the driver's own function.
#[inline(always)]
pub fn begin(file: u64, request: u32, arg: u64) {
    let (pid, _) = kernel::ids();
    if traced(pid).is_some_and(wants) {
        enter(file, -1, request, arg);
    }
}

/// Records the return of an ioctl that was seen at the driver's own function.
#[inline(always)]
pub fn end(result: i64) {
    let key = thread();
    let Some(p) = PENDING.get_ptr(key) else {
        return;
    };
    // SAFETY: only this thread writes its entry.
    let pending = unsafe { *p };
    let _ = PENDING.remove(key);
    if pending.call == CALL_IOCTL {
        exit(&pending, result);
    }
}
