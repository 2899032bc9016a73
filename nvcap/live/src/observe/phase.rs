//! Phases of channels, as far as looks and peeks show them, and the times of the next looks. Pure: gets findings, and returns a
//! phase and times.
//!
//! A channel begins as [`Phase::Unused`]. Each look at its ring decides its phase from then on ([`Phase::looked`]); a channel
//! that was used once is never `Unused` again. A peek ([`Phase::peeked`]) does not change the phase: it notes whether work waits
//! unread.
//!
//! | the look found | phase |
//! | --- | --- |
//! | more entries than are read in one piece | `Behind` |
//! | no more than the entries of the channel's making, so far | `Unused` |
//! | something new | `Hot` |
//! | nothing new | `Idle` |

use super::{
    pace::{LONGEST_NS, SHORTEST_NS},
    semaphore_peek::{SemaphorePeek, Urgency},
};

/// Time between two looks at a channel of 1024 entries that only its making has used so far, ns. (A launch loop that begins
/// there fills its ring in 3.5 ms.)
const UNUSED_NS: u64 = 2_000_000;
/// Time between two peeks at such a channel, if its semaphore is known, ns.
const UNUSED_GLANCE_NS: u64 = 500_000;
/// Longest time between two looks at such a channel, if its semaphore is known, ns.
const UNUSED_LOOK_NS: u64 = 10_000_000;
/// Longest time between two looks at a channel on which peeks show no activity, ns.
const STILL_NS: u64 = 5_000_000;
/// Number of unread entries that the GPU may be done with before a look is urgent.
const UNREAD: i32 = 64;
/// Time since the last look after which a single unread entry makes a look urgent, ns.
const SINGLE_NS: u64 = 200_000;
/// Time between two peeks at a channel that is being used, ns.
const HOT_NS: u64 = 50_000;
/// Time between two peeks at a channel that is being used and whose pushbuffer memory is about to be used anew, ns.
const TURN_NS: u64 = 10_000;

/// Phase of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Only the making of the channel has used it: the driver submits some entries when it makes a channel.
    Unused {
        /// True if the ring was ever read.
        read: bool,
        /// True if the last look found something new.
        came: bool,
    },
    /// The last look found nothing new.
    Idle {
        /// True if the last peek showed that the GPU was done with unread entries.
        unread: bool,
    },
    /// The last look found something new.
    Hot {
        /// True if the GPU was done with unread entries, as in `Idle`.
        unread: bool,
    },
    /// The last look found more entries than are read in one piece, and left the rest unread.
    Behind,
}

/// Findings of a look at a ring.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outcome {
    /// True if something new came.
    pub came: bool,
    /// True if a part of it is not read yet.
    pub left: bool,
    /// True if the ring has more entries by now than the making of a channel submits.
    pub used: bool,
}

/// Facts, beside the phase, that decide a channel's times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tempo {
    /// Number of entries of the channel's ring.
    pub ring: u32,
    /// Time between two looks that follows from the rate of entries, ns.
    pub by_rate_ns: u64,
    /// State of the channel's semaphore, as far as it is known.
    pub semaphore: SemaphorePeek,
    /// True if the semaphore is known that the newest entry of the channel's making releases.
    pub making_releases: bool,
    /// True if the channel's pushbuffer memory is about to be used again from its beginning.
    pub turns: bool,
}

/// Time at which a channel is looked at again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Again {
    /// At once, behind channels that have waited longer.
    Now,
    /// After this time in ns from the beginning of the present look. (Counted from its end, a channel that takes long to read
    /// would be looked at seldom.)
    After(u64),
    /// At the next multiple of this time in ns, together with others: a peek costs less than waking the thread for it.
    Together(u64),
}

impl Phase {
    /// Creates the phase of a channel that is followed from now on. `read`: the entries so far need no look.
    pub(crate) fn new(read: bool) -> Self {
        Self::Unused { read, came: false }
    }

    /// Takes note that the ring shows more use than the channel's making.
    pub(crate) fn seen_used(&mut self) {
        if let Self::Unused { .. } = self {
            *self = Self::Idle { unread: false };
        }
    }

    /// Takes note of a peek. `is_unread`: the GPU is done with unread entries.
    pub(crate) fn peeked(&mut self, is_unread: bool) {
        if let Self::Idle { unread } | Self::Hot { unread } = self {
            *unread = is_unread;
        }
    }

    /// Takes note of a finished look at the ring.
    pub(crate) fn looked(&mut self, found: Outcome) {
        let used = self.is_used() || found.used;
        *self = match (found.left, used, found.came) {
            (true, _, _) => Self::Behind,
            (false, false, came) => Self::Unused { read: true, came },
            (false, true, true) => Self::Hot { unread: false },
            (false, true, false) => Self::Idle { unread: false },
        };
    }

