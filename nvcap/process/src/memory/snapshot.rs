//! One look at a running process that reaches as far back as its rings do: every channel's newest entries with their pushbuffer bytes, its
//! tokens, its threads. It needs no earlier record of the process and no BPF, and does not stop the process.

use std::{
    io,
    time::{Duration, Instant},
};

use super::{
    captured::{ChannelSnapshot, KnownRing, SnapshotOptions},
    channel_snapshot::Reader,
    history::resolve,
    maps::{self, Area},
    scan::{self, Effort, FoundRing, Places},
    tokens::name_tokens,
    va_inference::Window,
};
use crate::clock;
use crate::procfs;
use crate::procfs::mem::{Memory, ReadMemory};
use nvcap_decode::record::{At, ChannelId, CpuVa, Device, Life, Process, Record};

/// State of a process at one look.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// Process id.
    pub pid: u32,
    /// Time of the look, ns of `CLOCK_MONOTONIC`.
    pub time_ns: u64,
    /// Name of the process.
    pub name: String,
    /// Mappings of the process.
    pub areas: Vec<Area>,
    /// Channels that were used, by GPU and USERD.
    pub channels: Vec<ChannelSnapshot>,
    /// Number of slots that are all zero: channels that were never used, or no channels.
    pub unused: usize,
    /// Notes, in words, on omissions.
    pub notes: Vec<String>,
    /// Ranges of pushbuffers whose addresses in the process are not the GPU's.
    pub windows: Vec<Window>,
    /// Time spent on the mappings and on finding the channels.
    pub finding: Duration,
    /// Time spent on rings and pushbuffers.
    pub reading: Duration,
}

/// Looks at a process. Channels are numbered from `first`.
///
/// # Errors
/// The errors of reading `/proc/PID/maps` and of opening `/proc/PID/mem`: no such process, or no right to read it.
pub fn take(pid: u32, first: u32, options: SnapshotOptions<'_>) -> io::Result<(Memory, Snapshot)> {
    let memory = Memory::open(pid)?;
    let start = Instant::now();
    let areas = maps::areas(pid)?;
    let name = procfs::name(pid, None).unwrap_or_default();
    let target = SnapshotTarget {
        pid,
        name,
        areas,
        start,
    };
    let snapshot = of(&memory, target, first, options);
    Ok((memory, snapshot))
}

/// A process of which a snapshot is taken.
struct SnapshotTarget {
    pid: u32,
    name: String,
    /// Mappings of the process.
    areas: Vec<Area>,
    /// Time at which the look began.
    start: Instant,
}

/// Does as [`take`], on any memory.
fn of(
    memory: &impl ReadMemory,
    process: SnapshotTarget,
    first: u32,
    options: SnapshotOptions<'_>,
) -> Snapshot {
    let SnapshotTarget {
        pid,
        name,
        areas,
        start,
    } = process;
    let mut search = scan::search(memory, &areas, options.effort);
    if procfs::served::has_unreadable(pid) {
        search.notes.push(procfs::served::NOT_READ.to_owned());
    }
    let places = Places::new(&areas);
    add_known(memory, &places, options.known_rings, &mut search.found);
    let finding = start.elapsed();
    let at = At {
        time_ns: clock::now(),
        pid,
        tid: 0,
    };
    let reader = Reader {
        memory,
        places: &places,
        at,
        options,
    };
    let mut patience = options.patience;
    let mut channels: Vec<ChannelSnapshot> = search
        .found
        .iter()
        .filter(|f| f.used)
        .zip(first..)
        .map(|(f, number)| reader.see(ChannelId(number), *f, &mut patience))
        .collect();
    let windows = resolve(memory, &places, &mut channels);
    let reading = start.elapsed().saturating_sub(finding);
    name_tokens(memory, &areas, &search.found, &mut channels);
    for seen in &mut channels {
        let given = options
            .known_rings
            .iter()
            .find(|g| g.userd == seen.found.userd);
        seen.channel.token = given.and_then(|g| g.token).or(seen.channel.token);
    }
    for seen in &mut channels {
        let now = scan::get_put(memory, seen.found.userd).ok();
        seen.found.proof.moved = now.is_some_and(|n| n != (seen.found.get, seen.found.put));
    }
    Snapshot {
        pid,
        time_ns: at.time_ns,
        name,
        unused: search.found.len() - channels.len(),
        channels,
        notes: search.notes,
        windows,
        areas,
        finding,
        reading,
    }
}

