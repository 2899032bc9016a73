//! Reads of other processes' memory that may never end, made by a process of nvcap's own that can be left alone.
//!
//! A page of a file of FUSE is brought by a program that any user may start and that need not answer. Whoever reads it then waits in the
//! kernel; no signal ends that, and a program with such a thread does not end either. Which memory is mapped from FUSE is known as of
//! the last look at the mappings alone ([`super::served`]). So wherever a user without rights has mounted such a file system, nvcap
//! with CAP_SYS_PTRACE has its reads of all but root's processes made by an *errand*: a process that shares nvcap's memory and nothing else, one for each thread that
//! reads. One that does not come back is left alone with its buffer, the memory that it was to read is read no more until it has, and the
//! thread's next read is made by another. Where there is no such file system reads are made directly: an errand costs two switches.

mod desk;
mod ids;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use self::desk::{Asked, Errand, MOST_BYTES, MOST_RANGES, Range};
pub(super) use self::ids::is_errand;
use super::served::strangers_serve;
use super::stat::Stat;
use super::{capabilities, status};
use crate::clock;

/// Time that a read may wait in the kernel, of the first process of a user; half of that of the next one, and so on.
const PATIENCE: Duration = Duration::from_secs(1);
/// The least of it.
const LEAST_PATIENCE: Duration = Duration::from_millis(15);
/// Time for which reads are errands after a file system of a stranger's was seen, ns.
const AFTER_NS: u64 = 10_000_000_000;
/// CAP_SYS_PTRACE: who has it not reads processes of his own alone.
const SYS_PTRACE: u64 = 1 << 19;

/// Time for which it is known whether a process is root's, ns, and the most processes of which it is.
const KNOWN_NS: u64 = 10_000_000;
const MOST_KNOWN: usize = 4096;

/// The most processes of which it is told that a read was given up.
const MOST_TOLD: usize = 4096;
/// A process whose memory did not answer.
struct Silent {
    /// Time at which it began, so that another one with its id is another.
    began: Option<u64>,
    errands: Vec<Errand>,
}

/// Processes whose memory did not answer, and the number of them of each user.
#[derive(Default)]
struct GivenUp {
    silent: BTreeMap<u32, Silent>,
    of_user: BTreeMap<String, u32>,
    /// Each time that a read was given up, the process: the first of them.
    told: Vec<u32>,
}

static GIVEN_UP: Mutex<GivenUp> = Mutex::new(GivenUp {
    silent: BTreeMap::new(),
    of_user: BTreeMap::new(),
    told: Vec::new(),
});
/// Number of those that were told.
static EVER: AtomicUsize = AtomicUsize::new(0);
/// There are such processes.
static ANY: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The errand of this thread.
    static OWN: RefCell<Option<Errand>> = const { RefCell::new(None) };
}

fn all() -> MutexGuard<'static, GivenUp> {
    GIVEN_UP.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The user that a process belongs to, by its real id: that of its files is root's where it is not dumpable.
fn user(pid: u32) -> String {
    let ids = status(pid, "Uid").unwrap_or_default();
    ids.split_whitespace().next().unwrap_or_default().to_owned()
}

fn start_of(pid: u32) -> Option<u64> {
    Stat::of_process(pid).ok()?.start
}

impl GivenUp {
    fn patience(&self, user: &str) -> Duration {
        let before = self.of_user.get(user).copied().unwrap_or(0);
        let part = 1u32.checked_shl(before).unwrap_or(u32::MAX);
        (PATIENCE / part).max(LEAST_PATIENCE)
    }

    /// True where a read of it was given up and has not ended.
    fn is_silent(&mut self, pid: u32) -> bool {
        let Some(silent) = self.silent.get_mut(&pid) else {
            return false;
        };
        silent.errands.retain(|errand| !errand.is_back());
        if silent.errands.is_empty() {
            self.silent.remove(&pid);
            ANY.store(!self.silent.is_empty(), Ordering::Relaxed);
            return false;
        }
        silent.began == start_of(pid)
    }

    fn add(&mut self, pid: u32, errand: Errand) {
        let began = start_of(pid);
        let silent = self.silent.entry(pid).or_insert_with(|| Silent {
            began,
            errands: Vec::new(),
        });
        silent.began = began;
        silent.errands.push(errand);
        *self.of_user.entry(user(pid)).or_default() += 1;
        ANY.store(true, Ordering::Relaxed);
        self.tell(pid);
    }

    fn tell(&mut self, pid: u32) {
        if self.told.len() < MOST_TOLD {
            self.told.push(pid);
            EVER.store(self.told.len(), Ordering::Release);
        }
    }
}

/// Text for a process whose memory does not answer.
pub const NO_ANSWER: &str =
    "its memory did not answer, and is not read until it does (a file of FUSE may be mapped there)";

fn silent() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, NO_ANSWER)
}

/// The processes of which a read was given up, in the order of that, without the first ones: those that were asked for before.
pub fn given_up(before: usize) -> Vec<u32> {
    match EVER.load(Ordering::Acquire) > before {
        true => all().told.iter().skip(before).copied().collect(),
        false => Vec::new(),
    }
}

/// True where a read of this process's memory was given up, and has not ended.
pub(super) fn is_silent(pid: u32) -> bool {
    ANY.load(Ordering::Relaxed) && all().is_silent(pid)
}

