//! QMDs in the process's own memory: the driver keeps a copy of every graph node's QMD, and the commands that once uploaded it. This module
//! finds both in bytes that the caller has read. docs/decoding.md, "QMD images", has the evidence.

use super::qmd;
use super::view::{View, plausible};
use crate::wire::GpuVa;
use crate::wire::header::Header;
use crate::wire::{
    header::{self, Step},
    method::{LOAD_INLINE_DATA, OFFSET_OUT_UPPER},
    words::u32_at,
};

/// A write to GPU memory as commands carry it: OFFSET_OUT, then LOAD_INLINE_DATA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Upload<'a> {
    /// Offset of the data in the searched bytes.
    pub offset: usize,
    /// Destination of the write.
    pub address: GpuVa,
    /// Data of the write.
    pub data: &'a [u8],
}

/// The greatest distance from OFFSET_OUT to the following LOAD_INLINE_DATA, words.
const BACK: usize = 16;

/// Returns the uploads of at most `most` words in `bytes`, which begin at a multiple of 4.
pub fn uploads(bytes: &[u8], most: u16) -> impl Iterator<Item = Upload<'_>> {
    let upload = move |at: usize| {
        let Header::Method {
            count, subchannel, ..
        } = Header::read(u32_at(bytes, at)?)
        else {
            return None;
        };
        if count > most {
            return None;
        }
        let data = bytes.get(at + 4..at + 4 + usize::from(count) * 4)?;
        let address = offset_out(bytes, at, subchannel)?;
        Some(Upload {
            offset: at + 4,
            address: GpuVa(address),
            data,
        })
    };
    let (mask, header) = header::like(Step::Same, LOAD_INLINE_DATA);
    words(bytes, mask, header).filter_map(upload)
}

/// Returns the offsets of the words in `bytes` (little-endian, at multiples of 4) that equal `value` in the bits of `mask`. Such words are
/// few: blocks without any are skipped, several words at once.
fn words(bytes: &[u8], mask: u32, value: u32) -> impl Iterator<Item = usize> + '_ {
    /// Length of a block, bytes: 16 words.
    const BLOCK: usize = 64;
    let fits = move |word: &[u8; 4]| u32::from_le_bytes(*word) & mask == value;
    let blocks = bytes.chunks(BLOCK).enumerate();
    blocks
        .filter(move |(_, block)| {
            let (words, _) = block.as_chunks::<4>();
            // The loop does not end early, so that it is compiled to vector instructions.
            words.iter().fold(false, |any, word| any | fits(word))
        })
        .flat_map(move |(i, block)| {
            let (words, _) = block.as_chunks::<4>();
            let fitting = words.iter().enumerate().filter(move |(_, w)| fits(w));
            fitting.map(move |(word, _)| i * BLOCK + word * 4)
        })
}

/// Returns the address in the OFFSET_OUT commands before byte `at`.
fn offset_out(bytes: &[u8], at: usize, subchannel: u8) -> Option<u64> {
    for back in 3..=BACK {
        let header_at = at.checked_sub(back * 4)?;
        let Header::Method {
            address,
            count,
            subchannel: of,
            ..
        } = Header::read(u32_at(bytes, header_at)?)
        else {
            continue;
        };
        // OFFSET_OUT_UPPER is one of the words, which end before the data's header.
        let index = usize::from(OFFSET_OUT_UPPER.wrapping_sub(address)) / 4;
        let fits = of == subchannel
            && address <= OFFSET_OUT_UPPER
            && index + 2 <= usize::from(count)
            && usize::from(count) < back;
        if fits {
            let upper = u32_at(bytes, header_at + 4 + index * 4)?;
            let lower = u32_at(bytes, header_at + 8 + index * 4)?;
            return Some(u64::from(upper & 0x1ff_ffff) << 32 | u64::from(lower));
        }
    }
    None
}

/// Returns the size of a QMD of a compute class, bytes.
#[must_use]
pub fn size(class: u32) -> usize {
    match qmd::versions_of(class).first() {
        Some((0..=3, _)) => 256,
        _ => qmd::MAX_BYTES,
    }
}

/// Tells whether `bytes` can be the QMD of a graph node: a kernel, or the empty grid that begins a graph.
#[must_use]
pub fn is_node(class: u32, bytes: &[u8]) -> bool {
    node(class, bytes).is_some()
}

