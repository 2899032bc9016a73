//! Many mappings, and large ones.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::bed::Bed;
use crate::process::{map_any, unmap};

const PAGE: usize = 0x1000;
/// Variable with the time that [`many`] stays after its last submission, ms.
pub const STAY_MS: &str = "HOSTILE_STAY_MS";

/// Sixty thousand mappings.
pub fn many(bed: &Bed) -> Result<()> {
    const MANY: usize = 60_000;
    let start = map_any(MANY * PAGE, libc::PROT_NONE, libc::MAP_NORESERVE)?;
    for n in (0..MANY).step_by(2) {
        let at = start + (n * PAGE) as u64;
        // SAFETY: a page of the mapping made above, which nobody uses.
        let failed = unsafe { libc::mprotect(at as *mut libc::c_void, PAGE, libc::PROT_READ) };
        if failed != 0 {
            return Err(std::io::Error::last_os_error()).context("vm.max_map_count is too small");
        }
    }
    bed.submit_many(200);
    // For what is measured of a tracer over some time.
    let stay = std::env::var(STAY_MS).ok().and_then(|ms| ms.parse().ok());
    std::thread::sleep(Duration::from_millis(stay.unwrap_or(0)));
    Ok(())
}

/// Mappings are made and unmapped while it submits.
pub fn made_and_undone(bed: &Bed) -> Result<()> {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                for len in [PAGE, 0x10000, 2 << 20] {
                    if let Ok(at) = map_any(len, libc::PROT_READ | libc::PROT_WRITE, 0) {
                        unmap(at, len);
                    }
                }
            }
        });
        bed.submit_many(200);
        done.store(true, Ordering::Relaxed);
    });
    Ok(())
}

/// Two gigabytes that are mostly untouched, and huge pages if the machine has some.
pub fn sparse(bed: &Bed) -> Result<()> {
    const LARGE: usize = 2 << 30;
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let start = map_any(LARGE, prot, libc::MAP_NORESERVE)?;
    // SAFETY: the mapping made above; every 64 MiB one byte is written.
    unsafe {
        libc::madvise(start as *mut libc::c_void, LARGE, libc::MADV_NOHUGEPAGE);
        for at in (0..LARGE).step_by(64 << 20) {
            std::ptr::write_volatile((start as usize + at) as *mut u8, 1);
        }
    }
    // Refused if none are reserved: then the rest is the mode.
    if let Ok(at) = map_any(2 << 20, prot, libc::MAP_HUGETLB) {
        // SAFETY: the mapping made just now.
        unsafe { std::ptr::write_volatile(at as *mut u8, 1) };
    }
    bed.submit_many(200);
    Ok(())
}
