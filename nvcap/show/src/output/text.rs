//! The text output: what the program asked for, one short line each; with `-v` every operation with its details, with
//! `-vv` the methods, with `-vvv` the raw words.
//!
//! Every line begins with the same columns (`columns`). Then comes the operation, in the words of `brief`, or with `-v` in
//! those of `describe`. docs/output.md has the format.

use std::collections::HashSet;
use std::io;

use nvcap_decode::decode::engine_of;
use nvcap_decode::decode::event::{
    Body, ChipBy, ChipSettled, Context, Event, Operation, Stop, SubmissionHead,
};
use nvcap_decode::driver::Model;
use nvcap_decode::ledger::Ledger;
use nvcap_decode::record::{At, Channel, Kernel, Life, Loss, Lost, Origin, Record};
use nvcap_decode::wire::GpuVa;
use nvcap_decode::wire::entry::EntryKind;

use super::describe::describe;
use super::holes::Holes;
use super::identity;
use super::kernels;
use super::ledger::Fit;
use super::method::Explainer;
use super::names::{EngineName, known_name, known_pid, token_name};
use super::needed::Needed;
use super::plural::{plural, plural_of};
use super::redact::Redactor;
use super::releases::Releases;
use super::style::{Color, Formatter, Plain, Role};
use super::writer::Output;
use super::{Detail, Sink};

mod alike;
mod at_end;
mod board;
mod brief;
mod columns;
mod data_run;
mod earlier;
mod fast;
mod gpu_time;
mod history;
mod known;
mod loss;
mod pace;
mod repeats;
mod screen;
mod skipped;
mod tally;
mod waits;
mod words;

use alike::Alike;
use at_end::AtEnd;
pub(super) use brief::brief;
pub(crate) use brief::is_mechanics;
pub use columns::Clock;
use columns::Columns;
use data_run::DataRun;
use fast::Board;
pub use fast::Fast;
use history::History;
use known::Known;
use repeats::Repeats;
use tally::Tally;
pub(crate) use waits::is_wait;
use words::words;

/// The most programs that are remembered as shown by their address.
const MOST_NAMELESS: usize = 1 << 16;

/// Options of the text output.
#[derive(Clone, Debug, Default)]
pub struct TextOptions {
    /// Detail of the decoder's output beside operations: methods, words.
    pub detail: Detail,
    /// True for all operations with all details, all columns, and what surrounds the streams: channels that become known, threads. False for short
    /// lines of what the program asked for.
    pub verbose: bool,
    /// True if a filter chooses the operations: all that it lets through are shown, the driver's own too.
    pub filtered: bool,
    /// True if only the processes and channels that the shown events need are shown: a filter chooses the events.
    pub needed_only: bool,
    /// Number of columns that short lines are cut to; by default the terminal's width, if the output is a terminal.
    pub width: Option<usize>,
    /// True if only the ledger is shown.
    pub quiet: bool,
    /// Condition on which colour is used.
    pub color: Color,
    /// Clock by which times are shown.
    pub clock: Clock,
    /// True for names of kernels with template arguments and parameters.
    pub full_names: bool,
    /// True if the output is read while it is made, on a terminal: columns have a head, and equal lines in a row are counted.
    pub screen: bool,
    /// Form of the output where lines come too fast to be read.
    pub fast: Fast,
    /// True if entries that were in the rings of a running process before are shown too.
    pub history: bool,
    /// Replaces users' data by lengths and hashes; `None` shows the data.
    pub redact: Option<Redactor>,
}

/// The text sink.
pub struct Text {
    out: Output,
    options: TextOptions,
    color: bool,
    explain: Explainer,
    columns: Columns,
    releases: Releases,
    at_end: AtEnd,
    repeats: Repeats,
    alike: Alike,
    /// Reasons for untraced things that were shown.
    untraced: HashSet<String>,
    tally: Tally,
    board: Board,
    history: History,
    known: Known,
    /// True once the columns have their head.
    headed: bool,
    /// Data words of a method that carries data, gathered into one line.
    run: DataRun,
    /// The missing bytes of the current submission's entries.
    holes: Holes,
    /// The submission whose stack was shown last.
    stack_of: Option<u64>,
    /// Programs that were shown by their address.
    nameless: HashSet<(u32, GpuVa)>,
    needed: Needed,
}

