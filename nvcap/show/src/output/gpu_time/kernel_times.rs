//! Times of kernels in one trace, by which those of graphs' nodes in another are estimated.

use std::io;

use super::{Account, Evidence};
use crate::output::{Detail, Sink};
use nvcap_decode::decode::event::Event;
use nvcap_decode::driver::Model;
use nvcap_decode::ledger::Ledger;
use nvcap_decode::record::Record;

/// Gathers the times of kernels, by name, grid and shared memory: for the graphs of another trace.
#[derive(Debug, Default)]
pub struct KernelTimes {
    account: Account,
}

impl KernelTimes {
    /// Returns the times that were gathered.
    #[must_use]
    pub fn evidence(&self) -> Evidence {
        self.account.graphs.evidence()
    }
}

impl Sink for &mut KernelTimes {
    fn detail(&self) -> Option<Detail> {
        Some(Detail::Operations)
    }

    fn shows_memory(&self) -> bool {
        false
    }

    fn event(&mut self, event: &Event<'_>) -> io::Result<()> {
        self.account.event(event);
        Ok(())
    }

    fn record(&mut self, record: &Record, _model: &Model) -> io::Result<()> {
        self.account.record(record);
        Ok(())
    }

    fn is_for_later(&self) -> bool {
        true
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn finish(&mut self, _: &Ledger, _model: &Model) -> io::Result<()> {
        self.account.finish();
        Ok(())
    }
}
