//! Hardware breakpoints as perf events, opened directly: aya's functions offer no exclude_kernel, no remove_on_exec and no inherit_thread.

use std::{
    io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    thread,
};

use perf_event_open_sys::{self as sys, bindings as b};

/// Inheritance and lifetime of a breakpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Life {
    /// True if child processes inherit it. (Threads always do.)
    pub children: bool,
    /// True if it ends when the process executes another program.
    pub until_exec: bool,
    /// True if it begins at the next exec.
    pub from_exec: bool,
}

/// Moment at which a breakpoint stops a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stops {
    /// Right after a write to the 4 bytes at the address; on aarch64 before it ([`nvcap_common::TRAP_TO_END`]).
    AfterWrite,
    /// Before the instruction at the address.
    Before,
}

/// Prepares the kernel for events of threads, beside other work. For the first such event after a second without any, the kernel waits
/// until every processor has been elsewhere in the kernel: tens of ms with many processors.
pub(crate) fn make_ready() {
    let ready = || {
        let mut attr = b::perf_event_attr {
            type_: b::PERF_TYPE_SOFTWARE,
            config: u64::from(b::PERF_COUNT_SW_DUMMY),
            size: size_of::<b::perf_event_attr>() as u32,
            ..Default::default()
        };
        attr.set_exclude_kernel(1);
        let flags = u64::from(b::PERF_FLAG_FD_CLOEXEC);
        // SAFETY: attr is a whole perf_event_attr.
        let fd = unsafe { sys::perf_event_open(&mut attr, 0, -1, -1, flags) };
        if fd >= 0 {
            // SAFETY: a new descriptor that nobody else has.
            drop(unsafe { OwnedFd::from_raw_fd(fd) });
        }
        log::debug!("the kernel is ready for breakpoints");
    };
    // Without it the first breakpoint takes longer.
    let _ = thread::Builder::new()
        .name("nvcap-ready".into())
        .spawn(ready);
}

/// Opens a breakpoint at `address` for thread `tid` in user mode, with `program` attached. It is active when this returns, or from the next
/// exec on. Also returns the number that the kernel gave it.
///
/// # Errors
/// Those of perf_event_open(2): ENOSPC when no debug register is left, ESRCH when the thread is gone, EPERM.
pub(crate) fn watch(
    tid: u32,
    (stops, address): (Stops, u64),
    life: Life,
    program: BorrowedFd<'_>,
) -> io::Result<(u64, OwnedFd)> {
    let (kind, len) = match stops {
        Stops::AfterWrite => (b::HW_BREAKPOINT_W, u64::from(b::HW_BREAKPOINT_LEN_4)),
        Stops::Before => (b::HW_BREAKPOINT_X, size_of::<libc::c_long>() as u64),
    };
    let mut attr = b::perf_event_attr {
        type_: b::PERF_TYPE_BREAKPOINT,
        size: size_of::<b::perf_event_attr>() as u32,
        bp_type: kind,
        ..Default::default()
    };
    attr.__bindgen_anon_1.sample_period = 1;
    attr.__bindgen_anon_3.bp_addr = address;
    attr.__bindgen_anon_4.bp_len = len;
    attr.read_format =
        u64::from(b::PERF_FORMAT_TOTAL_TIME_ENABLED | b::PERF_FORMAT_TOTAL_TIME_RUNNING);
    attr.set_exclude_kernel(1);
    attr.set_exclude_hv(1);
    attr.set_inherit(1);
    attr.set_inherit_thread(u64::from(!life.children));
    attr.set_remove_on_exec(u64::from(life.until_exec));
    attr.set_enable_on_exec(u64::from(life.from_exec));
    attr.set_disabled(1);
    // SAFETY: attr is a whole perf_event_attr.
    let fd = unsafe {
        sys::perf_event_open(
            &mut attr,
            tid as i32,
            -1,
            -1,
            b::PERF_FLAG_FD_CLOEXEC as u64,
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nobody else has.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut number = 0;
    // SAFETY: the descriptor is open, and the number is written where there is room.
    check(unsafe { sys::ioctls::ID(fd.as_raw_fd(), &raw mut number) })?;
    // SAFETY: both descriptors are open.
    check(unsafe { sys::ioctls::SET_BPF(fd.as_raw_fd(), program.as_raw_fd() as u32) })?;
    if !life.from_exec {
        // SAFETY: the descriptor is open.
        check(unsafe { sys::ioctls::ENABLE(fd.as_raw_fd(), 0) })?;
    }
    Ok((number, fd))
}

/// Disables or enables a breakpoint in all threads that have it. It keeps its register.
///
/// # Errors
/// Those of ioctl(2).
pub(crate) fn wake(event: &OwnedFd, wake: bool) -> io::Result<()> {
    // SAFETY: the descriptor is open.
    check(unsafe {
        match wake {
            true => sys::ioctls::ENABLE(event.as_raw_fd(), 0),
            false => sys::ioctls::DISABLE(event.as_raw_fd(), 0),
        }
    })
}

/// The kernel's counts of a breakpoint, including all threads that inherited it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    /// Number of times that it was hit.
    pub hits: u64,
    /// Time for which the breakpoint had no debug register while a thread that has it ran, ns. That thread was given more breakpoints than
    /// registers, and these took turns.
    pub unset_ns: u64,
}

impl std::ops::AddAssign for Counted {
    fn add_assign(&mut self, other: Counted) {
        self.hits += other.hits;
        self.unset_ns += other.unset_ns;
    }
}

/// Reads the kernel's counts of a breakpoint.
///
/// # Errors
/// Those of read(2).
pub(crate) fn counted(event: &OwnedFd) -> io::Result<Counted> {
    // As `read_format` has it: hits, time enabled, time running.
    let mut words = [0u64; 3];
    // SAFETY: the buffer has the size that is told.
    let got = unsafe {
        libc::read(
            event.as_raw_fd(),
            words.as_mut_ptr().cast(),
            size_of_val(&words),
        )
    };
    if usize::try_from(got) != Ok(size_of_val(&words)) {
        return Err(io::Error::last_os_error());
    }
    let [hits, enabled, running] = words;
    Ok(Counted {
        hits,
        unset_ns: enabled.saturating_sub(running),
    })
}

fn check(rc: i32) -> io::Result<()> {
    if rc < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}
