//! The maps that both the BPF programs and this program write: channels and address spaces, accessed by mmap.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd},
    ptr::NonNull,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};

use nvcap_common::{SharedChannel, Space};

use nvcap_process::procfs;

/// The values of an array map, mapped.
#[derive(Debug)]
pub(super) struct Mapped {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory is shared with the kernel; all access goes through atomics or volatile accesses below.
unsafe impl Send for Mapped {}

impl Mapped {
    /// Maps the first `bytes` of an array map's values.
    pub(super) fn new(map: BorrowedFd<'_>, bytes: usize) -> io::Result<Self> {
        let len = bytes.next_multiple_of(procfs::page_size() as usize);
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping of the map's values.
        let p = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                access,
                libc::MAP_SHARED,
                map.as_raw_fd(),
                0,
            )
        };
        if p == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(p.cast()).ok_or_else(|| io::Error::other("mmap gave address 0"))?;
        Ok(Self { base, len })
    }

    /// Returns the address of value number `index`, of type T.
    pub(super) fn at<T>(&self, index: usize) -> *mut T {
        let end = (index + 1).saturating_mul(size_of::<T>());
        assert!(end <= self.len, "value {index} is not mapped");
        // SAFETY: within the mapping.
        unsafe { self.base.as_ptr().cast::<T>().add(index) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: mapped by new, and nothing borrows from it beyond self.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Map ASLEEP: tells whether the reader of the ring buffer must be woken.
#[derive(Debug)]
pub(crate) struct Asleep(Mapped);

impl Asleep {
    /// # Errors
    /// Those of mmap(2).
    pub(crate) fn new(map: BorrowedFd<'_>) -> io::Result<Self> {
        Ok(Self(Mapped::new(map, size_of::<u32>())?))
    }

    pub(crate) fn set(&self, is_asleep: bool) {
        // SAFETY: a live, aligned value, which the BPF programs only read.
        let value = unsafe { AtomicU32::from_ptr(self.0.at::<u32>(0)) };
        value.store(is_asleep.into(), Ordering::SeqCst);
    }
}

/// Maps CHANNELS and SPACES.
#[derive(Debug)]
pub(crate) struct Shared {
    channels: Mapped,
    spaces: Mapped,
    used: u32,
    /// Indexes of removed channels.
    free: Vec<u32>,
}

macro_rules! atomic {
    ($self:ident, $index:expr, $field:ident, $t:ty) => {{
        let p = $self.channel($index);
        // SAFETY: a field of a live, aligned value; the BPF side uses atomics or has exclusive access by claim.
        unsafe { <$t>::from_ptr(&raw mut (*p).$field) }
    }};
}

impl Shared {
    /// Maps both maps.
    ///
    /// # Errors
    /// Those of mmap(2).
    pub(crate) fn new(channels: BorrowedFd<'_>, spaces: BorrowedFd<'_>) -> io::Result<Self> {
        let size = |n: u32, one: usize| n as usize * one;
        Ok(Self {
            channels: Mapped::new(
                channels,
                size(nvcap_common::MAX_CHANNELS, size_of::<SharedChannel>()),
            )?,
            spaces: Mapped::new(spaces, size(nvcap_common::MAX_SPACES, size_of::<Space>()))?,
            used: 0,
            free: Vec::new(),
        })
    }

    /// Makes both in memory of its own, without BPF.
    #[cfg(test)]
    pub(super) fn in_memory() -> Self {
        use std::{
            fs::File,
            os::fd::{AsFd, FromRawFd},
        };

        let file = |one: usize, most: u32| {
            // SAFETY: the name is a C string.
            let fd = unsafe { libc::memfd_create(c"table".as_ptr(), libc::MFD_CLOEXEC) };
            assert!(fd >= 0, "{}", io::Error::last_os_error());
            // SAFETY: a new descriptor that nobody else has.
            let file = unsafe { File::from_raw_fd(fd) };
            let bytes = (one * most as usize).next_multiple_of(1 << 16);
            file.set_len(bytes as u64).unwrap();
            file
        };
        let channels = file(size_of::<SharedChannel>(), nvcap_common::MAX_CHANNELS);
        let spaces = file(size_of::<Space>(), nvcap_common::MAX_SPACES);
        Self::new(channels.as_fd(), spaces.as_fd()).unwrap()
    }

    fn channel(&self, index: u32) -> *mut SharedChannel {
        assert!(
            index < nvcap_common::MAX_CHANNELS,
            "channel index {index} is not one"
        );
        self.channels.at(index as usize)
    }

    fn head(&self, space: u32) -> &AtomicU32 {
        assert!(
            space < nvcap_common::MAX_SPACES,
            "address space {space} is not one"
        );
        let space = self.spaces.at::<Space>(space as usize);
        // SAFETY: in range, aligned, and only this program writes it.
        unsafe { AtomicU32::from_ptr(&raw mut (*space).head) }
    }

    /// Makes a channel known to the BPF programs; `None` when the table is full.
    pub(crate) fn add(&mut self, channel: SharedChannel) -> Option<u32> {
        let index = match self.free.pop() {
            Some(index) => index,
            None if self.used == nvcap_common::MAX_CHANNELS => return None,
            None => {
                self.used += 1;
                self.used - 1
            }
        };
        let head = self.head(channel.space);
        let channel = SharedChannel {
            next: head.load(Ordering::SeqCst),
            ..channel
        };
        // SAFETY: not linked yet, so nobody else looks at it.
        unsafe { self.channel(index).write_volatile(channel) };
        head.store(index + 1, Ordering::SeqCst);
        Some(index)
    }

    /// Returns the number of further channels for which there is room.
    pub(crate) fn room(&self) -> usize {
        (nvcap_common::MAX_CHANNELS - self.used) as usize + self.free.len()
    }

    /// Frees an address space that no process has any more, so that other channels may take its channels' places. No walk uses its list
    /// any more, and its captures have been taken out of the ring buffer.
    pub(crate) fn free(&mut self, space: u32, channels: &[u32]) {
        self.head(space).store(0, Ordering::SeqCst);
        self.free.extend_from_slice(channels);
    }

    /// Returns a copy of a channel's state.
    pub(crate) fn get(&self, index: u32) -> SharedChannel {
        // SAFETY: in range; a torn copy of counters is harmless.
        unsafe { self.channel(index).read_volatile() }
    }

    /// Stops capturing the channel.
    pub(crate) fn retire(&self, index: u32) {
        atomic!(self, index, live, AtomicU32).store(0, Ordering::SeqCst);
    }

    /// Sets whether scans for other tokens leave the channel's entries to its own doorbell.
    pub(crate) fn own(&self, index: u32, owned: bool) {
        atomic!(self, index, owned, AtomicU32).store(owned.into(), Ordering::SeqCst);
    }

    /// Sets the GP_PUT from which the channel is followed. Only while the channel is claimed.
    pub(crate) fn starts_at(&self, index: u32, put: u32) {
        atomic!(self, index, start, AtomicU32).store(put, Ordering::SeqCst);
    }

    /// Makes the process's own copy of GP_PUT prove itself again: the copy may have been another channel's.
    pub(crate) fn distrust(&self, index: u32) {
        let agreed = atomic!(self, index, agreed, AtomicU32);
        // Where the owner adds 1 meanwhile, the copy is still far from being trusted, or was found wrong anyway.
        if agreed.load(Ordering::SeqCst) != nvcap_common::NEVER {
            agreed.store(0, Ordering::SeqCst);
        }
    }

    /// Sets the key in XLATE that translates the channel's addresses.
    pub(crate) fn translate(&self, index: u32, key: u32) {
        atomic!(self, index, xlate, AtomicU32).store(key, Ordering::SeqCst);
    }

    /// Claims the channel. True if the caller owns it now; the caller must then call [`Shared::served`] until that returns 0.
    pub(crate) fn claim(&self, index: u32) -> bool {
        atomic!(self, index, claim, AtomicU64).fetch_add(1, Ordering::SeqCst) == 0
    }

    /// Gives the channel back after `served` claims. Returns the number of claims that came meanwhile; 0 when the channel is given back.
    pub(crate) fn served(&self, index: u32, served: u64) -> u64 {
        atomic!(self, index, claim, AtomicU64).fetch_sub(served, Ordering::SeqCst) - served
    }

    /// Takes the number of doorbells that were left to a later one, and resets it, because the ring is about to be read. Only while the
    /// channel is claimed.
    pub(crate) fn take_waiting(&self, index: u32) -> u64 {
        atomic!(self, index, waiting, AtomicU64).swap(0, Ordering::SeqCst)
    }

    /// Makes the next look behave as the first one. Only while the channel is claimed.
    pub(crate) fn begin_anew(&self, index: u32) {
        atomic!(self, index, looks, AtomicU64).store(0, Ordering::SeqCst);
    }

    /// Counts doorbells at which GP_PUT could not be read. Only while the channel is claimed.
    pub(crate) fn add_unread(&self, index: u32, doorbells: u64) {
        atomic!(self, index, unread, AtomicU64).fetch_add(doorbells, Ordering::SeqCst);
    }

    /// Writes the owner's fields after a read of GP_PUT. Only while the channel is claimed.
    pub(crate) fn progress(&self, index: u32, done: u64, seen: u64, extended: u64) {
        atomic!(self, index, extended, AtomicU64).store(extended, Ordering::SeqCst);
        atomic!(self, index, seen, AtomicU64).store(seen, Ordering::SeqCst);
        atomic!(self, index, unread, AtomicU64).store(0, Ordering::SeqCst);
        atomic!(self, index, done, AtomicU64).store(done, Ordering::SeqCst);
    }
}
