//! Fat binaries: containers that nvcc puts into programs and libraries (section `.nv_fatbin`), with an image for each GPU
//! architecture, and PTX. The images are compressed by default.
//!
//! A fat binary is a header of 16 bytes (magic, version 1, length of the header, length of what follows) and entries, each a header of
//! 64 bytes or more and its payload:
//!
//! | offset | bytes | |
//! | --- | --- | --- |
//! | 0 | 2 | kind: 1 PTX, 2 an ELF image, 16 an ELF image for sm_100 and later |
//! | 4 | 4 | length of the entry's header |
//! | 8 | 8 | length of the payload with its padding |
//! | 16 | 4 | of a compressed payload: its length without padding |
//! | 28 | 4 | architecture, as in `sm_90` |
//! | 40 | 8 | flags: 0x2000 compressed, an LZ4 block; 0x8000 compressed, a zstd frame |
//! | 56 | 8 | of a compressed payload: its length when it is unpacked |
//!
//! Sources of the facts: cuda-fatbin-decompression (Eiling), ZLUDA (`cuda_types`), nvopen-tools (`fatbin/FORMAT_SPECIFICATION.md`), CUdex,
//! and published outputs of nvcc 10 to 13.1, some words of which are in the tests. Any bytes are accepted: what makes no sense is left out.

use std::ops::Range;

use crate::wire::read_memory::ReadMemory;
use crate::wire::words::{u16_at, u32_at, u64_at, u64s};

/// The first word of a fat binary.
const MAGIC: u32 = 0xba55_ed50;
/// Length of a fat binary's header.
const HEADER: u64 = 16;
/// The shortest header of an entry. Headers for sm_100 and later have 112 bytes; those of PTX have some more bytes for its options.
const ENTRY: u64 = 64;
/// The longest header of an entry. It holds file names and options of the compiler.
const MOST_HEADER: u64 = 64 << 10;
/// Alignment of the beginning of a fat binary.
const ALIGNED: u64 = 8;
/// Bytes that are searched at once.
const WINDOW: u64 = 64 << 10;
/// Bytes that are read around an entry's header.
const AROUND: u64 = 512;
/// Flag of an entry: an LZ4 block.
const LZ4: u64 = 0x2000;
/// Flag of an entry: a zstd frame.
const ZSTD: u64 = 0x8000;
/// Greatest ratio of unpacked to packed length at which an LZ4 block is still unpacked.
const MOST_LZ4: u64 = 255;

/// Limits of unpacking a file: the bytes that are allowed in any case, and then the further bytes for each byte of its payloads as stored.
/// Images of real libraries are 3 to 10 times as long unpacked.
const FREE: u64 = 64 << 20;
const MOST_TIMES: u64 = 32;
/// The most bytes that may be unpacked of the payloads of a file.
const MOST_OF_FILE: u64 = 16 << 30;

/// Content of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Text that the driver compiles.
    Ptx,
    /// An image.
    Elf,
    /// Something else.
    Other,
}

/// Compression of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// No compression.
    None,
    /// LZ4 block (nvcc until 12, and `--compress-mode=speed`).
    Lz4,
    /// Zstd frame (`--compress-mode=balance` and `size` of nvcc 12.8 and later).
    Zstd,
}

/// An entry of a fat binary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Start of the payload.
    pub at: u64,
    /// Length of the payload as stored, bytes.
    pub len: u64,
    /// Kind of content.
    pub content: Content,
    /// The GPU architecture, as in `sm_90`.
    pub sm: u32,
    /// Compression of the payload.
    pub packing: Packing,
    /// Length of the payload when unpacked, bytes.
    pub unpacked: u64,
}

/// Account of the bytes unpacked from a file. It bounds files that claim, again and again, that a few bytes unpack to gigabytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    packed: u64,
    /// Number of bytes that entries have taken.
    pub unpacked: u64,
}

impl Room {
    /// Takes the room that an entry needs. Returns false if too little is left: the entry is not to be unpacked.
    #[must_use]
    pub fn take(&mut self, entry: &Entry) -> bool {
        let packed = self.packed.saturating_add(entry.len);
        let unpacked = self.unpacked.saturating_add(entry.unpacked);
        let most = FREE.saturating_add(packed.saturating_mul(MOST_TIMES));
        let fits = unpacked <= most.min(MOST_OF_FILE);
        if fits {
            *self = Self { packed, unpacked };
        }
        fits
    }
}

