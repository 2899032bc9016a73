//! Time stamps of the GPU, as records. A thread of nvcap's own reads the semaphores that a process's submissions release, again and again.
//! The traced process is not affected.
//!
//! The semaphores are those that a process's submissions name, as they come from the source. A stamp of CUDA's stands until the next
//! submission of its channel overwrites it, so that frequent reads see every stamp ([`regions`]). Vulkan and OpenGL write each stamp to a
//! place of its own ([`once`]), whose address in the process differs from the GPU's.

use std::{
    collections::{HashMap, HashSet, hash_map::Entry},
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

use nvcap_decode::gpu_time::pair::Pair;
use nvcap_decode::gpu_time::unit::Unit;
use nvcap_decode::gpu_time::words::Value;
use nvcap_decode::record::{At, ChannelId, CpuVa, Record, Stamp, Stamps};
use nvcap_decode::wire::{GpuVa, release};
use nvcap_process::clock;
use nvcap_process::procfs::mem::{Memory, Ordinary};

mod in_step;
mod once;
mod regions;

use once::Once;
use regions::{Kind, Regions};

/// Time for which output waits for the times of a submission, ns.
pub(crate) const PATIENCE_NS: u64 = 1_000_000_000;
/// Time between two calls of the source while stamps are awaited.
pub(crate) const SOON: Duration = Duration::from_millis(2);
/// Time for which the last stamps are waited for at the end.
pub(crate) const LAST: Duration = Duration::from_millis(5);
/// Time between two deliveries of changes.
const BATCH: Duration = Duration::from_millis(1);
/// Time between two records which say that semaphores were read, while nothing changes, ns.
const QUIET_NS: u64 = 100_000_000;
/// Time after the last change for which semaphores are read without a pause.
const EAGER: Duration = Duration::from_millis(5);
const PAUSE: Duration = Duration::from_micros(20);
/// The length of a burst of reads, where reading may take only a share of a processor.
const BURST: Duration = Duration::from_millis(2);
/// Number of a channel's first submissions in which kernels' releases are looked for, and number of later ones of which one is searched.
const FIRST: u64 = 256;
const EACH: u64 = 16;
/// Size of an entry below which it is always looked through, bytes: a replay of a graph is short.
const SMALL: usize = 512;

/// Longest time from a doorbell to its trap, ns. (The processor traps behind the store.)
const TRAP_NS: u64 = 10_000;

/// Number of processors from which the reading thread runs before others: it then takes no processor that the traced process needs.
const MANY: usize = 4;
const NICENESS: i32 = -10;
/// The most changes in a process's semaphores that may be waiting to be taken: a process can write faster than its changes are decoded.
/// Beyond it the process is not read.
const MOST_UNTAKEN: usize = 1 << 20;
/// The most semaphores of a process that are known. Where more semaphores exist than fit into the regions that are read, the rest is not
/// read.
const MOST_KNOWN: usize = 1 << 14;

/// Request to the reading thread.
enum Request {
    Watch(u32, Kind, GpuVa),
    /// Awaits a stamp that is written once: its process, its number, its address in the process, and a time at which it was not written yet
    /// (0: not known).
    Await(u32, Value, CpuVa, u64),
    /// A process has ended or runs another program.
    Forget(u32),
}

/// Number of changes by process that were handed on and not taken yet.
#[derive(Clone, Debug, Default)]
struct Untaken(Arc<Mutex<HashMap<u32, usize>>>);

impl Untaken {
    fn counts(&self) -> MutexGuard<'_, HashMap<u32, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hand_on(&self, pid: u32, stamps: usize) {
        if stamps > 0 {
            *self.counts().entry(pid).or_default() += stamps;
        }
    }

    fn take(&self, record: &Record) {
        let Record::Stamps(taken) = record else {
            return;
        };
        let (pid, mut counts) = (taken.at.pid, self.counts());
        if let Some(count) = counts.get_mut(&pid) {
            *count = count.saturating_sub(taken.stamps.len());
            if *count == 0 {
                counts.remove(&pid);
            }
        }
    }

    /// Returns the processes that must not be read now.
    fn full(&self) -> Vec<u32> {
        let counts = self.counts();
        let full = counts.iter().filter(|(_, count)| **count > MOST_UNTAKEN);
        full.map(|(pid, _)| *pid).collect()
    }
}

/// Names the semaphores of a source's submissions to the thread that reads them, and gives the time stamps that it sees as records.
pub(crate) struct Stamper {
    /// The compute class of all GPUs, if known.
    class: Option<u32>,
    /// Semaphores by process that were named to the thread.
    known: HashMap<u32, HashSet<GpuVa>>,
    counts: HashMap<ChannelId, u64>,
    to: mpsc::Sender<Request>,
    from: mpsc::Receiver<Record>,
    untaken: Untaken,
    /// Time at which the newest submission came.
    newest: Option<Instant>,
}

