//! Stretches of work, which may overlap and come nearly in order of their begin: their union, their sum, and the gaps between them by
//! cause. Only time in which time stamps were read is counted.

use std::collections::BTreeMap;

use super::coverage::{Coverage, Share};
use super::open::{End, Open};
use nvcap_decode::record::ChannelId;

/// Time by which a stretch may begin before the newest submission, ns. Stretches are held back for this time, to be summed up in order.
const HORIZON_NS: u64 = 3_000_000_000;
/// The longest gaps that are kept.
const LONGEST: usize = 10;

/// A stretch of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stretch {
    /// Its begin, ns.
    pub begin: u64,
    /// Its end.
    pub end: End,
    /// Time at which the work was submitted, at the earliest and at the latest, ns; `None` if that is not known.
    pub there: Option<(u64, u64)>,
    /// Time in which it waited for a semaphore, from and to, ns.
    pub waited: Option<(u64, u64)>,
    /// Its begin on the host's clock, ns.
    pub host: u64,
    /// Time at which it was submitted, or found, on the host's clock, ns: stretches that come later were submitted later, or little before.
    pub submitted: u64,
    /// Channel whose entries run one after the other.
    pub channel: ChannelId,
    pub is_copy: bool,
    /// Time that work of an unknown end takes if it is like the timed works of its channel, ns; `u64::MAX` where none is timed.
    pub about: u64,
}

/// Time without work, ns. `empty_ns`: the part in which the next work was not submitted yet, at least and at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Idle {
    pub ns: u64,
    pub empty_ns: (u64, u64),
    /// Part in which the next work waited for a semaphore.
    pub waited_ns: u64,
    /// Part of `empty_ns` behind work that had been submitted ahead: the program let the GPU run dry.
    pub dry_ns: (u64, u64),
}

/// A time without work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gap {
    /// Its begin, ns; and on the host's clock.
    pub begin: u64,
    pub host: u64,
    pub idle: Idle,
}

/// Stretches of work, summed up to their union, their sum, and the gaps between them by cause.
#[derive(Clone, Debug, Default)]
pub(super) struct Intervals {
    waiting: BTreeMap<(u64, End), Stretch>,
    /// True if a stretch was summed up; and the time up to which everything is summed up (`last`, ns).
    begun: bool,
    last: u64,
    newest: u64,
    /// Works that may go on at unknown times, of all and of those that are no copies.
    open: Open,
    open_kernels: Open,
    /// True if the last stretch was submitted while the one before it ran: for certain, and possibly.
    ahead: (bool, bool),
    /// Sum of the union, ns.
    pub busy_ns: u64,
    /// Sum of all stretches, ns: more where they overlap.
    pub sum_ns: u64,
    /// Sum of the gaps.
    pub idle: Idle,
    /// Time of which it is not known whether there was work, ns.
    pub unknown_ns: u64,
    /// Part of `unknown_ns` in which other work than copies may have gone on, ns.
    pub unknown_kernels_ns: u64,
    /// Part of `unknown_ns` in which work ran if it was like the timed works of its channels, ns.
    pub unknown_about_ns: u64,
    /// Part of `unknown_ns` in which the timed works of the channels tell how long work takes, ns.
    pub estimated_ns: u64,
    /// Share of the busy time.
    share: Share,
    /// The longest gaps, longest first.
    pub gaps: Vec<Gap>,
}

impl Intervals {
    /// Adds a stretch, and sums up those that are old enough.
    pub(super) fn add(&mut self, stretch: Stretch, coverage: &Coverage) {
        self.newest = self.newest.max(stretch.submitted);
        // Two stretches with the same begin and end are one in the union; the sum counts both.
        if let Some(twin) = self.waiting.insert((stretch.begin, stretch.end), stretch) {
            self.add_sum(&twin, coverage);
        }
        while let Some((_, of)) = self.waiting.first_key_value() {
            if of.host.saturating_add(HORIZON_NS) > self.newest {
                break;
            }
            let of = *of;
            self.waiting.pop_first();
            self.sum_up(of, coverage);
        }
    }

    /// Sums up the stretches that are held back: no more will come.
    pub(super) fn finish(&mut self, coverage: &Coverage) {
        while let Some((_, of)) = self.waiting.pop_first() {
            self.sum_up(of, coverage);
        }
    }

    /// Returns the time from the begin of the first stretch to the end of the last in which stamps were read, ns.
    pub(super) fn span_ns(&self) -> u64 {
        self.known_ns().saturating_add(self.unknown_ns)
    }

