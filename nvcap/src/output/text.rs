//! The text output: one line an operation; with `-v` the methods, with `-vv` the raw words.
//!
//! Every line has the same columns first: time, who (name/pid:tid), GPU, work-submit token, engine. What follows
//! is the operation as `describe` words it. docs/output.md holds the format.

use std::io;

use crate::decode::engine_of;
use crate::decode::event::{
    Body, ChipBy, ChipSettled, Context, Event, MethodWrite, Operation, Stop, SubmissionHead,
};
use crate::driver::Model;
use crate::ledger::Ledger;
use crate::record::{At, Channel, Life, Loss, Lost, Origin, Record};
use crate::wire::entry::EntryKind;

use super::describe::describe;
use super::holes::{Holes, Part};
use super::method::Explainer;
use super::names::{EngineName, Latest, Who, known_name};
use super::names::{gpu_name, pid_name};
use super::plural::{plural, plural_of};
use super::redact::Redactor;
use super::style::{Color, Formatter, Plain, Role};
use super::writer::Output;
use super::{Detail, Sink};

/// How times are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Clock {
    /// Seconds since the first line.
    #[default]
    Relative,
    /// Seconds of the traced machine's `CLOCK_MONOTONIC`.
    Monotonic,
    /// Seconds since the line before.
    Delta,
}

/// What the text output shows and how.
#[derive(Clone, Debug, Default)]
pub struct TextOptions {
    /// How much.
    pub detail: Detail,
    /// Also what surrounds the streams: channels that become known, threads.
    pub verbose: bool,
    /// A filter chooses what is shown.
    pub filtered: bool,
    /// The ledger alone.
    pub quiet: bool,
    /// Colour.
    pub color: Color,
    /// Times.
    pub clock: Clock,
    /// Hide users' data.
    pub redact: Option<Redactor>,
}

/// The text sink.
pub struct Text {
    out: Output,
    options: TextOptions,
    color: bool,
    explain: Explainer,
    first_ns: Option<u64>,
    last_ns: Option<u64>,
    latest: Latest,
    prefix: Prefix,
    /// Data words of a method that carries data, gathered into one line.
    run: DataRun,
    /// Of the entries of the current submission.
    holes: Holes,
    /// The submission whose stack was shown last.
    stack_of: Option<u64>,
}

/// The columns of the current submission, made once.
#[derive(Default)]
struct Prefix {
    serial: Option<(u64, u64)>,
    text: String,
}

/// Consecutive data words to one method.
#[derive(Default)]
struct DataRun {
    serial: u64,
    first: Option<MethodWrite>,
    data: Vec<u8>,
}

impl DataRun {
    /// Whether a write goes on where the run is.
    fn takes(&self, c: &Context, m: &MethodWrite) -> bool {
        /// A run is in memory until it ends: a line of one MiB is enough.
        const MOST: usize = 1 << 20;
        self.data.len() < MOST
            && self.serial == c.serial
            && self.first.is_some_and(|f| {
                (f.class, f.method, f.subchannel, f.masked)
                    == (m.class, m.method, m.subchannel, m.masked)
                    && f.entry == m.entry
                    && m.offset == f.offset.wrapping_add(self.data.len() as u32)
            })
    }

    fn take(&mut self, c: &Context, m: &MethodWrite) {
        if self.first.is_none() {
            self.first = Some(*m);
            self.serial = c.serial;
            self.data.clear();
        }
        self.data.extend_from_slice(&m.data.to_le_bytes());
    }
}

impl Text {
    /// Writes to `out`.
    #[must_use]
    pub fn new(out: Output, options: TextOptions) -> Self {
        let color = options.color.enabled(out.is_terminal());
        Self {
            out,
            options,
            color,
            explain: Explainer::default(),
            first_ns: None,
            last_ns: None,
            latest: Latest::default(),
            prefix: Prefix::default(),
            run: DataRun::default(),
            holes: Holes::default(),
            stack_of: None,
        }
    }

    /// The stack, below the first line of its submission.
    fn stack(&mut self, c: &Context) -> io::Result<()> {
        if let Some(calls) = &c.stack
            && self.stack_of.replace(c.serial) != Some(c.serial)
        {
            super::stack::text(&mut Formatter::new(self.out.object(), self.color), calls);
            return self.out.end_object();
        }
        Ok(())
    }

