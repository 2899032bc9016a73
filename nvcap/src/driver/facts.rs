//! The RM tables: names, structure layouts and chip classes, read in place from `nvcap/facts/rm.bin`.
//!
//! The file is made by `cargo xtask facts` from the tables of facts/rm; docs/driver-model.md describes
//! its form. Nothing here allocates or fails: a malformed table gives empty answers, and a test proves that the
//! committed one is whole.

use super::version::Version;
use crate::wire::words;

static BLOB: &[u8] = include_bytes!("../../facts/rm.bin");

const HEAD: usize = 8;

/// The sections of the file, in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Section {
    Strings,
    Tags,
    Controls,
    Classes,
    Allocations,
    Escapes,
    Uvm,
    Status,
    Layouts,
    Fields,
    Chips,
}

#[cfg(test)]
const ALL: [Section; 11] = [
    Section::Strings,
    Section::Tags,
    Section::Controls,
    Section::Classes,
    Section::Allocations,
    Section::Escapes,
    Section::Uvm,
    Section::Status,
    Section::Layouts,
    Section::Fields,
    Section::Chips,
];

impl Section {
    const fn row_size(self) -> usize {
        match self {
            Self::Strings => 1,
            Self::Tags => 6,
            Self::Controls => 20,
            Self::Classes | Self::Status | Self::Chips => 12,
            Self::Allocations | Self::Escapes | Self::Uvm | Self::Layouts | Self::Fields => 16,
        }
    }

    fn head(self) -> (usize, usize) {
        let at = HEAD + self as usize * 8;
        (u32_at(at) as usize, u32_at(at + 4) as usize)
    }

    fn len(self) -> usize {
        self.head().1
    }

    fn row(self, index: usize) -> Row {
        Row {
            at: self.head().0 + index * self.row_size(),
        }
    }

    /// The rows whose first number is `key`.
    fn equal(self, key: u32) -> impl Iterator<Item = Row> {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low + (high - low) / 2;
            if self.row(middle).u32(0) < key {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        (low..self.len())
            .map(move |i| self.row(i))
            .take_while(move |r| r.u32(0) == key)
    }
}

fn u32_at(at: usize) -> u32 {
    words::u32_at(BLOB, at).unwrap_or(0)
}

fn string_at(at: u32) -> &'static str {
    let start = Section::Strings.head().0 + at as usize;
    let Some(&len) = BLOB.get(start) else {
        return "";
    };
    let bytes = BLOB
        .get(start + 1..start + 1 + usize::from(len))
        .unwrap_or_default();
    std::str::from_utf8(bytes).unwrap_or("")
}

#[derive(Clone, Copy, Debug)]
struct Row {
    at: usize,
}

impl Row {
    fn u8(self, offset: usize) -> u8 {
        BLOB.get(self.at + offset).copied().unwrap_or(0)
    }

    fn u16(self, offset: usize) -> u16 {
        u16::from(self.u8(offset)) | u16::from(self.u8(offset + 1)) << 8
    }

    fn u32(self, offset: usize) -> u32 {
        u32_at(self.at + offset)
    }

    fn text(self, offset: usize) -> &'static str {
        string_at(self.u32(offset))
    }

    fn tag(self, offset: usize) -> Version {
        let row = Section::Tags.row(usize::from(self.u8(offset)));
        Version::new(row.u16(0), row.u16(2), row.u16(4))
    }

    fn range(self, offset: usize) -> Range {
        Range {
            first: self.tag(offset),
            last: self.tag(offset + 1),
        }
    }
}

/// The first and the last driver release, in numeric order, that the tables are of.
#[must_use]
pub fn releases() -> (Version, Version) {
    let rows = (0..Section::Tags.len()).map(|n| Section::Tags.row(n));
    let all = rows.map(|row| Version::new(row.u16(0), row.u16(2), row.u16(4)));
    // The least and the greatest stand for rows that are not of certain releases.
    let known = all.filter(|v| v.major != 0 && v.major != u16::MAX);
    known.fold(
        (Version::new(u16::MAX, 0, 0), Version::new(0, 0, 0)),
        |(first, last), v| (first.min(v), last.max(v)),
    )
}

