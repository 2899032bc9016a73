//! The forms of the pushbuffer, formed by hand and read back: masks, controls, ends, holes; and what is kept between
//! submissions: unfinished methods, classes, memory, apart for each process.

use crate::decode_common::{Bench, CODE};
use nvcap_decode::{
    decode::{
        DecodeOptions,
        defaults::Chip,
        encode::{Pushbuffer, Qmd},
        event::{ChipBy, ChipSettled, Engine, InlineContent, LaunchKind, Operation, Stop},
        view::View,
    },
    record::{ChannelId, Segment},
    wire::{
        GpuVa, Hole,
        entry::{self, EntryKind, Opcode},
        header::{Header, Step},
        stream::StopReason,
    },
};

#[test]
fn subdevice_masks() {
    let mut b = Bench::new();
    b.words(|p| {
        p.control(Header::StoreSubdeviceMask(0b10));
        p.method(Step::Immediate, 4, 0x300, &[1]);
        p.control(Header::SetSubdeviceMask(0xffe));
        p.method(Step::Immediate, 4, 0x304, &[2]);
        p.control(Header::SetSubdeviceMask(0xfff));
        p.method(Step::Immediate, 4, 0x308, &[3]);
        p.control(Header::UseSubdeviceMask);
        p.method(Step::Same, 4, 0x30c, &[4, 5]);
    });
    let masked: Vec<_> = b.writes.iter().map(|w| (w.data, w.masked)).collect();
    assert_eq!(
        masked,
        [(1, false), (2, true), (3, false), (4, true), (5, true)]
    );
    assert_eq!(b.decoder.counts().masked, 3);
    // What is masked does nothing, and the mask outlives the submission.
    b.operations.clear();
    b.words(|p| {
        p.bind(4, 0xcab5);
    });
    assert!(b.operations.is_empty());
    assert!(b.chips.iter().all(|c| c.chip != "GB202"), "nor is it bound");
    // The other GPU of the group sees the opposite.
    let mut b = Bench::with(DecodeOptions {
        subdevice: 1,
        ..DecodeOptions::default()
    });
    b.words(|p| {
        p.control(Header::SetSubdeviceMask(0b10))
            .method(Step::Immediate, 4, 0x300, &[1]);
    });
    assert!(!b.writes[0].masked);
}

#[test]
fn a_masked_out_subdevice_does_not_fetch_conditional_entries() {
    let mut b = Bench::new();
    let conditional = |p: &Pushbuffer| {
        let bytes = p.bytes();
        let entry = entry::segment(CODE, bytes.len() as u32, true, false, false);
        Segment {
            entry,
            bytes,
            holes: Vec::new(),
        }
    };
    let mut p = Pushbuffer::new();
    p.method(Step::Immediate, 4, 0x300, &[1]);
    b.submit(vec![conditional(&p)]);
    assert_eq!(b.writes.len(), 1);
    b.words(|p| {
        p.control(Header::SetSubdeviceMask(0b10));
    });
    b.submit(vec![conditional(&p)]);
    assert_eq!(b.writes.len(), 1);
}

#[test]
fn the_end_of_a_segment_and_control_entries() {
    let mut b = Bench::new();
    let mut p = Pushbuffer::new();
    p.method(Step::Immediate, 4, 0x300, &[1])
        .control(Header::EndSegment)
        .raw(0xdead_beef);
    let control = |opcode, operand| Segment {
        entry: entry::control(opcode, operand, true),
        ..Segment::default()
    };
    b.submit(vec![
        p.segment(CODE),
        control(Opcode::NOP, 7),
        control(Opcode::SET_PB_SEGMENT_EXTENDED_BASE, 0x155 << 8),
        p.segment(CODE),
        control(Opcode(9), 0),
    ]);
    assert_eq!((b.writes.len(), b.stops.len()), (2, 0));
    let EntryKind::Segment { address, .. } = b.entries[3] else {
        panic!()
    };
    assert_eq!(address, GpuVa(0x155 << 40 | CODE.0));
    assert_eq!(
        b.entries[1],
        EntryKind::Control {
            opcode: 0,
            operand: 7,
            sync: true
        }
    );
    // The base is the channel's, for good.
    b.submit(vec![p.segment(CODE)]);
    assert_eq!(b.entries[3], b.entries[5]);
    assert_eq!(b.decoder.counts().controls, 3);
}

