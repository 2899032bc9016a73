//! The table that nvcap and a program share: atomic words in a file. The module knows nothing of records.

use std::{
    fs::{File, OpenOptions},
    io,
    os::{fd::AsRawFd, unix::fs::OpenOptionsExt},
    path::Path,
    ptr::NonNull,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

/// Environment variable with the file's name.
pub const FILE: &str = "NVCAP_IN_STEP";
/// Time for which a program waits for nvcap before it gives up. The limit guards against hanging; it is not a verdict.
pub const GUARD: Duration = Duration::from_secs(300);

/// Address of the number of a process's breakpoints ([`Kind::Process`]).
pub const ARMED: u64 = 0x1000;

/// Address of the number of a process's named programs ([`Kind::Process`]).
pub const NAMED: u64 = 0x2000;

/// Address of the number of a process's own writes ([`Kind::Process`]).
const WRITES: u64 = 4;

const SLOTS: usize = 8192;
/// Value of a slot whose trace has ended in good order: it is no longer waited for.
const ENDED: u64 = u64::MAX;
/// Value of a slot whose memory is gone.
const FORGOTTEN: u64 = u64::MAX - 1;

/// Kind of object that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The process itself. At [`WRITES`], the value is twice the number of its writes, plus one during a write. At [`ARMED`], it is the
    /// number of breakpoints that were set.
    Process = 0,
    /// A ring, by its address. The value is the position behind the last entry that was read or counted as lost, whether it is shown
    /// already or held until names are known: GP_PUT, plus the laps that the trace knows of.
    Ring = 1,
    /// A semaphore with a timestamp, by its address. The value is its payload.
    Stamp = 2,
    /// A word that a kernel's end writes, by its address. The value is the word.
    Word = 3,
}

/// A line of the table. Zeroed memory is an empty line.
#[repr(C)]
struct Slot {
    /// Publishing process and the process that it describes, `teller << 32 | pid`; 0 if the slot is free.
    of: AtomicU64,
    /// Address, whose lowest two bits are the [`Kind`]; 0 while it is not yet written.
    what: AtomicU64,
    value: AtomicU64,
}

/// The shared file, mapped.
pub struct Table {
    slots: NonNull<Slot>,
}

// SAFETY: the mapping is not bound to a thread, and all access to it is atomic.
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

impl Drop for Table {
    fn drop(&mut self) {
        // SAFETY: unmaps what `map` mapped; no reference outlives `self`.
        unsafe { libc::munmap(self.slots.as_ptr().cast(), LEN) };
    }
}

const LEN: usize = SLOTS * size_of::<Slot>();

impl Table {
    /// Makes the file, empty. Every user may write to it, because tests trace as several users.
    ///
    /// # Errors
    /// The errors of the file.
    pub fn create(path: &Path) -> io::Result<Self> {
        use std::os::unix::fs::PermissionsExt;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(path)?;
        file.set_permissions(PermissionsExt::from_mode(0o666))?;
        file.set_len(LEN as u64)?;
        Self::map(&file)
    }

