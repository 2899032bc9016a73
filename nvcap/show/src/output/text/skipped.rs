//! Lines of doorbells that were counted and not captured, and of faults.

use std::io;

use super::{Role, Text};
use crate::output::{fault, plural::plural_of};
use nvcap_decode::record::{Fault, Skipped, SkippedWhy};

impl Text {
    /// Writes the line of a fault.
    pub(super) fn fault(&mut self, f: &Fault) -> io::Result<()> {
        self.note(f.at, Role::Alarm, format_args!("{}", fault::line(f)))
    }

    /// Writes the line of counted doorbells. Those skipped between two windows have none: there are many windows, and the ledger sums them up.
    pub(super) fn skipped(&mut self, p: &Skipped) -> io::Result<()> {
        if p.why != SkippedWhy::Counted {
            return Ok(());
        }
        let doorbells = p.doorbells.unwrap_or(0);
        self.note(
            p.at,
            Role::Operation,
            format_args!(
                "counted {} of channel {} ({})",
                plural_of(doorbells, "doorbell", "doorbells"),
                p.channel.0,
                plural_of(p.entries, "entry", "entries")
            ),
        )
    }
}