#[test]
fn illegal_headers_stop_their_entry_only() {
    let mut b = Bench::new();
    let mut bad = Pushbuffer::new();
    bad.method(Step::Immediate, 4, 0x300, &[1])
        .raw(0xc000_0000)
        .method(Step::Immediate, 4, 0x300, &[2]);
    let mut good = Pushbuffer::new();
    good.method(Step::Immediate, 4, 0x300, &[3]);
    b.submit(vec![bad.segment(CODE), good.segment(CODE)]);
    assert_eq!(
        b.writes
            .iter()
            .map(|w| (w.entry, w.data))
            .collect::<Vec<_>>(),
        [(0, 1), (1, 3)]
    );
    assert_eq!(
        b.stops,
        [Stop {
            entry: 0,
            offset: 4,
            why: StopReason::IllegalHeader(0xc000_0000)
        }]
    );
}

#[test]
fn data_goes_on_over_entries_and_submissions_but_not_over_gaps() {
    let split = |words: &[u32]| {
        let mut p = Pushbuffer::new();
        for word in words {
            p.raw(*word);
        }
        p.segment(CODE)
    };
    // ONE_INC of four words to 0x300 on subchannel 4.
    let header = 5 << 29 | 4 << 16 | 4 << 13 | 0x300 >> 2;
    let mut b = Bench::new();
    b.submit(vec![split(&[header, 1]), split(&[2])]);
    b.submit(vec![split(&[3, 4, 0])]);
    let addresses: Vec<_> = b.writes.iter().map(|w| (w.method, w.data)).collect();
    assert_eq!(addresses, [(0x300, 1), (0x304, 2), (0x304, 3), (0x304, 4)]);
    // A submission that does not begin where the last ended: the method in progress is given up.
    b.submit(vec![split(&[header, 1])]);
    b.position += 1;
    b.submit(vec![split(&[header, 9])]);
    assert_eq!(
        b.writes.last().map(|w| (w.method, w.data)),
        Some((0x300, 9))
    );
    b.decoder.gap(ChannelId(0));
    b.submit(vec![split(&[0, 0])]);
    assert_eq!(b.writes.len(), 6);
}

#[test]
fn a_hole_in_inline_data() {
    let mut b = Bench::new();
    b.words(|p| {
        p.bind(1, 0xcbc0);
    });
    let data: Vec<u8> = (0..=255).collect();
    let mut p = Pushbuffer::new();
    p.inline(1, 0xcbc0, GpuVa(0x1000_0000), &data)
        .expect("inline");
    p.release(1, 0xcbc0, GpuVa(0x2000_0000), 5)
        .expect("a semaphore");
    let mut segment = p.segment(CODE);
    // Header and data of the inline run begin at byte 32; 64 bytes from byte 100 on are missing.
    let at = segment
        .bytes
        .windows(4)
        .position(|w| w == [0, 1, 2, 3])
        .expect("the data") as u32;
    segment.holes = vec![Hole {
        offset: at + 66,
        len: 60,
    }];
    b.submit(vec![segment]);
    assert_eq!(
        b.stops,
        [Stop {
            entry: 0,
            offset: at + 64,
            why: StopReason::Missing { bytes: 64 }
        }]
    );
    let told = b.told();
    let [Operation::Inline(inline), Operation::Semaphore(semaphore)] = &told[..] else {
        panic!("{told:#?}")
    };
    assert_eq!((inline.bytes, inline.content), (256, None));
    assert_eq!(semaphore.payload, 5);
    // Memory: what came, and not the hole.
    let shadow = b.decoder.shadow();
    assert_eq!(shadow.known(100, GpuVa(0x1000_0000), 256), 64);
    assert_eq!(shadow.known(100, GpuVa(0x1000_0080), 256), 128);
    let mut rest = [0; 128];
    assert!(shadow.read(100, GpuVa(0x1000_0080), &mut rest));
    assert_eq!(rest[..], data[128..]);
}

