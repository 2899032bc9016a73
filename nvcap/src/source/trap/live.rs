//! The trap as a live source: what `source::run` drives.
//!
//! When the queue behind it is full the ring buffer fills, and the BPF programs put captures off; the traced program
//! never waits.

use std::{io, process::ExitStatus, time::Duration};

use super::{
    discover::Way,
    error::Result,
    session::{Session, Totals, TrapOptions},
};
use crate::record::Record;
use crate::source::run::{self, Source};

pub use crate::source::command::Launch;
pub use crate::source::run::{Limits, Target};

/// How it went.
#[derive(Debug)]
pub struct Outcome {
    /// Status of the command, if it has ended.
    pub child: Option<ExitStatus>,
    /// Counters.
    pub totals: Totals,
    /// The discovery way that was used, and why others were not.
    pub way: Option<Way>,
    /// One line for each refusal.
    pub refused: Vec<String>,
}

/// What the trap tells at its end.
#[derive(Debug)]
pub struct End {
    /// Counters.
    pub totals: Totals,
    /// The discovery way that was used.
    pub way: Option<Way>,
    /// Why others were not: one line for each.
    pub refused: Vec<String>,
}

/// A session that `source::run` can drive.
pub struct Trap(Session);

impl Trap {
    /// Loads everything and attaches the discovery way.
    ///
    /// # Errors
    /// When the kernel refuses, with the remedy.
    pub fn new(options: TrapOptions) -> Result<Self> {
        let session = Session::new(options)?;
        for line in refusals(&session) {
            log::info!("not used: {line}");
        }
        log::info!(
            "discovery: {:?}; doorbell program: {}",
            session.way().0,
            session.doorbell_program()
        );
        Ok(Self(session))
    }
}

fn refusals(session: &Session) -> Vec<String> {
    let refused = session.way().1;
    refused.iter().map(|(w, e)| format!("{w}: {e}")).collect()
}

impl Source for Trap {
    type End = End;

    /// Nothing that is traced waits for a look of this thread: it may share a processor with the one that shows.
    fn shown_by(&mut self, _thread: i32) {}

    fn expect(&mut self, pid: u32) -> Result<()> {
        self.0.expect_exec(pid)
    }

    fn attach(&mut self, pid: u32) -> Result<()> {
        self.0.attach(pid)
    }

    fn step(&mut self, wait: Duration, to: &mut Vec<Record>) -> Result<()> {
        self.0.step(wait, to)
    }

    fn batch_time(&self) -> Duration {
        Duration::from_micros(300)
    }

    fn most_waiting(&self) -> usize {
        run::QUEUE
    }

    fn is_alive(&self) -> bool {
        self.0.is_alive()
    }

    fn finish(mut self, to: &mut Vec<Record>) -> End {
        End {
            totals: self.0.finish(to),
            way: self.0.way().0,
            refused: refusals(&self.0),
        }
    }
}

/// Traces until the target ends, a limit is reached or a signal comes: see [`run::run`].
///
/// # Errors
/// When the trace cannot be made, or `each` can take no more.
pub fn run(
    options: TrapOptions,
    target: Target,
    limits: Limits,
    each: impl FnMut(Record) -> io::Result<()>,
    idle: impl FnMut() -> io::Result<()>,
    attached: impl FnOnce() + Send + 'static,
) -> Result<Outcome> {
    super::precheck::check(&target, !options.named.is_empty())?;
    let make = move || Trap::new(options);
    let outcome = run::run(make, target, limits, each, idle, attached)?;
    Ok(Outcome {
        child: outcome.child,
        totals: outcome.end.totals,
        way: outcome.end.way,
        refused: outcome.end.refused,
    })
}
