//! QMD (queue meta data): the structure that describes a grid launch, layouts 00_06 to 05_01.
//!
//! A QMD's layout is chosen by its class and by the version bits inside it ([`version_of`]); the fields come from `nvcap/facts/qmd.bin`.
//! [`super::view::View`] is the launch in readable units, independent of the layout.

use std::fmt;
use std::sync::OnceLock;

use super::named_values::{Names, Value};
use crate::tables::{File, Run, Table, Text, tables};

static FILE: File = File::new(include_bytes!("../../facts/qmd.bin"));

tables! { FILE;
    /// Layouts by version.
    LAYOUTS = "layouts": LayoutRow { major: u8, minor: u8, bytes: u16, fields: Run<FieldRow> }
    /// Fields of layouts. Strides are in bits.
    FIELDS = "fields": FieldRow {
        name: Text, high: u16, low: u16, count: [u16; 2], stride: [u16; 2], flags: u8,
        values: Run<Value>, classes: Run<ClassRow>,
    }
    /// Classes whose headers list a field.
    CLASSES = "classes": ClassRow { number: u16 }
}
static VALUES: Table<Value> = Table::of(&FILE);

/// Size of the largest QMD, bytes.
pub const MAX_BYTES: usize = 384;

/// A QMD layout.
#[derive(Clone, Copy)]
pub struct Layout {
    row: LayoutRow,
}

/// Returns every layout, by version.
pub fn all() -> impl Iterator<Item = Layout> {
    LAYOUTS.all().map(|row| Layout { row })
}

/// Returns the layout of a version (major, minor).
pub fn layout(version: (u8, u8)) -> Option<Layout> {
    all().find(|l| l.version() == version)
}

/// A value for each layout, found by the version without a search, because it is needed for each QMD that is decoded.
pub(super) struct ByVersion<T>(Vec<Option<T>>);

impl<T> ByVersion<T> {
    pub(super) fn new(of: impl Fn(Layout) -> T) -> Self {
        let mut all = Vec::new();
        for layout in self::all() {
            let at = Self::slot(layout.version());
            if all.len() <= at {
                all.resize_with(at + 1, || None);
            }
            if let Some(slot) = all.get_mut(at) {
                *slot = Some(of(layout));
            }
        }
        Self(all)
    }

    pub(super) fn get(&self, version: (u8, u8)) -> Option<&T> {
        self.0.get(Self::slot(version))?.as_ref()
    }

    /// Returns the index of a version: a QMD has four bits for each number.
    fn slot((major, minor): (u8, u8)) -> usize {
        usize::from(major) << 4 | usize::from(minor & 15)
    }
}

/// Returns the size of the layout of a version, bytes.
fn bytes_of(version: (u8, u8)) -> Option<usize> {
    static SIZES: OnceLock<ByVersion<usize>> = OnceLock::new();
    let sizes = SIZES.get_or_init(|| ByVersion::new(Layout::bytes));
    sizes.get(version).copied()
}

impl Layout {
    /// Returns major and minor version.
    pub fn version(self) -> (u8, u8) {
        (self.row.major(), self.row.minor())
    }

    /// Returns the size, bytes.
    pub fn bytes(self) -> usize {
        self.row.bytes().into()
    }

    /// Returns the layout's fields, by bit; arrays once.
    pub fn fields(self) -> impl Iterator<Item = Field> {
        FIELDS.run(self.row.fields()).map(|row| Field { row })
    }

    /// Returns the field with this name. If classes differ in it, `class` selects.
    pub fn field(self, name: &str, class: Option<u32>) -> Option<Field> {
        let named = || self.fields().filter(|f| f.name() == name);
        class
            .and_then(|c| named().find(|f| f.classes().any(|x| x == c)))
            .or_else(|| named().next())
    }
}

impl fmt::Debug for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = self.version();
        write!(f, "{major:02x}_{minor:02x}")
    }
}

/// A field of a layout.
#[derive(Clone, Copy)]
pub struct Field {
    row: FieldRow,
}

