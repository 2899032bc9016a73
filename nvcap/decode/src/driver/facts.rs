//! RM tables: names, structure layouts and chip classes, read in place from `nvcap/facts/rm.bin`.
//!
//! `cargo xtask facts` makes the file from the tables of facts/rm. No function here allocates or fails.

use super::version::Version;
use crate::tables::{File, Row, Run, Table, Text, tables};

static FILE: File = File::new(include_bytes!("../../facts/rm.bin"));

// Each table is sorted by its first column. `first` and `last` are rows of the table of releases.
tables! { FILE;
    RELEASES = "releases": ReleaseRow { major: u16, minor: u16, patch: u16 }
    CONTROLS = "controls": ControlRow { number: u32, name: Text, structure: Text, first: u8, last: u8 }
    /// Classes. A class with several names has first the name in RM's own resource list.
    CLASSES = "classes": ClassRow { number: u32, name: Text }
    ALLOCATIONS = "allocations": AllocationRow { class: u32, structure: Text, first: u8, last: u8 }
    ESCAPES = "escapes": EscapeRow { number: u32, name: Text, structure: Text, first: u8, last: u8 }
    UVM = "uvm": UvmRow { number: u32, name: Text, structure: Text, first: u8, last: u8 }
    STATUS = "status": StatusRow { code: u32, name: Text }
    LAYOUTS = "layouts": LayoutRow { name: Text, size: u32, fields: Run<FieldRow>, first: u8, last: u8 }
    FIELDS = "fields": FieldRow { offset: u32, size: u32, name: Text, kind: Text }
    CHIPS = "chips": ChipRow { name: Text, class: u32, engines: Text }
}

fn release(row: ReleaseRow) -> Version {
    Version::new(row.major(), row.minor(), row.patch())
}

/// Returns the first and the last driver release in the tables, in numeric order.
#[must_use]
pub fn releases() -> (Version, Version) {
    // The least and the greatest version mark rows that hold for all releases.
    let known = RELEASES
        .all()
        .map(release)
        .filter(|v| v.major != 0 && v.major != u16::MAX);
    known.fold(
        (Version::new(u16::MAX, 0, 0), Version::new(0, 0, 0)),
        |(first, last), v| (first.min(v), last.max(v)),
    )
}

/// Tells whether a release is later than all in the tables.
pub(crate) fn is_newer(version: Version) -> bool {
    version > releases().1
}

/// Returns words to the user about a release later than all in the tables; `None` for other releases.
#[must_use]
pub fn newer_release(version: Version) -> Option<String> {
    is_newer(version).then(|| {
        let (first, last) = releases();
        format!(
            "the driver's release {version} is newer than those that nvcap knows ({first} to {last}): structures of its calls whose size is \
             another are shown raw, and those that grew without saying so are read by evidence or may be misread"
        )
    })
}

/// First and last release in which a row was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// First release.
    pub first: Version,
    /// Last release.
    pub last: Version,
}

impl Range {
    fn of(first: u8, last: u8) -> Self {
        let tag = |row: u8| release(RELEASES.row(row.into()));
        Self {
            first: tag(first),
            last: tag(last),
        }
    }

    /// Tells whether `version` lies in the range.
    #[must_use]
    pub fn contains(&self, version: Version) -> bool {
        (self.first..=self.last).contains(&version)
    }
}

