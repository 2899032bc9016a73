//! One channel followed from outside: looks at its ring, fetches what is new, and lets nothing through that `proof`
//! does not let through.

use std::io;

use super::{
    fetch,
    pace::{FASTEST_NS, LONGEST_NS, Pace},
    proof::{self, Allocator, Chain, Keeper, Kept, Release, Verdict, Words},
};
use crate::record::{Channel, Record, Segment};
use crate::source::memory::{find::GP_GET, process::Peek};

/// What observing found wrong, each counted where it is found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Times that a ring went round between two looks.
    pub laps: u64,
    /// Entries that were overwritten while they were read.
    pub overwritten: u64,
    /// Entries whose pushbuffer memory was used again before it was read.
    pub reused: u64,
    /// Entries whose words no client writes.
    pub unparsable: u64,
    /// Times that payloads went on from another one with no ring position missing.
    pub jumps: u64,
    /// Times that a ring may have gone round more often than was counted.
    pub rounds_unseen: u64,
}

/// What a look gave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Looked {
    /// Entries that passed since the look before.
    pub fresh: u64,
    /// Time since the look before, ns.
    pub elapsed: u64,
}

/// Where following begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// At the ring's first entry: the process was born under observation.
    First,
    /// At GP_PUT as it is now.
    Here,
}

/// A channel that is followed.
#[derive(Debug)]
pub struct Follower {
    /// As it was announced.
    pub announced: Channel,
    /// Its pace.
    pub pace: Pace,
    /// Something has been submitted to it, ever.
    pub moved: bool,
    /// It is used for more than what the driver submits when it makes a channel.
    pub used: bool,
    /// The last look found something new.
    pub hot: bool,
    /// Time of the last look, ns.
    pub looked: u64,
    /// The last look left new entries behind: look again at once.
    pub behind: bool,
    /// Position up to which entries were known to have come at the last look.
    seen: u64,
    ring: u64,
    size: u32,
    userd: u64,
    /// Position of the next entry to read, counted without wrapping.
    done: u64,
    keeper: Option<Keeper>,
    /// When the keeper was last seen standing, ns.
    kept: u64,
    chain: Chain,
    /// Entries since payloads were first followed, and those of them whose payload followed: an entry each?
    links: (u64, u64),
    words: Words,
    allocator: Allocator,
    extended: u64,
    /// Room for bytes that are being read.
    buffer: Vec<u8>,
}

/// A ring that can be read and is none.
fn no_ring(put: u32, size: u32) -> io::Error {
    io::Error::other(format!("GP_PUT is {put} in a ring of {size} entries"))
}

impl Follower {
    /// Begins to follow an announced channel. `None`: its record lacks what is needed.
    ///
    /// # Errors
    /// When its ring cannot be read.
    pub fn new(
        announced: Channel,
        begin: Begin,
        memory: &impl Peek,
        now: u64,
    ) -> io::Result<Option<Self>> {
        let (Some(ring), Some(size), Some(userd)) =
            (announced.ring, announced.entries, announced.userd)
        else {
            return Ok(None);
        };
        if !size.is_power_of_two() {
            return Ok(None);
        }
        let mut new = Self {
            announced,
            pace: Pace::new(size),
            moved: false,
            used: false,
            hot: false,
            looked: now,
            behind: false,
            seen: 0,
            ring: ring.0,
            size,
            userd: userd.0,
            done: 0,
            keeper: None,
            kept: now,
            chain: Chain::default(),
            links: (0, 0),
            words: Words::default(),
            allocator: Allocator::default(),
            extended: 0,
            buffer: Vec::new(),
        };
        match begin {
            Begin::First => new.words.begin(),
            Begin::Here => {
                let (_, put) = new.get_put(memory)?;
                new.stand_at(memory, u64::from(put))?;
                new.learn_payloads(memory)?;
            }
        }
        Ok(Some(new))
    }

