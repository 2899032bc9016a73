//! `decode::pushbuffer`: bytes alone, without a capture around them.

use crate::common::files;
use crate::decode_common::capture;
use nvcap_decode::{
    decode::{
        Decoded, Wants,
        encode::Pushbuffer,
        event::{Body, MethodWrite, Operation, Stop},
        pushbuffer,
    },
    wire::{GpuVa, entry::MAX_LEN, header::Step, stream::StopReason},
};
use nvcap_recording::file::orc::Orc;

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

fn writes(found: &[Decoded]) -> Vec<MethodWrite> {
    let mut writes = Vec::new();
    for one in found {
        if let Decoded::Method(write) = one {
            writes.push(*write);
        }
    }
    writes
}

fn names(found: &[Decoded]) -> Vec<String> {
    let writes = writes(found);
    writes.iter().map(|w| w.id().to_string()).collect()
}

/// LAUNCH_DMA of clc8b5.h, as immediate data on subchannel 4.
const LAUNCH_DMA: u32 = 0x8182_80c0;

/// Each submission of a real process with the channel's class alone: the same as in the capture, but for what only earlier
/// submissions or the channel's record can tell.
#[test]
fn the_segments_of_a_capture() {
    let path = files::fixture("h200-cut.orc");
    let orc = Orc::open(&path).expect("opens");
    let mut expected: Vec<MethodWrite> = Vec::new();
    let mut segments: Vec<(Vec<u8>, usize)> = Vec::new();
    capture::decode(orc, Wants::default(), |_, event| match &event.body {
        Body::Entry(entry) => segments.push((entry.bytes.to_vec(), expected.len())),
        Body::Method(write) => expected.push(*write),
        _ => {}
    });
    assert!(segments.len() > 10, "{}", segments.len());
    let ends = segments.iter().map(|s| s.1).skip(1);
    let ends: Vec<usize> = ends.chain([expected.len()]).collect();
    let mut compared = 0;
    for ((bytes, begin), end) in segments.iter().zip(ends) {
        let found = pushbuffer(bytes, 0xc86f);
        let of = |w: &MethodWrite| (w.offset, w.subchannel, w.class, w.method, w.data);
        let alone: Vec<_> = writes(&found).iter().map(of).collect();
        let within: Vec<_> = expected[*begin..end].iter().map(of).collect();
        assert_eq!(alone, within);
        compared += alone.len();
    }
    assert!(compared > 100, "{compared}");
}

#[test]
fn the_class_says_how_methods_are_read() {
    let launch = bytes(&[LAUNCH_DMA]);
    // A copy class; a channel class, on whose chips subchannel 4 is the copy engine's by habit; and a use that shows it.
    assert_eq!(names(&pushbuffer(&launch, 0xc8b5)), ["LAUNCH_DMA"]);
    assert_eq!(names(&pushbuffer(&launch, 0xc86f)), ["LAUNCH_DMA"]);
    assert_eq!(names(&pushbuffer(&launch, 0)), ["LAUNCH_DMA"]);
    // Subchannel 5 is nobody's by habit.
    let elsewhere = bytes(&[LAUNCH_DMA & !(7 << 13) | 5 << 13]);
    assert_eq!(names(&pushbuffer(&elsewhere, 0xc8b5)), ["LAUNCH_DMA"]);
    for class in [0xc86f, 0] {
        assert_eq!(names(&pushbuffer(&elsewhere, class)), ["0x0300"]);
    }
    // Subchannel 4 of a compute class: 0300 is another method's.
    let compute = names(&pushbuffer(&launch, 0xcbc0));
    assert_ne!(compute, ["LAUNCH_DMA"]);
    // What the bytes bind is believed before.
    let bound = bytes(&[0x2001_8000, 0xc8b5, LAUNCH_DMA]);
    for class in [0, 0xcbc0, 0xc86f, 0x1234] {
        assert_eq!(
            names(&pushbuffer(&bound, class)).last().map(String::as_str),
            Some("LAUNCH_DMA"),
            "{class:#x}"
        );
    }
}

