//! One process seen from outside: whether it lives and runs, its memory, its children, and whether two processes
//! share a ring. All of it through `/proc` and its CPU clock.

use std::{
    fs, io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    time::Duration,
};

use super::super::{
    error::{Error, Result},
    run::Target,
};
use crate::source::memory::{maps, process::Memory};

/// PF_FORKNOEXEC of `/proc/PID/stat`: it was forked and runs its parent's program still.
const FORKED: u64 = 0x40;

/// CLOCK_MONOTONIC, ns.
pub fn now() -> u64 {
    clock(libc::CLOCK_MONOTONIC).unwrap_or(0)
}

/// CPU time of this program, all its threads, ns.
pub fn own_cpu() -> u64 {
    clock(libc::CLOCK_PROCESS_CPUTIME_ID).unwrap_or(0)
}

/// CPU time of this thread, ns.
pub fn thread_cpu() -> u64 {
    clock(libc::CLOCK_THREAD_CPUTIME_ID).unwrap_or(0)
}

fn clock(id: libc::clockid_t) -> Option<u64> {
    let mut t = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: room for one timespec.
    let ok = unsafe { libc::clock_gettime(id, &mut t) } == 0;
    ok.then(|| t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64)
}

/// The clock that counts a process's CPU time.
fn clock_of(pid: u32) -> Option<libc::clockid_t> {
    let mut id = 0;
    // SAFETY: room for one clock id.
    (unsafe { libc::clock_getcpuclockid(pid as i32, &mut id) } == 0).then_some(id)
}

/// Memory that is made ready for what is read, bytes: a ring's worth of launches several times over.
const READY: usize = 16 << 20;

/// Of this thread: page faults, times that it waited, times that another took the processor from it.
pub fn disturbances() -> [i64; 3] {
    // SAFETY: a structure of numbers, for which zero is a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: room for one structure.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) };
    [
        usage.ru_minflt + usage.ru_majflt,
        usage.ru_nvcsw,
        usage.ru_nivcsw,
    ]
}

/// What `sched_setattr` takes, as of its first version.
#[repr(C)]
struct Scheduling {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// Lets this thread's sleeps end when they should instead of up to 50 us later and, where that is allowed, lets it
/// run before others that want the processor: by its niceness, and, from Linux 6.12 on, by asking for short turns, which
/// come sooner.
pub fn be_on_time() {
    // SAFETY: sets this thread's timer slack, 1 us.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_000, 0, 0, 0) };
    make_memory_ready();
    // SAFETY: reads this thread's own policy. Another one than usual was asked for (`chrt`).
    if unsafe { libc::sched_getscheduler(0) } != libc::SCHED_OTHER {
        return;
    }
    // SAFETY: reads this thread's own niceness.
    let nice = unsafe { libc::getpriority(libc::PRIO_PROCESS, libc::gettid() as u32) };
    for nice in [nice.min(-10), nice] {
        let scheduling = Scheduling {
            size: size_of::<Scheduling>() as u32,
            policy: libc::SCHED_OTHER as u32,
            flags: 0,
            nice,
            priority: 0,
            runtime: 100_000,
            deadline: 0,
            period: 0,
        };
        // SAFETY: reads a structure of the size that it names; changes this thread alone, and a refusal changes nothing.
        if unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &scheduling, 0) } == 0 {
            break;
        }
    }
}

/// Keeps another thread of this program's from taking the processor from this one: when this thread wakes it up, the
/// kernel may let it run at once and here. It is given a policy that does not preempt, and, where there are four
/// processors or more, this thread gets the first half of them and the other one the second.
pub fn keep_apart(other: i32) {
    let none = libc::sched_param { sched_priority: 0 };
    // SAFETY: changes one thread of this process; a refusal changes nothing.
    unsafe { libc::sched_setscheduler(other, libc::SCHED_BATCH, &none) };
    // SAFETY: a bit set, for which zero is a value.
    let mut all: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: room for a set of that size.
    if unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut all) } != 0 {
        return;
    }
    let bits = 0..8 * size_of::<libc::cpu_set_t>();
    // SAFETY: the index is below the set's size.
    let allowed: Vec<usize> = bits
        .filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &all) })
        .collect();
    if allowed.len() < 4 {
        return;
    }
    let (mine, its) = allowed.split_at(allowed.len() / 2);
    for (thread, cpus) in [(0, mine), (other, its)] {
        // SAFETY: as above.
        let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
        for cpu in cpus {
            // SAFETY: the index is below the set's size.
            unsafe { libc::CPU_SET(*cpu, &mut set) };
        }
        // SAFETY: reads a set of that size; changes one thread of this process.
        unsafe { libc::sched_setaffinity(thread, size_of::<libc::cpu_set_t>(), &set) };
    }
}

