//! Mapping memory at fixed addresses: anonymous, or from files with the names of the driver's device files.

use std::io;
use std::os::fd::AsRawFd;

use anyhow::{Context, Result};

use crate::layout::PAGE;

/// Files that are mapped in place of the driver's, in a folder of memory that is removed once they are mapped.
#[derive(Debug)]
pub struct Files(std::path::PathBuf);

impl Files {
    /// Makes the folder.
    pub fn new() -> Result<Files> {
        let path = std::path::PathBuf::from(format!("/dev/shm/softgpu.{}", std::process::id()));
        std::fs::create_dir_all(&path)
            .with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Files(path))
    }

    /// Maps one file, `name`, at these addresses with these lengths and protections, one part of it behind the other.
    pub fn map(
        &self,
        name: &str,
        wanted: &[(u64, u64, i32)],
        ranges: &mut Vec<(u64, u64)>,
    ) -> Result<()> {
        let path = self.0.join(name);
        let file = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .with_context(|| format!("cannot make {}", path.display()))?;
        file.set_len(wanted.iter().map(|w| w.1 + PAGE).sum())?;
        let mut offset = 0;
        for &(start, len, prot) in wanted {
            map_as(start, len, prot, libc::MAP_SHARED, Some((&file, offset)))
                .with_context(|| format!("cannot map {len:#x} bytes of {name} at {start:#x}"))?;
            ranges.push((start, len));
            // A hole between any two, so that neighbours stay separate mappings, like the driver's.
            offset += len + PAGE;
        }
        // Open until the process ends, like the driver's files.
        std::mem::forget(file);
        Ok(())
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Maps zeroed memory that forks share.
pub fn map_at(start: u64, len: u64) -> io::Result<()> {
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    map_as(start, len, libc::PROT_READ | libc::PROT_WRITE, flags, None)
}

fn map_as(
    start: u64,
    len: u64,
    prot: i32,
    flags: i32,
    file: Option<(&std::fs::File, u64)>,
) -> io::Result<()> {
    // SAFETY: MAP_FIXED_NOREPLACE takes no address that is in use; nothing is dereferenced here.
    let got = unsafe {
        libc::mmap(
            start as *mut libc::c_void,
            len as usize,
            prot,
            flags | libc::MAP_FIXED_NOREPLACE,
            file.map_or(-1, |f| f.0.as_raw_fd()),
            file.map_or(0, |f| f.1) as libc::off_t,
        )
    };
    if got == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    if got as u64 != start {
        // A kernel before 4.17 takes the address as a hint only.
        // SAFETY: `got` was just mapped and nothing refers to it.
        unsafe { libc::munmap(got, len as usize) };
        return Err(io::Error::from_raw_os_error(libc::EEXIST));
    }
    Ok(())
}
