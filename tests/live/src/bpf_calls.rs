//! Records which map operations a program requests by bpf(2): the kernel holds each until the test has seen it (seccomp's
//! user notification), and then carries it out.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{Arc, Mutex};

use anyhow::{Context, Result};

/// The descriptor of the notifications in the program, a number that is free there.
const THERE: RawFd = 200;
/// BPF_MAP_LOOKUP_ELEM, BPF_MAP_UPDATE_ELEM and BPF_MAP_DELETE_ELEM are 1, 2 and 3.
const OPERATIONS: std::ops::RangeInclusive<u32> = 1..=3;

/// The operations so far, by their numbers.
#[derive(Clone, Debug, Default)]
pub struct Operations(Arc<Mutex<Vec<u32>>>);

impl Operations {
    /// The operations since the last call.
    pub fn take(&self) -> Vec<u32> {
        self.0
            .lock()
            .map(|mut o| std::mem::take(&mut *o))
            .unwrap_or_default()
    }
}

fn statement(code: u32, k: u32) -> libc::sock_filter {
    jump(code, k, 0, 0)
}

fn jump(code: u32, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    }
}

/// Notifies bpf(2) calls of one of [`OPERATIONS`]; everything else passes.
fn filter() -> [libc::sock_filter; 7] {
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let at_least = libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K;
    let result = libc::BPF_RET | libc::BPF_K;
    // struct seccomp_data: the system call's number at 0, its first argument at 16.
    [
        statement(load, 0),
        jump(equal, libc::SYS_bpf as u32, 0, 3),
        statement(load, 16),
        jump(at_least, *OPERATIONS.start(), 0, 1),
        jump(at_least, OPERATIONS.end() + 1, 0, 1),
        statement(result, libc::SECCOMP_RET_ALLOW),
        statement(result, libc::SECCOMP_RET_USER_NOTIF),
    ]
}

/// Puts the filter on this process and leaves its notifications at [`THERE`]. Async-signal-safe.
fn install(filter: &[libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_ptr().cast_mut(),
    };
    // SAFETY: a whole program that outlives the call; descriptors alone are made.
    unsafe {
        let fd = libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
            &raw const program,
        );
        if fd < 0 || libc::dup2(fd as RawFd, THERE) < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Makes the command notify its operations.
pub fn notify(command: &mut Command) {
    let filter = filter();
    // SAFETY: between fork and exec, and `install` makes system calls alone.
    unsafe { command.pre_exec(move || install(&filter)) };
}

/// Collects the operations of a process started with [`notify`], until it has ended.
pub fn collect(pid: u32) -> Result<Operations> {
    // SAFETY: two system calls that make descriptors.
    let listener = unsafe {
        let process = libc::syscall(libc::SYS_pidfd_open, pid, 0);
        if process < 0 {
            return Err(io::Error::last_os_error()).context("pidfd_open");
        }
        let process = OwnedFd::from_raw_fd(process as RawFd);
        let got = libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), THERE, 0);
        if got < 0 {
            return Err(io::Error::last_os_error()).context("pidfd_getfd");
        }
        OwnedFd::from_raw_fd(got as RawFd)
    };
    let all = Operations::default();
    let to = all.clone();
    std::thread::spawn(move || while next(&listener, &to) {});
    Ok(all)
}

/// Waits for a notification, records it and lets the call continue. False when no process is left that could send one.
fn next(listener: &OwnedFd, to: &Operations) -> bool {
    let fd = listener.as_raw_fd();
    let mut poll = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one pollfd.
    if unsafe { libc::poll(&mut poll, 1, -1) } < 0 || poll.revents & libc::POLLIN == 0 {
        return poll.revents & libc::POLLHUP == 0;
    }
    // SAFETY: both structures are plain integers, zeroed as the kernel requires.
    unsafe {
        let mut got: libc::seccomp_notif = std::mem::zeroed();
        // SECCOMP_IOCTL_NOTIF_RECV; the call may have been interrupted meanwhile.
        if libc::ioctl(fd, 0xc050_2100, &raw mut got) != 0 {
            return true;
        }
        if let Ok(mut all) = to.0.lock() {
            all.push(got.data.args[0] as u32);
        }
        let mut answer: libc::seccomp_notif_resp = std::mem::zeroed();
        answer.id = got.id;
        answer.flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
        // SECCOMP_IOCTL_NOTIF_SEND
        libc::ioctl(fd, 0xc018_2101, &raw mut answer);
    }
    true
}
