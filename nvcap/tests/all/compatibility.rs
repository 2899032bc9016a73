//! Recordings of an older and of a newer nvcap. `tests/fixtures/recording-1.pcapng` was made once and stays as it is: whatever nvcap
//! becomes, it shows what is in `recording-1.json`. A newer one's is made of it, with fields and kinds that this nvcap does not know.

use std::fs;
use std::process::Command;

use crate::common::cli::{Folder, argument, nvcap, text};
use crate::common::files::fixture;

/// Head of a packet, and where its kind stands in it.
const HEAD: usize = 32;
const KIND: usize = 9;
const SUBMISSION: u8 = 6;
/// Fields that no message has: 500 is a number, 501 has bytes.
const FIELDS: &[u8] = &[0xa0, 0x1f, 0x96, 0x01, 0xaa, 0x1f, 2, b'h', b'i'];

fn word(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize
}

/// The file with each packet changed, and its checksum made anew.
fn with_packets(file: &[u8], mut change: impl FnMut(&mut Vec<u8>)) -> Vec<u8> {
    let (mut rest, mut all) = (file, Vec::new());
    while !rest.is_empty() {
        let block = &rest[..word(rest, 4)];
        rest = &rest[block.len()..];
        if word(block, 0) != 6 {
            all.extend_from_slice(block);
            continue;
        }
        let mut packet = block[28..28 + word(block, 20)].to_vec();
        assert!(packet.len() >= HEAD);
        change(&mut packet);
        let sum = crc32fast::hash(&packet[8..]);
        packet[4..8].copy_from_slice(&sum.to_le_bytes());
        let padded = packet.len().next_multiple_of(4);
        let len = (32 + padded) as u32;
        all.extend_from_slice(&block[..4]);
        all.extend_from_slice(&len.to_le_bytes());
        all.extend_from_slice(&block[8..20]);
        all.extend_from_slice(&[(packet.len() as u32).to_le_bytes(); 2].concat());
        packet.resize(padded, 0);
        all.extend_from_slice(&packet);
        all.extend_from_slice(&len.to_le_bytes());
    }
    all
}

fn old() -> Vec<u8> {
    fs::read(fixture("recording-1.pcapng")).unwrap()
}

fn decoded(file: &str) -> (Option<i32>, String) {
    let out = nvcap(&["decode", "--json", file]);
    (out.status.code(), text(&out.stdout))
}

/// `NVCAP_WRITE_FIXTURES=1` writes the JSON anew, where what is
/// shown was changed on purpose; the recording is never written anew.
#[test]
fn an_old_recording_shows_what_it_showed() {
    let (status, shown) = decoded(&argument(fixture("recording-1.pcapng")));
    let json = fixture("recording-1.json");
    if std::env::var_os("NVCAP_WRITE_FIXTURES").is_some() {
        fs::write(&json, &shown).unwrap();
    }
    let wanted = fs::read_to_string(&json).unwrap();
    assert_eq!(status, Some(0));
    assert!(wanted.lines().count() > 20);
    for (n, (shown, wanted)) in shown.lines().zip(wanted.lines()).enumerate() {
        assert_eq!(shown, wanted, "line {n}");
    }
    assert_eq!(shown.lines().count(), wanted.lines().count());
}

#[test]
fn fields_of_a_newer_nvcap_change_nothing() {
    let folder = Folder::new("newer-fields");
    let file = folder.path("newer.pcapng");
    let mut packets = 0;
    let newer = with_packets(&old(), |packet| {
        packet.extend_from_slice(FIELDS);
        packets += 1;
    });
    fs::write(&file, newer).unwrap();
    assert!(packets > 10, "{packets}");
    let same = decoded(&argument(fixture("recording-1.pcapng")));
    assert!(decoded(&file) == same);
}

/// Every second submission becomes a record of a kind that is not given out.
fn with_unknown_kind(folder: &Folder) -> (String, u64) {
    let file = folder.path("newer.pcapng");
    let (mut seen, mut changed) = (0, 0);
    let newer = with_packets(&old(), |packet| {
        if packet[KIND] == SUBMISSION {
            seen += 1;
            if seen % 2 == 0 {
                packet[KIND] = 200;
                changed += 1;
            }
        }
    });
    fs::write(&file, newer).unwrap();
    assert!(changed > 2, "{changed}");
    (file, changed)
}

#[test]
fn records_of_an_unknown_kind_are_counted() {
    let folder = Folder::new("newer-kind");
    let (file, changed) = with_unknown_kind(&folder);
    let (status, shown) = decoded(&file);
    // Something is missing, which is no error.
    assert_eq!(status, Some(3));
    let submissions = |text: &str| text.matches("\"type\":\"submission\"").count() as u64;
    let (_, all) = decoded(&argument(fixture("recording-1.pcapng")));
    assert_eq!(submissions(&shown) + changed, submissions(&all));
    let said = "is of kind 200, which this nvcap does not know; a newer one may";
    let lines = shown.lines().filter(|l| l.contains(said));
    // Told where it comes, and in the ledger.
    assert_eq!(lines.count(), 2, "{shown}");
    let more = format!("{} more records are of kind 200", changed - 1);
    assert!(shown.contains(&more), "{more}");
    let strict = nvcap(&["decode", "--strict", "-q", &file]);
    assert_eq!(strict.status.code(), Some(1));
}

#[test]
#[ignore = "needs tshark: cargo xtask test runs it where it is"]
fn the_dissector_shows_unknown_kinds_and_fields() {
    if Command::new("tshark").arg("--version").output().is_err() {
        println!(
            "NOT RUN the_dissector_shows_unknown_kinds_and_fields: there is no tshark; type: sudo apt-get install tshark"
        );
        return;
    }
    let folder = Folder::new("newer-tshark");
    let dir = folder.path("installed");
    assert!(
        nvcap(&["wireshark", "install", "--dir", &dir])
            .status
            .success()
    );
    let script = format!("lua_script:{dir}/plugins/nvcap.lua");
    let tshark = |args: &[&str]| {
        let mut tshark = Command::new("tshark");
        let out = tshark
            .args(["-X", &script])
            .args(args)
            .env("HOME", &folder.0);
        let out = out.output().unwrap();
        assert!(out.status.success(), "{}", text(&out.stderr));
        String::from_utf8_lossy(&out.stdout).into_owned()
    };
    let (file, changed) = with_unknown_kind(&folder);
    let kinds = tshark(&["-r", &file, "-Y", "nvcap.kind == \"kind 200\""]);
    assert_eq!(kinds.lines().count() as u64, changed);
    let fields = with_packets(&old(), |packet| packet.extend_from_slice(FIELDS));
    fs::write(&file, fields).unwrap();
    let shown = tshark(&["-r", &file, "-V"]);
    assert!(shown.contains("field 500, which this dissector does not know"));
    let damaged = tshark(&["-r", &file, "-Y", "nvcap.expert.damaged"]);
    assert_eq!(damaged, "");
}