    /// The part of [`Self::span_ns`] of which it is known whether there was work, ns.
    pub(super) fn known_ns(&self) -> u64 {
        self.busy_ns.saturating_add(self.idle.ns)
    }

    /// Returns the part of `unknown_ns` in which nothing tells how long work takes, ns.
    pub(super) fn untold_ns(&self) -> u64 {
        self.unknown_ns.saturating_sub(self.estimated_ns)
    }

    /// Returns the error of the share of work in the known time (95 %), 0 to 1, where that share is a sample.
    pub(super) fn share_error(&self) -> Option<f64> {
        self.share.error()
    }

    fn add_sum(&mut self, of: &Stretch, coverage: &Coverage) {
        if let End::At(end) = of.end {
            let length = end.saturating_sub(of.begin);
            let within = coverage.within(of.host, of.host.saturating_add(length));
            self.sum_ns = self.sum_ns.saturating_add(within);
        }
    }

    /// Adds the bursts' parts of a time to the share, and returns their sum, ns.
    fn count(
        &mut self,
        (from, until): (u64, u64),
        is_busy: bool,
        of: &Stretch,
        coverage: &Coverage,
    ) -> u64 {
        let host = |at: u64| at.wrapping_sub(of.begin).wrapping_add(of.host);
        let mut sum = 0;
        for (burst, ns) in coverage.parts(host(from), host(until)) {
            self.share.add(burst, is_busy, ns);
            sum += ns;
        }
        sum
    }

    fn sum_up(&mut self, of: Stretch, coverage: &Coverage) {
        self.add_sum(&of, coverage);
        let there = of.there.filter(|_| self.begun);
        let is_ahead = there.map(|(earliest, latest)| (latest < self.last, earliest < self.last));
        let is_ahead = is_ahead.unwrap_or_default();
        if !self.begun {
            (self.begun, self.last) = (true, of.begin);
        }
        let host = |at: u64| at.wrapping_sub(of.begin).wrapping_add(of.host);
        let unknown = |open: &Open| {
            let until = open.latest(of.channel).min(of.begin).max(self.last);
            (until, coverage.within(host(self.last), host(until)))
        };
        let (_, kernels_ns) = unknown(&self.open_kernels);
        let (until, ns) = unknown(&self.open);
        if ns > 0
            && let Some(about) = self.open.passes(self.last, ns, of.channel)
        {
            self.unknown_about_ns = self.unknown_about_ns.saturating_add(about);
            self.estimated_ns = self.estimated_ns.saturating_add(ns);
        }
        self.unknown_kernels_ns = self.unknown_kernels_ns.saturating_add(kernels_ns);
        self.unknown_ns = self.unknown_ns.saturating_add(ns);
        self.last = until;
        if of.begin > self.last {
            self.gap(&of, coverage);
            self.last = of.begin;
        }
        self.ahead = is_ahead;
        self.open.begins(of.channel, of.begin, of.end, of.about);
        if !of.is_copy {
            self.open_kernels
                .begins(of.channel, of.begin, of.end, of.about);
        }
        if let End::At(end) = of.end
            && end > self.last
        {
            let busy = self.count((self.last, end), true, &of, coverage);
            self.busy_ns = self.busy_ns.saturating_add(busy);
            self.last = end;
        }
    }