impl Stamper {
    /// Starts the reading thread. `share`: its share of one processor; none for all of it.
    pub(crate) fn start(class: Option<u32>, share: Option<f64>) -> Option<Self> {
        let (to, requests) = mpsc::channel();
        let (records, from) = mpsc::channel();
        let untaken = Untaken::default();
        let handed_on = untaken.clone();
        thread::Builder::new()
            .name("nvcap-stamps".into())
            .spawn(move || {
                // SAFETY: sets this thread's own timer slack, ns.
                unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_000) };
                if thread::available_parallelism().is_ok_and(|n| n.get() >= MANY) {
                    // What is read late is overwritten.
                    super::set_niceness(NICENESS);
                }
                Reader::new(share, handed_on).run(&requests, &records);
            })
            .ok()?;
        Some(Self {
            class,
            known: HashMap::new(),
            counts: HashMap::new(),
            to,
            from,
            untaken,
            newest: None,
        })
    }

    /// Looks at new records, and has the semaphores read that they name for the first time. `locate`: returns the process's address of the
    /// memory at a GPU address of a channel.
    pub(crate) fn look(
        &mut self,
        records: &[Record],
        locate: impl Fn(ChannelId, GpuVa) -> Option<CpuVa>,
    ) {
        for record in records {
            let at = record.at();
            match record {
                Record::Submission(s) => {
                    self.newest = Some(Instant::now());
                    let count = self.counts.entry(s.channel).or_default();
                    *count += 1;
                    let whole = *count <= FIRST || count.is_multiple_of(EACH);
                    if let Some(pair) = Pair::of(s.segments.iter().map(|g| &*g.bytes)) {
                        // The GPU writes nothing before the doorbell, but that may have been an earlier one.
                        let absent_ns = match s.late {
                            false => at.time_ns.saturating_sub(TRAP_NS),
                            true => 0,
                        };
                        for value in [pair.begin, pair.end] {
                            if let Some(cpu) = locate(s.channel, value.address) {
                                let _ = self.to.send(Request::Await(at.pid, value, cpu, absent_ns));
                            }
                        }
                        continue;
                    }
                    for segment in &s.segments {
                        let whole = whole || segment.bytes.len() < SMALL;
                        self.segment(at.pid, &segment.bytes, whole);
                    }
                }
                Record::Process(p) if p.life.ends_work() => {
                    self.known.remove(&at.pid);
                    let _ = self.to.send(Request::Forget(at.pid));
                }
                _ => {}
            }
        }
    }

    fn segment(&mut self, pid: u32, bytes: &[u8], whole: bool) {
        if !whole {
            if let Some(release) = release::at_end(bytes).filter(|r| r.stamped) {
                self.watch(pid, Kind::Stamped, release.address);
            }
            return;
        }
        let unit = Unit::of(bytes, self.class);
        if let Some((stamp, _)) = unit.stamp {
            self.watch(pid, Kind::Stamped, stamp.address);
        }
        for end in unit.ends {
            self.watch(pid, Kind::Words, end.address);
        }
    }

    fn watch(&mut self, pid: u32, kind: Kind, address: GpuVa) {
        let known = self.known.entry(pid).or_default();
        if known.len() < MOST_KNOWN && known.insert(address) {
            let _ = self.to.send(Request::Watch(pid, kind, address));
        }
    }

    /// Takes the stamps that have come.
    pub(crate) fn stamps(&self, to: &mut Vec<Record>) {
        let taken = self.from.try_iter();
        to.extend(taken.inspect(|record| self.untaken.take(record)));
    }

    /// Tells whether stamps of earlier submissions may still come, and are waited for.
    pub(crate) fn is_waiting(&self) -> bool {
        let patience = Duration::from_nanos(in_step::patience_ns(PATIENCE_NS));
        self.newest.is_some_and(|n| n.elapsed() < patience)
    }
}

/// A process whose semaphores are read.
struct StampedProcess {
    memory: Ordinary,
    regions: Regions,
    /// Memory for stamps that are written once, which `process_vm_readv` does not read.
    whole: Option<Memory>,
    once: Once,
    /// True if the process has stamps that are written once: a time without an awaited stamp is then no gap.
    awaits: bool,
    /// Time since which its semaphores are read without a gap, and number of reads since the last record.
    from_ns: u64,
    reads: u64,
    stamps: Vec<Stamp>,
}

impl StampedProcess {
    fn of(memory: Ordinary) -> Self {
        Self {
            memory,
            regions: Regions::default(),
            whole: None,
            once: Once::default(),
            awaits: false,
            from_ns: clock::now(),
            reads: 0,
            stamps: Vec::new(),
        }
    }