/// First and last release tag in which a row was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Range {
    /// First release tag.
    pub first: Version,
    /// Last release tag.
    pub last: Version,
}

impl Range {
    /// Whether `version` lies in it.
    #[must_use]
    pub fn contains(&self, version: Version) -> bool {
        (self.first..=self.last).contains(&version)
    }
}

/// Of rows for several ranges of releases the one for `version`; the newest where there is none or no version is
/// known, and the first of equals.
fn choose<T>(rows: impl Iterator<Item = (Range, T)>, version: Option<Version>) -> Option<T> {
    let mut best: Option<(Range, T)> = None;
    for (range, value) in rows {
        if version.is_some_and(|v| range.contains(v)) {
            return Some(value);
        }
        let newer = best.as_ref().is_none_or(|(b, _)| match version {
            // Beyond the tables: the nearest range that began before it, else the oldest.
            Some(v) if b.first <= v => range.first <= v && range.last > b.last,
            Some(_) => range.first < b.first,
            None => range.last > b.last,
        });
        if newer {
            best = Some((range, value));
        }
    }
    best.map(|(_, value)| value)
}

/// A named number that carries a structure: a control command, an escape, a UVM ioctl.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Named {
    /// Its name in the public headers.
    pub name: &'static str,
    /// The structure it carries; empty where none is known.
    pub structure: &'static str,
}

pub(crate) fn control(command: u32, version: Option<Version>) -> Option<Named> {
    choose(
        Section::Controls.equal(command).map(|r| {
            let named = Named {
                name: r.text(4),
                structure: r.text(8),
            };
            (r.range(16), named)
        }),
        version,
    )
}

fn numbered(section: Section, number: u32, version: Option<Version>) -> Option<Named> {
    choose(
        section.equal(number).map(|r| {
            let named = Named {
                name: r.text(4),
                structure: r.text(8),
            };
            (r.range(12), named)
        }),
        version,
    )
}

pub(crate) fn escape(nr: u32, version: Option<Version>) -> Option<Named> {
    numbered(Section::Escapes, nr, version)
}

pub(crate) fn uvm(request: u32, version: Option<Version>) -> Option<Named> {
    numbered(Section::Uvm, request, version)
}

/// All UVM request numbers of the tables, each once.
pub(crate) fn uvm_requests() -> impl Iterator<Item = u32> {
    let mut last = None;
    (0..Section::Uvm.len())
        .map(|i| Section::Uvm.row(i).u32(0))
        .filter(move |n| last.replace(*n) != Some(*n))
}

pub(crate) fn class(class: u32) -> Option<&'static str> {
    // The first row holds the name of RM's own resource list, where it has one.
    Section::Classes.equal(class).next().map(|r| r.text(4))
}

/// The structure that an allocation of `class` takes, and whether it must be there.
pub(crate) fn allocation(class: u32, version: Option<Version>) -> Option<&'static str> {
    choose(
        Section::Allocations
            .equal(class)
            .map(|r| (r.range(12), r.text(4))),
        version,
    )
    .filter(|s| !s.is_empty())
}

pub(crate) fn status(code: u32) -> Option<&'static str> {
    Section::Status.equal(code).next().map(|r| r.text(4))
}

/// Chips that have `class`, with the engines it runs on there.
pub(crate) fn chips_with(class: u32) -> impl Iterator<Item = (&'static str, &'static str)> {
    (0..Section::Chips.len())
        .map(|i| Section::Chips.row(i))
        .filter(move |r| r.u32(4) == class)
        .map(|r| (r.text(0), r.text(8)))
}

/// A structure as a range of driver releases lays it out.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    row: Row,
}

/// A field of a structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Field {
    /// Bytes from the structure's start.
    pub offset: usize,
    /// Bytes.
    pub size: usize,
    /// Name; a field of a structure inside is `outer.inner`.
    pub name: &'static str,
    /// C type, `T[n]` for an array.
    pub kind: &'static str,
}