impl Field {
    /// Returns the name in the public header.
    pub fn name(self) -> &'static str {
        self.row.name()
    }

    /// Returns the highest bit of element 0, counted from the QMD's start.
    pub fn high(self) -> u16 {
        self.row.high()
    }

    /// Returns the lowest bit of element 0.
    pub fn low(self) -> u16 {
        self.row.low()
    }

    /// Returns the number of elements of each index (1, 1 for a single field). It is an upper bound if [`Field::bound`] is true.
    pub fn count(self) -> [u16; 2] {
        self.row.count()
    }

    /// Returns the distance between elements of each index, bits.
    pub fn stride(self) -> [u16; 2] {
        self.row.stride()
    }

    /// Tells whether the field is an array.
    pub fn is_array(self) -> bool {
        self.row.flags() & 1 != 0
    }

    /// Tells whether the array's count is only an upper bound.
    pub fn bound(self) -> bool {
        self.row.flags() & 2 != 0
    }

    /// Returns the named values.
    pub fn names(self) -> Names {
        Names::new(&VALUES, self.row.values())
    }

    /// Returns the compute classes whose header lists the field.
    pub fn classes(self) -> impl Iterator<Item = u32> {
        let classes = CLASSES.run(self.row.classes());
        classes.map(|class| class.number().into())
    }

    /// Returns the lowest bit and the width of element `(i, j)`.
    fn place(self, i: u16, j: u16) -> (usize, usize) {
        let [a, b] = self.stride();
        let low = usize::from(self.low())
            + usize::from(i) * usize::from(a)
            + usize::from(j) * usize::from(b);
        (low, usize::from(self.high().saturating_sub(self.low())) + 1)
    }

    /// Returns element `(i, j)` of a QMD; `None` if the bytes end before it.
    pub fn value(self, qmd: &[u8], i: u16, j: u16) -> Option<u64> {
        let (low, width) = self.place(i, j);
        bits(qmd, low, width)
    }

    /// Sets element `(i, j)`. Excess bits of the value are cut off. Returns false if the element lies beyond the bytes.
    pub fn set(self, qmd: &mut [u8], i: u16, j: u16, value: u64) -> bool {
        let (low, width) = self.place(i, j);
        if low + width > qmd.len() * 8 {
            return false;
        }
        for bit in 0..width {
            let at = low + bit;
            let mask = 1u8 << (at % 8);
            let Some(byte) = qmd.get_mut(at / 8) else {
                return false;
            };
            if bit < 64 && value >> bit & 1 != 0 {
                *byte |= mask
            } else {
                *byte &= !mask
            }
        }
        true
    }

    /// Returns every element: its index, which prints as a suffix (empty for a single field), and its value.
    pub fn values(self, qmd: &[u8]) -> impl Iterator<Item = (Index, u64)> {
        let [n, m] = self.count();
        let two = self.stride()[1] != 0;
        let array = self.is_array();
        (0..n)
            .flat_map(move |i| (0..m).map(move |j| (i, j)))
            .filter_map(move |(i, j)| {
                let index = match (array, two) {
                    (false, _) => Index::None,
                    (true, false) => Index::One(i),
                    (true, true) => Index::Two(i, j),
                };
                Some((index, self.value(qmd, i, j)?))
            })
    }
}

/// Index of an element. It prints as `(i)` or `(i,j)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Index {
    /// No index: the field is no array.
    None,
    /// One index.
    One(u16),
    /// Two indexes.
    Two(u16, u16),
}

impl fmt::Display for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => Ok(()),
            Self::One(i) => write!(f, "({i})"),
            Self::Two(i, j) => write!(f, "({i},{j})"),
        }
    }
}

/// Returns `width` bits from bit `low`, if 8 bytes hold them, as is the case for nearly every field of a QMD. `mask` has `width` bits set.
pub(super) fn one_load(bytes: &[u8], low: usize, width: usize, mask: u64) -> Option<u64> {
    let word = bytes.get(low / 8..)?.first_chunk()?;
    (low % 8 + width <= 64).then_some(u64::from_le_bytes(*word) >> (low % 8) & mask)
}

/// Returns `width` bits (at most 64) from bit `low`.
pub(super) fn bits(bytes: &[u8], low: usize, width: usize) -> Option<u64> {
    if width == 0 || low + width > bytes.len() * 8 {
        return None;
    }
    let (take, shift) = (bytes.get(low / 8..)?, low % 8);
    let mask = u64::MAX >> (64 - width.min(64));
    if let Some(value) = one_load(bytes, low, width, mask) {
        return Some(value);
    }
    let mut window = [0u8; 16];
    let n = take.len().min(16);
    window.get_mut(..n)?.copy_from_slice(take.get(..n)?);
    let value = u128::from_le_bytes(window) >> shift;
    Some(value as u64 & mask)
}

