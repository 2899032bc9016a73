//! Clients of the driver that belong to a process: told by the driver itself, asked through the files that the process has open.
//!
//! A client's handle is a number, which any process can have in its memory. But the driver takes a call on behalf of a client only through the
//! file by which the client was made (its `clientOSInfo`), and refuses it through any other with NV_ERR_INVALID_CLIENT, root's too. So the process's
//! open files of the control device are duplicated (pidfd_getfd(2)), and the client is asked through them for what it has: calls that change
//! nothing. The duplicates share the process's open file, which therefore stays open as long as they do: drop them soon.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use super::Os;
use super::call::{About, control, info, is_client};
use nvcap_decode::driver::Version;

/// NV2080_CTRL_CMD_GPU_GET_ID (ctrl2080gpu.h), with one word.
const GET_ID: u32 = 0x2080_0142;

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
