//! Tests that what ran is what is said to have run: a capture of CUDA programs' graphs, clusters, cooperative and programmatic launches,
//! copies and memsets (tests/gpu/meaning/cuda.cu), held against what CUPTI saw of the same program, from its beginning, and
//! from its middle with the QMDs that are found in the process's memory.
#![cfg(feature = "xz")]

use crate::common::files;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::rc::Rc;

use nvcap_decode::decode::event::{Body, Event, InlineContent, LaunchKind, Operation, QmdFrom};
use nvcap_decode::decode::{Decoder, qmd_copy};
use nvcap_decode::driver::Model;
use nvcap_decode::ledger::{Ledger, STATUS_COMPLETE, STATUS_NOT_UNDERSTOOD};
use nvcap_decode::record::{At, Gpu, Record};
use nvcap_recording::file::orc::Orc;
use nvcap_show::output::phases::Phases;
use nvcap_show::output::{Detail, Sink};
use nvcap_show::pipeline::{Pipeline, PipelineOptions};

/// PCI device id of the H200.
const H200: u16 = 0x2335;
/// The compute class of its chip.
const COMPUTE: u32 = 0xcbc0;

/// Work of a phase: kernels by grid and block, copies and memsets by bytes, with their counts.
type Ran = BTreeMap<String, u64>;

fn by_phase(text: &str) -> BTreeMap<String, Ran> {
    let mut all: BTreeMap<String, Ran> = BTreeMap::new();
    for line in text.lines() {
        let [phase, kind, what, block, count] = line.split('\t').collect::<Vec<_>>()[..] else {
            panic!("{line}");
        };
        let what = format!("{kind} {what} {block}");
        let ran = all.entry(phase.to_owned()).or_default();
        ran.insert(what.trim_end().to_owned(), count.parse().expect("a count"));
    }
    all
}

fn truth(name: &str) -> BTreeMap<String, Ran> {
    let path = files::capture(&format!("{name}.cupti.tsv")).expect("plain text");
    by_phase(&std::fs::read_to_string(path).expect("reads"))
}

/// Work that the decoder showed of a capture, by phase.
#[derive(Default)]
struct DecodedWork {
    ran: BTreeMap<String, Ran>,
    unresolved: BTreeMap<String, u64>,
    replays: BTreeMap<String, Vec<(u32, u32, usize)>>,
    images: u64,
    nodes: HashMap<u64, u32>,
    told: HashMap<u64, u32>,
    chips: Vec<String>,
}

struct Keep(Rc<RefCell<DecodedWork>>);

impl Sink for Keep {
    fn detail(&self) -> Option<Detail> {
        Some(Detail::Operations)
    }

    fn event(&mut self, event: &Event<'_>) -> io::Result<()> {
        let seen = &mut *self.0.borrow_mut();
        if let Body::Chip(chip) = &event.body {
            seen.chips.push(format!("{} {:?}", chip.chip, chip.by));
        }
        let (Body::Operation(op), Some(phase)) = (&event.body, &event.context.phase) else {
            return Ok(());
        };
        let dimensions = |d: [u32; 3]| d.map(|n| n.to_string()).join("x");
        let mut add = |what: String| {
            let ran = seen.ran.entry(phase.to_string()).or_default();
            *ran.entry(what).or_default() += 1;
        };
        match op {
            Operation::Launch(l) => {
                seen.images += u64::from(l.qmd_from == Some(QmdFrom::Image));
                if let (Some(replay), true) = (l.replay, l.kind != LaunchKind::Companion) {
                    *seen.nodes.entry(replay).or_default() += 1;
                }
                let bytes = l.moves.and_then(|m| m.bytes);
                let bytes = bytes.map_or("?".to_owned(), |n| n.to_string());
                match l.kind {
                    LaunchKind::User => add(format!(
                        "kernel {} {}",
                        dimensions(l.grid.expect("resolved")),
                        dimensions(l.block.expect("resolved"))
                    )),
                    LaunchKind::DriverMemset => add(format!("memset {bytes}")),
                    LaunchKind::DriverCopy => add(format!("d2d {bytes}")),
                    LaunchKind::Unresolved => {
                        *seen.unresolved.entry(phase.to_string()).or_default() += 1;
                    }
                    LaunchKind::Companion | LaunchKind::DriverGraph | LaunchKind::Driver => {}
                }
            }
            Operation::Graph(g) => {
                seen.told.insert(g.replay, g.nodes);
                let replays = seen.replays.entry(phase.to_string()).or_default();
                replays.push((g.kernels, g.driver, g.channels.len()));
            }
            Operation::Copy(c) if c.src.is_some() => {
                let direction = format!("{:?}", c.direction);
                let direction = match direction.as_str() {
                    "Some(HostToDevice)" => "h2d",
                    "Some(DeviceToHost)" => "d2h",
                    other => other,
                };
                add(format!("{direction} {}", c.bytes));
            }
            Operation::Inline(i) if i.content == Some(InlineContent::Data) => match i.fill {
                Some(_) => add(format!("memset {}", i.bytes)),
                None => add(format!("h2d {}", i.bytes)),
            },
            _ => {}
        }
        Ok(())
    }