    /// True if the channel was used for more than its making.
    pub(crate) fn is_used(self) -> bool {
        !matches!(self, Self::Unused { .. })
    }

    /// True if the last look left entries unread.
    pub(crate) fn is_behind(self) -> bool {
        self == Self::Behind
    }

    /// True if the last look found something new.
    pub(crate) fn came(self) -> bool {
        match self {
            Self::Unused { came, .. } => came,
            Self::Idle { .. } => false,
            Self::Hot { .. } | Self::Behind => true,
        }
    }

    /// True if entries may wait that no look has found: the GPU was done with unread ones, or the ring was never read.
    pub(crate) fn may_have_unread(self) -> bool {
        match self {
            Self::Unused { read, .. } => !read,
            Self::Idle { unread } | Self::Hot { unread } => unread,
            Self::Behind => false,
        }
    }

    /// Returns the time from one look or peek to the next, ns.
    pub(crate) fn interval(self, tempo: Tempo) -> u64 {
        match self {
            Self::Unused { .. } => {
                let of_1024 = if tempo.making_releases {
                    UNUSED_GLANCE_NS
                } else {
                    UNUSED_NS
                };
                (u64::from(tempo.ring) * of_1024 / 1024).clamp(SHORTEST_NS, LONGEST_NS)
            }
            Self::Hot { .. } | Self::Behind if tempo.semaphore.trusted() => {
                if tempo.turns {
                    TURN_NS
                } else {
                    HOT_NS
                }
            }
            Self::Idle { .. } | Self::Hot { .. } | Self::Behind => tempo.by_rate_ns,
        }
    }

    /// Returns the time of the next look at the channel.
    pub(crate) fn again(self, tempo: Tempo) -> Again {
        let interval = self.interval(tempo);
        if self.is_behind() {
            Again::Now
        } else if self.came() && !tempo.semaphore.trusted() {
            Again::After(interval)
        } else {
            Again::Together(interval)
        }
    }

