//! A recording of a trace, written beside the trace's other outputs.
//!
//! Usually each record goes into the file as soon as it arrives, and nothing is decoded for the recording. With `--redact` the decoder must
//! find users' data first: then records are written in the order of their times, each submission after its last event.

mod disk;
mod files;
mod kept;
mod redacted;

#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::{Detail, Sink};
use nvcap_decode::decode::event::Event;
use nvcap_decode::driver::Model;
use nvcap_decode::ledger::Ledger;
use nvcap_decode::record::{Record, Submission};
use nvcap_recording::recording::decoded::Decoded;
use nvcap_recording::recording::{EndInfo, TraceInfo, Writer};

pub use files::{Files, Rotation};
use kept::Kept;
use redacted::Hidden;

/// Time since the last flush after which the next record is flushed with all that wait in memory.
const HELD: Duration = Duration::from_millis(100);

/// Shortest time between two reads of the kernel's log.
const LOG_READ: Duration = Duration::from_secs(1);

/// Writes a recording.
pub struct Recorder {
    files: Files,
    writer: Writer,
    /// True once the first section has begun.
    has_begun: bool,
    /// True if submissions are observed instead of trapped; set from outside before the first record.
    observes: Option<Arc<AtomicBool>>,
    /// Objects that could not be written, counted when the file's last section was begun.
    unwritten: u64,
    written: Instant,
    /// Records that each further file repeats; `None` for a recording in one file.
    kept: Option<Kept>,
    /// Ledger of what was written since the trace's beginning: for the end of each file but the last. `None` for a recording in one file.
    so_far: Option<Ledger>,
    redacting: Option<Redacting>,
    /// True when the files written so far are to be kept for good; set from outside.
    seal: Option<&'static AtomicBool>,
    /// The kernel's log, and when it was last read.
    log: Option<(KernelLines, Instant)>,
}

/// Gives the lines of the kernel's log about the GPU that are new: time (`CLOCK_MONOTONIC`, ns) and text.
pub type KernelLines = Box<dyn FnMut() -> Vec<(u64, String)>>;

/// The state that hiding users' data needs.
#[derive(Default)]
struct Redacting {
    hidden: Hidden,
    /// The last submission, which waits until all its events have come.
    submission: Option<Submission>,
}

impl Recorder {
    /// Begins a recording. `trace` is a random number that tells the packets of this trace from those of others.
    ///
    /// # Errors
    /// When nothing can be written to the file.
    pub fn new(files: Files, info: TraceInfo, trace: u32) -> io::Result<Self> {
        let this = Self {
            kept: files.room_for_kept().map(Kept::within),
            so_far: files.rotates().then(Ledger::new),
            files,
            writer: Writer::new(info, trace),
            has_begun: false,
            observes: None,
            unwritten: 0,
            written: Instant::now(),
            redacting: None,
            seal: None,
            log: None,
        };
        Ok(this)
    }

    /// Looks, before it writes anything, for a trace that has fallen back from the trap to observing.
    pub fn observing(self, observes: Arc<AtomicBool>) -> Self {
        Self {
            observes: Some(observes),
            ..self
        }
    }

    /// Hides users' data.
    pub fn redacting(self) -> Self {
        Self {
            redacting: Some(Redacting::default()),
            ..self
        }
    }

    /// Seals the files whenever `asked` is set.
    pub fn sealing(self, asked: &'static AtomicBool) -> Self {
        Self {
            seal: Some(asked),
            ..self
        }
    }

    /// Writes lines of the kernel's log among the records.
    pub fn with_log(self, lines: KernelLines) -> Self {
        Self {
            log: Some((lines, Instant::now())),
            ..self
        }
    }

    /// Writes the new lines of the kernel's log, if it was last read at least `after` ago.
    fn write_log(&mut self, after: Duration) -> io::Result<()> {
        let Some((lines, read)) = self.log.as_mut().filter(|(_, r)| r.elapsed() >= after) else {
            return Ok(());
        };
        *read = Instant::now();
        for (time_ns, text) in lines() {
            self.writer.kernel_log(time_ns, &text, self.files.buffer());
            self.files.end_object()?;
        }
        Ok(())
    }

    /// Prepares the file for the next object. If the file lost objects, descriptions of channels may be among them: a new section
    /// begins, which depends on nothing before it. If the file has reached its size or age, the next file begins.
    fn begin_object(&mut self) -> io::Result<()> {
        if !self.has_begun {
            self.has_begun = true;
            let observes = self.observes.as_ref();
            if observes.is_some_and(|o| o.load(Ordering::Relaxed)) {
                self.writer.observes();
            }
            self.writer.begin_section(self.files.buffer());
            self.files.end_object()?;
        }
        if self.files.unwritten() > self.unwritten {
            self.unwritten = self.files.unwritten();
            self.writer.begin_section(self.files.buffer());
            self.files.end_object()?;
        }
        if self.files.is_over() {
            self.next_file()?;
            self.files.remove_old();
        }
        Ok(())
    }

    /// Goes on in the next file, or in the current one if there is no room for another.
    fn next_file(&mut self) -> io::Result<()> {
        let Some(next) = self.files.create_next()? else {
            return Ok(());
        };
        self.writer.continued(self.files.buffer());
        self.write_so_far();
        self.files.end_object()?;
        self.files.next(next)?;
        self.unwritten = self.files.unwritten();
        let left_out = self.kept.as_ref().map_or(0, Kept::left_out);
        self.writer.begin_file(left_out, self.files.buffer());
        self.files.end_object()?;
        for record in self.kept.iter().flat_map(Kept::records) {
            self.writer.again(record, self.files.buffer());
            self.files.end_object()?;
        }
        Ok(())
    }