    /// Follows from `position` on, which is GP_PUT's: everything before it is left out.
    fn stand_at(&mut self, memory: &impl Peek, position: u64) -> io::Result<()> {
        self.done = position;
        self.seen = self.seen.max(position);
        let slot = position.wrapping_sub(1) & self.mask();
        let newest = fetch::entries(memory, self.ring, self.size, slot, slot + 1)?[0];
        self.moved = position != 0 || newest != 0;
        self.used |= position > MAKING || self.went_round(memory)?;
        let segment =
            fetch::segments(memory, &[newest], &mut self.extended, &mut self.buffer).swap_remove(0);
        self.keeper = Some(Keeper::of(&segment, self.extended));
        self.chain.judge(&[proof::release(&segment.bytes)]);
        self.words.cut();
        Ok(())
    }

    /// Learns from the entries before the first one that is followed whether each bears a payload: then it is known
    /// from the first one on how many are missing, if any are.
    fn learn_payloads(&mut self, memory: &impl Peek) -> io::Result<()> {
        let size = u64::from(self.size);
        let most = if self.went_round(memory)? {
            size / 4
        } else {
            self.done
        };
        let count = most.min(LEARNT);
        let from = self.done + size - count;
        let entries = fetch::entries(memory, self.ring, self.size, from, from + count)?;
        let mut extended = self.extended;
        let segments = fetch::segments(memory, &entries, &mut extended, &mut self.buffer);
        let releases: Vec<Option<Release>> =
            segments.iter().map(|s| proof::release(&s.bytes)).collect();
        let mut chain = Chain::default();
        let verdicts = chain.judge(&releases);
        // The newest as it was read before: a busy ring may have gone on, or its memory been used again.
        if chain.same_newest(&self.chain) {
            let proven = verdicts.iter().filter(|v| **v == Verdict::Proven).count();
            self.links = (proven as u64, count);
            self.chain = chain;
        }
        Ok(())
    }

    fn mask(&self) -> u64 {
        u64::from(self.size) - 1
    }

    pub(super) fn index(&self, position: u64) -> u32 {
        (position & self.mask()) as u32
    }

    fn get_put(&self, memory: &impl Peek) -> io::Result<(u32, u32)> {
        let both = memory.word(self.userd + GP_GET)?;
        let (get, put) = (both as u32, (both >> 32) as u32);
        if put < self.size {
            Ok((get, put))
        } else {
            Err(no_ring(put, self.size))
        }
    }

    /// Looks at the channel: what is new goes `to` the records, what is wrong is counted. `clock` gives ns.
    ///
    /// # Errors
    /// When the ring cannot be read any more: the process is gone, or has unmapped it.
    pub fn look(
        &mut self,
        memory: &impl Peek,
        clock: &impl Fn() -> u64,
        to: &mut Vec<Record>,
        faults: &mut Faults,
    ) -> io::Result<Looked> {
        let now = clock();
        let (get, put) = self.get_put(memory)?;
        let fresh = u64::from(put).wrapping_sub(self.done) & self.mask();
        let elapsed = now.saturating_sub(self.looked);
        let passed = fresh;
        // A long row in pieces: while the first is read, the next need not wait to be overwritten.
        let fresh = fresh.min(PIECE);
        let read = if fresh == 0 {
            self.look_at_still(memory, now)?
        } else {
            self.read_fresh(memory, fresh)?
        };
        let fresh = match read {
            Reading::Still => Ok(0),
            Reading::Lapped => Err(Lap::Certain),
            Reading::Fresh(entries, doubt) => {
                let mut extended = self.extended;
                let segments = fetch::segments(memory, &entries, &mut extended, &mut self.buffer);
                let releases = || segments.iter().map(|s| proof::release(&s.bytes));
                if doubt == Doubt::Yes && !self.chain.continues(&releases().collect::<Vec<_>>()) {
                    Err(Lap::Possible)
                } else {
                    let begun = Begun {
                        now,
                        get: Some(get),
                        extended,
                    };
                    if self.deliver(memory, clock, begun, segments, to, faults)? {
                        Ok(fresh)
                    } else {
                        Err(Lap::Possible)
                    }
                }
            }
        };
        let (fresh, left) = match fresh {
            Ok(fresh) => (passed, passed - fresh),
            Err(lap) => (self.resync(memory, clock, lap, to, faults)?, 0),
        };
        self.behind = left > 0;
        // What was left behind last time did not come since.
        let end = self.done + left;
        let came = end.saturating_sub(self.seen);
        self.seen = end;
        let looked = Looked { fresh, elapsed };
        self.looked = now;
        self.hot = looked.fresh > 0;
        self.moved |= self.hot;
        self.used |= self.done > MAKING;
        self.pace.looked(came, elapsed);
        Ok(looked)
    }

