//! Thousands of damaged files of each compression, always the same ones: each ends, with an error or with what it holds.

use std::fs;
use std::io::{Cursor, Read, Write};

use crate::common::files::fixture;
use nvcap_recording::file::{kind, packed};

/// Bytes that are read of what comes out.
const MOST: u64 = 4 << 20;

/// xorshift64: the same numbers in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % n.max(1) as u64).unwrap()
    }
}

/// Bytes and runs of them changed, taken out, put in, cut off.
fn damage(bytes: &mut Vec<u8>, numbers: &mut Numbers) {
    for _ in 0..=numbers.below(4) {
        let at = numbers.below(bytes.len());
        // Headers have most to say.
        let at = if numbers.below(2) == 0 { at % 64 } else { at };
        let len = 1 + numbers.below(8);
        let end = bytes.len().min(at + len);
        match numbers.below(5) {
            0 => bytes[at..end].fill(numbers.below(256) as u8),
            1 => bytes[at] ^= 1 << numbers.below(8),
            2 => drop(bytes.drain(at..end)),
            3 => drop(bytes.splice(at..at, vec![numbers.below(256) as u8; len])),
            _ => bytes.truncate(at.max(16)),
        }
        if bytes.len() < 80 {
            bytes.resize(80, 0);
        }
    }
}

fn read(bytes: Vec<u8>) -> std::io::Result<Vec<u8>> {
    let (_, reader) = kind::of(packed::unpacked(Box::new(Cursor::new(bytes)))?);
    let mut out = Vec::new();
    reader.take(MOST).read_to_end(&mut out)?;
    Ok(out)
}

fn survives(name: &str, whole: &[u8], plain: &[u8]) {
    assert!(read(whole.to_vec()).unwrap() == plain, "{name}");
    let mut numbers = Numbers(0x6e76_6361_7000 + name.len() as u64);
    let mut errors = 0;
    for _ in 0..3000 {
        let mut bytes = whole.to_vec();
        damage(&mut bytes, &mut numbers);
        errors += u32::from(read(bytes).is_err());
    }
    assert!(errors > 1500, "{name}: {errors} of 3000 are errors");
}

fn plain() -> Vec<u8> {
    let mut bytes = fs::read(fixture("h200-cut.orc")).unwrap();
    bytes.truncate(20_000);
    bytes
}

#[test]
fn damaged_gzip() {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(&plain()).unwrap();
    survives("gzip", &encoder.finish().unwrap(), &plain());
}

#[cfg(feature = "zstd")]
#[test]
fn damaged_zstd() {
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    let plain = plain();
    let whole = compress_to_vec(plain.as_slice(), CompressionLevel::Fastest);
    survives("zstd", &whole, &plain);
}

#[cfg(feature = "xz")]
#[test]
fn damaged_xz() {
    let whole = fs::read(fixture("h200-cut.orc.xz")).unwrap();
    let plain = fs::read(fixture("h200-cut.orc")).unwrap();
    survives("xz", &whole, &plain);
}