    fn record(&mut self, _: &Record, _: &Model) -> io::Result<()> {
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn finish(&mut self, _: &Ledger, _: &Model) -> io::Result<()> {
        Ok(())
    }
}

fn records(name: &str) -> Vec<Record> {
    let path = files::capture(&format!("{name}.orc.xz")).expect("with xz");
    let capture = Orc::open(&path).expect("opens");
    capture.map(|r| r.expect("whole")).collect()
}

fn phases(name: &str) -> String {
    let path = files::capture(&format!("{name}.phases")).expect("plain text");
    std::fs::read_to_string(path).expect("reads")
}

fn run(name: &str, records: impl IntoIterator<Item = Record>) -> (DecodedWork, Ledger) {
    run_flushing(name, records, false)
}

/// `flush`: as a live trace that has nothing to do behind each record.
fn run_flushing(
    name: &str,
    records: impl IntoIterator<Item = Record>,
    flush: bool,
) -> (DecodedWork, Ledger) {
    let seen = Rc::new(RefCell::new(DecodedWork::default()));
    let options = PipelineOptions {
        phases: Some(Phases::parse(&phases(name)).expect("phases")),
        ..PipelineOptions::default()
    };
    let mut pipeline = Pipeline::new(options, vec![Box::new(Keep(seen.clone()))]);
    for record in records {
        pipeline.record(record).expect("taken");
        if flush {
            pipeline.flush().expect("flushes");
        }
    }
    let ledger = pipeline.finish().expect("ends");
    let seen = seen.replace(DecodedWork::default());
    // What is summed up of a replay is what was told of its nodes.
    assert_eq!(seen.nodes, seen.told);
    (seen, ledger)
}

/// Tells whether the doorbells of a phase are known to show other work than CUPTI counts: copies that are split or of a size that
/// the launch does not tell, kernels that the GPU starts itself, and 4 bytes that the driver writes for a conditional node.
fn explained(phase: &str) -> bool {
    matches!(phase, "copies" | "pageable" | "conditional")
}

fn assert_equal(name: &str, seen: &DecodedWork) {
    for (phase, ran) in &truth(name) {
        if !explained(phase) {
            assert_eq!(seen.ran.get(phase), Some(ran), "{phase}");
        }
    }
}

/// Sums of bytes by direction.
fn moved(ran: &Ran) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for (what, count) in ran {
        if let Some((direction @ ("h2d" | "d2h" | "d2d"), bytes)) = what.split_once(' ')
            && let Ok(bytes) = bytes.parse::<u64>()
        {
            *sums.entry(direction.to_owned()).or_default() += bytes * count;
        }
    }
    sums
}

#[test]
fn from_the_beginning_all_that_cupti_saw_ran() {
    for name in ["h200-graphs", "h200-graphs-cupti"] {
        let (seen, ledger) = run(name, records(name));
        assert_equal(name, &seen);
        assert_eq!(seen.unresolved, BTreeMap::new());
        assert_eq!(seen.images, 0);
        assert_eq!(ledger.exit_status(), STATUS_COMPLETE);
        let truth = truth(name);
        assert_eq!(
            moved(&seen.ran["pageable"]),
            moved(&truth["pageable"]),
            "in other pieces"
        );
        // Three copies within the device: one or several elements of 1 or 4 bytes.
        let unknown = seen.ran["copies"].get("d2d ?").copied();
        let copies = |ran: &Ran| ran.values().sum::<u64>();
        assert_eq!(
            (unknown, copies(&seen.ran["copies"])),
            (Some(2), copies(&truth["copies"]))
        );
        // The nodes inside conditional ones are started by the GPU.
        let inside = seen.ran["conditional"].get("kernel 21x1x1 32x1x1");
        assert_eq!(inside, None);
    }
}

