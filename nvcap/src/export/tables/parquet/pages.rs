//! The values of one column in a row group: gathered, and written as pages.
//!
//! Numbers and bytes are stored plainly; texts by a dictionary, as long as that is small. All pages are compressed by Snappy.

use std::collections::HashMap;

use crate::export::tables::schema::{Column, Kind, Value};

use super::thrift::{self, structure, varint};

/// The most bytes of a dictionary; beyond it texts are stored plainly.
const MOST_DICTIONARY: usize = 1 << 20;

/// Encodings (parquet.thrift).
pub(super) const PLAIN: i32 = 0;
pub(super) const RLE: i32 = 3;
pub(super) const RLE_DICTIONARY: i32 = 8;
/// Types of pages.
const DATA_PAGE: i32 = 0;
const DICTIONARY_PAGE: i32 = 2;

/// Bits, the lowest of a byte first.
#[derive(Debug, Default)]
struct Bits {
    bytes: Vec<u8>,
    len: usize,
    ones: usize,
}

impl Bits {
    fn push(&mut self, bit: bool) {
        if self.len.is_multiple_of(8) {
            self.bytes.push(0);
        }
        if let (true, Some(last)) = (bit, self.bytes.last_mut()) {
            *last |= 1 << (self.len % 8);
            self.ones += 1;
        }
        self.len += 1;
    }

    fn clear(&mut self) {
        self.bytes.clear();
        (self.len, self.ones) = (0, 0);
    }

    /// As runs: one run where all are the same, else the bits themselves.
    fn runs(&self, out: &mut Vec<u8>) {
        if self.ones == 0 || self.ones == self.len {
            varint(out, (self.len as u64) << 1);
            out.push(u8::from(self.ones > 0));
        } else {
            varint(out, (self.bytes.len() as u64) << 1 | 1);
            out.extend_from_slice(&self.bytes);
        }
    }
}

/// The texts of a column: each once, and which one a row has.
#[derive(Debug, Default)]
struct Dictionary {
    numbers: HashMap<Box<[u8]>, u32>,
    /// Each with its length before it.
    plain: Vec<u8>,
    /// Where each begins in `plain`, and behind the last where it ends.
    begins: Vec<usize>,
    rows: Vec<u32>,
}

impl Dictionary {
    fn push(&mut self, text: &[u8]) -> usize {
        let number = match self.numbers.get(text) {
            Some(number) => *number,
            None => {
                let number = self.begins.len() as u32;
                self.numbers.insert(text.into(), number);
                self.begins.push(self.plain.len());
                plain_bytes(&mut self.plain, text);
                number
            }
        };
        self.rows.push(number);
        size_of::<u32>()
    }

    /// The rows, plainly.
    fn unfold(&mut self) -> Vec<u8> {
        let mut out = Vec::new();
        for number in &self.rows {
            let number = *number as usize;
            let end = self.begins.get(number + 1).copied();
            let text = self.begins[number]..end.unwrap_or(self.plain.len());
            out.extend_from_slice(&self.plain[text]);
        }
        *self = Self::default();
        out
    }

    /// The numbers of the rows, with as few bits each as the dictionary allows.
    fn packed(&self, out: &mut Vec<u8>) {
        let most = self.begins.len().saturating_sub(1) as u32;
        let width = (u32::BITS - most.leading_zeros()).max(1);
        out.push(width as u8);
        varint(out, (self.rows.len().div_ceil(8) as u64) << 1 | 1);
        let from = out.len();
        let (mut word, mut used) = (0u64, 0);
        for number in &self.rows {
            word |= u64::from(*number) << used;
            used += width;
            while used >= 8 {
                out.push(word as u8);
                word >>= 8;
                used -= 8;
            }
        }
        if used > 0 {
            out.push(word as u8);
        }
        // Groups of eight numbers are whole.
        out.resize(from + self.rows.len().div_ceil(8) * width as usize, 0);
    }
}

fn plain_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}

