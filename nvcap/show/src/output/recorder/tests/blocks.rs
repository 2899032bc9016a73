//! Blocks that the recorder writes for other programs beside the packets: statistics of interfaces, the ledger, lines of the kernel's log. nvcap's
//! reader passes over them, so the file's blocks are taken apart here, and shown by Wireshark's programs where those are there.

use std::path::Path;
use std::process::Command;

use super::*;
use nvcap_decode::record::{Loss, Lost};

const XID: &str = "NVRM: Xid (PCI:0000:c1:00): 31, pid=4711, name=train, Ch 00000008, MMU Fault";
/// Types of blocks.
const INTERFACE: u32 = 1;
const STATISTICS: u32 = 5;
const JOURNAL: u32 = 9;
const CUSTOM: u32 = 0xbad;

fn on(channel: u32, record: Record) -> Record {
    match record {
        Record::Channel(mut c) => {
            c.id = ChannelId(channel);
            Record::Channel(c)
        }
        Record::Submission(mut s) => {
            s.channel = ChannelId(channel);
            Record::Submission(s)
        }
        other => other,
    }
}

fn lost(channel: u32, position: u64, count: u64) -> Record {
    Record::Loss(Loss {
        at: at(9),
        channel: Some(ChannelId(channel)),
        what: Lost::Entries { position, count },
    })
}

fn info() -> TraceInfo {
    TraceInfo {
        monotonic_ns: 1_000,
        realtime_ns: 1_700_000_000_000_001_000,
        ..TraceInfo::default()
    }
}

/// Seven submissions on two channels, one with five entries that are missing.
fn seven() -> Vec<Record> {
    let mut all = vec![on(0, channel()), on(1, channel())];
    all.extend((0..3).map(|n| on(0, bytes(n, 40))));
    all.push(lost(0, 3, 5));
    all.extend((0..4).map(|n| on(1, bytes(n, 40))));
    all
}

/// A recording of them, and two lines of the kernel's log.
fn made(path: &Path) {
    let mut lines = vec![(7_000, XID.to_owned()), (9_000, "NVRM: a\nb".to_owned())];
    let files = Files::one(Output::file(path).unwrap(), false);
    let recorder = Recorder::new(files, info(), 1).unwrap();
    let recorder = recorder.with_log(Box::new(move || std::mem::take(&mut lines)));
    record(recorder, seven());
}

/// A recording in several files: the first is sealed behind those seven submissions, the next is over when it has 20 kB.
fn made_in_files(folder: &Path, seal: &'static AtomicBool) {
    let rotation = Rotation {
        bytes: Some(20_000),
        time: None,
        keep: None,
    };
    let files = Files::numbered(&folder.join("run.pcapng"), rotation, false).unwrap();
    let recorder = Recorder::new(files, info(), 1).unwrap().sealing(seal);
    let sinks: Vec<Box<dyn Sink>> = vec![Box::new(recorder)];
    let mut pipeline = Pipeline::new(PipelineOptions::default(), sinks);
    for record in seven() {
        pipeline.record(record).unwrap();
    }
    seal.store(true, Ordering::Relaxed);
    pipeline.flush().unwrap();
    pipeline.record(lost(1, 4, 2)).unwrap();
    for n in 6..36 {
        pipeline.record(on(1, bytes(n, 1_000))).unwrap();
    }
    pipeline.finish().unwrap();
}

