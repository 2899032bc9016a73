//! Names of kernels that are found behind their first launches.

use super::work::What;
use super::{Account, Row};
use crate::output::kernels;
use nvcap_decode::record::Kernel;

impl Account {
    /// Gives the launches of a program that had no name the name of its kernel, where the name holds for all of them.
    pub(super) fn name(&mut self, kernel: &Kernel) {
        let (pid, since) = (kernel.at.pid, kernel.at.time());
        let Some(since) = since.filter(|_| kernel.certain && kernel.is_known()) else {
            return;
        };
        if let Some(done) = self.entries.finish() {
            self.done(done);
        }
        let of = |what| match self.by_process {
            true => What::Of(pid, Box::new(what)),
            false => what,
        };
        let unnamed = of(What::Program(kernel.program.0));
        let named = of(What::Kernel(kernel.name.clone()));
        let is_its = |row: &Row| {
            let holds = row.since.is_some_and(|first| first >= since);
            holds && row.of.keys().eq([&pid])
        };
        if self.rows.contains_key(&named) || !self.rows.get(&unnamed).is_some_and(is_its) {
            return;
        }
        if let Some(mut row) = self.rows.remove(&unnamed) {
            self.row_bytes = self.row_bytes.saturating_sub(row.text.len());
            row.text = self.whose(pid, kernels::text(kernel, true));
            self.row_bytes += named.bytes() + row.text.len();
            self.rows.insert(named, row);
        }
    }

    /// Returns the name of a row of one process, where each has rows of its own.
    pub(super) fn whose(&self, pid: u32, text: String) -> String {
        match self.by_process {
            true => format!("{text}, process {}", crate::output::names::pid_name(pid)),
            false => text,
        }
    }
}
