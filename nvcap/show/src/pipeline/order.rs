//! Records in the order of their times.
//!
//! A live source gives records nearly in that order, but not quite. Records of several processors come through one buffer
//! in the order of their reservations, some microseconds after their times. An ioctl has the time of its entry and comes at
//! its return. Entries that a full buffer left in the ring are fetched by nvcap, with a time later than those of records
//! that still wait in the buffer.
//!
//! So records wait here until one with a time [`WINDOW_NS`] later has come, and leave by time. It follows:
//!
//! - Two records whose times differ and that come within the window of each other leave by time.
//! - A record that comes later than the window leaves at once. The sinks see that its time is before that of a record
//!   already shown and say so (`out_of_order`).
//! - Submissions of a channel leave in the order in which they came, which is the ring's, whatever their times. So do a
//!   channel's announcement and its submissions, and the start, exec and end of a process and the records before and behind
//!   them.
//! - An image of memory leaves before everything that waits: it holds contents from before the trace. So do names of kernels and
//!   time stamps, which concern records that wait. Of a process that has the number of another one, an image leaves behind that one's end.
//! - The stack at a doorbell leaves before the submissions of the doorbell.
//! - A record without a time stays behind the records that came before it.
//!
//! A record of which more is awaited, such as a submission whose work has not ended, waits on with all behind it, where the order has patience.
//!
//! Waiting is bounded: in time by the window and the patience while records come and by [`Order::take_idle`] when none do, in bytes by
//! [`MOST_BYTES`]. Knows records alone: no source, no sink.

use std::collections::{BTreeMap, VecDeque};

use nvcap_decode::record::{ChannelId, Life, Process, Record};
use nvcap_decode::wire::hash::NumberMap;

/// Time for which a record waits for earlier ones, in time of the records, ns.
pub const WINDOW_NS: u64 = 100_000_000;
/// Time for which a record waits for earlier ones where the GPU's time stamps are awaited, ns: a submission may be in its ring for that long before
/// the GPU works on it.
pub const GPU_TIME_WINDOW_NS: u64 = 1_000_000_000;
/// Least time for which a record waits where the trace was attached to a process, ns. In its first moments a record waits as long as the trace is
/// old, so that the first line comes soon.
const AT_FIRST_NS: u64 = 10_000_000;
/// The most bytes of waiting records: beyond that they leave before their window is over.
pub(super) const MOST_BYTES: usize = 64 << 20;
/// Number of channels and processes that are remembered before those without waiting records are forgotten. Where most have some, all are looked
/// through again when there are twice as many: each is looked at twice, on average.
const MOST_REMEMBERED: usize = 4096;

/// Records that wait to leave in the order of their times.
#[derive(Debug)]
pub(super) struct Order {
    window_ns: u64,
    /// Longest time for which a record waits of which more is awaited, ns.
    patience_ns: u64,
    most_bytes: usize,
    is_held: bool,
    held: RecordsByTime,
    held_bytes: usize,
    /// The latest time of a record so far.
    newest: u64,
    has_begun: bool,
    /// Time at which the trace began, if it began with a process that ran already, ns.
    attached: Option<u64>,
    /// Time up to which everything has left.
    left: u64,
    /// Times that submissions and announcements of a channel must not precede.
    channels: NumberMap<ChannelId, u64>,
    processes: NumberMap<u32, Bounds>,
    /// Number of channels and processes that are remembered before they are looked through.
    most_remembered: usize,
    /// Records that leave next.
    first: VecDeque<Record>,
}

/// The waiting records, by time, then by arrival.
#[derive(Debug, Default)]
struct RecordsByTime {
    /// Records that came in this order, as nearly all do.
    in_order: VecDeque<(Place, Record)>,
    /// Records that came behind later ones.
    behind: BTreeMap<Place, Record>,
    arrived: u64,
}

/// Time, and number of arrival.
type Place = (u64, u64);

impl RecordsByTime {
    fn put(&mut self, time: u64, record: Record) {
        let place = (time, self.arrived);
        self.arrived += 1;
        match self.in_order.back() {
            Some((last, _)) if *last > place => {
                self.behind.insert(place, record);
            }
            _ => self.in_order.push_back((place, record)),
        }
    }

