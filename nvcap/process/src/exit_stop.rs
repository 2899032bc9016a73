//! Stops of processes by ptrace, mostly of processes that nvcap started. A process is stopped at its end, so that its memory can be read
//! once more while nothing changes it. It is also stopped at its birth and at an exec, so that no process is missed.
//!
//! PTRACE_SEIZE of one's own child, with PTRACE_O_TRACEEXIT, needs no capability. A stopped process waits until [`ExitStops::resume`]. This
//! module deals with all other effects of ptrace on a seized process: signals that pass through its tracer, and stops of job control. One
//! thread must make all calls: to the kernel, the thread that seizes is the tracer. When that thread ends, for whatever reason, the kernel
//! lets all seized processes go on.
//!
//! The module knows ptrace and `/proc/PID/task`, and nothing of GPUs.

use crate::procfs::stat::Stat;
use std::{
    collections::{BTreeMap, VecDeque},
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
    ptr,
    time::{Duration, Instant},
};

use crate::procfs;

/// SIGKILL in the signal sets of `/proc/PID/status`.
const KILL: u64 = 1 << (libc::SIGKILL - 1);
/// Lowest bit of the event in the wait status of a ptrace event.
const EVENT: i32 = 16;

/// Event that has stopped a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// A process was born.
    Born {
        /// The parent process.
        by: u32,
    },
    /// The process has executed another program.
    Executed,
    /// A thread of the process is about to end.
    Ending,
}

/// A stopped thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// Process of the thread.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// Event that has stopped the thread.
    pub stop: Stop,
}

/// The threads that are seized.
#[derive(Debug)]
pub struct ExitStops {
    /// Process id of the parent.
    seized: BTreeMap<u32, u32>,
    /// The child that nvcap started. Its end is left for its starter to take.
    child: Option<u32>,
    stopped: VecDeque<Stopped>,
    options: usize,
    wake: Option<OwnedFd>,
}

/// Blocks SIGCHLD, so that a descriptor can tell that a child or a seized process has changed. (The kernel would drop the signal if it were
/// not blocked.) It must be called before threads are started, because threads inherit the blocked signals.
pub fn block_sigchld() {
    // SAFETY: a signal set, for which zero is a value; changes this thread's mask alone.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigaddset(&mut set, libc::SIGCHLD);
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, ptr::null_mut());
    }
}

fn signal_descriptor() -> Option<OwnedFd> {
    // SAFETY: a signal set, for which zero is a value; makes a descriptor.
    let fd = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigaddset(&mut set, libc::SIGCHLD);
        libc::signalfd(-1, &set, libc::SFD_NONBLOCK | libc::SFD_CLOEXEC)
    };
    // SAFETY: a new descriptor that nobody else has.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Makes a ptrace request with two numbers.