/// Adds the channels that the user names. They are accepted as far as their memory exists. If the user names no GPU, it is the one whose
/// memory holds USERD.
fn add_known(
    memory: &impl ReadMemory,
    places: &Places<'_>,
    given: &[KnownRing],
    found: &mut Vec<FoundRing>,
) {
    for g in given {
        let Ok((get, put)) = scan::get_put(memory, g.userd) else {
            continue;
        };
        let same = |f: &&mut FoundRing| f.userd == g.userd;
        match found.iter_mut().find(same) {
            Some(f) if f.used => {}
            slot => {
                let it = FoundRing {
                    gpu: g.gpu.or_else(|| places.at(g.userd)?.gpu()),
                    ring: g.ring,
                    entries: g.entries,
                    userd: g.userd,
                    get,
                    put,
                    used: (get, put) != (0, 0),
                    proof: scan::Proof {
                        place: scan::Place::Given,
                        ..scan::Proof::default()
                    },
                };
                match slot {
                    Some(f) => *f = it,
                    None => found.push(it),
                }
            }
        }
    }
    found.sort_by_key(|f| (f.gpu, f.userd));
}

impl Snapshot {
    /// Returns the snapshot as a source's records: the process, its mappings, its channels, their submissions.
    pub fn records(&self) -> impl Iterator<Item = Record> + '_ {
        let at = At {
            time_ns: self.time_ns,
            pid: self.pid,
            tid: 0,
        };
        let life = Life::Present {
            name: self.name.clone(),
        };
        let process = Record::Process(Process { at, life });
        let mapped = self
            .areas
            .iter()
            .filter_map(move |a| a.record(at).map(Record::Mapping));
        let channels = self
            .channels
            .iter()
            .map(|s| Record::Channel(Box::new(s.channel.clone())));
        let submissions = self
            .channels
            .iter()
            .flat_map(|s| s.submissions.iter().cloned().map(Record::Submission));
        std::iter::once(process)
            .chain(mapped)
            .chain(channels)
            .chain(submissions)
    }
}

/// Returns the 8 bytes (4 at the end of a mapping) at a semaphore's address. `None` if the address is not the process's, or lies in managed
/// memory, which a read from outside would move away from the GPU.
pub fn read_semaphore(memory: &impl ReadMemory, places: &Places<'_>, address: u64) -> Option<u64> {
    let area = places.at(address)?;
    if area.device() == Some(Device::Uvm) {
        return None;
    }
    let mut b = [0; 8];
    let len = if address + 8 <= area.end { 8 } else { 4 };
    memory.read_bytes(address, b.get_mut(..len)?).ok()?;
    Some(u64::from_le_bytes(b))
}

/// Number of entries of each channel that are examined. They show the engine that the channel feeds, which must agree with its token.
const TOKENS_LAST: u32 = 8;

/// A channel's work-submit token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingToken {
    /// Ring of the channel.
    pub ring: CpuVa,
    /// Token of the channel.
    pub token: u32,
}

/// Returns the tokens that follow from the order of channels and error notifiers (`notifier`): of all channels that have libcuda's layout,
/// or of none.
pub fn tokens(memory: &impl ReadMemory, areas: &[Area]) -> Vec<RingToken> {
    tokens_found(memory, areas, Effort::Habit)
}

