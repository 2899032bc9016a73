//! The arithmetic of one channel's counts: numbers that wrap become counts that do not, and readings become bounds of times.
//! Pure: no I/O, no clock.

use std::collections::VecDeque;

/// Source of a channel's counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// The number in its tracking semaphore, and that in its newest entry: exact.
    Semaphore,
    /// GP_GET and GP_PUT, which start again at 0 after this number of entries. From one reading to the next a lap may be missed, so the counts are
    /// the least that there can have been; and they count entries.
    Ring(u32),
}

impl How {
    /// Returns the number by which `now` is ahead of `before`; none where it is behind.
    fn ahead(self, before: u32, now: u32) -> Option<u64> {
        let ahead = now.wrapping_sub(before);
        match self {
            How::Semaphore => (ahead.cast_signed() >= 0).then_some(u64::from(ahead)),
            How::Ring(entries) => Some(u64::from(ahead % entries.max(1))),
        }
    }
}

/// Numbers found by one reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reading {
    /// Time of the reading, ns of one clock.
    pub at_ns: u64,
    /// The number of the newest submission that the GPU has done; of a ring, GP_GET.
    pub done: u32,
    /// The number of the newest submission there is, read after `done`; of a ring, GP_PUT.
    pub submitted: u32,
    /// Entries that the GPU has not fetched.
    pub unfetched: u32,
}

/// Error of a channel whose numbers went backwards: another channel lies in its memory now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Another;

/// Submissions, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Submitted.
    pub submitted: u64,
    /// Done by the GPU.
    pub done: u64,
}

impl Sums {
    /// Adds another's sums.
    pub fn add(&mut self, other: Self) {
        self.submitted += other.submitted;
        self.done += other.done;
    }
}

/// A group of submissions: those up to `number` that were there at one reading, and not at the reading before.
#[derive(Clone, Copy, Debug)]
struct Came {
    /// The time of the reading before; none if there was none.
    after_ns: Option<u64>,
    at_ns: u64,
    number: u64,
}

/// A time between two readings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Age {
    /// Lower bound, ns.
    pub least_ns: u64,
    /// Upper bound, ns; none where it began before the first reading.
    pub most_ns: Option<u64>,
}

/// State of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// All that was submitted is done, and was so at the reading before.
    Idle,
    /// Some work was done since the reading before, or has just come.
    Working,
    /// Work is pending, and nothing was done since the reading before.
    Waiting,
    /// The driver has stopped it after an error: what is pending is never done.
    Stopped,
}

impl State {
    /// All states.
    pub(crate) const ALL: [Self; 4] = [Self::Idle, Self::Working, Self::Waiting, Self::Stopped];

    /// Its word.
    pub fn word(self) -> &'static str {
        match self {
            State::Idle => "idle",
            State::Working => "working",
            State::Waiting => "waiting",
            State::Stopped => "stopped",
        }
    }
}

/// Reason why a count is the least that there can have been, and not exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Doubt {
    /// Counted by GP_GET and GP_PUT.
    Ring,
    /// There may be channels that have not been looked for yet.
    Search,
    /// The newest submission of a channel could not be read at this reading.
    Unread,
    /// A channel's number does not count from its beginning, and something was submitted before the first reading.
    Beginning,
    /// A channel has gone: what it did after its last reading was not seen.
    Gone,
}

impl Doubt {
    /// Its word.
    pub fn word(self) -> &'static str {
        match self {
            Doubt::Ring => "ring",
            Doubt::Search => "search",
            Doubt::Unread => "unread",
            Doubt::Beginning => "beginning",
            Doubt::Gone => "gone",
        }
    }
}

/// The counts of one channel.
#[derive(Clone, Debug)]
pub(crate) struct Count {
    how: How,
    last: Reading,
    /// The counts `done` and `submitted` of `last`, without their wraps.
    done: u64,
    submitted: u64,
    /// The two counts when counting began.
    base: Sums,
    /// True if the number counts from the channel's beginning.
    whole: bool,
    /// Groups of pending submissions, the oldest first: never more than the ring has entries.
    came: VecDeque<Came>,
    /// The reading before the last progress, and the reading that saw it, ns.
    progress: Option<(u64, u64)>,
    /// The last reading that saw something new, ns: the first one, too.
    moved_ns: u64,
    state: State,
}

/// Beginning of the counting of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum From {
    /// Counting begins with the channel's first submission, although some may have been before the first reading.
    Beginning,
    /// Counting begins with the first reading.
    Now,
}

impl Count {
    /// Begins with a reading. `whole`: its numbers count from the channel's beginning.
    pub(crate) fn new(how: How, whole: bool, from: From, first: Reading) -> Self {
        let ahead = how.ahead(first.done, first.submitted).unwrap_or(0);
        let done = u64::from(first.done);
        let submitted = done + ahead;
        let base = match from {
            From::Beginning if whole => Sums::default(),
            _ => Sums { submitted, done },
        };
        let mut count = Self {
            how,
            last: first,
            done,
            submitted,
            base,
            whole,
            came: VecDeque::new(),
            progress: None,
            moved_ns: first.at_ns,
            state: State::Idle,
        };
        if ahead > 0 {
            count.came.push_back(Came {
                after_ns: None,
                at_ns: first.at_ns,
                number: submitted,
            });
            count.state = State::Working;
        }
        count
    }

