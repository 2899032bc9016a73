//! Ranks that had not come to a call when the trace ended.

use super::*;

/// Submissions of a rank just before the end of a trace may not be in it.
#[test]
fn a_rank_that_may_have_come_at_the_end_is_not_absent() {
    for (ns, is_told) in [(99_000_000, false), (101_000_000, true)] {
        let mut of = Simulated::new(2);
        steps(&mut of, STEPS, uneven);
        of.waits(1, 0, "AllReduce");
        of.end(ns);
        let analysis = Analysis::of(of.job);
        assert_eq!(analysis.seen[0].absent.is_some(), is_told, "{ns} ns");
    }
}
