//! The columns at the beginning of each line: its time, process, GPU, channel, engine and phase.

use std::fmt::Write as _;

use nvcap_decode::decode::event::Context;
use nvcap_decode::record::{At, Life, Record};

use crate::output::names::{EngineName, Latest, Who, gpu_name, known_name, pid_name, token_name};
use crate::output::style::Plain;

/// Clock by which times are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Clock {
    /// Seconds since the trace's first record.
    #[default]
    Relative,
    /// Seconds of the traced machine's `CLOCK_MONOTONIC`.
    Monotonic,
    /// Seconds since the line before.
    Delta,
}

/// Makes the columns of lines; for the lines of one submission they are made once.
#[derive(Debug, Default)]
pub(super) struct Columns {
    clock: Clock,
    /// True for all columns; otherwise process and GPU are shown only if there are several.
    all: bool,
    /// Time of the trace's first record.
    first_ns: Option<u64>,
    last_ns: Option<u64>,
    latest: Latest,
    /// Processes that have submitted.
    processes: Several,
    /// GPUs of the machine, and those that were submitted to.
    gpus: Several,
    /// Serial number and time of the submission that `text` is of.
    of: Option<(u64, u64)>,
    text: String,
}

/// Values that were seen: none, one, or more than one.
#[derive(Clone, Copy, Debug, Default)]
enum Several {
    #[default]
    None,
    One(u32),
    More,
}

impl Several {
    fn see(&mut self, n: u32) {
        *self = match *self {
            Self::None => Self::One(n),
            Self::One(first) if first == n => Self::One(n),
            _ => Self::More,
        };
    }

    fn is_more(self) -> bool {
        matches!(self, Self::More)
    }
}

impl Columns {
    pub(super) fn new(clock: Clock, all: bool) -> Self {
        Self {
            clock,
            all,
            ..Self::default()
        }
    }

    /// Takes a record. The first one with a time begins the trace, even if it is not shown.
    pub(super) fn record(&mut self, record: &Record) {
        if self.first_ns.is_none() {
            self.first_ns = record.at().time();
        }
        match record {
            Record::Gpu(g) => self.gpus.see(g.minor),
            // Identities are recorded when the processes of a host are traced (`-a`): then lines name their process from the first one on.
            Record::Process(p) if matches!(p.life, Life::Identity(_)) => {
                self.processes = Several::More;
            }
            _ => {}
        }
    }

    /// The column of the time, with a mark behind it: `<` if a line above has a later time.
    pub(super) fn time(&mut self, at: At) -> String {
        // The last submission's columns are not used again: if this time is later, its further lines need the mark.
        self.of = None;
        let Some(ns) = at.time() else {
            return format!("{:>11} ", "?");
        };
        let from = match self.clock {
            Clock::Monotonic => 0,
            Clock::Relative => *self.first_ns.get_or_insert(ns),
            Clock::Delta => self.last_ns.unwrap_or(ns),
        };
        self.last_ns = Some(ns);
        let mark = match self.latest.is_passed(Some(ns)) {
            true => '<',
            false => ' ',
        };
        // Both are rounded down before they are subtracted: so a difference is that of the times as they are shown.
        let (us, from) = (ns / 1000, from / 1000);
        let sign = if us < from { "-" } else { "" };
        let shown = us.abs_diff(from);
        let text = format!("{sign}{}.{:06}", shown / 1_000_000, shown % 1_000_000);
        format!("{text:>11}{mark}")
    }

    /// The columns of a submission's line.
    pub(super) fn submission(&mut self, c: &Context) -> &str {
        // With deltas every line has a time of its own.
        let key = (c.serial, c.at.time_ns);
        if self.clock != Clock::Delta && self.of == Some(key) {
            return &self.text;
        }
        self.processes.see(c.at.pid);
        if let Some(gpu) = c.gpu {
            self.gpus.see(gpu);
        }
        let mut text = self.time(c.at);
        text.push(' ');
        // Writing to a string does not fail.
        let _ = match self.all {
            true => self.all_of(&mut text, c),
            false => self.few_of(&mut text, c),
        };
        if let Some(phase) = &c.phase {
            let _ = write!(text, "[{}] ", Plain(phase));
        }
        self.text = text;
        self.of = Some(key);
        &self.text
    }

    fn all_of(&self, text: &mut String, c: &Context) -> std::fmt::Result {
        let token = token_name(c.token);
        write!(
            text,
            "{:<20} {} {:<5} {token:<7} {:<4} ",
            Plain(&Who(c).to_string()),
            gpu_name(c.gpu),
            ChannelName(c.channel.0),
            EngineName(c.engine)
        )
    }

    /// Writes the process and the GPU, each if there are several, the channel and its engine.
    fn few_of(&self, text: &mut String, c: &Context) -> std::fmt::Result {
        if self.processes.is_more() {
            let mut who = pid_name(c.at.pid);
            if let Some(name) = c.thread.as_deref().and_then(known_name) {
                who = format!("{}/{who}", Plain(name));
            }
            write!(text, "{who:<16} ")?;
        }
        if self.gpus.is_more() {
            write!(text, "{} ", gpu_name(c.gpu))?;
        }
        write!(
            text,
            "{:<5} {:<4} ",
            ChannelName(c.channel.0),
            EngineName(c.engine)
        )
    }

    /// The head of the columns, as the lines of a submission have them.
    pub(super) fn head(&mut self, c: &Context, gpu_time: bool) -> String {
        self.submission(c);
        let unit = if self.clock == Clock::Delta {
            "+s"
        } else {
            "s"
        };
        let mut text = format!("{:>11}  ", format!("time, {unit}"));
        if self.all || self.processes.is_more() {
            let width = if self.all { 20 } else { 16 };
            text += &format!("{:<width$} ", "process");
        }
        if self.all || self.gpus.is_more() {
            text += "gpu  ";
        }
        text += "ch    ";
        if self.all {
            text += "token   ";
        }
        text += "eng  ";
        if c.phase.is_some() {
            text += "[phase] ";
        }
        if gpu_time {
            text += "on GPU    ";
        }
        text + "what"
    }

    /// The columns that were made last.
    pub(super) fn latest(&self) -> &str {
        &self.text
    }
}

/// A channel by its number in the trace: `ch11`.
pub(super) struct ChannelName(pub u32);

impl std::fmt::Display for ChannelName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(&format!("ch{}", self.0))
    }
}
