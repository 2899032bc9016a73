//! The JSON output: one object a line. docs/output.md and docs/output.schema.json hold the schema.
//!
//! Every object begins with `type`, `time_ns`, `pid`, `tid` and `token`. These and the other members that all
//! events of a submission share are written once for each submission and copied from then on: that makes this sink fast.

use std::io;

use nvcap_decode::decode::engine_of;
use nvcap_decode::decode::event::{
    Body, ChipSettled, Context, EntryHead, Event, MethodWrite, Operation, Stop, SubmissionHead,
};
use nvcap_decode::driver::Model;
use nvcap_decode::ledger::Ledger;
use nvcap_decode::record::{At, Channel, Gpu, Life, Loss, Lost, Record, Skipped};
use nvcap_decode::wire::{entry::EntryKind, stream::StopReason};

use super::holes::{Holes, Part};
use super::identity;
use super::method::Explainer;
use super::names::{Latest, chip_by, is_timed, known_engine, known_name};
use super::needed::Needed;
use super::redact::Redactor;
use super::stack;
use super::writer::Output;
use super::{Detail, Sink};

mod escape;
mod fault;
mod form;
mod gpu_time;
mod operation;

pub(in crate::output) use operation::value as operation_value;

/// The members of an operation's object, in no order, with those of the GPU's time.
pub(in crate::output) fn operation_members(
    c: &Context,
    entry: u32,
    op: &Operation,
) -> serde_json::Map<String, serde_json::Value> {
    let mut out = Vec::new();
    operation::operation(&mut out, op, None);
    // The closing brace moves behind what is added.
    out.pop();
    if is_timed(op) {
        gpu_time::of_work(&mut out, c, entry);
    }
    out.push(b'}');
    serde_json::from_slice(&out).unwrap_or_default()
}

pub use escape::{text_of, write, write_line};

pub(super) use form::{bool_member, key, member, number, optional_text, text};
use form::{hex, known, optional};

/// Options of the JSON output.
#[derive(Clone, Debug, Default)]
pub struct JsonOptions {
    /// Detail that is shown.
    pub detail: Detail,
    /// True for the ledger alone.
    pub quiet: bool,
    /// True to show only the processes, channels and GPUs that the shown events need: a filter chooses the events.
    pub needed_only: bool,
    /// Replaces users' data; `None` shows the data.
    pub redact: Option<Redactor>,
}

/// The JSON sink.
pub struct Json {
    out: Output,
    options: JsonOptions,
    explain: Explainer,
    /// Members of the current submission, from `"time_ns"` on, without engine.
    shared: Vec<u8>,
    engine: Vec<u8>,
    /// Members with the stack, if there is one. Only the first object of a submission gets them.
    stack: Vec<u8>,
    /// The member with the CUDA function that was called. Every operation of the submission gets it.
    api: Vec<u8>,
    shared_of: Option<(u64, u64)>,
    latest: Latest,
    position: u64,
    /// The missing bytes of the current submission's entries.
    holes: Holes,
    needed: Needed,
}

/// The members that every object begins with, from `"time_ns"` on.
fn begin(out: &mut Vec<u8>, at: At, token: Option<u32>, latest: &mut Latest) {
    out.extend_from_slice(b"\"time_ns\":");
    optional(out, at.time());
    key(out, "pid");
    optional(out, known(at.pid));
    key(out, "tid");
    optional(out, known(at.tid));
    key(out, "token");
    optional(out, token.map(u64::from));
    if latest.is_passed(at.time()) {
        bool_member(out, "out_of_order", true);
    }
}

impl Json {
    /// Writes to `out`.
    #[must_use]
    pub fn new(out: Output, options: JsonOptions) -> Self {
        Self {
            out,
            options,
            explain: Explainer::default(),
            shared: Vec::new(),
            engine: Vec::new(),
            stack: Vec::new(),
            api: Vec::new(),
            shared_of: None,
            latest: Latest::default(),
            position: 0,
            holes: Holes::default(),
            needed: Needed::default(),
        }
    }

