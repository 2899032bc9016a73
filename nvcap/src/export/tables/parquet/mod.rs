//! Parquet files, written: rows are gathered into row groups, and each group is written with a footer behind it that lists all
//! groups so far. So a file is whole after each group, whatever happens then: readers look at the last footer alone, and the earlier ones are
//! bytes that nothing points to. Knows the format (apache/parquet-format, parquet.thrift) and no file.
//!
//! - [`pages`]: the values of a column.
//! - [`thrift`]: the encoding of headers and footers.

mod pages;
mod thrift;

use pages::{Chunk, PLAIN, RLE, RLE_DICTIONARY, Values};
use thrift::{BINARY, I32, STRUCT, Struct, binary, element, structure};

use super::schema::{Column, Kind, Value};

const MAGIC: &[u8; 4] = b"PAR1";
/// About the bytes of rows in a group.
const GROUP: usize = 8 << 20;
/// The same in long files, so that footers stay a small part of them.
const LONG_GROUP: usize = 32 << 20;
/// A file with so many groups is long.
const LONG: usize = 32;

/// Types (parquet.thrift).
const BOOLEAN: i32 = 0;
const INT64: i32 = 2;
const BYTE_ARRAY: i32 = 6;
const SNAPPY: i32 = 1;

/// A file that is being written.
pub(super) struct Parquet {
    columns: Vec<&'static Column>,
    values: Vec<Values>,
    rows: u64,
    bytes: usize,
    groups: Vec<Group>,
    /// Bytes in the file.
    written: u64,
    /// A footer is there.
    is_whole: bool,
}

struct Group {
    rows: u64,
    chunks: Vec<Chunk>,
}

impl Parquet {
    pub(super) fn new(columns: &[&'static Column]) -> Self {
        Self {
            columns: columns.to_vec(),
            values: columns.iter().map(|c| Values::of(c)).collect(),
            rows: 0,
            bytes: 0,
            groups: Vec::new(),
            written: 0,
            is_whole: false,
        }
    }

    /// Adds a row, with a value for each column.
    pub(super) fn row<'a>(&mut self, values: impl Iterator<Item = Value<'a>>) {
        for (column, value) in self.values.iter_mut().zip(values) {
            self.bytes += column.push(&value);
        }
        self.rows += 1;
    }

    /// Bytes of rows that wait.
    pub(super) const fn waiting(&self) -> usize {
        self.bytes
    }

    /// Whether the group has as many rows as one should have.
    pub(super) fn is_full(&self) -> bool {
        let long = self.groups.len() >= LONG;
        self.bytes >= if long { LONG_GROUP } else { GROUP }
    }

    /// Appends the rows that wait as a group, with a footer behind it, and says how many they are. [`Parquet::written`] or
    /// [`Parquet::refused`] must follow.
    pub(super) fn group(&mut self, out: &mut Vec<u8>) -> u64 {
        let begin = out.len();
        if self.written == 0 {
            out.extend_from_slice(MAGIC);
        }
        let rows = std::mem::take(&mut self.rows);
        self.bytes = 0;
        let mut chunks = Vec::with_capacity(self.values.len());
        if rows > 0 {
            for values in &mut self.values {
                let offset = self.written + (out.len() - begin) as u64;
                chunks.push(values.write(rows, offset, out));
            }
        }
        self.groups.push(Group { rows, chunks });
        self.footer(out);
        rows
    }

    /// What was appended last is in the file: so many bytes.
    pub(super) fn written(&mut self, bytes: u64) {
        self.written += bytes;
        self.is_whole = true;
        self.groups.retain(|g| g.rows > 0);
    }

    /// What was appended last is not in the file.
    pub(super) fn refused(&mut self) {
        self.groups.pop();
    }

    /// Whether the file lacks something: rows, or its footer.
    pub(super) const fn lacks(&self) -> bool {
        self.rows > 0 || !self.is_whole
    }

