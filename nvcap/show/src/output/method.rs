//! Text and JSON of a method write: class, method and fields by name.

use nvcap_decode::wire::words::u32s;
use std::collections::HashMap;

use nvcap_decode::decode::classes::{self, Field};
use nvcap_decode::decode::event::MethodWrite;
use nvcap_decode::decode::explain;

use super::redact::{Redactor, carries_data};
use super::style::{Formatter, Role};

/// The name of a class, where the tables have it.
#[must_use]
pub(crate) fn class_name(class: u32) -> Option<&'static str> {
    classes::class(class).map(classes::Class::name)
}

/// The name of a method of a class, with its index where it is of an array; `None` where the tables do not have it.
#[must_use]
pub(crate) fn method_name(class: u32, method: u16) -> Option<String> {
    classes::method(class, method).map(|m| m.to_string())
}

/// Explains method writes, remembering the names it has looked up.
#[derive(Debug, Default)]
pub(crate) struct Explainer {
    /// Names by class and method. Bounded: a class has at most 2^14 methods, and few classes occur.
    names: HashMap<(u32, u16), Named>,
}

/// A method's name and fields, looked up once.
#[derive(Debug)]
struct Named {
    /// Name as the public headers spell it; the address in hex where they do not.
    name: String,
    known: bool,
    carries_data: bool,
    fields: Vec<Field>,
    /// True if fields share bits: the data word decides which of them apply.
    overlap: bool,
    /// True if there is one field, which begins at bit 0 and has no names: its value is the data word.
    plain: bool,
}

impl Named {
    fn look_up(class: u32, address: u16) -> Self {
        let method = classes::method(class, address);
        let name = method.map_or_else(|| format!("{address:#06x}"), |m| m.to_string());
        let fields: Vec<Field> = method.map_or_else(Vec::new, |m| m.fields().collect());
        let plain = match fields.as_slice() {
            [] => true,
            [f] => f.low() == 0 && f.names().is_empty(),
            _ => false,
        };
        let mut taken = 0;
        let mut overlap = false;
        for f in &fields {
            let bits = f.encode(u32::MAX);
            overlap |= taken & bits != 0;
            taken |= bits;
        }
        Self {
            overlap,
            carries_data: carries_data(&name),
            known: method.is_some(),
            name,
            fields,
            plain,
        }
    }
}

impl Named {
    /// Tells whether a field of this method applies to a data word.
    fn applies(&self, m: &MethodWrite, field: Field) -> bool {
        !self.overlap
            || explain::method(m.class, m.method, m.data)
                .is_none_or(|write| write.fields.iter().any(|f| f.name == field.name()))
    }
}

impl Explainer {
    fn named(&mut self, class: u32, method: u16) -> &Named {
        self.names
            .entry((class, method))
            .or_insert_with(|| Named::look_up(class, method))
    }

    /// One line of the text output.
    pub(crate) fn text(
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
            _ => {
                f.text(format_args!(" = {:#x}", m.data));
                if !named.plain {
                    for field in named.fields.iter().filter(|f| named.applies(m, **f)) {
                        let value = field.value(m.data);
                        match field.names().name_of(value) {
                            Some(name) => f.text(format_args!(" {}={name}", field.name())),
                            // A field without names that is 0 is left out.
                            None if value == 0 => {}
                            None => f.text(format_args!(" {}={value:#x}", field.name())),
                        }
                    }
                }
            }
        }
        if m.masked {
            f.text(format_args!(" (skipped by the subdevice mask)"));
        }
        f.end();
    }

    /// Tells whether a method's data word is users' data or a piece of it.
    pub(crate) fn carries_data(&mut self, m: &MethodWrite) -> bool {
        self.named(m.class, m.method).carries_data
    }

    /// One line of the text output for consecutive data words of one method.
    pub(crate) fn data(
        &mut self,
        f: &mut Formatter<'_>,
        prefix: &str,
        m: &MethodWrite,
        data: &[u8],
        redact: Option<&Redactor>,
    ) {
        /// The most words that are shown without `-vvv`.
        const SHOWN: usize = 8;
        let named = self.named(m.class, m.method);
        f.line(prefix, 1, m.masked.then_some(Role::Dim));
        f.text(format_args!(
            "{}+{:#06x} sub {} {:04x}:{:04x} ",
            m.entry, m.offset, m.subchannel, m.class, m.method
        ));
        f.role(Role::Name, format_args!("{}", named.name));
        let words = data.len() / 4;
        if words > 1 {
            f.text(format_args!(" x{words}"));
        }
        f.text(format_args!(" ="));
        if let Some(redact) = redact {
            f.text(format_args!(" {}", redact.hide(data)));
        } else {
            for word in u32s(data).take(SHOWN) {
                f.text(format_args!(" {:08x}", word));
            }
            if words > SHOWN {
                f.text(format_args!(" .."));
            }
        }
        f.end();
    }

    /// Gives `each` the fields of a method write: name, value, and the value's name. Returns the method's name.
    pub(crate) fn fields(
        &mut self,
        m: &MethodWrite,
        mut each: impl FnMut(&'static str, u32, Option<&'static str>),
    ) -> Option<&str> {
        let named = self.named(m.class, m.method);
        for field in named.fields.iter().filter(|f| named.applies(m, **f)) {
            let value = field.value(m.data);
            each(field.name(), value, field.names().name_of(value));
        }
        named.known.then_some(named.name.as_str())
    }

    /// The members `name`, `data` and `fields` of a JSON object, each with a comma before it.
    pub(crate) fn json(&mut self, out: &mut Vec<u8>, m: &MethodWrite, redact: Option<&Redactor>) {
        let named = self.named(m.class, m.method);
        out.extend_from_slice(b",\"name\":");
        if named.known {
            string(out, &named.name);
        } else {
            out.extend_from_slice(b"null");
        }
        out.extend_from_slice(b",\"data\":");
        if let Some(redact) = redact
            && (named.carries_data || !named.known)
        {
            // Writing to a vector does not fail.
            super::json::write(out, &redact.hide(&m.data.to_le_bytes()));
            out.extend_from_slice(b",\"fields\":{}");
            return;
        }
        super::json::number(out, u64::from(m.data));
        out.extend_from_slice(b",\"fields\":{");
        let fields = named.fields.iter().filter(|f| named.applies(m, **f));
        for (i, field) in fields.enumerate() {
            if i > 0 {
                out.push(b',');
            }
            string(out, field.name());
            out.push(b':');
            let value = field.value(m.data);
            match field.names().name_of(value) {
                Some(name) => string(out, name),
                None => super::json::number(out, u64::from(value)),
            }
        }
        out.push(b'}');
    }
}

/// A name of the tables: letters, digits, underscores and parentheses, which need no escaping.
fn string(out: &mut Vec<u8>, text: &str) {
    debug_assert!(
        text.bytes()
            .all(|b| b.is_ascii_graphic() && b != b'"' && b != b'\\'),
        "{text}"
    );
    out.push(b'"');
    out.extend_from_slice(text.as_bytes());
    out.push(b'"');
}
