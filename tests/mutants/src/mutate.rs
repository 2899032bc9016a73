//! Mutations of an input, by a generator of pseudo-random numbers with a fixed seed: the same number gives the same mutant
//! on every machine.

use fastrand::Rng;

/// No mutant is longer: a reader's bounds are of what it makes of an input, not of the input.
const MOST_BYTES: usize = 128 << 10;

/// Numbers at which readers go wrong.
const INTERESTING: [u64; 16] = [
    0,
    1,
    2,
    3,
    7,
    0x7f,
    0xff,
    0x7fff,
    0xffff,
    0x1f_ffff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    1 << 40,
    i64::MAX as u64,
    u64::MAX,
];

/// A mutated input.
pub struct Mutant {
    /// Index of the seed that it was made from.
    pub seed: usize,
    pub bytes: Vec<u8>,
    /// True if the mutant is the seed's beginning and nothing else.
    pub cut: bool,
}

/// Mutant `number` of a format with these seeds. `text`: numbers and lines are changed as such, too.
pub fn mutant(format: &str, number: u64, seeds: &[Vec<u8>], text: bool) -> Mutant {
    let salt = format.bytes().fold(0xcbf2_9ce4_8422_2325, |h: u64, b| {
        (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)
    });
    let mut rng = Rng::with_seed(salt ^ number);
    let seed = rng.usize(..seeds.len());
    let mut bytes = seeds[seed].clone();
    if rng.u8(..8) == 0 {
        bytes.truncate(rng.usize(..=bytes.len()));
        return Mutant {
            seed,
            cut: bytes.len() < seeds[seed].len(),
            bytes,
        };
    }
    for _ in 0..rng.usize(1..=6) {
        if text && rng.bool() {
            change_text(&mut rng, &mut bytes);
        } else {
            change(&mut rng, &mut bytes, seeds);
        }
        bytes.truncate(MOST_BYTES);
    }
    Mutant {
        seed,
        bytes,
        cut: false,
    }
}

/// A place of `len` bytes; none where there is no room.
fn place(rng: &mut Rng, bytes: &[u8], len: usize) -> Option<usize> {
    let room = bytes.len().checked_sub(len)?;
    let at = rng.usize(..=room);
    // Fields lie at multiples of their size, as a rule.
    Some(if rng.bool() { at - at % len.max(1) } else { at })
}

fn range(rng: &mut Rng, bytes: &[u8]) -> std::ops::Range<usize> {
    let from = rng.usize(..=bytes.len());
    let most = if rng.bool() { 64 } else { 8192 };
    let len = rng.usize(..=most.min(bytes.len() - from));
    from..from + len
}

fn change(rng: &mut Rng, bytes: &mut Vec<u8>, seeds: &[Vec<u8>]) {
    match rng.u8(..9) {
        0 => {
            if let Some(at) = place(rng, bytes, 1) {
                bytes[at] ^= 1 << rng.u8(..8);
            }
        }
        1 => {
            if let Some(at) = place(rng, bytes, 1) {
                bytes[at] = rng.u8(..);
            }
        }
        2 => {
            let size = 1 << rng.usize(..4);
            let value = INTERESTING[rng.usize(..INTERESTING.len())].to_le_bytes();
            if let Some(at) = place(rng, bytes, size) {
                bytes[at..at + size].copy_from_slice(&value[..size]);
            }
        }
        3 => change_length(rng, bytes),
        4 => {
            let part = range(rng, bytes);
            bytes.drain(part);
        }
        5 => {
            let part = bytes[range(rng, bytes)].to_vec();
            let at = rng.usize(..=bytes.len());
            bytes.splice(at..at, part);
        }
        6 => {
            // The end of another.
            let other = &seeds[rng.usize(..seeds.len())];
            bytes.truncate(rng.usize(..=bytes.len()));
            bytes.extend_from_slice(&other[rng.usize(..=other.len())..]);
        }
        7 => {
            let at = rng.usize(..=bytes.len());
            let more: Vec<u8> = (0..rng.usize(..64)).map(|_| rng.u8(..)).collect();
            bytes.splice(at..at, more);
        }
        _ => bytes.truncate(rng.usize(..=bytes.len())),
    }
}

/// A word that may be a length or a count, for it is smaller than the input, becomes another one.
fn change_length(rng: &mut Rng, bytes: &mut [u8]) {
    for _ in 0..32 {
        let Some(at) = place(rng, bytes, 4) else {
            return;
        };
        let Some(word) = bytes.get(at..).and_then(|b| b.first_chunk::<4>()) else {
            return;
        };
        let word = u32::from_le_bytes(*word);
        if word == 0 || word as usize > bytes.len() {
            continue;
        }
        let new = match rng.u8(..5) {
            0 => word + 1,
            1 => word - 1,
            2 => word.wrapping_mul(2),
            3 => bytes.len() as u32,
            _ => rng.u32(..),
        };
        bytes[at..at + 4].copy_from_slice(&new.to_le_bytes());
        return;
    }
}

fn change_text(rng: &mut Rng, bytes: &mut Vec<u8>) {
    if rng.bool() {
        change_number(rng, bytes);
        return;
    }
    let mut lines: Vec<&[u8]> = bytes.split_inclusive(|b| *b == b'\n').collect();
    if lines.is_empty() {
        return;
    }
    let (a, b) = (rng.usize(..lines.len()), rng.usize(..lines.len()));
    match rng.u8(..3) {
        0 => lines.swap(a, b),
        1 => drop(lines.remove(a)),
        _ => lines.insert(a, lines[b]),
    }
    *bytes = lines.concat();
}

/// A run of digits becomes another number.
fn change_number(rng: &mut Rng, bytes: &mut Vec<u8>) {
    if bytes.is_empty() {
        return;
    }
    let from = rng.usize(..bytes.len());
    let Some(start) = bytes[from..].iter().position(u8::is_ascii_digit) else {
        return;
    };
    let start = from + start;
    let digits = bytes[start..].iter().take_while(|b| b.is_ascii_hexdigit());
    let end = start + digits.count();
    let value = INTERESTING[rng.usize(..INTERESTING.len())];
    let text = match rng.u8(..3) {
        0 => format!("{value}"),
        1 => format!("{value:x}"),
        _ => format!("-{value}"),
    };
    bytes.splice(start..end, text.into_bytes());
}