/// Takes memory from the kernel now that would else be taken, a page fault every 4 KiB, just when a program begins to
/// submit at full speed; and keeps it.
fn make_memory_ready() {
    #[cfg(target_env = "gnu")]
    // SAFETY: sets numbers of the allocator: freed memory is kept, and large pieces come out of what was kept.
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, 256 << 20);
        libc::mallopt(libc::M_MMAP_THRESHOLD, 32 << 20);
    }
    let mut ready = vec![0u8; READY];
    for page in ready.chunks_mut(4096) {
        page[0] = 1;
    }
    std::hint::black_box(&mut ready);
}

/// What `/proc/PID/stat` tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// It has not ended.
    pub lives: bool,
    /// It runs its parent's program still.
    pub forked: bool,
}

/// Looks whether a process lives.
pub fn state(pid: u32) -> State {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    parse_state(&text)
}

fn parse_state(text: &str) -> State {
    // The name may hold anything, parentheses too: what follows is behind the last one.
    let mut words = text.rsplit_once(')').map_or("", |t| t.1).split_whitespace();
    let letter = words.next().unwrap_or("X");
    let flags = words.nth(5).and_then(|w| w.parse::<u64>().ok());
    State {
        lives: !matches!(letter, "Z" | "X" | "x"),
        forked: flags.is_some_and(|f| f & FORKED != 0),
    }
}

/// Command name.
pub fn name(pid: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim_end().to_owned()
}

/// Size of its address space in pages: what tells cheaply that mappings may have changed.
pub fn pages(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
    let first = text.split_whitespace().next();
    first.and_then(|w| w.parse().ok()).unwrap_or(0)
}

/// The processes that it has made and that live. `between` is called after each of its threads.
pub fn children(pid: u32, between: &mut dyn FnMut()) -> Vec<u32> {
    let mut all = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten()
    {
        let text = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        all.extend(
            text.split_whitespace()
                .filter_map(|w| w.parse::<u32>().ok()),
        );
        between();
    }
    all
}

/// A process's memory and CPU clock.
#[derive(Debug)]
pub struct Process {
    /// Its id.
    pub pid: u32,
    /// Its memory, while its program is the one that was opened.
    pub memory: Memory,
    clock: Option<libc::clockid_t>,
    /// By which its end can be waited for; kernels before 5.3 have none.
    end: Option<OwnedFd>,
}

fn pidfd(pid: u32) -> Option<OwnedFd> {
    // SAFETY: opens a descriptor; no memory is passed.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    // SAFETY: a new descriptor that nobody else has.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Waits until one of these processes has ended, for `most` at most; gives those that have.
pub fn wait_for_end<'a>(processes: impl Iterator<Item = &'a Process>, most: Duration) -> Vec<u32> {
    let (pids, mut polled): (Vec<u32>, Vec<libc::pollfd>) = processes
        .filter_map(|p| {
            let fd = p.end.as_ref()?.as_raw_fd();
            let poll = libc::pollfd {
                fd,
                events: libc::POLLIN,
                revents: 0,
            };
            Some((p.pid, poll))
        })
        .unzip();
    let most = libc::timespec {
        tv_sec: most.as_secs() as libc::time_t,
        tv_nsec: most.subsec_nanos().into(),
    };
    let count = polled.len() as libc::nfds_t;
    // SAFETY: `count` pollfds, a timespec, no signal mask.
    unsafe { libc::ppoll(polled.as_mut_ptr(), count, &most, std::ptr::null()) };
    let ended = pids.into_iter().zip(polled).filter(|(_, p)| p.revents != 0);
    ended.map(|(pid, _)| pid).collect()
}

impl Process {
    /// Opens it.
    ///
    /// # Errors
    /// Those of opening `/proc/PID/mem`.
    pub fn open(pid: u32) -> io::Result<Self> {
        Ok(Self {
            pid,
            memory: Memory::open(pid)?,
            clock: clock_of(pid),
            end: pidfd(pid),
        })
    }

    /// CPU time it has used, ns; `None` when it is gone.
    pub fn cpu(&self) -> Option<u64> {
        clock(self.clock?)
    }
}