#[test]
fn an_unknown_class_is_given_raw() {
    let found = pushbuffer(&bytes(&[LAUNCH_DMA, 0x2002_8100, 7, 8]), 0x1234);
    let of = |w: &MethodWrite| (w.class, w.method, w.data);
    let raw: Vec<_> = writes(&found).iter().map(of).collect();
    assert_eq!(
        raw,
        [
            (0x1234, 0x300, 0x182),
            (0x1234, 0x400, 7),
            (0x1234, 0x404, 8)
        ]
    );
    assert_eq!(found.len(), 3, "no operation is made of them: {found:?}");
}

#[test]
fn an_operation_follows_its_method() {
    let mut p = Pushbuffer::new();
    p.copy(4, 0xc8b5, GpuVa(0x7f00_0000), GpuVa(0x7f10_0000), 64)
        .expect("a copy class");
    let found = pushbuffer(&p.bytes(), 0xc8b5);
    let [
        before @ ..,
        Decoded::Method(last),
        Decoded::Operation(Operation::Copy(copy)),
    ] = &found[..]
    else {
        panic!("{found:#?}");
    };
    assert!(before.iter().all(|d| matches!(d, Decoded::Method(_))));
    assert_eq!(last.id().to_string(), "LAUNCH_DMA");
    assert_eq!((copy.src, copy.bytes), (Some(GpuVa(0x7f00_0000)), 64));
}

#[test]
fn where_the_bytes_are_no_methods() {
    assert_eq!(pushbuffer(&[], 0xc8b5), []);
    let stop = |offset, why| {
        Decoded::Stop(Stop {
            entry: 0,
            offset,
            why,
        })
    };
    let mut cut = bytes(&[LAUNCH_DMA]);
    cut.push(0x20);
    let found = pushbuffer(&cut, 0x1234);
    assert_eq!(found[1..], [stop(4, StopReason::Cut { needs: 3 })]);
    let found = pushbuffer(&bytes(&[LAUNCH_DMA, 0xc000_0000, LAUNCH_DMA]), 0x1234);
    assert_eq!(
        found[1..],
        [stop(4, StopReason::IllegalHeader(0xc000_0000))]
    );
    // The rest of the data may stand in another entry.
    let found = pushbuffer(&bytes(&[0x2004_8100, 1, 2]), 0xc8b5);
    assert_eq!(names(&found), ["OFFSET_IN_UPPER", "OFFSET_IN_LOWER"]);
}

#[test]
fn more_bytes_than_an_entry_can_point_to() {
    let mut p = Pushbuffer::new();
    // A method whose data goes on in the second entry, and one after it.
    while p.words().len() < MAX_LEN as usize / 4 - 2 {
        p.raw(0);
    }
    p.method(Step::Same, 4, 0x300, &[1, 2, 3]);
    p.method(Step::Immediate, 4, 0x304, &[4]);
    let found = writes(&pushbuffer(&p.bytes(), 0x1234));
    let of = |w: &MethodWrite| (w.entry, w.offset, w.data);
    let found: Vec<_> = found.iter().map(of).collect();
    assert_eq!(
        found,
        [(0, MAX_LEN - 4, 1), (1, 0, 2), (1, 4, 3), (1, 8, 4)]
    );
}

/// Any bytes, as any class: the number of writes is never more than that of words.
#[test]
fn any_bytes() {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let classes = [
        0, 0x1234, 0x902d, 0xa140, 0xc86f, 0x906f, 0xc8b5, 0xcbc0, 0xcb97, 0xc9b0,
    ];
    for round in 0..2000 {
        let len = (random() % 200) as usize;
        let mut bytes: Vec<u8> = (0..len).map(|_| random() as u8).collect();
        // Half of them begin with a header.
        if let (true, Some(first)) = (round % 2 == 0, bytes.first_chunk_mut()) {
            *first = (0x2001_0000 | random() as u32 & 0x0007_ffff).to_le_bytes();
        }
        let class = classes[round % classes.len()];
        let found = pushbuffer(&bytes, class);
        assert!(writes(&found).len() <= len / 4);
    }
}
