//! The test's own hardware breakpoints: they prove that the software GPU's stores trap, fill debug registers, and show
//! whether this machine has any.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::FromRawFd;

const PERF_TYPE_BREAKPOINT: u32 = 5;
const HW_BREAKPOINT_W: u32 = 2;
const INHERIT: u64 = 1 << 1;
const EXCLUDE_KERNEL: u64 = 1 << 5;
const EXCLUDE_HV: u64 = 1 << 6;
const FD_CLOEXEC: libc::c_ulong = 8;

/// `struct perf_event_attr` up to version 5, most of which is zero.
#[repr(C)]
#[derive(Default)]
struct Attr {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup: u32,
    bp_type: u32,
    bp_addr: u64,
    bp_len: u64,
    rest: [u64; 5],
}

/// A counting write breakpoint.
#[derive(Debug)]
pub struct Breakpoint(File);

impl Breakpoint {
    /// Watches the 4 bytes at `address` of thread `tid` (0: this one), for writes from user mode. With `inherit`,
    /// threads and children made later are counted too.
    pub fn watch(tid: u32, address: u64, inherit: bool) -> io::Result<Breakpoint> {
        let attr = Attr {
            kind: PERF_TYPE_BREAKPOINT,
            size: size_of::<Attr>() as u32,
            flags: EXCLUDE_KERNEL | EXCLUDE_HV | if inherit { INHERIT } else { 0 },
            bp_type: HW_BREAKPOINT_W,
            bp_addr: address,
            bp_len: 4,
            ..Attr::default()
        };
        // SAFETY: `attr` is a valid perf_event_attr of the size it says; the kernel only reads it.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                &attr,
                tid as libc::pid_t,
                -1,
                -1,
                FD_CLOEXEC,
            )
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call returned a new file descriptor that nothing else owns.
        Ok(Breakpoint(unsafe { File::from_raw_fd(fd as i32) }))
    }

    /// Takes all four debug registers of thread `tid`, until these are dropped.
    pub fn take_all(tid: u32) -> io::Result<Vec<Breakpoint>> {
        static WORD: u64 = 0;
        let taken = (0..4).map(|_| Breakpoint::watch(tid, &raw const WORD as u64, false));
        taken.collect()
    }

    /// Hits so far, including those of children and threads that have ended.
    pub fn count(&mut self) -> io::Result<u64> {
        let mut count = [0; 8];
        self.0.read_exact(&mut count)?;
        Ok(u64::from_ne_bytes(count))
    }
}

/// `None` if breakpoints work here, else the reason: tries one on a store of this thread.
pub fn unavailable() -> Option<String> {
    let word = std::sync::atomic::AtomicU32::new(0);
    let mut breakpoint = match Breakpoint::watch(0, word.as_ptr() as u64, false) {
        Ok(b) => b,
        Err(e) => return Some(format!("no hardware breakpoint can be set here: {e}")),
    };
    word.store(1, std::sync::atomic::Ordering::SeqCst);
    match breakpoint.count() {
        Ok(1) => None,
        Ok(n) => Some(format!("a hardware breakpoint counted {n} hits of 1 store")),
        Err(e) => Some(format!("a hardware breakpoint cannot be read: {e}")),
    }
}
