//! The works of a recording as a profiler would tell them, so that both can be compared: a sink.

use std::io;

use super::Works as _;
use super::sums::Sums;
use super::work::{What, Work};
use crate::export::works::{self, Kind, Works};
use crate::output::{Detail, Sink};
use nvcap_decode::decode::event::{Body, Event};
use nvcap_decode::driver::Model;
use nvcap_decode::ledger::Ledger;
use nvcap_decode::record::Record;

/// The sink: those works that `nvcap export kineto` writes, timed or not.
#[derive(Debug, Default)]
pub struct OfRecording {
    works: Works,
    sums: Sums,
}

impl OfRecording {
    /// Returns the sums.
    #[must_use]
    pub fn sums(self) -> Sums {
        self.sums
    }

    fn work(&mut self, work: &works::Work) {
        let what = match (work.kind, work.part_of) {
            (Kind::Kernel | Kind::Graph, _) => What::Kernel(&work.text),
            (_, Some(part)) => What::Driver(part),
            (Kind::Copy(direction), None) => What::Copy(direction),
            (Kind::Memset, None) => What::Memset,
        };
        self.sums.work(&Work {
            what,
            gpu: work.gpu,
            stream: Some(work.channel.0),
            errors: (0, 0),
            times: work.times.map(|times| (times.begin, times.duration)),
            bytes: match work.kind {
                Kind::Copy(_) | Kind::Memset => work.bytes,
                Kind::Kernel | Kind::Graph => 0,
            },
        });
    }
}

impl Sink for &mut OfRecording {
    fn detail(&self) -> Option<Detail> {
        Some(Detail::Operations)
    }

    fn shows_memory(&self) -> bool {
        false
    }

    fn event(&mut self, event: &Event<'_>) -> io::Result<()> {
        if let Body::Operation(op) = &event.body
            && let Some(work) = self.works.operation(event.context, event.entry, op)
        {
            self.work(&work);
        }
        Ok(())
    }

    fn record(&mut self, _record: &Record, _model: &Model) -> io::Result<()> {
        Ok(())
    }

    fn is_for_later(&self) -> bool {
        true
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn finish(&mut self, _ledger: &Ledger, _model: &Model) -> io::Result<()> {
        if let Some(work) = self.works.finish() {
            self.work(&work);
        }
        Ok(())
    }
}
