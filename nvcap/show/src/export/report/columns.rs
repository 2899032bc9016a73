//! Columns of numbers, compressed while they are written: each number as its difference to the one before, in as few bytes as it needs.
//!
//! The page's `data.js` reads them: zigzag (0, -1, 1, -2, ...), then LEB128, then deflate with zlib's frame, then base64.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::ZlibEncoder;

/// One column.
pub(super) struct Column {
    encoder: ZlibEncoder<Vec<u8>>,
    before: i64,
}

impl Default for Column {
    fn default() -> Self {
        Self {
            encoder: ZlibEncoder::new(Vec::new(), Compression::new(4)),
            before: 0,
        }
    }
}

impl Column {
    /// Appends a number. A page holds numbers exactly up to 2^53; a larger one is written as 2^53.
    pub(super) fn push(&mut self, value: i64) {
        const MOST: i64 = 1 << 53;
        let value = value.clamp(-MOST, MOST);
        let step = value - self.before;
        self.before = value;
        let mut rest = ((step << 1) ^ (step >> 63)) as u64;
        let mut bytes = [0; 10];
        let mut used = 0;
        for byte in &mut bytes {
            used += 1;
            *byte = (rest & 0x7f) as u8;
            rest >>= 7;
            if rest == 0 {
                break;
            }
            *byte |= 0x80;
        }
        // Writing to a vector does not fail.
        let _ = self.encoder.write_all(&bytes[..used]);
    }

    /// Appends a number of a wider or unsigned type.
    pub(super) fn push_unsigned(&mut self, value: u64) {
        self.push(i64::try_from(value).unwrap_or(i64::MAX));
    }

    /// Its text.
    pub(super) fn finish(self) -> String {
        base64(&self.encoder.finish().unwrap_or_default())
    }
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let mut word = [0; 4];
        word[1..=group.len()].copy_from_slice(group);
        let word = u32::from_be_bytes(word);
        for digit in 0..4 {
            let value = (word >> (18 - 6 * digit)) & 63;
            text.push(match digit <= group.len() {
                true => char::from(DIGITS[value as usize]),
                false => '=',
            });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn bytes_become_text() {
        // RFC 4648, section 10.
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
        assert_eq!(base64(&[0xfb, 0xff, 0xfe]), "+//+");
    }

    #[test]
    fn numbers_are_steps_in_few_bytes() {
        let mut column = Column::default();
        for value in [0, 1, 0, 100, i64::MAX, i64::MIN] {
            column.push(value);
        }
        let mut bytes = Vec::new();
        let packed = column.encoder.finish().unwrap();
        flate2::read::ZlibDecoder::new(packed.as_slice())
            .read_to_end(&mut bytes)
            .unwrap();
        assert_eq!(bytes[..5], [0, 2, 1, 0xc8, 1]);
        // 2^53 - 100, and from 2^53 to -2^53.
        assert_eq!(bytes.len(), 5 + 8 + 8);
    }
}
