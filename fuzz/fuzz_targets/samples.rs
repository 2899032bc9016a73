//! The GPU's stream of PC samples, and the text of a register programme: any bytes; every byte of the stream is counted.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nvcap_decode::samples::{Counts, Programme, Sample, Stream};

fuzz_target!(|data: &[u8]| {
    let (mut stream, mut counts) = (Stream::default(), Counts::default());
    // In two parts, as it may come.
    let (one, other) = data.split_at(data.len() / 64 * 32);
    for part in [one, other] {
        stream.take(part, |sample| {
            let again = Sample::read(sample.sm, &sample.bytes());
            assert_eq!(again, Some(sample));
            counts.take(&sample);
        });
    }
    let totals = stream.totals();
    assert_eq!(totals.bytes(), data.len() as u64);
    assert_eq!(counts.samples(), totals.samples);
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(programme) = Programme::read(text)
    {
        assert_eq!(Programme::read(&programme.text()), Ok(programme));
    }
});
