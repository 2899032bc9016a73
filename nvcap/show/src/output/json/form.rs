//! The pieces JSON is made of, appended to a buffer without allocation.

use serde::Serialize;

use super::escape::write;

/// Appends a number in decimal.
pub(in crate::output) fn number(out: &mut Vec<u8>, mut n: u64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (n % 10) as u8;
        n /= 10;
        if n == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

pub(super) fn optional(out: &mut Vec<u8>, n: Option<u64>) {
    match n {
        Some(n) => number(out, n),
        None => out.extend_from_slice(b"null"),
    }
}

/// Appends `,"name":number`; `name` needs no escapes.
pub(in crate::output) fn member(out: &mut Vec<u8>, name: &str, n: u64) {
    key(out, name);
    number(out, n);
}

pub(in crate::output) fn key(out: &mut Vec<u8>, name: &str) {
    out.extend_from_slice(b",\"");
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\":");
}

pub(in crate::output) fn text(out: &mut Vec<u8>, name: &str, value: &str) {
    key(out, name);
    write(out, value);
}

pub(in crate::output) fn optional_text(out: &mut Vec<u8>, name: &str, value: Option<&str>) {
    match value {
        Some(value) => text(out, name, value),
        None => {
            key(out, name);
            out.extend_from_slice(b"null");
        }
    }
}

pub(super) fn hex(out: &mut Vec<u8>, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    out.extend(
        bytes
            .iter()
            .flat_map(|b| [DIGITS[usize::from(b >> 4)], DIGITS[usize::from(b & 15)]]),
    );
}

pub(super) fn known(n: u32) -> Option<u64> {
    (n != 0).then_some(u64::from(n))
}

pub(in crate::output) fn bool_member(out: &mut Vec<u8>, name: &str, value: bool) {
    key(out, name);
    out.extend_from_slice(if value { b"true" } else { b"false" });
}

pub(super) fn to_vec<T: Serialize>(out: &mut Vec<u8>, value: &T) {
    write(out, value);
}

pub(super) fn hex_member(out: &mut Vec<u8>, name: &str, bytes: &[u8]) {
    key(out, name);
    out.push(b'"');
    hex(out, bytes);
    out.push(b'"');
}

pub(super) fn optional_member(out: &mut Vec<u8>, name: &str, n: Option<impl Into<u64>>) {
    key(out, name);
    optional(out, n.map(Into::into));
}

pub(super) fn numbers(out: &mut Vec<u8>, name: &str, list: Option<&[u32]>) {
    key(out, name);
    let Some(list) = list else {
        out.extend_from_slice(b"null");
        return;
    };
    out.push(b'[');
    for (i, n) in list.iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        number(out, u64::from(*n));
    }
    out.push(b']');
}