    fn share(&mut self, c: &Context) {
        let of = (c.serial, c.at.time_ns);
        if self.shared_of == Some(of) {
            return;
        }
        self.shared_of = Some(of);
        let out = &mut self.shared;
        out.clear();
        begin(out, c.at, c.token, &mut self.latest);
        member(out, "channel", u64::from(c.channel.0));
        if let Some(gpu) = c.gpu {
            member(out, "gpu", u64::from(gpu));
        }
        member(out, "serial", c.serial);
        if let Some(thread) = &c.thread {
            text(out, "thread", thread);
        }
        if let Some(phase) = &c.phase {
            text(out, "phase", phase);
        }
        self.stack.clear();
        self.api.clear();
        if let Some(calls) = &c.stack {
            stack::api(&mut self.api, calls);
            stack::members(&mut self.stack, calls);
        }
        self.engine.clear();
        if let Some(name) = known_engine(c.engine) {
            text(&mut self.engine, "engine", &name);
        }
    }

    /// Begins an object of the current submission.
    fn object(&mut self, kind: &str, with_engine: bool) -> &mut Vec<u8> {
        let out = self.out.object();
        out.extend_from_slice(b"{\"type\":\"");
        out.extend_from_slice(kind.as_bytes());
        out.extend_from_slice(b"\",");
        out.extend_from_slice(&self.shared);
        if with_engine {
            out.extend_from_slice(&self.engine);
        }
        out
    }

    fn end(&mut self) -> io::Result<()> {
        self.out.object().extend_from_slice(b"}\n");
        self.out.end_object()
    }

    /// An object that belongs to no submission.
    fn note(
        &mut self,
        kind: &str,
        at: At,
        token: Option<u32>,
        rest: impl FnOnce(&mut Vec<u8>),
    ) -> io::Result<()> {
        let out = self.out.object();
        out.extend_from_slice(b"{\"type\":\"");
        out.extend_from_slice(kind.as_bytes());
        out.extend_from_slice(b"\",");
        begin(out, at, token, &mut self.latest);
        rest(out);
        self.end()
    }

    /// Adds the members of the stack to the current object: the CUDA function, and the frames if no object had them yet.
    fn stack(&mut self) {
        let out = self.out.object();
        out.extend_from_slice(&self.api);
        out.append(&mut self.stack);
    }

    fn submission(&mut self, c: &Context, s: &SubmissionHead) -> io::Result<()> {
        self.position = s.position;
        let out = self.object("submission", true);
        member(out, "position", s.position);
        key(out, "gp_get");
        optional(out, s.gp_get.map(u64::from));
        member(out, "prev_put", u64::from(s.prev_put));
        member(out, "gp_put", u64::from(s.gp_put));
        member(out, "entries", u64::from(s.entries));
        member(out, "bytes", s.bytes);
        member(out, "missing", s.missing);
        bool_member(out, "late", c.late);
        text(out, "how", c.how.name());
        if let Some(ip) = s.ip {
            member(out, "ip", ip);
        }
        gpu_time::of_submission(out, c);
        self.stack();
        self.end()
    }

    fn entry(&mut self, e: &EntryHead<'_>) -> io::Result<()> {
        let position = self.position.saturating_add(u64::from(e.index));
        let missing = self.holes.missing(e.index) as u64;
        let parts = self.holes.parts(e.index, e.bytes);
        let holes: Vec<_> = self
            .holes
            .of(e.index)
            .iter()
            .map(|h| [h.start, h.len()])
            .collect();
        let read = parts.iter().filter_map(|part| match part {
            Part::Read(_, bytes) => Some(*bytes),
            Part::Missing(_) => None,
        });
        let redact = self.options.redact.clone();
        let out = self.object("entry", true);
        member(out, "position", position);
        member(out, "index", u64::from(e.index));
        key(out, "raw");
        out.extend_from_slice(b"\"0x");
        hex(out, &e.raw.to_be_bytes());
        out.push(b'"');
        match e.kind {
            EntryKind::Segment {
                address,
                len,
                conditional,
                subroutine,
                sync,
            } => {
                text(out, "kind", "segment");
                member(out, "address", address.0);
                member(out, "len", u64::from(len));
                bool_member(out, "conditional", conditional);
                bool_member(out, "subroutine", subroutine);
                bool_member(out, "sync", sync);
            }
            EntryKind::Control {
                opcode,
                operand,
                sync,
            } => {
                text(out, "kind", "control");
                member(out, "opcode", u64::from(opcode));
                member(out, "operand", u64::from(operand));
                bool_member(out, "sync", sync);
                member(out, "len", 0);
            }
        }
        member(out, "missing", missing);
        if !holes.is_empty() {
            key(out, "holes");
            write(out, &holes);
        }
        key(out, "data");
        match redact {
            Some(redact) => {
                let read: Vec<u8> = read.flatten().copied().collect();
                write(out, &redact.hide(&read));
            }
            None => {
                out.push(b'"');
                read.for_each(|bytes| hex(out, bytes));
                out.push(b'"');
            }
        }
        self.end()
    }

