//! A channel among others: the processes that have it, the times of its news, and how near it came to a loss.

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicU64},
};

use super::{
    channel::{Context, Faults, Follower, Looked, ReadRing},
    mm_identity::MmIdentity,
    process::{Identity, now},
};
use nvcap_decode::ledger::Margin;
use nvcap_decode::record::{Channel, ChannelId, Record};
use nvcap_process::procfs::mem::Memory;

/// A channel, and the processes that have it.
#[derive(Debug)]
pub(crate) struct Followed {
    /// The channel, as it was last announced.
    pub channel: Channel,
    /// Its ring.
    pub ring: Arc<SharedRing>,
    /// Number of the reader that has the channel; none where the session's own thread looks at it.
    pub reader: Option<usize>,
    /// The processes that have the channel. It is read from the first one.
    pub holders: Vec<u32>,
    /// Identity of the memory in which the channel was found. Forked children with the same identity have this ring.
    pub mm: Arc<MmIdentity>,
    /// Identity of the ring's memory, unless it is device memory.
    pub identity: Option<Identity>,
    /// Time since which the channel is followed, ns.
    pub since: u64,
    /// True if any process has the channel.
    pub live: bool,
}

/// A channel's ring. One thread at a time looks at it: the session's own, or a reader that has it for a while.
#[derive(Debug)]
pub(crate) struct SharedRing {
    ring: Mutex<Ring>,
    /// Total time of the looks in the ring's turns, ns.
    pub looking_ns: AtomicU64,
    /// Time at which a reader last got the ring or found something in it, ns.
    pub came_at: AtomicU64,
}

/// The ring of a channel, and the results of the looks at it.
#[derive(Debug)]
pub(crate) struct Ring {
    /// The ring as far as it was followed.
    pub follower: Follower,
    /// Number of the reader that has the ring, as in [`Followed`]. Other readers leave it alone.
    pub reader: Option<usize>,
    /// Time at which something was last found in the ring, ns.
    pub moved: u64,
    /// Time at which the ring was last read, ns.
    pub read: u64,
    /// The longest pause between two looks that found something, ns. Older pauses count less and less.
    pub pause: u64,
    /// Distance that the ring kept from a loss.
    pub margin: Margin,
    /// Faults that looks at the ring met.
    pub faults: Faults,
}

impl SharedRing {
    /// Locks the ring: waits for a look that is under way, and keeps others from looking while the result lives.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Followed {
    /// Creates the entry of a channel that was found in the process `holder`.
    pub(crate) fn new(
        follower: Follower,
        holder: u32,
        mm: Arc<MmIdentity>,
        identity: Option<Identity>,
    ) -> Self {
        let channel = follower.announced.clone();
        Self {
            ring: Arc::new(SharedRing {
                ring: Mutex::new(Ring::new(follower)),
                looking_ns: AtomicU64::new(0),
                came_at: AtomicU64::new(0),
            }),
            channel,
            reader: None,
            holders: vec![holder],
            mm,
            identity,
            since: now(),
            live: true,
        }
    }

    /// Locks the channel's ring, as [`SharedRing::lock`] does.
    pub(crate) fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock()
    }

    /// Summarizes the channel when no process has it any more.
    pub(crate) fn dropped(&self, now: u64) -> Dropped {
        let ring = self.ring();
        let (phase, looked) = (ring.follower.phase(), ring.follower.looked);
        Dropped {
            hot: phase.came(),
            channel: self.channel.id,
            now,
            looked,
            long_ago: now.saturating_sub(ring.follower.peeked) > quiet(ring.pause),
            moved: ring.moved,
            busy: phase.may_have_unread() || looked.saturating_sub(ring.moved) < quiet(ring.pause),
        }
    }
}

impl Ring {
    fn new(follower: Follower) -> Self {
        let margin = Margin {
            channel: follower.announced.id,
            ..Margin::default()
        };
        Self {
            follower,
            reader: None,
            moved: 0,
            read: 0,
            pause: 0,
            margin,
            faults: Faults::default(),
        }
    }