/// The trap may fail when it begins to be set up: the recording says then what the trace did.
#[test]
fn a_trace_that_falls_back_is_said_to_observe() {
    let folder = Folder::new("falls-back");
    for falls_back in [false, true] {
        let path = folder.0.join(format!("{falls_back}.pcapng"));
        let files = Files::one(Output::file(&path).unwrap(), false);
        let trapped = TraceInfo {
            how: "trap".to_owned(),
            ..info()
        };
        let observes = Arc::new(AtomicBool::new(false));
        let recorder = Recorder::new(files, trapped, 1).unwrap();
        let recorder = recorder.observing(observes.clone());
        observes.store(falls_back, Ordering::Relaxed);
        record(recorder, seven());
        let file = std::fs::read(&path).unwrap();
        let mut reader = Reader::new(&file[..]);
        let how = ["trap", "observe"][usize::from(falls_back)];
        assert_eq!(reader.trace().unwrap().how, how);
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

/// Type and body of each block. Every byte of the file must be in one.
fn blocks(mut file: &[u8]) -> Vec<(u32, &[u8])> {
    let mut all = Vec::new();
    while !file.is_empty() {
        let len = word(file, 4) as usize;
        assert_eq!(word(file, len - 4) as usize, len);
        all.push((word(file, 0), &file[8..len - 4]));
        file = &file[len..];
    }
    all
}

/// Options by code.
fn options(mut bytes: &[u8]) -> Vec<(u16, &[u8])> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let (code, len) = (word(bytes, 0) as u16, (word(bytes, 0) >> 16) as usize);
        if code == 0 {
            break;
        }
        all.push((code, &bytes[4..4 + len]));
        bytes = &bytes[4 + len.next_multiple_of(4)..];
    }
    all
}

fn option<'a>(all: &[(u16, &'a [u8])], code: u16) -> &'a [u8] {
    let found = all.iter().find(|(c, _)| *c == code);
    found
        .unwrap_or_else(|| panic!("no option {code}: {all:?}"))
        .1
}

fn number(all: &[(u16, &[u8])], code: u16) -> u64 {
    u64::from_le_bytes(option(all, code).try_into().unwrap())
}

/// A time is written as its upper half and its lower half.
fn time(all: &[(u16, &[u8])], code: u16) -> u64 {
    number(all, code).rotate_left(32)
}

/// The bodies of the blocks of one type.
fn of<'a>(blocks: &[(u32, &'a [u8])], kind: u32) -> Vec<&'a [u8]> {
    let of_kind = blocks.iter().filter(|(k, _)| *k == kind);
    of_kind.map(|(_, body)| *body).collect()
}

/// Returns the statistics: interface, ring entries received, ring entries dropped; from the trace's beginning on.
fn statistics(blocks: &[(u32, &[u8])]) -> Vec<(u32, u64, u64)> {
    let each = of(blocks, STATISTICS).into_iter().map(|body| {
        let options = options(&body[12..]);
        assert_eq!(time(&options, 2), 1_700_000_000_000_001_000);
        assert!(time(&options, 3) >= 1_700_000_000_000_000_000);
        (word(body, 0), number(&options, 4), number(&options, 5))
    });
    each.collect()
}

/// The one ledger of a file.
fn ledger(blocks: &[(u32, &[u8])]) -> serde_json::Value {
    let [ledger] = of(blocks, CUSTOM)[..] else {
        panic!("{} custom blocks", of(blocks, CUSTOM).len());
    };
    assert_eq!(word(ledger, 0), 32473);
    let text = std::str::from_utf8(&ledger[4..]).unwrap();
    let ledger: serde_json::Value =
        serde_json::from_str(text.trim_end_matches(['\0', '\n'])).unwrap();
    assert_eq!(ledger["type"], "ledger", "{ledger}");
    ledger
}

#[test]
fn statistics_ledger_and_log_are_in_the_file() {
    let folder = Folder::new("blocks");
    let path = folder.0.join("run.pcapng");
    made(&path);
    let file = std::fs::read(&path).unwrap();
    let blocks = blocks(&file);
    let names: Vec<String> = { of(&blocks, INTERFACE).into_iter() }
        .map(|body| String::from_utf8_lossy(option(&options(&body[8..]), 2)).into_owned())
        .collect();
    assert_eq!(names, ["driver", "channel 0", "channel 1"]);
    assert_eq!(statistics(&blocks), [(1, 3, 5), (2, 4, 0)]);
    let ledger = ledger(&blocks);
    assert_eq!(
        (&ledger["submissions"], &ledger["gaps"]),
        (&7.into(), &5.into())
    );
    let lines: Vec<&str> = { of(&blocks, JOURNAL).into_iter() }
        .map(|body| std::str::from_utf8(body).unwrap().trim_end_matches('\0'))
        .collect();
    let first = format!(
        "__REALTIME_TIMESTAMP=1700000000000007\n__MONOTONIC_TIMESTAMP=7\n_TRANSPORT=kernel\nMESSAGE={XID}\n"
    );
    assert_eq!((lines.len(), lines[0]), (2, first.as_str()));
    assert!(lines[1].ends_with("MESSAGE\n\u{9}\0\0\0\0\0\0\0NVRM: a\nb\n"));
    // The records are read past them.
    let (records, errors) = read(&file[..]);
    assert_eq!((records.len(), errors), (10, Vec::new()));
}