    fn method(&mut self, m: &MethodWrite) -> io::Result<()> {
        let out = self.object("method", true);
        member(out, "entry", u64::from(m.entry));
        member(out, "offset", u64::from(m.offset));
        member(out, "subchannel", u64::from(m.subchannel));
        member(out, "class", u64::from(m.class));
        member(out, "method", u64::from(m.method));
        if m.masked {
            bool_member(out, "masked", true);
        }
        self.explain
            .json(self.out.object(), m, self.options.redact.as_ref());
        self.end()
    }

    fn operation(&mut self, c: &Context, entry: u32, op: &Operation) -> io::Result<()> {
        // A copy's own members name the engine that runs it; the channel's engine would be a second member of that name.
        let with_engine = !matches!(op, Operation::Copy(_));
        let redact = self.options.redact.clone();
        let out = self.object("operation", with_engine);
        let at = out.len();
        operation::operation(out, op, redact.as_ref());
        // `{"op":...}` becomes `,"op":...`: its members join those before.
        if out.get(at) == Some(&b'{') {
            out[at] = b',';
            out.pop();
        }
        // A load's own members name what it is.
        if let Some(part) = c.part_of(entry)
            && !matches!(op, Operation::Load(_))
        {
            text(out, "part_of", part.name());
        }
        if is_timed(op) {
            gpu_time::of_work(out, c, entry);
        }
        self.stack();
        self.end()
    }

    fn stop(&mut self, s: &Stop) -> io::Result<()> {
        let out = self.object("stop", true);
        member(out, "entry", u64::from(s.entry));
        member(out, "offset", u64::from(s.offset));
        match s.why {
            StopReason::IllegalHeader(header) => {
                text(out, "why", "illegal_header");
                member(out, "header", u64::from(header));
            }
            StopReason::Missing { bytes } => {
                text(out, "why", "missing");
                member(out, "bytes", u64::from(bytes));
            }
            StopReason::Cut { needs } => {
                text(out, "why", "cut");
                member(out, "needs", u64::from(needs));
            }
            StopReason::Short { needs } => {
                text(out, "why", "short");
                member(out, "needs", u64::from(needs));
            }
        }
        self.end()
    }

    fn chip(&mut self, c: &ChipSettled) -> io::Result<()> {
        let out = self.object("chip", true);
        text(out, "chip", c.chip);
        text(out, "by", chip_by(c.by));
        bool_member(out, "assumed", c.by.is_assumed());
        self.end()
    }

    fn gpu(&mut self, g: &Gpu) -> io::Result<()> {
        self.note("gpu", g.at, None, |out| {
            member(out, "gpu", u64::from(g.minor));
            member(out, "pci_device", u64::from(g.pci_device));
        })
    }

    fn channel(&mut self, c: &Channel) -> io::Result<()> {
        self.note("channel", c.at, c.token, |out| {
            member(out, "channel", u64::from(c.id.0));
            if let Some(gpu) = c.gpu {
                member(out, "gpu", u64::from(gpu));
            }
            if let Some(engine) = c.engine {
                if let Some(name) = known_engine(engine_of(engine)) {
                    text(out, "engine", &name);
                }
                member(out, "engine_type", u64::from(engine));
            }
            if let Some(class) = c.class {
                member(out, "class", u64::from(class));
            }
            if let Some((client, object)) = c.handle {
                member(out, "client", u64::from(client));
                member(out, "object", u64::from(object));
            }
            for (name, value) in [
                ("ring_gpu", c.ring_gpu.map(|a| a.0)),
                ("ring", c.ring.map(|a| a.0)),
                ("ring_entries", c.entries.map(u64::from)),
                ("userd", c.userd.map(|a| a.0)),
            ] {
                if let Some(value) = value {
                    member(out, name, value);
                }
            }
            text(out, "origin", c.origin.name());
        })
    }

