//! Processes as the kernel shows them in `/proc`. The text there may contain any bytes, because a thread's name may (`prctl(PR_SET_NAME)`,
//! and the cut at 15 bytes may fall within a character), and so may a file's name. A reader that insists on UTF-8 does not see processes
//! with such names.
//!
//! - [`stat`]: state, parent and flags of a process or thread.
//! - [`tasks`]: the states of a process's threads.
//! - [`maps`]: mappings, read one page of text at a time.
//! - [`mem`]: the memory.
//! - [`served`]: mappings of files that another program serves, which are not read.
//! - `errands`: reads that may never end, made by a process that can be left alone.
//! - [`kernel_log`]: messages of the kernel.
//! - [`births`]: numbers of new processes.
//! - [`unfit`]: reasons why a process cannot be looked into.
//! - [`budget`]: limits of reading data that a process chose.
//! - [`auxv`]: values that the kernel passed to the program at its start.
//! - [`environ`]: the environment that the program was started with.
//!
//! The `procfs` crate is not suitable here. It refuses names that are not UTF-8; it reads all of `maps` before it gives the first line (a
//! process may have 65,530 lines, and a live trace looks at its rings between two pages of them); and to it, a process whose first thread
//! has ended has no memory.

use std::{
    fs, io,
    os::{fd::AsRawFd as _, unix::fs::OpenOptionsExt as _},
    path::Path,
    sync::LazyLock,
};

pub mod auxv;
pub mod births;
pub mod budget;
mod command_line;
pub mod environ;
mod errands;
pub mod kernel_log;
mod lossy;
pub mod maps;
pub mod mem;
pub mod served;
pub mod stat;
pub mod tasks;
pub mod unfit;

pub use command_line::{arguments, command_line};
pub(crate) use lossy::text;
use stat::Stat;

/// Returns the size of a page of this kernel, bytes: 4 KiB, on aarch64 also 16 or 64 KiB.
pub fn page_size() -> u64 {
    // SAFETY: reads a constant of the system.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// Tells whether this program runs as root.
pub fn is_root() -> bool {
    // SAFETY: reads an id.
    unsafe { libc::geteuid() == 0 }
}

/// Returns the name of a process, or of a thread by its id under `task`; `None` if the process or thread is gone.
pub fn name(pid: u32, tid: Option<u32>) -> Option<String> {
    let text = text(match tid {
        Some(tid) => format!("/proc/{pid}/task/{tid}/comm"),
        None => format!("/proc/{pid}/comm"),
    });
    // Trailing spaces belong to the name.
    text.ok()
        .map(|t| t.strip_suffix('\n').unwrap_or(&t).to_owned())
}

/// Returns the path of `what` of a process: `maps`, `mem`, `fd` and other files that belong to its memory. When the first thread has ended
/// and others live, `/proc/PID` no longer has these files, but the folders of the living threads do.
pub fn of_process(pid: u32, what: &str) -> String {
    let whole = format!("/proc/{pid}");
    if !is_over(&whole) {
        return format!("{whole}/{what}");
    }
    match living_thread(pid) {
        Some(tid) => format!("{whole}/task/{tid}/{what}"),
        None => format!("{whole}/{what}"),
    }
}

/// Returns a thread of a process that has not ended. It is the first one found, because a process may have many threads and this is called
/// often.
fn living_thread(pid: u32) -> Option<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter();
    let mut all = tasks.flatten().filter_map(|task| number(&task.ok()?));
    all.find(|tid| Stat::of_thread(pid, *tid).is_ok_and(|s| !s.is_over()))
}

/// Tells whether the thread of this folder has ended and waits to be reaped.
fn is_over(folder: &str) -> bool {
    let stat = text(format!("{folder}/stat")).ok();
    stat.and_then(|s| Stat::parse(&s))
        .is_some_and(|s| s.is_over())
}

