//! Blocks from any bytes: the whole blocks, and errors for the bytes that are not blocks.

use std::io::{self, Read};

use super::{
    BYTE_ORDER, CUSTOM, CUSTOM_NOT_COPIED, INTERFACE, JOURNAL, MOST_BLOCK, NAMES, PACKET, SECRETS,
    SECTION, STATISTICS,
};
use crate::read_ahead::{Failed, ReadAhead};

/// The shortest block: type, length, length again.
const SHORTEST: usize = 12;
/// The most bytes that are searched for the next block.
const MOST_SKIPPED: u64 = 1 << 30;

/// A block, with the parts that a reader of packets uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Block<'a> {
    /// A section begins.
    Section,
    /// An interface, with its link type.
    Interface {
        /// The link type.
        link: u16,
    },
    /// A packet.
    Packet(Packet<'a>),
    /// Another block, by its type.
    Other(u32),
}

/// A packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packet<'a> {
    /// Number of the interface, counted from the section's beginning.
    pub(crate) interface: u32,
    /// Bytes that were captured.
    pub(crate) data: &'a [u8],
    /// Offset of the bytes in the file.
    pub(crate) offset: u64,
}

/// Error in a file.
#[derive(Debug, thiserror::Error)]
pub enum Damage {
    /// The file could not be read.
    #[error("reading the capture failed at byte {offset}: {source}")]
    Io {
        /// Offset in the (decompressed) file.
        offset: u64,
        /// Error of the system.
        source: io::Error,
    },
    /// The last block is cut off.
    #[error("the file ends within a block: {have} bytes of the block at byte {offset} are there")]
    Cut {
        /// Offset of the last block.
        offset: u64,
        /// Number of bytes of the block that are present.
        have: u64,
    },
    /// Bytes between blocks that are no block.
    #[error(
        "no block at byte {offset}: {skipped} B are passed over, and reading goes on behind them"
    )]
    Skipped {
        /// Offset of the place in the file, bytes.
        offset: u64,
        /// Number of bytes that were skipped.
        skipped: u64,
    },
    /// The search for the next block was given up.
    #[error(
        "no block at byte {offset}, nor in the {skipped} B from there on: the rest is not read"
    )]
    GivenUp {
        /// Offset of the place in the file, bytes.
        offset: u64,
        /// Number of bytes that were searched.
        skipped: u64,
    },
}

/// Reader of the blocks of a file, one after another.
pub(crate) struct Blocks<R> {
    /// File, at the next block.
    file: ReadAhead<R>,
    done: bool,
    big_endian: bool,
}

/// Result of looking for a block at a place.
enum Here {
    /// A block of this many bytes.
    Block(usize),
    /// Undecided: this many bytes must be present to decide.
    Needs(usize),
    Nothing,
}

impl<R: Read> Blocks<R> {
    /// Reads the blocks of `reader`, which is not compressed.
    pub(crate) fn new(reader: R) -> Self {
        Self {
            file: ReadAhead::new(reader),
            done: false,
            big_endian: false,
        }
    }

    /// Returns the number of bytes of the file that were read and given.
    #[must_use]
    pub(crate) fn position(&self) -> u64 {
        self.file.position()
    }

