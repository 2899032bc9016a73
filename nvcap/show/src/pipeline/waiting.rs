//! Records that wait for their turn: put in order, and held until it is known what they are a part of.

use std::io;

use super::Pipeline;
use super::loads::{Loads, Taken};
use super::order::Order;
use nvcap_decode::record::Record;

impl Pipeline<'_> {
    /// Takes the next record.
    ///
    /// # Errors
    /// When a sink can take no more; of kind `BrokenPipe` when the sink's reader went away, which is no error of the trace:
    /// the caller stops and ends quietly. Of kind `InvalidData` where [`PipelineOptions::strict`](super::PipelineOptions::strict) is set and something is
    /// not whole.
    pub fn record(&mut self, record: Record) -> io::Result<()> {
        self.ledger.record(&record);
        for sink in &mut self.sinks {
            sink.arrived(&record)?;
        }
        if let Some(times) = &mut self.times {
            if let (Record::Stamps(s), Some(true)) =
                (&record, self.order.as_ref().map(Order::is_held))
            {
                times.settle(s);
            }
            times.note(&record);
        }
        let Some(order) = &mut self.order else {
            return self.sort_out(record);
        };
        order.put(record);
        while let Some(record) = self.next(|order, is_awaited| order.take(is_awaited)) {
            self.sort_out(record)?;
        }
        Ok(())
    }

    /// Takes the next record to leave, by one of the ways of the order; a submission is awaited until the GPU has finished it.
    fn next(
        &mut self,
        take: impl FnOnce(&mut Order, &mut dyn FnMut(&Record) -> bool) -> Option<Record>,
    ) -> Option<Record> {
        let mut times = self.times.as_mut();
        take(self.order.as_mut()?, &mut |record| match record {
            Record::Submission(s) => times.as_mut().is_some_and(|t| t.awaits(s)),
            _ => false,
        })
    }

    /// Takes the records of which nothing more is awaited; at the end, all.
    pub(super) fn take_waiting(&mut self, is_end: bool) -> io::Result<()> {
        while let Some(record) = self.next(|order, is_awaited| match is_end {
            true => order.take_all(),
            false => order.take_idle(is_awaited),
        }) {
            self.sort_out(record)?;
        }
        if let Some(loads) = &mut self.loads {
            loads.idle(is_end);
        }
        self.take_sorted()
    }

    fn take_sorted(&mut self) -> io::Result<()> {
        while let Some(taken) = self.loads.as_mut().and_then(Loads::take) {
            self.take(taken)?;
        }
        Ok(())
    }

    /// Takes a record in its order; submissions wait until it is known whether they are the driver's own.
    fn sort_out(&mut self, record: Record) -> io::Result<()> {
        // Contents and names of before concern what waits.
        let is_of_before = matches!(
            record,
            Record::QmdCopy(_) | Record::Kernel(_) | Record::Stamps(_)
        );
        if let Some(loads) = &mut self.loads {
            loads.stir();
            if let Record::Kernel(k) = &record {
                loads.name(k);
            }
        }
        let is_next = |loads: &&mut Loads| {
            !is_of_before || matches!(record, Record::QmdCopy(_)) && loads.is_behind_end(&record)
        };
        let Some(loads) = self.loads.as_mut().filter(is_next) else {
            return self.take(Taken {
                record,
                parts: None,
                load: None,
            });
        };
        loads.put(record);
        self.take_sorted()
    }

    /// Takes the waiting records, emits waiting replays, and writes out the sinks' buffers: for a live trace that is idle
    /// for a while.
    ///
    /// # Errors
    /// As [`Pipeline::record`].
    pub fn flush(&mut self) -> io::Result<()> {
        self.take_waiting(false)?;
        // A replay is not shown before the submissions that wait.
        if self.loads.as_ref().is_none_or(|l| !l.is_waiting()) {
            self.emit_replays(None)?;
        }
        self.sinks.iter_mut().try_for_each(|s| s.flush())
    }

    /// Ends at an error ([`PipelineOptions::strict`](super::PipelineOptions::strict)): what waits is not shown any more.
    ///
    /// # Errors
    /// When a sink can take no more.
    pub fn cut(&mut self) -> io::Result<()> {
        self.order = None;
        self.loads = None;
        self.sinks.iter_mut().try_for_each(|s| s.flush())
    }

    /// Takes all that waits, as nothing more comes.
    ///
    /// # Errors
    /// As [`Pipeline::record`].
    pub fn settle(&mut self) -> io::Result<()> {
        self.take_waiting(true)
    }
}
