//! Sinks: each shows the same events in its own way, and knows nothing of where they came from.
//!
//! A [`Sink`] takes [`Event`]s (what the decoder says) and [`Record`]s (what became known beside the streams:
//! processes, channels, losses), and at the end the [`Ledger`]. It is lent the trace's one driver [`Model`] with each
//! record and keeps none. [`text`] and [`json`] show them one by one,
//! [`stats`] in sums; [`filter`] chooses which events a sink gets, and [`redact`] hides users' data from it.
//! [`writer`] owns the file: buffering, a full disk, a reader that went away.

pub(crate) mod arguments;
pub mod channels;
mod describe;
pub mod dump;
pub(crate) mod ended;
pub mod fault;
#[cfg_attr(not(target_os = "linux"), path = "file_elsewhere.rs")]
pub mod file;
pub mod filter;
pub mod fold;
#[cfg(target_os = "linux")]
mod folder;
pub mod gpu_time;
mod holes;
mod identity;
pub mod ioctls;
pub mod json;
pub mod kernel_name;
mod kernel_short;
pub mod kernels;
pub mod ledger;
pub mod message;
pub(crate) mod method;
pub mod model_view;
pub mod names;
mod needed;
pub mod phases;
pub mod plural;
pub mod recorder;
pub mod redact;
pub(crate) mod releases;
pub mod shell;
pub(crate) mod stack;
pub mod standard;
pub mod stats;
pub mod streams;
pub mod style;
mod terminal;
pub mod text;
pub mod units;
pub mod which;
pub mod wireshark;
pub mod writer;

use std::io;

use nvcap_decode::decode::Counts;
use nvcap_decode::decode::event::Event;
use nvcap_decode::driver::Model;
use nvcap_decode::ledger::Ledger;
use nvcap_decode::record::Record;

/// Part of each submission that a sink makes use of, and so the part that the decoder must give.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Detail {
    /// Operations.
    #[default]
    Operations,
    /// Operations, and every method write with its fields (`-vv`; of JSON `-v`).
    Methods,
    /// Operations, method writes, and every ring entry with its raw words (`-vvv`; of JSON `-vv`).
    Words,
}

impl Detail {
    /// Returns the detail for a number of `-v` of JSON; text has one more `-v` for the same.
    #[must_use]
    pub fn from_count(v: u8) -> Self {
        match v {
            0 => Self::Operations,
            1 => Self::Methods,
            _ => Self::Words,
        }
    }
}

/// Counts of the decoder over a whole trace.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Submissions, entries, method writes, ...
    pub counts: Counts,
    /// Number of writes to each method: class, byte address, writes.
    pub methods: Vec<(u32, u16, u64)>,
    /// Reads of the GPU's time stamps (`--gpu-time`).
    pub stamps: StampReads,
}

/// The reads of the GPU's time stamps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StampReads {
    /// Number of times that stamps were read.
    pub reads: u64,
    /// Time for which stamps were read again and again, summed over all processes, ns.
    pub ns: u64,
    /// Number of stamps that were seen.
    pub stamps: u64,
    /// Number of steps of a GPU's clock and the host's against each other.
    pub steps: u64,
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

    /// Tells whether the sink takes every event, also those that a filter does not let through: for a sink whose answer would be
    /// wrong without them.
    fn sees_all(&self) -> bool {
        false
    }

    /// Tells whether the sink shows the [`Summary`]: then everything must be decoded, whatever the filter lets through.
    fn shows_summary(&self) -> bool {
        false
    }

    /// Tells whether the sink shows which memory objects operations touch ([`Memory`](nvcap_decode::decode::event::Memory)): they are
    /// looked up only where some sink does.
    fn shows_memory(&self) -> bool {
        self.detail().is_some()
    }

    /// One event, in stream order.
    ///
    /// # Errors
    /// When the output can take no more.
    fn event(&mut self, event: &Event<'_>) -> io::Result<()>;

    /// One event that a filter did not let through: for what later ones say of it, such as which channel released a semaphore.
    fn passed_over(&mut self, _event: &Event<'_>) {}

    /// Tells whether the sink needs records and events in the order of their times: then those of a live source wait for their turn.
    fn keeps_order(&self) -> bool {
        self.detail().is_some()
    }

    /// One record, as the source gave it: before records wait for their turn ([`Sink::keeps_order`]).
    ///
    /// # Errors
    /// When the output can take no more.
    fn arrived(&mut self, _record: &Record) -> io::Result<()> {
        Ok(())
    }

    /// One record, before `model` takes it: a record that frees an object is shown while the model still knows the object.
    ///
    /// # Errors
    /// When the output can take no more.
    fn before(&mut self, _record: &Record, _model: &Model) -> io::Result<()> {
        Ok(())
    }

    /// One record, before the events that it leads to, and after `model` has taken it. A sink gets every record and shows
    /// those that it has a form for.
    ///
    /// # Errors
    /// When the output can take no more.
    fn record(&mut self, record: &Record, model: &Model) -> io::Result<()>;

    /// True for a sink that keeps the trace for later, such as a recording: it ends before those that show the ledger, which states
    /// what it could not take.
    fn ends_first(&self) -> bool {
        false
    }

    /// True for a sink whose output is read behind the end of the trace: a submission may wait for the end of its work for as long as it takes.
    fn is_for_later(&self) -> bool {
        false
    }

    /// Writes out what is buffered; called when a live trace has nothing to do.
    ///
    /// # Errors
    /// When the output can take no more.
    fn flush(&mut self) -> io::Result<()>;

    /// Returns the number of objects that could not be written so far. Those in the buffer do not count.
    fn unshown(&self) -> u64 {
        0
    }

    /// Takes the decoder's counts of the whole trace, before [`Sink::finish`]: of everything, whatever a filter lets through.
    fn summary(&mut self, _summary: &Summary) {}

    /// The end: shows the ledger (and of `model` what this sink shows of it), and flushes.
    ///
    /// # Errors
    /// When the output can take no more.
    fn finish(&mut self, ledger: &Ledger, model: &Model) -> io::Result<()>;
}

/// A caller can lend a sink to a pipeline, and ask it for its results after the trace.
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

    fn shows_memory(&self) -> bool {
        (**self).shows_memory()
    }

    fn event(&mut self, event: &Event<'_>) -> io::Result<()> {
        (**self).event(event)
    }

    fn passed_over(&mut self, event: &Event<'_>) {
        (**self).passed_over(event);
    }

    fn keeps_order(&self) -> bool {
        (**self).keeps_order()
    }

    fn arrived(&mut self, record: &Record) -> io::Result<()> {
        (**self).arrived(record)
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

    fn ends_first(&self) -> bool {
        (**self).ends_first()
    }

    fn is_for_later(&self) -> bool {
        (**self).is_for_later()
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
