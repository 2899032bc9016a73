//! Recordings: any bytes have some records or none, reading ends, and what is read is written again as it was.
//!
//! Input: a byte that says whether the rest is a whole file (0), or the body of a packet of that kind less 1, with a sum that is right.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nvcap_decode::record::Record;
use nvcap_recording::recording::recording_with;
use nvcap_recording::recording::{Item, Reader, TraceInfo, Writer};

fn records(bytes: &[u8]) -> Vec<Record> {
    let items = Reader::new(bytes).filter_map(|item| match item {
        Ok(Item::Record(record)) => Some(record),
        _ => None,
    });
    items.collect()
}

fuzz_target!(|data: &[u8]| {
    let Some((kind, rest)) = data.split_first() else {
        return;
    };
    let read = match kind.checked_sub(1) {
        None => records(rest),
        Some(kind) => records(&recording_with(kind, rest)),
    };
    let mut again = Vec::new();
    let mut writer = Writer::new(TraceInfo::default(), 1);
    writer.begin_section(&mut again);
    for record in &read {
        writer.record(record, &mut again);
    }
    assert_eq!(records(&again), read);
});
