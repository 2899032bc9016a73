//! Clients of the driver that belong to a process: told by the driver itself, asked through the files that the process has open.
//!
//! A client's handle is a number, which any process can have in its memory. But the driver takes a call on behalf of a client only through the
//! file by which the client was made (its `clientOSInfo`), and refuses it through any other with NV_ERR_INVALID_CLIENT, root's too. So the process's
//! open files of the control device are duplicated (pidfd_getfd(2)), and the client is asked through them for what it has: calls that change
//! nothing. The duplicates share the process's open file, which therefore stays open as long as they do: drop them soon.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::rc::Rc;

use super::Os;
use super::call::{About, control, info, is_client};
use crate::memory::devices;
use nvcap_decode::driver::Version;

/// NV2080_CTRL_CMD_GPU_GET_ID (ctrl2080gpu.h), with one word.
const GET_ID: u32 = 0x2080_0142;

/// The most descriptors of a process that are looked at, and the most files of the driver among them that are taken.
const MOST_DESCRIPTORS: usize = 1 << 16;
const MOST_FILES: usize = 256;

/// The control device's files that a process has open, duplicated.
pub struct Owner {
    os: Rc<dyn Os>,
    version: Option<Version>,
    files: Vec<OwnedFd>,
}

/// A client that the driver knows as one of a process's own.
#[derive(Clone, Copy)]
pub struct OwnClient<'a> {
    owner: &'a Owner,
    file: BorrowedFd<'a>,
    handle: u32,
}

impl Owner {
    /// Duplicates the files of a process.
    ///
    /// # Errors
    /// Those of pidfd_open(2), of reading `/proc/PID/fd`, and of pidfd_getfd(2): the right to trace the process is needed.
    pub fn of(os: Rc<dyn Os>, version: Option<Version>, pid: u32) -> io::Result<Self> {
        let files = os.files_of(pid)?;
        Ok(Self { os, version, files })
    }

    /// Returns the number of files.
    #[must_use]
    pub fn files(&self) -> usize {
        self.files.len()
    }

    /// The client with this handle, where it is one that was made by one of the files.
    #[must_use]
    pub fn client(&self, handle: u32) -> Option<OwnClient<'_>> {
        let own = |file: &OwnedFd| {
            let of = file.as_fd();
            is_client(&*self.os, self.version, of, handle)
        };
        let file = self.files.iter().find(|file| own(file))?;
        Some(OwnClient {
            owner: self,
            file: file.as_fd(),
            handle,
        })
    }
}

impl OwnClient<'_> {
    /// The class of an object.
    #[must_use]
    pub fn class(&self, object: u32) -> Option<u32> {
        self.ask(object, About::Class)
    }

    /// The object above an object.
    #[must_use]
    pub fn parent(&self, object: u32) -> Option<u32> {
        self.ask(object, About::Parent)
    }

    /// The driver's number of the GPU that a subdevice is.
    #[must_use]
    pub fn gpu(&self, subdevice: u32) -> Option<u32> {
        let (os, version) = (&*self.owner.os, self.owner.version);
        let mut id = [0; 4];
        let command = (GET_ID, &mut id[..]);
        let at = (self.handle, subdevice);
        control("ask which GPU it is", os, version, self.file, at, command).ok()?;
        Some(u32::from_le_bytes(id))
    }

    fn ask(&self, object: u32, about: About) -> Option<u32> {
        let (os, version) = (&*self.owner.os, self.owner.version);
        info(os, version, self.file, (self.handle, object), about)
    }
}

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
        // The link alone is read here: a look at the file itself may never end, if another process serves it.
        let link = fs::read_link(format!("{folder}/{number}"));
        let named = link.is_ok_and(|link| link.file_name().is_some_and(|n| n == "nvidiactl"));
        if !named || files.len() >= MOST_FILES {
            continue;
        }
        // SAFETY: no pointers.
        let file = unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), number, 0) };
        let file = match descriptor(file) {
            // It was closed meanwhile.
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
        // SAFETY: the kernel has just made it, and nobody else has it.
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
