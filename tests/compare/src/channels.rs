//! Lines up what two sides saw of each channel, entry by entry, as it arrives, and counts what differs.

use std::collections::{BTreeMap, VecDeque};

use crate::read::{Entry, Key, Submission};

/// Left or right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The first trace.
    Left = 0,
    /// The second trace.
    Right = 1,
}

impl Side {
    fn other(self) -> Side {
        match self {
            Side::Left => Side::Right,
            Side::Right => Side::Left,
        }
    }
}

/// Consecutive entries that must be equal before a side that began later counts as lined up.
const WINDOW: usize = 8;

/// Counts of a channel on one side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SideCounts {
    /// Submissions (doorbells).
    pub submissions: u64,
    /// Ring entries.
    pub entries: u64,
    /// Pushbuffer bytes.
    pub bytes: u64,
    /// Bytes that could not be read.
    pub unread: u64,
    /// Submissions whose ring position does not follow from the one before.
    pub gaps: u64,
    /// Entries before the other side began, and after it ended, where that is allowed.
    pub outside: u64,
    /// Entries that the other side should have and has not.
    pub alone: u64,
    next_position: Option<u64>,
}

/// Comparison of two sides in one channel.
#[derive(Debug, Default)]
pub struct Channel {
    /// Counts of each side.
    pub sides: [SideCounts; 2],
    /// Entries equal in raw entry and all bytes.
    pub equal: u64,
    /// Pairs of entries that differ.
    pub differing: u64,
    /// Bytes that differ in them (all of an entry's bytes where the raw entries differ).
    pub differing_bytes: u64,
    /// The first difference, in words.
    pub first: Option<String>,
    waiting: [VecDeque<UnpairedEntry>; 2],
    aligned: bool,
}

/// An entry of one side that waits for its partner.
#[derive(Debug)]
struct UnpairedEntry {
    raw: u64,
    hash: u128,
    missing: u64,
    len: usize,
    /// The bytes themselves, unless too much is waiting.
    data: Option<Vec<u8>>,
}

impl UnpairedEntry {
    fn same(&self, other: &UnpairedEntry) -> bool {
        self.raw == other.raw && self.len == other.len && self.hash == other.hash
    }
}

fn hash(bytes: &[u8]) -> u128 {
    // FNV-1a over 8-byte words: not against an adversary, only against accident.
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let mut h: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        h = (h ^ u128::from(u64::from_le_bytes(word))).wrapping_mul(PRIME);
        h ^= h >> 61;
    }
    h
}

/// All channels of two traces.
#[derive(Debug)]
pub struct Channels {
    /// Side that may have begun later and ended earlier than the other.
    part: Option<Side>,
    channels: BTreeMap<Key, Channel>,
    waiting_bytes: [u64; 2],
    max_waiting: u64,
}

impl Channels {
    /// `part` names the side that may hold only a part of the other's entries: one run without gaps in each channel.
    /// Of what one side has before the other, at most `max_waiting` bytes are held; beyond, only their hashes.
    pub fn new(part: Option<Side>, max_waiting: u64) -> Self {
        Channels {
            part,
            channels: BTreeMap::new(),
            waiting_bytes: [0; 2],
            max_waiting,
        }
    }

    /// The channels, by key.
    pub fn channels(&self) -> &BTreeMap<Key, Channel> {
        &self.channels
    }

    /// The side that has less waiting: read that one next.
    pub fn hungry(&self) -> Side {
        if self.waiting_bytes[0] <= self.waiting_bytes[1] {
            Side::Left
        } else {
            Side::Right
        }
    }

    /// A submission's head.
    pub fn submission(&mut self, side: Side, s: &Submission) {
        let counts = &mut self.channels.entry(s.key).or_default().sides[side as usize];
        counts.submissions += 1;
        if counts.next_position.is_some_and(|p| p != s.position) {
            counts.gaps += 1;
        }
        counts.next_position = Some(s.position + s.entries);
    }

