//! The stream of PC samples of a real GPU, `tests/captures/h200-pc-samples.bin`. The numbers are those of a decoder of its own, in Python.

use std::collections::BTreeMap;

use crate::common::files;
use nvcap_decode::samples::{Counts, Stream, reason};

#[test]
fn every_byte_of_a_recorded_stream_is_understood() {
    let Some(path) = files::capture("h200-pc-samples.bin") else {
        return;
    };
    let bytes = std::fs::read(path).expect("the capture");
    let (mut stream, mut counts) = (Stream::default(), Counts::default());
    let mut sms: BTreeMap<u16, u64> = BTreeMap::new();
    // In parts, as it comes.
    for part in bytes.chunks(320) {
        stream.take(part, |sample| {
            counts.take(&sample);
            *sms.entry(sample.sm).or_default() += 1;
        });
    }
    let totals = stream.totals();
    assert_eq!(
        (totals.bytes(), totals.records, totals.strange()),
        (6240, 195, 0)
    );
    assert_eq!(
        (totals.samples, totals.padding, totals.pending),
        (540, 124, 0)
    );
    // The capture begins within groups.
    assert_eq!((totals.cut_bytes, totals.short_groups), (476, 0));
    assert_eq!(sms, BTreeMap::from([(25, 173), (37, 184), (43, 183)]));
    assert_eq!((counts.samples(), counts.counters().len()), (540, 242));
    let counters = counts.counters();
    let hottest = counters.iter().max_by_key(|(_, c)| c.samples);
    assert_eq!(
        hottest.map(|(pc, c)| (*pc, c.samples)),
        Some((0x7f2f_0f7b_27d0, 42))
    );
    let all = counters.values();
    let not_issued: u64 = all.clone().map(|c| c.not_issued).sum();
    assert_eq!(not_issued, 399);
    let of = |number: usize| -> u32 { all.clone().map(|c| c.reasons[number]).sum() };
    assert_eq!(
        [1, 2, 3, 8, 10, 19, 20].map(of),
        [6, 16, 71, 74, 213, 42, 8]
    );
    assert_eq!((reason(10), reason(3)), (Some("long_scoreboard"), None));
}