/// The values of a column.
#[derive(Debug)]
pub(super) struct Values {
    pub(super) kind: Kind,
    pub(super) optional: bool,
    present: Bits,
    plain: Vec<u8>,
    bits: Bits,
    /// Of texts; `None` where it became too large.
    dictionary: Option<Dictionary>,
    /// Of numbers, as they are stored.
    least_most: Option<(u64, u64)>,
}

/// Where a column's values are in the file.
#[derive(Clone, Debug)]
pub(super) struct Chunk {
    pub(super) values: u64,
    pub(super) nulls: u64,
    pub(super) least_most: Option<(u64, u64)>,
    pub(super) dictionary_at: Option<u64>,
    pub(super) data_at: u64,
    pub(super) plain_bytes: u64,
    pub(super) bytes: u64,
}

impl Values {
    pub(super) fn of(column: &Column) -> Self {
        Self {
            kind: column.kind,
            optional: column.optional,
            present: Bits::default(),
            plain: Vec::new(),
            bits: Bits::default(),
            dictionary: (column.kind == Kind::Text).then(Dictionary::default),
            least_most: None,
        }
    }

    /// Adds a value. Returns about how many bytes that takes.
    pub(super) fn push(&mut self, value: &Value<'_>) -> usize {
        if self.optional {
            self.present.push(*value != Value::Null);
            if *value == Value::Null {
                return 1;
            }
        }
        match self.kind {
            Kind::Int => self.number(value.as_int().unwrap_or(0) as u64),
            Kind::Unsigned => self.number(match *value {
                Value::Number(n) => n,
                _ => 0,
            }),
            Kind::Bool => {
                self.bits.push(*value == Value::Bool(true));
                1
            }
            Kind::Text | Kind::Bytes => match value {
                Value::Text(text) => self.bytes(text.as_bytes()),
                Value::Bytes(bytes) => self.bytes(bytes),
                _ => self.bytes(&[]),
            },
        }
    }

    fn number(&mut self, n: u64) -> usize {
        self.plain.extend_from_slice(&n.to_le_bytes());
        let (least, most) = self.least_most.unwrap_or((n, n));
        self.least_most = Some(match self.kind {
            Kind::Int => (
                (least as i64).min(n as i64) as u64,
                (most as i64).max(n as i64) as u64,
            ),
            _ => (least.min(n), most.max(n)),
        });
        8
    }

    fn bytes(&mut self, bytes: &[u8]) -> usize {
        if let Some(dictionary) = &mut self.dictionary {
            let added = dictionary.push(bytes);
            if dictionary.plain.len() > MOST_DICTIONARY {
                self.plain = dictionary.unfold();
                self.dictionary = None;
                return self.plain.len();
            }
            return added;
        }
        plain_bytes(&mut self.plain, bytes);
        bytes.len() + 4
    }

    /// Writes the values of so many rows as pages, of which the first begins at `offset` of the file, and forgets them.
    pub(super) fn write(&mut self, rows: u64, offset: u64, out: &mut Vec<u8>) -> Chunk {
        let begin = out.len();
        let mut chunk = Chunk {
            values: rows,
            nulls: match self.optional {
                true => (self.present.len - self.present.ones) as u64,
                false => 0,
            },
            least_most: self.least_most.take(),
            dictionary_at: None,
            data_at: 0,
            plain_bytes: 0,
            bytes: 0,
        };
        let dictionary = self.dictionary.take().filter(|d| !d.rows.is_empty());
        if let Some(dictionary) = &dictionary {
            chunk.dictionary_at = Some(offset);
            let count = dictionary.begins.len() as i32;
            chunk.plain_bytes += page(out, DICTIONARY_PAGE, &dictionary.plain, |header| {
                header.inner(7, |h| {
                    h.i32(1, count);
                    h.i32(2, PLAIN);
                });
            });
        }
        let mut data = Vec::new();
        if self.optional {
            let mut levels = Vec::new();
            self.present.runs(&mut levels);
            plain_bytes(&mut data, &levels);
        }
        let encoding = match &dictionary {
            Some(dictionary) => {
                dictionary.packed(&mut data);
                RLE_DICTIONARY
            }
            None => {
                data.extend_from_slice(match self.kind {
                    Kind::Bool => &self.bits.bytes,
                    _ => &self.plain,
                });
                PLAIN
            }
        };
        chunk.data_at = offset + (out.len() - begin) as u64;
        chunk.plain_bytes += page(out, DATA_PAGE, &data, |header| {
            header.inner(5, |h| {
                h.i32(1, rows as i32);
                h.i32(2, encoding);
                h.i32(3, RLE);
                h.i32(4, RLE);
            });
        });
        chunk.bytes = (out.len() - begin) as u64;
        self.present.clear();
        self.bits.clear();
        self.plain.clear();
        self.dictionary = (self.kind == Kind::Text).then(Dictionary::default);
        chunk
    }
}