    /// The column of the time, with the mark behind it: `<` where a line with a later time stands above.
    fn time(&mut self, at: At) -> String {
        let Some(ns) = at.time() else {
            return format!("{:>14} ", "?");
        };
        let from = match self.options.clock {
            Clock::Monotonic => 0,
            Clock::Relative => *self.first_ns.get_or_insert(ns),
            Clock::Delta => self.last_ns.unwrap_or(ns),
        };
        self.last_ns = Some(ns);
        let mark = match self.latest.is_passed(Some(ns)) {
            true => '<',
            false => ' ',
        };
        let sign = if ns < from { "-" } else { "" };
        let shown = ns.abs_diff(from);
        let text = format!(
            "{sign}{}.{:09}",
            shown / 1_000_000_000,
            shown % 1_000_000_000
        );
        format!("{text:>14}{mark}")
    }

    fn columns(&mut self, c: &Context) {
        // With deltas every line has a time of its own.
        let key = (c.serial, c.at.time_ns);
        if self.options.clock != Clock::Delta && self.prefix.serial == Some(key) {
            return;
        }
        let time = self.time(c.at);
        let gpu = gpu_name(c.gpu);
        let token = c
            .token
            .map_or_else(|| "?".to_owned(), |t| format!("{t:#07x}"));
        let phase = match &c.phase {
            Some(p) => format!("[{}] ", Plain(p)),
            None => String::new(),
        };
        self.prefix.text = format!(
            "{time}{:<20} {gpu} {token:<7} {:<4} {phase}",
            Plain(&Who(c).to_string()),
            EngineName(c.engine)
        );
        self.prefix.serial = Some(key);
    }

    /// A line that belongs to no submission.
    fn note(&mut self, at: At, role: Role, text: std::fmt::Arguments<'_>) -> io::Result<()> {
        let time = self.time(at);
        let pid = format!("pid {}", pid_name(at.pid));
        let prefix = format!("{time}{pid:<20} ");
        self.prefix.serial = None;
        let mut f = Formatter::new(self.out.object(), self.color);
        f.line(&prefix, 0, Some(role));
        f.text(text);
        f.end();
        self.out.end_object()
    }

    fn submission(&mut self, c: &Context, s: &SubmissionHead) -> io::Result<()> {
        let incomplete = s.missing > 0;
        if self.options.detail == Detail::Operations && !incomplete {
            return Ok(());
        }
        self.columns(c);
        let mut f = Formatter::new(self.out.object(), self.color);
        f.line(
            &self.prefix.text,
            0,
            Some(if incomplete { Role::Alarm } else { Role::Dim }),
        );
        f.text(format_args!(
            "submission {} position {} put {} -> {}, {}, {} B",
            c.serial,
            s.position,
            s.prev_put,
            s.gp_put,
            plural_of(s.entries.into(), "entry", "entries"),
            s.bytes
        ));
        if let Some(get) = s.gp_get {
            f.text(format_args!(", get {get}"));
        }
        if incomplete {
            f.text(format_args!(", {} B could not be read", s.missing));
        }
        if c.late {
            f.text(format_args!(", late"));
        }
        f.end();
        self.out.end_object()?;
        self.stack(c)
    }

    /// What is shown with `-v`, or where the user asks for it by a filter: the nodes of graphs, which the line of the
    /// replay sums up, and what is done to QMDs without running them.
    fn is_mechanics(&self, op: &Operation) -> bool {
        let asked = self.options.detail >= Detail::Methods || self.options.filtered;
        let mechanics = match op {
            Operation::Launch(l) => l.replay.is_some(),
            Operation::Barrier(b) => b.what.starts_with("pcas_"),
            _ => false,
        };
        mechanics && !asked
    }

