//! Start of following a channel, and the position at which following goes on after a ring was given up.

use std::io;

use super::{Begin, Follower, Links, MAKING};
use crate::observe::{
    pace::Pace,
    phase::Phase,
    proof::{LapSentinel, PayloadSequence, RingVerdict, Words},
    reuse::Allocator,
    semaphore_peek::SemaphorePeek,
};
use nvcap_decode::record::Channel;
use nvcap_decode::wire::release::{self, Release};
use nvcap_process::memory::ring;
pub(super) use nvcap_process::procfs::mem::ReadMemory;

/// Number of entries before the first followed one that show whether entries carry payloads.
const LEARNT: u64 = 32;

impl Follower {
    /// Begins to follow an announced channel. `None` if its record lacks something that is needed.
    ///
    /// # Errors
    /// When the channel's ring cannot be read.
    pub(crate) fn new(
        announced: Channel,
        begin: Begin,
        memory: &impl ReadMemory,
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
            phase: Phase::new(begin == Begin::Here),
            looked: now,
            absent_from: 0,
            peeked: now,
            seen: 0,
            lapped_unread: false,
            ring: ring.0,
            size,
            userd: userd.0,
            done: 0,
            lap_sentinel: None,
            kept: now,
            payloads: PayloadSequence::default(),
            links: Links::default(),
            words: Words::default(),
            allocator: Allocator::default(),
            semaphore_peek: SemaphorePeek::default(),
            extended: 0,
            buffer: Vec::new(),
        };
        match begin {
            Begin::First => {
                let (_, put) = new.get_put(memory)?;
                new.absent_from = u64::from(put);
                new.words.begin();
            }
            Begin::Here => {
                let (_, put) = new.get_put(memory)?;
                new.stand_at(memory, u64::from(put))?;
                new.absent_from = u64::from(put);
                new.learn_payloads(memory)?;
            }
        }
        Ok(Some(new))
    }

    /// Follows from `position` on, where GP_PUT is now. All entries before it are left out.
    pub(in crate::observe) fn stand_at(
        &mut self,
        memory: &impl ReadMemory,
        position: u64,
    ) -> io::Result<()> {
        self.done = position;
        self.seen = self.seen.max(position);
        let slot = position.wrapping_sub(1) & self.mask();
        let newest = ring::entries(memory, self.ring(), slot, slot + 1)?[0];
        if position > MAKING || self.went_round(memory)? {
            self.phase.seen_used();
        }
        let segment = ring::segments(
            memory,
            &[newest],
            &mut self.extended,
            &mut self.buffer,
            |a| a,
        )
        .swap_remove(0);
        self.lap_sentinel = Some(LapSentinel::of(&segment, self.extended));
        self.allocator.take(newest);
        self.payloads.judge(&[release::at_end(&segment.bytes)]);
        self.words.cut();
        Ok(())
    }

    /// Learns, from entries before the first followed one, whether each entry of this channel carries a payload. Payloads then
    /// show from the first followed entry on how many entries are missing.
    fn learn_payloads(&mut self, memory: &impl ReadMemory) -> io::Result<()> {
        let size = u64::from(self.size);
        let most = if self.went_round(memory)? {
            size / 4
        } else {
            self.done
        };
        let count = most.min(LEARNT);
        let from = self.done + size - count;
        let entries = ring::entries(memory, self.ring(), from, from + count)?;
        let mut extended = self.extended;
        let segments = ring::segments(memory, &entries, &mut extended, &mut self.buffer, |a| a);
        let releases: Vec<Option<Release>> =
            segments.iter().map(|s| release::at_end(&s.bytes)).collect();
        let mut chain = PayloadSequence::default();
        let verdicts = chain.judge(&releases);
        // The newest as it was read before: a busy ring may have gone on, or its memory been used again.
        if chain.same_newest(&self.payloads) {
            let proven = verdicts
                .iter()
                .filter(|v| **v == RingVerdict::Proven)
                .count();
            self.links = Links {
                follow: proven as u64,
                of: count,
            };
            self.payloads = chain;
        }
        Ok(())
    }

    /// Tells whether a ring was ever filled. (Until then its last slot is zero, as it was made.)
    pub(in crate::observe) fn went_round(&self, memory: &impl ReadMemory) -> io::Result<bool> {
        let last = u64::from(self.size) - 1;
        Ok(ring::entries(memory, self.ring(), last, last + 1)?[0] != 0)
    }
}