    fn footer(&self, out: &mut Vec<u8>) {
        let begin = out.len();
        structure(out, |file| {
            file.i32(1, 2);
            let root = None;
            let all: Vec<_> = std::iter::once(root)
                .chain(self.columns.iter().map(Some))
                .collect();
            file.list(2, STRUCT, &all, |out, column| {
                structure(out, |e| match column {
                    Some(column) => element_of(e, column),
                    None => {
                        e.binary(4, b"schema");
                        e.i32(5, self.columns.len() as i32);
                    }
                });
            });
            file.i64(3, self.groups.iter().map(|g| g.rows).sum());
            let groups: Vec<_> = self.groups.iter().filter(|g| g.rows > 0).collect();
            file.list(4, STRUCT, &groups, |out, group| {
                structure(out, |g| self.group_of(g, group));
            });
            file.binary(
                6,
                concat!("nvcap version ", env!("CARGO_PKG_VERSION")).as_bytes(),
            );
            // Least and most are by the order of the column's type.
            file.list(7, STRUCT, &self.columns, |out, _| {
                structure(out, |order| order.inner(1, |_| {}));
            });
        });
        let len = (out.len() - begin) as u32;
        out.extend_from_slice(&len.to_le_bytes());
        out.extend_from_slice(MAGIC);
    }

    fn group_of(&self, g: &mut Struct<'_>, group: &Group) {
        let all: Vec<_> = self.columns.iter().zip(&group.chunks).collect();
        g.list(1, STRUCT, &all, |out, (column, chunk)| {
            structure(out, |c| {
                c.i64(2, 0);
                c.inner(3, |meta| metadata(meta, column, chunk));
            });
        });
        g.i64(2, group.chunks.iter().map(|c| c.plain_bytes).sum());
        g.i64(3, group.rows);
        let first = group.chunks.first();
        g.i64(5, first.map_or(0, |c| c.dictionary_at.unwrap_or(c.data_at)));
        g.i64(6, group.chunks.iter().map(|c| c.bytes).sum());
    }
}

const fn type_of(kind: Kind) -> i32 {
    match kind {
        Kind::Int | Kind::Unsigned => INT64,
        Kind::Bool => BOOLEAN,
        Kind::Text | Kind::Bytes => BYTE_ARRAY,
    }
}

/// SchemaElement of a column.
fn element_of(e: &mut Struct<'_>, column: &Column) {
    /// ConvertedType, for readers that do not know LogicalType.
    const UTF8: i32 = 0;
    const UINT_64: i32 = 14;
    const INT_64: i32 = 18;
    e.i32(1, type_of(column.kind));
    e.i32(3, i32::from(column.optional));
    e.binary(4, column.name.as_bytes());
    let integer = |e: &mut Struct<'_>, converted, signed| {
        e.i32(6, converted);
        e.inner(10, |logical| {
            logical.inner(10, |integer| {
                integer.i8(1, 64);
                integer.bool(2, signed);
            });
        });
    };
    match column.kind {
        Kind::Int => integer(e, INT_64, true),
        Kind::Unsigned => integer(e, UINT_64, false),
        Kind::Text => {
            e.i32(6, UTF8);
            e.inner(10, |logical| logical.inner(1, |_| {}));
        }
        Kind::Bool | Kind::Bytes => {}
    }
}

/// ColumnMetaData of a chunk.
fn metadata(meta: &mut Struct<'_>, column: &Column, chunk: &Chunk) {
    let data = match chunk.dictionary_at {
        Some(_) => RLE_DICTIONARY,
        None => PLAIN,
    };
    meta.i32(1, type_of(column.kind));
    let encodings = [PLAIN, RLE, data];
    let encodings = &encodings[..if data == PLAIN { 2 } else { 3 }];
    meta.list(2, I32, encodings, |out, encoding| element(out, *encoding));
    meta.list(3, BINARY, &[column.name], |out, name| {
        binary(out, name.as_bytes());
    });
    meta.i32(4, SNAPPY);
    meta.i64(5, chunk.values);
    meta.i64(6, chunk.plain_bytes);
    meta.i64(7, chunk.bytes);
    meta.i64(9, chunk.data_at);
    if let Some(at) = chunk.dictionary_at {
        meta.i64(11, at);
    }
    meta.inner(12, |statistics| {
        statistics.i64(3, chunk.nulls);
        if let Some((least, most)) = chunk.least_most {
            statistics.binary(5, &most.to_le_bytes());
            statistics.binary(6, &least.to_le_bytes());
        }
    });
}