/// Tells whether the process exists, alive or waiting to be reaped.
pub fn exists(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

/// Returns the processes of this machine (of this PID namespace), by id, in no order. Errands of nvcap are left out.
pub fn processes() -> Vec<u32> {
    let mut all = ids(Path::new("/proc")).unwrap_or_default();
    all.retain(|pid| !errands::is_errand(*pid));
    all
}

/// Returns the threads of a process.
///
/// # Errors
/// The errors of reading `/proc/PID/task`: no such process.
pub fn threads(pid: u32) -> io::Result<Vec<u32>> {
    ids(Path::new(&format!("/proc/{pid}/task")))
}

/// Tells whether a thread has run. This is true also if the thread is gone, and if the kernel does not count runs.
pub fn has_run(pid: u32, tid: u32) -> bool {
    // This program has certainly run.
    static IS_COUNTED: LazyLock<bool> = LazyLock::new(|| slices(Path::new("/proc/self")) > Some(0));
    let slices = slices(Path::new(&format!("/proc/{pid}/task/{tid}")));
    !*IS_COUNTED || slices != Some(0)
}

/// Returns the number of times that a thread got a processor.
fn slices(folder: &Path) -> Option<u64> {
    // The count follows the time on a processor and the time of waiting for one, ns.
    let text = text(folder.join("schedstat")).ok()?;
    text.split_whitespace().nth(2)?.parse().ok()
}

/// Returns the names in a folder that are numbers.
fn ids(folder: &Path) -> io::Result<Vec<u32>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder)? {
        all.extend(number(&entry?));
    }
    Ok(all)
}

/// Returns the number that is the name of a folder's entry.
fn number(entry: &fs::DirEntry) -> Option<u32> {
    entry.file_name().to_str()?.parse().ok()
}

/// Returns the children of all threads of a process. `between` is called after each thread.
pub fn children(pid: u32, between: &mut dyn FnMut()) -> Vec<u32> {
    let mut all = Vec::new();
    for tid in threads(pid).unwrap_or_default() {
        let text = text(format!("/proc/{pid}/task/{tid}/children")).unwrap_or_default();
        all.extend(
            text.split_whitespace()
                .filter_map(|w| w.parse::<u32>().ok()),
        );
        between();
    }
    all
}

/// Returns the value of a line of `status`, such as `CapEff`; `None` if there is no such line. `who` is the id of a process or thread, or
/// `self`.
pub(crate) fn status(who: impl std::fmt::Display, line: &str) -> Option<String> {
    let text = text(format!("/proc/{who}/status")).ok()?;
    text.lines()
        .find_map(|l| l.strip_prefix(line)?.strip_prefix(':'))
        .map(|value| value.trim().to_owned())
}

/// Returns a bit mask in `status`: capabilities or signals.
pub(crate) fn status_bits(who: impl std::fmt::Display, line: &str) -> Option<u64> {
    u64::from_str_radix(&status(who, line)?, 16).ok()
}

/// Returns the effective capabilities of this process, one bit each.
pub fn capabilities() -> u64 {
    status_bits("self", "CapEff").unwrap_or(0)
}

/// Returns the control groups of a process, in the kernel's form.
///
/// # Errors
/// The errors of reading the file: no such process.
pub fn cgroups(pid: u32) -> io::Result<String> {
    text(format!("/proc/{pid}/cgroup"))
}

/// Returns the process to which a process's or thread's id belongs.
pub fn process_of(id: u32) -> Option<u32> {
    status(id, "Tgid")?.parse().ok()
}

/// Returns the size of a process's address space in pages; 0 if there is no process or no memory.
pub fn pages(pid: u32) -> u64 {
    let of = |path: String| {
        let text = text(path).unwrap_or_default();
        let first = text.split_whitespace().next();
        first.and_then(|w| w.parse().ok()).unwrap_or(0)
    };
    match of(format!("/proc/{pid}/statm")) {
        // The first thread may have ended.
        0 => of(of_process(pid, "statm")),
        pages => pages,
    }
}

/// Returns the folder of a process's open files, which are links.
///
/// # Errors
/// The errors of reading the folder: no such process, or no right to read it.
pub fn open_files(pid: u32) -> io::Result<fs::ReadDir> {
    fs::read_dir(of_process(pid, "fd"))
}

/// Opens a file whose path a process controls, if it is a regular file and `fits` accepts it. No other file is opened, because opening
/// could act on a device, or wait for the other end of a pipe.
pub fn open_regular(
    path: impl AsRef<Path>,
    fits: impl Fn(&fs::Metadata) -> bool,
) -> Option<fs::File> {
    let open = |path: &Path, flags: i32| {
        let mut options = fs::OpenOptions::new();
        options.read(true).custom_flags(flags).open(path).ok()
    };
    // This descriptor only allows the file to be examined and then opened.
    let seen = open(path.as_ref(), libc::O_PATH)?;
    let regular = seen.metadata().ok().filter(fs::Metadata::is_file)?;
    fits(&regular).then_some(())?;
    let same = format!("/proc/self/fd/{}", seen.as_raw_fd());
    open(Path::new(&same), libc::O_NONBLOCK | libc::O_NOCTTY)
}