    /// Appends the counts of the trace so far to the end of a file.
    fn write_so_far(&mut self) {
        let Some(ledger) = &mut self.so_far else {
            return;
        };
        let unshown = self.files.unwritten() + self.writer.too_long();
        ledger.add_unshown(unshown - ledger.unshown());
        let mut account = Vec::new();
        super::ledger::json_so_far(&mut account, ledger);
        self.writer.counts(ledger, &account, self.files.buffer());
    }

    /// Writes a record with what the decoder says of it. This hides nothing: the caller must have hidden users' data.
    pub(super) fn write_decoded(
        &mut self,
        record: &Record,
        decoded: Option<&Decoded>,
    ) -> io::Result<()> {
        if let Some(decoded) = decoded {
            self.decoded(decoded);
        }
        self.write(record)
    }

    /// Adds the decoder's words to the next record, or to the end of the trace, for programs that have no decoder.
    pub(super) fn decoded(&mut self, of: &Decoded) {
        self.writer.decoded(of.field());
    }

    fn write(&mut self, record: &Record) -> io::Result<()> {
        self.begin_object()?;
        self.writer.record(record, self.files.buffer());
        self.files.end_object()?;
        if let Some(kept) = &mut self.kept {
            kept.note(record);
        }
        if let Some(ledger) = &mut self.so_far {
            ledger.record(record);
        }
        if self.written.elapsed() >= HELD {
            self.flush_files()?;
        }
        Ok(())
    }

    fn flush_files(&mut self) -> io::Result<()> {
        self.written = Instant::now();
        self.write_log(LOG_READ)?;
        self.files.flush()?;
        self.files.bring_some();
        self.seal_if_asked()
    }

    fn seal_if_asked(&mut self) -> io::Result<()> {
        if self.seal.is_some_and(|s| s.swap(false, Ordering::Relaxed)) && self.files.rotates() {
            // Without a next file the current one is not complete, and those before it are sealed.
            self.next_file()?;
            self.files.seal();
            self.files.flush()?;
        }
        Ok(())
    }

    /// Hides users' data in the submission that waits, and writes it.
    fn write_held(&mut self) -> io::Result<()> {
        let Some(redacting) = &mut self.redacting else {
            return Ok(());
        };
        let Some(mut submission) = redacting.submission.take() else {
            return Ok(());
        };
        redacting.hidden.hide(&mut submission);
        self.write(&Record::Submission(submission))
    }
}

impl Sink for Recorder {
    fn detail(&self) -> Option<Detail> {
        self.redacting.as_ref().map(|_| Detail::Methods)
    }

    fn sees_all(&self) -> bool {
        self.redacting.is_some()
    }

    fn event(&mut self, event: &Event<'_>) -> io::Result<()> {
        if let Some(redacting) = &mut self.redacting {
            redacting.hidden.note(event);
        }
        Ok(())
    }

    fn arrived(&mut self, record: &Record) -> io::Result<()> {
        match self.redacting {
            None => self.write(record),
            Some(_) => Ok(()),
        }
    }

    fn record(&mut self, record: &Record, _model: &Model) -> io::Result<()> {
        if self.redacting.is_none() {
            return Ok(());
        }
        self.write_held()?;
        match (record, &mut self.redacting) {
            (Record::Submission(s), Some(redacting)) => {
                redacting.submission = Some(s.clone());
                Ok(())
            }
            // Memory of the program: users' data in it cannot be told from other data, so the record is left out.
            (Record::QmdCopy(_), Some(_)) => Ok(()),
            // The beginnings of rings are not decoded, so nothing tells users' data in them.
            (Record::Snapshot(snapshot), Some(_)) => {
                let mut snapshot = snapshot.clone();
                snapshot.channels.iter_mut().for_each(|c| c.first.clear());
                self.write(&Record::Snapshot(snapshot))
            }
            _ => self.write(record),
        }
    }

    fn is_for_later(&self) -> bool {
        // Records are written as they arrive, unless they are redacted.
        self.redacting.is_none()
    }

    fn flush(&mut self) -> io::Result<()> {
        self.write_held()?;
        self.begin_object()?;
        self.writer.idle(self.files.buffer());
        self.files.end_object()?;
        self.flush_files()
    }

    fn ends_first(&self) -> bool {
        true
    }

    /// Returns the number of objects that the recording lacks, also of those that are too long for it: a reader of it finds the trace incomplete, and
    /// so the trace is called here.
    fn unshown(&self) -> u64 {
        self.files.unwritten() + self.writer.too_long()
    }

    fn finish(&mut self, ledger: &Ledger, _model: &Model) -> io::Result<()> {
        self.write_held()?;
        let mut account = Vec::new();
        super::ledger::json(&mut account, ledger);
        let end = EndInfo {
            time_ns: 0,
            observed: ledger.observed().cloned(),
            stack_sample: ledger.stack_sample(),
            left_out_of_stacks: ledger
                .left_out_of_stacks()
                .map(|(what, count)| (what.to_owned(), count))
                .collect(),
            unwritten: self.files.unwritten(),
            gpu_clocks: Vec::new(),
            trapped: ledger.trapped().copied(),
        };
        self.begin_object()?;
        self.write_log(Duration::ZERO)?;
        let to = self.files.buffer();
        self.writer.end(end, ledger, &account, to);
        self.files.end_object()?;
        self.flush_files()?;
        self.files.end();
        Ok(())
    }
}