/// Reason why a payload was not unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotUnpacked {
    /// Part of the payload cannot be read.
    #[error("part of it cannot be read")]
    Unreadable,
    /// The payload is larger than was asked for.
    #[error("it is too large")]
    TooLarge,
    /// The bytes are not validly compressed, or have another length when unpacked.
    #[error("its bytes are damaged")]
    Damaged,
    /// Support for zstd is not built in.
    #[error("this build has no zstd: build it with the feature zstd")]
    NoZstd,
}

impl Entry {
    /// Tells whether the payload is a compressed image, which is loaded in unpacked form.
    #[must_use]
    pub fn is_packed_image(&self) -> bool {
        self.content == Content::Elf && self.packing != Packing::None
    }

    /// Returns the payload, unpacked. At most `most` bytes are allocated for the result, and as many for the compressed bytes.
    ///
    /// # Errors
    /// When the payload cannot be read, is larger than `most`, or is damaged.
    pub fn unpack<M: ReadMemory + ?Sized>(
        &self,
        memory: &M,
        most: u64,
    ) -> Result<Vec<u8>, NotUnpacked> {
        if self.len > most || self.unpacked > most {
            return Err(NotUnpacked::TooLarge);
        }
        let len = usize::try_from(self.len).map_err(|_| NotUnpacked::TooLarge)?;
        let unpacked = usize::try_from(self.unpacked).map_err(|_| NotUnpacked::TooLarge)?;
        if self.packing == Packing::Lz4 && self.unpacked / MOST_LZ4 > self.len {
            return Err(NotUnpacked::Damaged);
        }
        // The end is read first, so that a forged length allocates no memory.
        let last = self.at.checked_add(self.len.saturating_sub(1));
        let last = last.ok_or(NotUnpacked::Unreadable)?;
        let unreadable = |_| NotUnpacked::Unreadable;
        memory.read_bytes(last, &mut [0]).map_err(unreadable)?;
        let mut payload = vec![0; len];
        memory
            .read_bytes(self.at, &mut payload)
            .map_err(unreadable)?;
        match self.packing {
            Packing::None => Ok(payload),
            Packing::Lz4 => {
                let mut bytes = vec![0; unpacked];
                match lz4_flex::block::decompress_into(&payload, &mut bytes) {
                    Ok(n) if n == unpacked => Ok(bytes),
                    _ => Err(NotUnpacked::Damaged),
                }
            }
            Packing::Zstd => zstd(&payload, unpacked),
        }
    }
}

/// Unpacks one zstd frame.
#[cfg(feature = "zstd")]
fn zstd(payload: &[u8], unpacked: usize) -> Result<Vec<u8>, NotUnpacked> {
    let mut bytes = vec![0; unpacked];
    match ruzstd::decoding::FrameDecoder::new().decode_all(payload, &mut bytes) {
        Ok(n) if n == unpacked => Ok(bytes),
        _ => Err(NotUnpacked::Damaged),
    }
}

#[cfg(not(feature = "zstd"))]
fn zstd(_: &[u8], _: usize) -> Result<Vec<u8>, NotUnpacked> {
    Err(NotUnpacked::NoZstd)
}

/// The entries of all fat binaries in a range of memory that begins at a multiple of 8, in order.
pub fn entries<M: ReadMemory + ?Sized>(memory: &M, range: Range<u64>) -> Entries<'_, M> {
    Entries {
        memory,
        at: range.start.next_multiple_of(ALIGNED),
        end: range.end,
        fat: None,
        window: (0, Vec::new()),
    }
}

/// Iterator over the entries of the fat binaries in a range of memory: the result of [`entries`].
pub struct Entries<'m, M: ?Sized> {
    memory: &'m M,
    at: u64,
    end: u64,
    /// End of the fat binary in which `at` lies; `None` between two of them.
    fat: Option<u64>,
    /// Bytes around the place that was searched last, and the address where they begin.
    window: (u64, Vec<u8>),
}

