//! A recording for programs that have no decoder, such as Wireshark: to each submission's message it adds what nvcap's decoder says of
//! it (`capture::decoded`). Else it is the same: the same records in the same order.
//!
//! A record is written when it is known what the decoder says of it: a submission when the next one is decoded, or at a flush. Records
//! that came behind it wait for that. They come here twice: when the source gives them, and submissions once more when their turn
//! has come; those of one channel keep their order, so the two are matched by the channel.

mod describe;
mod values;

use std::collections::{HashMap, VecDeque};
use std::io;

use super::recorder::Recorder;
use super::{Detail, Sink};
use crate::capture::decoded::Decoded;
use crate::decode::event::Event;
use crate::driver::{Model, Version};
use crate::ledger::Ledger;
use crate::record::{ChannelId, Record};

use describe::Describer;

/// See the module.
pub(crate) struct Packets {
    recorder: Recorder,
    describer: Describer,
    driver: Option<Version>,
    /// Records in the order of their arrival.
    held: VecDeque<Held>,
    /// The number of the first one that is held, counted over the whole trace.
    first: u64,
    /// The submissions that the decoder was not given yet, by their numbers.
    waiting: HashMap<ChannelId, VecDeque<u64>>,
    /// The number of the submission that was decoded last, while it is held.
    open: Option<u64>,
    /// Whether somebody still reads.
    is_read: Box<dyn FnMut() -> bool + Send>,
}

struct Held {
    record: Record,
    decoded: State,
}

enum State {
    /// It is a submission that is not decoded yet.
    Waits,
    Ready(Option<Box<Decoded>>),
}

impl Packets {
    /// Writes by way of `recorder`. `driver` is the driver's release, where known. `is_read` is asked when there is nothing to
    /// write: without a reader the trace ends.
    pub(crate) fn new(
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

    /// Nothing more is added to the submission that was decoded last.
    fn close(&mut self) {
        let Some(number) = self.open.take() else {
            return;
        };
        let at = usize::try_from(number - self.first).unwrap_or(usize::MAX);
        if let Some(held) = self.held.get_mut(at) {
            held.decoded = State::Ready(self.describer.take().map(Box::new));
        }
    }

    /// Writes what is ready, or all.
    fn write(&mut self, all: bool) -> io::Result<()> {
        let is_ready = |held: &Held| all || matches!(held.decoded, State::Ready(_));
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

    /// All that came is decoded, as far as it will be.
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
        self.held.push_back(Held {
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
        self.write_all()?;
        self.recorder.flush()?;
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
        // Replays of graphs of which no submission came any more.
        if let Some(rest) = self.describer.take() {
            self.recorder.decoded(&rest);
        }
        self.recorder.finish(ledger, model)
    }
}