    /// Takes a reading.
    ///
    /// # Errors
    /// When the numbers went backwards; the counts stay as they were.
    pub(crate) fn take(&mut self, reading: Reading) -> Result<(), Another> {
        let last = self.last;
        let (done, submitted) = match self.how {
            How::Semaphore => {
                let more = self.how.ahead(last.done, reading.done).ok_or(Another)?;
                let pending = self.how.ahead(reading.done, reading.submitted);
                let done = self.done + more;
                (done, done + pending.ok_or(Another)?)
            }
            How::Ring(_) => {
                let more = self.how.ahead(last.submitted, reading.submitted);
                let submitted = self.submitted + more.unwrap_or(0);
                let done = submitted.saturating_sub(u64::from(reading.unfetched));
                (done.max(self.done), submitted)
            }
        };
        if submitted < self.submitted {
            return Err(Another);
        }
        if submitted > self.submitted {
            self.came.push_back(Came {
                after_ns: Some(last.at_ns),
                at_ns: reading.at_ns,
                number: submitted,
            });
        }
        while self.came.front().is_some_and(|c| c.number <= done) {
            self.came.pop_front();
        }
        // If a lap of the ring was missed, the number of pending submissions is not known: keep no more than fit.
        if let How::Ring(entries) = self.how {
            while self.came.len() > entries as usize {
                self.came.pop_front();
            }
        }
        self.state = match () {
            () if done > self.done => State::Working,
            () if done >= submitted => State::Idle,
            // Nothing was pending at the reading before: what has just come has not waited yet.
            () if self.done >= self.submitted => State::Working,
            () => State::Waiting,
        };
        if done > self.done {
            self.progress = Some((last.at_ns, reading.at_ns));
        }
        if (done, submitted) != (self.done, self.submitted) {
            self.moved_ns = reading.at_ns;
        }
        (self.done, self.submitted) = (done, submitted);
        self.last = reading;
        Ok(())
    }

    /// Begins counting anew.
    pub(crate) fn rebase(&mut self) {
        self.base = Sums {
            submitted: self.submitted,
            done: self.done,
        };
    }

    /// Leaves out of the sums the submissions that were counted before, in another way. Returns false where these are more than there were.
    pub(crate) fn without(&mut self, counted: Sums) -> bool {
        let fits = counted.submitted <= self.submitted && counted.done <= self.done;
        self.base.submitted += counted.submitted;
        self.base.done += counted.done;
        fits
    }

    /// The last reading that was taken.
    pub(crate) fn last(&self) -> Reading {
        self.last
    }

    /// The last reading that saw something new, ns: the first one, too.
    pub(crate) fn moved_ns(&self) -> u64 {
        self.moved_ns
    }

    /// Returns the source of the counts.
    pub(crate) fn how(&self) -> How {
        self.how
    }

    /// Returns the sums since counting began.
    pub(crate) fn sums(&self) -> Sums {
        Sums {
            submitted: self.submitted.saturating_sub(self.base.submitted),
            done: self.done.saturating_sub(self.base.done),
        }
    }

    /// Returns the sums since the channel's beginning, where its numbers count from there.
    pub(crate) fn in_all(&self) -> Option<Sums> {
        self.whole.then_some(Sums {
            submitted: self.submitted,
            done: self.done,
        })
    }

    /// Submissions that are not done; of a ring, entries that are not fetched.
    pub(crate) fn pending(&self) -> u64 {
        match self.how {
            How::Semaphore => self.submitted.saturating_sub(self.done),
            How::Ring(_) => u64::from(self.last.unfetched),
        }
    }

    /// Counts the pending submissions that the GPU has not fetched, as far as entries are submissions.
    pub(crate) fn unfetched(&self) -> u64 {
        u64::from(self.last.unfetched).min(self.pending())
    }

    /// Returns the age of the oldest pending submission. It was seen to be pending at the last reading: the least age does not grow with the time
    /// since.
    pub(crate) fn oldest(&self, now_ns: u64) -> Option<Age> {
        let oldest = self.came.front().filter(|_| self.pending() > 0)?;
        Some(Age {
            least_ns: self.last.at_ns.saturating_sub(oldest.at_ns),
            most_ns: oldest.after_ns.map(|after| now_ns.saturating_sub(after)),
        })
    }

    /// The two readings, ns, between which the channel last made progress.
    pub(crate) fn progress(&self) -> Option<(u64, u64)> {
        self.progress
    }

    /// Returns the state of the channel.
    pub(crate) fn state(&self) -> State {
        self.state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64, done: u32, submitted: u32) -> Reading {
        Reading {
            at_ns: seconds * 1_000_000_000,
            done,
            submitted,
            unfetched: 0,
        }
    }

    fn sums(submitted: u64, done: u64) -> Sums {
        Sums { submitted, done }
    }

