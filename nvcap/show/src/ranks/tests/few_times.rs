//! Calls of which few have times.

use super::*;

/// Times of a few calls, of others in each rank, contradict nothing: the order tells.
#[test]
fn few_times_leave_the_order() {
    let mut of = Simulated::new(2);
    steps(&mut of, STEPS, uneven);
    for (rank, timed) in [(0, 10..14), (1, 60..64)] {
        let calls = of.job.ranks[rank].calls.iter_mut().enumerate();
        for (_, call) in calls.filter(|(n, _)| !timed.contains(n)) {
            (call.begin, call.end) = (None, None);
        }
    }
    let (analysis, numbers) = analysed(of);
    assert_eq!(assert_right(&analysis.seen[0], &numbers), STEPS);
    let sum = &analysis.seen[0].sums[0];
    assert_eq!((sum.matched, sum.timed), (100, 0));
    let said = analysis.verdict();
    assert!(said.starts_with("who comes last is not known"), "{said}");
    let shown = text(&analysis);
    assert!(shown.contains("matched by their order alone"), "{shown}");
}
