//! The hash maps of the BPF programs, read and changed without bpf(2)'s own operations on them.
//!
//! While bpf(2)'s own operations run, programs on kprobes and breakpoints do not run on the same processor. nvcap may be
//! preempted in the middle of an operation; calls to the driver and doorbells of the traced process would then go unseen.
//! So a BPF program performs the operations (`table` in nvcap-ebpf, which says more), and nvcap runs that program. Knows
//! nothing of the maps' meaning.

use std::{
    io,
    mem::offset_of,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use nvcap_common::{
    Birth, Proc, Ranges, Request, SiteKey, SiteValue, Stats, TokenKey, TokenValue, request,
};

use super::{bpf, shared::Mapped};

/// Access to the hash maps.
#[derive(Debug)]
pub(crate) struct Tables {
    program: OwnedFd,
    request: Mapped,
    stats: Mapped,
    processors: usize,
}

/// Writes a member of the request.
macro_rules! put {
    ($self:ident, $($field:ident: $value:expr),*) => {{
        $(
            let to = $self.field(offset_of!(Request, $field), $value);
            // SAFETY: the member is aligned and of that type, and no program reads it now.
            unsafe { to.write_volatile($value) };
        )*
    }};
}

impl Tables {
    /// Makes the access. `program`: the loaded `table`; `request`: its map; `stats`: the counters of `processors`
    /// processors.
    ///
    /// # Errors
    /// Those of mmap(2).
    pub(crate) fn new(
        program: OwnedFd,
        request: BorrowedFd<'_>,
        stats: BorrowedFd<'_>,
        processors: usize,
    ) -> io::Result<Self> {
        Ok(Self {
            program,
            request: Mapped::new(request, size_of::<Request>())?,
            stats: Mapped::new(stats, processors * size_of::<Stats>())?,
            processors,
        })
    }

    /// Returns the address of a member of the request, with the type of `_value`.
    fn field<T>(&self, offset: usize, _value: T) -> *mut T {
        let first = self.request.at::<Request>(0).cast::<u8>();
        // SAFETY: an offset of a member, within the mapped request.
        unsafe { first.add(offset).cast() }
    }

    /// Carries out the request.
    fn run(&self, what: u32) -> io::Result<()> {
        put!(self, what: what, result: i64::from(-libc::EIO));
        bpf::run(self.program.as_fd())?;
        let result: *mut i64 = self.field(offset_of!(Request, result), 0);
        // SAFETY: as in put!; the program has ended.
        match unsafe { result.read_volatile() } {
            0 => Ok(()),
            e => Err(io::Error::from_raw_os_error(-e as i32)),
        }
    }

    /// Returns the state of a traced process.
    pub(crate) fn proc(&self, pid: u32) -> Option<Proc> {
        put!(self, id: pid);
        self.run(request::GET_PROC).ok()?;
        let value = self.field(offset_of!(Request, proc), Proc::default());
        // SAFETY: as in run.
        Some(unsafe { value.read_volatile() })
    }

    /// Makes a process traced.
    ///
    /// # Errors
    /// When there is no room.
    pub(crate) fn set_proc(&self, pid: u32, proc: Proc) -> io::Result<()> {
        put!(self, id: pid, proc: proc);
        self.run(request::SET_PROC)
    }

    /// Stops tracing a process.
    ///
    /// # Errors
    /// When the process was not traced.
    pub(crate) fn forget_proc(&self, pid: u32) -> io::Result<()> {
        put!(self, id: pid);
        self.run(request::FORGET_PROC)
    }

    /// Sets the channel that a token names.
    ///
    /// # Errors
    /// When there is no room.
    pub(crate) fn set_token(&self, key: TokenKey, value: TokenValue) -> io::Result<()> {
        put!(self, token: key, channel: value);
        self.run(request::SET_TOKEN)
    }

    /// Forgets a token.
    ///
    /// # Errors
    /// When the token was not known.
    pub(crate) fn forget_token(&self, key: TokenKey) -> io::Result<()> {
        put!(self, token: key);
        self.run(request::FORGET_TOKEN)
    }

    /// Sets the facts that are known of a store to a doorbell.
    ///
    /// # Errors
    /// When there is no room.
    pub(crate) fn set_site(&self, key: SiteKey, value: SiteValue) -> io::Result<()> {
        put!(self, site: key, store: value);
        self.run(request::SET_SITE)
    }

    /// Forgets a store.
    ///
    /// # Errors
    /// When the store was not known.
    pub(crate) fn forget_site(&self, key: SiteKey) -> io::Result<()> {
        put!(self, site: key);
        self.run(request::FORGET_SITE)
    }

    /// Sets the address translation with this key.
    ///
    /// # Errors
    /// When there is no room.
    pub(crate) fn set_ranges(&self, key: u32, ranges: Ranges) -> io::Result<()> {
        put!(self, id: key, ranges: ranges);
        self.run(request::SET_RANGES)
    }

    /// Returns a thread's birth.
    pub(crate) fn birth(&self, tid: u32) -> Option<Birth> {
        put!(self, id: tid);
        self.run(request::GET_BIRTH).ok()?;
        let value = self.field(offset_of!(Request, birth), Birth::default());
        // SAFETY: as in run.
        Some(unsafe { value.read_volatile() })
    }

    /// Returns the counters of each processor.
    pub(crate) fn stats(&self) -> impl Iterator<Item = Stats> + '_ {
        (0..self.processors).map(|n| {
            // SAFETY: mapped, aligned, plain integers; a counter may be a little old.
            unsafe { self.stats.at::<Stats>(n).read_volatile() }
        })
    }
}
