//! A source whose records are held back while a process is searched.

use super::*;
use std::cell::{Cell, RefCell};
use std::sync::Mutex;

use nvcap_decode::decode::encode::{Pushbuffer, Qmd};
use nvcap_decode::decode::view::View;
use nvcap_decode::gpu_time::made_up::submission;
use nvcap_decode::record::{At, ChannelId, How, Life, Process, Segment, Submission};
use nvcap_decode::wire::GpuVa;
use nvcap_process::error::Error;

/// A process id that the kernel never gives.
const PID: u32 = 0x7fff_fff0;

/// A source that gives one submission a step.
#[derive(Default)]
struct Steady {
    given: u64,
    fails: bool,
    ends: bool,
    launches: bool,
    quiet: bool,
    /// Sends that the source has ended; after it the source gives one more record.
    ended: Option<mpsc::Sender<Option<QmdSearchResult>>>,
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

    fn take_on(&mut self, _: u32, _: bool) -> Result<()> {
        Ok(())
    }

    fn step(&mut self, _: Duration, to: &mut Vec<Record>) -> Result<()> {
        if self.quiet {
            return Ok(());
        }
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
            segments: self.launches.then(launch).into_iter().collect(),
            ..submission(
                ChannelId(0),
                self.given,
                0,
                How::Trapped,
                &Pushbuffer::new(),
            )
        }));
        self.given += 1;
        match self.fails {
            true => Err(Error::new("reading", "it broke", "mend it")),
            false => Ok(()),
        }
    }

    fn locate(&self, _: ChannelId, _: GpuVa) -> Option<CpuVa> {
        None
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

    fn finish(mut self, to: &mut Vec<Record>) -> u64 {
        if let Some(ended) = self.ended.take() {
            let _ = self.step(Duration::ZERO, to);
            ended.send(Some(found())).unwrap();
        }
        self.given
    }
}

const CLASS: u32 = 0xcbc0;

fn qmd(program: u64) -> Vec<u8> {
    let view = View {
        version: (4, 0),
        grid: [1, 1, 1],
        block: [64, 1, 1],
        registers: 24,
        program: GpuVa(program),
        ..View::default()
    };
    Qmd::of(&view).unwrap().bytes().to_vec()
}

/// Commands that write a QMD.
fn launch() -> Segment {
    let mut p = Pushbuffer::new();
    p.inline(1, CLASS, GpuVa(0x2_04c0_0000), &qmd(0x7f00_0000_0200))
        .unwrap();
    p.segment(GpuVa(0x2_0080_0000))
}

fn found() -> QmdSearchResult {
    let copy = QmdCopy {
        at: At::default(),
        address: GpuVa(0x2_04c0_0000),
        bytes: qmd(0x7f00_0000_0400),
        found: nvcap_decode::record::CpuVa(0x1000),
    };
    QmdSearchResult {
        copies: vec![copy],
        ..QmdSearchResult::default()
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
        Record::QmdCopy(_) => "image".to_owned(),
        Record::Process(_) => "process".to_owned(),
        Record::Submission(s) => s.position.to_string(),
        other => panic!("{other:?}"),
    };
    records.iter().map(kind).collect()
}

/// A moment, and an action that is due then.
type Due = (Duration, Box<dyn FnOnce()>);

thread_local! {
    /// The time of this thread's test, from its beginning.
    static TIME: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    /// Action that is done once its moment has come.
    static LATER: RefCell<Option<Due>> = const { RefCell::new(None) };
}

/// A clock that stands still unless the test lets time pass.
const CLOCK: Clock = Clock { now, pause: pass };

fn now() -> Instant {
    static BEGUN: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
    *BEGUN + TIME.get()
}

fn pass(time: Duration) {
    TIME.set(TIME.get() + time);
    let due = LATER.with_borrow_mut(|later| later.take_if(|(at, _)| *at <= TIME.get()));
    if let Some((_, happen)) = due {
        happen();
    }
}

const MS: Duration = Duration::from_millis(1);

fn enriched(source: Steady) -> Enriched<Steady> {
    Enriched::with(source, vec![gpu()], None, CLOCK)
}