/// Does as [`tokens`], for the channels that are found with this effort.
pub(super) fn tokens_found(
    memory: &impl ReadMemory,
    areas: &[Area],
    effort: Effort,
) -> Vec<RingToken> {
    let options = SnapshotOptions {
        last: TOKENS_LAST,
        before: 0,
        effort,
        known_rings: &[],
        patience: Duration::ZERO,
    };
    let process = SnapshotTarget {
        pid: 0,
        name: String::new(),
        areas: areas.to_vec(),
        start: Instant::now(),
    };
    let seen = of(memory, process, 0, options);
    let token = |s: &ChannelSnapshot| {
        Some(RingToken {
            ring: CpuVa(s.found.ring),
            token: s.channel.token?,
        })
    };
    seen.channels.iter().filter_map(token).collect()
}

#[cfg(test)]
mod tests {
    use super::super::fake_memory::{FakeMemory, Ring};
    use super::*;
    use std::cell::{Cell, RefCell};

    fn taken(memory: &impl ReadMemory, areas: &[Area], last: u32) -> Snapshot {
        taken_in(memory, areas, last, Duration::ZERO)
    }

    fn taken_in(
        memory: &impl ReadMemory,
        areas: &[Area],
        last: u32,
        patience: Duration,
    ) -> Snapshot {
        let options = SnapshotOptions {
            last,
            before: 0,
            effort: Effort::Usual,
            known_rings: &[],
            patience,
        };
        let process = SnapshotTarget {
            pid: 7,
            name: "made up".to_owned(),
            areas: areas.to_vec(),
            start: Instant::now(),
        };
        of(memory, process, 0, options)
    }

