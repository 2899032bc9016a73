//! One process seen from outside: its life and activity, its memory, its children, and whether it shares a ring with another
//! process. All facts come from `/proc` and from its CPU clock.

use nvcap_process::procfs::{maps::Line, stat::Stat};
use std::{
    cell::Cell,
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
    time::Duration,
};

use super::super::run::Target;
use crate::polled::{to_poll, wait_for};
pub(crate) use nvcap_process::clock::{now, own_cpu, thread_cpu};
use nvcap_process::error::{Error, Result};
use nvcap_process::procfs::{self, mem::Memory, unfit};
use nvcap_process::{clock, memory::maps};

thread_local! {
    /// CPU time of this thread that was spent in [`left_out`], ns.
    static LEFT_OUT: Cell<u64> = const { Cell::new(0) };
}

/// CPU time of this thread without the time spent in [`left_out`], ns.
pub(crate) fn search_cpu() -> u64 {
    thread_cpu().saturating_sub(LEFT_OUT.get())
}

/// Does other work in the middle of a search. Its time does not count as the search's cost.
pub(crate) fn left_out(other: impl FnOnce()) {
    let (begun, before) = (thread_cpu(), LEFT_OUT.get());
    other();
    // It may itself have left something out, which is a part of it.
    LEFT_OUT.set(before + thread_cpu().saturating_sub(begun));
}

/// The clock that counts a process's CPU time.
fn clock_of(pid: u32) -> Option<libc::clockid_t> {
    let mut id = 0;
    // SAFETY: room for one clock id.
    (unsafe { libc::clock_getcpuclockid(pid as i32, &mut id) } == 0).then_some(id)
}

/// Bytes of memory that are taken from the kernel beforehand: as much as the launches of several full rings take.
const READY: usize = 16 << 20;

/// Counts the disturbances of this thread so far: page faults, waits, and losses of the processor to another thread.
pub(crate) fn disturbances() -> [i64; 3] {
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

/// Argument of `sched_setattr`, as of its first version.
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

/// Makes this thread's sleeps end on time instead of up to 50 us later. Where it is allowed, also makes the thread run before
/// others that want the processor: by its niceness and, from Linux 6.12 on, by asking for short turns, which come sooner.
pub(crate) fn run_before_others() {
    // SAFETY: sets this thread's timer slack, 1 us.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_000, 0, 0, 0) };
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

/// Prepares the thread that observes: see [`run_before_others`].
pub(crate) fn raise_priority() {
    run_before_others();
    make_memory_ready();
}

/// Keeps another thread of this program from taking this thread's processor. When this thread wakes the other one, the kernel may
/// run it at once on the same processor. So the other thread gets a policy that does not preempt; and with four processors or more,
/// this thread gets the first half of them and the other one the second half.
pub(crate) fn split_cpus(other: i32) {
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

/// Takes memory from the kernel now, and keeps it. Otherwise it would be taken, with a page fault every 4 KiB, just when a program
/// begins to submit at full speed.
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

/// State of a process by `/proc/PID/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State {
    /// True if the process has not ended.
    pub lives: bool,
    /// True if the process still runs its parent's program.
    pub forked: bool,
}

/// Reads the state of a process.
pub(crate) fn state(pid: u32) -> State {
    match Stat::of_process(pid) {
        Ok(stat) => State::of(&stat),
        // Where no descriptor is left to read it with, that neither ends the process nor shows that it lives: it is asked for.
        Err(e) => State {
            lives: !matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ESRCH))
                && e.kind() != io::ErrorKind::InvalidData
                && is_there(pid),
            forked: false,
        },
    }
}

/// Tells whether there is such a process. Takes no descriptor.
pub(crate) fn is_there(pid: u32) -> bool {
    // SAFETY: no signal is sent: only whether one could be.
    let failed = unsafe { libc::kill(pid as i32, 0) } != 0;
    !(failed && io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH))
}

