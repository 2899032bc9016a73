//! A channel among others: which processes have it, when something came in it, and how near it came to a loss.

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

/// A channel, and which processes have it.
#[derive(Debug)]
pub(crate) struct Followed {
    /// The channel as it was announced last.
    pub channel: Channel,
    /// Its ring.
    pub ring: Arc<SharedRing>,
    /// Number of the reader that has it; none where the session's own thread looks at it.
    pub reader: Option<usize>,
    /// The processes that have it; the first is the one that it is read from.
    pub holders: Vec<u32>,
    /// The program image that it was found in: forked children that have the same have this ring.
    pub mm: Arc<MmIdentity>,
    /// Identity of its ring's memory, if that is not device memory.
    pub identity: Option<Identity>,
    /// Time from which it is followed, ns.
    pub since: u64,
    /// Somebody has it.
    pub live: bool,
}

/// A channel's ring, which one thread at a time looks at: the session's, or a reader that has it for a while.
#[derive(Debug)]
pub(crate) struct SharedRing {
    ring: Mutex<Ring>,
    /// Time that the looks in its turns have taken, ns.
    pub looking_ns: AtomicU64,
    /// Time at which a reader last got it or found something, ns.
    pub came_at: AtomicU64,
}

/// The ring of a channel, and the results of the looks at it.
#[derive(Debug)]
pub(crate) struct Ring {
    /// The ring as far as it was followed.
    pub follower: Follower,
    /// Number of the reader that has it, as in [`Followed`]: a reader that is not named here leaves it alone.
    pub reader: Option<usize>,
    /// Time at which something was last found in it, ns.
    pub moved: u64,
    /// Time at which it was last read, ns.
    pub read: u64,
    /// The longest pause between two looks that found something, ns; what was long ago counts for less and less.
    pub pause: u64,
    /// Distance that it kept from a loss.
    pub margin: Margin,
    /// Faults that looks at it met.
    pub faults: Faults,
}

impl SharedRing {
    /// Waits for a look that is under way, and keeps others from looking while the result lives.
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

    /// Waits for a look at its ring that is under way, and keeps others from looking while the result lives.
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

    /// Looks at the ring in the memory of a process that has it, and keeps what the look gave.
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

    /// Takes what a look at `begun` gave.
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

/// A channel that nobody has any more.
#[derive(Debug)]
pub(crate) struct Dropped {
    /// The last look at it found something new.
    pub hot: bool,
    /// Its number.
    pub channel: ChannelId,
    /// Time at which it was found gone, ns.
    pub now: u64,
    /// Time at which it was last read, ns.
    pub looked: u64,
    /// Time at which something last came in it, ns.
    pub moved: u64,
    /// Something had come shortly before the last look, or was known to wait unread: more may have come since.
    pub busy: bool,
    /// Nobody looked or peeked at it for longer than its pauses last: anything may have come since.
    pub long_ago: bool,
}

/// A channel that was quiet for this time before the last look, ns, is taken to have been done with when its process unmaps it.
///
/// It is twice the longest pause of late (`pause`), after which the process might have gone on. It is 20 ms at least, because
/// in a pause another program may merely have had the processor; and 100 ms at most.
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