/// A source whose search ends when its results are sent.
fn searched() -> (Enriched<Steady>, mpsc::Sender<Option<QmdSearchResult>>) {
    let (end, ended) = mpsc::channel();
    let ended = Mutex::new(Some(ended));
    let search: Search = Box::new(move |pid| {
        assert_eq!(pid, PID);
        ended.lock().unwrap().take()
    });
    let source = Enriched::with(Steady::default(), vec![gpu()], Some(search), CLOCK);
    (source, end)
}

fn step(source: &mut Enriched<Steady>, all: &mut Vec<Record>) {
    source.step(Duration::ZERO, all).unwrap();
}

#[test]
fn search_results_come_before_the_first_submission() {
    let (mut source, end) = searched();
    source.attach(PID).unwrap();
    let mut all = Vec::new();
    for _ in 0..3 {
        step(&mut source, &mut all);
    }
    assert_eq!(kinds(&all), ["gpu"], "the rest waits");
    end.send(Some(found())).unwrap();
    step(&mut source, &mut all);
    assert_eq!(kinds(&all), ["gpu", "process", "image", "0", "1", "2", "3"]);
    // From then on nothing is held.
    let before = all.len();
    step(&mut source, &mut all);
    assert_eq!(all.len(), before + 1);
    assert_eq!(source.most_waiting(), 4711);
}

#[test]
fn nothing_is_held_without_a_search() {
    for attached in [false, true] {
        let mut source = enriched(Steady::default());
        if attached {
            source.attach(PID).unwrap();
        } else {
            source.expect(PID).unwrap();
        }
        let mut all = Vec::new();
        step(&mut source, &mut all);
        assert_eq!(kinds(&all), ["gpu", "process", "0"]);
    }
    // A command is traced from its start: it is not searched either.
    let (mut source, _end) = searched();
    source.expect(PID).unwrap();
    let mut all = Vec::new();
    step(&mut source, &mut all);
    assert_eq!(kinds(&all), ["gpu", "process", "0"]);
}

/// The wait for searches lasts as long as patience, and no longer.
#[test]
fn at_the_end_held_records_come_behind_the_results() {
    for (after, wanted) in [
        (PATIENCE - 10 * MS, &["gpu", "process", "image", "0"][..]),
        (PATIENCE + 10 * MS, &["gpu", "process", "0"]),
    ] {
        let (mut source, end) = searched();
        source.attach(PID).unwrap();
        let begun = TIME.get();
        let mut all = Vec::new();
        step(&mut source, &mut all);
        let happen = Box::new(move || end.send(Some(found())).unwrap());
        LATER.set(Some((begun + after, happen)));
        assert_eq!(source.finish(&mut all), 1);
        assert_eq!(kinds(&all), wanted, "{after:?}");
        assert!(TIME.get() >= begun + after.min(PATIENCE));
        assert!(TIME.get() < begun + PATIENCE + 10 * MS);
    }
}

/// Nothing is read while searches are waited for: submissions of that time would be lost without a report if their process ends.
#[test]
fn the_source_ends_before_searches_are_waited_for() {
    let (mut source, end) = searched();
    source.attach(PID).unwrap();
    let mut all = Vec::new();
    step(&mut source, &mut all);
    // The search lasts until the source has ended.
    source.inner.ended = Some(end);
    assert_eq!(source.finish(&mut all), 2);
    assert_eq!(kinds(&all), ["gpu", "process", "image", "0", "1"]);
}

#[test]
fn what_came_before_an_error_is_told() {
    let (mut source, end) = searched();
    source.attach(PID).unwrap();
    source.inner.fails = true;
    let mut all = Vec::new();
    assert!(source.step(Duration::ZERO, &mut all).is_err());
    end.send(Some(found())).unwrap();
    source.finish(&mut all);
    assert_eq!(kinds(&all), ["gpu", "process", "image", "0"]);
}

