//! In step with nvcap: how far it has read what the thread that is the GPU writes and what the others submit.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nvcap_process::in_step::{GUARD, Kind, NAMED, Table};

use crate::clock;
use crate::doorbells::Doorbells;
use crate::layout::{Channel, ENTRIES};
use crate::stream::semaphore;

/// Time after the doorbell of the submission behind it before which no kernel ends, ns: that submission has waited for it, whatever the measure.
const THERE_NS: u64 = 40_000;

/// The table that nvcap tells in.
pub(crate) struct InStep {
    table: Table,
    pid: u32,
    /// The first submission of each channel that nvcap is there for.
    from: u64,
}

/// Returns how far a count that wraps is ahead of what was read.
fn ahead(count: u32, read: u64) -> u64 {
    (count.wrapping_sub(read as u32) as i32).max(0) as u64
}

impl InStep {
    /// Opens the file that the test has made. `from`: the first submission of each channel that nvcap is there for.
    pub(crate) fn open(file: &Path, from: u64) -> Result<InStep> {
        let table = Table::open(file).with_context(|| format!("--in-step {}", file.display()))?;
        // From the first read on nvcap keeps apart from writes.
        table.at_once(|| ());
        Ok(InStep {
            table,
            pid: std::process::id(),
            from,
        })
    }

    /// nvcap is there for this submission.
    pub(crate) fn is_seen(&self, number: u64) -> bool {
        number >= self.from
    }

    /// Writes between two reads of nvcap's.
    pub(crate) fn at_once<T>(&self, write: impl FnOnce() -> T) -> T {
        self.table.at_once(write)
    }

    fn has_read(&self, kind: Kind, address: u64, ahead: impl Fn(u64) -> u64) -> bool {
        self.table.has_read(&[self.pid], kind, address, ahead)
    }

    /// The stamp of this submission was read.
    pub(crate) fn stamp(&self, channel: Channel, number: u64) -> bool {
        let payload = (number + 1) as u32;
        self.has_read(Kind::Stamp, semaphore(channel), |told| ahead(payload, told))
    }

    /// A word was read with this value.
    pub(crate) fn word(&self, (address, value): (u64, u32)) -> bool {
        self.has_read(Kind::Word, address, |told| ahead(value, told))
    }

    /// Tells whether this number of the process's programs have names.
    pub(crate) fn are_named(&self, programs: u64) -> bool {
        self.has_read(Kind::Process, NAMED, |told| programs.saturating_sub(told))
    }

    /// This submission was rung for long ago, and nvcap has found it in the ring.
    pub(crate) fn is_queued(&self, doorbells: &Doorbells, channel: Channel, number: u64) -> bool {
        let Some([.., rung]) = doorbells.times(channel, number) else {
            return false;
        };
        let entries = u64::from(ENTRIES);
        let behind = |told: u64| match (number + 1 + entries - told % entries) % entries {
            ahead if ahead <= entries / 2 => ahead,
            _ => 0,
        };
        clock::monotonic() >= rung + THERE_NS && self.has_read(Kind::Ring, channel.ring(), behind)
    }
}

/// Time since which something has been waited for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wait(Option<Instant>);

impl Wait {
    /// Notes whether what is waited for has come, and returns it. After [`GUARD`] without it the program ends with what it waited for.
    pub(crate) fn came(&mut self, came: bool, what: impl FnOnce() -> String) -> bool {
        let since = self.0.get_or_insert_with(Instant::now).elapsed();
        if came {
            self.0 = None;
        } else if since > GUARD {
            // The threads that submit wait for the one that is the GPU: none of them could end.
            eprintln!("softgpu: in step: after {} s {}", GUARD.as_secs(), what());
            std::process::exit(1);
        }
        came
    }

    /// Tells whether something is being waited for.
    pub(crate) fn is_on(self) -> bool {
        self.0.is_some()
    }

    /// Lets others have the processor until it is asked for again.
    pub(crate) fn pause(any: bool) {
        match any {
            true => std::thread::sleep(Duration::from_micros(20)),
            false => std::thread::yield_now(),
        }
    }
}
