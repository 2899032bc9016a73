//! JSON whose strings have no character that a terminal or an editor would act on. JSON allows some of them unescaped:
//! the control characters from U+0080 on, changes of the writing direction, line separators. They are escaped here; a
//! JSON reader sees no difference.

use std::io;

use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};

use crate::output::style::is_acted_on;

/// Appends a value and the end of its line.
pub fn write_line<T: Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) {
    write(out, value);
    out.push(b'\n');
}

/// Appends a value on one line.
pub fn write<T: Serialize + ?Sized>(out: &mut Vec<u8>, value: &T) {
    // Writing to a vector does not fail, nor does serialising: all keys of maps are text.
    let _ = value.serialize(&mut Serializer::with_formatter(out, Escaping));
}

/// Returns a value as text.
pub fn text_of<T: Serialize + ?Sized>(value: &T) -> String {
    let mut out = Vec::new();
    write(&mut out, value);
    String::from_utf8(out).unwrap_or_default()
}

struct Escaping;

impl Formatter for Escaping {
    fn write_string_fragment<W>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()>
    where
        W: ?Sized + io::Write,
    {
        // DEL and everything that is not ASCII may have to be escaped.
        if fragment.bytes().all(|b| b < 0x7f) {
            return writer.write_all(fragment.as_bytes());
        }
        let mut units = [0; 2];
        for part in fragment.split_inclusive(is_acted_on) {
            let last = part.chars().next_back().filter(|c| is_acted_on(*c));
            let plain = part.len() - last.map_or(0, char::len_utf8);
            writer.write_all(&part.as_bytes()[..plain])?;
            for unit in last
                .iter()
                .flat_map(|c| c.encode_utf16(&mut units).to_vec())
            {
                write!(writer, "\\u{unit:04x}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_to_act_on_and_nothing_is_changed() {
        let text =
            "a\"\\\u{1b}[2J\u{7f}\u{9b}31m\u{202e}b\u{2028}c\u{e0001}\u{feff} d\u{e4}\u{1f600}\n";
        let mut out = Vec::new();
        write(&mut out, text);
        let json = String::from_utf8(out).unwrap();
        assert!(!json.chars().any(is_acted_on), "{json:?}");
        assert!(
            json.contains("\\u202e") && json.contains("\\udb40\\udc01"),
            "{json}"
        );
        assert!(json.contains("d\u{e4}\u{1f600}"), "{json}");
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
        // Names of members as well.
        let mut out = Vec::new();
        write(
            &mut out,
            &serde_json::json!({"a\u{2029}b": [1.5, null, "x"]}),
        );
        assert_eq!(out, br#"{"a\u2029b":[1.5,null,"x"]}"#);
    }
}
