//! A small tracer by ptrace, as debuggers and checkpointers begin: it seizes all threads, stops them, lets them go.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::programs::GUARD;

/// `PTRACE_EVENT_STOP`.
const EVENT_STOP: i32 = 128;

/// All threads of a process, seized. Used by one thread only, as ptrace requires; lets go when dropped.
#[derive(Debug)]
pub struct Seized {
    pid: u32,
    threads: BTreeSet<u32>,
    /// Signals that stopped threads were to get.
    signals: Vec<(u32, i32)>,
    stopped: bool,
}

/// State in which a thread was found that was waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// The thread stands.
    Here,
    /// The thread stands, interrupted where it waited in the kernel.
    Asleep,
    /// The thread has ended.
    Ended,
}

fn request(request: libc::c_uint, tid: u32, data: u64) -> io::Result<()> {
    // SAFETY: none of the requests used here reads or writes this process's memory.
    let got = unsafe {
        libc::ptrace(
            request as _,
            tid as libc::pid_t,
            std::ptr::null_mut::<u8>(),
            data,
        )
    };
    match got {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

fn gone(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::ESRCH | libc::ENOENT))
}

/// The threads of a process.
pub fn threads(pid: u32) -> io::Result<Vec<u32>> {
    let names = std::fs::read_dir(format!("/proc/{pid}/task"))?;
    let tids = names.filter_map(|t| t.ok()?.file_name().to_str()?.parse().ok());
    Ok(tids.collect())
}

impl Seized {
    /// Seizes every thread. None where the process is gone, or another tracer has it.
    pub fn new(pid: u32) -> Result<Option<Seized>> {
        let mut seized = Seized {
            pid,
            threads: BTreeSet::new(),
            signals: Vec::new(),
            stopped: false,
        };
        loop {
            let threads = match threads(pid) {
                Err(e) if gone(&e) => return Ok(None),
                threads => threads?,
            };
            let new = threads.into_iter().filter(|t| !seized.threads.contains(t));
            let new: Vec<u32> = new.collect();
            if new.is_empty() {
                return Ok((!seized.threads.is_empty()).then_some(seized));
            }
            let mut more = false;
            for tid in new {
                match request(libc::PTRACE_SEIZE, tid, 0) {
                    Ok(()) => more |= seized.threads.insert(tid),
                    Err(e) if gone(&e) => {}
                    // A zombie, or a thread with a tracer.
                    Err(e) if e.raw_os_error() == Some(libc::EPERM) => {}
                    Err(e) => return Err(e).context("PTRACE_SEIZE"),
                }
            }
            if !more {
                return Ok((!seized.threads.is_empty()).then_some(seized));
            }
        }
    }

    /// Returns the number of its threads.
    pub fn len(&self) -> usize {
        self.threads.len()
    }

    /// Tells whether all threads have ended.
    pub fn is_empty(&self) -> bool {
        self.threads.is_empty()
    }

    /// Waits for a thread's next stop.
    fn stop_of(&mut self, tid: u32) -> Result<Stop> {
        let begun = Instant::now();
        // At the last two looks at its state, which are longer apart than any sleep of the software GPU's is.
        let mut asleep = [false; 2];
        for turn in 1_u64.. {
            if begun.elapsed() > GUARD {
                break;
            }
            let Some(info) = self.news(tid) else {
                return Ok(Stop::Ended);
            };
            // SAFETY: of a child's change; 0 where there was none.
            let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
            if pid == 0 {
                if turn % 100 == 0 {
                    match self.state(tid) {
                        None | Some('Z' | 'X') => {
                            self.let_go(tid);
                            return Ok(Stop::Ended);
                        }
                        Some(state) => asleep = [asleep[1], state == 'S'],
                    }
                }
                if turn < 100 {
                    std::thread::yield_now();
                    continue;
                }
                std::thread::sleep(std::time::Duration::from_micros(100));
                if turn % 200 == 0 {
                    // An exec from another thread takes the request away with the thread that had it.
                    let _ = request(libc::PTRACE_INTERRUPT, tid, 0);
                }
                continue;
            }
            if info.si_code != libc::CLD_TRAPPED && info.si_code != libc::CLD_STOPPED {
                return Ok(Stop::Ended);
            }
            if status >> 8 == EVENT_STOP {
                return Ok(match asleep {
                    [true, true] => Stop::Asleep,
                    _ => Stop::Here,
                });
            }
            // A signal on its way: it gets it when it goes on.
            self.signals.push((tid, status & 0xff));
            return Ok(Stop::Here);
        }
        bail!("guard: thread {tid} of {} does not stop", self.pid)
    }

