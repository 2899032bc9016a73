//! A hardware watchpoint that only counts: the minimal cost of any tracer that uses one.
//!
//! perf_event_open(2) by hand; knows nothing of the watched word's purpose.

use std::{
    fs::File,
    io::{self, Read},
    os::fd::{FromRawFd, OwnedFd},
};

use anyhow::{Context, Result};

/// PERF_TYPE_BREAKPOINT.
const BREAKPOINT: u64 = 5;
/// HW_BREAKPOINT_W.
const WRITES: u64 = 2;
/// Bytes of `struct perf_event_attr` up to and with `bp_len` (PERF_ATTR_SIZE_VER1).
const ATTR_SIZE: u64 = 72;
/// `exclude_kernel` and `exclude_hv`: only the program's own stores.
const USER_ONLY: u64 = 1 << 5 | 1 << 6;

/// An armed watchpoint; dropping it disarms it.
pub struct Watchpoint(File);

impl Watchpoint {
    /// Counts stores of thread `tid` to the four bytes at `addr`, each with the overflow handling to which a tracer would
    /// attach its program.
    pub fn on_writes(tid: i32, addr: u64) -> Result<Self> {
        // type|size, config, sample_period, sample_type, read_format, flags, wakeup|bp_type, bp_addr, bp_len
        let attr = [
            BREAKPOINT | ATTR_SIZE << 32,
            0,
            1,
            0,
            0,
            USER_ONLY,
            WRITES << 32,
            addr,
            4,
        ];
        let fd = perf_event_open(&attr, tid).with_context(|| {
            format!(
                "no watchpoint at {addr:#x} of thread {tid}; a thread has four debug registers, and a debugger or \
                 another tracer may hold them"
            )
        })?;
        Ok(Self(File::from(fd)))
    }

    /// Returns how often it was hit.
    pub fn count(&self) -> Result<u64> {
        let mut value = [0; 8];
        (&self.0)
            .read_exact(&mut value)
            .context("cannot read the watchpoint's count")?;
        Ok(u64::from_ne_bytes(value))
    }
}

fn perf_event_open(attr: &[u64; ATTR_SIZE as usize / 8], tid: i32) -> io::Result<OwnedFd> {
    const PERF_FLAG_FD_CLOEXEC: libc::c_ulong = 8;
    // SAFETY: the kernel reads the ATTR_SIZE bytes that attr has and names as its size, and keeps no pointer to them.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            attr.as_ptr(),
            tid,
            -1,
            -1,
            PERF_FLAG_FD_CLOEXEC,
        )
    };
    let fd = i32::try_from(fd).expect("a descriptor is an int");
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has just returned this descriptor, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[ignore = "needs breakpoints of perf events: cargo xtask test runs it as root"]
    fn stores_are_counted_where_the_kernel_allows_it() {
        let mut word: Box<u32> = Box::new(0);
        // SAFETY: gettid has no arguments and cannot fail.
        let tid = unsafe { libc::syscall(libc::SYS_gettid) } as i32;
        let watch = match Watchpoint::on_writes(tid, std::ptr::from_ref(&*word) as u64) {
            Ok(watch) => watch,
            Err(error) => {
                println!("NOT RUN stores_are_counted_where_the_kernel_allows_it: {error:#}");
                return;
            }
        };
        for n in 0..10 {
            // SAFETY: word is a live, aligned u32; volatile, so that each store is made.
            unsafe { std::ptr::write_volatile(&mut *word, n) };
        }
        assert_eq!(watch.count().expect("it is readable"), 10);
        assert_eq!(*word, 9);
    }
}
