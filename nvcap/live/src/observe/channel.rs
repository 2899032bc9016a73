//! One channel followed from outside: looks at its ring, fetches new entries, and passes on only those that `proof` accepts.

mod begin;

use nvcap_decode::wire::release::{self, Release};
use std::{io, ops::AddAssign};

use super::{
    pace::{LONGEST_NS, Pace},
    phase::{Again, Outcome, Phase, Tempo},
    proof::{LapCheck, LapSentinel, PayloadSequence, Words},
    reuse::Allocator,
    semaphore_peek::SemaphorePeek,
};
use nvcap_decode::record::{Channel, Record};
use nvcap_process::memory::{ring, scan};
pub(crate) use nvcap_process::procfs::mem::ReadMemory;

/// Faults that were met while observing. Each is counted where it is found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Faults {
    /// Number of times that a ring went round between two looks.
    pub laps: u64,
    /// Number of entries that were overwritten while they were read.
    pub overwritten: u64,
    /// Number of entries whose pushbuffer memory was used again before it was read.
    pub reused: u64,
    /// Number of entries with words that no client writes.
    pub unparsable: u64,
    /// Number of times that a channel's payloads jumped to another number, though no ring position is missing.
    pub jumps: u64,
    /// Number of times that a ring may have gone round more often than was counted.
    pub rounds_unseen: u64,
}

impl AddAssign for Faults {
    fn add_assign(&mut self, more: Self) {
        self.laps += more.laps;
        self.overwritten += more.overwritten;
        self.reused += more.reused;
        self.unparsable += more.unparsable;
        self.jumps += more.jumps;
        self.rounds_unseen += more.rounds_unseen;
    }
}

/// Result of a look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Looked {
    /// Number of entries since the look before.
    pub fresh: u64,
    /// Time since the last look or peek before this one, ns.
    pub elapsed: u64,
    /// True if the ring was not read, because its semaphore showed that it can wait.
    pub peeked: bool,
}

/// Permission for a look to leave the ring alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadRing {
    /// The ring may be left alone if a peek shows that nothing is urgent.
    IfNeeded,
    /// The ring must be read.
    Always,
}

/// Environment of a look: the memory and the clock that it reads, and the places for its results.
#[derive(Debug)]
pub(crate) struct Context<'a, M, C> {
    /// Memory of a process that has the ring.
    pub memory: &'a M,
    /// The time, ns.
    pub clock: &'a C,
    /// Receives the new records.
    pub to: &'a mut Vec<Record>,
    /// Counts of faults.
    pub faults: &'a mut Faults,
}

/// Position at which following begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begin {
    /// The ring's first entry: the process was born under observation.
    First,
    /// The present GP_PUT.
    Here,
}

/// Count of a channel's entries that carry the expected next payload, among those whose payloads were followed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Links {
    /// Number of entries whose payload followed the one before.
    pub follow: u64,
    /// Number of entries whose payloads were followed.
    pub of: u64,
}

/// A channel that is followed.
#[derive(Debug)]
pub(crate) struct Follower {
    /// Channel as it was announced.
    pub announced: Channel,
    /// Pace of the channel.
    pub pace: Pace,
    phase: Phase,
    /// Time of the last look, ns.
    pub looked: u64,
    /// Position of the first entry that was not in the ring at that time.
    pub(super) absent_from: u64,
    /// Time of the last look or peek, ns.
    pub peeked: u64,
    /// Position behind the newest entry that is known, read or not.
    pub(super) seen: u64,
    /// True if a look found that the ring had gone round, and was interrupted before it could count the rounds.
    lapped_unread: bool,
    pub(super) ring: u64,
    pub(super) size: u32,
    pub(super) userd: u64,
    /// Position of the next entry to read, counted without wrapping.
    pub(super) done: u64,
    pub(super) lap_sentinel: Option<LapSentinel>,
    /// Time at which the ring was last known not to have gone round, ns. At that time a look found the lap sentinel unchanged, or new
    /// entries were read.
    pub(super) kept: u64,
    pub(super) payloads: PayloadSequence,
    pub(super) links: Links,
    pub(super) words: Words,
    pub(super) allocator: Allocator,
    semaphore_peek: SemaphorePeek,
    pub(super) extended: u64,
    /// Buffer for the bytes that are being read.
    pub(super) buffer: Vec<u8>,
}