impl Text {
    /// Writes to `out`.
    #[must_use]
    pub fn new(out: Output, options: TextOptions) -> Self {
        let color = options.color.enabled(out.is_terminal());
        Self {
            columns: Columns::new(options.clock, options.verbose),
            out,
            options,
            color,
            explain: Explainer::default(),
            releases: Releases::default(),
            at_end: AtEnd::default(),
            repeats: Repeats::default(),
            alike: Alike::default(),
            untraced: HashSet::new(),
            tally: Tally::default(),
            board: Board::default(),
            history: History::default(),
            known: Known::default(),
            headed: false,
            run: DataRun::default(),
            holes: Holes::default(),
            stack_of: None,
            nameless: HashSet::new(),
            needed: Needed::default(),
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

    /// Returns the number of columns that lines are cut to; `None` with `-v`, whose details are shown in full.
    fn width(&self) -> Option<usize> {
        if self.options.verbose {
            return None;
        }
        self.options.width.or_else(|| self.out.width())
    }

    /// Shows the name of a program that was shown by its address before.
    fn named(&mut self, kernel: &Kernel) -> io::Result<()> {
        if !kernel.is_known() || !self.nameless.remove(&(kernel.at.pid, kernel.program)) {
            return Ok(());
        }
        self.end_repeats()?;
        let mut f = Formatter::new(self.out.object(), self.color);
        f.line("", 0, None);
        f.text(format_args!("prog {:#x} is ", kernel.program));
        let name = kernels::text(kernel, self.options.full_names);
        f.role(Role::Name, format_args!("{}", Plain(&name)));
        f.end();
        self.out.end_object()
    }

    /// Forgets programs whose code is overwritten: a name that comes later is not that of what was launched before.
    fn overwritten(&mut self, event: &Event<'_>) {
        if self.nameless.is_empty() {
            return;
        }
        if let Some((at, bytes)) = kernels::code_written(event) {
            let pid = event.context.at.pid;
            let lies_there = |of: u64| of.checked_sub(at.0).is_some_and(|by| by < bytes);
            self.nameless
                .retain(|(of, program)| *of != pid || !lies_there(program.0));
        }
    }

    /// A line that belongs to no submission.
    fn note(&mut self, at: At, role: Role, text: std::fmt::Arguments<'_>) -> io::Result<()> {
        self.end_repeats()?;
        let mut prefix = self.columns.time(at) + " ";
        if let Some(pid) = known_pid(at.pid) {
            prefix.push_str(&format!("pid {pid} "));
        }
        let mut f = Formatter::new(self.out.object(), self.color);
        f.line(&prefix, 0, Some(role));
        f.text(text);
        f.end();
        self.out.end_object()
    }

    fn submission(&mut self, c: &Context, s: &SubmissionHead) -> io::Result<()> {
        let incomplete = s.missing > 0;
        if self.options.detail < Detail::Methods && !incomplete {
            return Ok(());
        }
        self.end_repeats()?;
        self.needed_by(c)?;
        let prefix = self.columns.submission(c);
        let mut f = Formatter::new(self.out.object(), self.color);
        f.line(
            prefix,
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

    /// Tells whether the driver's own operations are shown, too.
    fn shows_all(&self) -> bool {
        let o = &self.options;
        o.verbose || o.filtered || o.detail >= Detail::Methods
    }

    fn operation(&mut self, c: &Context, entry: u32, op: &Operation) -> io::Result<()> {
        let verbose = self.options.verbose;
        self.at_end.take(op);
        if !verbose {
            self.releases.note(c, op);
        }
        if self.sums_up() {
            self.tally.take(c, entry, op);
        }
        if !self.shows_all() {
            if !self.options.history && self.history.is_earlier(c, entry) {
                return Ok(());
            }
            if is_mechanics(c, entry, op, &self.releases) {
                self.at_end.left_out += 1;
                return Ok(());
            }
            if self.board.is_shown() {
                self.board.at = Some(c.at);
                return self.refresh();
            }
            if self.repeats.take(c, op) {
                return Ok(());
            }
            if self.is_alike(c, entry, op)? {
                return Ok(());
            }
            self.repeats.begin(c, op);
        }
        self.needed_by(c)?;
        self.head(c, entry)?;
        if let Operation::Launch(l) = op
            && let (None, Some(program)) = (&l.kernel, l.program)
            && self.nameless.len() < MOST_NAMELESS
        {
            self.nameless.insert((c.at.pid, program));
        }
        let waits_for = match op {
            Operation::Semaphore(s) => self.releases.channel(c, s.address),
            _ => None,
        };
        let width = self.width();
        let prefix = gpu_time::columns(self.columns.submission(c), c, entry, op);
        let mut f = Formatter::new(self.out.object(), self.color)
            .fitted(width)
            .full_names(self.options.full_names);
        let redact = self.options.redact.as_ref();
        match verbose {
            true => describe(&mut f, &prefix, c, op, redact),
            false => brief(&mut f, &prefix, c, op, waits_for, redact),
        }
        f.end();
        self.out.end_object()?;
        self.stack(c)?;
        self.shown()
    }

    /// Says how often the last fill was repeated, before anything else is shown.
    fn end_repeats(&mut self) -> io::Result<()> {
        self.end_alike()?;
        let Some((c, fill, more)) = self.repeats.end() else {
            return Ok(());
        };
        let width = self.width();
        let prefix = self.columns.submission(&c);
        let mut f = Formatter::new(self.out.object(), self.color)
            .fitted(width)
            .full_names(self.options.full_names);
        if more == 1 {
            let redact = self.options.redact.as_ref();
            brief(&mut f, prefix, &c, &fill, None, redact);
        } else {
            f.line(prefix, 0, Some(Role::Dim));
            f.text(format_args!("{more} more fills like it"));
        }
        f.end();
        self.out.end_object()
    }

    fn chip(&mut self, c: &Context, chip: &ChipSettled) -> io::Result<()> {
        // A chip that is only assumed is always shown, a certain one with `-v`.
        if !chip.by.is_assumed() && !self.options.verbose {
            return Ok(());
        }
        self.end_repeats()?;
        self.needed_by(c)?;
        let prefix = self.columns.submission(c);
        let mut f = Formatter::new(self.out.object(), self.color);
        f.line(prefix, 0, Some(Role::Dim));
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
            .data(&mut f, self.columns.latest(), &first, data, redact);
        self.run.data.clear();
        self.out.end_object()
    }

    fn stop(&mut self, c: &Context, s: &Stop) -> io::Result<()> {
        self.end_repeats()?;
        self.needed_by(c)?;
        let prefix = self.columns.submission(c);
        let mut f = Formatter::new(self.out.object(), self.color);
        f.line(prefix, 0, Some(Role::Alarm));
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
        add("token", c.token.map(|t| token_name(Some(t))));
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
        let name = |name| Plain(known_name(name).unwrap_or("?")).to_string();
        let text = match life {
            Life::Present { name: of } if verbose => format!("traced: {}", name(of)),
            Life::Fork { child } => format!("forked process {child}"),
            Life::Thread { child } if verbose => format!("made thread {child}"),
            Life::Exec { name: of } => format!("executed {}", name(of)),
            Life::Identity(who) => Plain(&identity::words(who)).to_string(),
            Life::Exit { process: true } => "exited".to_owned(),
            Life::Exit { process: false } if verbose => format!("thread {} exited", at.tid),
            _ => return Ok(()),
        };
        self.note(at, Role::Dim, format_args!("{text}"))
    }

    /// Writes the lines of records that this submission needs and that were held back.
    fn needed_by(&mut self, c: &Context) -> io::Result<()> {
        for record in self.needed.of_submission(c) {
            self.show(&record)?;
        }
        Ok(())
    }

    /// Writes the line of a record, if it has one.
    fn show(&mut self, record: &Record) -> io::Result<()> {
        match record {
            Record::Loss(l) => self.loss(l),
            Record::Skipped(p) => self.skipped(p),
            Record::Fault(f) => self.fault(f),
            Record::Process(p) => self.life(p.at, &p.life),
            Record::Channel(c) if self.options.verbose => self.channel(c),
            Record::Kernel(k) => self.named(k),
            _ => Ok(()),
        }
    }
}

impl Sink for Text {
    fn detail(&self) -> Option<Detail> {
        (!self.options.quiet).then_some(self.options.detail)
    }

    fn passed_over(&mut self, event: &Event<'_>) {
        self.overwritten(event);
        self.releases.passed_over(event);
    }

    fn event(&mut self, event: &Event<'_>) -> io::Result<()> {
        if self.options.quiet {
            return Ok(());
        }
        self.overwritten(event);
        let c = event.context;
        if let Body::Method(m) = &event.body
            && self.options.detail >= Detail::Methods
            && self.explain.carries_data(m)
        {
            if !self.run.takes(c, m) {
                self.end_run()?;
                self.needed_by(c)?;
                self.columns.submission(c);
            }
            self.run.take(c, m);
            return Ok(());
        }
        self.end_run()?;
        match &event.body {
            Body::Submission(s) => {
                self.begin_history(c)?;
                return self.submission(c, s);
            }
            Body::Stop(s) => return self.stop(c, s),
            Body::Entry(_) if self.options.detail < Detail::Words => return Ok(()),
            Body::Method(_) if self.options.detail < Detail::Methods => return Ok(()),
            Body::Chip(chip) => return self.chip(c, chip),
            Body::Operation(op) => return self.operation(c, event.entry, op),
            Body::Entry(_) | Body::Method(_) => {}
        }
        self.needed_by(c)?;
        let prefix = self.columns.submission(c);
        let mut f = Formatter::new(self.out.object(), self.color);
        let redact = self.options.redact.as_ref();
        match &event.body {
            Body::Method(m) => {
                self.explain.text(&mut f, prefix, m, redact);
            }
            Body::Entry(e) => {
                f.line(prefix, 1, Some(Role::Dim));
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
                    words(&mut f, prefix, part, redact);
                }
            }
            Body::Submission(_) | Body::Operation(_) | Body::Stop(_) | Body::Chip(_) => {}
        }
        self.out.end_object()?;
        self.stack(c)
    }

    fn record(&mut self, record: &Record, _model: &Model) -> io::Result<()> {
        self.end_run()?;
        self.columns.record(record);
        self.history.note(record);
        self.known.note(record);
        if let Record::Submission(s) = record
            && self.options.detail >= Detail::Words
        {
            self.holes.note(s);
        }
        // With `-q` the ledger alone tells losses.
        if self.options.quiet || self.options.needed_only && self.needed.hold(record) {
            return Ok(());
        }
        for needed in self.needed.of_record(record) {
            self.show(&needed)?;
        }
        self.show(record)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.end_run()?;
        self.end_repeats()?;
        self.refresh()?;
        self.out.flush()
    }

    fn unshown(&self) -> u64 {
        self.out.unshown()
    }

    fn finish(&mut self, ledger: &Ledger, _model: &Model) -> io::Result<()> {
        self.end_run()?;
        self.end_repeats()?;
        if self.options.verbose {
            super::ledger::margins(self.out.object(), ledger, self.color);
        }
        self.sums();
        self.at_end.text(self.out.object(), self.color);
        let fit = Fit {
            all: self.options.verbose,
            width: self.width(),
            without_table: self.sums_up(),
        };
        super::ledger::fitted(self.out.object(), ledger, self.color, fit);
        self.out.end_object()?;
        self.out.flush()
    }
}
