//! Events as the messages of `recording::decoded`.

use crate::output::describe::describe;
use crate::output::method::{Explainer, class_name};
use crate::output::names::{known_engine, known_name, operation_name};
use crate::output::plural::plural_of;
use crate::output::releases::Releases;
use crate::output::style::Formatter;
use crate::output::text::{brief, is_mechanics};
use nvcap_decode::decode::event::{self, Body, Context, Event, MethodWrite};
use nvcap_decode::driver::{Call, Subject, Version, names};
use nvcap_decode::record::Ioctl;
use nvcap_recording::recording::decoded::{Class, Decoded, Method, Operation, Stop, Value};

use super::values;

/// The most operations that a submission's line names.
const MOST_NAMED: usize = 3;

/// Gathers what the decoder says of one submission.
#[derive(Default)]
pub(super) struct Describer {
    decoded: Option<Decoded>,
    explain: Explainer,
    releases: Releases,
    /// Operations that the program asked for, in words.
    asked: Vec<String>,
    /// Number of operations that the line does not name.
    others: usize,
}

/// One operation on a line of its own.
fn line(write: impl FnOnce(&mut Formatter<'_>)) -> String {
    let mut out = Vec::new();
    let mut f = Formatter::new(&mut out, false);
    write(&mut f);
    f.end();
    String::from_utf8_lossy(&out).trim().to_owned()
}

impl Describer {
    /// Takes what was gathered since the last call.
    pub(super) fn take(&mut self) -> Option<Decoded> {
        let mut decoded = self.decoded.take()?;
        decoded.text = self.summary(&decoded);
        Some(decoded)
    }

    /// Describes what the program asked for, in one line; where it is nothing, the driver's operations by their kinds.
    fn summary(&mut self, decoded: &Decoded) -> String {
        let mut text = self.asked.join("; ");
        let mut rest = std::mem::take(&mut self.others);
        if self.asked.is_empty() && rest > 0 {
            rest = 0;
            let mut counts: Vec<(&str, usize)> = Vec::new();
            for operation in &decoded.operations {
                match counts.iter_mut().find(|(op, _)| *op == operation.op) {
                    Some((_, count)) => *count += 1,
                    None => counts.push((&operation.op, 1)),
                }
            }
            let words = counts.iter().map(|(op, count)| match count {
                1 => (*op).to_owned(),
                n => format!("{op} x{n}"),
            });
            text = format!("(driver) {}", words.collect::<Vec<_>>().join(", "));
        }
        if rest > 0 {
            let more = plural_of(rest as u64, "operation", "operations");
            text += &format!("; {more} more");
        }
        self.asked.clear();
        for stop in &decoded.stops {
            text += if text.is_empty() { "" } else { "; " };
            text += &stop.text;
        }
        text
    }

    /// The next event.
    pub(super) fn event(&mut self, event: &Event<'_>) {
        let context = event.context;
        match &event.body {
            Body::Submission(_) => self.begin(context),
            Body::Method(m) => self.method(m),
            Body::Operation(op) => self.operation(context, event.entry, op),
            Body::Stop(s) => {
                let stop = Stop {
                    entry: s.entry,
                    offset: s.offset,
                    text: s.to_string(),
                };
                self.decoded().stops.push(stop);
            }
            Body::Entry(_) | Body::Chip(_) => {}
        }
    }

    fn decoded(&mut self) -> &mut Decoded {
        self.decoded.get_or_insert_default()
    }

    fn begin(&mut self, c: &Context) {
        let decoded = self.decoded();
        decoded.serial = Some(c.serial);
        decoded.gpu = c.gpu;
        decoded.token = c.token;
        decoded.engine = known_engine(c.engine);
        let thread = c.thread.as_deref().and_then(known_name);
        decoded.thread = thread.map(str::to_owned);
        let api = c.stack.as_ref().and_then(|s| s.api.as_deref());
        decoded.api = api.map(str::to_owned);
    }

    fn method(&mut self, m: &MethodWrite) {
        let carries_data = self.explain.carries_data(m);
        let decoded = self.decoded.get_or_insert_default();
        if let Some(last) = decoded.methods.last_mut().filter(|_| carries_data)
            && (last.entry, last.offset + last.words * 4) == (m.entry, m.offset)
            && (last.class, last.address) == (m.class, m.method.into())
            && (last.subchannel, last.masked) == (m.subchannel.into(), m.masked)
        {
            last.words += 1;
            return;
        }
        let mut fields = Vec::new();
        let name = self.explain.fields(m, |name, value, word| {
            fields.push(Value {
                name: name.to_owned(),
                number: Some(value.into()),
                text: word.map(str::to_owned),
            });
        });
        if !decoded.classes.iter().any(|c| c.class == m.class)
            && let Some(name) = class_name(m.class)
        {
            decoded.classes.push(Class {
                class: m.class,
                name: name.to_owned(),
            });
        }
        decoded.methods.push(Method {
            entry: m.entry,
            offset: m.offset,
            subchannel: m.subchannel.into(),
            class: m.class,
            address: m.method.into(),
            name: name.map(str::to_owned),
            data: m.data,
            masked: m.masked,
            words: 1,
            fields,
        });
    }

    fn operation(&mut self, c: &Context, entry: u32, op: &event::Operation) {
        self.releases.note(c, op);
        if is_mechanics(c, entry, op, &self.releases) || self.asked.len() >= MOST_NAMED {
            self.others += 1;
        } else {
            let waits_for = match op {
                event::Operation::Semaphore(s) => self.releases.channel(c, s.address),
                _ => None,
            };
            let text = line(|f| brief(f, "", c, op, waits_for, None));
            self.asked.push(text);
        }
        let decoded = self.decoded.get_or_insert_default();
        // An operation that was held back (a graph's replay) belongs to an earlier submission, whose methods are not here.
        let is_here = decoded.serial == Some(c.serial);
        let method = decoded
            .methods
            .last()
            .filter(|m| is_here && m.entry == entry);
        let (at, offset) = (method.map(|m| m.entry), method.map(|m| m.offset));
        decoded.operations.push(Operation {
            op: operation_name(op).to_owned(),
            text: line(|f| describe(f, "", c, op, None)),
            entry: at,
            offset,
            serial: (!is_here).then_some(c.serial),
            values: values::of(c, entry, op),
        });
    }
}

/// A driver call in words: the ioctl, the class or control, and the result.
pub(super) fn ioctl(ioctl: &Ioctl, version: Option<Version>) -> Decoded {
    let call = Call::read(ioctl, version);
    let mut text = call.name(version).into_owned();
    match call.subject {
        Subject::Class(class) => text += &format!(" {}", names::class(class)),
        Subject::Control(command) => text += &format!(" {}", names::control(command, version)),
        Subject::None => {}
    }
    match (call.ioctl.result, call.status) {
        (Some(0..), Some(status)) => text += &format!(" = {}", names::status(status)),
        (Some(result), _) => text += &format!(" = {result}"),
        (None, _) => {}
    }
    Decoded {
        text,
        ..Decoded::default()
    }
}