/// Makes the error for memory that can be read and is no ring.
fn no_ring(put: u32, size: u32) -> io::Error {
    io::Error::other(format!("GP_PUT is {put} in a ring of {size} entries"))
}

/// Tells whether the error means that there is no ring, so that GP_PUT means nothing.
pub(super) fn is_cleared(e: &io::Error) -> bool {
    e.kind() == io::ErrorKind::Other && e.raw_os_error().is_none()
}

impl Follower {
    pub(super) fn mask(&self) -> u64 {
        u64::from(self.size) - 1
    }

    pub(super) fn index(&self, position: u64) -> u32 {
        (position & self.mask()) as u32
    }

    pub(super) fn get_put(&self, memory: &impl ReadMemory) -> io::Result<(u32, u32)> {
        let (get, put) = scan::get_put(memory, self.userd)?;
        if put < self.size {
            Ok((get, put))
        } else {
            Err(no_ring(put, self.size))
        }
    }

    /// True if most looks at the channel need not read its ring.
    pub(crate) fn peeks(&self) -> bool {
        self.semaphore_peek.trusted()
    }

    /// Returns the current phase of the channel.
    pub(crate) fn phase(&self) -> Phase {
        self.phase
    }

    /// Time from one look or peek to the next, ns.
    #[cfg(test)]
    pub(crate) fn interval(&self) -> u64 {
        self.phase.interval(self.tempo())
    }

    /// Returns the time of the next look at the channel.
    pub(crate) fn again(&self) -> Again {
        self.phase.again(self.tempo())
    }

    fn tempo(&self) -> Tempo {
        Tempo {
            ring: self.size,
            by_rate_ns: self.pace.interval(),
            semaphore: self.semaphore_peek,
            making_releases: self.unused_release().is_some(),
            turns: self.allocator.turns(),
        }
    }

    /// Returns the release that the making of a channel leaves, if nothing else has used the channel.
    fn unused_release(&self) -> Option<Release> {
        self.payloads.last().filter(|_| !self.phase.is_used())
    }

    /// Returns the number that the GPU has reached, read from the semaphore that each entry of this channel releases.
    pub(super) fn done_by_gpu(&self, memory: &impl ReadMemory) -> Option<u32> {
        let own = self.payloads.own().filter(|_| self.has_payloads());
        let at = own.or(self.unused_release().map(|r| r.address))?.0;
        let mut number = [0; 4];
        memory.read_bytes(at, &mut number).ok()?;
        Some(u32::from_le_bytes(number))
    }

    /// True if the ring need not be read now.
    fn can_wait(&mut self, number: Option<u32>, now: u64) -> bool {
        let newest = self.unused_release().or(self.payloads.newest());
        let Some((number, newest)) = number.zip(newest) else {
            return false;
        };
        let ahead = number.wrapping_sub(newest.payload);
        self.phase.peeked(ahead.cast_signed() > 0);
        let since = now.saturating_sub(self.looked);
        self.phase.can_wait(ahead, since, self.tempo())
    }

    /// Looks at the channel when its turn comes.
    #[cfg(test)]
    pub(crate) fn look(
        &mut self,
        memory: &impl ReadMemory,
        clock: &impl Fn() -> u64,
        to: &mut Vec<Record>,
        faults: &mut Faults,
    ) -> io::Result<Looked> {
        let mut context = Context {
            memory,
            clock,
            to,
            faults,
        };
        self.look_with(&mut context, ReadRing::IfNeeded)
    }