#[test]
fn processes_do_not_mix() {
    let qmd = Qmd::of(&View {
        version: (4, 0),
        grid: [1, 2, 3],
        block: [4, 1, 1],
        shared_bytes: 1024,
        ..View::default()
    });
    let qmd = qmd.expect("a layout");
    let mut b = Bench::new();
    b.words(|p| {
        p.bind(1, 0xcbc0)
            .inline(1, 0xcbc0, GpuVa(0x10_0000), qmd.bytes())
            .expect("inline");
    });
    assert!(matches!(b.one(), Operation::Inline(i) if i.content == Some(InlineContent::Qmd)));
    (b.pid, b.channel, b.position) = (200, ChannelId(1), 0);
    b.words(|p| {
        p.bind(1, 0xcbc0)
            .pcas(1, 0xcbc0, GpuVa(0x10_0000))
            .expect("launches");
    });
    let launch = b.launch();
    assert_eq!(
        (launch.kind, launch.grid, launch.qmd),
        (LaunchKind::Unresolved, None, Some(GpuVa(0x10_0000)))
    );
    (b.pid, b.channel, b.position) = (100, ChannelId(0), 1);
    b.words(|p| {
        p.pcas(1, 0xcbc0, GpuVa(0x10_0000)).expect("launches");
    });
    let launch = b.launch();
    assert_eq!(
        (launch.kind, launch.grid),
        (LaunchKind::User, Some([1, 2, 3]))
    );
    b.decoder.forget_process(100);
    b.words(|p| {
        p.bind(1, 0xcbc0)
            .pcas(1, 0xcbc0, GpuVa(0x10_0000))
            .expect("launches");
    });
    let launch = b.launch();
    assert_eq!(launch.kind, LaunchKind::Unresolved);
}

#[test]
fn subchannels_without_a_bind() {
    // Compute and copy on a graphics channel of Hopper: by the host class.
    let class = |b: &mut Bench, subchannel| {
        b.words(|p| {
            p.method(Step::Immediate, subchannel, 0x110, &[0]);
        });
        b.writes.last().expect("one").class
    };
    let mut b = Bench::new().channel(0xc86f, 1);
    assert_eq!(
        [0, 1, 2, 3, 4, 5].map(|s| class(&mut b, s)),
        [0xcb97, 0xcbc0, 0xa140, 0x902d, 0xc8b5, 0]
    );
    // A copy engine knows one class.
    let mut b = Bench::new().channel(0xc86f, 0x9);
    assert_eq!([0, 4].map(|s| class(&mut b, s)), [0xc8b5, 0xc8b5]);
    // Hopper takes older channels (Vulkan's are c56f): a class bound elsewhere on the GPU tells the chip.
    let mut b = Bench::new().channel(0xc56f, 1);
    assert_eq!(class(&mut b, 1), 0xc6c0);
    b.words(|p| {
        p.bind(0, 0xcb97);
    });
    assert_eq!(class(&mut b, 1), 0xcbc0);
    // And so does the caller.
    let mut b = Bench::new().channel(0xc56f, 1);
    b.decoder
        .chip(Some(0), Chip::named("AD102").expect("known"), ChipBy::Pci);
    assert_eq!(class(&mut b, 1), 0xc9c0);
    b.decoder.engine(ChannelId(0), Engine::Nvdec(0));
    assert_eq!(class(&mut b, 4), 0xc9b0);
    // Nothing is known but the method, WAIT_FOR_IDLE of every compute class: the oldest is assumed, which is said.
    let mut b = Bench::new();
    assert_eq!(class(&mut b, 1), 0xc3c0);
    let (chip, by) = ("GV100", ChipBy::Methods);
    assert_eq!(b.chips, [ChipSettled { chip, by }]);
    assert!(by.is_assumed());
    // What is bound is believed before that, and before what comes first in the same submission.
    b.words(|p| {
        p.method(Step::Immediate, 1, 0x110, &[0]).bind(0, 0xcb97);
    });
    let classes: Vec<_> = b.writes[1..].iter().map(|w| w.class).collect();
    assert_eq!(classes, [0xcbc0, 0xc86f]);
    let (chip, by) = ("GH100", ChipBy::Bound);
    assert_eq!(b.chips[1..], [ChipSettled { chip, by }]);
    // Only once.
    assert_eq!(class(&mut b, 1), 0xcbc0);
    assert_eq!(b.chips.len(), 2);
    // A subchannel that no chip has a class for: the write is told, with no class, and counted.
    let mut b = Bench::new();
    assert_eq!(class(&mut b, 6), 0);
    assert_eq!(b.decoder.counts().classless, 1);
    assert_eq!(b.writes[0].id().to_string(), "0x0110");
    assert_eq!(b.chips, []);
}

