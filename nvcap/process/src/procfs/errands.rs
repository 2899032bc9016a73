//! Reads of other processes' memory that may never end. They are made by a separate process of nvcap's own, which can be left alone.
//!
//! The contents of a page of a FUSE file come from a program that any user may start and that need not answer. A thread that reads the page
//! then waits in the kernel. No signal ends the wait, and a program with such a thread does not end either. Which memory is mapped from
//! FUSE is known only from the last look at the mappings ([`super::served`]). Therefore, if a user without rights has mounted such a file
//! system, an nvcap with CAP_SYS_PTRACE does not itself read the processes of users other than root. An *errand* reads them: a process that
//! shares nvcap's memory and nothing else. Each thread that reads has its own errand.
//!
//! An errand that does not come back is left alone with its buffer. The process that it was to read is not read until the errand has come
//! back, and the thread's next read is made by another errand. The number of errands that are left alone is limited, for each user's
//! processes and in total. At the limit, no process of that user is read until an errand has come back. If no such file system is mounted,
//! reads are made directly, because an errand costs two context switches.

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

/// Time that a read may wait in the kernel, for the first silent process of a user. Each further process gets half of the previous one's
/// time.
const PATIENCE: Duration = Duration::from_secs(1);
/// The least of these times.
const LEAST_PATIENCE: Duration = Duration::from_millis(15);
/// Time for which reads are errands after a stranger's file system was seen, ns.
const AFTER_NS: u64 = 10_000_000_000;
/// CAP_SYS_PTRACE. A user without it reads only processes of his own.
const SYS_PTRACE: u64 = 1 << 19;

/// Time for which it is remembered whether a process is root's, ns; and the most processes for which it is.
const KNOWN_NS: u64 = 10_000_000;
const MOST_KNOWN: usize = 4096;

/// The most given-up reads that are reported, and the most processes that are recorded as not read because of others.
const MOST_TOLD: usize = 4096;
/// The most errands that are left alone at a time, for one user's processes and in total. Threads that read at the same moment may each
/// exceed it by one.
const MOST_OF_USER: usize = 16;
const MOST_OF_ALL: usize = 64;

/// The real id of a user, which a process keeps when its program is not dumpable; `None` if the process is gone.
type User = Option<u32>;

/// A process whose memory did not answer.
struct Silent {
    /// Time at which the process began, which distinguishes it from a later process with its id.
    began: Option<u64>,
    user: User,
    errands: Vec<Errand>,
}

/// Processes whose memory did not answer, and their number by user.
struct GivenUp {
    silent: BTreeMap<u32, Silent>,
    of_user: BTreeMap<User, u32>,
    /// Processes that are not read because too many others of their user do not answer, with the times at which they began.
    beyond: BTreeMap<u32, Option<u64>>,
    /// The first given-up reads: the process and the reason of each.
    told: Vec<(u32, &'static str)>,
}

static GIVEN_UP: Mutex<GivenUp> = Mutex::new(GivenUp::new());
/// Number of given-up reads that were reported.
static EVER: AtomicUsize = AtomicUsize::new(0);
/// True while there are processes whose memory did not answer.
static ANY: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Errand of this thread.
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

    /// Tells whether a read of the process was given up and has not ended.
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

    /// Returns the number of errands that are left alone, for the processes of a user and in total.
    fn left(&self, user: User) -> (usize, usize) {
        let each = self.silent.values();
        each.fold((0, 0), |(of_user, all), silent| {
            let n = silent.errands.len();
            (of_user + if silent.user == user { n } else { 0 }, all + n)
        })
    }

    /// Tells whether no further errand may be left alone for a process of this user.
    fn is_full(&mut self, user: User) -> bool {
        let is = |(of_user, all)| of_user >= MOST_OF_USER || all >= MOST_OF_ALL;
        if !is(self.left(user)) {
            return false;
        }
        self.reap();
        is(self.left(user))
    }

