//! The three system calls on the driver's files (open, ioctl and mmap), and the files of another process. They are behind a trait, so that
//! a program without a GPU can answer them.

use std::{
    ffi::CString,
    io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    ptr,
};

/// Access that a mapping allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reads and writes: memory.
    ReadWrite,
    /// Writes only: doorbells, which cannot be read.
    WriteOnly,
    /// Reads only: memory that only the driver writes.
    ReadOnly,
}

/// System calls of the driver's device files.
pub trait Os {
    /// Opens a device file.
    fn open(&self, path: &str) -> io::Result<OwnedFd>;
    /// Makes an ioctl with this argument.
    fn ioctl(&self, fd: BorrowedFd<'_>, request: u32, argument: &mut [u8]) -> io::Result<()>;
    /// Maps the memory that the last NV_ESC_RM_MAP_MEMORY named for `fd`.
    fn map(&self, fd: BorrowedFd<'_>, len: usize, access: Access) -> io::Result<Mapping>;
    /// Duplicates the files of the control device that a process has open.
    fn files_of(&self, _pid: u32) -> io::Result<Vec<OwnedFd>> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// The system calls of the kernel.
#[derive(Debug)]
pub struct Kernel;

impl Os for Kernel {
    fn files_of(&self, pid: u32) -> io::Result<Vec<OwnedFd>> {
        super::files::files_of(pid)
    }

    fn open(&self, path: &str) -> io::Result<OwnedFd> {
        let path = CString::new(path)?;
        // SAFETY: the path is a C string.
        let fd = unsafe { libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just opened and has no other owner.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    fn ioctl(&self, fd: BorrowedFd<'_>, request: u32, argument: &mut [u8]) -> io::Result<()> {
        loop {
            // SAFETY: the driver reads and writes as many bytes as the request's number says, which is the slice's length (`Client::call`).
            // The caller keeps the memory to which its fields point until this call returns.
            let result =
                unsafe { libc::ioctl(fd.as_raw_fd(), request as _, argument.as_mut_ptr()) };
            if result >= 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            if !matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN)) {
                return Err(error);
            }
        }
    }

    fn map(&self, fd: BorrowedFd<'_>, len: usize, access: Access) -> io::Result<Mapping> {
        let protection = match access {
            Access::ReadWrite => libc::PROT_READ | libc::PROT_WRITE,
            Access::WriteOnly => libc::PROT_WRITE,
            Access::ReadOnly => libc::PROT_READ,
        };
        // SAFETY: the kernel chooses the address; nothing of this process is replaced.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                len,
                protection,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the memory was just mapped, and nothing else knows of it.
        Ok(unsafe { Mapping::from_raw(start.cast(), len) })
    }
}

/// Memory that the GPU sees, too. Accesses of single words are volatile, because the GPU reads and writes at any time; accesses of many
/// bytes are not.
#[derive(Debug)]
pub struct Mapping {
    start: *mut u8,
    len: usize,
}

impl Mapping {
    /// Takes over an existing mapping, which ends with the value.
    ///
    /// # Safety
    /// `len` bytes are mapped at `start`, which is the start of a page, and nothing but this value unmaps them.
    #[must_use]
    pub unsafe fn from_raw(start: *mut u8, len: usize) -> Self {
        Self { start, len }
    }

    /// Returns the address of the 32-bit word at `offset`, which stays valid as long as the mapping.
    ///
    /// # Panics
    /// When the word does not lie in the mapping, or not at a multiple of 4: an error of the caller.
    pub fn word(&self, offset: usize) -> *mut u32 {
        assert!(offset.is_multiple_of(4) && offset < self.len && self.len - offset >= 4);
        // SAFETY: the offset lies in the mapping, as was just asserted.
        unsafe { self.start.add(offset) }.cast()
    }

    /// Returns the 32-bit word at `offset`.
    pub fn read(&self, offset: usize) -> u32 {
        // SAFETY: `word` gives an aligned address in the mapping.
        unsafe { self.word(offset).read_volatile() }
    }

    /// Returns the 64-bit word at `offset`, in one load if it is aligned.
    pub fn read_long(&self, offset: usize) -> u64 {
        assert!(offset.is_multiple_of(8));
        self.word(offset + 4);
        // SAFETY: both halves lie in the mapping, and its start is that of a page.
        unsafe { self.word(offset).cast::<u64>().read_volatile() }
    }

    /// Stores a 32-bit word at `offset`.
    pub fn write(&self, offset: usize, value: u32) {
        // SAFETY: as in `read`.
        unsafe { self.word(offset).write_volatile(value) }
    }

    /// Stores a 64-bit word at `offset`, which is a multiple of 8.
    pub fn write_long(&self, offset: usize, value: u64) {
        assert!(offset.is_multiple_of(8));
        self.word(offset + 4);
        // SAFETY: as in `read_long`.
        unsafe { self.word(offset).cast::<u64>().write_volatile(value) }
    }

    /// Stores bytes from `offset` on, as fast as the processor can, in no certain order.
    pub fn write_bytes(&self, offset: usize, bytes: &[u8]) {
        assert!(offset <= self.len && bytes.len() <= self.len - offset);
        // SAFETY: within the mapping, which nothing else in this process refers to; the bytes lie elsewhere.
        unsafe {
            let to = self.start.add(offset);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
    }

    /// Copies bytes from `offset` on, in no certain order. It is for bytes that the GPU has written and does not change meanwhile.
    pub fn read_bytes(&self, offset: usize, to: &mut [u8]) {
        assert!(offset <= self.len && to.len() <= self.len - offset);
        // SAFETY: within the mapping; nothing else in this process refers to `to`.
        unsafe {
            let from = self.start.add(offset);
            std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len());
        }
    }

    /// Stores words from `offset` on.
    pub fn write_words(&self, offset: usize, words: &[u32]) {
        for (i, word) in words.iter().enumerate() {
            self.write(offset + 4 * i, *word);
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's alone, and nothing borrowed from it outlives it.
        unsafe { libc::munmap(self.start.cast(), self.len) };
    }
}