    /// Returns the letter of a thread's state; none where it is gone.
    fn state(&self, tid: u32) -> Option<char> {
        self.status(tid, "State:\t")?.chars().next()
    }

    /// A line of a thread's status, behind these words.
    fn status(&self, tid: u32, words: &str) -> Option<String> {
        let status = std::fs::read_to_string(format!("/proc/{}/task/{tid}/status", self.pid));
        let status = status.ok()?;
        Some(status.split_once(words)?.1.lines().next()?.to_owned())
    }

    /// Stops all threads (PTRACE_INTERRUPT).
    pub fn stop(&mut self) -> Result<()> {
        let mut ended = Vec::new();
        for tid in self.threads.clone() {
            match request(libc::PTRACE_INTERRUPT, tid, 0) {
                Ok(()) => {}
                Err(e) if gone(&e) => {}
                Err(e) => return Err(e).context("PTRACE_INTERRUPT"),
            }
            if self.stop_of(tid)? == Stop::Ended {
                ended.push(tid);
            }
        }
        self.threads.retain(|tid| !ended.contains(tid));
        self.stopped = true;
        Ok(())
    }

    fn signal_of(&mut self, tid: u32) -> u64 {
        let at = self.signals.iter().position(|(t, _)| *t == tid);
        at.map_or(0, |at| self.signals.swap_remove(at).1 as u64)
    }

    /// Lets the stopped threads run on, still seized (PTRACE_CONT).
    pub fn go_on(&mut self) -> Result<()> {
        for tid in self.threads.clone() {
            let signal = self.signal_of(tid);
            match request(libc::PTRACE_CONT, tid, signal) {
                Ok(()) => {}
                Err(e) if gone(&e) => {}
                Err(e) => return Err(e).context("PTRACE_CONT"),
            }
        }
        self.stopped = false;
        Ok(())
    }

    /// Executes `times` instructions of a stopped thread, one at a time, or until it waits in the kernel. Returns how many it was.
    pub fn step(&mut self, tid: u32, times: u32) -> Result<u32> {
        let done = self.steps(tid, times)?;
        // A request to stand that comes with a step's trap is told first: the trap waits, and would kill a program that is let go.
        while self.threads.contains(&tid) && self.has_trap(tid) {
            if request(libc::PTRACE_CONT, tid, 0).is_err() || self.stop_of(tid)? == Stop::Ended {
                break;
            }
            self.forget_trap(tid);
        }
        Ok(done)
    }

    fn steps(&mut self, tid: u32, times: u32) -> Result<u32> {
        for done in 0..times {
            let signal = self.signal_of(tid);
            match request(libc::PTRACE_SINGLESTEP, tid, signal) {
                Ok(()) => {}
                Err(e) if gone(&e) => return Ok(done),
                Err(e) => return Err(e).context("PTRACE_SINGLESTEP"),
            }
            match self.stop_of(tid)? {
                Stop::Here => {}
                // It would be waited for as long at each further one: what it waits for may be a lock of another that stands.
                Stop::Asleep => return Ok(done),
                Stop::Ended => {
                    self.threads.remove(&tid);
                    return Ok(done);
                }
            }
            self.forget_trap(tid);
        }
        Ok(times)
    }

