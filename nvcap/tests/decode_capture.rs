//! The decoder on a real capture: `captures/h200-mixed.orc.xz` of the shared folder (`NVCAP_SHARED`, or `../shared`
//! beside the repository), where that is present.

use std::{collections::BTreeMap, path::PathBuf};

use nvcap::{
    decode::{
        Decoder, Options, classes,
        event::{Body, InlineContent, LaunchKind, Operation},
        explain,
    },
    record::Record,
    source::file::orc::{Channels, Orc},
};

fn shared(path: &str) -> Option<PathBuf> {
    let root = std::env::var_os("NVCAP_SHARED")
        .map(PathBuf::from)
        .unwrap_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared"));
    let path = root.join(path);
    if !path.exists() {
        eprintln!("not run: {} is not there", path.display());
        return None;
    }
    Some(path)
}

/// Named time ranges: name, begin, end.
fn phases() -> Vec<(String, u64, u64)> {
    let Some(path) = shared("captures/h200-mixed.phases") else {
        return Vec::new();
    };
    let text = std::fs::read_to_string(path).expect("readable");
    text.lines()
        .map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            (
                words[1].to_owned(),
                words[2].parse().expect("ns"),
                words[3].parse().expect("ns"),
            )
        })
        .collect()
}

#[test]
fn dump() {
    let Some(path) = shared("captures/h200-mixed.orc.xz") else {
        return;
    };
    if std::env::var_os("NVCAP_DUMP").is_none() {
        return;
    }
    let phases = phases();
    let mut decoder = Decoder::new(Options::default());
    let mut serial = 0;
    for record in Orc::open(&path).expect("opens") {
        match record.expect("whole") {
            Record::Channel(c) => decoder.channel(&c),
            Record::Submission(s) => {
                let context = decoder.context(&s, serial);
                let phase = phases
                    .iter()
                    .find(|p| (p.1..=p.2).contains(&s.at.time_ns))
                    .map_or("-", |p| p.0.as_str());
                println!(
                    "SUB {serial} {phase} token {:x} bytes {}",
                    s.token.unwrap_or(0),
                    s.segments.iter().map(|s| s.bytes.len()).sum::<usize>()
                );
                serial += 1;
                decoder.submission(&s, &context, &(), &mut |e| match e.body {
                    Body::Operation(o) => {
                        println!("  {}", serde_json::to_string(o).expect("serializes"))
                    }
                    Body::Stop(s) => println!("  STOP {s:?}"),
                    _ => {}
                });
            }
            _ => unreachable!(),
        }
    }
    println!("{:?} {:?}", decoder.counts(), decoder.shadow_pages());
    let _ = (
        Channels::default(),
        BTreeMap::<u8, u8>::new(),
        LaunchKind::User,
        InlineContent::Code,
        explain::method(0, 0, 0),
        classes::class(0),
    );
    let _ = |o: Operation| o;
}
