//! A recording for programs that have no decoder, such as Wireshark. It has the same records in the same order as any recording; the
//! messages of submissions and driver calls also have nvcap's words about them (`recording::decoded`).
//!
//! A submission is written when the next one is decoded, or at a flush behind its decoding: then the decoder has said everything about it. Records that
//! arrived after the submission wait until then. Each record comes to `arrived` when the source gives it; each submission comes once more,
//! to `record`, when it is decoded. Submissions of one channel keep their order, so the channel tells which of them was decoded.

mod describe;
mod values;

use std::collections::{HashMap, VecDeque};
use std::io;

use super::recorder::Recorder;
use super::{Detail, Sink};
use nvcap_decode::decode::event::Event;
use nvcap_decode::driver::{Model, Version};
use nvcap_decode::ledger::Ledger;
use nvcap_decode::record::{ChannelId, Record};
use nvcap_recording::recording::decoded::Decoded;

use describe::Describer;

/// Writer of a recording with nvcap's words about its records, for programs that have no decoder.
pub struct Packets {
    recorder: Recorder,
    describer: Describer,
    driver: Option<Version>,
    /// Records in the order of their arrival.
    held: VecDeque<HeldRecord>,
    /// The number of the first held record, counted over the whole trace.
    first: u64,
    /// Numbers of the held submissions that the decoder was not given yet, by channel.
    waiting: HashMap<ChannelId, VecDeque<u64>>,
    /// The number of the submission that was decoded last, while it is held.
    open: Option<u64>,
    /// Asks whether somebody still reads the output.
    is_read: Box<dyn FnMut() -> bool + Send>,
}

/// A record that waits to be written, and what the decoder says of it.
struct HeldRecord {
    record: Record,
    decoded: State,
}

enum State {
    /// A submission that is not decoded yet.
    Waits,
    Ready(Option<Box<Decoded>>),
}

impl Packets {
    /// Makes a sink that writes by way of `recorder`. `driver` is the driver's release, where known. `is_read` is asked when there is nothing to
    /// write: without a reader the trace ends.
    pub fn new(
        recorder: Recorder,
        driver: Option<Version>,
        is_read: Box<dyn FnMut() -> bool + Send>,
    ) -> Self {
        Self {
            recorder,
            describer: Describer::default(),
            driver,
            held: VecDeque::new(),
            first: 0,
            waiting: HashMap::new(),
            open: None,
            is_read,
        }
    }

    /// Completes the submission that was decoded last: the decoder says nothing more about it.
    fn close(&mut self) {
        let Some(number) = self.open.take() else {
            return;
        };
        let at = usize::try_from(number - self.first).unwrap_or(usize::MAX);
        if let Some(held) = self.held.get_mut(at) {
            held.decoded = State::Ready(self.describer.take().map(Box::new));
        }
    }

    /// Writes held records, oldest first: up to the first submission that is not decoded, or all of them.
    fn write(&mut self, all: bool) -> io::Result<()> {
        let is_ready = |held: &HeldRecord| all || matches!(held.decoded, State::Ready(_));
        while self.held.front().is_some_and(is_ready)
            && let Some(held) = self.held.pop_front()
        {
            self.first += 1;
            let decoded = match &held.decoded {
                State::Ready(decoded) => decoded.as_deref(),
                State::Waits => None,
            };
            self.recorder.write_decoded(&held.record, decoded)?;
        }
        Ok(())
    }

    /// Writes all held records. Submissions that are not decoded by now are written without the decoder's words.
    fn write_all(&mut self) -> io::Result<()> {
        self.close();
        self.waiting.clear();
        self.write(true)
    }
}

impl Sink for Packets {
    fn detail(&self) -> Option<Detail> {
        Some(Detail::Methods)
    }

    fn event(&mut self, event: &Event<'_>) -> io::Result<()> {
        self.describer.event(event);
        Ok(())
    }

    fn arrived(&mut self, record: &Record) -> io::Result<()> {
        let decoded = match record {
            Record::Submission(s) => {
                let number = self.first + self.held.len() as u64;
                self.waiting.entry(s.channel).or_default().push_back(number);
                State::Waits
            }
            Record::Ioctl(i) => State::Ready(Some(Box::new(describe::ioctl(i, self.driver)))),
            _ => State::Ready(None),
        };
        self.held.push_back(HeldRecord {
            record: record.clone(),
            decoded,
        });
        self.write(false)
    }

    fn record(&mut self, record: &Record, _model: &Model) -> io::Result<()> {
        if let Record::Submission(s) = record {
            self.close();
            let waiting = self.waiting.get_mut(&s.channel);
            self.open = waiting.and_then(VecDeque::pop_front);
            self.write(false)?;
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        // Submissions that the pipeline still holds back come later, with what is behind them; so does the mark of idleness.
        self.close();
        self.write(false)?;
        if self.held.is_empty() {
            self.recorder.flush()?;
        }
        match (self.is_read)() {
            true => Ok(()),
            false => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    fn unshown(&self) -> u64 {
        self.recorder.unshown()
    }

    fn finish(&mut self, ledger: &Ledger, model: &Model) -> io::Result<()> {
        self.write_all()?;
        // Graph replays whose end became known after the last submission: no record is left that could carry them.
        if let Some(rest) = self.describer.take() {
            self.recorder.decoded(&rest);
        }
        self.recorder.finish(ledger, model)
    }
}