/// Returns the layouts that headers list for a compute class, the most likely first.
///
/// A class without a header of its own (c4c0) has its parent's layouts.
pub fn versions_of(class: u32) -> &'static [(u8, u8)] {
    match class {
        0xa0c0 => &[(0, 6), (1, 7), (1, 6)],
        0xa1c0 | 0xb0c0 | 0xb1c0 => &[(1, 7), (0, 6)],
        0xc0c0 | 0xc1c0 => &[(2, 1), (2, 0), (1, 7)],
        0xc3c0 | 0xc4c0 => &[(2, 2)],
        0xc5c0 => &[(2, 3)],
        0xc6c0 | 0xc7c0 => &[(3, 0), (2, 4), (2, 3)],
        0xc9c0 => &[(3, 0), (2, 4)],
        0xcbc0 => &[(4, 0), (3, 0)],
        0xcdc0 | 0xcec0 => &[(5, 0), (5, 1), (4, 1)],
        _ => &[],
    }
}

/// Returns the version in a QMD's version bits. They are at one place up to 04_01 and at another from 05_00 on, so the class decides.
/// Without a class (0), both places are tried; if both hold a possible version, the one with a valid block wins.
pub fn version_of(class: u32, qmd: &[u8]) -> Option<(u8, u8)> {
    let read = |low: usize| {
        let both = bits(qmd, low, 8)? as u8;
        Some((both >> 4, both & 15))
    };
    let fits = |v: &(u8, u8)| bytes_of(*v).is_some_and(|bytes| qmd.len() >= bytes);
    let late = read(464).filter(|v| v.0 >= 5).filter(fits);
    let early = read(576).filter(|v| v.0 < 5).filter(fits);
    let listed = versions_of(class);
    let (late, early) = match listed.first() {
        None => (late, early),
        Some(first) => {
            let known = |v: Option<(u8, u8)>| v.filter(|v| listed.contains(v));
            match (known(late), known(early)) {
                // A version that the headers do not list is still accepted if its place is certain.
                (None, None) if first.0 >= 5 => (late, None),
                (None, None) => (None, early),
                found => found,
            }
        }
    };
    match (late, early) {
        (Some(late), Some(early)) if !block_fits(late, qmd) && block_fits(early, qmd) => {
            Some(early)
        }
        (late, early) => late.or(early),
    }
}

/// Tells whether the block has 1 to 1024 threads when read as `version`.
fn block_fits(version: (u8, u8), qmd: &[u8]) -> bool {
    let Some(layout) = layout(version) else {
        return false;
    };
    let dimension = |name: String| {
        let field = layout.fields().find(|f| f.name().ends_with(&name))?;
        field.value(qmd, 0, 0)
    };
    let threads = (0..3)
        .map(|i| dimension(format!("CTA_THREAD_DIMENSION{i}")).unwrap_or(0))
        .product::<u64>();
    (1..=1024).contains(&threads)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts() {
        let versions: Vec<_> = all().map(Layout::version).collect();
        assert_eq!(versions.len(), 13);
        assert!(versions.is_sorted());
        for layout in all() {
            for field in layout.fields() {
                assert!(
                    usize::from(field.high()) < layout.bytes() * 8,
                    "{layout:?} {}",
                    field.name()
                );
                assert!(field.high() >= field.low() && field.high() - field.low() < 64);
                assert!(field.classes().count() > 0);
            }
        }
    }

    #[test]
    fn set_and_read_back() {
        let layout = layout((4, 0)).expect("Hopper");
        let mut qmd = vec![0xa5; layout.bytes()];
        for (name, i, value) in [
            ("GRID_WIDTH", 0, 4096),
            ("CONSTANT_BUFFER_VALID", 7, 1),
            ("REGISTER_COUNT", 0, 0x155),
        ] {
            let field = layout.field(name, Some(0xcbc0)).expect("named");
            assert!(field.set(&mut qmd, i, 0, value));
            assert_eq!(field.value(&qmd, i, 0), Some(value));
        }
        assert_eq!(
            layout
                .field("OUTER_GET", None)
                .expect("named")
                .value(&qmd[..100], 0, 0),
            None
        );
    }

    #[test]
    fn version_by_class() {
        let mut qmd = [0u8; 384];
        qmd[576 / 8] = 0x40;
        assert_eq!(version_of(0xcbc0, &qmd), Some((4, 0)));
        assert_eq!(version_of(0, &qmd), Some((4, 0)));
        // The bytes are too short for the layout of this version.
        assert_eq!(version_of(0xcbc0, &qmd[..256]), None);
        qmd[464 / 8] = 0x50;
        assert_eq!(version_of(0xcdc0, &qmd), Some((5, 0)));
        assert_eq!(version_of(0xcbc0, &qmd), Some((4, 0)));
        assert_eq!(version_of(0xcbc0, &[]), None);
    }
}
