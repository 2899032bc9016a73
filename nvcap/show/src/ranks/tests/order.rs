//! Calls of one communicator on several channels, whose order a look does not tell.

use super::*;

/// A sharded job gathers on one stream and scatters on another. Seen by looks, calls of the two come in an order that is not theirs, and
/// another one in each rank: they are matched by their begins, some of which are not known.
#[test]
fn calls_of_several_channels_are_put_in_order() {
    let mut of = Simulated::new(2);
    for step in 0..STEPS {
        for kind in [
            "AllGather",
            "AllGather",
            "ReduceScatter",
            "AllGather",
            "ReduceScatter",
        ] {
            of.kernel(step % 2, "gemm", GEMM);
            of.collective(1, &[0, 1], kind, 20_000);
        }
    }
    for (rank, swapped) in [(0, 1), (1, 3)] {
        for step in (rank..STEPS).step_by(4) {
            let at = 5 * step + swapped;
            of.job.ranks[rank].calls.swap(at, at + 1);
            of.numbers[rank].swap(at, at + 1);
        }
        let calls = &mut of.job.ranks[rank].calls;
        calls
            .iter_mut()
            .step_by(50)
            .for_each(|call| (call.begin, call.end) = (None, None));
    }
    let (analysis, numbers) = analysed(of);
    let seen = &analysis.seen[0];
    assert_eq!(assert_right(seen, &numbers), 5 * STEPS);
    assert_eq!(seen.of.doubts, []);
}
