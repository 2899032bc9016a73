//! Reads the compact tables of `nvcap/facts/` where they lie: fixed-size rows of little-endian numbers and a pool
//! of strings. Knows nothing of what the rows mean.
//!
//! The tables are built in by `include_bytes!` and never come from outside, but a reader here still answers any
//! index with a value (zero, or the empty string) rather than with a panic.

/// A packed file: magic, the row counts of its sections, the sections.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packed {
    bytes: &'static [u8],
}

impl Packed {
    pub(super) const fn new(bytes: &'static [u8]) -> Self {
        Self { bytes }
    }

    /// Section `index` of a file whose sections have rows of `widths` bytes.
    pub(super) fn section(self, index: usize, widths: &[usize]) -> Rows {
        let mut at = 8 + 4 * widths.len();
        for (i, &width) in widths.iter().enumerate() {
            let count = u32_at(self.bytes, 8 + 4 * i) as usize;
            let len = count.saturating_mul(width);
            if i == index {
                let bytes = self.bytes.get(at..at.saturating_add(len)).unwrap_or(&[]);
                return Rows { bytes, width };
            }
            at = at.saturating_add(len.next_multiple_of(4));
        }
        Rows {
            bytes: &[],
            width: 1,
        }
    }
}

/// Rows of one width.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows {
    bytes: &'static [u8],
    width: usize,
}

impl Rows {
    pub(super) fn len(self) -> usize {
        self.bytes.len() / self.width
    }

    /// Row `index`, empty where there is none.
    pub(super) fn row(self, index: usize) -> Row {
        let at = index.saturating_mul(self.width);
        let bytes = self.bytes.get(at..at.saturating_add(self.width));
        Row(bytes.unwrap_or(&[]))
    }

    /// The string that begins at byte `at` of a pool of strings.
    pub(super) fn string(self, at: u32) -> &'static str {
        let at = at as usize;
        let Some(&len) = self.bytes.get(at) else {
            return "";
        };
        let text = self.bytes.get(at + 1..at + 1 + usize::from(len));
        text.and_then(|t| std::str::from_utf8(t).ok()).unwrap_or("")
    }
}

/// One row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row(&'static [u8]);

impl Row {
    pub(super) fn u8(self, at: usize) -> u8 {
        self.0.get(at).copied().unwrap_or(0)
    }

    pub(super) fn u16(self, at: usize) -> u16 {
        u16::from(self.u8(at)) | u16::from(self.u8(at + 1)) << 8
    }

    pub(super) fn u32(self, at: usize) -> u32 {
        u32_at(self.0, at)
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    crate::wire::words::u32_at(bytes, at).unwrap_or(0)
}

/// A list of named values: the enumeration of a field, or the constants of a class.
#[derive(Clone, Copy, Debug)]
pub struct Names {
    rows: Rows,
    strings: Rows,
    first: u32,
    count: u16,
}

impl Names {
    pub(super) fn new(rows: Rows, strings: Rows, first: u32, count: u16) -> Self {
        Self {
            rows,
            strings,
            first,
            count,
        }
    }

    /// Every name and its value, in the header's order.
    pub fn iter(self) -> impl Iterator<Item = (&'static str, u32)> {
        (0..usize::from(self.count)).map(move |i| {
            let row = self.rows.row(self.first as usize + i);
            (self.strings.string(row.u32(0)), row.u32(4))
        })
    }

    /// The first name of `value`.
    pub fn name_of(self, value: u32) -> Option<&'static str> {
        self.iter().find(|(_, v)| *v == value).map(|(name, _)| name)
    }

    /// The value of `name`.
    pub fn value_of(self, name: &str) -> Option<u32> {
        self.iter()
            .find(|(n, _)| *n == name)
            .map(|(_, value)| value)
    }

    /// Nothing is named.
    pub fn is_empty(self) -> bool {
        self.count == 0
    }

    /// How many names.
    pub fn len(self) -> usize {
        usize::from(self.count)
    }
}
