//! A recording of a trace, written beside what is shown of it. Takes the records as they come, and none of the events.

use std::io;
use std::time::{Duration, Instant};

use super::writer::Output;
use super::{Detail, Sink};
use crate::capture::{EndInfo, TraceInfo, Writer};
use crate::decode::event::Event;
use crate::driver::Model;
use crate::ledger::Ledger;
use crate::record::Record;

/// How long a record waits in memory at most while others come.
const HELD: Duration = Duration::from_millis(100);

/// Writes a recording.
pub(crate) struct Recorder {
    out: Output,
    writer: Writer,
    /// Packets that could not be written, when the last section of the file was begun.
    unwritten: u64,
    written: Instant,
}

impl Recorder {
    /// Begins the recording of a trace, of which `trace` is a random number.
    ///
    /// # Errors
    /// When the file can take nothing.
    pub(crate) fn new(out: Output, info: TraceInfo, trace: u32) -> io::Result<Self> {
        let mut this = Self {
            out,
            writer: Writer::new(info, trace),
            unwritten: 0,
            written: Instant::now(),
        };
        this.writer.begin_section(this.out.object());
        this.out.end_object()?;
        Ok(this)
    }

    /// The buffer for what comes next. What the file could not take is missing, the descriptions of channels too: what follows
    /// begins anew.
    fn object(&mut self) -> io::Result<(&mut Writer, &mut Vec<u8>)> {
        if self.out.unshown() > self.unwritten {
            self.unwritten = self.out.unshown();
            self.writer.begin_section(self.out.object());
            self.out.end_object()?;
        }
        Ok((&mut self.writer, self.out.object()))
    }

    fn write(&mut self) -> io::Result<()> {
        self.written = Instant::now();
        self.out.flush()
    }
}

impl Sink for Recorder {
    fn detail(&self) -> Option<Detail> {
        None
    }

    fn event(&mut self, _event: &Event<'_>) -> io::Result<()> {
        Ok(())
    }

    fn arrived(&mut self, record: &Record) -> io::Result<()> {
        let (writer, to) = self.object()?;
        writer.record(record, to);
        self.out.end_object()?;
        if self.written.elapsed() >= HELD {
            self.write()?;
        }
        Ok(())
    }

    fn record(&mut self, _record: &Record, _model: &Model) -> io::Result<()> {
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        let (writer, to) = self.object()?;
        writer.idle(to);
        self.out.end_object()?;
        self.write()
    }

    fn unshown(&self) -> u64 {
        self.out.unshown()
    }

    fn finish(&mut self, ledger: &Ledger, _model: &Model) -> io::Result<()> {
        let mut account = Vec::new();
        super::ledger::json(&mut account, ledger);
        let end = EndInfo {
            time_ns: 0,
            observed: ledger.observed().cloned(),
            stack_sample: ledger.stack_sample(),
            unwritten: self.out.unshown(),
        };
        let (writer, to) = self.object()?;
        writer.end(end, ledger, &account, to);
        self.out.end_object()?;
        self.write()
    }
}
