//! Clients of the driver that belong to a process, as told by the driver itself, which is asked through the files that the process has
//! open.
//!
//! A client's handle is a number, which any process can have in its memory. However, the driver accepts a call for a client only through
//! the file by which the client was made (its `clientOSInfo`). Through any other file it refuses the call with NV_ERR_INVALID_CLIENT, even
//! root's. The process's open files of the control device are therefore duplicated (pidfd_getfd(2)), and the client is asked for its
//! objects through them, by calls that change nothing. The duplicates keep the process's open files open: drop them soon.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use super::Os;
use super::call::{About, control, info, is_client};
use nvcap_decode::driver::Version;

/// NV2080_CTRL_CMD_GPU_GET_ID (ctrl2080gpu.h), with one word.
const GET_ID: u32 = 0x2080_0142;

/// Duplicates of the control device's files that a process has open.
pub struct Owner {
    os: Rc<dyn Os>,
    version: Option<Version>,
    files: Vec<OwnedFd>,
}

/// A client that the driver knows as a client of a process.
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
    /// The errors of pidfd_open(2), of reading `/proc/PID/fd`, and of pidfd_getfd(2): the right to trace the process is needed.
    pub fn of(os: Rc<dyn Os>, version: Option<Version>, pid: u32) -> io::Result<Self> {
        let files = os.files_of(pid)?;
        Ok(Self { os, version, files })
    }

    /// Returns the number of files.
    #[must_use]
    pub fn files(&self) -> usize {
        self.files.len()
    }

    /// Returns the client with this handle, if one of the files made it.
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
    /// Returns the class of an object.
    #[must_use]
    pub fn class(&self, object: u32) -> Option<u32> {
        self.ask(object, About::Class)
    }

    /// Returns the parent of an object.
    #[must_use]
    pub fn parent(&self, object: u32) -> Option<u32> {
        self.ask(object, About::Parent)
    }

    /// Returns the driver's number of a subdevice's GPU.
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