/// Returns the path by which a process's program is opened, wherever its file is now; `None` if the program is not the file that is mapped
/// under this name (without ` (deleted)`).
pub fn program_as(pid: u32, name: &str) -> Option<String> {
    let path = of_process(pid, "exe");
    let target = fs::read_link(&path).ok()?;
    let target = target.to_str()?;
    (target.strip_suffix(" (deleted)").unwrap_or(target) == name).then_some(path)
}

/// Tells whether no thread of a process runs any more: it is gone, or waits to be reaped.
pub fn has_ended(pid: u32) -> bool {
    all_threads(pid, |stat| stat.is_none_or(|s| s.is_over()))
}

/// Tells whether all threads of a process are exiting (PF_EXITING), or the process is gone.
pub fn is_ending(pid: u32) -> bool {
    all_threads(pid, |stat| stat.is_none_or(|s| s.is_exiting()))
}

/// Tells whether `so` holds for all threads. The first thread is examined first; it may have ended before the others.
fn all_threads(pid: u32, so: impl Fn(Option<Stat>) -> bool) -> bool {
    so(Stat::of_process(pid).ok())
        && threads(pid)
            .unwrap_or_default()
            .iter()
            .all(|tid| so(Stat::of_thread(pid, *tid).ok()))
}

/// Returns `kernel.yama.ptrace_scope`, which determines the processes that may trace others; empty if the kernel has no Yama.
pub fn ptrace_scope() -> String {
    let text = text("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    text.trim().to_owned()
}

/// Returns the kernel's release; empty if it cannot be read.
pub fn kernel_release() -> String {
    let text = text("/proc/sys/kernel/osrelease").unwrap_or_default();
    text.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs `then` in a thread of this process that has this name.
    fn named<T: Send>(name: &std::ffi::CStr, then: impl FnOnce(u32, u32) -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                // SAFETY: names this thread; the name ends with 0.
                unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
                // SAFETY: reads an id.
                then(std::process::id(), unsafe { libc::gettid() } as u32)
            });
            thread.join().unwrap()
        })
    }

    #[test]
    fn who_runs_has_run() {
        named(c"runs", |pid, tid| assert!(has_run(pid, tid)));
        assert!(has_run(0, 0), "there is none");
    }

    #[test]
    fn names_that_are_not_utf_8() {
        for (given, shown) in [
            (c"\xff", "\u{fffd}"),
            // 15 bytes are kept, which end within a character.
            (c"abcdefghijklmn\xc3\xa9", "abcdefghijklmn\u{fffd}"),
            (c"a) b (", "a) b ("),
            (c"ends with two  ", "ends with two  "),
        ] {
            named(given, |pid, tid| {
                assert_eq!(name(pid, Some(tid)).as_deref(), Some(shown));
                let all = tasks::tasks(pid).unwrap();
                let own = all.iter().find(|t| t.tid == tid).expect("it is there");
                assert_eq!((own.name.as_str(), own.state), (shown, 'R'));
            });
        }
        assert_eq!(name(u32::MAX, None), None);
    }

    /// Test that the mappings of a process whose first thread has ended are found by another thread.
    #[test]
    fn first_thread_that_has_ended() {
        // SAFETY: the child makes a thread and ends its first one by system calls only; both end soon.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: the child is killed when this test ends, whatever happens.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            std::thread::spawn(|| std::thread::sleep(std::time::Duration::from_secs(3600)));
            // SAFETY: ends only this thread.
            unsafe { libc::syscall(libc::SYS_exit, 0) };
        }
        let pid = child as u32;
        let own = format!("/proc/{pid}/maps");
        nvcap_waiting::until("the child's first thread has ended", || {
            is_over(&format!("/proc/{pid}"))
        });
        let (alone, found) = (text(&own), text(of_process(pid, "maps")));
        // SAFETY: a child of this test that has not been waited for yet.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
        assert!(alone.is_ok_and(|t| t.is_empty()) && found.unwrap().contains("[stack]"));
        assert_eq!(
            of_process(std::process::id(), "mem"),
            format!("/proc/{}/mem", std::process::id())
        );
    }

    #[test]
    fn a_process_ends_once_and_then_counts_as_ending() {
        let me = std::process::id();
        assert!(!has_ended(me) && !is_ending(me));
        assert_eq!(process_of(me), Some(me));
        assert!(processes().contains(&me) && threads(me).unwrap().contains(&me) && pages(me) > 10);
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        nvcap_waiting::until("the child has ended", || has_ended(pid) && is_ending(pid));
        assert!(exists(pid) && children(me, &mut || ()).contains(&pid));
        child.wait().unwrap();
        assert!(has_ended(pid), "nor is it there any more");
        assert!(!exists(pid) && threads(pid).is_err());
    }
}
