//! Sizes as people write and read them. KiB, MiB, GiB and TiB are powers of 1024, and so are K, M, G and T; kB, MB, GB and
//! TB are powers of 1000. Letter case does not matter.

use std::fmt;

/// Factors by the letters behind the digits, in lower case.
const FACTORS: &[(&str, u64)] = &[
    ("", 1),
    ("b", 1),
    ("k", 1 << 10),
    ("kib", 1 << 10),
    ("kb", 1000),
    ("m", 1 << 20),
    ("mib", 1 << 20),
    ("mb", 1_000_000),
    ("g", 1 << 30),
    ("gib", 1 << 30),
    ("gb", 1_000_000_000),
    ("t", 1 << 40),
    ("tib", 1 << 40),
    ("tb", 1_000_000_000_000),
];

/// Reads a decimal number with or without a unit, or a 0x number without one; underscores between digits are ignored.
#[must_use]
pub fn number(text: &str) -> Option<u64> {
    let text = text.replace('_', "");
    if let Some(hex) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        // from_str_radix would accept a sign.
        let digits = hex.bytes().all(|b| b.is_ascii_hexdigit());
        return digits.then(|| u64::from_str_radix(hex, 16).ok())?;
    }
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, unit) = text.split_at(digits);
    let unit = unit.to_ascii_lowercase();
    let factor = FACTORS.iter().find(|(name, _)| *name == unit)?.1;
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

/// Reads a time in nanoseconds: a decimal number, with a fraction or not, and with ns, us, ms or s behind it, or a 0x number.
#[must_use]
pub(crate) fn nanoseconds(text: &str) -> Option<u64> {
    let text = text.replace('_', "");
    if text.starts_with("0x") || text.starts_with("0X") {
        return number(&text);
    }
    let digits = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (digits, unit) = text.split_at(digits);
    let factor: u64 = match unit.to_ascii_lowercase().as_str() {
        "" | "ns" => 1,
        "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        _ => return None,
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let whole = whole.parse::<u64>().ok()?.checked_mul(factor)?;
    // Nothing is smaller than a nanosecond.
    let mut rest = 0;
    let mut place = factor;
    for digit in fraction.bytes() {
        place /= 10;
        rest += u64::from(digit.checked_sub(b'0').filter(|d| *d < 10)?) * place;
    }
    whole.checked_add(rest)
}

/// A number of bytes as people read it: `640 B`, `3.0 MiB`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bytes(pub f64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = ["KiB", "MiB", "GiB", "TiB"];
        // A value that would be shown as 1024 of a unit is shown as 1 of the next.
        if self.0 < 1023.5 {
            return write!(f, "{:.0} B", self.0);
        }
        let (mut value, mut at) = (self.0 / 1024.0, 0);
        while value >= 1023.95 && at + 1 < units.len() {
            value /= 1024.0;
            at += 1;
        }
        write!(f, "{value:.1} {}", units[at])
    }
}

/// A time as people read it, with three digits: `850 ns`, `12.3 us`, `1.23 ms`, `61.0 s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nanoseconds(pub u64);

impl fmt::Display for Nanoseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < 1000 {
            return write!(f, "{} ns", self.0);
        }
        let units = ["us", "ms", "s"];
        let (mut value, mut at) = (self.0 as f64 / 1e3, 0);
        // A value that would be shown as 1000 of a unit is shown as 1 of the next.
        while value >= 999.5 && at + 1 < units.len() {
            value /= 1e3;
            at += 1;
        }
        let digits = match value {
            ..9.995 => 2,
            ..99.95 => 1,
            _ => 0,
        };
        write!(f, "{value:.digits$} {}", units[at])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_three_digits() {
        for (ns, text) in [
            (0, "0 ns"),
            (999, "999 ns"),
            (1_000, "1.00 us"),
            (9_994, "9.99 us"),
            (9_996, "10.0 us"),
            (12_345, "12.3 us"),
            (999_400, "999 us"),
            (999_600, "1.00 ms"),
            (1_234_567, "1.23 ms"),
            (61_000_000_000, "61.0 s"),
            (3_600_000_000_000, "3600 s"),
        ] {
            assert_eq!(Nanoseconds(ns).to_string(), text);
        }
    }

    #[test]
    fn numbers_with_units() {
        for (text, n) in [
            ("0", Some(0)),
            ("1M", Some(1 << 20)),
            ("1MiB", Some(1 << 20)),
            ("1mib", Some(1 << 20)),
            ("1MB", Some(1_000_000)),
            ("2k", Some(2048)),
            ("2KiB", Some(2048)),
            ("2kB", Some(2000)),
            ("3G", Some(3 << 30)),
            ("3GiB", Some(3 << 30)),
            ("3GB", Some(3_000_000_000)),
            ("1T", Some(1 << 40)),
            ("640B", Some(640)),
            ("0x10012", Some(0x10012)),
            ("0x1b", Some(0x1b)),
            ("1_000", Some(1000)),
            ("K", None),
            ("KiB", None),
            ("", None),
            ("0x", None),
            ("0x+1", None),
            ("+1", None),
            ("1.5M", None),
            ("-1", None),
            ("1Mb/s", None),
            ("1Mi", None),
            ("99999999999G", None),
        ] {
            assert_eq!(number(text), n, "{text}");
        }
    }

    #[test]
    fn times_with_units() {
        for (text, ns) in [
            ("0", Some(0)),
            ("1500", Some(1500)),
            ("12ns", Some(12)),
            ("20us", Some(20_000)),
            ("20\u{b5}s", Some(20_000)),
            ("1ms", Some(1_000_000)),
            ("1.5ms", Some(1_500_000)),
            ("0.25MS", Some(250_000)),
            ("2s", Some(2_000_000_000)),
            ("1.23456s", Some(1_234_560_000)),
            ("1.5ns", Some(1)),
            ("1_000us", Some(1_000_000)),
            ("0x10", Some(16)),
            ("", None),
            ("ms", None),
            (".", None),
            (".5ms", None),
            ("1.2.3ms", None),
            ("1M", None),
            ("1m", None),
            ("1KiB", None),
            ("-1ms", None),
            ("99999999999999s", None),
        ] {
            assert_eq!(nanoseconds(text), ns, "{text}");
        }
    }

    #[test]
    fn bytes_for_people() {
        for (bytes, shown) in [
            (0.0, "0 B"),
            (1023.4, "1023 B"),
            (1023.6, "1.0 KiB"),
            (1536.0, "1.5 KiB"),
            (1_048_575.0, "1.0 MiB"),
            (3_149_368.0, "3.0 MiB"),
            (5e13, "45.5 TiB"),
            (1e19, "9094947.0 TiB"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), shown);
        }
    }
}