fn ptrace(request: libc::c_uint, tid: u32, address: usize, data: usize) -> io::Result<()> {
    // SAFETY: of the requests used, only PTRACE_GETEVENTMSG takes a pointer, and this function does not make it.
    let result = unsafe { libc::ptrace(request, tid as i32, address, data) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

impl ExitStops {
    /// Makes a tracer that has seized nothing yet. With `follow`, children of seized processes are seized, too, at their birth.
    pub fn new(follow: bool) -> Self {
        let children = libc::PTRACE_O_TRACEFORK | libc::PTRACE_O_TRACEVFORK;
        let options =
            libc::PTRACE_O_TRACEEXIT | libc::PTRACE_O_TRACEEXEC | if follow { children } else { 0 };
        Self {
            seized: BTreeMap::new(),
            child: None,
            stopped: VecDeque::new(),
            options: options as usize,
            wake: signal_descriptor(),
        }
    }

    /// Seizes the command that nvcap itself has started. The command's end is left for its starter to take.
    ///
    /// # Errors
    /// As [`seize`](Self::seize).
    pub fn seize_child(&mut self, pid: u32) -> io::Result<()> {
        self.seize(pid)?;
        self.child = Some(pid);
        Ok(())
    }

    /// Seizes a process by its first thread.
    ///
    /// # Errors
    /// EPERM if the process is already traced (by a debugger, strace), is not ours, or is ending.
    pub fn seize(&mut self, pid: u32) -> io::Result<()> {
        self.seize_thread(pid, pid)
    }

    fn seize_thread(&mut self, pid: u32, tid: u32) -> io::Result<()> {
        if self.seized.contains_key(&tid) {
            return Ok(());
        }
        ptrace(libc::PTRACE_SEIZE, tid, 0, self.options)?;
        self.seized.insert(tid, pid);
        Ok(())
    }

    /// Seizes a process again that has executed another program. If the thread that executed it was neither the first one nor seized, the
    /// seized first thread is gone.
    pub fn seize_again(&mut self, pid: u32) {
        if self.seized.remove(&pid).is_some() {
            // The call is refused if the process is still seized.
            let _ = self.seize(pid);
            self.seized.insert(pid, pid);
        }
    }

    /// Tells whether the process is seized.
    pub fn has(&self, pid: u32) -> bool {
        self.seized.contains_key(&pid)
    }

    /// Tells whether no thread is seized.
    pub fn is_empty(&self) -> bool {
        self.seized.is_empty()
    }

    /// Returns the descriptor that becomes readable when something may have stopped.
    pub fn wake(&self) -> Option<RawFd> {
        self.wake.as_ref().map(AsRawFd::as_raw_fd)
    }

    /// Notes all stops, and ends at once those that need not wait: a thread that was stopped by a signal gets the signal. A stop that
    /// [`next`](Self::next) returns lasts until [`resume`](Self::resume).
    pub fn poll(&mut self) {
        if self.seized.is_empty() {
            return;
        }
        if let Some(wake) = &self.wake {
            let mut room = [0u8; size_of::<libc::signalfd_siginfo>() * 4];
            // SAFETY: there is room for that many bytes, and their values are not used. The read does not block.
            unsafe { libc::read(wake.as_raw_fd(), room.as_mut_ptr().cast(), room.len()) };
        }
        while let Some((tid, ended)) = changed() {
            if ended && self.child == Some(tid) {
                // The same stop is found at every call until it is taken; those behind it are found then.
                self.forget(tid);
                return;
            }
            let mut status = 0;
            let options = libc::__WALL | libc::WNOHANG | libc::__WNOTHREAD;
            // SAFETY: room for a status.
            let got = unsafe { libc::waitpid(tid as i32, &mut status, options) };
            if got != tid as i32 {
                return;
            }
            if libc::WIFSTOPPED(status) {
                self.take(tid, status);
            } else {
                // That was the stopped thread's end; the kernel now tells the process that made it.
                self.forget(tid);
            }
        }
    }

    fn take(&mut self, tid: u32, status: i32) {
        let pid = self.seized.get(&tid).copied().unwrap_or(tid);
        let signal = libc::WSTOPSIG(status);
        let stop = match status >> EVENT {
            libc::PTRACE_EVENT_EXIT => Stop::Ending,
            libc::PTRACE_EVENT_EXEC => {
                // The thread that executed now has the process's id, and all others are gone.
                self.seized.retain(|t, p| *p != pid || *t == tid);
                Stop::Executed
            }
            libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK => {
                if let Some(child) = event_message(tid) {
                    self.seized.insert(child, child);
                    self.stopped.push_back(Stopped {
                        pid: child,
                        tid: child,
                        stop: Stop::Born { by: pid },
                    });
                }
                let _ = ptrace(libc::PTRACE_CONT, tid, 0, 0);
                return;
            }
            libc::PTRACE_EVENT_STOP => {
                let job = [libc::SIGSTOP, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];
                let request = if job.contains(&signal) {
                    // The thread stays stopped as the signal requires, and goes on with SIGCONT.
                    libc::PTRACE_LISTEN
                } else {
                    libc::PTRACE_CONT
                };
                let _ = ptrace(request, tid, 0, 0);
                return;
            }
            // A signal is on its way to the thread.
            0 => {
                let _ = ptrace(libc::PTRACE_CONT, tid, 0, signal as usize);
                return;
            }
            _ => {
                let _ = ptrace(libc::PTRACE_CONT, tid, 0, 0);
                return;
            }
        };
        self.stopped.push_back(Stopped { pid, tid, stop });
    }

    fn forget(&mut self, tid: u32) {
        self.seized.remove(&tid);
        self.stopped.retain(|s| s.tid != tid);
    }

    /// Returns the stop that has waited longest.
    #[expect(
        clippy::should_implement_trait,
        reason = "no iterator: more may come behind a `None`"
    )]
    pub fn next(&mut self) -> Option<Stopped> {
        self.stopped.pop_front()
    }

    /// Lets a stopped thread go on.
    pub fn resume(&mut self, stopped: Stopped) {
        // A stop at a birth was not kept.
        if !matches!(stopped.stop, Stop::Born { .. }) {
            let _ = ptrace(libc::PTRACE_CONT, stopped.tid, 0, 0);
        }
    }

    /// Seizes the threads of a process that are not seized yet, because its first thread has ended while the others go on.
    ///
    /// Does nothing while a thread of the process is stopped: a thread that executes a program waits for the stopped one, and this call
    /// would wait for the executing one.
    pub fn seize_rest(&mut self, pid: u32) {
        if self.stopped.iter().any(|s| s.pid == pid) {
            return;
        }
        for tid in procfs::threads(pid).unwrap_or_default() {
            if !is_ending(pid, tid) {
                let _ = self.seize_thread(pid, tid);
            }
        }
    }

    /// Lets all seized threads go on, and ends their tracing.
    pub fn release(&mut self) {
        self.poll();
        while let Some(stopped) = self.next() {
            self.resume(stopped);
        }
        for (tid, _) in std::mem::take(&mut self.seized) {
            detach(tid);
        }
    }
}

