//! The line of doorbells that were counted and not captured.

use std::io;

use super::{Role, Text};
use crate::output::plural::plural_of;
use nvcap_decode::record::{Skipped, SkippedWhy};

impl Text {
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
