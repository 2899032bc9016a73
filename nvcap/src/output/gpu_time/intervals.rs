//! Stretches of time that overlap and come nearly in order: their union, the gaps between them, and their sum.

use std::collections::BTreeMap;

/// How far back a stretch may begin before those that came already, ns. It waits that long for others.
const HORIZON_NS: u64 = 3_000_000_000;
/// The longest gaps that are kept.
const LONGEST: usize = 10;

/// A stretch of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stretch {
    /// Begin and end, ns.
    pub begin: u64,
    pub end: u64,
    /// When it was handed in, where known, ns.
    pub there: Option<u64>,
    /// Its begin on the host's clock, ns.
    pub host: u64,
}

/// A time without work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gap {
    /// Its begin, ns; and on the host's clock.
    pub begin: u64,
    pub host: u64,
    pub ns: u64,
    /// Of it the time in which the next work was not there yet.
    pub nothing_there_ns: u64,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Intervals {
    waiting: BTreeMap<(u64, u64), (Option<u64>, u64)>,
    /// Begin of the first, and end of the last that was added up.
    first: Option<u64>,
    last: u64,
    newest: u64,
    /// Sum of the union, ns.
    pub busy_ns: u64,
    /// Sum of all stretches, ns: more where they overlap.
    pub sum_ns: u64,
    /// Sum of the gaps, and of the parts of them in which nothing was there, ns.
    pub idle_ns: u64,
    pub nothing_there_ns: u64,
    /// The longest, longest first.
    pub gaps: Vec<Gap>,
}

impl Intervals {
    /// Adds one.
    pub(super) fn add(&mut self, stretch: Stretch) {
        self.sum_ns += stretch.end.saturating_sub(stretch.begin);
        self.newest = self.newest.max(stretch.begin);
        // Two with the same ends are one to the union.
        self.waiting
            .insert((stretch.begin, stretch.end), (stretch.there, stretch.host));
        while let Some((&(begin, end), of)) = self.waiting.first_key_value() {
            if begin.saturating_add(HORIZON_NS) > self.newest {
                break;
            }
            let (there, host) = *of;
            self.waiting.pop_first();
            self.sum_up(begin, end, there, host);
        }
    }

    /// Adds up what waits: the end.
    pub(super) fn finish(&mut self) {
        while let Some(((begin, end), (there, host))) = self.waiting.pop_first() {
            self.sum_up(begin, end, there, host);
        }
    }

    /// The time from the begin of the first to the end of the last, ns.
    pub(super) fn span_ns(&self) -> u64 {
        self.last.saturating_sub(self.first.unwrap_or(self.last))
    }

    fn sum_up(&mut self, begin: u64, end: u64, there: Option<u64>, host: u64) {
        if self.first.is_none() {
            (self.first, self.last) = (Some(begin), begin);
        }
        if begin > self.last {
            let ns = begin - self.last;
            let late = there.map_or(0, |t| t.clamp(self.last, begin) - self.last);
            self.idle_ns += ns;
            self.nothing_there_ns += late;
            let gap = Gap {
                begin: self.last,
                // The clocks run alike for so long as a gap lasts.
                host: host.saturating_sub(ns),
                ns,
                nothing_there_ns: late,
            };
            let at = self.gaps.partition_point(|g| g.ns >= ns);
            if at < LONGEST {
                self.gaps.insert(at, gap);
                self.gaps.truncate(LONGEST);
            }
        }
        self.busy_ns += end.saturating_sub(begin.max(self.last));
        self.last = self.last.max(end);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn stretch(begin: u64, end: u64, there: Option<u64>) -> Stretch {
        Stretch {
            begin,
            end,
            there,
            host: begin + 1_000_000,
        }
    }

    #[test]
    fn overlaps_count_once_and_gaps_are_told_by_cause() {
        let mut all = Intervals::default();
        // Handed in late by 30 of a gap of 40; then one that waits for something else.
        for s in [
            stretch(100, 200, Some(90)),
            stretch(150, 260, Some(90)),
            stretch(300, 310, Some(290)),
            stretch(410, 420, Some(300)),
        ] {
            all.add(s);
        }
        all.finish();
        assert_eq!((all.busy_ns, all.sum_ns), (180, 230));
        assert_eq!((all.idle_ns, all.nothing_there_ns), (140, 30));
        assert_eq!(all.span_ns(), 320);
        let gaps: Vec<_> = all.gaps.iter().map(|g| (g.begin, g.host, g.ns)).collect();
        assert_eq!(gaps, [(310, 1_000_310, 100), (260, 1_000_260, 40)]);
    }

    proptest! {
        #[test]
        fn any_order_within_the_horizon_gives_the_same(
            mut of in prop::collection::vec((0u64..10_000, 0u64..500), 1..60),
        ) {
            let sums = |of: &[(u64, u64)]| {
                let mut all = Intervals::default();
                for (begin, len) in of {
                    all.add(stretch(*begin, begin + len, None));
                }
                all.finish();
                prop_assert_eq!(all.busy_ns + all.idle_ns, all.span_ns());
                Ok((all.busy_ns, all.idle_ns, all.sum_ns))
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
        }
    }
}
