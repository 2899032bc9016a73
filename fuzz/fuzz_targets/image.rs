//! QMDs in memory that is no GPU's: uploads and images are found within the bytes, as they lie there, and the decoder takes
//! what is found for memory that was written before.
//!
//! Input: u8 that chooses a class, then the bytes.
#![no_main]

use std::collections::HashSet;

use libfuzzer_sys::fuzz_target;
use nvcap_decode::{
    decode::{
        DecodeOptions, Decoder,
        encode::Pushbuffer,
        event::{Body, Operation, QmdFrom},
        qmd_copy, shadow,
        view::View,
    },
    gpu_time::made_up::submission,
    record::{At, ChannelId, How, Submission},
    wire::GpuVa,
};

const CLASSES: [u32; 8] = [0xcbc0, 0xcdc0, 0xcec0, 0xc6c0, 0xc9c0, 0xc3c0, 0xa0c0, 0];
/// Most words of an upload that is looked at, as `enrich::graph_qmds` has it.
const MOST_WORDS: u16 = 1024;
const PAGES: usize = 64;
/// Address of images that have none of their own.
const SOMEWHERE: u64 = 0x2_0400_0000;

fuzz_target!(|data: &[u8]| {
    let [class, bytes @ ..] = data else { return };
    let class = CLASSES[usize::from(*class) % CLASSES.len()];
    let size = qmd_copy::size(class);
    let mut decoder = Decoder::new(DecodeOptions {
        shadow_bytes: PAGES * shadow::PAGE_COST,
        ..DecodeOptions::default()
    });
    let mut p = Pushbuffer::new();
    p.bind(1, class);

    // Those that lie at an address of their own: the first is believed.
    let mut taken = HashSet::new();
    let mut take = |decoder: &mut Decoder, address: u64, bytes: &[u8]| {
        if decoder.shadow().known(1, GpuVa(address), 1) == 0 && bytes.len() >= 256 {
            taken.insert(address);
        }
        decoder.qmd_copy(1, GpuVa(address), bytes);
    };

    let mut last = None;
    for upload in qmd_copy::uploads(bytes, MOST_WORDS) {
        assert!(last < Some(upload.offset));
        last = Some(upload.offset);
        assert!(!upload.data.is_empty() && upload.data.len() % 4 == 0);
        assert!(upload.data.len() <= usize::from(MOST_WORDS) * 4);
        let there = bytes.get(upload.offset..upload.offset + upload.data.len());
        assert_eq!(there, Some(upload.data));
        assert!(upload.address.0 < 1 << 57);
        take(&mut decoder, upload.address.0, upload.data);
        if upload.data.len() == size && upload.address.0 % 256 == 0 {
            let _ = p.pcas(1, class, upload.address);
        }
    }
    // With fewer words asked for it finds a part of that.
    let short = qmd_copy::uploads(bytes, 64).count();
    assert_eq!(
        short,
        qmd_copy::uploads(bytes, MOST_WORDS)
            .filter(|u| u.data.len() <= 256)
            .count()
    );

    let mut last = None;
    for (i, at) in qmd_copy::nodes(class, bytes).enumerate() {
        assert!(last < Some(at) && at % 4 == 0);
        last = Some(at);
        let qmd = bytes.get(at..at + size).expect("all of it is there");
        assert!(qmd_copy::is_node(class, qmd));
        let view = View::of(class, qmd).expect("a QMD");
        assert!(!view.null);
        let address = SOMEWHERE + i as u64 * 0x200;
        take(&mut decoder, address, qmd);
        let _ = p.pcas(1, class, GpuVa(address));
    }

    let s = Submission {
        at: At::of_process(1, 1),
        ..submission(ChannelId(0), 0, 1, How::Trapped, &p)
    };
    let context = decoder.context(&s, 0);
    let (mut nodes, mut counted) = (0, 0);
    let mut sink = |operation: &Operation| match operation {
        Operation::Launch(l) => {
            assert_eq!(l.qmd_from.is_none(), l.grid.is_none());
            let known = l.qmd_from.is_some() && l.qmd.is_some_and(|q| taken.contains(&q.0));
            assert!(
                !known || l.qmd_from == Some(QmdFrom::Image),
                "nothing was written"
            );
            nodes += u32::from(l.place.is_some());
        }
        Operation::Graph(g) => {
            assert_eq!(
                g.nodes,
                g.kernels + g.memsets + g.copies + g.driver + g.unresolved
            );
            counted += g.nodes;
        }
        _ => {}
    };
    decoder.submission(&s, &context, &(), &mut |e| {
        if let Body::Operation(operation) = e.body {
            sink(operation);
        }
    });
    decoder.end(None, &mut |e| {
        if let Body::Operation(operation) = e.body {
            sink(operation);
        }
    });
    assert_eq!(nodes, counted, "each node is of a replay that is told");
    assert!(decoder.shadow_pages().0 <= PAGES);
});
