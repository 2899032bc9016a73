//! Sinks: each shows the same events in its own way, and knows nothing of where they came from.
//!
//! A [`Sink`] takes [`Event`]s (what the decoder says) and [`Record`]s (what became known beside the streams:
//! processes, channels, losses), and at the end the [`Ledger`]. It is lent the trace's one driver [`Model`] with each
//! record and keeps none. [`text`] and [`json`] show them one by one,
//! [`stats`] in sums; [`filter`] chooses which events a sink gets, and [`redact`] hides users' data from it.
//! [`writer`] owns the file: buffering, a full disk, a reader that went away.

pub mod channels;
mod describe;
pub mod dump;
#[cfg_attr(not(target_os = "linux"), path = "file_elsewhere.rs")]
pub(crate) mod file;
pub mod filter;
mod holes;
pub mod ioctls;
pub mod json;
pub mod ledger;
pub(crate) mod message;
pub(crate) mod method;
pub mod model_view;
pub(crate) mod names;
pub mod phases;
pub(crate) mod plural;
pub mod redact;
pub mod stats;
pub mod streams;
pub mod style;
mod terminal;
pub mod text;
pub(crate) mod units;
pub mod writer;

use std::io;

use crate::decode::Counts;
use crate::decode::event::Event;
use crate::driver::Model;
use crate::ledger::Ledger;
use crate::record::Record;

/// How much of each submission is shown, and so how much the decoder must say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Detail {
    /// Operations, one a line.
    #[default]
    Operations,
    /// And every method write with its fields (`-v`).
    Methods,
    /// And every ring entry with its raw words (`-vv`).
    Words,
}

impl Detail {
    /// From how often `-v` was given.
    #[must_use]
    pub fn from_count(v: u8) -> Self {
        match v {
            0 => Self::Operations,
            1 => Self::Methods,
            _ => Self::Words,
        }
    }
}

/// What the decoder counted over a whole trace.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Summary {
    /// Submissions, entries, method writes, ...
    pub counts: Counts,
    /// How often each method was written: class, byte address, writes.
    pub methods: Vec<(u32, u16, u64)>,
}

/// Takes what is to be shown.
///
/// An error of kind [`io::ErrorKind::BrokenPipe`] means that nobody reads any more: the caller ends quietly.
/// A full disk is no error here: the sink goes on, counts what it could not write, and says so through
/// [`Sink::unshown`].
pub trait Sink {
    /// The finest detail this sink makes use of; `None` where it takes no events at all, so that nothing need be
    /// decoded for it.
    fn detail(&self) -> Option<Detail>;

    /// Whether it takes every event, also those that a filter keeps from what is shown: for a sink that must have
    /// seen all to say anything true.
    fn sees_all(&self) -> bool {
        false
    }

    /// Whether it shows what [`Sink::summary`] tells: then everything must be decoded, whatever the filter shows.
    fn shows_summary(&self) -> bool {
        false
    }

    /// One event, in stream order.
    ///
    /// # Errors
    /// When the output can take no more.
    fn event(&mut self, event: &Event<'_>) -> io::Result<()>;

    /// Whether the order in which it gets records and events matters to it: then those of a live source wait for
    /// their turn.
    fn keeps_order(&self) -> bool {
        self.detail().is_some()
    }

    /// One record, before `model` takes it: for what is shown of an object that the record frees.
    ///
    /// # Errors
    /// When the output can take no more.
    fn before(&mut self, _record: &Record, _model: &Model) -> io::Result<()> {
        Ok(())
    }

    /// One record, before the events it leads to. Every record comes by; a sink shows those it has a form for.
    /// `model` has taken it.
    ///
    /// # Errors
    /// When the output can take no more.
    fn record(&mut self, record: &Record, model: &Model) -> io::Result<()>;

    /// Writes out what is buffered; called when a live trace has nothing to do.
    ///
    /// # Errors
    /// When the output can take no more.
    fn flush(&mut self) -> io::Result<()>;

    /// Objects that could not be written so far, those still in the buffer not counted.
    fn unshown(&self) -> u64 {
        0
    }

    /// What the decoder counted in all, before [`Sink::finish`]. Filters have no part in it.
    fn summary(&mut self, _summary: &Summary) {}

    /// The end: shows the ledger, and what `model` holds by now where it shows that, and flushes.
    ///
    /// # Errors
    /// When the output can take no more.
    fn finish(&mut self, ledger: &Ledger, model: &Model) -> io::Result<()>;
}

/// For a caller that asks the sink for something after the trace.
impl<S: Sink + ?Sized> Sink for &mut S {
    fn detail(&self) -> Option<Detail> {
        (**self).detail()
    }

    fn sees_all(&self) -> bool {
        (**self).sees_all()
    }

    fn shows_summary(&self) -> bool {
        (**self).shows_summary()
    }

    fn event(&mut self, event: &Event<'_>) -> io::Result<()> {
        (**self).event(event)
    }

    fn keeps_order(&self) -> bool {
        (**self).keeps_order()
    }

    fn before(&mut self, record: &Record, model: &Model) -> io::Result<()> {
        (**self).before(record, model)
    }

    fn record(&mut self, record: &Record, model: &Model) -> io::Result<()> {
        (**self).record(record, model)
    }

    fn flush(&mut self) -> io::Result<()> {
        (**self).flush()
    }

    fn unshown(&self) -> u64 {
        (**self).unshown()
    }

    fn summary(&mut self, summary: &Summary) {
        (**self).summary(summary);
    }

    fn finish(&mut self, ledger: &Ledger, model: &Model) -> io::Result<()> {
        (**self).finish(ledger, model)
    }
}
