//! How a method write is shown: class, method and fields by name, in text and in JSON.

use std::collections::HashMap;

use crate::decode::event::MethodWrite;

use super::redact::{Redactor, carries_data};
use super::style::{Formatter, Role};

/// The name of a class, where the tables have it.
#[must_use]
pub fn class_name(_class: u32) -> Option<&'static str> {
    None
}

/// The name of a method of a class, where the tables have it.
#[must_use]
pub fn method_name(_class: u32, _method: u16) -> Option<String> {
    None
}

/// Explains method writes, remembering the names it has made.
#[derive(Debug, Default)]
pub struct Explainer {
    names: HashMap<(u32, u16), Named>,
}

/// A method's name, made once.
#[derive(Debug)]
struct Named {
    /// As the public headers spell it; the address in hex where they do not.
    name: String,
    known: bool,
    carries_data: bool,
}

impl Explainer {
    fn named(&mut self, class: u32, method: u16) -> &Named {
        self.names.entry((class, method)).or_insert_with(|| {
            let name = method_name(class, method);
            let known = name.is_some();
            let name = name.unwrap_or_else(|| format!("{method:#06x}"));
            Named {
                carries_data: carries_data(&name),
                name,
                known,
            }
        })
    }

    /// One line (and one a field where there are several) in the text output.
    pub fn text(
        &mut self,
        f: &mut Formatter<'_>,
        prefix: &str,
        m: &MethodWrite,
        redact: Option<&Redactor>,
    ) {
        let named = self.named(m.class, m.method);
        f.line(prefix, 1, m.masked.then_some(Role::Dim));
        f.text(format_args!(
            "{}+{:#06x} sub {} {:04x}:{:04x} ",
            m.entry, m.offset, m.subchannel, m.class, m.method
        ));
        f.role(Role::Name, format_args!("{}", named.name));
        match redact {
            Some(redact) if named.carries_data || !named.known => {
                f.text(format_args!(" = {}", redact.hide(&m.data.to_le_bytes())));
            }
            _ => f.text(format_args!(" = {:#x}", m.data)),
        }
        if m.masked {
            f.text(format_args!(" (skipped by the subdevice mask)"));
        }
        f.end();
    }

    /// The members `name`, `data` and `fields` of a JSON object, each with a comma before it.
    pub fn json(&mut self, out: &mut Vec<u8>, m: &MethodWrite, redact: Option<&Redactor>) {
        let named = self.named(m.class, m.method);
        out.extend_from_slice(b",\"name\":");
        if named.known {
            // Names of the headers need no escaping, but nothing here shall depend on that.
            let _ = serde_json::to_writer(&mut *out, &named.name);
        } else {
            out.extend_from_slice(b"null");
        }
        out.extend_from_slice(b",\"data\":");
        match redact {
            Some(redact) if named.carries_data || !named.known => {
                let _ = serde_json::to_writer(&mut *out, &redact.hide(&m.data.to_le_bytes()));
                out.extend_from_slice(b",\"fields\":{}");
            }
            _ => {
                super::json::number(out, u64::from(m.data));
                out.extend_from_slice(b",\"fields\":{}");
            }
        }
    }
}