fn assert_replays(seen: &DecodedWork) {
    // Kernels, kernels of the driver that join its branches, channels.
    assert_eq!(seen.replays["chain"], [(40, 0, 1); 3]);
    let chains = [(100, 0, 1), (40, 0, 1), (300, 0, 1)].repeat(3);
    assert_eq!(seen.replays["chains"], chains);
    assert_eq!(seen.replays["fork"], [(61, 2, 2); 3]);
    assert_eq!(seen.replays["wide"], [(29, 4, 4); 3]);
    assert_eq!(seen.replays["graph_programmatic"], [(13, 0, 1); 3]);
    assert_eq!(seen.replays["update"], [(10, 0, 1); 4]);
    assert!(!seen.replays.contains_key("programmatic"), "no graph");
    assert!(!seen.replays.contains_key("plain"), "no graph");
}

#[test]
fn a_replay_is_told_once_with_all_its_channels() {
    let (seen, _) = run("h200-graphs", records("h200-graphs"));
    assert_replays(&seen);
    // A pause between two submissions of a replay ends it not.
    let (seen, _) = run_flushing("h200-graphs", records("h200-graphs"), true);
    assert_replays(&seen);
}

#[test]
fn replays_that_are_read_channel_by_channel_are_told_apart() {
    // As observing reads them: of each phase all that one channel had, then all of the next.
    let phases = Phases::parse(&phases("h200-graphs")).expect("phases");
    let mut all = records("h200-graphs");
    all.sort_by_key(|r| match r {
        // Stable: what lies before the phases, and the phases, keep their order.
        Record::Submission(s) => match phases.at(s.at.time_ns) {
            Some(phase) => (1, order(phase), s.channel.0),
            None => (0, 0, 0),
        },
        _ => (0, 0, 0),
    });
    let (seen, _) = run("h200-graphs", all);
    for phase in ["chain", "chains", "fork", "wide"] {
        let count = |ran: &Ran| ran.values().sum::<u64>();
        assert_eq!(count(&seen.ran[phase]), count(&truth("h200-graphs")[phase]));
    }
    assert_eq!(seen.replays["fork"], [(61, 2, 2); 3]);
    assert_eq!(seen.replays["wide"], [(29, 4, 4); 3]);
}

/// Doorbells that were caught up together: the entries of up to `most` submissions of a channel as one.
fn together(name: &str, most: usize) -> Vec<Record> {
    let phases = Phases::parse(&phases(name)).expect("phases");
    let mut all: Vec<Record> = Vec::new();
    for record in records(name) {
        if let (Some(Record::Submission(last)), Record::Submission(s)) = (all.last_mut(), &record)
            && last.channel == s.channel
            && last.segments.len() < most
            && phases.at(last.at.time_ns) == phases.at(s.at.time_ns)
        {
            last.segments.extend(s.segments.iter().cloned());
            last.gp_put = s.gp_put;
            continue;
        }
        all.push(record);
    }
    all
}

#[test]
fn doorbells_that_were_caught_up_together_run_the_same() {
    for name in ["h200-graphs", "h200-graphs-cupti"] {
        let apart = records(name).len();
        for most in [2, 3, 16] {
            let records = together(name, most);
            assert!(
                records.len() < apart * 4 / 5,
                "{} of {apart}",
                records.len()
            );
            let (seen, ledger) = run(name, records);
            assert_equal(name, &seen);
            assert_eq!(seen.unresolved, BTreeMap::new());
            assert_eq!(ledger.exit_status(), STATUS_COMPLETE);
            if name == "h200-graphs" {
                assert_replays(&seen);
            }
        }
    }
}

/// The place of a phase in its capture.
fn order(phase: &str) -> usize {
    let text = phases("h200-graphs");
    let named = |line: &str| line.split(' ').nth(1) == Some(phase);
    text.lines().position(named).expect("a phase")
}

/// The pages that were kept of the process's memory: address, length, bytes.
struct Pages(Vec<(u64, Vec<u8>)>);

impl Pages {
    fn read() -> Self {
        let path = files::capture("h200-graphs.memory.xz").expect("with xz");
        let file = std::fs::File::open(path).expect("opens");
        let mut bytes = Vec::new();
        let mut reader = lzma_rust2::XzReader::new(file, false);
        io::Read::read_to_end(&mut reader, &mut bytes).expect("whole");
        let mut parts: Vec<(u64, Vec<u8>)> = Vec::new();
        let mut rest = bytes.as_slice();
        while let Some((head, behind)) = rest.split_at_checked(12) {
            let at = u64::from_le_bytes(head[..8].try_into().expect("8 bytes"));
            let len = u32::from_le_bytes(head[8..].try_into().expect("4 bytes")) as usize;
            let (page, behind) = behind.split_at(len);
            match parts.last_mut() {
                Some(last) if last.0 + last.1.len() as u64 == at => last.1.extend_from_slice(page),
                _ => parts.push((at, page.to_vec())),
            }
            rest = behind;
        }
        Self(parts)
    }
}

