//! Continues after a ring went round: determines what is missing, and the position from which the ring can be followed again.

use std::io;

use super::{
    channel::{Begun, Context, Follower, Lap},
    pace::FASTEST_NS,
    proof,
};
use nvcap_decode::wire::release;
use nvcap_process::memory::ring;
pub(super) use nvcap_process::procfs::mem::ReadMemory;

impl Follower {
    /// Returns the ring, to be read.
    pub(super) fn ring(&self) -> ring::Ring {
        ring::Ring {
            address: self.ring,
            entries: self.size,
        }
    }

    /// Continues after the ring went round, or where the opposite cannot be shown. Counts the missing entries, and reads the
    /// newest half of the ring, which is not overwritten so soon. Returns the distance that the position moved.
    pub(super) fn resync(
        &mut self,
        with: &mut Context<'_, impl ReadMemory, impl Fn() -> u64>,
        lap: Lap,
    ) -> io::Result<u64> {
        let (memory, clock) = (with.memory, with.clock);
        with.faults.laps += 1;
        let size = u64::from(self.size);
        let half = size / 2;
        let every = self.has_payloads();
        let own = self.payloads.own();
        let before = self.payloads.cut();
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
            let entries = ring::entries(memory, self.ring(), from_slot, from_slot + half)?;
            let mut extended = self.extended;
            let segments = ring::segments(memory, &entries, &mut extended, &mut self.buffer, |a| a);
            // Where each entry bears a payload, they tell how many passed.
            let passed = match (before, own) {
                (Some(before), Some(own)) if every => {
                    let releases = segments.iter().map(|s| release::at_end(&s.bytes));
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
            // With one slot left the lap sentinel's own may be in the middle of being written: then it went round by its
            // whole size less one, which only the payloads tell from more.
            let certain = u64::from(lap == Lap::Certain && seen + 1 < size);
            let passed = passed.filter(|_| in_time);
            let rounds = proof::rounds(size, seen, certain, passed);
            let end = self.done + seen + rounds * size;
            // Or no more can have passed since it was last seen not to have gone round.
            let most = now.saturating_sub(self.kept) / (FASTEST_NS / 2);
            let known = passed == Some(end - self.done) || seen + (rounds + 1) * size > most;
            if !known {
                with.faults.rounds_unseen += 1;
                self.report_rounds(now, with.to);
            }
            let moved = end - self.done;
            self.lap_sentinel = None;
            let from = if in_time { end - half } else { end };
            self.lose(now, Some((self.done, from - self.done)), with.to);
            self.done = from;
            let begun = Begun {
                now,
                get: None,
                extended,
            };
            if !in_time || half == 0 || !self.deliver(with, begun, segments)? {
                // Too slow even for that: what comes next is read from here on, and is not what the payload before
                // it speaks of.
                self.lose(now, Some((from, end - from)), with.to);
                self.stand_at(memory, end)?;
                self.payloads.cut();
            }
            return Ok(moved);
        }
        Ok(0)
    }
}
