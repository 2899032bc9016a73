//! Duplicates (pidfd_getfd(2)) of the control device's files that a process has open.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use crate::memory::devices;

/// The most descriptors of a process that are examined, and the most files of the driver that are taken from them.
const MOST_DESCRIPTORS: usize = 1 << 16;
const MOST_FILES: usize = 256;

/// Duplicates the control device's files of a process.
pub(super) fn files_of(pid: u32) -> io::Result<Vec<OwnedFd>> {
    // SAFETY: no pointers.
    let process = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let process = descriptor(process)?;
    let folder = format!("/proc/{pid}/fd");
    let mut files = Vec::new();
    for entry in fs::read_dir(&folder)?.take(MOST_DESCRIPTORS) {
        let name = entry?.file_name();
        let Some(number) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        // Only the link is read: examining the file itself may never end, if another process serves it.
        let link = fs::read_link(format!("{folder}/{number}"));
        let named = link.is_ok_and(|link| link.file_name().is_some_and(|n| n == "nvidiactl"));
        if !named || files.len() >= MOST_FILES {
            continue;
        }
        // SAFETY: no pointers.
        let file = unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), number, 0) };
        let file = match descriptor(file) {
            // The file was closed meanwhile.
            Err(error) if error.raw_os_error() == Some(libc::EBADF) => continue,
            file => file?,
        };
        if devices::is_control(file.as_fd()) {
            files.push(file);
        }
    }
    Ok(files)
}

fn descriptor(result: libc::c_long) -> io::Result<OwnedFd> {
    match i32::try_from(result) {
        // SAFETY: the kernel has just made the descriptor, and nobody else has it.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_only_called_so_is_not_taken() {
        let folder = std::env::temp_dir().join(format!("nvcap-owner-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let file = fs::File::create(folder.join("nvidiactl")).unwrap();
        let taken = files_of(std::process::id());
        drop(file);
        fs::remove_dir_all(&folder).unwrap();
        match taken {
            Ok(files) => assert_eq!(files.len(), 0),
            // A kernel before 5.6, or a sandbox.
            Err(error) => println!("not duplicated: {error}"),
        }
    }

    #[test]
    fn a_process_that_is_not_there_is_an_error() {
        assert!(files_of(u32::MAX >> 1).is_err());
    }
}
