//! Built-in tables of `nvcap/facts/`, read in place. The module knows their form, which `nvcap/facts/README.md` describes and `cargo xtask
//! facts` writes. Their contents and columns are described beside the readers of each table ([`tables!`]).
//!
//! The compiler checks that a file has the tables that are read from it, with these columns. An index that is too high gives an answer
//! (zeros, empty texts) and no panic.

use std::marker::PhantomData;

const MAGIC: &[u8] = b"NVTABLE1";

/// A file of tables.
#[derive(Debug)]
pub(crate) struct File {
    bytes: &'static [u8],
    /// Texts, each preceded by its length, which is at most 127 and therefore itself a character.
    texts: &'static str,
}

impl File {
    /// Makes the file with these bytes.
    pub(crate) const fn new(bytes: &'static [u8]) -> Self {
        assert!(same(part(bytes, 0, MAGIC.len()), MAGIC), "not of tables");
        match std::str::from_utf8(rows_of(bytes, b"texts", b"1")) {
            Ok(texts) => Self { bytes, texts },
            Err(_) => panic!("texts that are none"),
        }
    }

    /// Returns the text at a byte offset in the texts: its length, then the text itself.
    #[inline]
    fn text(&self, at: u32) -> &'static str {
        let at = at as usize;
        let len = self.texts.as_bytes().get(at).copied();
        let end = at + 1 + usize::from(len.unwrap_or(0));
        self.texts.get(at + 1..end).unwrap_or("")
    }
}

/// Finds the rows of a table, at compile time. The table's head and those before it give its place: name and columns, each preceded by its
/// length, and the number of rows.
const fn rows_of(bytes: &'static [u8], name: &[u8], columns: &[u8]) -> &'static [u8] {
    let heads_end = word(bytes, MAGIC.len());
    let (mut head, mut rows) = (MAGIC.len() + 4, heads_end);
    while head < heads_end {
        let its_name = part(bytes, head + 1, bytes[head] as usize);
        head += 1 + its_name.len();
        let its_columns = part(bytes, head + 1, bytes[head] as usize);
        head += 1 + its_columns.len();
        let len = word(bytes, head) * width_of(its_columns);
        head += 4;
        if same(its_name, name) {
            assert!(same(its_columns, columns), "a table of other columns");
            return part(bytes, rows, len);
        }
        rows += len;
    }
    panic!("no table of this name")
}

const fn part(bytes: &'static [u8], at: usize, len: usize) -> &'static [u8] {
    bytes.split_at(at).1.split_at(len).0
}

const fn word(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]) as usize
}

const fn same(a: &[u8], b: &[u8]) -> bool {
    let mut i = 0;
    while i < a.len() && i < b.len() && a[i] == b[i] {
        i += 1;
    }
    i == a.len() && i == b.len()
}

/// Returns the width of columns with these codes, bytes.
pub(crate) const fn width_of(columns: &[u8]) -> usize {
    let (mut i, mut width) = (0, 0);
    while i < columns.len() {
        width += match columns[i] {
            b'1' => 1,
            b'2' => 2,
            b'4' | b'p' | b't' => 4,
            b'r' => 6,
            _ => panic!("no column is coded so"),
        };
        i += 1;
    }
    width
}

/// The bytes of a row, and the file that has the row's texts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cells {
    bytes: &'static [u8],
    file: &'static File,
}

impl Cells {
    #[inline]
    fn number<const N: usize>(self, at: usize) -> [u8; N] {
        let number = self.bytes.get(at..).and_then(|b| b.first_chunk());
        number.copied().unwrap_or([0; N])
    }

    /// Returns the cell at a byte offset in the row.
    #[inline]
    pub(crate) fn cell<C: Column>(self, at: usize) -> C::Value {
        C::read(self, at)
    }
}

/// Type of a column.
pub(crate) trait Column {
    /// Letter that stands for the type in the file's head.
    const CODE: u8;
    /// Value that is read from a cell.
    type Value;
    fn read(row: Cells, at: usize) -> Self::Value;
}

/// Defines a column type: its code in the head, the value that is read, and the way of reading it.
macro_rules! column {
    ($($kind:ty, $code:literal, $value:ty: $read:expr;)+) => { $(
        impl Column for $kind {
            const CODE: u8 = $code;
            type Value = $value;
            #[inline]
            fn read(row: Cells, at: usize) -> $value {
                let read: fn(Cells, usize) -> $value = $read;
                read(row, at)
            }
        }
    )+ };
}

/// A column of texts.
pub(crate) enum Text {}

column! {
    u8, b'1', u8: |row, at| row.number::<1>(at)[0];
    u16, b'2', u16: |row, at| u16::from_le_bytes(row.number(at));
    u32, b'4', u32: |row, at| u32::from_le_bytes(row.number(at));
    [u16; 2], b'p', [u16; 2]: |row, at| [row.cell::<u16>(at), row.cell::<u16>(at + 2)];
    Text, b't', &'static str: |row, at| row.file.text(row.cell::<u32>(at));
}

