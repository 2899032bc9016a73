//! Reads of other processes' memory that may never end, made by a process of nvcap's own that can be left alone.
//!
//! A page of a file of FUSE is brought by a program that any user may start and that need not answer. Whoever reads it then waits in the
//! kernel; no signal ends that, and a program with such a thread does not end either. Which memory is mapped from FUSE is known as of
//! the last look at the mappings alone ([`super::served`]). So wherever a user without rights has mounted such a file system, nvcap
//! with CAP_SYS_PTRACE has its reads of all but root's processes made by an *errand*: a process that shares nvcap's memory and nothing else, one for each thread that
//! reads. One that does not come back is left alone with its buffer, the memory that it was to read is read no more until it has, and the
//! thread's next read is made by another. So many are left at a time, of a user's processes and in all; beyond that no process of that user
//! is read until one has come back. Where there is no such file system reads are made directly: an errand costs two switches.

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

/// The most processes of which it is told that a read was given up, and of which it is known that they are not read for others' sake.
const MOST_TOLD: usize = 4096;
/// The most errands that are left alone at a time, of one user's processes and of all: threads that read at the same moment may each add one.
const MOST_OF_USER: usize = 16;
const MOST_OF_ALL: usize = 64;

/// The real id of a user, which stays where a program is not dumpable; none where the process is gone.
type User = Option<u32>;

/// A process whose memory did not answer.
struct Silent {
    /// Time at which it began, so that another one with its id is another.
    began: Option<u64>,
    user: User,
    errands: Vec<Errand>,
}

/// Processes whose memory did not answer, and the number of them of each user.
struct GivenUp {
    silent: BTreeMap<u32, Silent>,
    of_user: BTreeMap<User, u32>,
    /// Processes that are not read because so many others of their user's do not answer, and when they began.
    beyond: BTreeMap<u32, Option<u64>>,
    /// Each time that a read was given up, the process and why: the first of them.
    told: Vec<(u32, &'static str)>,
}

static GIVEN_UP: Mutex<GivenUp> = Mutex::new(GivenUp::new());
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

fn start_of(pid: u32) -> Option<u64> {
    Stat::of_process(pid).ok()?.start
}

impl GivenUp {
    const fn new() -> Self {
        Self {
            silent: BTreeMap::new(),
            of_user: BTreeMap::new(),
            beyond: BTreeMap::new(),
            told: Vec::new(),
        }
    }

    fn patience(&self, user: User) -> Duration {
        let before = self.of_user.get(&user).copied().unwrap_or(0);
        let part = 1u32.checked_shl(before).unwrap_or(u32::MAX);
        (PATIENCE / part).max(LEAST_PATIENCE)
    }

    /// Forgets errands that have come back.
    fn reap(&mut self) {
        self.silent.retain(|_, silent| {
            silent.errands.retain(|errand| !errand.is_back());
            !silent.errands.is_empty()
        });
        ANY.store(!self.silent.is_empty(), Ordering::Relaxed);
    }

    /// True where a read of it was given up and has not ended.
    fn is_silent(&mut self, pid: u32) -> bool {
        let Some(silent) = self.silent.get(&pid) else {
            return false;
        };
        let (began, waits) = (silent.began, |e: &Errand| !e.is_back());
        let is = silent.errands.iter().any(waits);
        if !is {
            self.reap();
        }
        is && began == start_of(pid)
    }

    /// Number of errands that are left alone for processes of a user, and of all.
    fn left(&self, user: User) -> (usize, usize) {
        let each = self.silent.values();
        each.fold((0, 0), |(of_user, all), silent| {
            let n = silent.errands.len();
            (of_user + if silent.user == user { n } else { 0 }, all + n)
        })
    }

    /// True where no further errand may be left alone for a process of this user.
    fn is_full(&mut self, user: User) -> bool {
        let is = |(of_user, all)| of_user >= MOST_OF_USER || all >= MOST_OF_ALL;
        if !is(self.left(user)) {
            return false;
        }
        self.reap();
        is(self.left(user))
    }

    /// True where a process is not read because of others of its user's, which is told once for each.
    fn refuses(&mut self, pid: u32, user: User) -> bool {
        if !self.is_full(user) {
            return false;
        }
        let began = start_of(pid);
        if self.beyond.len() >= MOST_TOLD {
            self.beyond.clear();
        }
        if self.beyond.insert(pid, began) != Some(began) {
            log::warn!("process {pid}: {TOO_MANY}");
            self.tell(pid, TOO_MANY);
        }
        true
    }

    fn add(&mut self, pid: u32, user: User, errand: Errand) {
        self.reap();
        let began = start_of(pid);
        let silent = self.silent.entry(pid).or_insert_with(|| Silent {
            began,
            user,
            errands: Vec::new(),
        });
        (silent.began, silent.user) = (began, user);
        silent.errands.push(errand);
        *self.of_user.entry(user).or_default() += 1;
        ANY.store(true, Ordering::Relaxed);
        self.tell(pid, NO_ANSWER);
    }

    fn tell(&mut self, pid: u32, why: &'static str) {
        if self.told.len() < MOST_TOLD {
            self.told.push((pid, why));
            EVER.store(self.told.len(), Ordering::Release);
        }
    }
}

/// Text for a process whose memory does not answer.
const NO_ANSWER: &str =
    "its memory did not answer, and is not read until it does (a file of FUSE may be mapped there)";
/// Text for a process that is not read because of others.
const TOO_MANY: &str = "its memory is not read until a read of another process has ended: too many of its user's, or of all, do not (files of FUSE may be mapped there)";
/// Text for a process whose memory could not be read at all.
const NO_ERRAND: &str = "its memory could not be read (`NVCAP_LOG=warn` says why)";

fn refused(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, why)
}

