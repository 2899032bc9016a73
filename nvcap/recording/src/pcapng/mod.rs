//! Blocks of pcapng files (draft-ietf-opsawg-pcapng), written and read. The module knows nothing of the packets' contents.
//!
//! Other crates for this format are made for network packets, for which a full disk or a damaged file is rare. This reader continues behind
//! the damage in a file that was cut, overwritten or extended anywhere, which none of those crates does. Only six kinds of blocks are
//! written. Wireshark's own programs check them (`tests/`).

mod read;
mod write;

pub use read::Damage;
pub(crate) use read::{Block, Blocks};
pub(crate) use write::{Options, custom, interface, journal_entry, packet, section, statistics};

/// First four bytes of a file: the type of its first block.
pub(crate) const MAGIC: [u8; 4] = SECTION.to_le_bytes();

/// Section header block.
const SECTION: u32 = 0x0a0d_0d0a;
/// Interface description block.
const INTERFACE: u32 = 1;
/// Name resolution block.
const NAMES: u32 = 4;
/// Interface statistics block.
const STATISTICS: u32 = 5;
/// Enhanced packet block.
const PACKET: u32 = 6;
/// systemd journal export block.
const JOURNAL: u32 = 9;
/// Decryption secrets block.
const SECRETS: u32 = 10;
/// Custom block that programs may copy to another file.
const CUSTOM: u32 = 0x0bad;
/// Custom block that programs may not copy to another file.
const CUSTOM_NOT_COPIED: u32 = 0x4000_0bad;
/// Number that shows the byte order of a section.
const BYTE_ORDER: u32 = 0x1a2b_3c4d;

/// Link type for a program's own packets (LINKTYPE_USER0).
pub(crate) const USER0: u16 = 147;

/// The most bytes of a block. Wireshark reads packets of 256 KiB and blocks of 16 MiB.
pub(crate) const MOST_BLOCK: u32 = 16 << 20;

/// Option codes of all blocks.
pub(crate) mod option {
    /// Any block: a comment.
    pub(crate) const COMMENT: u16 = 1;
    /// Section: the hardware.
    pub(crate) const HARDWARE: u16 = 2;
    /// Section: the operating system.
    pub(crate) const SYSTEM: u16 = 3;
    /// Section: the program that wrote the file.
    pub(crate) const PROGRAM: u16 = 4;
    /// Interface: its name.
    pub(crate) const NAME: u16 = 2;
    /// Interface: its description.
    pub(crate) const DESCRIPTION: u16 = 3;
    /// Interface: unit of times, s, as a negative power of 10.
    pub(crate) const RESOLUTION: u16 = 9;
    /// Statistics: time at which the capture began.
    pub(crate) const BEGIN: u16 = 2;
    /// Statistics: time at which the capture ended.
    pub(crate) const END: u16 = 3;
    /// Statistics: packets received.
    pub(crate) const RECEIVED: u16 = 4;
    /// Statistics: packets dropped by the interface.
    pub(crate) const DROPPED: u16 = 5;
}