/// Writes a page: its header with what `more` adds, and its bytes, compressed. Returns the size that it would have uncompressed.
fn page(
    out: &mut Vec<u8>,
    kind: i32,
    bytes: &[u8],
    more: impl FnOnce(&mut thrift::Struct<'_>),
) -> u64 {
    let begin = out.len();
    // Fails for more than 4 GiB alone, and a row group has a few MiB.
    let packed = snap::raw::Encoder::new().compress_vec(bytes);
    let packed = packed.unwrap_or_default();
    structure(out, |header| {
        header.i32(1, kind);
        header.i32(2, bytes.len() as i32);
        header.i32(3, packed.len() as i32);
        more(header);
    });
    let header = out.len() - begin;
    out.extend_from_slice(&packed);
    (header + bytes.len()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_packed_with_as_few_bits_as_they_need() {
        let mut dictionary = Dictionary::default();
        for text in ["a", "b", "c", "a", "d", "e"] {
            dictionary.push(text.as_bytes());
        }
        let mut out = Vec::new();
        dictionary.packed(&mut out);
        // Three bits each, in one group of eight: 0, 1, 2, 0, 3, 4 from the lowest bit on.
        let bits = 1u32 << 3 | 2 << 6 | 3 << 12 | 4 << 15;
        let [low, middle, high, _] = bits.to_le_bytes();
        assert_eq!(out, [3, 1 << 1 | 1, low, middle, high]);
        let plain = dictionary.unfold();
        let expected = ["a", "b", "c", "a", "d", "e"];
        let expected = expected.map(|t| [&[1, 0, 0, 0], t.as_bytes()].concat());
        assert_eq!(plain, expected.concat());
        assert!(dictionary.rows.is_empty());
    }

    #[test]
    fn bits_that_are_all_the_same_are_one_run() {
        let runs = |bits: &[bool]| {
            let (mut all, mut out) = (Bits::default(), Vec::new());
            bits.iter().for_each(|bit| all.push(*bit));
            all.runs(&mut out);
            out
        };
        assert_eq!(runs(&[true; 100]), [200, 1, 1]);
        assert_eq!(runs(&[false; 3]), [6, 0]);
        assert_eq!(runs(&[true, false, true]), [1 << 1 | 1, 0b101]);
    }

    /// A column of texts that are all different outgrows its dictionary, and its values stay the same.
    #[test]
    fn a_large_dictionary_is_given_up() {
        let columns = crate::export::tables::all::TABLES[0].columns();
        let column = { columns }.find(|c| c.name == "op").expect("a text");
        let mut values = Values::of(column);
        let texts: Vec<String> = (0..1 << 16).map(|n| format!("{n:032}")).collect();
        for text in &texts {
            values.push(&Value::from(text.as_str()));
        }
        assert!(values.dictionary.is_none());
        let (mut out, mut expected) = (Vec::new(), Vec::new());
        let chunk = values.write(texts.len() as u64, 4, &mut out);
        assert_eq!((chunk.dictionary_at, chunk.data_at), (None, 4));
        for text in &texts {
            plain_bytes(&mut expected, text.as_bytes());
        }
        let header = chunk.plain_bytes as usize - expected.len();
        let page = snap::raw::Decoder::new().decompress_vec(&out[header..]);
        assert!(page.unwrap() == expected);
        // The next group begins anew.
        values.push(&Value::from("x"));
        assert!(values.dictionary.is_some() && values.plain.is_empty());
    }
}
