//! Thrift's compact protocol, as far as Parquet's headers and footers need it (apache/thrift, doc/specs/thrift-compact-protocol.md).

/// Types of fields.
const TRUE: u8 = 1;
const FALSE: u8 = 2;
const I8: u8 = 3;
pub(super) const I32: u8 = 5;
const I64: u8 = 6;
pub(super) const BINARY: u8 = 8;
const LIST: u8 = 9;
pub(super) const STRUCT: u8 = 12;

/// A number in groups of seven bits, the lowest first.
pub(super) fn varint(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

/// Small numbers of both signs become small.
fn zigzag(out: &mut Vec<u8>, n: i64) {
    varint(out, (n << 1 ^ n >> 63) as u64);
}

/// A structure that is being written; its fields come in ascending order.
pub(super) struct Struct<'a> {
    out: &'a mut Vec<u8>,
    last: u8,
}

impl<'a> Struct<'a> {
    /// Begins one; [`Struct::end`] must follow.
    pub(super) const fn new(out: &'a mut Vec<u8>) -> Self {
        Self { out, last: 0 }
    }

    fn field(&mut self, id: u8, kind: u8) {
        // Ids of Parquet's structures are near each other.
        self.out.push((id - self.last) << 4 | kind);
        self.last = id;
    }

    pub(super) fn bool(&mut self, id: u8, value: bool) {
        self.field(id, if value { TRUE } else { FALSE });
    }

    pub(super) fn i8(&mut self, id: u8, value: u8) {
        self.field(id, I8);
        self.out.push(value);
    }

    pub(super) fn i32(&mut self, id: u8, value: i32) {
        self.field(id, I32);
        zigzag(self.out, value.into());
    }

    pub(super) fn i64(&mut self, id: u8, value: u64) {
        self.field(id, I64);
        zigzag(self.out, value as i64);
    }

    pub(super) fn binary(&mut self, id: u8, value: &[u8]) {
        self.field(id, BINARY);
        binary(self.out, value);
    }

    /// A field that is a structure.
    pub(super) fn inner(&mut self, id: u8, write: impl FnOnce(&mut Struct<'_>)) {
        self.field(id, STRUCT);
        structure(self.out, write);
    }

    /// A field that is a list of elements of a type.
    pub(super) fn list<T>(
        &mut self,
        id: u8,
        kind: u8,
        all: &[T],
        mut write: impl FnMut(&mut Vec<u8>, &T),
    ) {
        self.field(id, LIST);
        match all.len() {
            few @ 0..15 => self.out.push((few as u8) << 4 | kind),
            many => {
                self.out.push(0xf0 | kind);
                varint(self.out, many as u64);
            }
        }
        for one in all {
            write(self.out, one);
        }
    }

    pub(super) fn end(self) {
        self.out.push(0);
    }
}

/// A whole structure.
pub(super) fn structure(out: &mut Vec<u8>, write: impl FnOnce(&mut Struct<'_>)) {
    let mut inner = Struct::new(out);
    write(&mut inner);
    inner.end();
}

/// A number that is an element of a list.
pub(super) fn element(out: &mut Vec<u8>, value: i32) {
    zigzag(out, value.into());
}

/// Bytes with their length before them.
pub(super) fn binary(out: &mut Vec<u8>, value: &[u8]) {
    varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_as_the_specification_has_them() {
        let of = |n: i64| {
            let mut out = Vec::new();
            zigzag(&mut out, n);
            out
        };
        // From the specification: 0, -1, 1, -2 become 0, 1, 2, 3, and 50399 becomes df 89 03.
        assert_eq!([of(0), of(-1), of(1), of(-2)], [[0], [1], [2], [3]]);
        let mut out = Vec::new();
        varint(&mut out, 50399);
        assert_eq!(out, [0xdf, 0x89, 0x03]);
        assert_eq!(of(i64::MIN).len(), 10);
    }

    #[test]
    fn long_lists_have_their_length_behind_their_head() {
        let mut out = Vec::new();
        structure(&mut out, |s| {
            s.list(2, I32, &[1; 15], |out, n| element(out, *n))
        });
        assert_eq!(out[..3], [0x29, 0xf5, 15]);
        assert_eq!(out.len(), 3 + 15 + 1);
        out.clear();
        structure(&mut out, |s| {
            s.list(1, I32, &[7], |out, n| element(out, *n))
        });
        assert_eq!(out, [0x19, 0x15, 14, 0]);
    }
}