/// Returns the launch that the QMD of a graph node describes.
pub fn node(class: u32, bytes: &[u8]) -> Option<View> {
    if !plausible(class, bytes) {
        return None;
    }
    let view = View::of(class, bytes)?;
    let program = view.program.0;
    let kernel = program > 0xffff && program.is_multiple_of(16) && !view.grid.contains(&0);
    let root = program == 0 && view.grid == [0; 3] && !view.dependents.is_empty();
    (!view.null && (kernel || root)).then_some(view)
}

/// Returns the places in `bytes` (which begin at a multiple of 4) at which a QMD of `class` can lie.
pub fn nodes(class: u32, bytes: &[u8]) -> impl Iterator<Item = usize> + '_ {
    let size = size(class);
    // The version is one byte in every layout. It alone leaves one place in hundreds.
    let (at_byte, version) = match qmd::versions_of(class).first() {
        Some(&(major, minor)) if major >= 5 => (58, Some(major << 4 | minor)),
        Some(&(major, minor)) => (72, Some(major << 4 | minor)),
        None => (0, None),
    };
    // The word that contains this byte.
    let (at_word, shift) = (at_byte & !3, at_byte % 4 * 8);
    let version = version.map(|v| u32::from(v) << shift);
    let from = bytes.get(at_word..).filter(|_| version.is_some());
    let places = words(
        from.unwrap_or_default(),
        0xff << shift,
        version.unwrap_or_default(),
    );
    places.filter(move |&at| {
        bytes
            .get(at..at + size)
            .is_some_and(|bytes| is_node(class, bytes))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::encode::{Pushbuffer, Qmd};
    use crate::decode::view::{Dependent, DependentAction};

    fn kernel(i: u32) -> Vec<u8> {
        let view = View {
            version: (4, 0),
            grid: [i + 1, 1, 1],
            block: [64, 1, 1],
            registers: 16,
            shared_bytes: 1024,
            program: GpuVa(0x7f00_0000_0000),
            dependents: vec![Dependent {
                address: GpuVa(0x2_04c0_0000 + u64::from(i + 1) * 0x200),
                action: DependentAction::Schedule,
            }],
            ..View::default()
        };
        Qmd::of(&view).expect("a layout").bytes().to_vec()
    }

    #[test]
    fn words_are_found_wherever_they_lie() {
        let mut bytes = vec![0xff; 4 * 100 + 3];
        for word in [0, 15, 16, 40, 99] {
            bytes[4 * word..4 * word + 4].copy_from_slice(&[0x12, 0xff, 0, 0x34]);
        }
        let found = |mask, value| words(&bytes, mask, value).collect::<Vec<_>>();
        assert_eq!(found(0xff00_00ff, 0x3400_0012), [0, 60, 64, 160, 396]);
        assert_eq!(found(0x00ff_0000, 0), [0, 60, 64, 160, 396]);
        assert_eq!(found(0xff00, 0), [0; 0]);
        assert_eq!(found(0xff00, 0xff00).len(), 100);
        assert_eq!(words(&[], 0, 0).count(), 0);
    }

    #[test]
    fn uploads_are_found_with_their_addresses() {
        let mut p = Pushbuffer::new();
        for i in 0..4u32 {
            p.inline(
                1,
                0xcbc0,
                GpuVa(0x2_04c0_0000 + u64::from(i) * 0x200),
                &kernel(i),
            )
            .expect("takes inline data");
        }
        let bytes = p.bytes();
        let found: Vec<_> = uploads(&bytes, 96).collect();
        assert_eq!(found.len(), 4);
        for (i, upload) in found.iter().enumerate() {
            assert_eq!(upload.address, GpuVa(0x2_04c0_0000 + i as u64 * 0x200));
            assert_eq!(upload.data, kernel(i as u32));
            assert_eq!(&bytes[upload.offset..upload.offset + 384], upload.data);
        }
        // Wherever the bytes are cut, only whole uploads are found.
        for cut in (0..bytes.len()).step_by(4) {
            assert!(uploads(&bytes[cut..], 96).count() <= 4);
            assert!(uploads(&bytes[..cut], 96).all(|u| u.data.len() == 384));
        }
    }

    #[test]
    fn images_are_found_where_they_lie() {
        let mut heap = vec![0x5a; 12];
        for i in 0..5 {
            heap.extend(kernel(i));
            heap.extend([0; 548]);
        }
        let found: Vec<usize> = nodes(0xcbc0, &heap).collect();
        assert_eq!(found, [12, 944, 1876, 2808, 3740]);
        assert_eq!(nodes(0xcbc0, &[0x40; 300]).count(), 0);
        assert_eq!(nodes(0xcbc0, &[]).count(), 0);
    }
}
