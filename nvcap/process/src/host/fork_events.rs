//! Makers of processes, as the kernel reports them when a process is made. A process whose maker has ended has another parent, so `/proc`
//! does not show the maker.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use perf_event_open_sys::bindings as b;

use super::kernel_records::{Buffer, long, of_all_processors, word};

/// Size of a processor's buffer, bytes: some thousand births and ends.
const BUFFER: usize = 64 << 10;
/// Offsets of the fields of a record: process, its maker, thread, the thread that made it (4 bytes each), and the time.
const PID_AT: usize = 0;
const MAKER_AT: usize = 4;
const TID_AT: usize = 8;
const TIME_AT: usize = 16;
/// Number of births above which those that are no longer needed are forgotten, and the most that are kept.
const MANY: usize = 1 << 12;
const MOST: usize = 1 << 16;
/// Time after which all makers of a process have been reported, ns.
const SETTLED_NS: u64 = 1_000_000_000;

/// Descent of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Descent {
    /// A descendant of this process, which is one of the named processes.
    From(u32),
    /// No descendant of the named processes: none of them has made it, or one of its ancestors.
    Stranger,
    /// Unknown: the process was made before recording began, or too many births were reported to be kept.
    Unknown,
}

/// A process: its number and the time of its birth, ns; 0 if it was there before.
type Who = (u32, u64);

/// Births of processes.
#[derive(Debug, Default)]
struct Births {
    /// Maker or an earlier ancestor of each process, by the process's number and birth. The ancestor is given as the number that a process
    /// had before a time, ns, because another process may have the number later.
    of: BTreeMap<Who, Who>,
    newest_ns: u64,
    /// Processes whose descendants are asked for.
    named: BTreeSet<Who>,
    /// Number of births above which some are forgotten.
    limit: usize,
    /// True if births are missing.
    lost: bool,
}

impl Births {
    fn add(&mut self, pid: u32, maker: u32, time_ns: u64) {
        if self.of.len() < MOST {
            self.of.insert((pid, time_ns), (maker, time_ns));
            self.newest_ns = self.newest_ns.max(time_ns);
        } else {
            self.lost = true;
        }
    }

    /// Returns the process that had a number before a time, ns.
    fn who(&self, (pid, before_ns): (u32, u64)) -> Who {
        let born = self.of.range((pid, 0)..(pid, before_ns)).next_back();
        born.map_or((pid, 0), |(who, _)| *who)
    }

    fn name(&mut self, pid: u32) {
        if self.named.len() < MOST {
            self.named.insert(self.who((pid, u64::MAX)));
        } else {
            self.lost = true;
        }
    }

    fn descent(&mut self, pid: u32) -> Descent {
        match self.who((pid, u64::MAX)) {
            (_, 0) => Descent::Unknown,
            who => self.descent_of(who),
        }
    }

    /// Returns the descent of a process that was born. The result shortens the search for all processes on the way.
    fn descent_of(&mut self, who: Who) -> Descent {
        let (mut way, mut at) = (Vec::new(), who);
        while let Some(made) = self.of.get(&at) {
            way.push(at);
            at = self.who(*made);
            if self.named.contains(&at) {
                break;
            }
        }
        for on_it in way {
            self.of.insert(on_it, (at.0, at.1 + 1));
        }
        match self.named.contains(&at) {
            true => Descent::From(at.0),
            false if self.lost => Descent::Unknown,
            false => Descent::Stranger,
        }
    }

    /// Forgets births by strangers. Their descendants are strangers without these births, too.
    fn forget(&mut self) {
        if self.of.len() < self.limit.max(MANY) {
            return;
        }
        let mut needed = BTreeSet::new();
        for who in self.of.keys().copied().collect::<Vec<_>>() {
            // Not all makers of the newest processes are reported yet.
            let is_new = who.1.saturating_add(SETTLED_NS) > self.newest_ns;
            if is_new || self.descent_of(who) != Descent::Stranger {
                needed.insert(who.0);
            }
        }
        // If its birth were forgotten, the process would be taken for an older one with the same number.
        needed.extend(self.named.iter().map(|who| who.0));
        self.of.retain(|who, _| needed.contains(&who.0));
        self.limit = 2 * self.of.len();
    }
}

/// The kernel's reports of new processes, and the births in them.
#[derive(Debug)]
pub struct Told {
    buffers: Vec<Buffer>,
    births: Births,
}

impl Told {
    /// Opens buffers for records of all processes that are made from now on.
    ///
    /// # Errors
    /// When perf events of all processes are refused.
    pub fn new() -> io::Result<Self> {
        let asks = |attr: &mut b::perf_event_attr| {
            attr.set_task(1);
            // The clock is the same on all processors.
            attr.set_use_clockid(1);
            attr.clockid = libc::CLOCK_MONOTONIC;
        };
        Ok(Self {
            buffers: of_all_processors(BUFFER, asks)?,
            births: Births::default(),
        })
    }

    /// Names a process whose descendants are asked for.
    pub fn name(&mut self, pid: u32) {
        self.take();
        self.births.name(pid);
    }

    /// Returns the descent of a process that was made after recording began. It is unknown if the process was made before, or if there were
    /// too many records.
    pub fn descent(&mut self, pid: u32) -> Descent {
        self.take();
        self.births.descent(pid)
    }

