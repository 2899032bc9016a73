//! The whole decoder: submissions of any words, on channels with classes bound, in two processes.
//!
//! Input: u8 that chooses what is bound, then pieces: u8 channel and flags, u16 length, that many bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nvcap_decode::{
    decode::{Counts, DecodeOptions, Decoder, Wants, encode::Pushbuffer, event::Body, shadow},
    record::{At, ChannelId, How, Segment, Submission},
    wire::{GpuVa, Hole, entry},
};

const PAGES: usize = 16;
const BOUND: [[u32; 8]; 6] = [
    [
        0xcb97, 0xcbc0, 0xa140, 0x902d, 0xc8b5, 0xc9b0, 0xc9d1, 0xcba2,
    ],
    [
        0xce97, 0xcec0, 0xcd40, 0x902d, 0xcab5, 0xcfb0, 0xcefa, 0xc9b7,
    ],
    [
        0x9097, 0x90c0, 0x9039, 0x902d, 0x90b5, 0x007d, 0x5080, 0xc076,
    ],
    [
        0xa097, 0xa0c0, 0xa040, 0x902d, 0xa0b5, 0xcbc0, 0xc6c0, 0xc3c0,
    ],
    [
        0xc597, 0xc5c0, 0xa140, 0x902d, 0xc9b5, 0xb8b0, 0xb8fa, 0x1234,
    ],
    [0; 8],
];

fn submission(channel: u8, position: u64, segments: Vec<Segment>) -> Submission {
    Submission {
        at: At {
            time_ns: 0,
            pid: u32::from(channel & 1),
            tid: 0,
        },
        channel: ChannelId(u32::from(channel & 3)),
        token: Some(u32::from(channel) << 16),
        position,
        gp_get: None,
        prev_put: 0,
        gp_put: 0,
        ip: None,
        doorbell: None,
        how: How::Recorded,
        late: false,
        absent_ns: None,
        thread: None,
        segments,
    }
}

fuzz_target!(|data: &[u8]| {
    let [bound, pieces @ ..] = data else {
        return;
    };
    let mut rest = pieces;
    let mut first = Pushbuffer::new();
    for (subchannel, class) in BOUND[usize::from(*bound) % BOUND.len()]
        .into_iter()
        .enumerate()
    {
        if class != 0 {
            first.bind(subchannel as u8, class);
        }
    }
    let mut submissions: Vec<_> = (0..4)
        .map(|c| submission(c, 0, vec![first.segment(GpuVa(0))]))
        .collect();
    let mut positions = [1u64; 4];
    while let [flags, low, high, more @ ..] = rest {
        let len = usize::from(u16::from_le_bytes([*low, *high])).min(more.len());
        let (bytes, after) = more.split_at(len);
        rest = after;
        let announced = if flags & 0x10 != 0 {
            len as u32 + 8
        } else {
            len as u32
        };
        let holes = if flags & 0x20 != 0 {
            vec![Hole {
                offset: len as u32 / 2,
                len: 9,
            }]
        } else {
            Vec::new()
        };
        let raw = entry::segment(GpuVa(0x1000), announced, flags & 0x40 != 0, false, false);
        let position = &mut positions[usize::from(flags & 3)];
        *position += u64::from(flags & 0x80 != 0);
        submissions.push(submission(
            *flags,
            *position,
            vec![Segment {
                entry: raw,
                bytes: bytes.to_vec(),
                holes,
            }],
        ));
        *position += 1;
    }

    let run = |wants: Wants| {
        let options = DecodeOptions {
            wants,
            shadow_bytes: PAGES * shadow::PAGE_COST,
            ..DecodeOptions::default()
        };
        let mut decoder = Decoder::new(options);
        let (mut methods, mut operations) = (0, Vec::new());
        for s in &submissions {
            let context = decoder.context(s, 0);
            let mut begun = false;
            decoder.submission(s, &context, &(), &mut |event| match event.body {
                Body::Submission(_) => assert!(!std::mem::replace(&mut begun, true)),
                Body::Method(write) => {
                    let segment = &s.segments[write.entry as usize];
                    assert!(write.offset as usize + 4 <= segment.bytes.len());
                    methods += 1;
                }
                Body::Operation(operation) => operations.push(format!("{operation:?}")),
                Body::Entry(_) | Body::Chip(_) | Body::Stop(_) => assert!(begun),
            });
            assert!(decoder.shadow_pages().0 <= PAGES);
        }
        (methods, operations, decoder.counts())
    };
    let (methods, operations, counts): (u64, _, Counts) = run(Wants::default());
    assert_eq!(methods, counts.methods);
    assert_eq!(counts.submissions, submissions.len() as u64);
    let (none, same, equal) = run(Wants {
        entries: false,
        methods: false,
        operations: true,
    });
    assert_eq!((none, same, equal), (0, operations, counts));
});