/// Chooses the row for `version` from rows for several ranges of releases. If none fits or the version is unknown, it is the newest row; of
/// equal rows, the first.
fn choose<T>(rows: impl Iterator<Item = (Range, T)>, version: Option<Version>) -> Option<T> {
    let mut best: Option<(Range, T)> = None;
    for (range, value) in rows {
        if version.is_some_and(|v| range.contains(v)) {
            return Some(value);
        }
        let newer = best.as_ref().is_none_or(|(b, _)| match version {
            // Outside the tables, it is the nearest range that began before the version, else the oldest.
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
pub struct Named {
    /// Name in the public headers.
    pub name: &'static str,
    /// Name of the structure that it carries; empty if none is known.
    pub structure: &'static str,
}

/// Makes a look-up of a number in a table of named numbers.
macro_rules! numbered {
    ($function:ident, $table:ident, $row:ident) => {
        pub(crate) fn $function(number: u32, version: Option<Version>) -> Option<Named> {
            let equal = equal(&$table, number, $row::number).map(|row| {
                let named = Named {
                    name: row.name(),
                    structure: row.structure(),
                };
                (Range::of(row.first(), row.last()), named)
            });
            choose(equal, version)
        }
    };
}
numbered!(control, CONTROLS, ControlRow);
numbered!(escape, ESCAPES, EscapeRow);
numbered!(uvm, UVM, UvmRow);

/// Returns the rows of a table that have this key.
fn equal<R: Row, K: Ord + Copy>(
    table: &'static Table<R>,
    wanted: K,
    key: fn(R) -> K,
) -> impl Iterator<Item = R> {
    let rows = table.from(wanted, key).map(|(_, row)| row);
    rows.take_while(move |row| key(*row) == wanted)
}

/// Returns all UVM request numbers of the tables, each once.
pub(crate) fn uvm_requests() -> impl Iterator<Item = u32> {
    let mut last = None;
    UVM.all()
        .map(UvmRow::number)
        .filter(move |n| last.replace(*n) != Some(*n))
}

pub(crate) fn class(class: u32) -> Option<&'static str> {
    let mut names = equal(&CLASSES, class, ClassRow::number);
    names.next().map(ClassRow::name)
}

/// Returns the structure that an allocation of `class` takes, and whether it is required.
pub(crate) fn allocation(class: u32, version: Option<Version>) -> Option<&'static str> {
    let equal = equal(&ALLOCATIONS, class, AllocationRow::class)
        .map(|row| (Range::of(row.first(), row.last()), row.structure()));
    choose(equal, version).filter(|s| !s.is_empty())
}

pub(crate) fn status(code: u32) -> Option<&'static str> {
    let mut names = equal(&STATUS, code, StatusRow::code);
    names.next().map(StatusRow::name)
}

/// Returns the chips that have `class`, each with the engines that the class drives there.
pub(crate) fn chips_with(class: u32) -> impl Iterator<Item = (&'static str, &'static str)> {
    CHIPS
        .all()
        .filter(move |row| row.class() == class)
        .map(|row| (row.name(), row.engines()))
}

/// Layout of a structure in a range of driver releases.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    row: LayoutRow,
}

/// A field of a structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Offset from the structure's start, bytes.
    pub offset: usize,
    /// Size, bytes.
    pub size: usize,
    /// Name. A field of an inner structure is named `outer.inner`.
    pub name: &'static str,
    /// C type; `T[n]` for an array.
    pub kind: &'static str,
}

impl Layout {
    /// Returns the structure's name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.row.name()
    }

    /// Returns the structure's size, bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.row.size() as usize
    }

    /// Returns the releases with this layout.
    #[must_use]
    pub fn range(&self) -> Range {
        Range::of(self.row.first(), self.row.last())
    }

    /// Tells whether no release has another layout of the structure.
    #[must_use]
    pub fn is_only(&self) -> bool {
        layouts(self.name()).count() == 1
    }

    /// Returns the fields, in order of offset except for unions.
    pub fn fields(&self) -> impl Iterator<Item = Field> + use<> {
        FIELDS.run(self.row.fields()).map(|row| Field {
            offset: row.offset() as usize,
            size: row.size() as usize,
            name: row.name(),
            kind: row.kind(),
        })
    }

    /// Returns a field by name. `hClient` also finds `params.hClient` of a wrapper.
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

/// Returns all layouts of a structure, oldest first.
pub fn layouts(name: &str) -> impl Iterator<Item = Layout> + use<'_> {
    equal(&LAYOUTS, name, LayoutRow::name).map(|row| Layout { row })
}