    /// The first one, with its time.
    fn first(&self) -> Option<(u64, &Record)> {
        let in_order = self.in_order.front().map(|(place, record)| (place, record));
        let behind = self.behind.first_key_value();
        let first = in_order
            .into_iter()
            .chain(behind)
            .min_by_key(|(place, _)| **place);
        first.map(|(place, record)| (place.0, record))
    }

    /// Takes the first one, with its time.
    fn take(&mut self) -> Option<(u64, Record)> {
        let is_next = |behind: &Place| self.in_order.front().is_none_or(|(p, _)| behind < p);
        let (place, record) = match self.behind.first_entry() {
            Some(behind) if is_next(behind.key()) => behind.remove_entry(),
            _ => self.in_order.pop_front()?,
        };
        Some((place.0, record))
    }
}

/// Times that records of a process must not go before.
#[derive(Clone, Copy, Debug, Default)]
struct Bounds {
    /// The latest start, exec or end of the process: for all its records.
    life: u64,
    /// The latest of those that ended its work: its memory is another's from then on.
    end: u64,
    /// Its latest record: for the next exec or end.
    all: u64,
}

impl Default for Order {
    fn default() -> Self {
        Self::new(WINDOW_NS, MOST_BYTES)
    }
}

impl Order {
    /// Makes an order that holds records for this long, and those of which more is awaited for up to `patience_ns`.
    pub(super) fn within(window_ns: u64, patience_ns: u64) -> Self {
        Self {
            patience_ns,
            ..Self::new(window_ns, MOST_BYTES)
        }
    }

    /// Makes an order that holds records for `window_ns`, and `most_bytes` of them.
    #[must_use]
    pub(super) fn new(window_ns: u64, most_bytes: usize) -> Self {
        Self {
            window_ns,
            patience_ns: 0,
            most_bytes,
            is_held: false,
            held: RecordsByTime::default(),
            held_bytes: 0,
            newest: 0,
            has_begun: false,
            attached: None,
            left: 0,
            channels: NumberMap::default(),
            processes: NumberMap::default(),
            most_remembered: MOST_REMEMBERED,
            first: VecDeque::new(),
        }
    }

    /// Takes the next record.
    pub(super) fn put(&mut self, record: Record) {
        let end = self.end_before(&record);
        if end.is_none()
            && matches!(
                record,
                Record::QmdCopy(_) | Record::Kernel(_) | Record::Stamps(_)
            )
        {
            self.held_bytes += record.size();
            self.first.push_back(record);
            return;
        }
        let key = end.unwrap_or_else(|| self.place(&record));
        // Records of the machine's GPUs come first, of any trace.
        if !self.has_begun && !matches!(record, Record::Gpu(_)) {
            self.has_begun = true;
            self.attached = is_present(&record).then_some(key);
        }
        self.newest = self.newest.max(key);
        self.held_bytes += record.size();
        self.held.put(key, record);
        if self.channels.len() + self.processes.len() > self.most_remembered {
            self.forget();
        }
    }

    /// Returns the place of an image of memory of a process that has the number of another one, whose end waits: that of the end.
    fn end_before(&self, record: &Record) -> Option<u64> {
        let Record::QmdCopy(copy) = record else {
            return None;
        };
        let end = self.processes.get(&copy.at.pid)?.end;
        (end > self.left && copy.at.time_ns > end).then_some(end)
    }

    /// Takes the next record that has waited long enough. `is_awaited`: more is to be known of it.
    pub(super) fn take(&mut self, is_awaited: impl FnMut(&Record) -> bool) -> Option<Record> {
        self.take_behind(true, is_awaited)
    }

    /// The next record of which nothing more is awaited, however long it has waited for earlier ones: for a source that is idle.
    pub(super) fn take_idle(&mut self, is_awaited: impl FnMut(&Record) -> bool) -> Option<Record> {
        self.take_behind(false, is_awaited)
    }