/// What can be told before anything is looked at.
///
/// # Errors
/// The first mistake found, with its remedy.
pub fn check(target: &Target) -> Result<()> {
    let Target::Pids(pids) = target else {
        return Ok(());
    };
    for pid in pids {
        if !state(*pid).lives {
            return Err(Error::new(
                format!("observing process {pid}"),
                "there is no such process",
                "check the process id (pgrep, nvidia-smi)",
            ));
        }
        Process::open(*pid).map_err(|e| refusal(*pid, &e))?;
    }
    Ok(())
}

/// Why a process cannot be observed, and what to do.
pub fn refusal(pid: u32, e: &io::Error) -> Error {
    let next = match e.raw_os_error() {
        Some(libc::ENOENT | libc::ESRCH) => {
            "there is no such process; check the process id".to_owned()
        }
        Some(libc::EACCES | libc::EPERM) => {
            let yama = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
            match yama.trim() {
                "1" => "run nvcap as root (sudo nvcap ...), or let it start the command: with kernel.yama.ptrace_scope = 1 \
                        even your own processes may be read by their ancestors alone"
                    .to_owned(),
                "2" | "3" => {
                    "run nvcap as root (sudo nvcap ...): kernel.yama.ptrace_scope forbids it to others".to_owned()
                }
                _ => "it is not yours: run nvcap as root (sudo nvcap ...) or as its owner".to_owned(),
            }
        }
        _ => "`nvcap doctor` says what this machine allows".to_owned(),
    };
    Error::new(format!("observing process {pid}"), e, next)
}

/// A number that two processes' shared anonymous memory has in common: device and inode of the mapping, and the
/// offset in it of `address`. `None` for memory of other kinds (device files have one inode for all).
pub fn shared_identity(pid: u32, address: u64) -> Option<(String, u64, u64)> {
    let text = fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
    text.lines().find_map(|line| identity_of(line, address))
}

fn identity_of(line: &str, address: u64) -> Option<(String, u64, u64)> {
    let mut words = line.split_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let start = u64::from_str_radix(start, 16).ok()?;
    let end = u64::from_str_radix(end, 16).ok()?;
    if !(start..end).contains(&address) {
        return None;
    }
    let shared = words.next()?.as_bytes().get(3) == Some(&b's');
    let offset = u64::from_str_radix(words.next()?, 16).ok()?;
    let device = words.next()?.to_owned();
    let inode: u64 = words.next()?.parse().ok()?;
    let path = words.collect::<Vec<_>>().join(" ");
    let anonymous = inode != 0 && maps::device_of_path(&path).is_none();
    (shared && anonymous).then_some((device, inode, offset + (address - start)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states() {
        let line =
            |letter: &str, flags: u64| format!("12 (a) b (c)) {letter} 1 12 12 0 -1 {flags} 0 0 0");
        assert_eq!(
            parse_state(&line("S", 0x40_0040)),
            State {
                lives: true,
                forked: true
            }
        );
        assert_eq!(
            parse_state(&line("R", 0x40_0000)),
            State {
                lives: true,
                forked: false
            }
        );
        assert!(!parse_state(&line("Z", 0)).lives);
        assert!(!parse_state("").lives);
    }

    #[test]
    fn this_process_lives_and_uses_cpu() {
        let me = std::process::id();
        assert!(state(me).lives);
        assert!(pages(me) > 10);
        let process = Process::open(me).unwrap();
        let before = process.cpu().unwrap();
        let mut x = 1u64;
        while own_cpu() < before + 2_000_000 {
            x = std::hint::black_box(x.wrapping_mul(3));
        }
        assert!(process.cpu().unwrap() > before);
    }

    #[test]
    fn only_shared_anonymous_memory_has_an_identity() {
        let line = "200600000-200800000 rw-s 00001000 00:01 77 /dev/zero (deleted)";
        assert_eq!(
            identity_of(line, 0x2_0060_0010),
            Some(("00:01".into(), 77, 0x1010))
        );
        assert_eq!(identity_of(line, 0x2_0080_0000), None);
        let device = "200600000-200800000 rw-s 00000000 00:05 512 /dev/nvidia0";
        assert_eq!(identity_of(device, 0x2_0060_0010), None);
        let private = "200600000-200800000 rw-p 00000000 00:00 0";
        assert_eq!(identity_of(private, 0x2_0060_0010), None);
    }
}
