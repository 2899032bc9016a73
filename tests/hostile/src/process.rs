//! System calls that several modes use.

use std::io;

use anyhow::{Context, Result, bail};

/// Shared memory at a fixed address where nothing is mapped, optionally from a file.
pub fn map_at(start: u64, len: u64, prot: i32, file: Option<(i32, u64)>) -> Result<()> {
    let flags = libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE;
    let anonymous = if file.is_none() {
        libc::MAP_ANONYMOUS
    } else {
        0
    };
    let (fd, offset) = file.unwrap_or((-1, 0));
    // SAFETY: MAP_FIXED_NOREPLACE takes no address that is in use; nothing is dereferenced here.
    let got = unsafe {
        libc::mmap(
            start as *mut libc::c_void,
            len as usize,
            prot,
            flags | anonymous,
            fd,
            offset as libc::off_t,
        )
    };
    if got as u64 != start {
        return Err(io::Error::last_os_error())
            .with_context(|| format!("cannot map {len:#x} bytes at {start:#x}"));
    }
    Ok(())
}

/// Private memory anywhere.
pub fn map_any(len: usize, prot: i32, flags: i32) -> io::Result<u64> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags;
    // SAFETY: an address of the kernel's choosing.
    let got = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, -1, 0) };
    if got == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(got as u64)
}

/// Unmaps memory that is no longer used.
pub fn unmap(start: u64, len: usize) {
    // SAFETY: the caller guarantees that nothing uses it any more.
    unsafe { libc::munmap(start as *mut libc::c_void, len) };
}

/// Forks; the child runs `what` and ends with status 0 without running anything else.
pub fn fork(what: impl FnOnce()) -> Result<libc::pid_t> {
    // SAFETY: the child runs the caller's closure and ends; no other thread of this process holds a lock that it needs.
    match unsafe { libc::fork() } {
        -1 => bail!("fork: {}", io::Error::last_os_error()),
        0 => {
            what();
            end_now(0)
        }
        pid => Ok(pid),
    }
}

/// Waits for a child; returns its wait status.
pub fn wait(pid: libc::pid_t) -> i32 {
    let mut status = 0;
    // SAFETY: waits for a child of this process and writes only `status`.
    while unsafe { libc::waitpid(pid, &mut status, libc::__WALL) } != pid {
        if io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
            break;
        }
    }
    status
}

/// Ends the process: exit_group.
pub fn end_now(status: i32) -> ! {
    // SAFETY: nothing has to be cleaned up in this program.
    unsafe { libc::_exit(status) }
}

/// Sends itself a signal.
pub fn raise(signal: i32) {
    // SAFETY: a signal to this thread.
    unsafe { libc::raise(signal) };
}

/// Installs a signal handler, on the stack of sigaltstack if `flags` say so.
pub fn handle(
    signal: i32,
    flags: i32,
    handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void),
) {
    // SAFETY: a zeroed sigaction is a valid one; the handler uses atomics and system calls alone.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | flags;
        libc::sigaction(signal, &action, std::ptr::null_mut());
    }
}

/// A killed program leaves no core file.
pub fn no_core_files() {
    let none = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the kernel reads the structure.
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &none) };
}