/// Each file of several has the counts of the trace up to its end, and says so where it is not the last.
#[test]
fn each_of_several_files_has_statistics_and_ledger() {
    static SEAL: AtomicBool = AtomicBool::new(false);
    let folder = Folder::new("blocks-files");
    made_in_files(&folder.0, &SEAL);
    let names = folder.names();
    assert_eq!(
        names,
        [
            "run.00001.sealed.pcapng",
            "run.00002.pcapng",
            "run.00003.pcapng"
        ]
    );
    // By channel, of the files up to this one: submissions, each of one entry, and entries that are missing.
    let (mut there, mut missing) = ([0, 0], [0, 0]);
    for name in &names {
        let file = std::fs::read(folder.0.join(name)).unwrap();
        let (records, errors) = read(&file[..]);
        assert_eq!(errors, Vec::<String>::new());
        for record in records {
            match record {
                Record::Submission(s) => there[s.channel.0 as usize] += 1,
                Record::Loss(Loss {
                    channel: Some(id),
                    what: Lost::Entries { count, .. },
                    ..
                }) => missing[id.0 as usize] += count,
                _ => {}
            }
        }
        let blocks = blocks(&file);
        let told = [(1, there[0], missing[0]), (2, there[1], missing[1])];
        assert_eq!(statistics(&blocks), told, "{name}");
        let ledger = ledger(&blocks);
        let counts = ["submissions", "entries", "gaps"].map(|m| ledger[m].as_u64());
        let sum = there[0] + there[1];
        let wanted = [sum, sum, missing[0] + missing[1]].map(Some);
        assert_eq!(counts, wanted, "{name}");
        let so_far = (name != names.last().unwrap()).then_some(true);
        assert_eq!(ledger["so_far"].as_bool(), so_far, "{name}");
    }
    assert_eq!((there, missing), ([3, 34], [5, 2]));
}

#[test]
#[ignore = "needs tshark: cargo xtask test runs it where it is"]
fn wireshark_reads_statistics_ledger_and_log() {
    if Command::new("tshark").arg("--version").output().is_err() {
        println!(
            "NOT RUN wireshark_reads_statistics_ledger_and_log: there is no tshark; type: sudo apt-get install tshark"
        );
        return;
    }
    static SEAL: AtomicBool = AtomicBool::new(false);
    let folder = Folder::new("blocks-tshark");
    let path = folder.0.join("one.pcapng");
    made(&path);
    shown_by_tshark(&folder, &path, Some(XID));
    made_in_files(&folder.0, &SEAL);
    shown_by_tshark(&folder, &folder.0.join("run.00001.sealed.pcapng"), None);
}

/// Shows the recording of the seven submissions.
fn shown_by_tshark(folder: &Folder, path: &Path, log: Option<&str>) {
    let shown = |args: &[&str]| {
        let mut tshark = Command::new("tshark");
        let out = tshark.arg("-r").arg(path).args(args).env("HOME", &folder.0);
        let out = out.output().unwrap();
        assert!(
            out.status.success(),
            "{}",
            String::from_utf8_lossy(&out.stderr)
        );
        String::from_utf8(out.stdout).unwrap()
    };
    let field = |name: &str| shown(&["-Y", name, "-T", "fields", "-e", name]);
    assert_eq!(field("frame.cb_pen").trim(), "32473");
    assert_eq!(field("systemd_journal.message").lines().next(), log);
    // The file's blocks themselves.
    let option = |name: &str| {
        let name = format!("pcapng.options.option.data.interface.{name}");
        let file = "read_format:MIME Files Format";
        shown(&["-X", file, "-T", "fields", "-e", &name])
    };
    assert_eq!(option("received").trim(), "3,4");
    assert_eq!(option("dropped").trim(), "5,0");
}
