//! Raw words of entries.

use crate::output::holes::Part;
use crate::output::redact::Redactor;
use crate::output::style::{Formatter, Role};

/// The raw words of a part of an entry, eight a line, with their offset.
pub(super) fn words(
    f: &mut Formatter<'_>,
    prefix: &str,
    part: Part<'_>,
    redact: Option<&Redactor>,
) {
    let (at, bytes) = match part {
        Part::Read(at, bytes) => (at, bytes),
        Part::Missing(bytes) => {
            f.line(prefix, 2, Some(Role::Alarm));
            f.text(format_args!("-- {bytes} B not read"));
            f.end();
            return;
        }
    };
    if let Some(redact) = redact {
        f.line(prefix, 2, Some(Role::Dim));
        f.text(format_args!("{}", redact.hide(bytes)));
        f.end();
        return;
    }
    for (i, line) in bytes.chunks(32).enumerate() {
        f.line(prefix, 2, Some(Role::Dim));
        f.text(format_args!("{:06x}", at + i * 32));
        for word in line.chunks(4) {
            match <[u8; 4]>::try_from(word) {
                Ok(word) => f.text(format_args!(" {:08x}", u32::from_le_bytes(word))),
                Err(_) => {
                    f.text(format_args!(" "));
                    for b in word {
                        f.text(format_args!("{b:02x}"));
                    }
                }
            }
        }
        f.end();
    }
}