    /// Tells whether the ring need not be read now. `ahead`: distance of the semaphore from the newest read entry (a negative
    /// number for behind). `since_ns`: time since the last look at the ring.
    pub(crate) fn can_wait(self, ahead: u32, since_ns: u64, tempo: Tempo) -> bool {
        // Where the GPU is behind, a whole ring may have come that it is about to run.
        let calm = |patience| {
            since_ns < tempo.by_rate_ns
                && tempo.semaphore.judge(ahead, tempo.ring, patience) == Urgency::Calm
        };
        match self {
            Self::Unused { .. } => ahead == 0 && since_ns < UNUSED_LOOK_NS,
            Self::Idle { .. } if ahead == 0 => since_ns < STILL_NS,
            Self::Idle { .. } => calm(0),
            // A single one that waits is enough where there is no time to lose, or enough was had.
            Self::Hot { .. } if tempo.turns || since_ns >= SINGLE_NS => calm(0),
            Self::Hot { .. } => calm(UNREAD),
            Self::Behind => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvcap_decode::wire::{GpuVa, release::Release};

    const NEW: Phase = Phase::Unused {
        read: false,
        came: false,
    };
    const IDLE: Phase = Phase::Idle { unread: false };
    const HOT: Phase = Phase::Hot { unread: false };
    const NOTHING: Outcome = Outcome {
        came: false,
        left: false,
        used: true,
    };
    const SOME: Outcome = Outcome {
        came: true,
        ..NOTHING
    };
    const MUCH: Outcome = Outcome { left: true, ..SOME };

    fn after(mut phase: Phase, found: Outcome) -> Phase {
        phase.looked(found);
        phase
    }

    fn semaphore(trusted: bool) -> SemaphorePeek {
        let mut semaphore = SemaphorePeek::default();
        for n in 0..6 * u32::from(trusted) {
            let last = Release {
                address: GpuVa(8),
                payload: n,
                stamped: true,
                by_copy: false,
            };
            semaphore.learn(Some(n), Some(last), 1024);
        }
        assert_eq!(semaphore.trusted(), trusted);
        semaphore
    }

    fn tempo(trusted: bool) -> Tempo {
        Tempo {
            ring: 1024,
            by_rate_ns: 170_000,
            semaphore: semaphore(trusted),
            making_releases: false,
            turns: false,
        }
    }

    #[test]
    fn an_unused_channel_stays_so_until_more_than_its_making_came() {
        let found = |came| Outcome {
            came,
            ..Outcome::default()
        };
        for phase in [NEW, Phase::new(true)] {
            for came in [false, true] {
                let unused = after(phase, found(came));
                assert_eq!(unused, Phase::Unused { read: true, came });
                assert_eq!(unused.came(), came);
                assert!(!unused.is_used() && !unused.may_have_unread());
            }
            assert_eq!(after(phase, SOME), HOT);
            assert_eq!(after(phase, NOTHING), IDLE);
            assert_eq!(after(phase, MUCH), Phase::Behind);
        }
        assert!(NEW.may_have_unread() && !Phase::new(true).may_have_unread());
    }

    #[test]
    fn a_used_channel_is_never_unused_again() {
        // Its position may begin at the ring's first entries anew, where some are missing.
        let few = |found| Outcome {
            used: false,
            ..found
        };
        for phase in [IDLE, HOT, Phase::Behind, Phase::Hot { unread: true }] {
            for found in [NOTHING, few(NOTHING)] {
                assert_eq!(after(phase, found), IDLE);
            }
            for found in [SOME, few(SOME)] {
                assert_eq!(after(phase, found), HOT);
            }
            assert_eq!(after(phase, MUCH), Phase::Behind);
            assert!(phase.is_used());
        }
    }

    #[test]
    fn a_ring_that_went_round_was_used() {
        let mut phase = Phase::new(true);
        phase.seen_used();
        assert_eq!(phase, IDLE);
        for other in [HOT, Phase::Behind, Phase::Idle { unread: true }] {
            phase = other;
            phase.seen_used();
            assert_eq!(phase, other);
        }
    }

    #[test]
    fn a_peek_notes_what_waits_and_a_look_takes_it() {
        for mut phase in [IDLE, HOT] {
            phase.peeked(true);
            assert!(phase.may_have_unread());
            assert!(!after(phase, SOME).may_have_unread());
            assert!(!after(phase, NOTHING).may_have_unread());
            phase.peeked(false);
            assert!(!phase.may_have_unread());
        }
        for other in [NEW, Phase::new(true), Phase::Behind] {
            let mut phase = other;
            phase.peeked(true);
            assert_eq!(phase, other, "its peeks say nothing of that");
        }
    }

    #[test]
    fn how_soon_each_phase_is_looked_at_again() {
        let (blind, peeks) = (tempo(false), tempo(true));
        let turns = Tempo {
            turns: true,
            ..peeks
        };
        let released = Tempo {
            making_releases: true,
            ..blind
        };
        let came = Phase::Unused {
            read: true,
            came: true,
        };
        for (phase, tempo, again) in [
            (NEW, blind, Again::Together(2_000_000)),
            (NEW, released, Again::Together(500_000)),
            (came, blind, Again::After(2_000_000)),
            (came, peeks, Again::Together(2_000_000)),
            (IDLE, blind, Again::Together(170_000)),
            (IDLE, turns, Again::Together(170_000)),
            (HOT, blind, Again::After(170_000)),
            (HOT, peeks, Again::Together(50_000)),
            (HOT, turns, Again::Together(10_000)),
            (Phase::Behind, blind, Again::Now),
            (Phase::Behind, turns, Again::Now),
        ] {
            assert_eq!(phase.again(tempo), again, "{phase:?} {tempo:?}");
        }
        // By the size of the ring.
        let small = Tempo { ring: 64, ..blind };
        assert_eq!(NEW.interval(small), 125_000);
        let large = Tempo {
            ring: 1 << 20,
            ..blind
        };
        assert_eq!(NEW.interval(large), LONGEST_NS);
    }

    #[test]
    fn what_can_wait() {
        let (blind, peeks) = (tempo(false), tempo(true));
        let turns = Tempo {
            turns: true,
            ..peeks
        };
        let slow = Tempo {
            by_rate_ns: 1_000_000,
            ..peeks
        };
        let behind = 5u32.wrapping_neg();
        for (phase, ahead, since_ns, tempo, waits) in [
            // As it was left: up to 10 ms, and 5 ms once it was used.
            (NEW, 0, 9_999_999, blind, true),
            (NEW, 0, 10_000_000, blind, false),
            (NEW, 1, 0, blind, false),
            (NEW, behind, 0, blind, false),
            (IDLE, 0, 4_999_999, blind, true),
            (IDLE, 0, 5_000_000, blind, false),
            // The GPU is behind, or ahead.
            (IDLE, behind, 169_999, peeks, true),
            (IDLE, behind, 169_999, blind, false),
            (IDLE, behind, 170_000, peeks, false),
            (IDLE, 1, 0, peeks, false),
            (HOT, 0, 169_999, peeks, true),
            (HOT, 0, 170_000, peeks, false),
            (HOT, 0, 0, blind, false),
            (HOT, 64, 169_999, peeks, true),
            (HOT, 65, 0, peeks, false),
            (HOT, 1, 199_999, slow, true),
            (HOT, 1, 200_000, slow, false),
            (HOT, 1, 0, turns, false),
            (HOT, 0, 0, turns, true),
            (Phase::Behind, 0, 0, peeks, false),
        ] {
            let can_wait = phase.can_wait(ahead, since_ns, tempo);
            assert_eq!(can_wait, waits, "{phase:?} {ahead} {since_ns} {tempo:?}");
        }
    }
}
