//! Source lines and inlined functions, from a file's debugging information.

use std::{io::Read as _, sync::Arc};

use addr2line::Context;
use gimli::{Dwarf, EndianArcSlice, LittleEndian};

use super::elf::{Elf, Section};

type Reader = EndianArcSlice<LittleEndian>;

/// The most bytes of debugging information of one file that are read, uncompressed.
const MOST: u64 = 512 << 20;

/// A place in the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The function's symbol, as the compiler wrote it.
    pub function: Option<String>,
    pub file: Option<String>,
    pub line: Option<u32>,
}

/// See the module.
pub(super) struct Lines(Context<Reader>);

impl std::fmt::Debug for Lines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Lines")
    }
}

impl Lines {
    /// Those of a file; `None` where it has none, or too many.
    pub(super) fn of(elf: &Elf) -> Option<Self> {
        elf.section(".debug_info")?;
        let mut room = MOST;
        let load = |id: gimli::SectionId| -> Result<Reader, gimli::Error> {
            let bytes = elf
                .section(id.name())
                .and_then(|section| read(elf, section, &mut room))
                .unwrap_or_default();
            Ok(Reader::new(Arc::from(bytes), LittleEndian))
        };
        let dwarf = Dwarf::load(load).ok()?;
        Context::from_dwarf(dwarf).ok().map(Self)
    }

    /// The places of an address, the innermost inlined function first; the last is the function itself.
    pub(super) fn at(&self, address: u64) -> Vec<Place> {
        let mut places = Vec::new();
        let Ok(mut frames) = self.0.find_frames(address).skip_all_loads() else {
            return places;
        };
        while let Ok(Some(frame)) = frames.next() {
            let function = frame.function.as_ref();
            let function = function.and_then(|f| f.raw_name().ok().map(|n| n.into_owned()));
            let location = frame.location.as_ref();
            places.push(Place {
                function,
                file: location.and_then(|l| l.file).map(str::to_owned),
                line: location.and_then(|l| l.line),
            });
            if places.len() == 64 {
                break;
            }
        }
        places
    }
}

/// A section's bytes, decompressed.
fn read(elf: &Elf, section: Section, room: &mut u64) -> Option<Vec<u8>> {
    let bytes = elf.bytes(section)?;
    if !section.compressed {
        *room = room.checked_sub(bytes.len() as u64)?;
        return Some(bytes);
    }
    // Elf64_Chdr: type, reserved, size, alignment.
    let kind = crate::wire::words::u32_at(&bytes, 0)?;
    let size = crate::wire::words::u64_at(&bytes, 8)?;
    let packed = bytes.get(24..)?;
    *room = room.checked_sub(size)?;
    let mut whole = Vec::new();
    (kind == object::elf::ELFCOMPRESS_ZLIB).then_some(())?;
    let mut unpacked = flate2::read::ZlibDecoder::new(packed).take(size);
    unpacked.read_to_end(&mut whole).ok()?;
    (whole.len() as u64 == size).then_some(whole)
}
