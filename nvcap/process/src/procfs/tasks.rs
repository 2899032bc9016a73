//! States of a process's threads, from `/proc/PID/task`. Reading them stops no thread, and reads no more than `ps` does.

use std::io;

use super::{stat::Stat, text, threads};

/// One thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// Thread id.
    pub tid: u32,
    /// Name of the thread.
    pub name: String,
    /// State, as in [`Stat::state`].
    pub state: char,
    /// Clock ticks for which the thread has run, in the program and in the kernel.
    pub ticks: u64,
    /// Kernel function in which the thread sleeps, if the kernel shows it.
    pub wchan: Option<String>,
    /// System call that the thread is in; `None` if the thread runs in the program, or if the kernel does not show the call.
    pub syscall: Option<Syscall>,
}

/// A system call in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Syscall {
    /// Number of the call.
    pub number: u32,
    /// First argument (a file descriptor, an address).
    pub first: u64,
}

/// Returns the threads of a process, by thread id. A thread that cannot be read, because it has ended, is left out.
///
/// # Errors
/// When the process does not exist.
pub fn tasks(pid: u32) -> io::Result<Vec<Task>> {
    let mut all: Vec<Task> = threads(pid)?
        .into_iter()
        .filter_map(|tid| task(pid, tid))
        .collect();
    all.sort_by_key(|t| t.tid);
    Ok(all)
}

fn task(pid: u32, tid: u32) -> Option<Task> {
    let read = |what: &str| text(format!("/proc/{pid}/task/{tid}/{what}")).ok();
    let stat = Stat::of_thread(pid, tid).ok()?;
    Some(Task {
        tid,
        name: stat.name,
        state: stat.state,
        ticks: stat.ticks?,
        wchan: read("wchan").filter(|w| !w.is_empty() && w != "0"),
        syscall: read("syscall").and_then(|line| parse_syscall(&line)),
    })
}

/// Position of a thread in its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// The thread waits in the kernel, and will continue here.
    InKernel {
        /// Stack pointer.
        sp: u64,
        /// Instruction pointer.
        ip: u64,
    },
    /// The thread runs, in the kernel or not.
    Running,
    /// The kernel does not show the position, or the thread is gone.
    Hidden,
}

/// Returns the position of a thread.
pub fn position(pid: u32, tid: u32) -> Position {
    text(format!("/proc/{pid}/task/{tid}/syscall")).map_or(Position::Hidden, |t| parse_position(&t))
}

/// Reads the last two words of a line of `syscall`: of a thread in a call, or of a thread that waits in no call
/// (-1: a page fault).
fn parse_position(line: &str) -> Position {
    let mut words = line.split_whitespace().rev();
    let mut hex = || u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
    match (hex(), hex()) {
        (Some(ip), Some(sp)) => Position::InKernel { sp, ip },
        _ if line.starts_with("running") => Position::Running,
        _ => Position::Hidden,
    }
}

/// Reads a call's number and first argument; `None` for a thread that runs or is in no call.
fn parse_syscall(line: &str) -> Option<Syscall> {
    let mut words = line.split_whitespace();
    let number = words.next()?.parse().ok()?;
    let first = words.next()?.trim_start_matches("0x");
    Some(Syscall {
        number,
        first: u64::from_str_radix(first, 16).ok()?,
    })
}

/// Returns the name of a system call in which threads of GPU programs are often found.
#[cfg(target_arch = "x86_64")]
pub fn call_name(number: u32) -> Option<&'static str> {
    Some(match number {
        0 => "read",
        1 => "write",
        7 => "poll",
        16 => "ioctl",
        23 => "select",
        24 => "sched_yield",
        34 => "pause",
        35 => "nanosleep",
        43 => "accept",
        45 => "recvfrom",
        47 => "recvmsg",
        61 => "wait4",
        128 => "rt_sigtimedwait",
        202 => "futex",
        230 => "clock_nanosleep",
        232 => "epoll_wait",
        247 => "waitid",
        270 => "pselect6",
        271 => "ppoll",
        281 => "epoll_pwait",
        441 => "epoll_pwait2",
        449 => "futex_waitv",
        _ => return None,
    })
}

/// Returns the name of a system call, by the numbers that newer architectures share (include/uapi/asm-generic/unistd.h).
#[cfg(not(target_arch = "x86_64"))]
pub fn call_name(number: u32) -> Option<&'static str> {
    Some(match number {
        22 => "epoll_pwait",
        29 => "ioctl",
        63 => "read",
        64 => "write",
        72 => "pselect6",
        73 => "ppoll",
        95 => "waitid",
        98 => "futex",
        101 => "nanosleep",
        115 => "clock_nanosleep",
        124 => "sched_yield",
        137 => "rt_sigtimedwait",
        202 => "accept",
        207 => "recvfrom",
        212 => "recvmsg",
        260 => "wait4",
        441 => "epoll_pwait2",
        449 => "futex_waitv",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_as_the_kernel_writes_them() {
        let line = "202 0x7f12 0x189 0x0 0x0 0x0 0xffffffff 0x7ffd 0x7f00\n";
        let futex = Syscall {
            number: 202,
            first: 0x7f12,
        };
        assert_eq!(parse_syscall(line), Some(futex));
        let there = Position::InKernel {
            sp: 0x7ffd,
            ip: 0x7f00,
        };
        assert_eq!(parse_position(line), there);
        assert_eq!(parse_position("-1 0x7ffd 0x7f00\n"), there);
        assert_eq!(parse_position("running\n"), Position::Running);
        assert_eq!(parse_position("202"), Position::Hidden);
        assert_eq!(parse_syscall("202"), None);
        assert_eq!(parse_syscall("running\n"), None);
        assert_eq!(parse_syscall("-1 0x7ffd 0x7f00\n"), None);
    }

    #[test]
    fn this_process() {
        let tasks = tasks(std::process::id()).unwrap();
        assert!(tasks.iter().any(|t| t.tid == std::process::id()));
        assert!(super::tasks(0).is_err());
    }
}
