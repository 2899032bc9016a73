//! GPFIFO entries: 8 bytes of a channel's ring, each a segment of pushbuffer words or a control.
//!
//! Layout of the host classes 906f to ca6f: an address of 40 bits and a length in dwords; length 0 makes the entry a control. From Hopper
//! on (c86f) addresses have 57 bits: bits 56:40 come from the last SET_PB_SEGMENT_EXTENDED_BASE entry of the channel.

use std::fmt;

pub use nvcap_common::entry::extended_base;
use nvcap_common::entry::{ADDRESS, DWORDS, DWORDS_AT, SET_EXTENDED_BASE, dwords, opcode};

use super::{GpuVa, words::u64s};

/// Opcode of a control entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Opcode(pub u8);

impl Opcode {
    /// No operation.
    pub const NOP: Self = Self(0);
    /// Raises an error.
    pub const ILLEGAL: Self = Self(1);
    /// Checks the CRC of ring entries.
    pub const GP_CRC: Self = Self(2);
    /// Checks the CRC of pushbuffer words.
    pub const PB_CRC: Self = Self(3);
    /// Sets bits 56:40 of the addresses that follow (c86f and later).
    pub const SET_PB_SEGMENT_EXTENDED_BASE: Self = Self(SET_EXTENDED_BASE);
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self.0 {
            0 => "NOP",
            1 => "ILLEGAL",
            2 => "GP_CRC",
            3 => "PB_CRC",
            4 => "SET_PB_SEGMENT_EXTENDED_BASE",
            other => return write!(f, "{other:#x}"),
        })
    }
}

/// Kind of a GPFIFO entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A segment of pushbuffer words.
    Segment {
        /// GPU address.
        address: GpuVa,
        /// Length in bytes.
        len: u32,
        /// True if the segment is fetched only while the subdevice is active.
        conditional: bool,
        /// True for a subroutine (LEVEL).
        subroutine: bool,
        /// True if the host waits before fetching (SYNC).
        sync: bool,
    },
    /// A control entry (LENGTH = 0).
    Control {
        /// Opcode (OPCODE).
        opcode: u8,
        /// Operand (OPERAND).
        operand: u32,
        /// True if the host waits before the entry (SYNC).
        sync: bool,
    },
}

impl EntryKind {
    /// Returns address and length in bytes of a segment; `None` for a control.
    pub fn segment(self) -> Option<(GpuVa, u32)> {
        match self {
            Self::Segment { address, len, .. } => Some((address, len)),
            Self::Control { .. } => None,
        }
    }
}

/// The most pushbuffer bytes to which one entry points: 8 MiB less one word.
pub const MAX_LEN: u32 = DWORDS * 4;

/// Returns the number of pushbuffer bytes to which a ring entry points; 0 for a control entry.
#[inline]
pub fn len(raw: u64) -> u32 {
    dwords(raw) * 4
}

/// Reads a ring entry. `base` is the channel's extended base (bits 56:40 of addresses, already in place; 0 before Hopper).
pub fn read(raw: u64, base: u64) -> EntryKind {
    let high = (raw >> 32) as u32;
    let len = len(raw);
    let sync = high >> 31 != 0;
    if len == 0 {
        return EntryKind::Control {
            opcode: opcode(raw),
            operand: raw as u32,
            sync,
        };
    }
    EntryKind::Segment {
        address: GpuVa(base | (raw & ADDRESS)),
        len,
        conditional: raw & 1 != 0,
        subroutine: high & 1 << 9 != 0,
        sync,
    }
}

/// Steps over an entry of a channel whose extended base is `base`. Returns the address and length in bytes of a segment, or `None` for a
/// control entry, which may change `base`.
pub fn pass(raw: u64, base: &mut u64) -> Option<(GpuVa, u32)> {
    let kind = read(raw, *base);
    if let EntryKind::Control {
        opcode, operand, ..
    } = kind
    {
        apply_control(opcode, operand, base);
    }
    kind.segment()
}

/// Returns the address and length in bytes of an entry's segment, in a channel whose extended base is `base`; `None` for a control entry.
pub fn segment_of(raw: u64, base: u64) -> Option<(GpuVa, u32)> {
    read(raw, base).segment()
}

/// Applies a control entry to the extended base.
pub fn apply_control(opcode: u8, operand: u32, base: &mut u64) {
    if Opcode(opcode) == Opcode::SET_PB_SEGMENT_EXTENDED_BASE {
        *base = extended_base(operand);
    }
}

/// Makes a segment entry: the inverse of [`read`]. `len` is cut to whole dwords, and their number to 21 bits.
pub fn segment(address: GpuVa, len: u32, conditional: bool, subroutine: bool, sync: bool) -> u64 {
    let dwords = u64::from(len >> 2 & DWORDS);
    (address.0 & ADDRESS)
        | u64::from(conditional)
        | u64::from(subroutine) << 41
        | dwords << DWORDS_AT
        | u64::from(sync) << 63
}

/// Makes a control entry: the inverse of [`read`].
pub fn control(opcode: Opcode, operand: u32, sync: bool) -> u64 {
    u64::from(operand) | u64::from(opcode.0) << 32 | u64::from(sync) << 63
}

/// Returns the entries in a piece of ring memory.
pub fn iter(ring: &[u8]) -> impl Iterator<Item = u64> {
    u64s(ring)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn real_entry() {
        // From captures/h200-mixed: the launch of vadd_4096x256.
        let kind = read(0x0006_1a02_0089_0cc8, 0);
        let EntryKind::Segment {
            address,
            len,
            conditional,
            subroutine,
            sync,
        } = kind
        else {
            panic!("{kind:?}")
        };
        assert_eq!((address, len), (GpuVa(0x2_0089_0cc8), 0x618));
        assert_eq!(super::len(0x0006_1a02_0089_0cc8), len);
        // CUDA sets LEVEL (subroutine) in every entry of that capture.
        assert!(!conditional && subroutine && !sync);
        assert_eq!(
            segment(address, len, conditional, subroutine, sync),
            0x0006_1a02_0089_0cc8
        );
    }

    #[test]
    fn extended() {
        let raw = control(Opcode::SET_PB_SEGMENT_EXTENDED_BASE, 0x1_2345 << 8, true);
        let EntryKind::Control {
            opcode: 4,
            operand,
            sync: true,
        } = read(raw, 0)
        else {
            panic!()
        };
        assert_eq!(extended_base(operand), 0x1_2345 << 40);
        let raw = segment(GpuVa(0x1000), 8, true, false, false);
        let EntryKind::Segment {
            address,
            conditional: true,
            ..
        } = read(raw, extended_base(operand))
        else {
            panic!()
        };
        assert_eq!(address, GpuVa(0x1_2345 << 40 | 0x1000));
    }

    #[test]
    fn passing_entries_keeps_the_base() {
        let mut base = 0;
        let raw = control(Opcode::SET_PB_SEGMENT_EXTENDED_BASE, 0x1_2345 << 8, true);
        assert_eq!(pass(raw, &mut base), None);
        assert_eq!(pass(control(Opcode::NOP, 7 << 8, false), &mut base), None);
        let raw = segment(GpuVa(0x1000), 8, true, false, false);
        assert_eq!(
            pass(raw, &mut base),
            Some((GpuVa(0x1_2345 << 40 | 0x1000), 8))
        );
    }
}
