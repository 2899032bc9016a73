//! Processes that sleep are not polled: the kernel tells when one of them has run.
//!
//! A perf event of the software task clock counts the CPU time of the process, and signals each [`RAN_NS`] of it. It is
//! on every thread, and later threads inherit it. It costs the process nothing while it sleeps, and a timer at each
//! switch to it. Where perf events are refused (kernel.perf_event_paranoid, no descriptors left) the process is polled as
//! usual.
//!
//! The clock of a process's CPU time, read from outside, does not serve, because it is updated at scheduler ticks only.

use nvcap_process::procfs;
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
    ptr,
};

use perf_event_open_sys::{self as sys, bindings as b};

/// CPU time after which a sleeping process is looked at, ns. In it a process makes some hundred launches, of the 1,023
/// that a ring holds.
pub(super) const RAN_NS: u64 = 400_000;
/// Time between two looks at a sleeping process that the kernel does not report, ns.
pub(super) const SAFETY_NS: u64 = 2_000_000_000;
/// Time after which such a look reads the ring, and mappings are searched, ns. The other looks read only GP_PUT.
pub(super) const WHOLE_NS: u64 = 10_000_000_000;
/// Time without news after which a process counts as sleeping, ns.
pub(super) const STILL_NS: u64 = 1_000_000_000;
/// Time between two judgements of which processes sleep, ns.
pub(super) const JUDGE_NS: u64 = 250_000_000;
/// Share of a core up to which a process counts as sleeping.
pub(super) const SLEEPS: f64 = 0.05;
/// Share of a core above which a sleeping process counts as awake.
const AWAKE: f64 = 0.15;
/// Period over which the share of a sleeping process is judged, ns.
const WINDOW_NS: u64 = 50_000_000;

/// The signal that perf events send: a real-time signal, so that each is queued with its descriptor.
fn signal() -> i32 {
    libc::SIGRTMIN() + 4
}

/// Descriptor on which the kernel signals that processes have run. Only the thread that made it may read it.
#[derive(Debug)]
pub(super) struct Bell(OwnedFd);

/// Signals that the kernel sent.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Rung {
    /// The descriptors of the perf events that signalled.
    pub events: Vec<RawFd>,
    /// True if signals were lost: any process may have run.
    pub all: bool,
}