    /// GP_PUT is where it was: nothing came, or exactly as many as the ring holds.
    fn look_at_still(&mut self, memory: &impl Peek, now: u64) -> io::Result<Reading> {
        // Not even the fastest program fills the ring in this time. Were one faster, the keeper would tell later.
        if now.saturating_sub(self.looked) < self.pace.lap_time()
            && now.saturating_sub(self.kept) < LONGEST_NS
        {
            return Ok(Reading::Still);
        }
        let slot = self.done.wrapping_sub(1) & self.mask();
        match &self.keeper {
            Some(keeper) => {
                let entry = fetch::entries(memory, self.ring, self.size, slot, slot + 1)?[0];
                if self.compare(memory, keeper, entry) == Kept::No {
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

    fn compare(&self, memory: &impl Peek, keeper: &Keeper, entry: u64) -> Kept {
        let again = (!keeper.tail.is_empty() && entry == keeper.entry)
            .then(|| fetch::tail(memory, keeper.tail_at, keeper.tail.len()))
            .flatten();
        keeper.compare(entry, again.as_deref())
    }

    /// Reads the entries that are new, and the one before them, by which a lap is known.
    fn read_fresh(&mut self, memory: &impl Peek, fresh: u64) -> io::Result<Reading> {
        let end = self.done + fresh;
        let Some(keeper) = &self.keeper else {
            if self.went_round(memory)? {
                return Ok(Reading::Lapped);
            }
            let entries = fetch::entries(memory, self.ring, self.size, self.done, end)?;
            return Ok(Reading::Fresh(entries, Doubt::No));
        };
        // Positions of one round less have the same slots.
        let before = self.done + u64::from(self.size) - 1;
        let mut entries = fetch::entries(memory, self.ring, self.size, before, before + 1 + fresh)?;
        if entries[0] == 0 && keeper.entry != 0 && self.index(end) == 0 {
            // Its owner has given it up: all zero, GP_PUT too.
            return Err(io::Error::other("the ring was cleared"));
        }
        let kept = self.compare(memory, keeper, entries[0]);
        entries.remove(0);
        Ok(match kept {
            Kept::No => Reading::Lapped,
            Kept::Yes => Reading::Fresh(entries, Doubt::No),
            Kept::Doubtful => Reading::Fresh(entries, Doubt::Yes),
        })
    }

    /// Whether a ring of which nothing was read yet was filled: its last slot is as it was made, until it is.
    fn went_round(&self, memory: &impl Peek) -> io::Result<bool> {
        let last = u64::from(self.size) - 1;
        Ok(fetch::entries(memory, self.ring, self.size, last, last + 1)?[0] != 0)
    }

    /// Delivers what stands of new entries whose bytes were read just now. False: by their payloads the ring has gone
    /// round, and nothing was delivered.
    fn deliver(
        &mut self,
        memory: &impl Peek,
        clock: &impl Fn() -> u64,
        begun: Begun,
        segments: Vec<Segment>,
        to: &mut Vec<Record>,
        faults: &mut Faults,
    ) -> io::Result<bool> {
        let Begun { now, get, extended } = begun;
        let entries: Vec<u64> = segments.iter().map(|s| s.entry).collect();
        let releases: Vec<Option<Release>> =
            segments.iter().map(|s| proof::release(&s.bytes)).collect();
        let end = self.done + entries.len() as u64;
        // What was committed meanwhile may have been written over what was read.
        let (_, put) = self.get_put(memory)?;
        let more = u64::from(put).wrapping_sub(end) & self.mask();
        let newest = end + more;
        // Late: another program had the processor meanwhile. Then all that came is compared, not the newest alone.
        let in_time = clock().saturating_sub(now) < self.pace.lap_time() / 2;
        let compared = if in_time { more.min(SINCE) } else { more };
        let since = fetch::entries(memory, self.ring, self.size, newest - compared, newest)?;
        // The second look: the first entry stands, so all of them do, and their bytes were read in time.
        let again = fetch::entries(memory, self.ring, self.size, self.done, self.done + 1)?;
        // Where entries look alike from round to round, that one stands proves little. Then it is the time that tells
        // and, where that was long (another program had the processor), whether the bytes stand too.
        let mut chain = self.chain.clone();
        let verdicts = chain.judge(&releases);
        // A payload that follows was there when it was read, and no other round's has that number.
        let proven = verdicts.iter().all(|v| *v == Verdict::Proven);
        let gone = if in_time && again[0] == entries[0] {
            0
        } else {
            let second = fetch::entries(memory, self.ring, self.size, self.done, end)?;
            match proof::overwritten(&entries, &second) {
                0 if in_time || proven || self.bytes_stand(memory, &segments, extended) => 0,
                _ if !in_time => entries.len(),
                some => some,
            }
        };
        // The same by position, for entries that look alike from round to round; one more may be half written.
        let round_before = (end + more + 1).saturating_sub(u64::from(self.size));
        let gone = gone.max(round_before.saturating_sub(self.done) as usize);
        let gone = gone.min(entries.len());
        let round = |v: &Verdict| match v {
            Verdict::Jumped { from, to } => to.wrapping_sub(*from) >= self.size,
            _ => false,
        };
        if verdicts.iter().any(round) {
            return Ok(false);
        }
        self.chain = chain;
        self.extended = extended;
        self.links.0 += verdicts.iter().filter(|v| **v == Verdict::Proven).count() as u64;
        self.links.1 += verdicts.len() as u64;
        for entry in &entries {
            self.allocator.take(*entry);
        }
        let mut allocator = self.allocator.clone();
        for entry in &since {
            allocator.take(*entry);
        }
        let reused = proof::reused(&entries, &since, &allocator);
        faults.overwritten += gone as u64;
        if gone + reused.len() > 0 {
            log::debug!(
                "channel {}: of {} entries from {} on {gone} overwritten, {} reused; {more} came meanwhile, in {} us; payloads follow: {proven}",
                self.announced.id.0,
                entries.len(),
                self.done,
                reused.len(),
                clock().saturating_sub(now) / 1000
            );
        }
        // Where part of it was overwritten meanwhile, the newest stands still, or the next look finds it gone.
        let keeper = segments.last().map(|s| Keeper::of(s, self.extended));
        let mut lost: Option<(u64, u64)> = None;
        let count = segments.len();
        for (i, segment) in segments.into_iter().enumerate() {
            let position = self.done + i as u64;
            let stands = if i < gone {
                false
            } else if verdicts[i] == Verdict::Wrong || reused.binary_search(&i).is_ok() {
                faults.reused += 1;
                false
            } else if !self.words.take(&segment) {
                faults.unparsable += 1;
                false
            } else {
                true
            };
            if !stands {
                self.words.cut();
                let (first, n) = lost.unwrap_or((position, 0));
                lost = Some((first, n + 1));
                continue;
            }
            self.lose(now, lost.take(), to);
            if let Verdict::Jumped { from, to: payload } = verdicts[i] {
                faults.jumps += 1;
                self.tell_jump(now, from, payload, to);
            }
            let get = get.filter(|_| i + 1 == count);
            to.push(Record::Submission(
                self.submission(now, position, get, segment),
            ));
        }
        self.lose(now, lost.take(), to);
        self.done += count as u64;
        self.keeper = keeper;
        self.kept = now;
        Ok(true)
    }

    /// The end of the first segment is as it was read: it is written anew before any of the others.
    fn bytes_stand(&self, memory: &impl Peek, segments: &[Segment], extended: u64) -> bool {
        let first = segments.iter().find(|s| !s.bytes.is_empty());
        first.is_none_or(|s| {
            let keeper = Keeper::of(s, extended);
            self.compare(memory, &keeper, s.entry) == Kept::Yes
        })
    }

    /// Each entry of this channel ends with a payload that follows the one before.
    fn bears_payloads(&self) -> bool {
        self.links.0 > 16 && self.links.0 + 4 >= self.links.1
    }

    /// The ring went round since the last look, or cannot be shown not to have: counts what is gone and goes on with
    /// the newest half, which will stand while it is read. Gives how far the position moved.
    fn resync(
        &mut self,
        memory: &impl Peek,
        clock: &impl Fn() -> u64,
        lap: Lap,
        to: &mut Vec<Record>,
        faults: &mut Faults,
    ) -> io::Result<u64> {
        faults.laps += 1;
        let size = u64::from(self.size);
        let half = size / 2;
        let every = self.bears_payloads();
        let own = self.chain.own();
        let before = self.chain.cut();
        self.words.cut();
        for attempt in 1.. {
            let now = clock();
            let (_, put) = self.get_put(memory)?;
            let seen = u64::from(put).wrapping_sub(self.done) & self.mask();
            // The slots of the newest half; their positions follow once it is known how often the ring went round.
            let half = if lap == Lap::Certain {
                half
            } else {
                half.min(seen)
            };
            let from_slot = u64::from(put) + size - half;
            let entries =
                fetch::entries(memory, self.ring, self.size, from_slot, from_slot + half)?;
            let mut extended = self.extended;
            let segments = fetch::segments(memory, &entries, &mut extended, &mut self.buffer);
            // Where each entry bears a payload, they tell how many passed.
            let passed = match (before, own) {
                (Some(before), Some(own)) if every => {
                    let releases = segments.iter().map(|s| proof::release(&s.bytes));
                    proof::payload_behind(releases, own)
                        .map(|behind| u64::from(behind.wrapping_sub(before).wrapping_sub(1)))
                }
                _ => None,
            };
            // What was read is the half before GP_PUT only if the ring did not go on by as much meanwhile.
            let in_time = clock().saturating_sub(now) < self.pace.lap_time() / 4;
            if !in_time && attempt < 4 {
                continue;
            }
            // With one slot left the keeper's own may be in the middle of being written: then it went round by its
            // whole size less one, which only the payloads tell from more.
            let certain = u64::from(lap == Lap::Certain && seen + 1 < size);
            let passed = passed.filter(|_| in_time);
            let rounds = proof::rounds(size, seen, certain, passed);
            let end = self.done + seen + rounds * size;
            // Or no more can have passed since it was last seen not to have gone round.
            let most = now.saturating_sub(self.kept) / (FASTEST_NS / 2);
            let known = passed == Some(end - self.done) || seen + (rounds + 1) * size > most;
            if !known {
                faults.rounds_unseen += 1;
                self.tell_rounds(now, to);
            }
            let moved = end - self.done;
            self.keeper = None;
            let from = if in_time { end - half } else { end };
            self.lose(now, Some((self.done, from - self.done)), to);
            self.done = from;
            let begun = Begun {
                now,
                get: None,
                extended,
            };
            if !in_time || half == 0 || !self.deliver(memory, clock, begun, segments, to, faults)? {
                // Too slow even for that: what comes next is read from here on, and is not what the payload before
                // it speaks of.
                self.lose(now, Some((from, end - from)), to);
                self.stand_at(memory, end)?;
                self.chain.cut();
            }
            return Ok(moved);
        }
        Ok(0)
    }
}

/// When and with what a reading began.
#[derive(Clone, Copy, Debug)]
struct Begun {
    now: u64,
    get: Option<u32>,
    /// The address bits that its last entry left in force.
    extended: u64,
}

/// What reading a ring gave.
#[derive(Debug, PartialEq, Eq)]
enum Reading {
    /// Nothing new.
    Still,
    /// New entries.
    Fresh(Vec<u64>, Doubt),
    /// The ring has gone round.
    Lapped,
}

/// Entries that a channel has at most when nobody but the driver has used it yet.
const MAKING: u64 = 8;
/// Entries before the first one that is followed from which it is learnt whether they bear payloads.
const LEARNT: u64 = 32;
/// Entries that are read in one piece.
const PIECE: u64 = 256;
/// Entries, the newest, that came while others were read and are compared with them.
const SINCE: u64 = 64;

/// Why reading begins anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lap {
    /// The ring went round.
    Certain,
    /// It cannot be shown that it did not.
    Possible,
}

/// Whether the ring may have gone round by entries that look alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doubt {
    No,
    Yes,
}