/// Returns the layout of a structure of `size` bytes under `version`, each if known.
///
/// A size that fits a layout decides before the version does: the driver checks sizes, and a version may be a guess. A structure whose size
/// fits no layout is from an unknown release, and its fields may be anywhere. Under a version of the tables, however, the driver reads that
/// version's structure.
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
    let in_tables = |v: Version| {
        let (first, last) = releases();
        (first..=last).contains(&v)
    };
    match size {
        None => by_version(None),
        Some(_) => {
            by_version(size).or_else(|| by_version(None).filter(|_| version.is_some_and(in_tables)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the whole content of the tables, one line for each fact.
    fn said() -> Vec<String> {
        macro_rules! numbered {
            ($table:ident, $key:ident, $($text:ident)+; $($end:ident)*) => {
                $table.all().map(|row| {
                    let texts = [$(row.$text()),+].join(" ");
                    let releases: &[Version] = &[$(release(RELEASES.row(row.$end().into()))),*];
                    format!("{} {:x} {texts} {releases:?}", stringify!($table), row.$key())
                })
            };
        }
        let mut lines = Vec::new();
        lines.extend(numbered!(CONTROLS, number, name structure; first last));
        lines.extend(numbered!(ESCAPES, number, name structure; first last));
        lines.extend(numbered!(UVM, number, name structure; first last));
        lines.extend(numbered!(ALLOCATIONS, class, structure; first last));
        lines.extend(numbered!(CLASSES, number, name;));
        lines.extend(numbered!(STATUS, code, name;));
        lines.extend(numbered!(CHIPS, class, name engines;));
        for layout in LAYOUTS.all().map(|row| Layout { row }) {
            let range = layout.range();
            lines.push(format!("{} {} {range:?}", layout.name(), layout.size()));
            lines.extend(layout.fields().map(|field| format!("{field:?}")));
        }
        lines
    }

    /// Test that the content of the tables is unchanged. The format of the tables and its reader may change; the content changes only with
    /// `facts/rm`, and then this test's numbers change.
    #[test]
    fn the_tables_say_what_they_said() {
        let said = said();
        let sum = said.iter().flat_map(|line| line.bytes());
        let sum = sum.fold(0xcbf2_9ce4_8422_2325, |h: u64, b| {
            (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)
        });
        assert_eq!((said.len(), sum), (7_360, 0x0674_0370_a4cb_4615));
        let ends = [Version::new(515, 43, 4), Version::new(595, 45, 4)];
        assert_eq!(releases(), ends.into());
    }

    #[test]
    fn a_layout_follows_size_before_version() {
        let v = |a, b, c| Some(Version::new(a, b, c));
        let size = |s, v, n| layout(s, v, n).map(|l: Layout| l.size());
        assert_eq!(size("NVOS46_PARAMETERS", v(515, 43, 4), None), Some(56));
        assert_eq!(size("NVOS46_PARAMETERS", v(580, 65, 6), None), Some(64));
        assert_eq!(size("NVOS46_PARAMETERS", v(515, 43, 4), Some(64)), Some(64));
        assert_eq!(size("NVOS46_PARAMETERS", None, None), Some(64));
        // For a size that no release has, the version decides, if known.
        assert_eq!(
            size("NVOS46_PARAMETERS", v(550, 54, 14), Some(99)),
            Some(56)
        );
        assert_eq!(size("NVOS46_PARAMETERS", v(610, 43, 2), Some(99)), None);
        assert_eq!(size("NVOS46_PARAMETERS", None, Some(99)), None);
        // A version newer than every table.
        assert_eq!(
            size("NV_CHANNEL_ALLOC_PARAMS", v(900, 1, 1), None),
            Some(368)
        );
        assert!(layout("NO_SUCH_STRUCTURE", None, None).is_none());
        assert!(newer_release(Version::new(595, 45, 4)).is_none());
        let said = newer_release(Version::new(610, 43, 2)).unwrap();
        assert!(
            said.contains(
                "610.43.02 is newer than those that nvcap knows (515.43.04 to 595.45.04)"
            ),
            "{said}"
        );
    }
}