/// True where all of a process's user ids are root's, or were so a moment ago: it needs no file system of another's to hold nvcap up.
fn is_of_root(pid: u32, now: u64) -> bool {
    thread_local! {
        /// Processes, their answer, and the time until which it holds, ns.
        static KNOWN: RefCell<BTreeMap<u32, (bool, u64)>> = const { RefCell::new(BTreeMap::new()) };
    }
    let known = KNOWN.with_borrow(|known| known.get(&pid).copied());
    if let Some((is, _)) = known.filter(|(_, until)| now < *until) {
        return is;
    }
    let ids = status(pid, "Uid").unwrap_or_default();
    let mut ids = ids.split_whitespace().peekable();
    let is = ids.peek().is_some() && ids.all(|id| id == "0");
    KNOWN.with_borrow_mut(|known| {
        if known.len() >= MOST_KNOWN {
            known.clear();
        }
        known.insert(pid, (is, now + KNOWN_NS));
    });
    is
}

/// True where a read of this process may wait for a program that need not answer, and nvcap has rights that such a program's user has not.
fn may_hang(pid: u32) -> bool {
    /// Time until which that holds, ns.
    static UNTIL: AtomicU64 = AtomicU64::new(0);
    static READS_OTHERS: LazyLock<bool> = LazyLock::new(|| capabilities() & SYS_PTRACE != 0);
    if !*READS_OTHERS {
        return false;
    }
    let now = clock::read(libc::CLOCK_MONOTONIC_COARSE).unwrap_or(0);
    if now >= UNTIL.load(Ordering::Relaxed) {
        if !strangers_serve(now) {
            return false;
        }
        UNTIL.store(now + AFTER_NS, Ordering::Relaxed);
    }
    !is_of_root(pid, now)
}

/// Ranges cut into what an errand takes at once.
fn portions(ranges: impl Iterator<Item = Range>) -> Vec<Vec<Range>> {
    let mut all: Vec<Vec<Range>> = Vec::new();
    let mut room = 0;
    for (mut at, mut len) in ranges {
        while len > 0 {
            if room == 0 || all.last().is_none_or(|last| last.len() == MOST_RANGES) {
                all.push(Vec::new());
                room = MOST_BYTES;
            }
            let n = len.min(room);
            if let Some(last) = all.last_mut() {
                last.push((at, n));
            }
            (at, len, room) = (at.wrapping_add(n as u64), len - n, room - n);
        }
    }
    all
}

/// Reads ranges of a process's memory where that may never end: the bytes until one could not be read. None where it is to be read
/// directly. `thread`: one of its threads.
///
/// # Errors
/// Those of the first read, and `TimedOut` where it was given up.
pub(super) fn read_ranges(
    pid: u32,
    thread: u32,
    ranges: impl Iterator<Item = Range>,
    to: &mut [u8],
) -> Option<io::Result<usize>> {
    if is_silent(pid) {
        return Some(Err(silent()));
    }
    may_hang(pid).then(|| each_portion(pid, thread, &portions(ranges), to))
}

fn each_portion(
    pid: u32,
    thread: u32,
    portions: &[Vec<Range>],
    to: &mut [u8],
) -> io::Result<usize> {
    in_turn(portions, to, |portion, to| {
        ask(pid, &Asked::Thread(thread, portion), to)
    })
}

/// Asks for one portion after the other, until one is not whole.
fn in_turn(
    portions: &[Vec<Range>],
    to: &mut [u8],
    mut ask: impl FnMut(&[Range], &mut [u8]) -> io::Result<usize>,
) -> io::Result<usize> {
    let (mut done, mut whole) = (0, 0);
    for portion in portions {
        let len: usize = portion.iter().map(|(_, len)| len).sum();
        let Some(to) = to.get_mut(done..done + len) else {
            break;
        };
        match ask(portion, to) {
            Ok(n) => done += n,
            Err(e) if done == 0 => return Err(e),
            Err(_) => break,
        }
        whole += len;
        if done < whole {
            break;
        }
    }
    Ok(done)
}

/// Reads a file of a process's in `/proc` at a place, or where it stands, as [`read_ranges`] does.
///
/// # Errors
/// Those of the first read, and `TimedOut` where it was given up.
pub(super) fn read_file(
    pid: u32,
    file: &File,
    at: Option<u64>,
    to: &mut [u8],
) -> Option<io::Result<usize>> {
    if is_silent(pid) {
        return Some(Err(silent()));
    }
    if !may_hang(pid) {
        return None;
    }
    let Some(at) = at else {
        let read = ask(pid, &Asked::File(file), to);
        // A thread that decodes has given up passing files on.
        let refused = |e: &io::Error| e.kind() == io::ErrorKind::PermissionDenied;
        return (!read.as_ref().is_err_and(refused)).then_some(read);
    };
    let portions = portions(std::iter::once((at, to.len())));
    Some(in_turn(&portions, to, |portion, to| {
        let from = portion.first().map(|(at, _)| *at);
        ask(pid, &Asked::Memory(pid, file, from.unwrap_or(at)), to)
    }))
}

fn ask(pid: u32, from: &Asked<'_>, to: &mut [u8]) -> io::Result<usize> {
    // Asked for once it waits.
    let patience = || {
        let user = user(pid);
        all().patience(&user)
    };
    let own = OWN.try_with(|own| {
        let mut own = own.borrow_mut();
        let mut errand = match own.take() {
            Some(errand) => errand,
            None => Errand::start()?,
        };
        let answer = errand.ask(from, to, &patience)?;
        match answer {
            Some(_) => *own = Some(errand),
            None => {
                log::warn!("process {pid}: {}", silent());
                all().add(pid, errand);
            }
        }
        io::Result::Ok(answer)
    });
    let answer = own
        .unwrap_or_else(|e| Err(io::Error::other(e)))
        .inspect_err(|e| {
            log::warn!("process {pid}: its memory could not be read: {e}");
            all().tell(pid);
        });
    match answer? {
        None => Err(silent()),
        Some(n) => usize::try_from(n).map_err(|_| io::Error::from_raw_os_error(-n as i32)),
    }
}

#[cfg(test)]
mod tests;