    /// An entry.
    pub fn entry(&mut self, side: Side, e: Entry) {
        let i = side as usize;
        let channel = self.channels.entry(e.key).or_default();
        let counts = &mut channel.sides[i];
        counts.entries += 1;
        counts.bytes += e.data.len() as u64;
        counts.unread += e.missing;
        let cost = e.data.len() as u64 + 64;
        let keep = self.waiting_bytes[i] + cost <= self.max_waiting;
        self.waiting_bytes[i] += cost;
        channel.waiting[i].push_back(UnpairedEntry {
            raw: e.raw,
            hash: hash(&e.data),
            missing: e.missing,
            len: e.data.len(),
            data: keep.then_some(e.data),
        });
        self.settle(e.key, false);
    }

    /// Both sides have ended: what still waits has no partner.
    pub fn end(&mut self) {
        let keys: Vec<Key> = self.channels.keys().copied().collect();
        for key in keys {
            self.settle(key, true);
            let Some(channel) = self.channels.get_mut(&key) else {
                continue;
            };
            for side in [Side::Left, Side::Right] {
                let left = channel.waiting[side as usize].len() as u64;
                channel.waiting[side as usize].clear();
                let counts = &mut channel.sides[side as usize];
                if self.part == Some(side.other()) {
                    counts.outside += left;
                } else {
                    counts.alone += left;
                }
            }
        }
        self.waiting_bytes = [0; 2];
    }

    /// Pairs off what can be paired in a channel. `last`: no more will come.
    fn settle(&mut self, key: Key, last: bool) {
        let Some(channel) = self.channels.get_mut(&key) else {
            return;
        };
        if let (Some(part), false) = (self.part, channel.aligned) {
            let (p, w) = (part as usize, part.other() as usize);
            loop {
                let n = channel.waiting[p].len().min(WINDOW);
                if n == 0 || (n < WINDOW && !last) || channel.waiting[w].len() < n {
                    // A window shorter than asked for counts only when nothing more will come.
                    if last && n > 0 && channel.waiting[w].len() < n {
                        break;
                    }
                    return;
                }
                let equal = channel.waiting[p]
                    .iter()
                    .zip(&channel.waiting[w])
                    .take(n)
                    .all(|(a, b)| a.same(b));
                if equal {
                    channel.aligned = true;
                    break;
                }
                if let Some(skipped) = channel.waiting[w].pop_front() {
                    self.waiting_bytes[w] -= skipped.len as u64 + 64;
                    channel.sides[w].outside += 1;
                }
            }
            if !channel.aligned {
                return;
            }
        }
        while !channel.waiting[0].is_empty() && !channel.waiting[1].is_empty() {
            let (Some(a), Some(b)) = (
                channel.waiting[0].pop_front(),
                channel.waiting[1].pop_front(),
            ) else {
                break;
            };
            self.waiting_bytes[0] -= a.len as u64 + 64;
            self.waiting_bytes[1] -= b.len as u64 + 64;
            if a.same(&b) && a.missing == 0 && b.missing == 0 {
                channel.equal += 1;
                continue;
            }
            channel.differing += 1;
            let (bytes, what) = difference(&a, &b);
            channel.differing_bytes += bytes;
            let number = channel.equal + channel.differing - 1;
            channel
                .first
                .get_or_insert_with(|| format!("pair {number}: {what}"));
        }
    }

    /// True when nothing is missing, extra, different or unread on either side.
    pub fn equal(&self) -> bool {
        self.channels.values().all(|c| {
            c.differing == 0
                && c.sides
                    .iter()
                    .all(|s| s.alone == 0 && s.unread == 0 && s.gaps == 0)
        })
    }
}

