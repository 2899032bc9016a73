//! Adds records to a live source: the GPUs of the machine, and the QMDs that a process wrote before nvcap attached.
//!
//! Searching a process's memory takes as long as reading it: up to seconds. The search runs beside the source. Meanwhile
//! the source's records are held back in memory, so that the first submission shown is decoded with the results. They are
//! held for a limited time and up to a limited size; later results apply from then on.
//!
//! Names of kernels are looked for all the time, beside the source too ([`super::names`]). Records are held for them only
//! after a search, whose graphs have programs that no submission names; else the pipeline's own window suffices.

use std::{
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use super::{
    images::{self, Found},
    names::namer::{Namer, SOON},
    stamps::{self, Stamper},
};
use crate::record::{Gpu, Image, Record};
use crate::source::{error::Result, exit_hold::ExitHold, memory::chip, run::Source};

/// How long records wait for a search.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of records that wait for a search.
const MOST_HELD: usize = 256 << 20;
/// How long held records wait for the names of the programs in them.
const NAME_PATIENCE: Duration = Duration::from_secs(1);
/// The niceness of a search: only nvcap waits for it.
const NICENESS: i32 = 10;

/// Searches the memory of a process; nothing if the memory may not be read, or the GPU's chip is unknown.
type Search = Arc<dyn Fn(u32) -> Option<Found> + Send + Sync>;

/// See the module.
pub(crate) struct Enriched<S> {
    inner: S,
    /// How attached processes are searched, if they are.
    search: Option<Search>,
    gpus: Vec<Gpu>,
    namer: Option<Namer>,
    stamper: Option<Stamper>,
    holds_end: bool,
    hold: Option<ExitHold>,
    /// The records of the GPUs were given.
    told: bool,
    searches: Vec<mpsc::Receiver<Option<Found>>>,
    held: Vec<Record>,
    /// Results of searches that wait with them.
    images: Vec<Record>,
    held_bytes: usize,
    /// Until when records are held; `None` while no search runs.
    until: Option<Instant>,
}

impl<S: Source> Enriched<S> {
    /// Wraps a source. `search`: search the memory of attached processes. `names`: look for the names of kernels. `hold`: hold the
    /// command's end until they are found.
    pub(crate) fn new(inner: S, search: bool, names: bool, hold: bool) -> Self {
        let search: Option<Search> = search.then(|| Arc::new(search_process) as Search);
        let class = chip::only().map(|c| c.compute);
        Self {
            namer: if names { Namer::start(class) } else { None },
            holds_end: names && hold,
            ..Self::with(inner, chip::gpus(), search)
        }
    }

    /// Reads the GPU's time stamps, with a share of a processor.
    pub(crate) fn with_stamps(self, share: Option<f64>) -> Self {
        let class = chip::only().map(|c| c.compute);
        Self {
            stamper: Stamper::start(class, share),
            ..self
        }
    }

    fn with(inner: S, gpus: Vec<Gpu>, search: Option<Search>) -> Self {
        Self {
            inner,
            search,
            gpus,
            namer: None,
            stamper: None,
            holds_end: false,
            hold: None,
            told: false,
            searches: Vec::new(),
            held: Vec::new(),
            images: Vec::new(),
            held_bytes: 0,
            until: None,
        }
    }

    fn search(&mut self, pid: u32) {
        let Some(search) = self.search.clone() else {
            return;
        };
        let (to, from) = mpsc::channel();
        let started = thread::Builder::new()
            .name("nvcap-images".into())
            .spawn(move || {
                // SAFETY: sets this thread's own niceness.
                unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICENESS) };
                let _ = to.send(search(pid));
            });
        if started.is_ok() {
            self.searches.push(from);
            self.until = Some(Instant::now() + PATIENCE);
        }
    }

    /// The results since the last call.
    fn found(&mut self) -> Vec<Image> {
        let mut all = Vec::new();
        self.searches.retain(|search| match search.try_recv() {
            Ok(found) => {
                all.extend(found.into_iter().flat_map(|f| f.images));
                false
            }
            Err(mpsc::TryRecvError::Empty) => true,
            Err(mpsc::TryRecvError::Disconnected) => false,
        });
        all
    }

    fn emit_gpus(&mut self, to: &mut Vec<Record>) {
        if !std::mem::replace(&mut self.told, true) {
            to.extend(self.gpus.iter().copied().map(Record::Gpu));
        }
    }

    /// Takes the results of a search.
    fn add_images(&mut self, found: Vec<Image>) {
        let from = self.images.len();
        self.images
            .extend(found.into_iter().map(|i| Record::Image(Box::new(i))));
        if let Some(namer) = &mut self.namer {
            namer.look(self.images.get(from..).unwrap_or_default());
        }
    }

    /// Releases the held records, with names and the results of searches before them.
    fn release(&mut self, to: &mut Vec<Record>) {
        let names = self.held.extract_if(.., |r| matches!(r, Record::Kernel(_)));
        to.extend(names);
        // Behind the records of the process itself.
        let at = self
            .held
            .iter()
            .position(|r| matches!(r, Record::Submission(_)))
            .unwrap_or(self.held.len());
        let rest = self.held.split_off(at);
        to.append(&mut self.held);
        to.append(&mut self.images);
        to.extend(rest);
        self.held_bytes = 0;
    }

    /// How long the source may wait for the next record.
    fn until_next(&self, wait: Duration) -> Duration {
        let asks = self
            .namer
            .as_ref()
            .is_some_and(|n| n.is_asking(Duration::MAX));
        let holds = self.inner.is_ending() || self.hold.as_ref().is_some_and(ExitHold::is_ending);
        let stamps = self.stamper.as_ref().is_some_and(Stamper::is_waiting);
        if asks || holds {
            wait.min(SOON)
        } else if stamps {
            wait.min(stamps::SOON)
        } else {
            wait
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

    fn step(&mut self, wait: Duration, to: &mut Vec<Record>) -> Result<()> {
        self.emit_gpus(to);
        let mut now = Vec::new();
        let ending = self.hold.as_ref().is_some_and(ExitHold::is_ending);
        // Records from before an error are held too, and given at the end.
        let stepped = self.inner.step(self.until_next(wait), &mut now);
        if let Some(namer) = &mut self.namer {
            namer.look(&now);
            namer.answers(Duration::ZERO, &mut now);
        }
        // Ends are held for a limited time, whatever is asked for.
        let asks = |n: &Namer| n.is_asking(Duration::MAX);
        if !self.namer.as_ref().is_some_and(asks) {
            // Once all that the command submitted was given.
            if ending && now.is_empty() {
                self.hold = None;
            }
            if self.inner.is_ending() {
                self.inner.let_end();
            }
        }
        if let Some(stamper) = &mut self.stamper {
            stamper.look(&now);
            stamper.stamps(&mut now);
        }
        if self.searches.is_empty() && self.held.is_empty() {
            to.append(&mut now);
            return stepped;
        }
        self.held_bytes += now.iter().map(Record::size).sum::<usize>();
        self.held.append(&mut now);
        let found = self.found();
        if !found.is_empty() {
            // The graphs' programs have names, too: those are waited for.
            self.add_images(found);
        }
        let late = self.until.is_none_or(|t| Instant::now() >= t);
        let named = self
            .namer
            .as_ref()
            .is_none_or(|n| !n.is_asking(NAME_PATIENCE));
        if self.searches.is_empty() && named || late || self.held_bytes >= MOST_HELD {
            self.release(to);
        }
        stepped
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
        let waits = self.namer.as_ref().is_some_and(|n| !n.patience().is_zero());
        let stamps = self.stamper.as_ref().is_some_and(Stamper::is_waiting);
        waits || stamps || self.inner.is_pending()
    }

    fn finish(mut self, to: &mut Vec<Record>) -> Self::End {
        self.emit_gpus(to);
        if let Some(stamper) = &self.stamper {
            stamper.stamps(to);
        }
        // Waits for the searches as long as patience lasts: their results are needed to decode the held records.
        while !self.searches.is_empty() && self.until.is_some_and(|t| Instant::now() < t) {
            let found = self.found();
            self.add_images(found);
            thread::sleep(Duration::from_millis(5));
        }
        let found = self.found();
        self.add_images(found);
        if let Some(namer) = &mut self.namer {
            while !namer.patience().is_zero() {
                let wait = namer.patience();
                namer.answers(wait, &mut self.held);
            }
        }
        self.release(to);
        let mut last = Vec::new();
        let namer = self.namer.take();
        let end = self.inner.finish(&mut last);
        if let Some(namer) = namer {
            last_names(namer, &last, to);
        }
        if let Some(stamper) = &mut self.stamper {
            stamper.look(&last);
            thread::sleep(stamps::LAST);
            stamper.stamps(to);
        }
        to.append(&mut last);
        end
    }
}

/// Takes the names of the last records' programs, as long as output waits for them.
fn last_names(mut namer: Namer, of: &[Record], to: &mut Vec<Record>) {
    namer.look(of);
    while !namer.patience().is_zero() {
        let wait = namer.patience();
        namer.answers(wait, to);
    }
}

/// Searches a process of this machine, where the chip of its GPUs is known.
fn search_process(pid: u32) -> Option<Found> {
    let class = chip::only()?.compute;
    let began = Instant::now();
    match images::search(pid, class) {
        Ok(f) => {
            log::info!(
                "process {pid}: {} images of GPU memory in {:.0} MB read in {:?}; {} contradicted, {} without an address; \
                 {:.0} MB left out",
                f.images.len(),
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
mod tests {
    use super::*;
    use crate::decode::encode::{Pushbuffer, Qmd};
    use crate::decode::view::View;
    use crate::record::{At, ChannelId, How, Life, Process, Segment, Submission};
    use crate::source::error::Error;
    use crate::wire::GpuVa;

    /// More than the kernel gives.
    const PID: u32 = 0x7fff_fff0;

    /// A source that gives one submission a step.
    #[derive(Default)]
    struct Steady {
        given: u64,
        fails: bool,
        ends: bool,
        launches: bool,
    }

    impl Source for Steady {
        type End = u64;

        fn shown_by(&mut self, _: i32) {}

        fn expect(&mut self, _: u32) -> Result<()> {
            Ok(())
        }

        fn attach(&mut self, _: u32) -> Result<()> {
            Ok(())
        }

        fn step(&mut self, _: Duration, to: &mut Vec<Record>) -> Result<()> {
            let at = At {
                pid: PID,
                ..At::default()
            };
            if self.given == 0 {
                let name = "python".to_owned();
                let life = Life::Present { name };
                to.push(Record::Process(Process { at, life }));
            }
            to.push(Record::Submission(Submission {
                at,
                channel: ChannelId(0),
                token: None,
                position: self.given,
                gp_get: None,
                prev_put: 0,
                gp_put: 1,
                ip: None,
                doorbell: None,
                how: How::Trapped,
                late: false,
                thread: None,
                segments: self.launches.then(launch).into_iter().collect(),
            }));
            self.given += 1;
            match self.fails {
                true => Err(Error::new("reading", "it broke", "mend it")),
                false => Ok(()),
            }
        }

        fn batch_time(&self) -> Duration {
            Duration::ZERO
        }

        fn most_waiting(&self) -> usize {
            4711
        }

        fn longest_wait(&self) -> Duration {
            Duration::ZERO
        }

        fn is_pending(&self) -> bool {
            false
        }

        fn is_alive(&self) -> bool {
            true
        }

        fn is_ending(&self) -> bool {
            self.ends
        }

        fn let_end(&mut self) {
            self.ends = false;
        }

        fn finish(self, _: &mut Vec<Record>) -> u64 {
            self.given
        }
    }

    /// Commands that write a QMD.
    fn launch() -> Segment {
        const CLASS: u32 = 0xcbc0;
        let view = View {
            version: (4, 0),
            grid: [1, 1, 1],
            block: [64, 1, 1],
            registers: 24,
            program: GpuVa(0x7f00_0000_0200),
            ..View::default()
        };
        let qmd = Qmd::of(&view).unwrap();
        let mut p = Pushbuffer::new();
        p.inline(1, CLASS, GpuVa(0x2_04c0_0000), qmd.bytes())
            .unwrap();
        p.segment(GpuVa(0x2_0080_0000))
    }

    fn found() -> Found {
        let image = Image {
            at: At::default(),
            address: GpuVa(0x2_04c0_0000),
            bytes: vec![1; 384],
            found: crate::record::CpuVa(0x1000),
        };
        Found {
            images: vec![image],
            ..Found::default()
        }
    }

    fn gpu() -> Gpu {
        Gpu {
            at: At::default(),
            minor: 0,
            pci_device: 0x2335,
        }
    }

    /// The kinds of records, and the positions of submissions.
    fn kinds(records: &[Record]) -> Vec<String> {
        let kind = |r: &Record| match r {
            Record::Gpu(_) => "gpu".to_owned(),
            Record::Image(_) => "image".to_owned(),
            Record::Process(_) => "process".to_owned(),
            Record::Submission(s) => s.position.to_string(),
            other => panic!("{other:?}"),
        };
        records.iter().map(kind).collect()
    }

    /// A source whose search ends on request; the search's results are in the vector.
    fn searched() -> (Enriched<Steady>, mpsc::Sender<()>) {
        let (end, ended) = mpsc::channel();
        let ended = std::sync::Mutex::new(ended);
        let search = move |pid| {
            assert_eq!(pid, PID);
            let _ = ended.lock().map(|e| e.recv());
            Some(found())
        };
        let search: Search = Arc::new(search);
        (
            Enriched::with(Steady::default(), vec![gpu()], Some(search)),
            end,
        )
    }

    #[test]
    fn search_results_come_before_the_first_submission() {
        let (mut source, end) = searched();
        source.attach(PID).unwrap();
        let mut all = Vec::new();
        for _ in 0..3 {
            source.step(Duration::ZERO, &mut all).unwrap();
        }
        assert_eq!(kinds(&all), ["gpu"], "the rest waits");
        end.send(()).unwrap();
        while kinds(&all).len() < 6 {
            source.step(Duration::ZERO, &mut all).unwrap();
            thread::sleep(Duration::from_millis(1));
        }
        let begin = kinds(&all);
        assert_eq!(&begin[..6], ["gpu", "process", "image", "0", "1", "2"]);
        // From then on nothing is held.
        let before = all.len();
        source.step(Duration::ZERO, &mut all).unwrap();
        assert_eq!(all.len(), before + 1);
        assert_eq!(source.most_waiting(), 4711);
    }

    #[test]
    fn nothing_is_held_without_a_search() {
        for attached in [false, true] {
            let mut source = Enriched::with(Steady::default(), vec![gpu()], None);
            if attached {
                source.attach(PID).unwrap();
            } else {
                source.expect(PID).unwrap();
            }
            let mut all = Vec::new();
            source.step(Duration::ZERO, &mut all).unwrap();
            assert_eq!(kinds(&all), ["gpu", "process", "0"]);
        }
        // A command is traced from its start: it is not searched either.
        let (mut source, _end) = searched();
        source.expect(PID).unwrap();
        let mut all = Vec::new();
        source.step(Duration::ZERO, &mut all).unwrap();
        assert_eq!(kinds(&all), ["gpu", "process", "0"]);
    }

    #[test]
    fn at_the_end_held_records_come_behind_the_results() {
        let (mut source, end) = searched();
        source.attach(PID).unwrap();
        let mut all = Vec::new();
        source.step(Duration::ZERO, &mut all).unwrap();
        let ender = thread::spawn(move || {
            thread::sleep(Duration::from_millis(30));
            end.send(()).unwrap();
        });
        assert_eq!(source.finish(&mut all), 1);
        assert_eq!(kinds(&all), ["gpu", "process", "image", "0"]);
        ender.join().unwrap();
    }

    #[test]
    fn what_came_before_an_error_is_told() {
        let (mut source, end) = searched();
        source.attach(PID).unwrap();
        source.inner.fails = true;
        let mut all = Vec::new();
        assert!(source.step(Duration::ZERO, &mut all).is_err());
        end.send(()).unwrap();
        source.finish(&mut all);
        assert_eq!(kinds(&all), ["gpu", "process", "image", "0"]);
    }

    #[test]
    fn ends_are_held_no_longer_than_names_are_asked_for() {
        let mut source = Enriched::with(Steady::default(), vec![gpu()], None);
        source.namer = Namer::start(None);
        source.inner.ends = true;
        source.inner.launches = true;
        source.step(Duration::ZERO, &mut Vec::new()).unwrap();
        assert!(source.inner.ends, "a name is asked for");
        assert!(source.until_next(Duration::from_secs(1)) <= SOON);
        while source.inner.ends {
            source.step(Duration::ZERO, &mut Vec::new()).unwrap();
            thread::sleep(Duration::from_millis(1));
        }
        assert!(!source.namer.as_ref().unwrap().is_asking(Duration::MAX));
        // Nobody looks for names.
        source.namer = None;
        source.inner.ends = true;
        source.step(Duration::ZERO, &mut Vec::new()).unwrap();
        assert!(!source.inner.ends);
    }

    #[test]
    fn a_search_that_takes_too_long_holds_nothing_up() {
        let (mut source, end) = searched();
        source.attach(PID).unwrap();
        source.until = Some(Instant::now());
        let mut all = Vec::new();
        source.step(Duration::ZERO, &mut all).unwrap();
        assert_eq!(kinds(&all), ["gpu", "process", "0"]);
        // Its results apply from then on.
        end.send(()).unwrap();
        while !kinds(&all).contains(&"image".to_owned()) {
            source.step(Duration::ZERO, &mut all).unwrap();
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(source.finish(&mut all) as usize, kinds(&all).len() - 3);
    }
}