    #[test]
    fn numbers_that_wrap() {
        let from = u32::MAX - 9;
        let mut count = Count::new(How::Semaphore, true, From::Now, at(0, from, from + 4));
        assert_eq!(count.sums(), sums(0, 0));
        count.take(at(1, from + 8, 3)).unwrap();
        assert_eq!((count.sums(), count.pending()), (sums(9, 8), 5));
        count.take(at(2, 3, 3)).unwrap();
        assert_eq!((count.sums(), count.pending()), (sums(9, 13), 0));
        // Four of those that were done had been submitted before counting began.
        let all = u64::from(from) + 13;
        assert_eq!(count.in_all(), Some(sums(all, all)));
        for n in 1..8 {
            let number = 3_u32.wrapping_add(n << 30);
            count.take(at(2 + u64::from(n), number, number)).unwrap();
        }
        assert_eq!(count.sums().submitted, 9 + (7 << 30));
    }

    #[test]
    fn from_the_beginning_or_from_now() {
        let first = at(0, 40, 43);
        let of = |whole, from| Count::new(How::Semaphore, whole, from, first);
        assert_eq!(of(true, From::Beginning).sums(), sums(43, 40));
        assert_eq!(of(true, From::Now).sums(), sums(0, 0));
        assert_eq!(of(true, From::Now).in_all(), Some(sums(43, 40)));
        // What the number was at the channel's beginning is not known.
        assert_eq!(of(false, From::Beginning).sums(), sums(0, 0));
        assert_eq!(of(false, From::Beginning).in_all(), None);
    }

    #[test]
    fn another_channel_does_not_count_backwards() {
        let mut count = Count::new(How::Semaphore, true, From::Now, at(0, 40, 43));
        count.take(at(1, 50, 53)).unwrap();
        let before = (count.sums(), count.last());
        for other in [at(2, 49, 60), at(2, 0, 3), at(2, 51, 50), at(2, 50, 52)] {
            assert_eq!(count.take(other), Err(Another), "{other:?}");
            assert_eq!((count.sums(), count.last()), before);
        }
        count.take(at(2, 50, 53)).unwrap();
    }

    #[test]
    fn the_age_of_the_oldest_is_bounded_by_the_readings() {
        let second = 1_000_000_000;
        let age = |count: &Count, now: u64| count.oldest(now * second);
        let between = |least: u64, most: Option<u64>| {
            Some(Age {
                least_ns: least * second,
                most_ns: most.map(|m| m * second),
            })
        };
        let mut count = Count::new(How::Semaphore, true, From::Now, at(10, 5, 7));
        assert_eq!(age(&count, 10), between(0, None));
        count.take(at(12, 5, 9)).unwrap();
        assert_eq!(count.state(), State::Waiting);
        assert_eq!(age(&count, 12), between(2, None));
        // It may have been done just behind the reading.
        assert_eq!(age(&count, 60), between(2, None));
        // The two of the first reading are done: the next came between 10 and 12.
        count.take(at(13, 7, 9)).unwrap();
        assert_eq!(count.state(), State::Working);
        assert_eq!(age(&count, 13), between(1, Some(3)));
        assert_eq!(count.progress(), Some((12 * second, 13 * second)));
        count.take(at(14, 9, 9)).unwrap();
        assert_eq!((age(&count, 14), count.state()), (None, State::Working));
        count.take(at(15, 9, 9)).unwrap();
        assert_eq!(count.state(), State::Idle);
        assert_eq!(count.progress(), Some((13 * second, 14 * second)));
        // What has just come is work, and not yet a wait.
        count.take(at(16, 9, 10)).unwrap();
        assert_eq!(count.state(), State::Working);
        count.take(at(17, 9, 11)).unwrap();
        assert_eq!(count.state(), State::Waiting);
        // However long it waits: no more is kept than a ring has entries.
        for n in 0..1000 {
            count.take(at(18 + u64::from(n), 9, 12 + n)).unwrap();
        }
        assert_eq!((count.pending(), count.came.len()), (1002, 1002));
        assert_eq!(age(&count, 1017), between(1001, Some(1002)));
    }

    #[test]
    fn a_ring_is_counted_up_to_a_lap() {
        let ring = |seconds, get, put, unfetched| Reading {
            unfetched,
            ..at(seconds, get, put)
        };
        let mut count = Count::new(
            How::Ring(1024),
            false,
            From::Beginning,
            ring(0, 1000, 1010, 10),
        );
        assert_eq!((count.sums(), count.pending()), (sums(0, 0), 10));
        assert_eq!(count.in_all(), None);
        count.take(ring(1, 6, 16, 10)).unwrap();
        assert_eq!((count.sums(), count.pending()), (sums(30, 30), 10));
        assert_eq!(count.state(), State::Working);
        count.take(ring(2, 16, 16, 0)).unwrap();
        assert_eq!((count.sums(), count.pending()), (sums(30, 40), 0));
        // A whole lap is not seen.
        count.take(ring(3, 16, 16, 0)).unwrap();
        assert_eq!(count.sums(), sums(30, 40));
        for n in 0..5000 {
            let put = (17 + n) % 1024;
            count.take(ring(4 + u64::from(n), 15, put, 5)).unwrap();
        }
        assert!(count.came.len() <= 1024);
    }
}