    /// Looks at the ring in the memory of a process that has it, and keeps the results.
    ///
    /// # Errors
    /// As for [`Follower::look_with`].
    pub(super) fn look(
        &mut self,
        memory: &Memory,
        read: ReadRing,
        begun: u64,
        to: &mut Vec<Record>,
    ) -> io::Result<()> {
        let mut context = Context {
            memory,
            clock: &now,
            to,
            faults: &mut self.faults,
        };
        let looked = self.follower.look_with(&mut context, read)?;
        self.take(looked, begun);
        Ok(())
    }

    /// Takes the results of a look that began at `begun`.
    fn take(&mut self, looked: Looked, begun: u64) {
        if looked.peeked {
            self.margin.peeks += 1;
            return;
        }
        self.read = begun;
        self.margin.looks += 1;
        if looked.fresh == 0 {
            return;
        }
        let part = looked.fresh as f64 / f64::from(self.follower.announced.entries.unwrap_or(1));
        self.margin.largest_part = self.margin.largest_part.max(part);
        self.margin.longest_ns = self.margin.longest_ns.max(looked.elapsed);
        if self.moved > 0 {
            self.pause = (begun - self.moved).max(self.pause - self.pause / 16);
        }
        self.moved = begun;
    }
}

/// A channel that no process has any more.
#[derive(Debug)]
pub(crate) struct Dropped {
    /// True if the last look at the channel found something new.
    pub hot: bool,
    /// Number of the channel.
    pub channel: ChannelId,
    /// Time at which the channel was found gone, ns.
    pub now: u64,
    /// Time at which the channel was last read, ns.
    pub looked: u64,
    /// Time of the last news on the channel, ns.
    pub moved: u64,
    /// True if something had come shortly before the last look, or was known to wait unread: more may have come since.
    pub busy: bool,
    /// True if the last look or peek was longer ago than the channel's pauses last: anything may have come since.
    pub long_ago: bool,
}

/// Returns the time of quiet before the last look after which a channel counts as done when its process unmaps it, ns.
///
/// The time is twice the longest recent pause (`pause`), after which the process might have gone on. It is at least 20 ms,
/// because another program may merely have had the processor during a pause, and at most 100 ms.
pub(crate) fn quiet(pause: u64) -> u64 {
    (2 * pause).clamp(20_000_000, 100_000_000)
}

/// Describes channels that were unmapped while they may have been in use.
pub(crate) fn unmapped(dropped: &[Dropped]) -> Option<String> {
    let unseen = dropped
        .iter()
        .map(|d| d.now.saturating_sub(d.looked))
        .max()?;
    let ms = unseen as f64 / 1e6;
    let (empty, used): (Vec<&Dropped>, Vec<&Dropped>) = dropped.iter().partition(|d| d.moved == 0);
    let were_unmapped = |all: &[&Dropped]| match all {
        [] => String::new(),
        [one] => format!("channel {} was unmapped", one.channel.0),
        [first, ..] => format!(
            "{} channels, the first of them {}, were unmapped",
            all.len(),
            first.channel.0
        ),
    };
    if used.is_empty() {
        return Some(format!(
            "{} that had not been used by the last look, {ms:.1} ms before: whether they were since is not known",
            were_unmapped(&empty)
        ));
    }
    let others = match empty.len() {
        0 => String::new(),
        n => format!(", and {n} that had not been used"),
    };
    Some(format!(
        "{} in use{others}: what came after the last look, {ms:.1} ms before, is not known",
        were_unmapped(&used)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_channel_that_was_never_used_is_not_said_to_be_in_use() {
        let channel = |n: u32, moved| Dropped {
            hot: false,
            channel: ChannelId(n),
            now: 3_000_000,
            looked: 1_000_000,
            moved,
            busy: false,
            long_ago: true,
        };
        let said = |all: &[Dropped]| unmapped(all).unwrap_or_default();
        assert_eq!(said(&[]), "");
        let used = said(&[channel(3, 900_000)]);
        assert!(
            used.starts_with("channel 3 was unmapped in use: "),
            "{used}"
        );
        let both = said(&[channel(0, 0), channel(1, 900_000), channel(2, 900_000)]);
        assert!(
            both.starts_with("2 channels, the first of them 1, were unmapped in use, and 1 that"),
            "{both}"
        );
        let empty = said(&[channel(0, 0), channel(1, 0)]);
        assert!(!empty.contains("in use"), "{empty}");
        assert!(
            empty.contains("not been used by the last look, 2.0 ms"),
            "{empty}"
        );
    }
}
