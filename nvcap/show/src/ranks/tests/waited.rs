//! Ranks that are late seldom and much, or not much more often than others.

use super::*;

/// One of ten calls waits for the late rank, as the first of a step does: the others wait for it alone.
#[test]
fn a_straggler_once_a_step() {
    let mut of = Simulated::new(3);
    steps(&mut of, STEPS, |of, step, rank| {
        if rank == 1 && step % 10 == 5 {
            of.kernel(rank, "augment", 2_000_000);
        }
        of.kernel(rank, "gemm", GEMM);
    });
    let (analysis, _) = analysed(of);
    let verdict = analysis.verdict();
    let wanted = "rank 1 holds up the others for 40.0 ms in sum: it comes last in 10.0 % of 100 all-reduces, 2.00 ms late on average: 1 more of augment before \
                  each, 2.00 ms";
    assert_eq!(verdict, wanted);
}

/// One of two ranks comes last a little more often than the other.
#[test]
fn the_more_frequent_of_two_by_turns_holds_up_nobody() {
    let mut of = Simulated::new(2);
    steps(&mut of, STEPS, |of, step, rank| {
        let late = usize::from(step % 5 > 2);
        of.kernel(rank, "gemm", if rank == late { 3 * GEMM } else { GEMM })
    });
    let (analysis, _) = analysed(of);
    let verdict = analysis.verdict();
    assert!(
        verdict.starts_with("no rank holds up the others: they come last by turns"),
        "{verdict}"
    );
}

/// Lateness and its causes are means of the same calls: a rank that is a little late as a rule, and much now and then, is as late as its causes
/// take.
#[test]
fn causes_add_up_to_the_lateness() {
    let mut of = Simulated::new(2);
    steps(&mut of, STEPS, |of, step, rank| {
        let more = match (rank, step % 4) {
            (0, _) => 0,
            (_, 0) => 20,
            _ => 1,
        };
        (0..=more).for_each(|_| of.kernel(rank, "gemm", GEMM));
    });
    let (analysis, _) = analysed(of);
    let last = &analysis.seen[0].sums[0].last[1];
    let causes = last.causes.as_ref().expect("causes");
    let gemm = causes.works.values().next().expect("gemm");
    let mean = gemm.ns.unsigned_abs() / causes.calls;
    assert!(mean > 5 * GEMM, "{mean}");
    assert!(last.late.abs_diff(mean) <= ERROR, "{} {mean}", last.late);
}