    /// A step's own trap is no signal of the program's.
    fn forget_trap(&mut self, tid: u32) {
        self.signals
            .retain(|(t, s)| (*t, *s) != (tid, libc::SIGTRAP));
    }

    /// Tells whether a trap waits for a thread.
    fn has_trap(&self, tid: u32) -> bool {
        let pending = self.status(tid, "SigPnd:\t");
        let pending = pending.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        pending.is_some_and(|mask| mask >> (libc::SIGTRAP - 1) & 1 == 1)
    }

    /// The stopped threads.
    pub fn threads(&self) -> Vec<u32> {
        self.threads.iter().copied().collect()
    }

    /// Reads all that a checkpoint would: mappings, all memory that can be read, the threads' states. Returns the bytes of memory.
    pub fn read_all(&self) -> Result<u64> {
        let folder = format!("/proc/{}", self.pid);
        let maps = std::fs::read_to_string(format!("{folder}/maps"))?;
        for tid in &self.threads {
            for name in ["stat", "status", "syscall"] {
                let _ = std::fs::read(format!("{folder}/task/{tid}/{name}"));
            }
        }
        for name in ["smaps", "pagemap", "auxv"] {
            // Of pagemap only the beginning: it is as long as the address space.
            let mut some = [0; 4096];
            let _ = File::open(format!("{folder}/{name}"))?.read_at(&mut some, 0);
        }
        let memory = File::open(format!("{folder}/mem"))?;
        let mut bytes = 0;
        let mut buffer = vec![0; 1 << 20];
        for line in maps.lines() {
            let range = line.split(' ').next().and_then(|r| r.split_once('-'));
            let Some((from, to)) = range else { continue };
            let number = |text| u64::from_str_radix(text, 16);
            let (mut at, to) = (number(from)?, number(to)?);
            if line.split(' ').nth(1).is_none_or(|p| !p.starts_with('r')) {
                continue;
            }
            while at < to {
                let len = (to - at).min(buffer.len() as u64) as usize;
                match memory.read_at(&mut buffer[..len], at) {
                    Ok(n) if n > 0 => (bytes, at) = (bytes + n as u64, at + n as u64),
                    _ => break,
                }
            }
        }
        Ok(bytes)
    }
}

impl Drop for Seized {
    fn drop(&mut self) {
        if !self.stopped && self.stop().is_err() {
            return;
        }
        for tid in self.threads.clone() {
            let signal = self.signal_of(tid);
            if request(libc::PTRACE_DETACH, tid, signal).is_err() {
                self.let_go(tid);
            }
        }
    }
}

impl Seized {
    /// Takes a thread's next change, if it has come; `None` where there is no such thread any more. The end of a process that this one
    /// started is left to whoever waits for it.
    fn news(&self, tid: u32) -> Option<libc::siginfo_t> {
        let ends = if tid == self.pid { 0 } else { libc::WEXITED };
        let options = libc::WSTOPPED | libc::__WALL | libc::WNOHANG | ends;
        // SAFETY: plain integers; zero is "nothing yet".
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: writes `info` only.
        let got = unsafe { libc::waitid(libc::P_PID, tid, &raw mut info, options) };
        (got == 0).then_some(info)
    }

    /// Detaches a thread that does not stand, or takes note of its end: else its process would wait for this one for ever.
    fn let_go(&self, tid: u32) {
        let begun = Instant::now();
        while begun.elapsed() < GUARD {
            let _ = request(libc::PTRACE_INTERRUPT, tid, 0);
            let is_over =
                self.news(tid).is_none() || matches!(self.state(tid), None | Some('Z' | 'X'));
            if request(libc::PTRACE_DETACH, tid, 0).is_ok() || is_over {
                let _ = self.news(tid);
                return;
            }
            std::thread::sleep(std::time::Duration::from_micros(100));
        }
    }
}
