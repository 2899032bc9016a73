//! Names that are not plain words.

use std::ffi::{CString, OsStr};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, ensure};
use softgpu::layout::DOORBELL;

use crate::bed::{Bed, CHANNELS};

/// Names for tasks, programs and files.
pub const NAMES: [&[u8]; 8] = [
    b"\xff\xfe\x80",
    b"two\nlines",
    b"\x1b[31mred\x1b]0;",
    "\u{202e}drawkcab".as_bytes(),
    b") Z (1 2 3 4 5",
    b" ",
    b"\"}\\u0000,{\"",
    b"caf\xc3", // cut in the middle of a character
];

fn set_name(name: &[u8]) -> Result<()> {
    let name = CString::new(name)?;
    // SAFETY: the kernel reads a string that ends.
    unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
    Ok(())
}

/// Names of threads, and of the process.
pub fn of_threads(bed: &Bed) -> Result<()> {
    set_name(NAMES[0])?;
    bed.submit_many(10);
    for name in NAMES {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                set_name(name)?;
                bed.submit_many(2 * CHANNELS);
                anyhow::Ok(())
            });
            thread.join().unwrap_or(Ok(()))
        })?;
    }
    set_name(NAMES[4])?;
    bed.submit_many(10);
    Ok(())
}

/// A shared mapping of a file with this name in a folder of its own; the file is removed afterwards if `removed`.
fn mapped(name: &[u8], len: usize, removed: bool) -> Result<u64> {
    let folder = PathBuf::from(format!("/dev/shm/hostile-names.{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let path = folder.join(OsStr::from_bytes(name));
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(&path)
        .with_context(|| path.display().to_string())?;
    file.set_len(len as u64)?;
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: an address of the kernel's choosing.
    let got = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len,
            prot,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    ensure!(got != libc::MAP_FAILED, "mmap");
    std::mem::forget(file);
    if removed {
        std::fs::remove_dir_all(&folder)?;
    }
    Ok(got as u64)
}

/// Files with the names of a GPU's, mapped like a doorbell and like rings, and written to.
pub fn false_devices(bed: &Bed) -> Result<()> {
    let doorbell = mapped(b"nvidia0", 0x10000, true)?;
    let rings = mapped(b"nvidia1", 2 << 20, true)?;
    for n in 0..CHANNELS as u64 {
        bed.submit(n as usize);
        // SAFETY: both mappings were made just now and are larger; the source is a ring of the bed.
        unsafe {
            let (from, to) = (bed.ring(n as usize), rings + n * bed.slot());
            std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, bed.slot() as usize);
        }
    }
    for _ in 0..50 {
        // SAFETY: inside the mapping made above.
        unsafe { (*((doorbell + DOORBELL) as *const AtomicU32)).store(0xa, Ordering::Relaxed) };
        bed.submit_many(2);
    }
    Ok(())
}

/// Mappings of files with such names.
pub fn of_mappings(bed: &Bed) -> Result<()> {
    let more: [&[u8]; 4] = [
        b"nvidia0\n (deleted)",
        b"x\n7f0000000000-7f0000010000 -w-s 00000000 00:00 0 nvidia0",
        b"nvidia0 (deleted)",
        b"nvidiactl\\012",
    ];
    for name in more.into_iter().chain(NAMES) {
        mapped(name, 0x10000, false)?;
        bed.submit_many(4);
        mapped(name, 0x10000, true)?;
        bed.submit_many(4);
    }
    Ok(())
}