    fn process(&mut self, at: At, life: &Life) -> io::Result<()> {
        self.note("process", at, None, |out| match life {
            Life::Present { name } => {
                text(out, "life", "present");
                optional_text(out, "name", known_name(name));
            }
            Life::Fork { child } => {
                text(out, "life", "fork");
                member(out, "child", u64::from(*child));
            }
            Life::Thread { child } => {
                text(out, "life", "thread");
                member(out, "child", u64::from(*child));
            }
            Life::Exec { name } => {
                text(out, "life", "exec");
                optional_text(out, "name", known_name(name));
            }
            Life::Identity(who) => {
                text(out, "life", "identity");
                for (name, value) in identity::members(who) {
                    key(out, name);
                    write(out, &value);
                }
            }
            Life::Exit { process } => {
                text(out, "life", "exit");
                bool_member(out, "process", *process);
            }
        })
    }

    fn loss(&mut self, l: &Loss) -> io::Result<()> {
        let token = match l.what {
            Lost::UnknownChannel { token, .. } => token,
            _ => None,
        };
        self.note("loss", l.at, token, |out| {
            if let Some(channel) = l.channel {
                member(out, "channel", u64::from(channel.0));
            }
            match &l.what {
                Lost::Entries { position, count } => {
                    text(out, "what", "entries");
                    member(out, "position", *position);
                    member(out, "count", *count);
                }
                Lost::Records { kind, count } => {
                    text(out, "what", "records");
                    text(out, "kind", kind.name());
                    member(out, "count", *count);
                }
                Lost::UnknownChannel { count, .. } => {
                    text(out, "what", "unknown_channel");
                    member(out, "count", *count);
                }
                Lost::Stacks { count } => {
                    text(out, "what", "stacks");
                    member(out, "count", *count);
                }
                Lost::Notifiers { count } => {
                    text(out, "what", "notifiers");
                    member(out, "count", *count);
                }
                Lost::Untraced { why } => {
                    text(out, "what", "untraced");
                    text(out, "why", why);
                }
            }
        })
    }

    /// The object of a record that has one.
    fn show(&mut self, record: &Record) -> io::Result<()> {
        match record {
            Record::Process(p) => self.process(p.at, &p.life),
            Record::Channel(c) => self.channel(c),
            Record::Loss(l) => self.loss(l),
            Record::Skipped(p) => self.skipped(p),
            Record::Gpu(g) => self.gpu(g),
            Record::Fault(f) => self.fault(f),
            Record::Submission(_)
            | Record::Ioctl(_)
            | Record::Mapping(_)
            | Record::Unmapping(_)
            | Record::QmdCopy(_)
            | Record::Kernel(_)
            | Record::Stamps(_)
            | Record::Snapshot(_)
            | Record::Samples(_)
            | Record::Switches(_)
            | Record::Stack(_) => Ok(()),
        }
    }

    fn skipped(&mut self, p: &Skipped) -> io::Result<()> {
        self.note("passed", p.at, None, |out| {
            member(out, "channel", u64::from(p.channel.0));
            text(out, "why", p.why.name());
            member(out, "position", p.position);
            member(out, "entries", p.entries);
            if let Some(doorbells) = p.doorbells {
                member(out, "doorbells", doorbells);
            }
        })
    }
}

impl Sink for Json {
    fn detail(&self) -> Option<Detail> {
        (!self.options.quiet).then_some(self.options.detail)
    }

    fn event(&mut self, event: &Event<'_>) -> io::Result<()> {
        if self.options.quiet {
            return Ok(());
        }
        for record in self.needed.of_submission(event.context) {
            self.show(&record)?;
        }
        self.share(event.context);
        match &event.body {
            Body::Submission(s) => self.submission(event.context, s),
            Body::Entry(e) if self.options.detail >= Detail::Words => self.entry(e),
            Body::Method(m) if self.options.detail >= Detail::Methods => self.method(m),
            Body::Operation(op) => self.operation(event.context, event.entry, op),
            Body::Stop(s) => self.stop(s),
            Body::Chip(c) => self.chip(c),
            Body::Entry(_) | Body::Method(_) => Ok(()),
        }
    }

    fn record(&mut self, record: &Record, _model: &Model) -> io::Result<()> {
        if self.options.quiet {
            return Ok(());
        }
        if let Record::Submission(s) = record
            && self.options.detail >= Detail::Words
        {
            self.holes.note(s);
        }
        if self.options.needed_only && self.needed.hold(record) {
            return Ok(());
        }
        for needed in self.needed.of_record(record) {
            self.show(&needed)?;
        }
        self.show(record)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    fn unshown(&self) -> u64 {
        self.out.unshown()
    }

    fn finish(&mut self, ledger: &Ledger, _model: &Model) -> io::Result<()> {
        super::ledger::json(self.out.object(), ledger);
        self.out.end_object()?;
        self.out.flush()
    }
}