    /// Tells whether a process is not read because of others of its user. This is reported once for each process.
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

/// Returns the processes for which a read was given up, with the reasons, in the order of the reports. The first `before` reports are left
/// out, because an earlier call returned them.
pub fn given_up(before: usize) -> Vec<(u32, &'static str)> {
    match EVER.load(Ordering::Acquire) > before {
        true => all().told.iter().skip(before).copied().collect(),
        false => Vec::new(),
    }
}

/// Tells whether a read of this process's memory was given up and has not ended.
pub(super) fn is_silent(pid: u32) -> bool {
    ANY.load(Ordering::Relaxed) && all().is_silent(pid)
}

/// Returns the user of a process whose ids are not all root's, as of now or a moment ago. (A process of root's needs no other user's file
/// system to hold nvcap up.)
fn stranger(pid: u32, now: u64) -> Option<User> {
    thread_local! {
        /// Answers by process, each with the time until which it holds, ns.
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

/// Time for which the list of file systems need not be read again, in [`ticks`]. A file system cannot come into use faster: its program has
/// to answer three requests between its entry in the list and a mapping of one of its files. Reading the list costs a fourth of a small
/// read.
const KNOWN_TICKS: u64 = 20_000;

/// Returns a counter that is cheaper to read than the clock: some 2 to 4 ticks a nanosecond.
#[cfg(target_arch = "x86_64")]
fn ticks() -> u64 {
    // SAFETY: every processor of this architecture has it.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// Returns the clock, in about the same unit.
#[cfg(not(target_arch = "x86_64"))]
fn ticks() -> u64 {
    clock::now().saturating_mul(2)
}

/// Tells whether a user other than root may have a FUSE file system mounted, or had one a moment ago. `look` reads the list of them.
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

/// Returns the user of a process whose memory may be served by a program that need not answer, if nvcap has rights that the program's user
/// lacks.
fn may_hang(pid: u32) -> Option<User> {
    /// Time until which a stranger's file system counts as present, ns.
    static UNTIL: AtomicU64 = AtomicU64::new(0);
    /// Ticks at which the list was last seen without such a file system.
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

/// Cuts ranges into portions that an errand can read at once.
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

/// Reads ranges of a process's memory if a read may never end. Returns the number of bytes up to the first range that could not be read;
/// `None` if the memory is to be read directly. `thread` is one of the process's threads.
///
/// # Errors
/// The errors of the first read, and `TimedOut` if the read was given up.
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

/// Asks for one portion after another, until one is not read in full.
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

/// Reads a file of a process in `/proc`, at a place or at its current position, as [`read_ranges`] does.
///
/// # Errors
/// The errors of the first read, and `TimedOut` if the read was given up.
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
        // No more than there is room for; the caller goes on behind it.
        let room = to.len().min(MOST_BYTES);
        let to = to.get_mut(..room).unwrap_or_default();
        let read = ask(pid, user, &Asked::File(file), to);
        // A thread that decodes has given up the right to pass files on.
        let refused = |e: &io::Error| e.kind() == io::ErrorKind::PermissionDenied;
        return (!read.as_ref().is_err_and(refused)).then_some(read);
    };
    let portions = portions(std::iter::once((at, to.len())));
    Some(in_turn(&portions, to, |portion, to| {
        let from = portion.first().map(|(at, _)| *at);
        ask(pid, user, &Asked::Memory(pid, file, from.unwrap_or(at)), to)
    }))
}

/// An open file of a process in `/proc`.
struct MemoryFile {
    pid: u32,
    file: File,
}

impl io::Read for MemoryFile {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let by_errand = read_file(self.pid, &self.file, None, to);
        by_errand.unwrap_or_else(|| self.file.read(to))
    }
}

/// Opens a file of a process in `/proc` that the kernel writes from the process's memory, at a path in `/proc`. Whoever reads it waits behind a
/// read of that memory that never ends, so that it is read as memory is: by an errand where that is needed.
///
/// # Errors
/// Those of opening the file.
pub(super) fn open(pid: u32, path: String) -> io::Result<impl io::Read> {
    let file = File::open(path)?;
    Ok(MemoryFile { pid, file })
}

fn ask(pid: u32, user: User, from: &Asked<'_>, to: &mut [u8]) -> io::Result<usize> {
    if ANY.load(Ordering::Relaxed) && all().refuses(pid, user) {
        return Err(refused(TOO_MANY));
    }
    // The patience is asked for only once it waits.
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