impl State {
    fn of(stat: &Stat) -> Self {
        // Where its first thread has ended and others go on, the process looks like one that has ended.
        let others = stat.state == 'Z' && stat.threads.is_some_and(|n| n > 1);
        Self {
            lives: others || !stat.is_over(),
            forked: stat.is_forked(),
        }
    }
}

/// Tells whether the number is a process's rather than a thread's.
pub(crate) fn is_process(pid: u32) -> bool {
    procfs::process_of(pid) == Some(pid)
}

/// The parent of a process.
pub(crate) fn parent(pid: u32) -> Option<u32> {
    Stat::of_process(pid).ok()?.parent
}

/// Start of a process, clock ticks since the machine's start. Id and start together identify a process.
pub(crate) fn start(pid: u32) -> Option<u64> {
    Stat::of_process(pid).ok()?.start
}

/// Command name.
pub(crate) fn name(pid: u32) -> String {
    procfs::name(pid, None).unwrap_or_default()
}

/// A process's memory and CPU clock.
#[derive(Debug)]
pub(crate) struct OpenedProcess {
    /// Its id.
    pub pid: u32,
    /// Memory of the process, as long as it executes the program that was opened.
    pub memory: Memory,
    clock: Option<libc::clockid_t>,
    /// Descriptor by which the process's end can be waited for; kernels before 5.3 have none.
    end: Option<OwnedFd>,
}

fn pidfd(pid: u32) -> Option<OwnedFd> {
    // SAFETY: opens a descriptor; no memory is passed.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    // SAFETY: a new descriptor that nobody else has.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Waits until one of these processes has ended or one of `wakes` becomes readable, but no longer than `most`. Returns the
/// processes that have ended.
pub(crate) fn wait_for_end<'a>(
    processes: impl Iterator<Item = &'a OpenedProcess>,
    wakes: &[RawFd],
    most: Duration,
) -> Vec<u32> {
    let (pids, mut polled): (Vec<u32>, Vec<libc::pollfd>) = processes
        .filter_map(|p| Some((p.pid, to_poll(p.end.as_ref()?.as_raw_fd()))))
        .unzip();
    wait_for(&mut polled, wakes, most);
    let ended = pids.into_iter().zip(polled).filter(|(_, p)| p.revents != 0);
    ended.map(|(pid, _)| pid).collect()
}

impl OpenedProcess {
    /// Opens a process.
    ///
    /// # Errors
    /// Those of opening `/proc/PID/mem`.
    pub(crate) fn open(pid: u32) -> io::Result<Self> {
        Ok(Self {
            pid,
            memory: Memory::open(pid)?,
            clock: clock_of(pid),
            end: pidfd(pid),
        })
    }

    /// CPU time that the process has used, ns; `None` when it is gone.
    pub(crate) fn cpu(&self) -> Option<u64> {
        clock::read(self.clock?)
    }
}

/// Looks for mistakes of the user that can be recognized before the trace begins.
///
/// # Errors
/// The first mistake found, with its remedy.
pub(crate) fn check(target: &Target) -> Result<()> {
    let Target::Pids(pids) = target else {
        return Ok(());
    };
    for pid in pids {
        if let Some(unfit) = unfit::unfit(*pid) {
            return Err(Error::unfit("observing", *pid, unfit));
        }
        OpenedProcess::open(*pid).map_err(|e| refusal(*pid, &e))?;
    }
    Ok(())
}

