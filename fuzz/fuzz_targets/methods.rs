//! Pushbuffer words: the walk ends, takes no byte twice and none that is missing, and where the words are cut into
//! segments changes nothing.
//!
//! Input: u8 place of a cut, u8 offset and u8 length of a hole (in words), then the words.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nvcap_decode::wire::{
    Hole,
    header::Header,
    stream::{Item, Stream, Write},
};

/// The writes of these segments, with offsets from the start of the first.
fn walk(segments: &[&[u8]], holes: &[Hole]) -> (Vec<(u8, Write)>, bool, bool) {
    let mut stream = Stream::default();
    let mut writes = Vec::new();
    let (mut stopped, mut ended) = (false, false);
    let mut start = 0;
    for bytes in segments {
        let mut last = 0;
        for item in stream.runs(bytes, bytes.len() as u32, holes) {
            match item {
                Item::Run(run) => {
                    assert!(run.offset >= last && !run.is_empty());
                    last = run.offset + run.data.len() as u32;
                    assert!(last as usize <= bytes.len());
                    for hole in holes.iter().filter(|h| h.len > 0) {
                        assert!(last <= hole.offset || run.offset >= hole.offset + hole.len);
                    }
                    writes.extend(run.writes().map(|w| {
                        (
                            run.subchannel,
                            Write {
                                offset: w.offset + start,
                                ..w
                            },
                        )
                    }));
                }
                Item::Skipped { words, .. } => assert!(words > 0),
                Item::Stop(..) => stopped = true,
                Item::Control(_, header) => ended |= header == Header::EndSegment,
            }
        }
        start += bytes.len() as u32;
    }
    (writes, stopped, ended)
}

fuzz_target!(|data: &[u8]| {
    let [cut, hole_at, hole_len, words @ ..] = data else {
        return;
    };
    let whole = words.len() & !3;
    let (words, rest) = words.split_at(whole);
    let cut = usize::from(*cut) * 4 % (whole + 4);
    let (first, second) = words.split_at(cut.min(whole));
    let (together, stopped, ended) = walk(&[words], &[]);
    // A stop or an END_PB_SEGMENT ends its segment only, so cutting there does make a difference.
    if !stopped && !ended {
        let (apart, ..) = walk(&[first, second], &[]);
        assert_eq!(together, apart);
    }
    let hole = Hole {
        offset: u32::from(*hole_at) * 4,
        len: u32::from(*hole_len),
    };
    let (kept, ..) = walk(&[words], &[hole]);
    assert!(kept.len() <= together.len());
    // Odd ends, and lengths that are not there.
    walk(&[words, rest], &[]);
    let mut stream = Stream::of_subdevice(*hole_len);
    let announced = u32::from(*hole_at) << 4;
    assert!(stream.runs(words, announced, &[]).count() <= 2 * words.len() + 2);
});
