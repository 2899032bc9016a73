//! Urgency of a look at a ring, found by one read of system memory.
//!
//! A ring and its GP_PUT lie in video memory: each read of them takes 5 us on an H200, and many such reads make the kernel pause
//! (docs/observe.md). The semaphore that a channel's segments release lies in system memory; a read of it takes 0.5 us, and tells how
//! far the GPU is. Neither a slot of the ring nor pushbuffer memory is written again before the GPU is done with it. So a look is not
//! urgent while the GPU is not past the entries that were read.
//!
//! The semaphore is trusted only for channels whose every entry releases it with a number one higher. It must first have gone on some
//! times without ever being ahead of the ring; once it was ahead, it is given up for good.

use nvcap_decode::wire::release::Release;

/// Number of times that the semaphore's number must have gone on before it is trusted.
const AGREED: u32 = 4;

/// Verdict of a peek.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// All entries that the GPU is done with were read.
    Calm,
    /// The GPU is done with unread entries, or nothing is known.
    Urgent,
}

/// A channel's own semaphore, seen beside its ring.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SemaphorePeek {
    /// Number in the semaphore at the last look.
    seen: Option<u32>,
    agreed: u32,
    never: bool,
}

impl SemaphorePeek {
    /// Tells whether peeks may be relied on.
    pub(crate) fn trusted(&self) -> bool {
        self.agreed >= AGREED && !self.never
    }

    /// Judges the semaphore's number. `ahead`: its distance from that of the newest read entry (a negative number for behind).
    /// `size`: entries of the ring. `patience`: number of entries that may wait unread.
    pub(crate) fn judge(&self, ahead: u32, size: u32, patience: i32) -> Urgency {
        let unread = ahead.cast_signed();
        let impossible = unread.unsigned_abs() > size.saturating_mul(4);
        if !self.trusted() || impossible || unread > patience {
            Urgency::Urgent
        } else {
            Urgency::Calm
        }
    }

    /// Learns from a look. `number`: read before the look. `last`: the newest release that the look then found.
    pub(crate) fn learn(&mut self, number: Option<u32>, last: Option<Release>, size: u32) {
        let (Some(number), Some(last)) = (number, last) else {
            *self = Self {
                never: self.never,
                ..Self::default()
            };
            return;
        };
        let behind = last.payload.wrapping_sub(number);
        if behind.cast_signed() < 0 && self.agreed > 0 {
            // The GPU cannot be done with what was not submitted.
            self.never = true;
        } else if behind > size.saturating_mul(4) {
            self.agreed = 0;
        } else if self.seen.is_some_and(|s| s != number) {
            self.agreed = self.agreed.saturating_add(1);
        }
        self.seen = Some(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvcap_decode::wire::GpuVa;

    fn last(payload: u32) -> Option<Release> {
        Some(Release {
            address: GpuVa(0x2_0460_fff0),
            payload,
            stamped: true,
            by_copy: false,
        })
    }

    fn trusted() -> SemaphorePeek {
        let mut peek = SemaphorePeek::default();
        for n in 0..6 {
            assert_eq!(peek.trusted(), n > AGREED);
            peek.learn(Some(10 * n), last(10 * n + 3), 1024);
        }
        peek
    }

    #[test]
    fn what_is_unread_and_done_is_urgent() {
        let peek = trusted();
        let judge = |ahead: i32, patience| peek.judge(ahead.cast_unsigned(), 1024, patience);
        assert_eq!(judge(-500, 0), Urgency::Calm);
        assert_eq!(judge(0, 0), Urgency::Calm);
        assert_eq!(judge(1, 0), Urgency::Urgent);
        assert_eq!(judge(16, 16), Urgency::Calm);
        assert_eq!(judge(17, 16), Urgency::Urgent);
        // Not this channel's any more.
        assert_eq!(judge(90_000, 16), Urgency::Urgent);
        assert_eq!(judge(-9_000, 16), Urgency::Urgent);
    }

    #[test]
    fn a_number_that_stands_still_is_not_trusted() {
        let mut peek = SemaphorePeek::default();
        for n in 0..100 {
            peek.learn(Some(7), last(7 + n), 1024);
        }
        assert!(!peek.trusted());
        assert_eq!(peek.judge(0, 1024, 16), Urgency::Urgent);
    }

    #[test]
    fn a_number_that_was_ahead_of_the_ring_is_never_trusted_again() {
        let mut peek = trusted();
        peek.learn(Some(2000), last(1999), 1024);
        assert!(!peek.trusted());
        for n in 200..300 {
            peek.learn(Some(n), last(n + 3), 1024);
        }
        assert!(!peek.trusted());
    }

    #[test]
    fn where_releases_are_missing_trust_begins_anew() {
        let mut peek = trusted();
        peek.learn(Some(60), None, 1024);
        assert!(!peek.trusted());
        for n in 7..13 {
            peek.learn(Some(10 * n), last(10 * n + 3), 1024);
        }
        assert!(peek.trusted());
        peek.learn(Some(9), last(9_000_000), 1024);
        assert!(!peek.trusted());
    }
}