    fn chip(&mut self, c: &Context, chip: &ChipSettled) -> io::Result<()> {
        // What is only assumed must be seen; the rest is for those who ask.
        if !chip.by.is_assumed() && !self.options.verbose {
            return Ok(());
        }
        self.columns(c);
        let mut f = Formatter::new(self.out.object(), self.color);
        f.line(&self.prefix.text, 0, Some(Role::Dim));
        let by = match chip.by {
            ChipBy::Given => "as --chip says",
            ChipBy::Pci => "by its PCI id",
            ChipBy::Bound => "by a class that was bound",
            ChipBy::QmdVersion => "by the version of its QMDs",
            ChipBy::Methods => "assumed from the methods used; --chip NAME says another",
            ChipBy::Channel => "assumed from the channel's class; --chip NAME says another",
        };
        f.text(format_args!("decoded as for {}: {by}", chip.chip));
        f.end();
        self.out.end_object()
    }

    fn end_run(&mut self) -> io::Result<()> {
        let Some(first) = self.run.first.take() else {
            return Ok(());
        };
        let mut f = Formatter::new(self.out.object(), self.color);
        let redact = self.options.redact.as_ref();
        let data = &self.run.data;
        self.explain
            .data(&mut f, &self.prefix.text, &first, data, redact);
        self.run.data.clear();
        self.out.end_object()
    }

    fn stop(&mut self, c: &Context, s: &Stop) -> io::Result<()> {
        self.columns(c);
        let mut f = Formatter::new(self.out.object(), self.color);
        f.line(&self.prefix.text, 0, Some(Role::Alarm));
        f.text(format_args!("{s}"));
        f.end();
        self.out.end_object()
    }

    fn channel(&mut self, c: &Channel) -> io::Result<()> {
        let mut text = format!("channel {}", c.id.0);
        let mut add = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                text.push_str(&format!(" {name} {value}"));
            }
        };
        add("token", c.token.map(|t| format!("{t:#07x}")));
        add("gpu", c.gpu.map(|n| n.to_string()));
        add(
            "engine",
            c.engine.map(|e| EngineName(engine_of(e)).to_string()),
        );
        add("class", c.class.map(|n| format!("{n:#06x}")));
        add("ring", c.ring.map(|a| a.to_string()));
        add("ring for the GPU", c.ring_gpu.map(|a| a.to_string()));
        add("entries", c.entries.map(|n| n.to_string()));
        add("userd", c.userd.map(|a| a.to_string()));
        if c.origin == Origin::Notified {
            text.push_str(" (token: of the error notifier at its place in their order)");
        }
        self.note(c.at, Role::Dim, format_args!("{text}"))
    }

    fn life(&mut self, at: At, life: &Life) -> io::Result<()> {
        let verbose = self.options.verbose;
        match life {
            Life::Present { name } if verbose => {
                let name = known_name(name).unwrap_or("?");
                self.note(at, Role::Dim, format_args!("traced: {}", Plain(name)))
            }
            Life::Fork { child } => {
                self.note(at, Role::Dim, format_args!("forked process {child}"))
            }
            Life::Thread { child } if verbose => {
                self.note(at, Role::Dim, format_args!("made thread {child}"))
            }
            Life::Exec { name } => {
                let name = known_name(name).unwrap_or("?");
                self.note(at, Role::Dim, format_args!("executed {}", Plain(name)))
            }
            Life::Exit { process: true } => self.note(at, Role::Dim, format_args!("exited")),
            Life::Exit { process: false } if verbose => {
                self.note(at, Role::Dim, format_args!("thread {} exited", at.tid))
            }
            _ => Ok(()),
        }
    }

    fn loss(&mut self, l: &Loss) -> io::Result<()> {
        let of = l
            .channel
            .map_or_else(String::new, |c| format!(" of channel {}", c.0));
        match &l.what {
            Lost::Entries { position, count } => self.note(
                l.at,
                Role::Alarm,
                format_args!(
                    "LOST {}{of} from position {position}: overwritten before being read",
                    plural_of(*count, "entry", "entries")
                ),
            ),
            Lost::Records { kind, count } => self.note(
                l.at,
                Role::Alarm,
                format_args!(
                    "LOST {}{of} ({kind}): the buffer was full; try a larger --buffer",
                    plural(*count, "record")
                ),
            ),
            Lost::UnknownChannel { token, count } => {
                let token = token.map_or_else(|| "?".to_owned(), |t| format!("{t:#07x}"));
                self.note(
                    l.at,
                    Role::Alarm,
                    format_args!(
                        "LOST {} of token {token}: no such channel is known",
                        plural(*count, "doorbell")
                    ),
                )
            }
            // The ledger says how many.
            Lost::Stacks { .. } => Ok(()),
            Lost::Untraced { why } => {
                self.note(l.at, Role::Alarm, format_args!("UNTRACED: {}", Plain(why)))
            }
        }
    }
}