    /// Looks at the channel. New entries go to the records; faults are counted.
    ///
    /// # Errors
    /// When the ring cannot be read any more, because the process is gone or has unmapped it.
    pub(crate) fn look_with(
        &mut self,
        with: &mut Context<'_, impl ReadMemory, impl Fn() -> u64>,
        read: ReadRing,
    ) -> io::Result<Looked> {
        let (mut now, memory) = ((with.clock)(), with.memory);
        let number = self.done_by_gpu(memory);
        let before = std::mem::replace(&mut self.peeked, now);
        let since = now.saturating_sub(before);
        if read == ReadRing::IfNeeded && self.can_wait(number, now) {
            return Ok(Looked {
                peeked: true,
                ..Looked::default()
            });
        }
        let laps = with.faults.laps;
        // What the last look left behind is known to have come.
        let mut known = self.seen;
        let mut read = self.get_put(memory);
        // What the look finds is said to be there then: one that was interrupted is no look of that time.
        for _ in 0..AGAIN {
            let after = (with.clock)();
            if after.saturating_sub(now) <= LOOK_NS {
                break;
            }
            now = after;
            read = self.get_put(memory);
        }
        let looked = read.and_then(|(get, put)| {
            let passed = u64::from(put).wrapping_sub(self.done) & self.mask();
            known = self.done + passed;
            let position = Position {
                now,
                number,
                get,
                passed,
                since,
            };
            self.look_at(with, position)
        });
        if looked.is_err() {
            // Nothing was seen: since the look before, anything may have come.
            self.peeked = before;
        }
        if looked.as_ref().is_err_and(|e| !is_cleared(e)) {
            self.seen = known;
            self.lapped_unread |= with.faults.laps > laps;
        }
        looked
    }

    /// Tells whether GP_PUT is where the last look left it. This proves that nothing came, unless the process can have filled the
    /// whole ring since: call it only where that is impossible.
    ///
    /// # Errors
    /// As for [`look_with`](Self::look_with).
    pub(crate) fn stands(&mut self, memory: &impl ReadMemory, now: u64) -> io::Result<bool> {
        let (_, put) = self.get_put(memory)?;
        let stands = !self.phase.is_behind() && put == self.index(self.done);
        if stands {
            (self.looked, self.peeked) = (now, now);
        }
        Ok(stands)
    }

    /// Ends the channel, because no process has the ring any more. Entries that are known and were not read are counted as missing.
    pub(crate) fn end(&mut self, now: u64, to: &mut Vec<Record>) {
        if std::mem::take(&mut self.lapped_unread) {
            self.report_rounds(now, to);
        }
        let unread = self.seen.saturating_sub(self.done);
        self.lose(now, Some((self.done, unread)), to);
        self.done += unread;
    }

    /// Reads the new entries up to a position of the ring.
    fn look_at(
        &mut self,
        with: &mut Context<'_, impl ReadMemory, impl Fn() -> u64>,
        position: Position,
    ) -> io::Result<Looked> {
        let memory = with.memory;
        let Position {
            now,
            number,
            get,
            passed,
            since,
        } = position;
        let elapsed = now.saturating_sub(self.looked);
        // A long row in pieces: while the first is read, the next need not wait to be overwritten.
        let fresh = passed.min(PIECE);
        let read = if fresh == 0 {
            self.look_at_still(memory, now, number)?
        } else {
            self.read_fresh(memory, fresh)?
        };
        let fresh = match read {
            Reading::Still => Ok(0),
            Reading::Lapped => Err(Lap::Certain),
            Reading::Fresh(entries, doubt) => {
                let mut extended = self.extended;
                let segments =
                    ring::segments(memory, &entries, &mut extended, &mut self.buffer, |a| a);
                let releases = || segments.iter().map(|s| release::at_end(&s.bytes));
                if doubt == Doubt::Yes && !self.payloads.continues(&releases().collect::<Vec<_>>())
                {
                    Err(Lap::Possible)
                } else {
                    let begun = Begun {
                        now,
                        get: Some(get),
                        extended,
                    };
                    if self.deliver(with, begun, segments)? {
                        Ok(fresh)
                    } else {
                        Err(Lap::Possible)
                    }
                }
            }
        };
        let (fresh, left) = match fresh {
            Ok(fresh) => (passed, passed - fresh),
            Err(lap) => (self.resync(with, lap)?, 0),
        };
        // What was left behind last time did not come since.
        let end = self.done + left;
        let came = end.saturating_sub(self.seen);
        self.seen = end;
        self.absent_from = end;
        if left == 0 {
            self.semaphore_peek
                .learn(number, self.payloads.newest(), self.size);
        }
        let looked = Looked {
            fresh,
            elapsed: since,
            peeked: false,
        };
        self.looked = now;
        self.phase.looked(Outcome {
            came: looked.fresh > 0,
            left: left > 0,
            used: self.done > MAKING,
        });
        self.pace.looked(came, elapsed);
        Ok(looked)
    }

