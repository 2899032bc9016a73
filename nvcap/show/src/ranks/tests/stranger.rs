//! A process that nobody asked for, beside a job.

use super::*;

/// A stranger names its kernels as NCCL does, and calls collectives of its own: what is said of the job stays.
#[test]
fn a_stranger_is_none_of_the_job() {
    let sums = |strangers: usize| {
        let mut of = Simulated::new(2 + strangers);
        for step in 0..STEPS {
            for rank in 0..2 {
                of.kernel(rank, "gemm", if rank == 1 { 2 * GEMM } else { GEMM });
            }
            of.collective(1, &[0, 1], "AllReduce", 20_000);
            for rank in 2..2 + strangers {
                of.job.ranks[rank].number = None;
                of.kernel(rank, &format!("gemm {step}"), 3 * GEMM);
                of.collective(7, &[rank], "AllReduce", 20_000);
            }
        }
        let (analysis, _) = analysed(of);
        let is_job = |s: &&Seen| s.of.members.len() == 2 && s.of.members.iter().all(|m| m.rank < 2);
        let seen: Vec<&Seen> = analysis.seen.iter().filter(is_job).collect();
        assert_eq!(seen.len(), 1, "{}", text(&analysis));
        assert_eq!(seen[0].of.doubts, []);
        let sum = &seen[0].sums[0];
        (sum.calls, sum.matched, sum.last[1].alone, sum.waited)
    };
    assert_eq!(sums(0).0, 100);
    assert_eq!(sums(1), sums(0));
}

/// A process of another user calls in the job's steps, and longest of all: no communicator has both, and the verdict is the job's.
#[test]
fn another_user_is_in_no_communicator_of_the_job() {
    let analysis = |uids: [Option<u32>; 3]| {
        let mut of = Simulated::new(3);
        for (rank, uid) in of.job.ranks.iter_mut().zip(uids) {
            rank.uid = uid;
        }
        steps(&mut of, STEPS, |of, _, rank| {
            of.kernel(rank, "gemm", [1, 2, 8][rank] * GEMM);
        });
        analysed(of).0
    };
    let members = |of: &Analysis| -> Vec<usize> {
        let counts = of.seen.iter().map(|s| s.of.members.len());
        let mut counts: Vec<usize> = counts.collect();
        counts.sort_unstable();
        counts
    };
    let apart = analysis([Some(1000), Some(1000), Some(1001)]);
    assert_eq!(members(&apart), [1, 2], "{}", text(&apart));
    assert!(
        text(&apart).starts_with("rank 1 comes last"),
        "{}",
        text(&apart)
    );
    // Of whom nothing is known it may be any.
    assert_eq!(members(&analysis([Some(1000), None, Some(1000)])), [3]);
    assert_eq!(members(&analysis([None; 3])), [3]);
}