impl Layout {
    /// The structure's name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.row.text(0)
    }

    /// Its size in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.row.u32(4) as usize
    }

    /// The releases that lay it out so.
    #[must_use]
    pub fn range(&self) -> Range {
        self.row.range(14)
    }

    /// Whether no release lays the structure out otherwise.
    #[must_use]
    pub fn is_only(&self) -> bool {
        layouts(self.name()).count() == 1
    }

    /// Its fields, in order of offset but for unions.
    pub fn fields(&self) -> impl Iterator<Item = Field> + use<> {
        let start = self.row.u32(8) as usize;
        let count = usize::from(self.row.u16(12));
        (start..start + count).map(|i| {
            let row = Section::Fields.row(i);
            Field {
                offset: row.u32(0) as usize,
                size: row.u32(4) as usize,
                name: row.text(8),
                kind: row.text(12),
            }
        })
    }

    /// A field by name. `hClient` also finds `params.hClient` of a wrapper.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<Field> {
        self.fields().find(|f| {
            f.name == name
                || f.name
                    .strip_suffix(name)
                    .is_some_and(|head| head == "params.")
        })
    }
}

/// All layouts of a structure, oldest first.
pub fn layouts(name: &str) -> impl Iterator<Item = Layout> + use<'_> {
    let (mut low, mut high) = (0, Section::Layouts.len());
    while low < high {
        let middle = low + (high - low) / 2;
        if Section::Layouts.row(middle).text(0) < name {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    (low..Section::Layouts.len())
        .map(|i| Layout {
            row: Section::Layouts.row(i),
        })
        .take_while(move |l| l.name() == name)
}

/// The layout of a structure of `size` bytes (where the size is known) under `version` (where it is known).
///
/// A size that a layout has decides before the version does: the driver checks sizes, and a version may be a guess.
#[must_use]
pub fn layout(name: &str, version: Option<Version>, size: Option<usize>) -> Option<Layout> {
    let by_version = |of_size: Option<usize>| {
        choose(
            layouts(name)
                .filter(|l| of_size.is_none_or(|s| s == l.size()))
                .map(|l| (l.range(), l)),
            version,
        )
    };
    size.and_then(|s| by_version(Some(s)))
        .or_else(|| by_version(None))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_tables_are_whole() {
        assert_eq!(&BLOB[..4], b"NVRM");
        assert_eq!(u32_at(4), 1);
        let mut at = HEAD + ALL.len() * 8;
        for section in ALL {
            let (start, count) = section.head();
            assert_eq!(start, at, "{section:?}");
            at += count * section.row_size();
        }
        assert_eq!(at, BLOB.len());
        for section in [Section::Controls, Section::Classes, Section::Layouts] {
            for i in 0..section.len() {
                let name = section
                    .row(i)
                    .text(if section == Section::Layouts { 0 } else { 4 });
                assert!(!name.is_empty(), "{section:?} row {i}");
            }
        }
    }

    #[test]
    fn a_layout_follows_size_before_version() {
        let v = |a, b, c| Some(Version::new(a, b, c));
        let size = |s, v, n| layout(s, v, n).map(|l: Layout| l.size());
        assert_eq!(size("NVOS46_PARAMETERS", v(515, 43, 4), None), Some(56));
        assert_eq!(size("NVOS46_PARAMETERS", v(580, 65, 6), None), Some(64));
        assert_eq!(size("NVOS46_PARAMETERS", v(515, 43, 4), Some(64)), Some(64));
        assert_eq!(size("NVOS46_PARAMETERS", None, None), Some(64));
        // A size no release has: the version decides.
        assert_eq!(
            size("NVOS46_PARAMETERS", v(550, 54, 14), Some(99)),
            Some(56)
        );
        // Newer than every table.
        assert_eq!(
            size("NV_CHANNEL_ALLOC_PARAMS", v(900, 1, 1), None),
            Some(368)
        );
        assert!(layout("NO_SUCH_STRUCTURE", None, None).is_none());
    }
}
