//! Records of the BPF ring buffer, and their pieces joined: any bytes are a record or none, and what is joined has no more
//! bytes than its entries point to and no more than a submission may have.
//!
//! Input: records, each with a u16 length before it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nvcap_decode::{record::MOST_BYTES, wire::entry};
use nvcap_live::trap::assemble::{Assembler, Gathered, Raw, parse};

fn check(gathered: &Gathered) {
    let mut all = 0;
    for segment in &gathered.segments {
        let len = entry::len(segment.entry);
        assert!(segment.bytes.len() <= len as usize);
        for hole in &segment.holes {
            assert!(hole.offset <= len && hole.len <= len - hole.offset);
        }
        all += segment.bytes.len();
    }
    assert!(all <= MOST_BYTES);
}

fuzz_target!(|data: &[u8]| {
    let mut assembler = Assembler::default();
    let mut out = Vec::new();
    let (mut submits, mut enters, mut calls) = (0, 0, 0);
    let mut rest = data;
    while let [low, high, more @ ..] = rest {
        let len = usize::from(u16::from_le_bytes([*low, *high])).min(more.len());
        let (record, next) = more.split_at(len);
        rest = next;
        let Some(raw) = parse(record) else { continue };
        let call = match raw {
            Raw::Submit(r) => {
                submits += 1;
                assembler.submit(&r, &mut out);
                None
            }
            Raw::Data(r, bytes) => {
                assert!(bytes.len() == r.header.len as usize && bytes.len() < record.len());
                assembler.data(&r, bytes, &mut out);
                None
            }
            Raw::Gap(r) => {
                assembler.flush(r.channel, &mut out);
                None
            }
            Raw::IoctlEnter(r, bytes) => {
                enters += 1;
                assembler.enter(&r, bytes)
            }
            Raw::IoctlExit(r, bytes) => assembler.exit(&r, bytes),
            Raw::Nested(r, bytes) => assembler.nested(&r, bytes),
            Raw::Life(r) => assembler.gone(r.header.tid),
            _ => None,
        };
        calls += u32::from(call.is_some());
    }
    for channel in assembler.unfinished() {
        assembler.flush(channel, &mut out);
    }
    assert!(assembler.unfinished().is_empty());
    assert!(out.len() <= submits && calls <= enters);
    assert!(out.iter().map(|g| g.segments.len()).sum::<usize>() <= 16 * submits);
    for gathered in &mut out {
        check(gathered);
        gathered.skip(1);
    }
});