    /// Returns the next block; `None` at the end. After an error, reading continues behind the damage.
    pub(crate) fn next_block(&mut self) -> Option<Result<Block<'_>, Damage>> {
        if self.done {
            return None;
        }
        let len = match self.find() {
            Ok(Some(len)) => len,
            Ok(None) => {
                self.done = true;
                return None;
            }
            Err(damage) => return Some(Err(damage)),
        };
        let offset = self.position();
        let block = self.file.pass(len);
        if is_section(block) {
            self.big_endian = big_endian_section(block);
            return Some(Ok(Block::Section));
        }
        Some(Ok(parse(block, self.big_endian, offset)))
    }

    /// Finds the next block, and returns its length.
    fn find(&mut self) -> Result<Option<usize>, Damage> {
        let begin = self.position();
        loop {
            let wanted = match here_is(self.file.rest(), self.big_endian, MOST_BLOCK) {
                Here::Block(len) => {
                    let skipped = self.position() - begin;
                    return match skipped {
                        0 => Ok(Some(len)),
                        _ => Err(Damage::Skipped {
                            offset: begin,
                            skipped,
                        }),
                    };
                }
                Here::Needs(wanted) => wanted,
                Here::Nothing => {
                    self.file.pass(1);
                    let skipped = self.position() - begin;
                    if skipped > MOST_SKIPPED {
                        self.done = true;
                        return Err(Damage::GivenUp {
                            offset: begin,
                            skipped,
                        });
                    }
                    continue;
                }
            };
            let filled = self.file.fill(wanted);
            if filled.map_err(|Failed { offset, source }| Damage::Io { offset, source })? {
                continue;
            }
            // The file ends here. The remaining bytes may be a block that was cut, or damage with whole blocks in it.
            if self.file.rest().is_empty() {
                return match self.position() - begin {
                    0 => Ok(None),
                    skipped => Err(Damage::Skipped {
                        offset: begin,
                        skipped,
                    }),
                };
            }
            if let Some(next) = self.whole_block_behind() {
                self.file.pass(next);
                continue;
            }
            self.done = true;
            let have = self.position() + self.file.rest().len() as u64 - begin;
            return Err(Damage::Cut {
                offset: begin,
                have,
            });
        }
    }

    /// Returns the distance to a whole block in the rest of the file, bytes.
    fn whole_block_behind(&self) -> Option<usize> {
        let rest = self.file.rest();
        (1..rest.len()).find(|at| {
            let here = &rest[*at..];
            matches!(here_is(here, self.big_endian, MOST_BLOCK), Here::Block(_))
        })
    }
}

fn number(b: &[u8], at: usize, big_endian: bool) -> Option<u32> {
    let bytes: [u8; 4] = b.get(at..at + 4)?.try_into().ok()?;
    Some(match big_endian {
        true => u32::from_be_bytes(bytes),
        false => u32::from_le_bytes(bytes),
    })
}

/// Tells whether a block is a section header: its type is the same in both byte orders.
fn is_section(block: &[u8]) -> bool {
    number(block, 0, false) == Some(SECTION)
}

fn big_endian_section(block: &[u8]) -> bool {
    number(block, 8, true) == Some(BYTE_ORDER)
}

/// Looks for a block at `here`: of a known kind, with the same length before and behind it.
fn here_is(here: &[u8], big_endian: bool, most: u32) -> Here {
    if here.len() < SHORTEST {
        return Here::Needs(SHORTEST);
    }
    let big_endian = match is_section(here) {
        true => big_endian_section(here),
        false => big_endian,
    };
    let (Some(kind), Some(len)) = (number(here, 0, big_endian), number(here, 4, big_endian)) else {
        return Here::Nothing;
    };
    let is_known = matches!(
        kind,
        SECTION
            | INTERFACE
            | 3
            | NAMES
            | STATISTICS
            | PACKET
            | JOURNAL
            | SECRETS
            | CUSTOM
            | CUSTOM_NOT_COPIED
    );
    if !is_known || len < SHORTEST as u32 || len % 4 != 0 || len > most {
        return Here::Nothing;
    }
    let len = len as usize;
    if here.len() < len {
        return Here::Needs(len);
    }
    match number(here, len - 4, big_endian) == Some(len as u32) {
        true => Here::Block(len),
        false => Here::Nothing,
    }
}