impl Bell {
    /// Creates the bell of the calling thread.
    ///
    /// # Errors
    /// When there are no more descriptors.
    pub(super) fn new() -> io::Result<Self> {
        // SAFETY: a signal set, for which zero is a value; changes this thread's mask alone.
        let fd = unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigaddset(&mut set, signal());
            // What the kernel sends where no more can be queued.
            libc::sigaddset(&mut set, libc::SIGIO);
            libc::pthread_sigmask(libc::SIG_BLOCK, &set, ptr::null_mut());
            libc::signalfd(-1, &set, libc::SFD_NONBLOCK | libc::SFD_CLOEXEC)
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor that nobody else has.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Returns the descriptor that becomes readable when the kernel signals.
    pub(super) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// Reads the signals since the last call.
    pub(super) fn rung(&self) -> Rung {
        let mut rung = Rung::default();
        loop {
            // SAFETY: a structure of numbers, for which zero is a value.
            let mut info: libc::signalfd_siginfo = unsafe { std::mem::zeroed() };
            let size = size_of::<libc::signalfd_siginfo>();
            // SAFETY: room for one structure; it does not block.
            let got = unsafe { libc::read(self.fd(), (&raw mut info).cast(), size) };
            if got != size as isize {
                return rung;
            }
            if info.ssi_signo as i32 == signal() {
                rung.events.push(info.ssi_fd);
            } else {
                rung.all = true;
            }
        }
    }
}

/// A process that sleeps.
#[derive(Debug)]
pub(super) struct Doze {
    events: Vec<OwnedFd>,
    /// Times of the kernel's recent reports that the process had run, ns.
    told: VecDeque<u64>,
}

impl Doze {
    /// Asks the kernel to report to the calling thread when this process has run.
    ///
    /// # Errors
    /// When perf events are refused.
    pub(super) fn new(pid: u32) -> io::Result<Self> {
        let mut events = Vec::new();
        for tid in procfs::threads(pid)? {
            match event(tid as i32) {
                Ok(event) => events.push(event),
                // It has ended meanwhile.
                Err(e) if e.raw_os_error() == Some(libc::ESRCH) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(Self {
            events,
            told: VecDeque::new(),
        })
    }

    /// Tells whether the kernel signalled that this process has run.
    pub(super) fn rang(&self, rung: &Rung) -> bool {
        rung.all
            || self
                .events
                .iter()
                .any(|e| rung.events.contains(&e.as_raw_fd()))
    }

    /// Takes note of a report. True if reports were so frequent of late that the process is awake.
    pub(super) fn is_awake(&mut self, now: u64) -> bool {
        self.told.push_back(now);
        while self.told.front().is_some_and(|t| *t + WINDOW_NS < now) {
            self.told.pop_front();
        }
        self.told.len() as u64 * RAN_NS > (WINDOW_NS as f64 * AWAKE) as u64
    }
}

/// Opens an event that signals each [`RAN_NS`] of CPU time of a thread and of the threads that it will make.
fn event(tid: i32) -> io::Result<OwnedFd> {
    // Where the kernel's time may not be counted, the process's own does.
    let fd = open(tid, false).or_else(|e| match e.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => open(tid, true),
        _ => Err(e),
    })?;
    // SAFETY: reads an id.
    let owner = libc_owner(unsafe { libc::gettid() });
    let raw = fd.as_raw_fd();
    // SAFETY: settings of an open descriptor; the structure is read by the call alone.
    let done = unsafe {
        libc::fcntl(raw, F_SETSIG, signal()) >= 0
            && libc::fcntl(raw, F_SETOWN_EX, &raw const owner) >= 0
            && libc::fcntl(raw, libc::F_SETFL, libc::O_ASYNC | libc::O_NONBLOCK) >= 0
            && sys::ioctls::ENABLE(raw, 0) >= 0
    };
    if done {
        Ok(fd)
    } else {
        Err(io::Error::last_os_error())
    }
}

fn open(tid: i32, user_alone: bool) -> io::Result<OwnedFd> {
    let mut attr = b::perf_event_attr {
        type_: b::PERF_TYPE_SOFTWARE,
        size: size_of::<b::perf_event_attr>() as u32,
        config: b::PERF_COUNT_SW_TASK_CLOCK.into(),
        ..Default::default()
    };
    attr.__bindgen_anon_1.sample_period = RAN_NS;
    attr.__bindgen_anon_2.wakeup_events = 1;
    attr.set_inherit(1);
    attr.set_disabled(1);
    attr.set_exclude_kernel(user_alone.into());
    attr.set_exclude_hv(user_alone.into());
    let flags = b::PERF_FLAG_FD_CLOEXEC.into();
    // SAFETY: attr is a whole perf_event_attr.
    let fd = unsafe { sys::perf_event_open(&mut attr, tid, -1, -1, flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nobody else has.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// F_SETSIG and F_SETOWN_EX of fcntl(2), which libc lacks on some systems.
const F_SETSIG: i32 = 10;
const F_SETOWN_EX: i32 = 15;

/// `struct f_owner_ex`: the thread that gets the signal.
#[repr(C)]
struct Owner {
    kind: i32,
    id: i32,
}

fn libc_owner(id: i32) -> Owner {
    const F_OWNER_TID: i32 = 0;
    Owner {
        kind: F_OWNER_TID,
        id,
    }
}

/// State of a process at a judgement of its sleep.
#[derive(Clone, Copy, Debug)]
pub(super) struct Judged {
    /// Time of the judgement, ns.
    pub at: u64,
    /// CPU time that the process had used by then, ns.
    pub cpu_ns: u64,
}

/// Processes that sleep, and the evidence for it.
#[derive(Debug, Default)]
pub(super) struct Sleepers {
    pub(super) bell: Option<Bell>,
    pub(super) dozing: BTreeMap<u32, Doze>,
    /// Processes that are polled, because the kernel cannot report when they run.
    pub(super) refused: BTreeSet<u32>,
    /// State of each awake process at the last judgement.
    pub(super) judged: BTreeMap<u32, Judged>,
    pub(super) next: u64,
}

impl Sleepers {
    /// Tells whether a process sleeps.
    pub(super) fn has(&self, pid: u32) -> bool {
        self.dozing.contains_key(&pid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvcap_process::clock;

    /// Runs for some CPU time.
    fn run(ns: u64) {
        let end = clock::thread_cpu() + ns;
        while clock::thread_cpu() < end {}
    }

    /// The kernel reports when a sleeping child has run.
    #[test]
    #[ignore = "needs perf events: cargo xtask test runs it as root"]
    fn who_sleeps_is_told_of_when_he_has_run() {
        let bell = Bell::new().unwrap();
        let mut ends = [0; 2];
        // SAFETY: room for two descriptors.
        assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
        // SAFETY: the child reads and computes, and ends without unwinding.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let mut byte = [0u8; 1];
            // SAFETY: ends with the test, whatever comes of that.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            loop {
                // SAFETY: room for a byte.
                unsafe { libc::read(ends[0], byte.as_mut_ptr().cast(), 1) };
                run(12_000_000);
            }
        }
        nvcap_waiting::sits_in(child as u32, child as u32, libc::SYS_read);
        let doze = Doze::new(child as u32);
        if let Ok(doze) = &doze {
            // Others run meanwhile: this thread for one.
            run(12_000_000);
            assert_eq!(bell.rung(), Rung::default(), "it sleeps");
            // SAFETY: a byte to an open pipe.
            unsafe { libc::write(ends[1], b"g".as_ptr().cast(), 1) };
            let mut rung = Rung::default();
            nvcap_waiting::until("it is told of often", || {
                let more = bell.rung();
                rung.events.extend(more.events);
                rung.all |= more.all;
                rung.all || rung.events.len() > 10
            });
            assert!(doze.rang(&rung), "{rung:?}");
        } else if let Err(e) = &doze {
            println!("NOT RUN who_sleeps_is_told_of_when_he_has_run: {e}");
        }
        // SAFETY: ends and takes the child that was made above.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, ptr::null_mut(), 0);
        }
    }

    #[test]
    fn who_runs_much_is_awake() {
        let mut doze = Doze {
            events: Vec::new(),
            told: VecDeque::new(),
        };
        // 2 % of a core.
        assert!((0..1000).all(|n| !doze.is_awake(n * 20_000_000)));
        // All of it.
        assert!((0..200).any(|n| doze.is_awake(50_000_000_000 + n * 400_000)));
    }
}