    fn payloads(seen: &ChannelSnapshot) -> Vec<u32> {
        let payload = |s: &nvcap_decode::record::Submission| {
            let b = s.segments.first()?.bytes.get(12..16)?;
            Some(u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        };
        seen.submissions.iter().filter_map(payload).collect()
    }

    #[test]
    fn the_newest_entries_over_the_rings_end() {
        for (count, last, first) in [
            (5u64, 20u32, 1u32),
            (1023, 1000, 24),
            (1024, 1000, 25),
            (1030, 20, 1011),
            (5000, 1000, 4001),
            (5000, 5000, 3978),
        ] {
            let mut memory = FakeMemory::cuda();
            memory.submit_many(Ring::slot(0), 9);
            memory.submit_many(Ring::slot(2), count);
            let snapshot = taken(&memory, memory.areas(), last);
            let seen = &snapshot.channels[1];
            let expected: Vec<u32> = (first..=count as u32).collect();
            assert_eq!(payloads(seen), expected, "{count} {last}");
            assert_eq!(
                (seen.overwritten, seen.recycled, seen.unreadable),
                (0, 0, 0)
            );
            let positions: Vec<u64> = seen.submissions.iter().map(|s| s.position).collect();
            assert!(positions.windows(2).all(|w| w[1] == w[0] + 1));
            assert_eq!(positions.last().map(|p| (p + 1) % 1024), Some(count % 1024));
            assert_eq!(
                seen.first.len(),
                if count < 1024 && last < count as u32 {
                    3
                } else {
                    0
                }
            );
        }
    }

    #[test]
    fn what_is_not_fetched_is_read_whatever_was_asked_for() {
        let mut memory = FakeMemory::cuda();
        for n in 0..100 {
            memory.submit(Ring::slot(0), n, &[0x2001_8000, 0xc8b5], n.min(40));
        }
        let snapshot = taken(&memory, memory.areas(), 3);
        // The 40 entries that are not fetched, and the one before.
        assert_eq!(snapshot.channels[0].submissions.len(), 41);
        assert_eq!(snapshot.channels[0].get, 60);
    }

    /// Memory to which further entries are submitted when the second run of pushbuffer bytes is about to be read.
    struct Going {
        memory: RefCell<FakeMemory>,
        runs: Cell<u32>,
        left: Cell<u64>,
    }

    impl ReadMemory for Going {
        fn read_bytes(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
            if to.len() >= 0x1_0000 {
                self.runs.set(self.runs.get() + 1);
                if self.runs.get() == 2 {
                    for n in 0..self.left.get() {
                        let words = words(31 + n);
                        let mut memory = self.memory.borrow_mut();
                        memory.submit(Ring::slot(0), 31 + n, &words, 0);
                    }
                }
            }
            self.memory.borrow().read_bytes(at, to)
        }
    }

    /// Returns words of 64 KiB, so that 32 entries fill the made-up pushbuffer once.
    fn words(n: u64) -> Vec<u32> {
        let mut words = vec![0u32; 0x4000];
        words[0] = 0x2001_8000;
        words[1] = n as u32;
        words
    }

    /// Makes a process with 31 entries, to which 11 are added: the first of these still fits, the others take the places of entries 0 to 9.
    /// A run is four entries.
    fn going() -> (Going, Vec<Area>) {
        let mut memory = FakeMemory::cuda();
        for n in 0..31 {
            memory.submit(Ring::slot(0), n, &words(n), 0);
        }
        let areas = memory.areas().to_vec();
        let going = Going {
            memory: RefCell::new(memory),
            runs: Cell::new(0),
            left: Cell::new(11),
        };
        (going, areas)
    }

    #[test]
    fn a_better_moment_is_waited_for_where_something_is_missing() {
        let (going, areas) = going();
        let snapshot = taken_in(&going, &areas, 31, nvcap_waiting::GUARD);
        let seen = &snapshot.channels[0];
        assert_eq!(seen.missing(31), 0, "recycled {}", seen.recycled);
        assert_eq!(seen.submissions[0].position, 11);
        // A channel that stands still is not waited for, whatever is missing: nothing is read more often than without patience.
        let runs = |patience| {
            let before = going.runs.get();
            let snapshot = taken_in(&going, &areas, 1000, patience);
            assert!(snapshot.channels[0].missing(1000) > 0);
            going.runs.get() - before
        };
        let once = runs(Duration::ZERO);
        assert!(once > 0);
        assert_eq!(runs(nvcap_waiting::GUARD), once);
    }

    #[test]
    fn what_was_read_before_its_memory_was_used_again_is_believed() {
        let (going, areas) = going();
        let snapshot = taken(&going, &areas, 1000);
        let seen = &snapshot.channels[0];
        assert_eq!(seen.submissions.len(), 31);
        assert!(going.runs.get() > 1);
        let whole: Vec<u64> = (0..31)
            .filter(|n| {
                let bytes = &seen.submissions[*n as usize].segments[0].bytes;
                assert!(bytes.is_empty() || bytes[4..8] == (*n as u32).to_le_bytes());
                !bytes.is_empty()
            })
            .collect();
        // When they are read, 4 to 9 already belong to newer entries, and 10 would be written next.
        let believed: Vec<u64> = (0..31).filter(|n| !(4..=10).contains(n)).collect();
        assert_eq!(whole, believed, "recycled {}", seen.recycled);
    }

    #[test]
    fn a_pushbuffer_used_again_is_not_shown_as_what_was_submitted() {
        let mut memory = FakeMemory::cuda();
        // The made-up pushbuffer has two MiB; 60 entries of 64 KiB wrap around it.
        let mut words = vec![0u32; 0x4000];
        words[0] = 0x2001_8000;
        for n in 0..60 {
            words[1] = n as u32;
            memory.submit(Ring::slot(0), n, &words, 0);
        }
        let snapshot = taken(&memory, memory.areas(), 1000);
        let seen = &snapshot.channels[0];
        assert_eq!((seen.submissions.len(), seen.recycled), (60, 28));
        for (n, s) in seen.submissions.iter().enumerate() {
            let bytes = &s.segments[0].bytes;
            if n < 28 {
                assert!(bytes.is_empty());
            } else {
                assert_eq!(bytes[4..8], (n as u32).to_le_bytes());
            }
        }
    }

    #[test]
    fn a_graphics_clients_entries_are_read_where_the_process_has_them() {
        let mut memory = FakeMemory::graphics();
        let rings = memory.graphics_rings(2);
        for ring in &rings {
            memory.submit_many(*ring, 60);
        }
        let snapshot = taken(&memory, memory.areas(), 30);
        assert_eq!((snapshot.channels.len(), snapshot.windows.len()), (2, 1));
        for seen in &snapshot.channels {
            assert_eq!((seen.elsewhere, seen.recycled), (0, 0));
            assert_eq!(payloads(seen), (31..=60).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_ring_or_a_process_that_goes_away_meanwhile_is_told() {
        let mut memory = FakeMemory::cuda();
        for slot in 0..4 {
            memory.submit_many(Ring::slot(slot), 700);
        }
        let mut gone = 0;
        for reads in (0..4000).step_by(19) {
            memory.fail_after(reads);
            let snapshot = taken(&memory, memory.areas(), 1000);
            for seen in &snapshot.channels {
                let all: u64 = seen
                    .submissions
                    .iter()
                    .map(|s| 20 * u64::from(s.segments[0].bytes.len() == 20))
                    .sum();
                let holes: u64 = seen
                    .submissions
                    .iter()
                    .flat_map(|s| &s.segments[0].holes)
                    .map(|h| u64::from(h.len))
                    .sum();
                assert_eq!(holes, seen.unreadable);
                gone += u32::from(seen.ring_gone || seen.unreadable > 0);
                assert!(seen.ring_gone || all == 14_000);
            }
        }
        assert!(gone > 100);
        // Only one ring is unmapped, in the middle of the look.
        for reads in (0..3000).step_by(29) {
            memory.fail_after(u64::MAX);
            memory.unmap_after(reads, Ring::slot(1).ring, 0x3000);
            let snapshot = taken(&memory, memory.areas(), 1000);
            for seen in &snapshot.channels {
                if seen.found.ring == Ring::slot(1).ring && seen.ring_gone {
                    assert!(seen.submissions.is_empty());
                } else {
                    assert_eq!(payloads(seen), (1..=700).collect::<Vec<_>>());
                }
            }
        }
    }

    /// Memory whose ring advances with every read of GP_PUT.
    struct Moving {
        memory: std::cell::RefCell<FakeMemory>,
        position: Cell<u64>,
        step: u64,
    }

    impl ReadMemory for Moving {
        fn read_bytes(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
            let ring = Ring::slot(0);
            if at == ring.userd + 0x88 {
                for _ in 0..self.step {
                    let n = self.position.get();
                    let words = [0x2004_36c0, 2, 0x460_fff0, n as u32 + 1, 0];
                    self.memory.borrow_mut().submit(ring, n, &words, 0);
                    self.position.set(n + 1);
                }
            }
            self.memory.borrow().read_bytes(at, to)
        }
    }

    #[test]
    fn a_ring_that_is_written_while_it_is_read() {
        // A pause of the test does not count as the reader's: the ring advances by reads.
        super::super::history::STOPPED.set(Some(Instant::now()));
        for step in [1, 5, 20, 40, 130, 300] {
            let mut memory = FakeMemory::cuda();
            memory.submit_many(Ring::slot(0), 3000);
            let areas = memory.areas().to_vec();
            let moving = Moving {
                memory: std::cell::RefCell::new(memory),
                position: Cell::new(3000),
                step,
            };
            let snapshot = taken(&moving, &areas, 1023);
            let seen = &snapshot.channels[0];
            let shown = payloads(seen);
            assert!(seen.found.proof.moved);
            // Whatever was lost, the shown entries are a run without a gap that ends at GP_PUT.
            assert!(shown.windows(2).all(|w| w[1] == w[0] + 1), "{step}");
            // If the ring advances faster than it is read, nothing is left: 130 entries in the 40 us that a piece takes.
            let newest = (step < 130).then_some(seen.put);
            assert_eq!(shown.last().map(|p| p % 1024), newest, "{step}");
            assert_eq!(shown.len() as u32 + seen.overwritten, 1023, "{step}");
            assert!(
                step > 100 || seen.overwritten < 200,
                "{step}: {}",
                seen.overwritten
            );
        }
    }
}