fn parse(block: &[u8], big_endian: bool, offset: u64) -> Block<'_> {
    let number = |at| number(block, at, big_endian).unwrap_or(0);
    let kind = number(0);
    match kind {
        INTERFACE => {
            let two = block.get(8..10).and_then(|b| b.try_into().ok());
            let two: [u8; 2] = two.unwrap_or_default();
            Block::Interface {
                link: match big_endian {
                    true => u16::from_be_bytes(two),
                    false => u16::from_le_bytes(two),
                },
            }
        }
        PACKET => {
            let len = number(20) as usize;
            let data = block.get(28..block.len() - 4).unwrap_or(&[]);
            Block::Packet(Packet {
                interface: number(8),
                data: data.get(..len).unwrap_or(data),
                offset: offset + 28,
            })
        }
        _ => Block::Other(kind),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{self as pcapng, Options};
    use super::*;

    fn file(packets: u32) -> Vec<u8> {
        let mut to = Vec::new();
        pcapng::section(&mut to, &Options::new().text(4, "a program"));
        pcapng::interface(&mut to, 1 << 18, &Options::new().text(2, "one"));
        for n in 0..packets {
            let data = vec![n as u8; n as usize % 13];
            pcapng::packet(&mut to, 0, u64::from(n), &[&data]);
        }
        pcapng::statistics(&mut to, 0, 7, &Options::new().number(4, u64::from(packets)));
        pcapng::journal_entry(&mut to, &[("MESSAGE", "one"), ("X", "two\nlines")]);
        pcapng::custom(&mut to, 32473, b"odd");
        to
    }

    /// Reads the packets' first bytes and lengths, and the damages.
    fn read(bytes: &[u8]) -> (Vec<Vec<u8>>, Vec<String>) {
        let mut blocks = Blocks::new(bytes);
        let (mut packets, mut damages) = (Vec::new(), Vec::new());
        while let Some(block) = blocks.next_block() {
            match block {
                Ok(Block::Packet(p)) => packets.push(p.data.to_vec()),
                Ok(_) => {}
                Err(e) => damages.push(e.to_string()),
            }
        }
        (packets, damages)
    }

    #[test]
    fn what_is_written_is_read() {
        let bytes = file(40);
        let (packets, damages) = read(&bytes);
        let wanted: Vec<Vec<u8>> = (0..40).map(|n| vec![n; usize::from(n) % 13]).collect();
        assert_eq!((packets, damages), (wanted, Vec::new()));
        let mut blocks = Blocks::new(&bytes[..]);
        let mut kinds = Vec::new();
        while let Some(Ok(block)) = blocks.next_block() {
            match block {
                Block::Packet(_) => {}
                other => kinds.push(format!("{other:?}")),
            }
        }
        let wanted = [
            "Section",
            "Interface { link: 147 }",
            "Other(5)",
            "Other(9)",
            "Other(2989)",
        ];
        assert_eq!(kinds, wanted);
    }

    #[test]
    fn other_byte_orders_are_read() {
        let mut bytes = Vec::new();
        for word in [SECTION, 28, BYTE_ORDER, 1 << 16, u32::MAX, u32::MAX, 28] {
            bytes.extend_from_slice(&word.to_be_bytes());
        }
        for word in [PACKET, 36, 3, 0, 9, 3, 3, 0x4142_4300, 36] {
            bytes.extend_from_slice(&word.to_be_bytes());
        }
        assert_eq!(read(&bytes), (vec![b"ABC".to_vec()], Vec::new()));
    }

    #[test]
    fn a_cut_file_has_its_whole_packets() {
        let bytes = file(40);
        let ends: Vec<usize> = {
            let mut blocks = Blocks::new(&bytes[..]);
            let mut ends = Vec::new();
            while let Some(Ok(_)) = blocks.next_block() {
                ends.push(blocks.position() as usize);
            }
            ends
        };
        for cut in 0..bytes.len() {
            let (packets, damages) = read(&bytes[..cut]);
            let whole = ends.iter().filter(|e| **e <= cut).count();
            assert_eq!(packets.len(), whole.saturating_sub(2).min(40), "{cut}");
            let at_end = cut == 0 || ends.contains(&cut);
            assert_eq!(damages.len(), usize::from(!at_end), "{cut}: {damages:?}");
        }
    }

    #[test]
    fn reading_goes_on_behind_damage() {
        let bytes = file(40);
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x5a;
            let (packets, _) = read(&damaged);
            assert!(packets.len() >= 38, "{at}: {}", packets.len());
        }
        let mut longer = bytes[..bytes.len() / 2].to_vec();
        longer.extend_from_slice(b"something else");
        longer.extend_from_slice(&bytes[bytes.len() / 2..]);
        let (packets, damages) = read(&longer);
        assert!(packets.len() >= 39 && damages.len() == 1, "{damages:?}");
    }
}
