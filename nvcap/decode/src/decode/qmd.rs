//! QMD (queue meta data): the structure that describes a grid launch, layouts 00_06 to 05_01.
//!
//! A QMD's layout is chosen by its class and by the version bits inside it ([`version_of`]); the fields come from
//! `nvcap/facts/qmd.bin`. [`super::view::View`] is the launch in readable units, whatever the layout.

use std::fmt;
use std::sync::OnceLock;

use super::named_values::{Names, Value};
use crate::tables::{File, Run, Table, Text, tables};

static FILE: File = File::new(include_bytes!("../../facts/qmd.bin"));

tables! { FILE;
    /// By version.
    LAYOUTS = "layouts": LayoutRow { major: u8, minor: u8, bytes: u16, fields: Run<FieldRow> }
    /// Strides are in bits.
    FIELDS = "fields": FieldRow {
        name: Text, high: u16, low: u16, count: [u16; 2], stride: [u16; 2], flags: u8,
        values: Run<Value>, classes: Run<ClassRow>,
    }
    /// Classes that list a field.
    CLASSES = "classes": ClassRow { number: u16 }
}
static VALUES: Table<Value> = Table::of(&FILE);

/// Bytes of the largest QMD.
pub const MAX_BYTES: usize = 384;

/// A QMD layout.
#[derive(Clone, Copy)]
pub struct Layout {
    row: LayoutRow,
}

/// Every layout, by version.
pub fn all() -> impl Iterator<Item = Layout> {
    LAYOUTS.all().map(|row| Layout { row })
}

/// The layout of a version, major and minor.
pub fn layout(version: (u8, u8)) -> Option<Layout> {
    all().find(|l| l.version() == version)
}

/// Something of each layout, found by its version without a search: for each QMD that is decoded.
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

    /// A QMD has four bits for each number.
    fn slot((major, minor): (u8, u8)) -> usize {
        usize::from(major) << 4 | usize::from(minor & 15)
    }
}

/// Size of the layout of a version.
fn bytes_of(version: (u8, u8)) -> Option<usize> {
    static SIZES: OnceLock<ByVersion<usize>> = OnceLock::new();
    let sizes = SIZES.get_or_init(|| ByVersion::new(Layout::bytes));
    sizes.get(version).copied()
}

impl Layout {
    /// Major and minor version.
    pub fn version(self) -> (u8, u8) {
        (self.row.major(), self.row.minor())
    }

    /// Size in bytes.
    pub fn bytes(self) -> usize {
        self.row.bytes().into()
    }

    /// Its fields, by bit; arrays once.
    pub fn fields(self) -> impl Iterator<Item = Field> {
        FIELDS.run(self.row.fields()).map(|row| Field { row })
    }

    /// The field with this name, as listed for `class` if classes differ.
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
    /// The name of the public header.
    pub fn name(self) -> &'static str {
        self.row.name()
    }

    /// Highest bit of element 0, counted from the QMD's start.
    pub fn high(self) -> u16 {
        self.row.high()
    }

    /// Lowest bit of element 0.
    pub fn low(self) -> u16 {
        self.row.low()
    }

    /// Elements of each index (1, 1 for a single field). An upper bound where [`Field::bound`].
    pub fn count(self) -> [u16; 2] {
        self.row.count()
    }

    /// Bits between elements of each index.
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

    /// The named values.
    pub fn names(self) -> Names {
        Names::new(&VALUES, self.row.values())
    }

    /// The compute classes whose header lists it.
    pub fn classes(self) -> impl Iterator<Item = u32> {
        let classes = CLASSES.run(self.row.classes());
        classes.map(|class| class.number().into())
    }

    /// Lowest bit and width of element `(i, j)`.
    fn place(self, i: u16, j: u16) -> (usize, usize) {
        let [a, b] = self.stride();
        let low = usize::from(self.low())
            + usize::from(i) * usize::from(a)
            + usize::from(j) * usize::from(b);
        (low, usize::from(self.high().saturating_sub(self.low())) + 1)
    }

    /// Element `(i, j)` in a QMD; `None` if the bytes end before it.
    pub fn value(self, qmd: &[u8], i: u16, j: u16) -> Option<u64> {
        let (low, width) = self.place(i, j);
        bits(qmd, low, width)
    }

    /// Sets element `(i, j)`; false if it lies beyond the bytes. Excess bits of the value are cut.
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

    /// Every element: its indexes as a suffix to print (empty for a single field) and its value.
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

/// Index of an element, printing as `(i)` or `(i,j)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Index {
    /// Not an array.
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

/// `width` bits from bit `low`, of which `mask` has as many: where 8 bytes have them, as they have nearly every field of a QMD.
pub(super) fn one_load(bytes: &[u8], low: usize, width: usize, mask: u64) -> Option<u64> {
    let word = bytes.get(low / 8..)?.first_chunk()?;
    (low % 8 + width <= 64).then_some(u64::from_le_bytes(*word) >> (low % 8) & mask)
}

/// `width` bits (at most 64) from bit `low`.
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

/// The layouts that headers list for a compute class, the most likely first.
///
/// A class without its own header (c4c0) is listed by its parent's.
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

/// The version in a QMD's version bits. They lie in one place up to 04_01 and in another from 05_00 on, so the class
/// decides; without a class (0) both places are tried. If both hold a possible version, the one that gives a valid block
/// wins.
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
                // A version that the headers do not list is still accepted when its place is certain.
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
        // Too short for the layout of its version.
        assert_eq!(version_of(0xcbc0, &qmd[..256]), None);
        qmd[464 / 8] = 0x50;
        assert_eq!(version_of(0xcdc0, &qmd), Some((5, 0)));
        assert_eq!(version_of(0xcbc0, &qmd), Some((4, 0)));
        assert_eq!(version_of(0xcbc0, &[]), None);
    }
}