impl<R: Row> Column for Run<R> {
    const CODE: u8 = b'r';
    type Value = Self;
    fn read(row: Cells, at: usize) -> Self {
        Self {
            first: row.cell::<u32>(at),
            count: row.cell::<u16>(at + 4),
            rows: PhantomData,
        }
    }
}

/// A row of a certain table.
pub(crate) trait Row: Copy {
    /// Name of the table in its file.
    const TABLE: &'static str;
    /// Codes of the columns.
    const COLUMNS: &'static [u8];
    /// Width of a row, bytes.
    const WIDTH: usize = width_of(Self::COLUMNS);
    fn of(cells: Cells) -> Self;
}

/// Consecutive rows of a table.
#[derive(Debug)]
pub(crate) struct Run<R> {
    first: u32,
    count: u16,
    rows: PhantomData<fn() -> R>,
}

impl<R> Run<R> {
    /// Returns the number of rows.
    pub(crate) fn len(self) -> usize {
        self.count.into()
    }
}

impl<R> Clone for Run<R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<R> Copy for Run<R> {}

/// A table.
#[derive(Debug)]
pub(crate) struct Table<R> {
    bytes: &'static [u8],
    file: &'static File,
    rows: PhantomData<fn() -> R>,
}

impl<R: Row> Table<R> {
    /// Returns the table of a file that has rows of this type.
    pub(crate) const fn of(file: &'static File) -> Self {
        Self {
            bytes: rows_of(file.bytes, R::TABLE.as_bytes(), R::COLUMNS),
            file,
            rows: PhantomData,
        }
    }

    /// Returns the number of rows.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() / R::WIDTH
    }

    /// Returns row `index`; a row of zeros if there is none.
    #[inline]
    pub(crate) fn row(&self, index: usize) -> R {
        let at = index.saturating_mul(R::WIDTH);
        let bytes = self.bytes.get(at..at.saturating_add(R::WIDTH));
        R::of(Cells {
            bytes: bytes.unwrap_or_default(),
            file: self.file,
        })
    }

    /// Returns every row.
    pub(crate) fn all(&'static self) -> impl Iterator<Item = R> {
        (0..self.len()).map(|i| self.row(i))
    }

    /// Returns the rows of a run.
    pub(crate) fn run(&'static self, run: Run<R>) -> impl Iterator<Item = R> {
        let first = run.first as usize;
        (0..usize::from(run.count)).map(move |i| self.row(first + i))
    }

    /// Returns, from a table in the order of `key`, the first row that has this key or a higher one, and those after it, with their
    /// indexes.
    pub(crate) fn from<K: Ord>(
        &'static self,
        wanted: K,
        key: impl Fn(R) -> K,
    ) -> impl Iterator<Item = (usize, R)> {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low + (high - low) / 2;
            if key(self.row(middle)) < wanted {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        (low..self.len()).map(|i| (i, self.row(i)))
    }
}

/// Defines the tables of a file: `TABLE = "its name": Row { column: type, ... }` makes the table and the type of its rows, with a method
/// for each column.
macro_rules! tables {
    ($file:ident; $($(#[$doc:meta])* $table:ident = $name:literal: $row:ident { $($columns:tt)+ })+) => { $(
        $(#[$doc])*
        static $table: $crate::tables::Table<$row> = $crate::tables::Table::of(&$file);
        $crate::tables::row!($row = $name { $($columns)+ });
    )+ };
}
pub(crate) use tables;

/// Defines the type of a table's rows.
macro_rules! row {
    ($row:ident = $name:literal { $($column:ident: $kind:ty),+ $(,)? }) => {
        #[derive(Clone, Copy, Debug)]
        pub(super) struct $row($crate::tables::Cells);
        impl $crate::tables::Row for $row {
            const TABLE: &'static str = $name;
            const COLUMNS: &'static [u8] = &[$(<$kind as $crate::tables::Column>::CODE),+];
            fn of(cells: $crate::tables::Cells) -> Self {
                Self(cells)
            }
        }
        impl $row {
            $crate::tables::cells!([] $($column: $kind,)+);
        }
    };
}
pub(crate) use row;

/// Defines the methods of a row: each column lies behind those before it.
macro_rules! cells {
    ([$($before:ty,)*]) => {};
    ([$($before:ty,)*] $column:ident: $kind:ty, $($rest:tt)*) => {
        #[inline]
        fn $column(self) -> <$kind as $crate::tables::Column>::Value {
            const AT: usize =
                $crate::tables::width_of(&[$(<$before as $crate::tables::Column>::CODE),*]);
            self.0.cell::<$kind>(AT)
        }
        $crate::tables::cells!([$($before,)* $kind,] $($rest)*);
    };
}
pub(crate) use cells;
