//! One ioctl as a line of text or a JSON object: fields by name, numbers by their meaning.

use std::fmt::Write as _;

use serde_json::{Map, Value as Json, json};

use nvcap_decode::{
    driver::{
        self, Call, Model, ObjectRef, Structure, Subject, Version,
        fields::{self, Exchanged, Meaning, NamedValue, Value},
        names,
    },
    record::Bytes,
};

use super::{
    super::{
        names::Latest,
        style::{Formatter, Role},
    },
    form::{IoctlOptions, begin, device, device_name},
};

/// Options and knowledge with which one ioctl is shown.
pub(super) struct Shown<'a> {
    pub(super) options: &'a IoctlOptions,
    pub(super) model: &'a Model,
    pub(super) version: Option<Version>,
}

impl Shown<'_> {
    // ---- text ----

    pub(super) fn line(&self, f: &mut Formatter<'_>, start: &str, call: &Call<'_>) {
        f.line(start, 0, None);
        f.text(format_args!("{}", device(call.ioctl.device, call.ioctl.fd)));
        f.role(Role::Operation, format_args!("{}", call.name(self.version)));
        f.text(format_args!("("));
        let mut parts = self.structure(call, &call.arg);
        if let Some(nested) = &call.nested {
            let inside = self.structure(call, nested);
            let name = match call.subject {
                Subject::Class(_) => "pAllocParms",
                _ => "params",
            };
            // The parameters are shown in place of the field that points to them.
            let at = parts
                .iter()
                .position(|p| p.strip_prefix(name).is_some_and(|r| r.starts_with('=')));
            let text = format!("{name}={{{}}}", inside.join(", "));
            match at {
                Some(at) => parts[at] = text,
                None => parts.push(text),
            }
        }
        f.text(format_args!("{})", parts.join(", ")));
        let failed = !call.succeeded();
        let role = if failed { Role::Alarm } else { Role::Good };
        f.text(format_args!(" = "));
        match call.ioctl.result {
            None => f.role(Role::Dim, format_args!("?")),
            Some(r) if r < 0 => f.role(role, format_args!("{r}")),
            Some(r) => match call.status {
                Some(status) => f.role(role, format_args!("{}", names::status(status))),
                None => f.role(role, format_args!("{r}")),
            },
        }
        if let Some(end) = call.ioctl.end_ns {
            let ns = end.saturating_sub(call.ioctl.at.time_ns);
            f.role(
                Role::Dim,
                format_args!(" <{}.{:03} us>", ns / 1000, ns % 1000),
            );
        }
        f.end();
    }

    /// Returns `name=value` for each field; the whole bytes where there is no layout.
    fn structure(&self, call: &Call<'_>, structure: &Structure<'_>) -> Vec<String> {
        let mut parts = Vec::new();
        if structure.layout.is_some() {
            for e in fields::exchanged(structure) {
                if matches!(
                    e.name.rsplit('.').next(),
                    Some("status" | "rmStatus" | "Status")
                ) || (e.is_zero() && !self.options.zeros && !always(e.name))
                {
                    continue;
                }
                parts.push(self.field(call, &e));
            }
            let cut = structure.input.full_len.max(structure.output.full_len)
                > structure.input.data.len().max(structure.output.data.len()) as u64;
            if cut {
                parts.push("...".into());
            }
        } else if let Some(cards) = cards(call, structure) {
            for card in cards {
                parts.push(format!("{{{}}}", self.named(call, &card)));
            }
        }
        if structure.is_guess {
            parts.push(format!(
                "as release {} has them",
                nvcap_decode::driver::releases().1
            ));
        }
        if structure.layout.is_none() && parts.is_empty() || self.options.raw || structure.is_guess
        {
            let (input, output) = (hex(structure.input), hex(structure.output));
            match (input.is_empty(), output.is_empty(), input == output) {
                (true, true, _) => {}
                (_, true, _) | (false, false, true) => parts.push(input),
                (true, false, _) => parts.push(format!("-> {output}")),
                (false, false, false) => parts.push(format!("{input} -> {output}")),
            }
        }
        parts
    }

    fn field(&self, call: &Call<'_>, e: &Exchanged) -> String {
        let name = e.name.strip_prefix("params.").unwrap_or(e.name);
        let show = |v: &Value| match v {
            // The class is not added to the new object's handle: the next field shows it.
            Value::Number(n, Meaning::Handle) if name == "hObjectNew" => format!("{n:#x}"),
            v => self.value(call, v),
        };
        match (&e.before, &e.after) {
            (Some(b), Some(a)) if b != a => format!("{name}={} -> {}", show(b), show(a)),
            (Some(v), _) => format!("{name}={}", show(v)),
            (None, Some(v)) => format!("{name}=? -> {}", show(v)),
            (None, None) => format!("{name}=?"),
        }
    }

    fn named(&self, call: &Call<'_>, all: &[NamedValue]) -> String {
        let mut text = String::new();
        for f in all
            .iter()
            .filter(|f| self.options.zeros || !f.value.is_zero())
        {
            if !text.is_empty() {
                text.push_str(", ");
            }
            let _ = write!(text, "{}={}", f.name, self.value(call, &f.value));
        }
        text
    }

    fn value(&self, call: &Call<'_>, value: &Value) -> String {
        match value {
            Value::Number(n, meaning) => self.number(call, *n, *meaning),
            Value::Negative(n) => n.to_string(),
            Value::Text(t) => format!("{t:?}"),
            Value::Bytes(b) => hex_bytes(b),
            Value::Numbers(all, meaning) => {
                let end = all.iter().rposition(|n| *n != 0).map_or(0, |i| i + 1);
                // Arrays end in many equal elements as a rule.
                let last = all.get(end.wrapping_sub(1));
                let run = all[..end]
                    .iter()
                    .rev()
                    .take_while(|n| Some(*n) == last)
                    .count();
                let (shown, repeat) = if run > 4 {
                    (end - run + 1, Some(run))
                } else {
                    (end, None)
                };
                let mut text: Vec<String> = all[..shown]
                    .iter()
                    .map(|n| self.number(call, *n, *meaning))
                    .collect();
                if let (Some(run), Some(last)) = (repeat, text.last_mut()) {
                    let _ = write!(last, " x{run}");
                }
                if end < all.len() {
                    text.push(format!("0 x{}", all.len() - end));
                }
                format!("[{}]", text.join(", "))
            }
            Value::Structures(all) => {
                let end = all
                    .iter()
                    .rposition(|s| s.iter().any(|f| !f.value.is_zero()))
                    .map_or(0, |i| i + 1);
                let mut text: Vec<String> = all[..end]
                    .iter()
                    .map(|s| format!("{{{}}}", self.named(call, s)))
                    .collect();
                if end < all.len() && all.len() > 1 {
                    text.push(format!("0 x{}", all.len() - end));
                }
                if all.len() == 1 {
                    text.pop().unwrap_or_else(|| "{}".into())
                } else {
                    format!("[{}]", text.join(", "))
                }
            }
        }
    }

    fn number(&self, call: &Call<'_>, n: u64, meaning: Meaning) -> String {
        let narrow = u32::try_from(n).unwrap_or(u32::MAX);
        match meaning {
            Meaning::Command => names::control(narrow, self.version).into_owned(),
            Meaning::Class => names::class(narrow).into_owned(),
            Meaning::Status => names::status(narrow).into_owned(),
            Meaning::Engine => names::engine(narrow).into_owned(),
            Meaning::Bool => (n != 0).to_string(),
            Meaning::Handle => match self.class_of(call, narrow) {
                Some(class) => format!("{n:#x}({})", names::class(class)),
                None => format!("{n:#x}"),
            },
            Meaning::Address | Meaning::Flags => format!("{n:#x}"),
            Meaning::Plain if n < 10_000 => n.to_string(),
            Meaning::Plain => format!("{n:#x}"),
        }
    }

    /// Returns the class of the object that a handle in an ioctl names; the argument tells the handle's client.
    fn class_of(&self, call: &Call<'_>, handle: u32) -> Option<u32> {
        let client = call
            .arg
            .get("hClient")
            .or_else(|| call.arg.get("hRoot"))
            .and_then(|c| u32::try_from(c).ok())?;
        // An allocation names the class itself.
        if handle == 0 || handle == client {
            return None;
        }
        self.model
            .class_of(ObjectRef { client, handle })
            .filter(|c| *c != 0)
    }

    // ---- JSON ----

    pub(super) fn object(&self, call: &Call<'_>, latest: &mut Latest) -> Json {
        let ioctl = call.ioctl;
        let mut object = begin("ioctl", ioctl.at, latest);
        let duration = ioctl.end_ns.map(|end| end.saturating_sub(ioctl.at.time_ns));
        object.insert("duration_ns".into(), duration.into());
        object.insert("device".into(), device_name(ioctl.device).into());
        object.insert("fd".into(), ioctl.fd.into());
        object.insert("request".into(), ioctl.request.into());
        object.insert("nr".into(), call.nr.into());
        object.insert("name".into(), call.name(self.version).into());
        match call.subject {
            Subject::Control(command) => {
                object.insert("command".into(), command.into());
                object.insert(
                    "command_name".into(),
                    names::control(command, self.version).into(),
                );
            }
            Subject::Class(class) => {
                object.insert("class".into(), class.into());
                object.insert("class_name".into(), names::class(class).into());
            }
            Subject::None => {}
        }
        object.insert("result".into(), ioctl.result.into());
        object.insert("status".into(), call.status.into());
        object.insert(
            "status_name".into(),
            call.status.map(|s| names::status(s).into_owned()).into(),
        );
        object.insert("ok".into(), call.succeeded().into());
        object.insert("args".into(), self.json_structure(call, &call.arg));
        if let Some(nested) = &call.nested {
            object.insert("params".into(), self.json_structure(call, nested));
        }
        object.into()
    }

    fn json_structure(&self, call: &Call<'_>, structure: &Structure<'_>) -> Json {
        let mut object = Map::new();
        object.insert(
            "structure".into(),
            structure.layout.map(|l| l.name()).into(),
        );
        object.insert(
            "size".into(),
            structure
                .input
                .full_len
                .max(structure.output.full_len)
                .into(),
        );
        let mut raw = self.options.raw;
        if structure.layout.is_some() {
            let (mut before, mut after) = (Map::new(), Map::new());
            for e in fields::exchanged(structure) {
                if let Some(v) = &e.before {
                    before.insert(e.name.into(), json_value(v));
                }
                if let Some(v) = &e.after {
                    after.insert(e.name.into(), json_value(v));
                }
            }
            object.insert("in".into(), before.into());
            object.insert("out".into(), after.into());
        } else if let Some(cards) = cards(call, structure) {
            let cards: Vec<Json> = cards.iter().map(|c| json_named(c)).collect();
            object.insert("out".into(), cards.into());
        } else {
            raw = true;
        }
        if raw {
            object.insert("in_hex".into(), plain_hex(&structure.input.data).into());
            object.insert("out_hex".into(), plain_hex(&structure.output.data).into());
        }
        object.into()
    }
}