    fn take_behind(
        &mut self,
        window: bool,
        mut is_awaited: impl FnMut(&Record) -> bool,
    ) -> Option<Record> {
        if let Some(record) = self.first.pop_front() {
            self.held_bytes -= record.size();
            return Some(record);
        }
        self.is_held = false;
        let (key, record) = self.held.first()?;
        let waited = self.newest.saturating_sub(key);
        let is_full = self.held_bytes > self.most_bytes;
        let in_window = window && waited < self.window(key);
        self.is_held = !is_full && !in_window && waited < self.patience_ns && is_awaited(record);
        if self.is_held || in_window && !is_full {
            return None;
        }
        self.leave()
    }

    /// Returns the time for which a record with this time waits, ns.
    fn window(&self, key: u64) -> u64 {
        let age = self.attached.map(|began| key.saturating_sub(began));
        let at_first = age.filter(|_| self.window_ns <= WINDOW_NS);
        at_first.map_or(self.window_ns, |age| {
            self.window_ns.min(age.max(AT_FIRST_NS))
        })
    }

    /// Tells whether the first record waits for what is awaited of it alone, and all others behind it.
    pub(super) fn is_held(&self) -> bool {
        self.is_held
    }

    /// The next record, however long it has waited: for a source at its end.
    pub(super) fn take_all(&mut self) -> Option<Record> {
        match self.first.pop_front() {
            Some(record) => {
                self.held_bytes -= record.size();
                Some(record)
            }
            None => self.leave(),
        }
    }

    fn leave(&mut self) -> Option<Record> {
        let (key, record) = self.held.take()?;
        self.left = self.left.max(key);
        self.held_bytes -= record.size();
        Some(record)
    }

    /// The time by which a record is sorted: its own, unless it must not go before another.
    fn place(&mut self, record: &Record) -> u64 {
        let at = record.at();
        let own = match at.time_ns {
            0 => self.newest,
            time => time,
        };
        let bounds = self.processes.entry(at.pid).or_default();
        let key = match record {
            Record::Process(Process { life, .. }) if is_turn(life) => {
                bounds.life = own.max(bounds.all).max(bounds.life);
                if life.ends_work() {
                    bounds.end = bounds.life;
                }
                bounds.life
            }
            Record::Submission(s) => {
                let last = self.channels.entry(s.channel).or_default();
                *last = own.max(*last).max(bounds.life);
                *last
            }
            Record::Skipped(p) => {
                let last = self.channels.entry(p.channel).or_default();
                *last = own.max(*last).max(bounds.life);
                *last
            }
            Record::Channel(c) => {
                let last = self.channels.entry(c.id).or_default();
                *last = own.max(*last).max(bounds.life);
                *last
            }
            // Before the submissions of the same doorbell, which have the same time.
            Record::Stack(_) => own.saturating_sub(1).max(bounds.life),
            Record::Process(_)
            | Record::Ioctl(_)
            | Record::Mapping(_)
            | Record::Unmapping(_)
            | Record::Gpu(_)
            | Record::QmdCopy(_)
            | Record::Kernel(_)
            | Record::Stamps(_)
            | Record::Snapshot(_)
            | Record::Fault(_)
            | Record::Samples(_)
            | Record::Switches(_)
            | Record::Loss(_) => own.max(bounds.life),
        };
        bounds.all = bounds.all.max(key);
        key
    }

    /// Forgets bounds of channels and processes without waiting records.
    fn forget(&mut self) {
        let left = self.left;
        self.channels.retain(|_, last| *last > left);
        self.processes.retain(|_, b| b.life.max(b.all) > left);
        let kept = self.channels.len() + self.processes.len();
        self.most_remembered = MOST_REMEMBERED.max(2 * kept);
    }
}

/// Tells whether a record says that a process is there which ran before the trace.
fn is_present(record: &Record) -> bool {
    matches!(record, Record::Process(p) if matches!(p.life, Life::Present { .. }))
}

/// Tells whether the other records of a process stay before or behind this event in its life.
fn is_turn(life: &Life) -> bool {
    life.ends_work() || matches!(life, Life::Present { .. })
}

#[cfg(test)]
mod tests;