    /// Opens the file that a test has made.
    ///
    /// # Errors
    /// The errors of the file; it must have the right length.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(path)?;
        if file.metadata()?.len() != LEN as u64 {
            return Err(io::Error::other("it is no table of tests in step"));
        }
        Self::map(&file)
    }

    fn map(file: &File) -> io::Result<Self> {
        // SAFETY: a new shared mapping of a file that is as long; its length never shrinks.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                LEN,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        match NonNull::new(at) {
            Some(at) if at.as_ptr() != libc::MAP_FAILED => Ok(Self { slots: at.cast() }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn slots(&self) -> &[Slot] {
        // SAFETY: mapped as long as `self` lives; any bits are valid, and there are only atomics in it.
        unsafe { std::slice::from_raw_parts(self.slots.as_ptr(), SLOTS) }
    }

    /// Returns the slots from the place at which the search for an address begins.
    fn from(&self, what: u64) -> impl Iterator<Item = &Slot> {
        // Addresses differ in their middle bits.
        let at = (what.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize % SLOTS;
        let (behind, first) = self.slots().split_at(at);
        first.iter().chain(behind)
    }

    pub(super) fn write(&self, teller: u32, pid: u32, kind: Kind, address: u64, value: u64) {
        let of = u64::from(teller) << 32 | u64::from(pid);
        let what = address & !3 | kind as u64;
        for slot in self.from(what) {
            let is = slot.of.load(Ordering::Acquire);
            let mine = match is {
                0 => {
                    let taken =
                        slot.of
                            .compare_exchange(0, of, Ordering::AcqRel, Ordering::Acquire);
                    if taken.is_ok() {
                        slot.value.store(value, Ordering::Release);
                        slot.what.store(what, Ordering::Release);
                        return;
                    }
                    false
                }
                _ => is == of && slot.what.load(Ordering::Acquire) == what,
            };
            if mine {
                slot.value.store(value, Ordering::Release);
                return;
            }
        }
    }

    /// Returns the slot in which a process publishes its own writes.
    fn writes(&self, pid: u32) -> Option<&Slot> {
        let of = u64::from(pid) << 32 | u64::from(pid);
        let used = |s: &&Slot| s.of.load(Ordering::Acquire) != 0;
        let mut used = self.from(WRITES).take_while(used);
        used.find(|s| {
            s.of.load(Ordering::Acquire) == of && s.what.load(Ordering::Acquire) == WRITES
        })
    }

    /// Runs `write` so that nvcap sees no state in between: nvcap repeats a read during which a write happened. Only one thread of the
    /// program may use it.
    pub fn at_once<T>(&self, write: impl FnOnce() -> T) -> T {
        let pid = std::process::id();
        if self.writes(pid).is_none() {
            self.write(pid, pid, Kind::Process, WRITES, 0);
        }
        let Some(writes) = self.writes(pid) else {
            return write();
        };
        writes.value.fetch_add(1, Ordering::SeqCst);
        let written = write();
        writes.value.fetch_add(1, Ordering::SeqCst);
        written
    }

    /// Reads a process's memory between its writes.
    pub(super) fn apart<T>(&self, pid: u32, mut read: impl FnMut() -> T) -> T {
        let Some(writes) = self.writes(pid) else {
            return read();
        };
        let mut looks = 0u32;
        loop {
            let before = writes.value.load(Ordering::SeqCst);
            let writes_now = before & 1 == 1 && before != ENDED;
            // A process that was killed during a write writes no more.
            if !writes_now || looks % 64 == 63 && !lives(pid) {
                let found = read();
                if writes_now || writes.value.load(Ordering::SeqCst) == before {
                    return found;
                }
                continue;
            }
            looks += 1;
            pause(looks);
        }
    }

    /// Tells whether every trace that has published an address has caught up. `ahead` is as in [`told`](Self::told). Traces that have died
    /// are not considered. An address that no trace has published counts as not read.
    pub fn has_read(
        &self,
        pids: &[u32],
        kind: Kind,
        address: u64,
        ahead: impl Fn(u64) -> u64,
    ) -> bool {
        let told = self.told(pids, kind, address, ahead);
        match told.filter(|t| t.ahead > 0) {
            Some(behind) if !lives(behind.teller) => {
                self.ended(behind.teller);
                false
            }
            Some(_) => false,
            None => told.is_some(),
        }
    }

    /// Returns the trace that is furthest behind at an address of these processes, among the traces that have published it; `None` if none
    /// has. `ahead` gives the distance of the program from a published value.
    pub fn told(
        &self,
        pids: &[u32],
        kind: Kind,
        address: u64,
        ahead: impl Fn(u64) -> u64,
    ) -> Option<Told> {
        let what = address & !3 | kind as u64;
        let mut tellers: Vec<(u32, u64)> = Vec::new();
        for slot in self.from(what) {
            let of = slot.of.load(Ordering::Acquire);
            if of == 0 {
                break;
            }
            let (teller, pid) = ((of >> 32) as u32, of as u32);
            if slot.what.load(Ordering::Acquire) != what || !pids.contains(&pid) {
                continue;
            }
            let value = slot.value.load(Ordering::Acquire);
            if value == FORGOTTEN {
                continue;
            }
            // For each trace, what it has read of any of the processes that share the memory.
            match tellers.iter_mut().find(|t| t.0 == teller) {
                Some(told) => told.1 = told.1.max(value),
                None => tellers.push((teller, value)),
            }
        }
        let told = tellers.into_iter().map(|(teller, value)| Told {
            teller,
            ahead: if value == ENDED { 0 } else { ahead(value) },
        });
        told.max_by_key(|t| t.ahead)
    }

    /// Forgets the values that were published for a process, which begins with other memory at the same addresses.
    pub fn forget(&self, pid: u32) {
        self.forget_where(pid, |what| what != ARMED | Kind::Process as u64);
    }

    /// Forgets that a process has breakpoints, because it has not mapped its doorbells yet.
    pub fn forget_armed(&self, pid: u32) {
        self.forget_where(pid, |what| what == ARMED | Kind::Process as u64);
    }

    fn forget_where(&self, pid: u32, which: impl Fn(u64) -> bool) {
        for slot in self.slots() {
            if slot.of.load(Ordering::Acquire) as u32 == pid
                && which(slot.what.load(Ordering::Acquire))
            {
                slot.value.store(FORGOTTEN, Ordering::Release);
            }
        }
    }

    /// Waits until every trace that has published an address is at most `most` behind. With `unknown`, it also waits until a trace
    /// publishes the address, unless all traces of these processes have ended. Traces that have died are not waited for.
    ///
    /// # Errors
    /// When the wait has taken [`GUARD`].
    pub fn wait(
        &self,
        pids: &[u32],
        kind: Kind,
        address: u64,
        most: u64,
        unknown: bool,
        ahead: impl Fn(u64) -> u64,
    ) -> io::Result<()> {
        let began = Instant::now();
        let mut looks = 0u32;
        loop {
            match self.told(pids, kind, address, &ahead) {
                None if !unknown => return Ok(()),
                Some(told) if told.ahead <= most => return Ok(()),
                // The trace may have died; what it published no longer matters.
                Some(told) if looks % 64 == 63 && !lives(told.teller) => self.ended(told.teller),
                None if looks % 64 == 63 && self.deserted(pids) => return Ok(()),
                _ => {}
            }
            if began.elapsed() > GUARD {
                return Err(io::Error::other(format!(
                    "in step: after {} s nvcap has not read on at {address:#x} ({kind:?})",
                    GUARD.as_secs()
                )));
            }
            looks += 1;
            // The other side needs the processor.
            let us = 50u64 << (looks / 16).min(4);
            thread::sleep(Duration::from_micros(us));
        }
    }

    /// Tells whether there were traces of these processes and none goes on.
    pub fn deserted(&self, pids: &[u32]) -> bool {
        let (mut ended, mut goes_on) = (false, Vec::new());
        for slot in self.slots() {
            let of = slot.of.load(Ordering::Acquire);
            if of == 0 || !pids.contains(&(of as u32)) {
                continue;
            }
            match slot.value.load(Ordering::Acquire) {
                ENDED => ended = true,
                _ => goes_on.push((of >> 32) as u32),
            }
        }
        goes_on.sort_unstable();
        goes_on.dedup();
        for teller in goes_on {
            if lives(teller) {
                return false;
            }
            self.ended(teller);
            ended = true;
        }
        ended
    }

    /// Waits until a trace has set breakpoints of this process, for `most` at most, and only while a trace goes on.
    pub fn wait_until_armed(&self, pid: u32, most: Duration) {
        let began = Instant::now();
        while self
            .told(&[pid], Kind::Process, ARMED, |count| count)
            .is_none()
            && !self.deserted(&[pid])
            && began.elapsed() < most
        {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Records that a trace publishes nothing more.
    pub(super) fn ended(&self, teller: u32) {
        for slot in self.slots() {
            if slot.of.load(Ordering::Acquire) >> 32 == u64::from(teller) {
                slot.value.store(ENDED, Ordering::Release);
            }
        }
    }
}

/// Pauses before the next look at the other side. `looks` is the number of looks so far.
fn pause(looks: u32) {
    match looks {
        0..32 => thread::yield_now(),
        _ => thread::sleep(Duration::from_micros(50)),
    }
}

/// The trace that is furthest behind at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// Process id of the nvcap that published.
    pub teller: u32,
    /// Distance by which the program is ahead of the trace.
    pub ahead: u64,
}

/// Tells whether a process is neither gone nor a zombie.
fn lives(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|stat| {
        let state = stat.rsplit_once(") ").map(|(_, rest)| rest);
        state.is_some_and(|s| !s.starts_with(['Z', 'X']))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_furthest_behind_is_waited_for() {
        let path = std::env::temp_dir().join(format!("nvcap-in-step-{}", std::process::id()));
        let table = Table::create(&path).expect("a table");
        let again = Table::open(&path).expect("the same");
        std::fs::remove_file(&path).expect("it is there");
        let ahead = |told| 10 - told;
        assert_eq!(table.told(&[7], Kind::Ring, 0x1000, ahead), None);
        again.write(1, 7, Kind::Ring, 0x1000, 4);
        again.write(2, 7, Kind::Ring, 0x1000, 9);
        // Another process at the same address, and another kind.
        again.write(1, 8, Kind::Ring, 0x1000, 10);
        again.write(1, 7, Kind::Stamp, 0x1000, 10);
        let told = |teller, ahead| Some(Told { teller, ahead });
        assert_eq!(table.told(&[7], Kind::Ring, 0x1000, ahead), told(1, 6));
        // Two processes that share memory: it suffices to have read of either.
        assert_eq!(table.told(&[7, 8], Kind::Ring, 0x1000, ahead), told(2, 1));
        again.ended(1);
        assert_eq!(table.told(&[7], Kind::Ring, 0x1000, ahead), told(2, 1));
        assert!(!table.deserted(&[9]), "nobody has told of 9");
        assert!(table.deserted(&[8]), "the one that told of 8 has ended");
        // The process executes another program, which begins anew.
        table.forget(7);
        assert_eq!(table.told(&[7], Kind::Ring, 0x1000, ahead), None);
        again.write(2, 7, Kind::Ring, 0x1000, 9);
        assert_eq!(table.told(&[7], Kind::Ring, 0x1000, ahead), told(2, 1));
        assert!(table.wait(&[7], Kind::Ring, 0x1000, 1, true, ahead).is_ok());
        assert!(
            table
                .wait(&[9], Kind::Ring, 0x1000, 0, false, ahead)
                .is_ok()
        );
    }

    #[test]
    fn nothing_is_read_while_something_is_written() {
        let path = std::env::temp_dir().join(format!("nvcap-at-once-{}", std::process::id()));
        let table = Table::create(&path).expect("a table");
        std::fs::remove_file(&path).expect("it is there");
        let pid = std::process::id();
        let halves = [AtomicU64::new(0), AtomicU64::new(0)];
        let both = || halves.each_ref().map(|h| h.load(Ordering::Relaxed));
        table.at_once(|| ());
        thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for n in 1..50 {
                    table.at_once(|| {
                        halves[0].store(n, Ordering::Relaxed);
                        thread::sleep(Duration::from_micros(200));
                        halves[1].store(n, Ordering::Relaxed);
                    });
                    thread::yield_now();
                }
            });
            while !writer.is_finished() {
                let [a, b] = table.apart(pid, both);
                assert_eq!(a, b);
            }
        });
        assert_eq!(table.apart(pid, both), [49, 49]);
    }

    #[test]
    fn what_nobody_told_of_is_not_read() {
        let path = std::env::temp_dir().join(format!("nvcap-has-read-{}", std::process::id()));
        let table = Table::create(&path).expect("a table");
        std::fs::remove_file(&path).expect("it is there");
        let own = std::process::id();
        let has_read = || table.has_read(&[7], Kind::Word, 0x1004, |told| 5 - told.min(5));
        assert!(!has_read());
        table.write(own, 7, Kind::Word, 0x1004, 4);
        assert!(!has_read());
        table.write(own, 7, Kind::Word, 0x1004, 5);
        assert!(has_read());
        // A trace that no longer exists.
        table.write(i32::MAX as u32, 7, Kind::Word, 0x1004, 1);
        assert!(!has_read());
        assert!(has_read());
    }
}
