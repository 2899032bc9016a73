//! Adds records to a live source: the GPUs of the machine, and the QMDs that a process wrote before nvcap attached.
//!
//! A search of a process's memory takes as long as reading it: up to seconds. The search runs beside the source. Meanwhile the
//! source's records are held back in memory, so that the first submission shown is decoded with the results. Records are held for
//! a limited time and up to a limited size; later results apply from then on.
//!
//! Names of kernels are looked for during the whole trace, beside the source ([`super::names`]). Records are held for names in two
//! cases: after a search, because graphs have programs that no submission names; and for output that has no line for a name that
//! is found later. Else the pipeline's own window suffices.

use std::{
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use super::{
    beside::Beside,
    graph_qmds::{self, QmdSearchResult},
    names::namer::{LONG_PATIENCE, Namer, SOON},
    stamps::{self, Stamper},
};
use crate::{faults::FaultWatch, run::Source};
use nvcap_decode::record::{ChannelId, CpuVa, Gpu, QmdCopy, Record};
use nvcap_decode::wire::GpuVa;
use nvcap_process::{error::Result, exit_hold::ExitHold, memory::chip};

/// Longest time for which records wait for a search.
const PATIENCE: Duration = Duration::from_secs(10);
/// The most bytes of records that wait for a search.
const MOST_HELD: usize = 256 << 20;

/// Begins to search the memory of a process, beside the source; none where the search cannot begin.
type Search = Box<dyn Fn(u32) -> Option<Results> + Send + Sync>;

/// Result of a search, once it has ended; nothing if the memory may not be read, or the GPU's chip is unknown.
type Results = mpsc::Receiver<Option<QmdSearchResult>>;

/// Source of the time, and the way to wait: tests have their own.
#[derive(Clone, Copy)]
pub(super) struct Clock {
    pub(super) now: fn() -> Instant,
    pub(super) pause: fn(Duration),
}

impl Clock {
    /// Clock of the machine.
    pub(super) const MACHINE: Self = Self {
        now: Instant::now,
        pause: thread::sleep,
    };
}

/// A live source with the records that are added to it: GPUs, QMDs from before the trace, names of kernels, time stamps, faults.
pub struct Enriched<S> {
    inner: S,
    /// Search of attached processes, if they are searched.
    search: Option<Search>,
    gpus: Vec<Gpu>,
    stamper: Option<Stamper>,
    faults: Option<FaultWatch>,
    beside: Vec<Beside>,
    holds_end: bool,
    hold: Option<ExitHold>,
    /// True once the records of the GPUs were given.
    told: bool,
    held: HeldRecords,
    /// Rings whose progress is told, for tests in step.
    #[cfg(feature = "in-step")]
    rings: nvcap_process::in_step::Rings,
}

/// Records that are held, and the searches that they wait for.
struct HeldRecords {
    clock: Clock,
    namer: Option<Namer>,
    searches: Vec<Results>,
    records: Vec<Record>,
    /// Results of searches, which wait with the records.
    pub qmd_copies: Vec<Record>,
    bytes: usize,
    /// Time up to which the records wait for names, however many programs are asked for meanwhile.
    named_by: Instant,
    /// Time up to which the records wait for running searches.
    until: Option<Instant>,
}

impl<S: Source> Enriched<S> {
    /// Wraps a source. `search`: searches the memory of attached processes. `names`: looks for the names of kernels. `hold`: holds
    /// the command's end until the names are found and its channels' errors are read.
    pub fn new(inner: S, search: bool, names: bool, hold: bool) -> Self {
        let search: Option<Search> = search.then(|| Box::new(begin_search) as Search);
        let class = chip::only().map(|c| c.compute);
        Self {
            holds_end: hold,
            faults: FaultWatch::start(),
            held: HeldRecords::new(
                if names { Namer::start(class) } else { None },
                Clock::MACHINE,
            ),
            ..Self::with(inner, chip::gpus(), search, Clock::MACHINE)
        }
    }

    /// Makes records wait longer for names, for output that has no line for a name that is found later.
    pub fn patient(mut self) -> Self {
        self.held.namer = self.held.namer.map(Namer::patient);
        self
    }

    /// Reads the GPU's time stamps, with a share of a processor.
    pub fn with_stamps(self, share: Option<f64>) -> Self {
        let class = chip::only().map(|c| c.compute);
        Self {
            stamper: Stamper::start(class, share),
            ..self
        }
    }

    /// Adds the records of other threads.
    pub fn with_beside(self, beside: Vec<Beside>) -> Self {
        Self { beside, ..self }
    }

    fn with(inner: S, gpus: Vec<Gpu>, search: Option<Search>, clock: Clock) -> Self {
        Self {
            inner,
            search,
            gpus,
            stamper: None,
            faults: None,
            beside: Vec::new(),
            holds_end: false,
            hold: None,
            told: false,
            held: HeldRecords::new(None, clock),
            #[cfg(feature = "in-step")]
            rings: nvcap_process::in_step::Rings::default(),
        }
    }

    fn search(&mut self, pid: u32) {
        if let Some(results) = self.search.as_ref().and_then(|begin| begin(pid)) {
            self.held.searches.push(results);
            self.held.until = Some((self.held.clock.now)() + PATIENCE);
        }
    }

    fn emit_gpus(&mut self, to: &mut Vec<Record>) {
        if !std::mem::replace(&mut self.told, true) {
            to.extend(self.gpus.iter().copied().map(Record::Gpu));
        }
    }

    /// Returns the longest time for which the source may wait for the next record.
    fn until_next(&self, wait: Duration) -> Duration {
        let wait = self.faults.as_ref().map_or(wait, |f| f.wait(wait));
        let holds = self.inner.is_ending() || self.hold.as_ref().is_some_and(ExitHold::is_ending);
        let stamps = self.stamper.as_ref().is_some_and(Stamper::is_waiting);
        if self.held.asks() || holds {
            wait.min(SOON)
        } else if stamps {
            wait.min(stamps::SOON)
        } else {
            wait
        }
    }
}

impl HeldRecords {
    fn new(namer: Option<Namer>, clock: Clock) -> Self {
        Self {
            clock,
            namer,
            searches: Vec::new(),
            records: Vec::new(),
            qmd_copies: Vec::new(),
            bytes: 0,
            named_by: (clock.now)(),
            until: None,
        }
    }

    /// Tells whether names were asked for that are not told yet.
    fn asks(&self) -> bool {
        let asks = |n: &Namer| n.is_asking(Duration::MAX);
        self.namer.as_ref().is_some_and(asks)
    }

    /// Takes the results since the last call.
    fn found(&mut self) -> Vec<QmdCopy> {
        let mut all = Vec::new();
        self.searches.retain(|search| match search.try_recv() {
            Ok(found) => {
                all.extend(found.into_iter().flat_map(|f| f.copies));
                false
            }
            Err(mpsc::TryRecvError::Empty) => true,
            Err(mpsc::TryRecvError::Disconnected) => false,
        });
        all
    }

    /// Adds the results of a search.
    fn add_qmd_copies(&mut self, found: Vec<QmdCopy>) {
        let from = self.qmd_copies.len();
        self.qmd_copies
            .extend(found.into_iter().map(|i| Record::QmdCopy(Box::new(i))));
        if let Some(namer) = &mut self.namer {
            namer.look(self.qmd_copies.get(from..).unwrap_or_default());
        }
    }

    /// Releases the held records, with names and the results of searches before them.
    fn release(&mut self, to: &mut Vec<Record>) {
        let names = self
            .records
            .extract_if(.., |r| matches!(r, Record::Kernel(_)));
        to.extend(names);
        // Behind the records of the process itself.
        let at = self
            .records
            .iter()
            .position(|r| matches!(r, Record::Submission(_)))
            .unwrap_or(self.records.len());
        let rest = self.records.split_off(at);
        to.append(&mut self.records);
        to.append(&mut self.qmd_copies);
        to.extend(rest);
        self.bytes = 0;
    }

    /// Gives new records, or holds them back.
    fn take(&mut self, mut now: Vec<Record>, to: &mut Vec<Record>) {
        let holds = self.namer.as_ref().is_some_and(Namer::is_holding);
        let waits = !self.records.is_empty() || !self.qmd_copies.is_empty();
        if self.searches.is_empty() && !waits && !holds {
            to.append(&mut now);
            return;
        }
        let time = (self.clock.now)();
        if !waits {
            self.named_by = time + LONG_PATIENCE;
        }
        self.bytes += now.iter().map(Record::size).sum::<usize>();
        self.records.append(&mut now);
        let found = self.found();
        if !found.is_empty() {
            // The graphs' programs have names, too: those are waited for.
            self.add_qmd_copies(found);
            self.named_by = time + LONG_PATIENCE;
        }
        let late = !self.searches.is_empty() && self.until.is_none_or(|t| time >= t);
        let named = !self.asks() || time >= self.named_by;
        if self.searches.is_empty() && named || late || self.bytes >= MOST_HELD {
            self.release(to);
        }
    }

    /// Waits for the searches and names that are needed to decode the records, up to the time limit of each.
    fn wait(&mut self) {
        while !self.searches.is_empty() && self.until.is_some_and(|t| (self.clock.now)() < t) {
            let found = self.found();
            self.add_qmd_copies(found);
            (self.clock.pause)(Duration::from_millis(5));
        }
        let found = self.found();
        self.add_qmd_copies(found);
        if let Some(namer) = &mut self.namer {
            while !namer.patience().is_zero() {
                let wait = namer.patience();
                namer.answers(wait, &mut self.records);
            }
        }
    }
}

impl<S: Source> Source for Enriched<S> {
    type End = S::End;

    fn shown_by(&mut self, thread: i32) {
        self.inner.shown_by(thread);
    }

    fn expect(&mut self, pid: u32) -> Result<()> {
        self.inner.expect(pid)?;
        self.hold = self.holds_end.then(|| ExitHold::of(pid)).flatten();
        Ok(())
    }

    fn attach(&mut self, pid: u32) -> Result<()> {
        self.inner.attach(pid)?;
        // The source attached first: uploads from now on are traced.
        self.search(pid);
        Ok(())
    }

    fn take_on(&mut self, pid: u32, was_there: bool) -> Result<()> {
        self.inner.take_on(pid, was_there)?;
        // Of one that has just come all uploads are traced.
        if was_there {
            self.search(pid);
        }
        Ok(())
    }

    fn step(&mut self, wait: Duration, to: &mut Vec<Record>) -> Result<()> {
        self.emit_gpus(to);
        let mut now = Vec::new();
        let ending = self.hold.as_ref().is_some_and(ExitHold::is_ending);
        // Records from before an error are held too, and given at the end.
        let stepped = self.inner.step(self.until_next(wait), &mut now);
        if let Some(namer) = &mut self.held.namer {
            namer.look(&now);
            namer.answers(Duration::ZERO, &mut now);
        }
        if let Some(faults) = &mut self.faults {
            faults.look(&mut now, ending || self.inner.is_ending());
        }
        for beside in &mut self.beside {
            beside.look(&mut now, ending || self.inner.is_ending());
        }
        // Ends are held for a limited time, whatever is asked for.
        let asks = self.held.asks()
            || self.faults.as_ref().is_some_and(FaultWatch::is_asking)
            || self.beside.iter().any(Beside::is_asking);
        if !asks {
            // Once all that the command submitted was given.
            if ending && now.is_empty() {
                self.hold = None;
            }
            if self.inner.is_ending() {
                self.inner.let_end();
            }
        }
        if let Some(stamper) = &mut self.stamper {
            let locate = |channel, at| self.inner.locate(channel, at);
            stamper.look(&now, locate);
            stamper.stamps(&mut now);
        }
        // They have been read, however long they are held for names: who waits for that is not to wait for a search.
        #[cfg(feature = "in-step")]
        self.rings.tell(&now);
        self.held.take(now, to);
        stepped
    }

    fn locate(&self, channel: ChannelId, at: GpuVa) -> Option<CpuVa> {
        self.inner.locate(channel, at)
    }

    fn batch_time(&self) -> Duration {
        self.inner.batch_time()
    }

    fn most_waiting(&self) -> usize {
        self.inner.most_waiting()
    }

    fn longest_wait(&self) -> Duration {
        self.inner.longest_wait()
    }

    fn is_alive(&self) -> bool {
        self.inner.is_alive()
    }

    fn is_ending(&self) -> bool {
        self.inner.is_ending()
    }

    fn let_end(&mut self) {
        self.inner.let_end();
    }

    fn is_pending(&self) -> bool {
        let namer = self.held.namer.as_ref();
        let waits = namer.is_some_and(|n| !n.patience().is_zero());
        let stamps = self.stamper.as_ref().is_some_and(Stamper::is_waiting);
        waits || stamps || self.inner.is_pending()
    }

    fn finish(mut self, to: &mut Vec<Record>) -> Self::End {
        self.emit_gpus(to);
        if let Some(stamper) = &self.stamper {
            stamper.stamps(to);
        }
        // The source comes first: nobody would read what is submitted while names and searches are waited for, and its process may end
        // meanwhile. A command that stands at its end stands there until they are found.
        let mut last = Vec::new();
        if let Some(faults) = &mut self.faults {
            faults.finish(&mut last);
        }
        let end = self.inner.finish(&mut last);
        for beside in std::mem::take(&mut self.beside) {
            beside.finish(&mut last);
        }
        if let Some(namer) = &mut self.held.namer {
            namer.look(&last);
            namer.end();
        }
        self.held.wait();
        self.held.release(to);
        // What is fetched at the end has ended by then: only stamps that are read already can tell of it.
        if let Some(stamper) = &mut self.stamper {
            stamper.look(&last, |_, _| None);
            thread::sleep(stamps::LAST);
            stamper.stamps(to);
        }
        to.append(&mut last);
        end
    }
}

/// Starts a thread that searches a process of this machine.
fn begin_search(pid: u32) -> Option<Results> {
    let (to, from) = mpsc::channel();
    let started = thread::Builder::new()
        .name("nvcap-images".into())
        .spawn(move || {
            super::set_niceness(super::SEARCHES);
            let _ = to.send(search_process(pid));
        });
    started.ok().map(|_| from)
}

/// Searches a process of this machine, where the chip of its GPUs is known.
fn search_process(pid: u32) -> Option<QmdSearchResult> {
    let class = chip::only()?.compute;
    let began = Instant::now();
    match graph_qmds::search(pid, class) {
        Ok(f) => {
            log::info!(
                "process {pid}: {} images of GPU memory in {:.0} MB read in {:?}; {} contradicted, {} without an address; \
                 {:.0} MB left out",
                f.copies.len(),
                f.read as f64 / 1e6,
                began.elapsed(),
                f.contradicted,
                f.unnamed,
                f.cut as f64 / 1e6
            );
            Some(f)
        }
        Err(e) => {
            log::info!("process {pid}: its memory cannot be searched: {e}");
            None
        }
    }
}

#[cfg(test)]
mod tests;