fn difference(a: &UnpairedEntry, b: &UnpairedEntry) -> (u64, String) {
    let longer = a.len.max(b.len) as u64;
    if a.raw != b.raw {
        return (
            longer,
            format!("ring entries {:#018x} and {:#018x}", a.raw, b.raw),
        );
    }
    let (Some(x), Some(y)) = (&a.data, &b.data) else {
        return (
            longer,
            format!(
                "entry {:#018x}: bytes differ (too much was waiting to say where)",
                a.raw
            ),
        );
    };
    let count = x.iter().zip(y).filter(|(p, q)| p != q).count() as u64;
    let at = x.iter().zip(y).position(|(p, q)| p != q);
    let what = match at {
        Some(at) => format!(
            "entry {:#018x}: {count} bytes differ, the first at {at:#x}",
            a.raw
        ),
        None => format!(
            "entry {:#018x}: {} and {} bytes could not be read",
            a.raw, a.missing, b.missing
        ),
    };
    (count, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Key = Key {
        gpu: None,
        token: Some(10),
    };

    fn entry(n: u64, data: &[u8]) -> Entry {
        let raw = n << 2 | (data.len() as u64 / 4) << 42;
        Entry {
            key: KEY,
            pid: 1,
            tid: 1,
            raw,
            data: data.to_vec(),
            missing: 0,
        }
    }

    fn feed(c: &mut Channels, side: Side, range: std::ops::Range<u64>) {
        for n in range {
            c.entry(side, entry(n, &(n as u32).to_le_bytes()));
        }
    }

    #[test]
    fn equal_sides_are_equal() {
        let mut c = Channels::new(None, 1 << 20);
        feed(&mut c, Side::Left, 0..100);
        feed(&mut c, Side::Right, 0..100);
        c.end();
        assert!(c.equal());
        assert_eq!(c.channels()[&KEY].equal, 100);
    }

    #[test]
    fn one_byte_one_entry_and_one_unread_byte_are_found() {
        for (what, expected) in [("byte", 1), ("lost", 0), ("unread", 1)] {
            let mut c = Channels::new(None, 0);
            feed(&mut c, Side::Left, 0..10);
            for n in 0..10u64 {
                let mut e = entry(n, &(n as u32).to_le_bytes());
                match what {
                    "byte" if n == 5 => e.data[1] ^= 1,
                    "unread" if n == 5 => e.missing = 1,
                    "lost" if n == 9 => continue,
                    _ => {}
                }
                c.entry(Side::Right, e);
            }
            c.end();
            assert!(!c.equal(), "{what}");
            assert_eq!(c.channels()[&KEY].differing, expected, "{what}");
        }
    }

    #[test]
    fn a_part_lines_up_wherever_it_begins_and_a_hole_in_it_is_found() {
        let mut c = Channels::new(Some(Side::Right), 1 << 20);
        feed(&mut c, Side::Right, 40..60);
        feed(&mut c, Side::Left, 0..100);
        c.end();
        assert!(c.equal());
        assert_eq!(c.channels()[&KEY].sides[0].outside, 80);
        assert_eq!(c.channels()[&KEY].equal, 20);

        let mut c = Channels::new(Some(Side::Right), 1 << 20);
        feed(&mut c, Side::Left, 0..100);
        feed(&mut c, Side::Right, 40..50);
        feed(&mut c, Side::Right, 51..60);
        c.end();
        assert!(!c.equal());
    }

    #[test]
    fn a_short_part_lines_up_too_and_a_foreign_one_does_not() {
        let mut c = Channels::new(Some(Side::Right), 1 << 20);
        feed(&mut c, Side::Left, 0..100);
        feed(&mut c, Side::Right, 97..100);
        c.end();
        assert!(c.equal());
        assert_eq!(c.channels()[&KEY].equal, 3);

        let mut c = Channels::new(Some(Side::Right), 1 << 20);
        feed(&mut c, Side::Left, 0..100);
        feed(&mut c, Side::Right, 200..203);
        c.end();
        assert!(!c.equal());
        assert_eq!(c.channels()[&KEY].sides[1].alone, 3);
    }

    #[test]
    fn positions_must_follow() {
        let mut c = Channels::new(None, 0);
        let mut s = Submission {
            key: KEY,
            pid: 1,
            tid: 1,
            position: 0,
            prev_put: 0,
            gp_put: 2,
            entries: 2,
            late: false,
        };
        c.submission(Side::Left, &s);
        s.position = 2;
        c.submission(Side::Left, &s);
        assert_eq!(c.channels()[&KEY].sides[0].gaps, 0);
        s.position = 5;
        c.submission(Side::Left, &s);
        assert_eq!(c.channels()[&KEY].sides[0].gaps, 1);
        assert!(!c.equal());
    }
}