/// A copy channel comes first with hundreds of submissions, that are the same for all chips.
#[test]
fn the_chip_is_looked_for_in_each_channel() {
    let mut b = Bench::new();
    b.decoder.engine(ChannelId(0), Engine::Copy(None));
    for _ in 0..300 {
        b.words(|p| {
            p.copy(4, 0xc8b5, GpuVa(0x10_0000), GpuVa(0x20_0000), 384)
                .expect("copies");
        });
    }
    let chip = |chip, by| ChipSettled { chip, by };
    assert_eq!(b.told().len(), 300);
    assert_eq!(b.chips, [chip("GV100", ChipBy::Methods)]);
    // A method that only newer chips have.
    (b.channel, b.position) = (ChannelId(1), 0);
    b.words(|p| {
        p.pcas(1, 0xcbc0, GpuVa(0x10_0000)).expect("launches");
    });
    assert_eq!(b.launch().qmd, Some(GpuVa(0x10_0000)));
    assert_eq!(b.chips[1..], [chip("GA100", ChipBy::Methods)]);
    // Copies do not speak against it.
    (b.channel, b.position) = (ChannelId(2), 0);
    b.words(|p| {
        p.copy(4, 0xc8b5, GpuVa(0x10_0000), GpuVa(0x20_0000), 384)
            .expect("copies");
    });
    assert!(matches!(b.one(), Operation::Copy(_)));
    assert_eq!(b.chips.len(), 2);
    let qmd = Qmd::of(&View {
        version: (4, 0),
        grid: [3, 1, 1],
        block: [64, 1, 1],
        shared_bytes: 1024,
        ..View::default()
    });
    let qmd = qmd.expect("a layout");
    (b.channel, b.position) = (ChannelId(3), 0);
    b.words(|p| {
        p.inline(1, 0xcbc0, GpuVa(0x30_0000), qmd.bytes())
            .expect("inline");
    });
    assert!(matches!(b.one(), Operation::Inline(i) if i.content == Some(InlineContent::Qmd)));
    b.words(|p| {
        p.pcas(1, 0xcbc0, GpuVa(0x30_0000)).expect("launches");
    });
    assert_eq!(b.launch().grid, Some([3, 1, 1]));
    assert_eq!(b.chips[2..], [chip("GH100", ChipBy::QmdVersion)]);
}

#[test]
fn copies_are_followed_through_the_shadow() {
    let qmd = Qmd::of(&View {
        version: (4, 0),
        grid: [5, 1, 1],
        block: [64, 1, 1],
        shared_bytes: 1024,
        ..View::default()
    });
    let qmd = qmd.expect("a layout");
    let mut b = Bench::new();
    b.words(|p| {
        p.bind(1, 0xcbc0).bind(4, 0xc8b5);
        p.inline(1, 0xcbc0, GpuVa(0x10_0000), qmd.bytes())
            .expect("inline");
        p.copy(4, 0xc8b5, GpuVa(0x10_0000), GpuVa(0x20_0000), 384)
            .expect("copies");
        p.pcas(1, 0xcbc0, GpuVa(0x20_0000)).expect("launches");
    });
    // A QMD that is not written by the submission is read when that ends: the next one is where it changes.
    b.words(|p| {
        // Something unknown is copied over it.
        p.copy(4, 0xc8b5, GpuVa(0x90_0000), GpuVa(0x20_0100), 384)
            .expect("copies");
        p.pcas(1, 0xcbc0, GpuVa(0x20_0000)).expect("launches");
    });
    let told = b.told();
    let launches: Vec<_> = told
        .iter()
        .filter_map(|o| {
            if let Operation::Launch(l) = o {
                Some(l.grid)
            } else {
                None
            }
        })
        .collect();
    assert_eq!(launches, [Some([5, 1, 1]), None]);
}

#[test]
fn memory_stays_within_its_bound() {
    let mut b = Bench::with(DecodeOptions {
        shadow_bytes: 64 * nvcap_decode::decode::shadow::PAGE_COST,
        ..DecodeOptions::default()
    });
    b.words(|p| {
        p.bind(1, 0xcbc0);
    });
    for i in 0..200u64 {
        b.words(|p| {
            p.inline(1, 0xcbc0, GpuVa(i << 12), &[1; 4096])
                .expect("inline");
        });
    }
    assert_eq!(b.decoder.shadow_pages(), (64, 136));
}