    /// Takes in the births that were reported since the last call.
    pub fn take(&mut self) {
        self.births.forget();
        let mut all = Vec::new();
        // A maker's birth may be in a buffer that was read before its child's buffer was; it is found the second time.
        for _ in 0..2 {
            for buffer in &mut self.buffers {
                buffer.read(&mut |kind, fields| match kind {
                    b::PERF_RECORD_FORK => all.extend(birth(fields)),
                    b::PERF_RECORD_LOST => self.births.lost = true,
                    _ => {}
                });
            }
        }
        for (pid, maker, time_ns) in all {
            self.births.add(pid, maker, time_ns);
        }
    }
}

/// Returns the number, the maker and the time of a process that was made; `None` for a thread, and for a process in a PID namespace that is
/// not below nvcap's.
fn birth(fields: &[u8]) -> Option<(u32, u32, u64)> {
    let (pid, tid) = (word(fields, PID_AT)?, word(fields, TID_AT)?);
    let (maker, time) = (word(fields, MAKER_AT)?, long(fields, TIME_AT)?);
    (pid == tid && pid != 0).then_some((pid, maker, time))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds the births of these processes, each made by the one before it, and the first one by `first`.
    fn chain(births: &mut Births, first: u32, pids: impl Iterator<Item = u32>) {
        let mut maker = first;
        for pid in pids {
            births.add(pid, maker, births.newest_ns + 10);
            maker = pid;
        }
    }

    #[test]
    fn descent_is_by_makers_as_they_were() {
        let mut births = Births::default();
        births.name(5);
        // 5 makes 10, which makes 11; 4, the parent of 5, makes 12.
        chain(&mut births, 5, 10..12);
        births.add(12, 4, 100);
        assert_eq!(births.descent(11), Descent::From(5));
        assert_eq!(births.descent(12), Descent::Stranger);
        assert_eq!(births.descent(5), Descent::Unknown, "it was there before");
        // 10 has ended, and 12 makes another process of that number; 5 has ended, too.
        births.add(10, 12, 200);
        births.add(5, 12, 300);
        births.add(13, 10, 400);
        births.add(14, 5, 500);
        assert_eq!(births.descent(13), Descent::Stranger);
        assert_eq!(births.descent(14), Descent::Stranger);
        assert_eq!(births.descent(11), Descent::From(5));
        // A process that was made and is itself named.
        births.name(12);
        births.add(15, 12, 600);
        assert_eq!(births.descent(15), Descent::From(12));
    }

    #[test]
    fn where_births_are_missing_strangers_are_not_known() {
        let mut births = Births::default();
        births.name(5);
        chain(&mut births, 5, 10..12);
        births.add(12, 4, 100);
        births.lost = true;
        assert_eq!(births.descent(11), Descent::From(5));
        assert_eq!(births.descent(12), Descent::Unknown);
    }

    /// Test of a long chain of makers: each process asks for a way through all makers before it, which is walked only once.
    #[test]
    fn a_long_line_of_makers_is_walked_once() {
        let mut births = Births::default();
        births.name(5);
        chain(&mut births, 5, 10..MOST as u32);
        for pid in (10..MOST as u32).rev() {
            assert_eq!(births.descent(pid), Descent::From(5));
        }
    }

    #[test]
    fn births_by_strangers_are_forgotten_and_stay_strangers() {
        let mut births = Births::default();
        births.name(5);
        chain(&mut births, 5, 10..20);
        for n in 0..20 * MANY as u32 {
            births.forget();
            births.add(1_000 + n, 4, 1_000_000 * u64::from(n) + 1_000);
        }
        assert!(
            births.of.len() < 3 * MANY && !births.lost,
            "{}",
            births.of.len()
        );
        births.add(21, 1_001, u64::MAX - 1);
        assert_eq!(births.descent(21), Descent::Stranger);
        assert_eq!(births.descent(19), Descent::From(5));
        // Too many births to be kept.
        for n in 0..2 * MOST as u32 {
            births.forget();
            births.add(1_000_000 + n, 19, births.newest_ns);
        }
        assert!(births.of.len() <= MOST && births.lost);
        assert_eq!(births.descent(21), Descent::Unknown);
    }

    /// Test of a grandchild of this process whose parent has ended, and of a child of this process's parent.
    #[test]
    #[ignore = "needs perf events of all processes: cargo xtask test runs it as root"]
    fn the_kernel_tells_who_made_a_process() {
        let Ok(mut told) = Told::new() else {
            println!(
                "NOT RUN the_kernel_tells_who_made_a_process: perf events of all processes are refused"
            );
            return;
        };
        let own = std::process::id();
        told.name(own);
        // The shell ends, and the sleep becomes another process's child.
        let script = "sleep 600 >/dev/null 2>&1 & echo $!";
        let out = std::process::Command::new("sh")
            .args(["-c", script])
            .output();
        let text = String::from_utf8(out.expect("a shell").stdout).expect("a number");
        let orphan: u32 = text.trim().parse().expect("a number");
        assert_eq!(told.descent(orphan), Descent::From(own));
        // SAFETY: ends what was started above.
        unsafe { libc::kill(orphan as i32, libc::SIGKILL) };
        assert_eq!(told.descent(own), Descent::Unknown);
        told.births.named.clear();
        let child = nvcap_waiting::Sleeper::start();
        assert_eq!(told.descent(child.id()), Descent::Stranger);
    }
}