impl ExitStops {
    /// Leaves the seized threads to the kernel, which lets them go when this thread ends. The ends of processes for which their starters
    /// wait are therefore not taken.
    pub(super) fn abandon(mut self) {
        self.stopped.clear();
        self.seized.clear();
    }
}

impl Drop for ExitStops {
    fn drop(&mut self) {
        self.release();
    }
}

/// Returns the id of a child or tracee of this thread that has stopped or ended, and whether it has ended. Its status is left to be taken.
fn changed() -> Option<(u32, bool)> {
    // SAFETY: a structure of numbers, for which zero is a value.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let options = libc::WEXITED
        | libc::WSTOPPED
        | libc::WNOHANG
        | libc::WNOWAIT
        | libc::__WALL
        | libc::__WNOTHREAD;
    // SAFETY: room for one structure.
    let result = unsafe { libc::waitid(libc::P_ALL, 0, &mut info, options) };
    // SAFETY: waitid has filled the structure, or left it zero if there is nothing.
    let tid = unsafe { info.si_pid() };
    let stopped = matches!(info.si_code, libc::CLD_TRAPPED | libc::CLD_STOPPED);
    (result == 0 && tid > 0).then_some((tid as u32, !stopped))
}

/// Returns the number that a ptrace event carries: for a fork, the child's id.
fn event_message(tid: u32) -> Option<u32> {
    let mut message: libc::c_ulong = 0;
    // SAFETY: room for one number.
    let result = unsafe {
        libc::ptrace(
            libc::PTRACE_GETEVENTMSG,
            tid as i32,
            0usize,
            &raw mut message,
        )
    };
    (result >= 0).then_some(message as u32)
}

/// Longest time that a thread may take to stop before it is let go, ms. After that, the end of the tracing thread lets it go.
const DETACH_MS: u32 = 100;

/// Ends the tracing of a running thread, by stopping it first.
fn detach(tid: u32) {
    if ptrace(libc::PTRACE_INTERRUPT, tid, 0, 0).is_err() {
        // The thread has ended.
        return;
    }
    for _ in 0..DETACH_MS * 20 {
        let mut status = 0;
        // SAFETY: room for a status.
        let got = unsafe { libc::waitpid(tid as i32, &mut status, libc::__WALL | libc::WNOHANG) };
        if got == 0 {
            std::thread::sleep(Duration::from_micros(50));
            continue;
        }
        if got == tid as i32 && libc::WIFSTOPPED(status) {
            // A signal that was on its way still reaches the thread.
            let signal = match status >> EVENT {
                0 => libc::WSTOPSIG(status) as usize,
                _ => 0,
            };
            let _ = ptrace(libc::PTRACE_DETACH, tid, 0, signal);
        }
        return;
    }
}

/// Tells whether a thread runs no more instructions of its program: it has ended, is ending, or was killed while it slept.
fn is_ending(pid: u32, tid: u32) -> bool {
    let Ok(stat) = Stat::of_thread(pid, tid) else {
        return true;
    };
    stat.is_over() || stat.is_stopped_for_good() || stat.state != 'R' && is_killed(pid, tid)
}

fn is_killed(pid: u32, tid: u32) -> bool {
    procfs::status_bits(format_args!("{pid}/task/{tid}"), "SigPnd").is_some_and(|s| s & KILL != 0)
}

/// Longest time that the other threads of an ending process may take to disappear.
const OTHERS: Duration = Duration::from_millis(5);

/// Tells whether the process's memory no longer changes: no thread except `tid`, which is stopped at its end, can still run. In an ending
/// process, the other threads were told to end an instant ago, and this call waits for them. A thread that is still there after the wait,
/// is not on a processor and has SIGKILL pending executes no more of the program.
pub fn stands_still(pid: u32, tid: u32) -> bool {
    let begun = Instant::now();
    loop {
        let others = procfs::threads(pid).unwrap_or_default();
        let mut others = others.into_iter().filter(|t| *t != tid);
        let late = begun.elapsed() > OTHERS;
        if others.all(|t| is_ending(pid, t) || late && is_killed(pid, t)) {
            return true;
        }
        if late {
            return false;
        }
        std::thread::sleep(Duration::from_micros(50));
    }
}
