//! What a process's threads are doing, by `/proc/PID/task`: no stop, and no more than any `ps` reads.

use std::{fs, io};

use crate::hang::Thread as Task;

/// The threads of a process, by thread id. What cannot be read of one (it has ended) leaves it out.
///
/// # Errors
/// When the process is not there.
pub fn tasks(pid: u32) -> io::Result<Vec<Task>> {
    let mut all: Vec<Task> = fs::read_dir(format!("/proc/{pid}/task"))?
        .flatten()
        .filter_map(|entry| task(pid, entry.file_name().to_str()?.parse().ok()?))
        .collect();
    all.sort_by_key(|t| t.tid);
    Ok(all)
}

fn task(pid: u32, tid: u32) -> Option<Task> {
    let read = |what: &str| fs::read_to_string(format!("/proc/{pid}/task/{tid}/{what}")).ok();
    let (name, state, ticks) = parse_stat(&read("stat")?)?;
    let wchan = read("wchan").filter(|w| !w.is_empty() && w != "0");
    let syscall = read("syscall").and_then(|line| parse_syscall(&line));
    Some(Task {
        tid,
        name,
        state,
        ticks,
        wchan,
        syscall: syscall.map(|s| s.0),
        call: syscall.and_then(|s| call(s.0)),
        argument: syscall.map(|s| s.1),
    })
}

/// Name, state and ticks of a `stat` line. The name may hold anything, parentheses too.
fn parse_stat(line: &str) -> Option<(String, char, u64)> {
    let (open, close) = (line.find('(')?, line.rfind(')')?);
    let name = line.get(open + 1..close)?.to_owned();
    let mut fields = line.get(close + 1..)?.split_whitespace();
    let state = fields.next()?.chars().next()?;
    // utime is field 14, the state is field 3.
    let user: u64 = fields.nth(10)?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some((name, state, user + system))
}

/// Number and first argument; `None` for a thread that runs or is in no call.
fn parse_syscall(line: &str) -> Option<(u32, u64)> {
    let mut words = line.split_whitespace();
    let number = words.next()?.parse().ok()?;
    let first = words.next()?.trim_start_matches("0x");
    Some((number, u64::from_str_radix(first, 16).ok()?))
}

/// The calls that threads of GPU programs sit in.
#[cfg(target_arch = "x86_64")]
fn call(number: u32) -> Option<&'static str> {
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

#[cfg(not(target_arch = "x86_64"))]
fn call(_number: u32) -> Option<&'static str> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_as_the_kernel_writes_them() {
        let line = "4711 (a) b (c) S 1 2 3 0 -1 4194560 100 0 0 0 17 5 0 0 20 0 9 0 100";
        assert_eq!(parse_stat(line), Some(("a) b (c".to_owned(), 'S', 22)));
        assert_eq!(parse_stat("4711 (x"), None);
        let line = "202 0x7f12 0x189 0x0 0x0 0x0 0xffffffff 0x7ffd 0x7f00\n";
        assert_eq!(parse_syscall(line), Some((202, 0x7f12)));
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
