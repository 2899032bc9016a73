//! The words of a GPFIFO entry, as far as both sides parse them. The user program interprets them in `nvcap::wire::entry`.
//!
//! Layout of the host classes 906f to ca6f: an address of 40 bits and a length in dwords; length 0 makes it a control entry.

/// Bits 39:2 of an address in an entry.
pub const ADDRESS: u64 = 0xff_ffff_fffc;
/// Opcode of the control entry that sets bits 56:40 of the addresses that follow (c86f and later).
pub const SET_EXTENDED_BASE: u8 = 4;
/// Bits of LENGTH.
pub const DWORDS: u32 = 0x1f_ffff;
/// Lowest bit of LENGTH.
pub const DWORDS_AT: u32 = 42;

/// LENGTH: dwords of pushbuffer that the entry points to; 0 for a control entry.
#[inline(always)]
pub const fn dwords(entry: u64) -> u32 {
    (entry >> DWORDS_AT) as u32 & DWORDS
}

/// OPCODE of a control entry.
#[inline(always)]
pub const fn opcode(entry: u64) -> u8 {
    (entry >> 32) as u8
}

/// Returns the address bits 56:40 that the operand of SET_PB_SEGMENT_EXTENDED_BASE (bits 24:8 of the entry) sets, at their
/// place in an address.
#[inline(always)]
pub const fn extended_base(operand: u32) -> u64 {
    ((operand as u64 >> 8) & 0x1_ffff) << 40
}
