//! The trap as a live source that `run` drives.
//!
//! When the queue to the main thread is full, the ring buffer fills, and the BPF programs postpone captures. The traced program
//! never waits.

use std::{io, process::ExitStatus, time::Duration};

use super::session::{Session, Totals, TrapOptions};
use crate::run::{self, Source};
use nvcap_decode::record::{ChannelId, CpuVa, Record};
use nvcap_decode::wire::GpuVa;
use nvcap_process::error::Result;

pub use crate::run::{Limits, Target};

/// Results of the trap at its end.
#[derive(Debug)]
pub struct End {
    /// Counters.
    pub totals: Totals,
}

/// A session as a source that `run` can drive.
pub struct Trap(Session);

impl Trap {
    /// Loads everything and attaches the discovery way.
    ///
    /// # Errors
    /// When the kernel refuses, with the remedy.
    pub(crate) fn new(options: TrapOptions) -> Result<Self> {
        let session = Session::new(options)?;
        let (way, refused) = session.way();
        for (other, why) in refused {
            log::info!("not used: {other}: {why}");
        }
        log::info!(
            "discovery: {way:?}; doorbell program: {}",
            session.doorbell_program()
        );
        Ok(Self(session))
    }
}

impl Source for Trap {
    type End = End;

    /// Does nothing: no traced program waits for this thread, so it may share a processor with the thread that writes the
    /// output.
    fn shown_by(&mut self, _thread: i32) {}

    fn expect(&mut self, pid: u32) -> Result<()> {
        self.0.expect_exec(pid)
    }

    fn attach(&mut self, pid: u32) -> Result<()> {
        self.0.attach(pid)
    }

    fn take_on(&mut self, pid: u32, was_there: bool) -> Result<()> {
        self.0.take_on(pid, was_there)
    }

    fn step(&mut self, wait: Duration, to: &mut Vec<Record>) -> Result<()> {
        self.0.step(wait, to)
    }

    fn locate(&self, channel: ChannelId, at: GpuVa) -> Option<CpuVa> {
        self.0.locate(channel, at)
    }

    fn batch_time(&self) -> Duration {
        Duration::from_micros(300)
    }

    fn most_waiting(&self) -> usize {
        run::QUEUE
    }

    fn longest_wait(&self) -> Duration {
        run::LONGEST_WAIT
    }

    fn is_pending(&self) -> bool {
        false
    }

    fn is_alive(&self) -> bool {
        self.0.is_alive()
    }

    /// Returns false: `exit_hold` holds the command's end, and needs no source for it.
    fn is_ending(&self) -> bool {
        false
    }

    fn let_end(&mut self) {}

    fn finish(mut self, to: &mut Vec<Record>) -> End {
        End {
            totals: self.0.finish(to),
        }
    }
}

/// Traces until the target ends, a limit is reached or a signal comes: see [`run::run`]. Returns the status of the command, if
/// it has ended.
///
/// # Errors
/// When the trace cannot be set up, or `each` accepts no more records.
pub fn run(
    options: TrapOptions,
    target: Target,
    limits: Limits,
    each: impl FnMut(Record) -> io::Result<()>,
    idle: impl FnMut() -> io::Result<()>,
    attached: impl FnOnce() + Send + 'static,
) -> Result<Option<ExitStatus>> {
    super::precheck::check(&target, !options.named.is_empty())?;
    let make = move || Trap::new(options);
    Ok(run::run(make, target, limits, each, idle, attached)?.child)
}
