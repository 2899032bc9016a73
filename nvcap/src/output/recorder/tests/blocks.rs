//! What the recorder writes for other programs beside the packets: statistics of interfaces, the ledger, lines of the kernel's log. nvcap's
//! reader passes over them, so the file's blocks are taken apart here, and shown by Wireshark's programs where those are there.

use std::path::Path;
use std::process::Command;

use super::*;
use crate::record::{Loss, Lost};

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

/// A recording of two channels, one with five entries that are missing, and two lines of the kernel's log.
fn made(path: &Path) {
    let info = TraceInfo {
        monotonic_ns: 1_000,
        realtime_ns: 1_700_000_000_000_001_000,
        ..TraceInfo::default()
    };
    let mut lines = vec![(7_000, XID.to_owned()), (9_000, "NVRM: a\nb".to_owned())];
    let files = Files::one(Output::file(path).unwrap(), false);
    let recorder = Recorder::new(files, info, 1).unwrap();
    let recorder = recorder.with_log(Box::new(move || std::mem::take(&mut lines)));
    let mut all = vec![on(0, channel()), on(1, channel())];
    all.extend((0..3).map(|n| on(0, bytes(n, 40))));
    all.push(lost(0, 3, 5));
    all.extend((0..4).map(|n| on(1, bytes(n, 40))));
    record(recorder, all);
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

#[test]
fn statistics_ledger_and_log_are_in_the_file() {
    let folder = Folder::new("blocks");
    let path = folder.0.join("run.pcapng");
    made(&path);
    let file = std::fs::read(&path).unwrap();
    let blocks = blocks(&file);
    let of = |kind: u32| -> Vec<&[u8]> {
        let of_kind = blocks.iter().filter(|(k, _)| *k == kind);
        of_kind.map(|(_, body)| *body).collect()
    };
    let names: Vec<String> = { of(INTERFACE).into_iter() }
        .map(|body| String::from_utf8_lossy(option(&options(&body[8..]), 2)).into_owned())
        .collect();
    assert_eq!(names, ["driver", "channel 0", "channel 1"]);
    // Interface, ring entries received, ring entries dropped; from the trace's beginning on.
    let told: Vec<(u32, u64, u64)> = { of(STATISTICS).into_iter() }
        .map(|body| {
            let options = options(&body[12..]);
            assert_eq!(time(&options, 2), 1_700_000_000_000_001_000);
            assert!(time(&options, 3) >= 1_700_000_000_000_000_000);
            (word(body, 0), number(&options, 4), number(&options, 5))
        })
        .collect();
    assert_eq!(told, [(1, 3, 5), (2, 4, 0)]);
    let [ledger] = of(CUSTOM)[..] else {
        panic!("{} custom blocks", of(CUSTOM).len());
    };
    assert_eq!(word(ledger, 0), 32473);
    let text = std::str::from_utf8(&ledger[4..]).unwrap();
    let text = text.trim_end_matches(['\0', '\n']);
    let ledger: serde_json::Value = serde_json::from_str(text).unwrap();
    assert_eq!(ledger["type"], "ledger", "{ledger}");
    assert_eq!(
        (&ledger["submissions"], &ledger["gaps"]),
        (&7.into(), &5.into())
    );
    let lines: Vec<&str> = { of(JOURNAL).into_iter() }
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

#[test]
fn wireshark_reads_statistics_ledger_and_log() {
    if Command::new("tshark").arg("--version").output().is_err() {
        println!(
            "NOT RUN wireshark_reads_statistics_ledger_and_log: there is no tshark; type: sudo apt-get install tshark"
        );
        return;
    }
    let folder = Folder::new("blocks-tshark");
    let path = folder.0.join("run.pcapng");
    made(&path);
    let shown = |args: &[&str]| {
        let mut tshark = Command::new("tshark");
        let out = tshark
            .arg("-r")
            .arg(&path)
            .args(args)
            .env("HOME", &folder.0);
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
    assert_eq!(field("systemd_journal.message").lines().next(), Some(XID));
    // The file's blocks themselves.
    let option = |name: &str| {
        let name = format!("pcapng.options.option.data.interface.{name}");
        let file = "read_format:MIME Files Format";
        shown(&["-X", file, "-T", "fields", "-e", &name])
    };
    assert_eq!(option("received").trim(), "3,4");
    assert_eq!(option("dropped").trim(), "5,0");
}