impl<M: ReadMemory + ?Sized> Iterator for Entries<'_, M> {
    type Item = Entry;

    fn next(&mut self) -> Option<Entry> {
        loop {
            let Some(end) = self.fat else {
                self.fat = Some(self.find()?);
                continue;
            };
            if let Some((entry, next)) = self.entry(end) {
                self.at = next;
                return Some(entry);
            }
            // Bytes that were already walked are not searched for another beginning.
            self.fat = None;
            self.at = self.at.checked_next_multiple_of(ALIGNED)?;
        }
    }
}

impl<M: ReadMemory + ?Sized> Entries<'_, M> {
    /// Returns bytes at a place. They are cut out of the last window, or else a window of `window` bytes is read.
    fn bytes(&mut self, at: u64, len: usize, window: u64) -> Option<&[u8]> {
        let cut = |window: &(u64, Vec<u8>)| {
            let from = usize::try_from(at.checked_sub(window.0)?).ok()?;
            let to = from.checked_add(len)?;
            (to <= window.1.len()).then_some(from..to)
        };
        if cut(&self.window).is_none() {
            let left = self.end.checked_sub(at)?.min(window);
            let mut bytes = vec![0; usize::try_from(left).ok()?];
            self.memory.read_bytes(at, &mut bytes).ok()?;
            self.window = (at, bytes);
        }
        self.window.1.get(cut(&self.window)?)
    }

    /// Moves behind the header of the next fat binary and returns the end of that fat binary.
    fn find(&mut self) -> Option<u64> {
        while self.at.checked_add(HEADER)? <= self.end {
            let at = self.at;
            if self.bytes(at, HEADER as usize, WINDOW).is_none() {
                // This memory cannot be read.
                self.at = at.checked_add(WINDOW)?;
                continue;
            }
            let from = usize::try_from(at - self.window.0).ok()?;
            let read = self.window.1.get(from..).unwrap_or_default();
            let mut words = u64s(read);
            let words_read = words.len() as u64;
            match words.position(|word| word as u32 == MAGIC) {
                Some(0) => {}
                Some(words) => {
                    self.at += words as u64 * ALIGNED;
                    continue;
                }
                None => {
                    self.at += words_read * ALIGNED;
                    continue;
                }
            }
            let version = u16_at(read, 4);
            let own = u16_at(read, 6).map_or(0, u64::from);
            let len = u64_at(read, 8).unwrap_or(0);
            if version != Some(1) || own < HEADER {
                self.at += ALIGNED;
                continue;
            }
            self.at = at.checked_add(own)?;
            return Some(self.at.saturating_add(len).min(self.end));
        }
        None
    }

    /// Returns the entry at the present place of a fat binary that ends at `end`, and the place of the next entry.
    fn entry(&mut self, end: u64) -> Option<(Entry, u64)> {
        let at = self.at;
        if at.checked_add(ENTRY)? > end {
            return None;
        }
        let header = self.bytes(at, ENTRY as usize, AROUND)?;
        let own = u64::from(u32_at(header, 4)?);
        let padded = u64_at(header, 8)?;
        let flags = u64_at(header, 40)?;
        let packing = match flags {
            _ if flags & LZ4 != 0 => Packing::Lz4,
            _ if flags & ZSTD != 0 => Packing::Zstd,
            _ => Packing::None,
        };
        let payload = at.checked_add(own)?;
        let next = payload.checked_add(padded)?;
        if !(ENTRY..=MOST_HEADER).contains(&own) || next > end {
            return None;
        }
        let stored = u64::from(u32_at(header, 16)?);
        let len = if packing != Packing::None && (1..padded).contains(&stored) {
            stored
        } else {
            padded
        };
        let entry = Entry {
            at: payload,
            len,
            content: match u16_at(header, 0)? {
                1 => Content::Ptx,
                2 | 16 => Content::Elf,
                _ => Content::Other,
            },
            sm: u32_at(header, 28)?,
            packing,
            unpacked: match packing {
                Packing::None => padded,
                _ => u64_at(header, 56)?,
            },
        };
        Some((entry, next))
    }
}
