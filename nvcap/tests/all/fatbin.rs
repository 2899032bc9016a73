//! Fat binaries: words that nvcc wrote, made-up ones for the rest, and bytes that are none.
#![cfg(feature = "zstd")]

use std::cell::Cell;
use std::io;

use crate::common::fat::{ELF, How, PTX, entry, fat};
use nvcap_decode::{
    cubin::{
        Cubin,
        fatbin::{Content, Entry, NotUnpacked, Packing, entries},
    },
    wire::read_memory::ReadMemory,
};
use proptest::prelude::*;

/// Output of `nvcc -dlink` for a program without device code (`main.o`, sm_37): an image without functions, as an LZ4 block. Its words
/// are in the file `a_dlink.fatbin.c` that `nvcc --keep` leaves.
const NVCC: [u64; 35] = [
    0x0010_0001_ba55_ed50,
    0x0000_0000_0000_0108,
    0x0000_0048_0101_0002,
    0x0000_0000_0000_00c0,
    0x0000_0000_0000_00be,
    0x0000_0025_0001_0007,
    0x0000_0007_0000_0040,
    0x0000_0000_0000_2013,
    0x0000_0000_0000_0000,
    0x0000_0000_0000_0268,
    0x0020_6f2e_6e69_616d,
    0x0101_0246_4c45_7fa2,
    0x0002_6600_0100_0733,
    0xc023_0001_0066_00be,
    0xf500_0100_1200_0801,
    0x3800_4000_2505_250d,
    0x0100_0400_4000_0300,
    0x7274_7368_732e_0000,
    0x2700_082e_0062_6174,
    0x735f_00ff_0008_6d79,
    0x766e_2e00_7864_6e68,
    0x2100_326f_666e_692e,
    0x2e00_df00_4800_010f,
    0x0100_4022_0001_0003,
    0x0108_0030_0032_2e00,
    0x722f_0400_400b_1f00,
    0x0174_1311_1300_4000,
    0x0001_00a8_2200_010e,
    0x2a00_2406_0006_1811,
    0x0000_0657_0018_0008,
    0x0500_480f_01a8_0500,
    0x0038_0113_0040_a81b,
    0x2f00_3808_1500_010f,
    0x0008_8017_0001_0006,
    0x0000_0000_0000_0000,
];