    /// The time from the last end to the begin of the next stretch.
    fn gap(&mut self, of: &Stretch, coverage: &Coverage) {
        let (from, until) = (self.last, of.begin);
        let host = |at: u64| at.wrapping_sub(of.begin).wrapping_add(of.host);
        let within = |a: u64, b: u64| coverage.within(host(a), host(b));
        let inside = |at: u64| at.clamp(from, until);
        let waited = of
            .waited
            .map_or((until, until), |(a, b)| (inside(a), inside(b)));
        let waited_ns = within(waited.0, waited.1);
        let ns = self.count((from, until), false, of, coverage);
        let (earliest, latest) = of.there.unwrap_or((from, until));
        let most = within(from, inside(latest)).min(ns.saturating_sub(waited_ns));
        let empty_ns = (within(from, inside(earliest)).min(most), most);
        let idle = Idle {
            ns,
            empty_ns,
            waited_ns,
            dry_ns: (
                if self.ahead.0 { empty_ns.0 } else { 0 },
                if self.ahead.1 { empty_ns.1 } else { 0 },
            ),
        };
        let sum = &mut self.idle;
        for (sum, ns) in [
            (&mut sum.ns, idle.ns),
            (&mut sum.empty_ns.0, idle.empty_ns.0),
            (&mut sum.empty_ns.1, idle.empty_ns.1),
            (&mut sum.waited_ns, idle.waited_ns),
            (&mut sum.dry_ns.0, idle.dry_ns.0),
            (&mut sum.dry_ns.1, idle.dry_ns.1),
        ] {
            *sum = sum.saturating_add(ns);
        }
        // Stamps were not read during all of this time: work that was not seen may lie in it, so it is not listed as one gap.
        if ns < until - from {
            return;
        }
        let at = self.gaps.partition_point(|g| g.idle.ns >= ns);
        if at < LONGEST {
            let gap = Gap {
                begin: from,
                // The clocks run alike for so long as a gap lasts.
                host: host(from),
                idle,
            };
            self.gaps.insert(at, gap);
            self.gaps.truncate(LONGEST);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALL: fn() -> Coverage = Coverage::default;

    fn stretch(begin: u64, end: u64, there: Option<u64>) -> Stretch {
        Stretch {
            begin,
            end: End::At(end),
            there: there.map(|at| (at, at)),
            waited: None,
            host: begin + 1_000_000,
            submitted: begin + 1_000_000,
            channel: ChannelId(0),
            is_copy: false,
            about: u64::MAX,
        }
    }

    #[test]
    fn overlaps_count_once_and_gaps_are_told_by_cause() {
        let mut all = Intervals::default();
        // The third is submitted 30 into a gap of 40. The fourth is submitted in time and begins after a gap of 100: 60 of it is a
        // wait for a semaphore.
        for s in [
            stretch(100, 200, Some(90)),
            stretch(150, 260, Some(90)),
            stretch(300, 310, Some(290)),
            Stretch {
                waited: Some((330, 390)),
                ..stretch(410, 420, Some(300))
            },
        ] {
            all.add(s, &ALL());
        }
        all.finish(&ALL());
        assert_eq!((all.busy_ns, all.sum_ns), (180, 230));
        let idle = Idle {
            ns: 140,
            empty_ns: (30, 30),
            waited_ns: 60,
            // Behind the second, which was submitted while the first one ran.
            dry_ns: (30, 30),
        };
        assert_eq!(all.idle, idle);
        assert_eq!((all.span_ns(), all.unknown_ns), (320, 0));
        let gaps = all.gaps.iter().map(|g| (g.begin, g.host, g.idle.ns));
        let expected = [(310, 1_000_310, 100), (260, 1_000_260, 40)];
        assert_eq!(gaps.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_gap_behind_work_that_began_at_once_is_not_the_end_of_a_queue() {
        let mut all = Intervals::default();
        // Each is submitted behind the end of the one before it.
        for n in 0..5 {
            all.add(stretch(100 * n + 20, 100 * n + 60, Some(100 * n)), &ALL());
        }
        all.finish(&ALL());
        assert_eq!(all.idle.empty_ns, (160, 160));
        assert_eq!(all.idle.dry_ns, (0, 0));
    }

    #[test]
    fn a_gap_behind_work_that_may_have_been_queued_may_be_the_end_of_a_queue() {
        let mut all = Intervals::default();
        // A copy behind a kernel: it was found after the kernel's end, and not at the look before, while the kernel ran.
        all.add(stretch(100, 200, Some(50)), &ALL());
        let copy = Stretch {
            there: Some((150, 204)),
            ..stretch(205, 210, None)
        };
        all.add(copy, &ALL());
        all.add(stretch(300, 400, Some(290)), &ALL());
        all.finish(&ALL());
        assert_eq!(all.idle.empty_ns, (80, 84));
        assert_eq!(all.idle.dry_ns, (0, 80));
    }

    #[test]
    fn when_work_was_handed_in_lies_between_bounds() {
        let mut all = Intervals::default();
        all.add(stretch(100, 200, None), &ALL());
        let second = Stretch {
            there: Some((220, 280)),
            ..stretch(300, 310, None)
        };
        all.add(second, &ALL());
        // Of this one nothing is known.
        all.add(stretch(350, 360, None), &ALL());
        all.finish(&ALL());
        assert_eq!((all.idle.ns, all.idle.empty_ns), (140, (20, 120)));
    }

    #[test]
    fn behind_an_end_that_is_not_known_nothing_is_known() {
        let mut all = Intervals::default();
        let of = |begin, end| Stretch {
            end,
            ..stretch(begin, begin, None)
        };
        for s in [
            stretch(100, 200, None),
            of(250, End::Unknown),
            stretch(400, 500, None),
            stretch(600, 700, None),
            // The first may run until 720 at the latest; the second until 800, but the next one begins at 750.
            of(700, End::Before(720)),
            of(740, End::Before(800)),
            stretch(750, 760, None),
        ] {
            all.add(s, &ALL());
        }
        all.finish(&ALL());
        assert_eq!((all.busy_ns, all.idle.ns, all.unknown_ns), (310, 170, 180));
        assert_eq!(all.gaps.len(), 3);
    }

    #[test]
    fn work_of_another_channel_does_not_end_one_whose_end_is_not_known() {
        let of = |channel, begin, end| Stretch {
            channel: ChannelId(channel),
            is_copy: channel == 1,
            end,
            ..stretch(begin, begin, None)
        };
        let works = [
            of(0, 100, End::Unknown),
            of(1, 200, End::At(300)),
            of(1, 400, End::Unknown),
            of(1, 450, End::At(470)),
            of(0, 600, End::At(650)),
            of(1, 700, End::Unknown),
            of(0, 800, End::At(810)),
        ];
        let (mut all, mut kernels) = (Intervals::default(), Intervals::default());
        for work in works {
            all.add(work, &ALL());
            if !work.is_copy {
                kernels.add(work, &ALL());
            }
        }
        all.finish(&ALL());
        kernels.finish(&ALL());
        assert_eq!((all.busy_ns, all.idle.ns), (180, 50));
        assert_eq!((all.unknown_ns, all.unknown_kernels_ns), (480, 380));
        assert_eq!((kernels.busy_ns, kernels.unknown_ns), (60, 500));
    }

    #[test]
    fn what_a_channel_did_last_goes_on_for_a_while_and_not_for_ever() {
        let second = 1_000_000_000;
        let mut all = Intervals::default();
        let of = |channel, begin, end| Stretch {
            channel: ChannelId(channel),
            end,
            ..stretch(begin, begin, None)
        };
        all.add(of(0, 0, End::Unknown), &ALL());
        all.add(of(1, 40 * second, End::At(41 * second)), &ALL());
        all.add(of(2, 50 * second, End::Unknown), &ALL());
        all.add(of(2, 90 * second, End::At(91 * second)), &ALL());
        all.finish(&ALL());
        assert_eq!(all.busy_ns, 2 * second);
        assert_eq!((all.idle.ns, all.unknown_ns), (39 * second, 50 * second));
    }

    /// Busy for 60 % of each burst; bursts are 5 % of the time. The share is that within bursts, and the time between two bursts is
    /// no gap.
    #[test]
    fn a_sample_tells_the_share() {
        let (mut all, mut coverage) = (Intervals::default(), Coverage::default());
        for burst in 0..50 {
            let begin = burst * 40_000;
            coverage.add(1, begin + 1_000_000, begin + 1_002_000);
            for n in 0..20 {
                // Kernels of 60 every 100 that were seen in this burst; its last one's end was not.
                let at = begin + n * 100;
                let end = match n {
                    19 => End::Unknown,
                    _ => End::At(at + 60),
                };
                all.add(
                    Stretch {
                        end,
                        ..stretch(at, 0, None)
                    },
                    &coverage,
                );
            }
        }
        all.finish(&coverage);
        let share = all.busy_ns as f64 / all.known_ns() as f64;
        let error = all.share_error().expect("many bursts");
        assert!(
            (share - 0.6).abs() < 0.001 && error < 0.01,
            "{share} {error}"
        );
        assert!(all.unknown_ns > 0 && all.unknown_ns <= 50 * 100);
        assert!(all.gaps.iter().all(|g| g.idle.ns == 40), "{:?}", all.gaps);
    }

    proptest! {
        #[test]
        fn any_order_within_the_horizon_gives_the_same(
            mut of in prop::collection::vec((0u64..10_000, 0u64..500), 1..60),
        ) {
            let sums = |of: &[(u64, u64)]| {
                let mut all = Intervals::default();
                for (begin, len) in of {
                    all.add(stretch(*begin, begin + len, None), &ALL());
                }
                all.finish(&ALL());
                prop_assert_eq!(all.busy_ns + all.idle.ns, all.span_ns());
                Ok((all.busy_ns, all.idle.ns, all.sum_ns))
            };
            let mixed = sums(&of)?;
            of.sort_unstable();
            let mut union = 0;
            let mut last = 0;
            for (begin, len) in &of {
                union += (begin + len).saturating_sub(last.max(*begin));
                last = last.max(begin + len);
            }
            prop_assert_eq!(mixed, sums(&of)?);
            prop_assert_eq!(mixed.0, union);
            prop_assert_eq!(mixed.2, of.iter().map(|(_, len)| len).sum::<u64>());
        }
    }
}