impl nvcap_decode::wire::read_memory::ReadMemory for Pages {
    fn read_bytes(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
        let part = self
            .0
            .iter()
            .find(|(start, bytes)| (*start..*start + bytes.len() as u64).contains(&at));
        let (start, bytes) = part.ok_or(io::ErrorKind::NotFound)?;
        let from = (at - start) as usize;
        let bytes = bytes.get(from..from + to.len());
        to.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

fn found() -> nvcap_live::enrich::graph_qmds::QmdSearchResult {
    use nvcap_live::enrich::graph_qmds::{Part, search_in};

    let pages = Pages::read();
    let parts: Vec<Part> = pages
        .0
        .iter()
        .map(|(start, bytes)| Part {
            start: *start,
            end: start + bytes.len() as u64,
            // Pushbuffers lie at low addresses, mapped from the driver.
            heap: *start >= 1 << 40,
        })
        .collect();
    search_in(&pages, &parts, COMPUTE, At::default())
}

/// Returns the begin of the first phase, ns: all graphs have been made and replayed once by then.
fn middle() -> u64 {
    let text = phases("h200-graphs");
    let first = text.lines().next().expect("a phase");
    first
        .split(' ')
        .nth(2)
        .expect("a time")
        .parse()
        .expect("a time")
}

#[test]
fn what_is_found_in_memory_is_what_was_written() {
    let mut decoder = Decoder::new(nvcap_decode::decode::DecodeOptions::default());
    let mut written = HashSet::new();
    for record in records("h200-graphs") {
        match record {
            Record::Channel(c) => decoder.channel(&c),
            Record::Submission(s) if s.at.time_ns < middle() => {
                let context = decoder.context(&s, 0);
                decoder.submission(&s, &context, &(), &mut |event| {
                    if let Body::Operation(Operation::Inline(i)) = &event.body
                        && i.content == Some(InlineContent::Qmd)
                    {
                        written.insert(i.dst.0);
                    }
                });
            }
            _ => {}
        }
    }
    // Graphs' QMDs lie here; those of plain launches, which are written anew each time, elsewhere.
    let graphs = 0x2_04c0_0000..0x2_04d0_0000u64;
    let nodes: HashSet<u64> = written
        .iter()
        .copied()
        .filter(|a| graphs.contains(a))
        .collect();
    let found = found();
    let mut right = 0;
    for image in &found.copies {
        if !graphs.contains(&image.address.0) {
            continue;
        }
        let mut now = vec![0; image.bytes.len()];
        assert!(decoder.shadow().read(0, image.address, &mut now));
        assert_eq!(now, image.bytes, "{}", image.address);
        assert!(qmd_copy::is_node(COMPUTE, &image.bytes));
        right += 1;
    }
    assert_eq!((right, nodes.len()), (619, 619));
}

#[test]
fn from_the_middle_with_what_memory_holds_all_that_cupti_saw_ran() {
    let begins = middle();
    let later = |r: &Record| match r {
        Record::Submission(s) => s.at.time_ns >= begins,
        _ => true,
    };
    let gpu = Record::Gpu(Gpu {
        at: At::default(),
        minor: 0,
        pci_device: H200,
    });
    let images = found()
        .copies
        .into_iter()
        .map(|i| Record::QmdCopy(Box::new(i)));
    let all = [gpu].into_iter().chain(images);
    let rest = || records("h200-graphs").into_iter().filter(later);
    let (seen, ledger) = run("h200-graphs", all.chain(rest()));
    assert_equal("h200-graphs", &seen);
    assert_eq!(seen.unresolved, BTreeMap::new());
    assert!(seen.images > 1500, "{} QMDs from memory", seen.images);
    assert_eq!(ledger.exit_status(), STATUS_COMPLETE);
    assert_eq!(seen.chips, ["GH100 Pci"]);

    // Without it the same graphs are not seen, and the ledger says so.
    let (seen, ledger) = run("h200-graphs", rest());
    assert!(seen.unresolved["chain"] > 0);
    assert_eq!(ledger.exit_status(), STATUS_NOT_UNDERSTOOD);
    assert!(
        ledger
            .understood()
            .is_some_and(|u| u.unresolved > 0 && u.classless == 0)
    );
    // What the stream itself carries is decoded, by the chip that its QMDs tell.
    assert_eq!(seen.ran["plain"], truth("h200-graphs")["plain"]);
    assert_eq!(seen.chips, ["GH100 QmdVersion"]);
}