fn bytes(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

fn all(bytes: &[u8]) -> Vec<Entry> {
    entries(bytes, 0..bytes.len() as u64).collect()
}

#[test]
fn of_nvcc() {
    let file = bytes(&NVCC);
    let [one] = all(&file)[..] else { panic!() };
    let expected = Entry {
        at: 0x58,
        len: 0xbe,
        content: Content::Elf,
        sm: 37,
        packing: Packing::Lz4,
        unpacked: 0x268,
    };
    assert_eq!(one, expected);
    let image = one.unpack(file.as_slice(), 1 << 20).expect("an LZ4 block");
    assert_eq!(image.len(), 0x268);
    let image = Cubin::read(image.as_slice(), 0).expect("an image");
    assert_eq!((image.sm, image.len, image.functions.len()), (37, 0x268, 0));
    // As it lies in a program: anywhere, with other bytes before and behind.
    let behind = [
        vec![7; 4096 * 20 + 8],
        file.clone(),
        file.clone(),
        vec![7; 30],
    ]
    .concat();
    let at: Vec<u64> = all(&behind).iter().map(|e| e.at).collect();
    assert_eq!(at, [81928 + 0x58, 81928 + 0x58 + 280]);
}

/// The header of PTX that nvcc 13.1 compressed: zstd's flag, a header of 80 bytes. The words are those that a published analysis of
/// a `vector_add.fatbin` for sm_89 shows.
#[test]
fn zstd_of_nvcc() {
    let mut file = bytes(&[
        0x0010_0001_ba55_ed50,
        0x0fd0,
        0x0000_0050_0101_0001,
        0x0198,
        0x0000_0040_0000_0196,
        0x0000_0059_0009_0001,
        0,
        0x8011,
        0,
        0x040e,
        0x48,
        0,
    ]);
    file.resize(0xfe0, 0);
    let [one] = all(&file)[..] else { panic!() };
    let expected = Entry {
        at: 0x60,
        len: 0x196,
        content: Content::Ptx,
        sm: 89,
        packing: Packing::Zstd,
        unpacked: 0x40e,
    };
    assert_eq!(one, expected);
    let damaged = Err(NotUnpacked::Damaged);
    assert_eq!(one.unpack(file.as_slice(), 4096), damaged, "zeros");
}

#[test]
fn payloads_of_each_kind() {
    let long: Vec<u8> = (0..300_000u32)
        .flat_map(|i| (i / 5).to_le_bytes())
        .collect();
    let short = b"\x7fELF and so on".to_vec();
    let file = fat(&[
        entry(PTX, 80, How::Not, b".version 8.0"),
        entry(ELF, 86, How::Zstd, &long),
        entry(ELF, 120, How::Lz4, &long),
        entry(16, 100, How::Zstd, &short),
        entry(64, 90, How::Lz4, &short),
    ]);
    let found = all(&file);
    let heads: Vec<_> = found.iter().map(|e| (e.content, e.sm, e.packing)).collect();
    let (ptx, elf, other) = (Content::Ptx, Content::Elf, Content::Other);
    let (none, lz4, zstd) = (Packing::None, Packing::Lz4, Packing::Zstd);
    assert_eq!(
        heads,
        [
            (ptx, 80, none),
            (elf, 86, zstd),
            (elf, 120, lz4),
            (elf, 100, zstd),
            (other, 90, lz4)
        ]
    );
    let packed: Vec<_> = found.iter().map(Entry::is_packed_image).collect();
    assert_eq!(packed, [false, true, true, true, false]);
    let unpack = |e: &Entry| e.unpack(file.as_slice(), 2_000_000).expect("whole");
    let unpacked: Vec<_> = found.iter().map(unpack).collect();
    assert_eq!(unpacked[0], b".version 8.0\0\0\0\0", "with its padding");
    assert!(unpacked[1] == long && unpacked[2] == long);
    assert!(unpacked[3] == short && unpacked[4] == short);
    // Larger than is wanted, by either length.
    for most in [100, long.len() as u64 - 1] {
        let result = found[1].unpack(file.as_slice(), most);
        assert_eq!(result, Err(NotUnpacked::TooLarge));
    }
    let cut = &file[..file.len() - 400_000];
    let result = found[1].unpack(&file[..found[1].at as usize + 9], 2_000_000);
    assert_eq!(result, Err(NotUnpacked::Unreadable));
    assert!(all(cut).len() < 5);
}

/// Lengths that are made up: of the whole, of an entry's header, of a payload, of what is unpacked.
#[test]
fn made_up_lengths() {
    let good = fat(&[
        entry(ELF, 90, How::Lz4, &[5; 4000]),
        entry(ELF, 90, How::Zstd, &[6; 4000]),
    ]);
    assert_eq!(all(&good).len(), 2);
    let with = |at: usize, new: &[u8]| {
        let mut bytes = good.clone();
        bytes[at..at + new.len()].copy_from_slice(new);
        bytes
    };
    // The whole: what is there is read.
    assert_eq!(all(&with(8, &[0xff; 8])).len(), 2);
    assert_eq!(all(&with(8, &[0; 8])).len(), 0);
    // Another version, a header that is too short.
    assert_eq!(all(&with(4, &[2])).len(), 0);
    assert_eq!(all(&with(6, &[15])).len(), 0);
    // An entry's header and its payload.
    for head in [0, 63, u32::MAX] {
        assert_eq!(all(&with(20, &head.to_le_bytes())).len(), 0, "{head}");
    }
    for len in [1 << 20, u64::MAX, u64::MAX - 79] {
        assert_eq!(all(&with(24, &len.to_le_bytes())).len(), 0, "{len}");
    }
    // A length without padding that is longer than the one with it.
    let stored = u32::MAX.to_le_bytes();
    let first = all(&with(32, &stored))[0];
    assert!(first.len < 4000);
    // What is unpacked is of another length.
    let second = all(&good)[1].at as usize - 64;
    for (index, at) in [(0, 16 + 56), (1, second + 56)] {
        for len in [0, 1, 3999, 4001, 1 << 29] {
            let bytes = with(at, &u64::to_le_bytes(len));
            let result = all(&bytes)[index].unpack(bytes.as_slice(), 1 << 29);
            assert_eq!(result, Err(NotUnpacked::Damaged), "{index} {len}");
        }
    }
}

/// A walk over many heads reads each byte a few times at most.
#[test]
fn a_walk_is_bounded() {
    struct Counted(Vec<u8>, Cell<usize>);
    impl ReadMemory for Counted {
        fn read_bytes(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
            self.1.set(self.1.get() + to.len());
            self.0.as_slice().read_bytes(at, to)
        }
    }
    let head = fat(&[]);
    for bytes in [head.repeat(1 << 14), vec![0; 1 << 20], {
        let mut bytes = head.repeat(1 << 14);
        // Each says that all that follows is its own.
        bytes.chunks_mut(16).for_each(|head| head[8..].fill(0x7f));
        bytes
    }] {
        let len = bytes.len();
        let memory = Counted(bytes, Cell::new(0));
        assert_eq!(entries(&memory, 0..len as u64).count(), 0);
        assert!(memory.1.get() <= 40 * len, "{} of {len}", memory.1.get());
    }
}

proptest! {
    /// Changed bytes: entries stay within the bytes, and nothing panics.
    #[test]
    fn changed_bytes(changes in prop::collection::vec((0usize..600, any::<u8>()), 1..6)) {
        let mut file = fat(&[
            entry(ELF, 90, How::Zstd, &bytes(&NVCC)),
            entry(ELF, 90, How::Lz4, &bytes(&NVCC)),
        ]);
        for (at, byte) in changes {
            let len = file.len();
            file[at % len] = byte;
        }
        for one in all(&file) {
            prop_assert!(one.at + one.len <= file.len() as u64);
            if let Ok(bytes) = one.unpack(file.as_slice(), 1 << 20) {
                prop_assert_eq!(bytes.len() as u64, one.unpacked);
            }
        }
    }
}