#[test]
fn ends_are_held_no_longer_than_names_are_asked_for() {
    let mut source = enriched(Steady::default());
    let (namer, answers) = Namer::answered_by_test(None, now);
    source.held.namer = Some(namer);
    source.inner.ends = true;
    source.inner.launches = true;
    let mut all = Vec::new();
    step(&mut source, &mut all);
    assert!(source.inner.ends, "a name is asked for");
    assert_eq!(source.held.namer.as_ref().unwrap().asks(), 1);
    assert!(source.until_next(Duration::from_secs(1)) <= SOON);
    // As long as that takes.
    pass(100 * PATIENCE);
    step(&mut source, &mut all);
    assert!(source.inner.ends);
    answers.none_of(1);
    step(&mut source, &mut all);
    assert!(!source.inner.ends && !source.held.asks());
    // Nobody looks for names.
    source.held.namer = None;
    source.inner.ends = true;
    step(&mut source, &mut all);
    assert!(!source.inner.ends);
}

/// The thread that looks for names also answers for a process that is gone; without an answer, the process's end would be held for good.
#[test]
fn asks_about_a_process_that_is_gone_are_answered() {
    let mut source = enriched(Steady::default());
    source.held.namer = Namer::start(None);
    source.inner.ends = true;
    source.inner.launches = true;
    let mut all = Vec::new();
    step(&mut source, &mut all);
    assert!(source.held.asks() && source.inner.ends);
    nvcap_waiting::until("an answer of the thread that looks for names", || {
        step(&mut source, &mut all);
        !source.inner.ends
    });
    assert!(!source.held.asks());
}

/// The names of a graph's programs are waited for while nothing is submitted. A replay still comes behind its images, and waits no longer for
/// them, whatever comes meanwhile.
#[test]
fn images_of_a_quiet_process_are_not_kept_back() {
    for answered in [false, true] {
        let (mut source, end) = searched();
        let (namer, answers) = Namer::answered_by_test(Some(CLASS), now);
        source.held.namer = Some(namer);
        source.inner.quiet = true;
        source.attach(PID).unwrap();
        end.send(Some(found())).unwrap();
        let mut all = Vec::new();
        step(&mut source, &mut all);
        assert!(source.held.searches.is_empty() && source.held.asks());
        assert_eq!(kinds(&all), ["gpu"], "it waits for a name");
        source.inner.quiet = false;
        let begun = TIME.get();
        while TIME.get() < begun + LONG_PATIENCE {
            step(&mut source, &mut all);
            assert_eq!(kinds(&all), ["gpu"], "{:?}", TIME.get() - begun);
            pass(10 * MS);
            if answered && TIME.get() == begun + LONG_PATIENCE / 2 {
                answers.none_of(1);
                break;
            }
        }
        step(&mut source, &mut all);
        assert_eq!(kinds(&all)[..4], ["gpu", "process", "image", "0"]);
    }
}

#[test]
fn output_without_lines_for_late_names_waits_for_them() {
    for patient in [false, true] {
        let mut source = enriched(Steady {
            launches: true,
            ..Steady::default()
        });
        let (namer, _answers) = Namer::answered_by_test(None, now);
        source.held.namer = Some(namer);
        let mut source = if patient { source.patient() } else { source };
        let mut all = Vec::new();
        step(&mut source, &mut all);
        source.inner.quiet = true;
        assert!(source.held.asks());
        if patient {
            assert_eq!(kinds(&all), ["gpu"]);
            pass(LONG_PATIENCE - MS);
            step(&mut source, &mut all);
            assert_eq!(kinds(&all), ["gpu"]);
            pass(MS);
            step(&mut source, &mut all);
        }
        assert_eq!(kinds(&all), ["gpu", "process", "0"]);
    }
}

#[test]
fn a_search_that_takes_too_long_holds_nothing_up() {
    let (mut source, end) = searched();
    source.attach(PID).unwrap();
    pass(PATIENCE - MS);
    let mut all = Vec::new();
    step(&mut source, &mut all);
    assert_eq!(kinds(&all), ["gpu"]);
    pass(MS);
    step(&mut source, &mut all);
    assert_eq!(kinds(&all), ["gpu", "process", "0", "1"]);
    // Its results apply from then on.
    end.send(Some(found())).unwrap();
    step(&mut source, &mut all);
    assert_eq!(kinds(&all)[4..], ["image", "2"]);
    assert_eq!(source.finish(&mut all), 3);
    assert_eq!(all.len(), 6);
}
