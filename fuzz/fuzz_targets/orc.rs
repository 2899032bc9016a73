//! The oracle's captures: any bytes are taken, positions go back for no new record, and what a reader gives does not depend on how
//! the bytes come.
#![no_main]

use std::io::Read;

use libfuzzer_sys::fuzz_target;
use nvcap_decode::record::Record;
use nvcap_recording::file::{
    kind,
    orc::{Channels, Orc},
};

/// Gives a few bytes at a time.
struct Drip<'a>(&'a [u8]);

impl Read for Drip<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let n = out.len().min(self.0.len()).min(7);
        let (now, later) = self.0.split_at(n);
        out[..n].copy_from_slice(now);
        self.0 = later;
        Ok(n)
    }
}

fuzz_target!(|data: &[u8]| {
    let _ = kind::by_head(data).seems();
    let mut next = std::collections::BTreeMap::new();
    let mut given = std::collections::BTreeSet::new();
    let mut bytes = 0;
    let mut all = Vec::new();
    for record in Orc::new(data) {
        match &record {
            Ok(Record::Submission(s)) => {
                let entries = s.segments.len() as u64;
                let next = next.entry(s.channel.0).or_insert(0);
                // But for a record that is given again: it has the place that it had.
                let place = (s.channel.0, s.position, entries);
                assert!(s.position >= *next || given.contains(&place));
                given.insert(place);
                *next = (s.position + entries).max(*next);
                bytes += 48
                    + s.segments
                        .iter()
                        .map(|s| 12 + if s.holes.is_empty() { s.bytes.len() } else { 0 })
                        .sum::<usize>();
            }
            Ok(Record::Channel(_)) | Err(_) => {}
            Ok(other) => panic!("{other:?}"),
        }
        all.push(format!("{record:?}"));
    }
    assert!(bytes <= data.len());
    let dripped: Vec<_> = Orc::new(Drip(data)).map(|r| format!("{r:?}")).collect();
    assert_eq!(dripped, all);
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = Channels::parse(text);
    }
});