    /// Handles an unchanged GP_PUT: either nothing came, or exactly as many entries as the ring holds.
    fn look_at_still(
        &mut self,
        memory: &impl ReadMemory,
        now: u64,
        number: Option<u32>,
    ) -> io::Result<Reading> {
        // Not even the fastest program fills the ring in this time, nor is a slot used again before the GPU has done
        // anything. Were it otherwise, the lap sentinel would tell later.
        let newest = self.payloads.last().map(|r| r.payload);
        let quick = now.saturating_sub(self.looked) < self.pace.lap_time();
        if (quick || number.is_some() && number == newest)
            && now.saturating_sub(self.kept) < LONGEST_NS
        {
            return Ok(Reading::Still);
        }
        let slot = self.done.wrapping_sub(1) & self.mask();
        match &self.lap_sentinel {
            Some(keeper) => {
                let entry = ring::entries(memory, self.ring(), slot, slot + 1)?[0];
                if self.compare(memory, keeper, entry) == LapCheck::No {
                    return Ok(Reading::Lapped);
                }
            }
            None => {
                if self.went_round(memory)? {
                    return Ok(Reading::Lapped);
                }
            }
        }
        self.kept = now;
        Ok(Reading::Still)
    }

    pub(super) fn compare(
        &self,
        memory: &impl ReadMemory,
        keeper: &LapSentinel,
        entry: u64,
    ) -> LapCheck {
        let again = (!keeper.tail.is_empty() && entry == keeper.entry)
            .then(|| ring::bytes(memory, keeper.tail_at, keeper.tail.len()))
            .flatten();
        keeper.compare(entry, again.as_deref())
    }

    /// Reads the new entries and the one before them, which shows whether the ring has gone round.
    fn read_fresh(&mut self, memory: &impl ReadMemory, fresh: u64) -> io::Result<Reading> {
        let end = self.done + fresh;
        let Some(keeper) = &self.lap_sentinel else {
            if self.went_round(memory)? {
                return Ok(Reading::Lapped);
            }
            let entries = ring::entries(memory, self.ring(), self.done, end)?;
            return Ok(Reading::Fresh(entries, Doubt::No));
        };
        // Positions of one round less have the same slots.
        let before = self.done + u64::from(self.size) - 1;
        let mut entries = ring::entries(memory, self.ring(), before, before + 1 + fresh)?;
        if entries[0] == 0 && keeper.entry != 0 && self.index(end) == 0 {
            // Its owner has given it up: all zero, GP_PUT too.
            return Err(io::Error::other("the ring was cleared"));
        }
        let kept = self.compare(memory, keeper, entries[0]);
        entries.remove(0);
        Ok(match kept {
            LapCheck::No => Reading::Lapped,
            LapCheck::Yes => Reading::Fresh(entries, Doubt::No),
            LapCheck::Doubtful => Reading::Fresh(entries, Doubt::Yes),
        })
    }
}

/// Progress of a ring when a look at it began.
#[derive(Clone, Copy, Debug)]
struct Position {
    now: u64,
    /// The semaphore's payload.
    number: Option<u32>,
    get: u32,
    /// Number of entries since the look before.
    passed: u64,
    /// Time since the look or peek before, ns.
    since: u64,
}

/// Begin of a reading: its time and the ring's state.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begun {
    pub now: u64,
    pub get: Option<u32>,
    /// Upper address bits behind the last entry of the reading.
    pub extended: u64,
}

/// Result of reading a ring.
#[derive(Debug, PartialEq, Eq)]
enum Reading {
    /// No new entries.
    Still,
    /// New entries.
    Fresh(Vec<u64>, Doubt),
    /// The ring has gone round.
    Lapped,
}

/// The most entries of a channel that only the driver has used yet.
const MAKING: u64 = 8;
/// Longest time from the begin of a look until it has read GP_PUT, ns (`gpu_time/rules.rs` relies on it). A look that takes longer
/// begins again, up to this many times.
const LOOK_NS: u64 = 10_000;
const AGAIN: usize = 4;
/// Number of entries that are read in one piece.
const PIECE: u64 = 256;

/// Reason why reading starts again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lap {
    /// The ring went round.
    Certain,
    /// The ring may have gone round: the opposite cannot be shown.
    Possible,
}

/// Possibility that the ring has gone round unnoticed, because entries look alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doubt {
    No,
    Yes,
}