/// The processes of which a read was given up, and why, in the order of that, without the first ones: those that were asked for before.
pub fn given_up(before: usize) -> Vec<(u32, &'static str)> {
    match EVER.load(Ordering::Acquire) > before {
        true => all().told.iter().skip(before).copied().collect(),
        false => Vec::new(),
    }
}

/// True where a read of this process's memory was given up, and has not ended.
pub(super) fn is_silent(pid: u32) -> bool {
    ANY.load(Ordering::Relaxed) && all().is_silent(pid)
}

/// The user of a process that is not root's by all of its ids, as it is or was a moment ago: root's needs no file system of another's to
/// hold nvcap up.
fn stranger(pid: u32, now: u64) -> Option<User> {
    thread_local! {
        /// Processes, their answer, and the time until which it holds, ns.
        static KNOWN: RefCell<BTreeMap<u32, (Option<User>, u64)>> = const { RefCell::new(BTreeMap::new()) };
    }
    let known = KNOWN.with_borrow(|known| known.get(&pid).copied());
    if let Some((of, _)) = known.filter(|(_, until)| now < *until) {
        return of;
    }
    let ids = status(pid, "Uid").unwrap_or_default();
    let ids: Vec<u32> = ids
        .split_whitespace()
        .filter_map(|id| id.parse().ok())
        .collect();
    let is_of_root = !ids.is_empty() && ids.iter().all(|id| *id == 0);
    let of = (!is_of_root).then(|| ids.first().copied());
    KNOWN.with_borrow_mut(|known| {
        if known.len() >= MOST_KNOWN {
            known.clear();
        }
        known.insert(pid, (of, now + KNOWN_NS));
    });
    of
}

/// Time for which the list of file systems need not be looked at again, by [`ticks`]: less than it takes from a file system's place in it
/// to a mapping of its file, for which its program has to answer three requests. The look is a fourth of what a small read takes.
const KNOWN_TICKS: u64 = 20_000;

/// A counter that is cheaper to read than the clock: some 2 to 4 in a nanosecond.
#[cfg(target_arch = "x86_64")]
fn ticks() -> u64 {
    // SAFETY: every processor of this architecture has it.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// The clock, in the same unit.
#[cfg(not(target_arch = "x86_64"))]
fn ticks() -> u64 {
    clock::now().saturating_mul(2)
}

/// True where a FUSE file system of another user than root may be mounted, or was so a moment ago. `look`: looks at the list of them.
fn strangers_may_serve(looked: &AtomicU64, look: impl FnOnce() -> bool) -> bool {
    let now = ticks();
    if now.wrapping_sub(looked.load(Ordering::Relaxed)) < KNOWN_TICKS {
        return false;
    }
    let any = look();
    if !any {
        looked.store(now, Ordering::Relaxed);
    }
    any
}

/// The user of a process where a read of it may wait for a program that need not answer, and nvcap has rights that such a program's user has not.
fn may_hang(pid: u32) -> Option<User> {
    /// Time until which that holds, ns.
    static UNTIL: AtomicU64 = AtomicU64::new(0);
    /// Ticks at which the list had none.
    static NONE: AtomicU64 = AtomicU64::new(0);
    static READS_OTHERS: LazyLock<bool> = LazyLock::new(|| capabilities() & SYS_PTRACE != 0);
    if !*READS_OTHERS {
        return None;
    }
    let now = || clock::read(libc::CLOCK_MONOTONIC_COARSE).unwrap_or(0);
    let serves = || {
        let now = now();
        let until = UNTIL.load(Ordering::Relaxed);
        if now >= until && strangers_serve(now) {
            UNTIL.store(now + AFTER_NS, Ordering::Relaxed);
            return true;
        }
        now < until
    };
    if !strangers_may_serve(&NONE, serves) {
        return None;
    }
    stranger(pid, now())
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
        return Some(Err(refused(NO_ANSWER)));
    }
    let user = may_hang(pid)?;
    Some(in_turn(&portions(ranges), to, |portion, to| {
        ask(pid, user, &Asked::Thread(thread, portion), to)
    }))
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
        return Some(Err(refused(NO_ANSWER)));
    }
    let user = may_hang(pid)?;
    let Some(at) = at else {
        let read = ask(pid, user, &Asked::File(file), to);
        // A thread that decodes has given up passing files on.
        let refused = |e: &io::Error| e.kind() == io::ErrorKind::PermissionDenied;
        return (!read.as_ref().is_err_and(refused)).then_some(read);
    };
    let portions = portions(std::iter::once((at, to.len())));
    Some(in_turn(&portions, to, |portion, to| {
        let from = portion.first().map(|(at, _)| *at);
        ask(pid, user, &Asked::Memory(pid, file, from.unwrap_or(at)), to)
    }))
}

fn ask(pid: u32, user: User, from: &Asked<'_>, to: &mut [u8]) -> io::Result<usize> {
    if ANY.load(Ordering::Relaxed) && all().refuses(pid, user) {
        return Err(refused(TOO_MANY));
    }
    // Asked for once it waits.
    let patience = || all().patience(user);
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
                log::warn!("process {pid}: {NO_ANSWER}");
                all().add(pid, user, errand);
            }
        }
        io::Result::Ok(answer)
    });
    let answer = own
        .unwrap_or_else(|e| Err(io::Error::other(e)))
        .inspect_err(|e| {
            log::warn!("process {pid}: its memory could not be read: {e}");
            all().tell(pid, NO_ERRAND);
        });
    match answer? {
        None => Err(refused(NO_ANSWER)),
        Some(n) => usize::try_from(n).map_err(|_| io::Error::from_raw_os_error(-n as i32)),
    }
}

#[cfg(test)]
mod tests;
