//! A source whose records are held back while a process is searched.

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
    quiet: bool,
    /// Told when it ends; then it gives one more.
    ended: Option<mpsc::Sender<()>>,
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
            ended.send(()).unwrap();
        }
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

/// Nothing is read while searches are waited for: what is submitted meanwhile would be lost unsaid where its process ends.
#[test]
fn the_source_ends_before_searches_are_waited_for() {
    let (mut source, end) = searched();
    source.attach(PID).unwrap();
    let mut all = Vec::new();
    source.step(Duration::ZERO, &mut all).unwrap();
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
    end.send(()).unwrap();
    source.finish(&mut all);
    assert_eq!(kinds(&all), ["gpu", "process", "image", "0"]);
}

#[test]
fn ends_are_held_no_longer_than_names_are_asked_for() {
    let mut source = Enriched::with(Steady::default(), vec![gpu()], None);
    source.held.namer = Namer::start(None);
    source.inner.ends = true;
    source.inner.launches = true;
    source.step(Duration::ZERO, &mut Vec::new()).unwrap();
    assert!(source.inner.ends, "a name is asked for");
    assert!(source.until_next(Duration::from_secs(1)) <= SOON);
    while source.inner.ends {
        source.step(Duration::ZERO, &mut Vec::new()).unwrap();
        thread::sleep(Duration::from_millis(1));
    }
    assert!(!source.held.namer.as_ref().unwrap().is_asking(Duration::MAX));
    // Nobody looks for names.
    source.held.namer = None;
    source.inner.ends = true;
    source.step(Duration::ZERO, &mut Vec::new()).unwrap();
    assert!(!source.inner.ends);
}

/// The names of a graph's programs are waited for while nothing is submitted; a replay comes behind its images all the same.
#[test]
fn images_of_a_quiet_process_are_not_kept_back() {
    let (mut source, end) = searched();
    source.held.namer = Namer::start(None);
    source.inner.quiet = true;
    source.attach(PID).unwrap();
    end.send(()).unwrap();
    let mut all = Vec::new();
    while !source.held.searches.is_empty() {
        source.step(Duration::ZERO, &mut all).unwrap();
    }
    source.inner.quiet = false;
    let begun = Instant::now();
    while !kinds(&all).contains(&"0".to_owned()) {
        source.step(Duration::ZERO, &mut all).unwrap();
        thread::sleep(Duration::from_millis(1));
    }
    assert!(begun.elapsed() < LONG_PATIENCE * 3);
    let at = |kind: &str| kinds(&all).iter().position(|k| k == kind);
    assert!(
        at("image").is_some() && at("image") < at("0"),
        "{:?}",
        kinds(&all)
    );
}

#[test]
fn output_without_lines_for_late_names_waits_for_them() {
    let launch = || Steady {
        launches: true,
        ..Steady::default()
    };
    let shown = |all: &[Record]| all.iter().any(|r| matches!(r, Record::Submission(_)));
    for patient in [false, true] {
        let mut source = Enriched::with(launch(), vec![gpu()], None);
        source.held.namer = Namer::start(None);
        let mut source = if patient { source.patient() } else { source };
        let mut all = Vec::new();
        source.step(Duration::ZERO, &mut all).unwrap();
        source.inner.launches = false;
        assert!(source.held.namer.as_ref().unwrap().is_asking(Duration::MAX));
        assert_eq!(shown(&all), !patient);
        let end = Instant::now() + Duration::from_secs(5);
        while !shown(&all) && Instant::now() < end {
            source.step(Duration::ZERO, &mut all).unwrap();
            thread::sleep(Duration::from_millis(1));
        }
        assert!(shown(&all));
    }
}

#[test]
fn a_search_that_takes_too_long_holds_nothing_up() {
    let (mut source, end) = searched();
    source.attach(PID).unwrap();
    source.held.until = Some(Instant::now());
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