/// Returns the reason why a process cannot be observed, and the remedy.
pub(crate) fn refusal(pid: u32, e: &io::Error) -> Error {
    if let Some(unfit) = unfit::unfit(pid) {
        return Error::unfit("observing", pid, unfit);
    }
    let next = match e.raw_os_error() {
        // Yama binds none who may look into all.
        Some(libc::EACCES | libc::EPERM) if procfs::is_root() => {
            return Error::unfit("observing", pid, unfit::refused(pid));
        }
        Some(libc::EACCES | libc::EPERM) => {
            match procfs::ptrace_scope().as_str() {
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

/// Identity of a piece of shared anonymous memory, which is the same in every process and at every address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    /// The device of the memory's file system, as the kernel writes it.
    device: String,
    inode: u64,
    /// Offset in the file.
    offset: u64,
}

/// The identity of the shared anonymous memory that is mapped at `address`. `None` for memory of other kinds. (All mappings of a
/// device file have the same inode.)
pub(crate) fn shared_identity(pid: u32, address: u64) -> Option<Identity> {
    let mut identity = None;
    let each = &mut |line: Line<'_>| identity = identity.take().or(identity_of(&line, address));
    procfs::maps::each_line(pid, &mut || (), each).ok()?;
    identity
}

fn identity_of(line: &Line<'_>, address: u64) -> Option<Identity> {
    if !(line.start..line.end).contains(&address) {
        return None;
    }
    let anonymous = line.inode != 0 && maps::device_of_path(line.path).is_none();
    (line.shared() && anonymous).then(|| Identity {
        device: line.device.to_owned(),
        inode: line.inode,
        offset: line.offset + (address - line.start),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn what_is_left_out_is_no_part_of_a_search() {
        let work = |ns: u64| {
            let until = thread_cpu() + ns;
            while thread_cpu() < until {
                std::hint::spin_loop();
            }
        };
        let (whole, search) = (thread_cpu(), search_cpu());
        left_out(|| {
            work(2_000_000);
            left_out(|| work(2_000_000));
        });
        let (whole, search) = (thread_cpu() - whole, search_cpu() - search);
        assert!(
            whole >= 4_000_000 && search < whole / 2,
            "{search} of {whole}"
        );
    }

    fn parse_state(line: &str) -> State {
        State::of(&Stat::parse(line).unwrap())
    }

    fn identity(line: &str, address: u64) -> Option<Identity> {
        identity_of(&Line::parse(line).unwrap(), address)
    }

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
        let threads = |n: u32| line("Z", 0) + &format!(" 0 0 0 0 0 0 0 {n} 0");
        assert!(!parse_state(&threads(1)).lives);
        assert!(parse_state(&threads(2)).lives, "its first thread has ended");
        assert_eq!(Stat::parse(""), None);
    }

    #[test]
    fn a_process_with_any_name_lives() {
        use std::os::unix::ffi::OsStrExt;

        let folder = std::env::temp_dir().join(format!("nvcap-named-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        // A program's file names its process.
        for name in [&b"\xff"[..], b"abcdefghijklmn\xc3\xa9", b") Z ("] {
            let program = folder.join(std::ffi::OsStr::from_bytes(name));
            std::os::unix::fs::symlink("/bin/sleep", &program).unwrap();
            let mut child = std::process::Command::new(&program)
                .arg("60")
                .spawn()
                .unwrap();
            let (seen, called) = (state(child.id()), super::name(child.id()));
            child.kill().unwrap();
            child.wait().unwrap();
            assert!(seen.lives, "{name:?}");
            assert!(!called.is_empty());
            assert!(!state(child.id()).lives);
        }
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn this_process_lives_and_uses_cpu() {
        let me = std::process::id();
        assert!(state(me).lives);
        let process = OpenedProcess::open(me).unwrap();
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
            identity(line, 0x2_0060_0010),
            Some(Identity {
                device: "00:01".into(),
                inode: 77,
                offset: 0x1010
            })
        );
        assert_eq!(identity(line, 0x2_0080_0000), None);
        let device = "200600000-200800000 rw-s 00000000 00:05 512 /dev/nvidia0";
        assert_eq!(identity(device, 0x2_0060_0010), None);
        let private = "200600000-200800000 rw-p 00000000 00:00 0";
        assert_eq!(identity(private, 0x2_0060_0010), None);
    }
}
