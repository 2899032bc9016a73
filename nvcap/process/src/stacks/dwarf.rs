//! Source lines and inlined functions, from a file's debugging information.

use std::sync::Arc;

use addr2line::Context;
use gimli::{Dwarf, EndianArcSlice, LittleEndian};

type Reader = EndianArcSlice<LittleEndian>;

/// A place in the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Symbol of the function, as the compiler wrote it.
    pub function: Option<String>,
    pub file: Option<String>,
    pub line: Option<u32>,
}

/// Source lines and inlined functions of a file, from its debugging information.
pub(super) struct Lines(Context<Reader>);

impl std::fmt::Debug for Lines {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Lines")
    }
}

impl Lines {
    /// Makes the lines of a file; `None` if the file has none. `section` returns a section's bytes by its name.
    pub(super) fn of(mut section: impl FnMut(&str) -> Option<Vec<u8>>) -> Option<Self> {
        let load = |id: gimli::SectionId| -> Result<Reader, gimli::Error> {
            let bytes = section(id.name()).unwrap_or_default();
            Ok(Reader::new(Arc::from(bytes), LittleEndian))
        };
        let dwarf = Dwarf::load(load).ok()?;
        Context::from_dwarf(dwarf).ok().map(Self)
    }

    /// Returns the source places of an address, the innermost inlined function first; the last is the function itself.
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