/// Tells whether a field says what a call is about, and is shown also when zero.
fn always(name: &str) -> bool {
    matches!(
        name.rsplit('.').next(),
        Some("hObjectNew" | "workSubmitToken")
    )
}

/// The GPUs of NV_ESC_CARD_INFO.
fn cards(call: &Call<'_>, structure: &Structure<'_>) -> Option<Vec<Vec<NamedValue>>> {
    const CARD_INFO: u32 = 0xc8;
    if call.family != driver::Family::Rm || call.nr != CARD_INFO {
        return None;
    }
    let mut cards = fields::elements("nv_ioctl_card_info_t", &structure.output.data);
    cards.retain(|c| c.iter().any(|f| !f.value.is_zero()));
    (!cards.is_empty()).then_some(cards)
}

fn json_named(all: &[NamedValue]) -> Json {
    let object: Map<String, Json> = all
        .iter()
        .map(|f| (f.name.to_owned(), json_value(&f.value)))
        .collect();
    object.into()
}

fn json_value(value: &Value) -> Json {
    match value {
        Value::Number(n, Meaning::Bool) => (*n != 0).into(),
        Value::Number(n, _) => (*n).into(),
        Value::Negative(n) => (*n).into(),
        Value::Text(t) => t.as_str().into(),
        Value::Bytes(b) => plain_hex(b).into(),
        Value::Numbers(all, _) => json!(all),
        Value::Structures(all) => {
            let all: Vec<Json> = all.iter().map(|s| json_named(s)).collect();
            all.into()
        }
    }
}

fn plain_hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for b in bytes {
        let _ = write!(text, "{b:02x}");
    }
    text
}

/// Returns all bytes in hex, with runs of 16 zeros and more as `00*N`.
fn hex_bytes(bytes: &[u8]) -> String {
    const RUN: usize = 16;
    let mut text = String::new();
    let mut at = 0;
    while at < bytes.len() {
        let zeros = bytes[at..].iter().take_while(|b| **b == 0).count();
        if zeros >= RUN {
            if !text.is_empty() {
                text.push(' ');
            }
            let _ = write!(text, "00*{zeros}");
            at += zeros;
            if at < bytes.len() {
                text.push(' ');
            }
        } else {
            let _ = write!(text, "{:02x}", bytes[at]);
            at += 1;
        }
    }
    text
}

/// Returns the captured bytes in hex, with a mark where some are missing.
fn hex(bytes: &Bytes) -> String {
    let mut text = hex_bytes(&bytes.data);
    let missing = bytes.full_len.saturating_sub(bytes.data.len() as u64);
    if missing != 0 && !bytes.data.is_empty() {
        let _ = write!(text, " +{missing} B");
    }
    text
}
