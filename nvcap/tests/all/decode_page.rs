//! docs/decoding.md against the capture it walks: every word, name and operation of its two tables.

use crate::common::files;
use std::{collections::BTreeMap, path::PathBuf};

use crate::decode_common::capture::decode;
use nvcap_decode::decode::{
    Wants, classes,
    event::{Body, Operation},
};
use nvcap_recording::file::orc::Orc;

/// The rows of the table behind a heading of docs/decoding.md, cell by cell.
fn table(heading: &str) -> Vec<Vec<String>> {
    let page = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/decoding.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let section = page.split(heading).nth(1).expect("the heading");
    let rows = section
        .lines()
        .skip_while(|l| !l.starts_with('|'))
        .take_while(|l| l.starts_with('|'));
    // Without the head and the line under it.
    rows.skip(2)
        .map(|l| {
            l.trim_matches('|')
                .split('|')
                .map(|c| c.trim().to_owned())
                .collect()
        })
        .collect()
}

fn hex(text: &str) -> u32 {
    let digits = text.trim_matches('`').trim_start_matches("0x");
    u32::from_str_radix(digits, 16).expect("hex")
}

#[test]
fn the_page_walks_a_copy_as_it_was() {
    let Some(path) = files::capture("h200-mixed.orc.xz") else {
        return;
    };
    let orc = Orc::open(&path).expect("readable");
    let (mut raw, mut words, mut names) = (0, Vec::new(), BTreeMap::new());
    let mut operations = Vec::new();
    decode(orc, Wants::default(), |s, e| {
        if e.context.serial != 236 {
            return;
        }
        match e.body {
            Body::Submission(_) => {
                assert_eq!(s.segments.len(), 1);
                raw = s.segments[0].entry;
                words = s.segments[0].bytes.as_chunks::<4>().0.to_vec();
            }
            Body::Method(w) => {
                let id = classes::MethodId {
                    class: w.class,
                    address: w.method,
                };
                names.insert(w.offset, (id.to_string(), w.data));
            }
            Body::Operation(o) => operations.push(match o {
                Operation::Copy(c) => format!("copy {} {}", c.bytes, c.mode.name()),
                Operation::Semaphore(s) => format!("semaphore {:?} {}", s.unit, s.payload),
                other => format!("{other:?}"),
            }),
            _ => {}
        }
    });
    assert_eq!(raw, 0x0000_3e02_0280_1ac4);
    let rows = table("## One copy, word by word");
    assert_eq!((rows.len(), words.len()), (15, 15));
    for (i, (row, word)) in rows.iter().zip(&words).enumerate() {
        let offset = 4 * i as u32;
        assert_eq!(hex(&row[0]), offset);
        assert_eq!(hex(&row[1]), u32::from_le_bytes(*word), "{row:?}");
        match names.get(&offset) {
            Some((name, data)) => {
                assert_eq!(row[2].split(':').next(), Some(name.as_str()), "{row:?}");
                assert_eq!(*data, hex(&row[1]));
            }
            None => assert!(row[2].starts_with("header"), "{row:?}"),
        }
    }
    assert_eq!(operations, ["copy 28672 linear", "semaphore Copy 93"]);
}

#[test]
fn the_page_walks_a_launch_as_it_was() {
    let Some(path) = files::capture("h200-mixed.orc.xz") else {
        return;
    };
    let orc = Orc::open(&path).expect("readable");
    let (mut written, mut operations, mut last) = (BTreeMap::new(), Vec::new(), 0);
    let mut words = 0;
    decode(orc, Wants::default(), |s, e| {
        if e.context.serial != 317 {
            return;
        }
        match e.body {
            Body::Submission(_) => words = s.segments[0].bytes.len() / 4,
            Body::Method(w) => {
                last = w.offset;
                let id = classes::MethodId {
                    class: w.class,
                    address: w.method,
                };
                written.entry(w.offset).or_insert_with(|| id.to_string());
            }
            Body::Operation(o) => operations.push((last, Operation::clone(o))),
            _ => {}
        }
    });
    assert_eq!(words, 390);
    let rows = table("## One launch, run by run");
    assert_eq!(rows.len(), operations.len(), "{operations:#?}");
    for (i, (row, (at, operation))) in rows.iter().zip(&operations).enumerate() {
        // The row's offset is that of the run's first header: the first method is a word behind it.
        let offset = hex(&row[0]);
        let end = rows.get(i + 1).map_or(u32::MAX, |next| hex(&next[0]));
        assert!((offset..end).contains(at), "{row:?} at {at:#x}");
        assert!(written.contains_key(&(offset + 4)), "{row:?}");
        let said = &row[3];
        match operation {
            Operation::Inline(op) => {
                assert_eq!(row[2].parse(), Ok(op.bytes), "{row:?}");
                assert!(row[1].contains(&format!("{:#x}", op.dst)), "{row:?} {op:?}");
                let content = op.content.map(|c| format!("{c:?}"));
                let content = match content.as_deref() {
                    Some("ConstantBank") => "`constant_bank`",
                    Some("Qmd") => "`qmd`",
                    None | Some("Semaphore") => "inline:",
                    other => panic!("{other:?}"),
                };
                assert!(said.contains(content), "{row:?} {op:?}");
            }
            Operation::Launch(op) => {
                let kind = format!("{:?}", op.kind).to_lowercase();
                assert!(said.contains(&format!("launch, `{kind}`")), "{row:?}");
                let qmd = op.qmd.expect("by address").0 >> 8;
                assert!(row[1].contains(&format!("{qmd:#010x}")), "{row:?} {qmd:#x}");
            }
            Operation::Semaphore(op) => {
                let text = format!("release at {:#x}, payload {}", op.address, op.payload);
                assert!(said.contains(&text), "{row:?} {text}");
            }
            other => panic!("{other:?}"),
        }
    }
}
