//! Attributes of an image and of its functions: the sections `.nv.info` and `.nv.info.NAME`.
//!
//! An attribute is a byte for its format, a byte for its number, and a half-word: the value itself, or the length of the
//! value that follows.

use crate::wire::words::u32_at;

/// The value is the byte that follows.
const BVAL: u8 = 2;
/// Attribute of `.nv.compat`: the code is for this architecture alone.
const ACCELERATED: u8 = 9;
/// A value follows, of the given length.
const SVAL: u8 = 4;
/// Place of a kernel's parameters in constant bank 0.
const PARAM_CBANK: u8 = 0x0a;
/// One parameter.
const KPARAM_INFO: u8 = 0x17;
/// Registers of a thread, by function.
const REGCOUNT: u8 = 0x2f;
/// One parameter of a kernel with more than 4 KiB of them.
const KPARAM_INFO_V2: u8 = 0x45;

/// A parameter of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Param {
    /// Number of the parameter, from 0.
    pub ordinal: u16,
    /// Offset among the parameters, bytes.
    pub offset: u32,
    /// Size, bytes.
    pub size: u32,
}

/// A kernel's parameters in constant bank 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bank {
    /// Offset of the parameters in the bank.
    pub offset: u32,
    /// Size of all parameters together, bytes.
    pub size: u32,
}

/// Parameters of a function, as its attributes give them.
#[derive(Default)]
pub(super) struct Parameters {
    pub(super) params: Vec<Param>,
    pub(super) bank: Option<Bank>,
}

/// Returns number and value of each attribute that has a value of its own.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        loop {
            let [format, number, low, high, rest @ ..] = bytes else {
                return None;
            };
            // Formats 1 to 3 (no value, a byte, a half-word): no further bytes follow.
            if matches!(format, 1..=3) {
                bytes = rest;
                continue;
            }
            if *format != SVAL {
                return None;
            }
            let len = usize::from(u16::from_le_bytes([*low, *high]));
            let value = rest.get(..len)?;
            bytes = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
            return Some((*number, value));
        }
    })
}

/// Tells whether the section `.nv.compat` says that the code is for one architecture alone. The section holds attributes like those of
/// `.nv.info`; number 9 has a byte as its value.
pub(super) fn is_accelerated(mut bytes: &[u8]) -> bool {
    while let [format, number, low, high, rest @ ..] = bytes {
        bytes = match *format {
            BVAL if *number == ACCELERATED => return *low != 0,
            SVAL => {
                let len = usize::from(u16::from_le_bytes([*low, *high]));
                rest.get(len.next_multiple_of(4)..).unwrap_or_default()
            }
            _ => rest,
        };
    }
    false
}

/// Tells whether an image is for a family of architectures. The note of the tools that made it (`.note.nv.tkinfo`) holds the assembler's
/// command line, whose target is then the family: `-arch sm_100f`.
pub(super) fn is_for_family(note: &[u8], sm: u32) -> bool {
    let target = format!("sm_{sm}f");
    let is_end = |b: Option<&u8>| b.is_none_or(|b| !b.is_ascii_alphanumeric());
    [" ", "="].iter().any(|between| {
        let wanted = format!("-arch{between}{target}");
        let mut all = note.windows(wanted.len()).enumerate();
        all.any(|(at, part)| part == wanted.as_bytes() && is_end(note.get(at + wanted.len())))
    })
}

/// Returns the numbers of registers of functions, each with the index of the function's symbol.
pub(super) fn registers(bytes: &[u8]) -> impl Iterator<Item = (u32, u32)> {
    attributes(bytes)
        .filter(|(number, _)| *number == REGCOUNT)
        .filter_map(|(_, value)| Some((u32_at(value, 0)?, u32_at(value, 4)?)))
}

/// The parameters of a function.
pub(super) fn parameters(bytes: &[u8]) -> Parameters {
    let mut found = Parameters::default();
    for (number, value) in attributes(bytes) {
        let words = (u32_at(value, 4), u32_at(value, 8));
        match (number, words) {
            (PARAM_CBANK, (Some(both), _)) => {
                found.bank = Some(Bank {
                    offset: both & 0xffff,
                    size: both >> 16,
                });
            }
            (KPARAM_INFO | KPARAM_INFO_V2, (Some(place), Some(last))) => {
                let size = if number == KPARAM_INFO {
                    // The lower bits are the bank, the space, and the pointer's alignment.
                    last >> 18
                } else {
                    last & 0xffff
                };
                found.params.push(Param {
                    ordinal: place as u16,
                    offset: place >> 16,
                    size,
                });
            }
            _ => {}
        }
    }
    found.params.sort_by_key(|p| (p.ordinal, p.offset));
    found.params.dedup_by_key(|p| p.ordinal);
    found
}