impl Sink for Text {
    fn detail(&self) -> Option<Detail> {
        (!self.options.quiet).then_some(self.options.detail)
    }

    fn event(&mut self, event: &Event<'_>) -> io::Result<()> {
        if self.options.quiet {
            return Ok(());
        }
        let c = event.context;
        if let Body::Method(m) = &event.body
            && self.options.detail >= Detail::Methods
            && self.explain.carries_data(m)
        {
            if !self.run.takes(c, m) {
                self.end_run()?;
                self.columns(c);
            }
            self.run.take(c, m);
            return Ok(());
        }
        self.end_run()?;
        match &event.body {
            Body::Submission(s) => return self.submission(c, s),
            Body::Stop(s) => return self.stop(c, s),
            Body::Entry(_) if self.options.detail < Detail::Words => return Ok(()),
            Body::Method(_) if self.options.detail < Detail::Methods => return Ok(()),
            Body::Chip(chip) => return self.chip(c, chip),
            Body::Operation(op) if self.is_mechanics(op) => return Ok(()),
            Body::Entry(_) | Body::Method(_) | Body::Operation(_) => {}
        }
        self.columns(c);
        let mut f = Formatter::new(self.out.object(), self.color);
        let redact = self.options.redact.as_ref();
        match &event.body {
            Body::Operation(op) => {
                describe(&mut f, &self.prefix.text, c, op, redact);
                f.end();
            }
            Body::Method(m) => {
                self.explain.text(&mut f, &self.prefix.text, m, redact);
            }
            Body::Entry(e) => {
                f.line(&self.prefix.text, 1, Some(Role::Dim));
                f.text(format_args!("entry {} {:#018x} ", e.index, e.raw));
                match e.kind {
                    EntryKind::Segment {
                        address,
                        len,
                        conditional,
                        subroutine,
                        sync,
                    } => {
                        f.text(format_args!("at {address} {len} B"));
                        for (set, name) in [
                            (conditional, " conditional"),
                            (subroutine, " subroutine"),
                            (sync, " sync"),
                        ] {
                            if set {
                                f.text(format_args!("{name}"));
                            }
                        }
                    }
                    EntryKind::Control {
                        opcode,
                        operand,
                        sync,
                    } => {
                        f.text(format_args!("control opcode {opcode} operand {operand:#x}"));
                        if sync {
                            f.text(format_args!(" sync"));
                        }
                    }
                }
                f.end();
                for part in self.holes.parts(e.index, e.bytes) {
                    words(&mut f, &self.prefix.text, part, redact);
                }
            }
            Body::Submission(_) | Body::Stop(_) | Body::Chip(_) => {}
        }
        self.out.end_object()?;
        self.stack(c)
    }

    fn record(&mut self, record: &Record, _model: &Model) -> io::Result<()> {
        self.end_run()?;
        if let Record::Submission(s) = record
            && self.options.detail >= Detail::Words
        {
            self.holes.note(s);
        }
        match record {
            // Loss is shown even where only the ledger is asked for: it must not come as a surprise.
            Record::Loss(l) if !self.options.quiet => self.loss(l),
            Record::Process(p) if !self.options.quiet => self.life(p.at, &p.life),
            Record::Channel(c) if !self.options.quiet && self.options.verbose => self.channel(c),
            _ => Ok(()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.end_run()?;
        self.out.flush()
    }

    fn unshown(&self) -> u64 {
        self.out.unshown()
    }

    fn finish(&mut self, ledger: &Ledger, _model: &Model) -> io::Result<()> {
        self.end_run()?;
        if self.options.verbose {
            super::ledger::margins(self.out.object(), ledger, self.color);
        }
        super::ledger::text(self.out.object(), ledger, self.color);
        self.out.end_object()?;
        self.out.flush()
    }
}

/// The raw words of a part of an entry, eight a line, with their offset.
fn words(f: &mut Formatter<'_>, prefix: &str, part: Part<'_>, redact: Option<&Redactor>) {
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