    /// Ends the reading. Stamps that were seen stand.
    fn end(&mut self) {
        (self.regions, self.whole, self.once, self.awaits) = Default::default();
    }

    fn is_over(&self) -> bool {
        self.regions.is_empty() && !self.awaits
    }
}

/// Random pauses between bursts: so bursts see a sample of all stamps, whatever rhythm the traced program has.
struct Pauses(u64);

impl Pauses {
    /// Returns the pause after a burst, so that bursts have this share of the time. It is drawn from an exponential distribution, ten times
    /// the mean at most.
    fn next(&mut self, burst: Duration, share: f64) -> Duration {
        // Xorshift: any number but 0 will do to begin with.
        let mut x = self.0 | 1;
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.0 = x;
        let chance = ((x >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
        let mean = burst.mul_f64((1.0 / share - 1.0).max(0.0));
        mean.mul_f64((-chance.ln()).min(10.0))
    }
}

/// The thread that reads.
struct Reader {
    share: Option<f64>,
    processes: HashMap<u32, StampedProcess>,
    untaken: Untaken,
    /// Processes that are not read until their changes are taken.
    full: Vec<u32>,
    pauses: Pauses,
    /// Time of the last change, and time of the last delivery of records.
    changed: Instant,
    handed: Instant,
}

impl Reader {
    fn new(share: Option<f64>, untaken: Untaken) -> Self {
        Self {
            share,
            processes: HashMap::new(),
            untaken,
            full: Vec::new(),
            pauses: Pauses(clock::now()),
            changed: Instant::now(),
            handed: Instant::now(),
        }
    }

    fn run(&mut self, requests: &mpsc::Receiver<Request>, records: &mpsc::Sender<Record>) {
        let mut burst = Instant::now();
        loop {
            let next = if self.processes.is_empty() {
                let next = requests.recv();
                // The time without anything to read is no part of a burst.
                burst = Instant::now();
                next.map_err(|_| mpsc::TryRecvError::Disconnected)
            } else {
                requests.try_recv()
            };
            match next {
                Ok(request) => {
                    self.request(request);
                    // All that have come: a place that is written once is read soon, or not in time.
                    requests
                        .try_iter()
                        .for_each(|request| self.request(request));
                }
                Err(mpsc::TryRecvError::Empty) => {}
                Err(mpsc::TryRecvError::Disconnected) => return,
            }
            self.read();
            if self.handed.elapsed() >= in_step::batch(BATCH) {
                self.handed = Instant::now();
                if !self.hand_on(records, false) {
                    return;
                }
            }
            match self.share {
                Some(share) if burst.elapsed() >= BURST => {
                    if !self.hand_on(records, true) {
                        return;
                    }
                    thread::sleep(self.pauses.next(burst.elapsed(), share));
                    burst = Instant::now();
                    let now = clock::now();
                    for process in self.processes.values_mut() {
                        process.from_ns = now;
                    }
                }
                None if self.changed.elapsed() >= EAGER => thread::sleep(PAUSE),
                _ => {}
            }
        }
    }

    fn request(&mut self, request: Request) {
        match request {
            Request::Watch(pid, kind, address) => {
                if let Some(process) = self.process(pid) {
                    process.regions.add(kind, address);
                }
            }
            Request::Await(pid, value, cpu, absent_ns) => {
                if let Some(process) = self.process(pid) {
                    if process.whole.is_none() {
                        process.whole = Memory::open(pid).ok();
                    }
                    let place = (value.address, cpu);
                    process.once.add(place, value.payload, absent_ns);
                    process.awaits = true;
                }
            }
            Request::Forget(pid) => {
                // What it was seen to have done is handed on; its memory is gone.
                log::debug!("process {pid}: its time stamps are read no more");
                if let Some(process) = self.processes.get_mut(&pid) {
                    process.end();
                }
            }
        }
    }

    /// The process with this id, ready to be read; `None` where it may not be read.
    fn process(&mut self, pid: u32) -> Option<&mut StampedProcess> {
        self.changed = Instant::now();
        match self.processes.entry(pid) {
            Entry::Occupied(process) => Some(process.into_mut()),
            Entry::Vacant(place) => match Ordinary::open(pid) {
                Ok(memory) => {
                    log::debug!("process {pid}: time stamps are read");
                    Some(place.insert(StampedProcess::of(memory)))
                }
                Err(e) => {
                    log::info!("process {pid}: time stamps are not read: {e}");
                    None
                }
            },
        }
    }

    /// Reads all semaphores once.
    fn read(&mut self) {
        for (pid, process) in &mut self.processes {
            if self.full.contains(pid) {
                continue;
            }
            let had = process.stamps.len();
            let (memory, stamps) = (&process.memory, &mut process.stamps);
            let mut stands = true;
            if !process.regions.is_empty() {
                stands &= process.regions.read(memory, &clock::now, stamps);
                in_step::tell_first(*pid, &mut process.regions);
            }
            if let Some(whole) = process.whole.as_ref().filter(|_| !process.once.is_empty()) {
                process.once.read(whole, &clock::now, stamps);
            }
            process.reads += u64::from(!process.is_over());
            if process.stamps.len() > had {
                self.changed = Instant::now();
            }
            if !stands {
                process.end();
            }
        }
    }

    /// Hands on what was seen; false where nobody takes it any more. At the end of a burst, also hands on that nothing was seen in the time
    /// that was read.
    fn hand_on(&mut self, records: &mpsc::Sender<Record>, burst_ends: bool) -> bool {
        let now = clock::now();
        for (pid, process) in &mut self.processes {
            // That nothing changed is told from time to time.
            let quiet = process.stamps.is_empty() && now - process.from_ns < QUIET_NS;
            if process.reads == 0 || quiet && !burst_ends {
                continue;
            }
            let stamps = Stamps {
                at: At {
                    time_ns: now,
                    pid: *pid,
                    tid: 0,
                },
                from_ns: std::mem::replace(&mut process.from_ns, now),
                reads: std::mem::take(&mut process.reads),
                stamps: std::mem::take(&mut process.stamps),
            };
            self.untaken.hand_on(*pid, stamps.stamps.len());
            let read = in_step::read(&stamps.stamps);
            if records.send(Record::Stamps(Box::new(stamps))).is_err() {
                return false;
            }
            in_step::tell(*pid, &read);
        }
        self.full = self.untaken.full();
        self.processes
            .retain(|_, p| !p.is_over() || !p.stamps.is_empty());
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process whose submissions release ever new semaphores costs no more than a limit, and takes no room from others.
    #[test]
    fn semaphores_of_a_process_are_bounded() {
        let (to, requests) = mpsc::channel();
        let (_records, from) = mpsc::channel();
        let mut stamper = Stamper {
            class: None,
            known: HashMap::new(),
            counts: HashMap::new(),
            to,
            from,
            untaken: Untaken::default(),
            newest: None,
        };
        for n in 0..3 * MOST_KNOWN as u64 {
            stamper.watch(7, Kind::Stamped, GpuVa(0x1000 + 16 * n));
        }
        stamper.watch(8, Kind::Stamped, GpuVa(0x1000));
        assert_eq!(stamper.known[&7].len(), MOST_KNOWN);
        assert_eq!(requests.try_iter().count(), MOST_KNOWN + 1);
    }

    /// A process that writes into its semaphores faster than the changes are decoded is not read meanwhile; others are.
    #[test]
    fn changes_that_were_not_taken_are_bounded() {
        let untaken = Untaken::default();
        let stamps = |pid| Stamps {
            at: At::of_process(1, pid),
            from_ns: 0,
            reads: 1,
            stamps: vec![
                Stamp {
                    address: GpuVa(0),
                    payload: 0,
                    gpu_ns: None,
                    before_ns: 0,
                    seen_ns: 0,
                };
                1000
            ],
        };
        for _ in 0..=MOST_UNTAKEN / 1000 {
            untaken.hand_on(7, 1000);
        }
        untaken.hand_on(8, 1000);
        assert_eq!(untaken.full(), [7]);
        for pid in [7, 8] {
            untaken.take(&Record::Stamps(Box::new(stamps(pid))));
        }
        assert!(untaken.full().is_empty());
        assert_eq!(untaken.counts().keys().collect::<Vec<_>>(), [&7]);
    }

    #[test]
    fn bursts_have_their_share_of_the_time_at_random() {
        let mut pauses = Pauses(7);
        let burst = Duration::from_millis(2);
        let all: Vec<_> = (0..10_000).map(|_| pauses.next(burst, 0.05)).collect();
        let share = 10_000.0 * burst.as_secs_f64()
            / (all.iter().sum::<Duration>() + burst * 10_000).as_secs_f64();
        assert!((0.048..0.052).contains(&share), "{share}");
        // No rhythm: a third of the pauses is longer than the mean, and a tenth shorter than a tenth of it.
        let mean = Duration::from_millis(38);
        let longer = all.iter().filter(|p| **p > mean).count();
        let shorter = all.iter().filter(|p| **p < mean / 10).count();
        assert!((3_400..3_960).contains(&longer), "{longer}");
        assert!((800..1_100).contains(&shorter), "{shorter}");
        assert_eq!(pauses.next(burst, 1.0), Duration::ZERO);
    }
}
