//! A process that nobody asked for, beside a job.

use super::*;

/// It names its kernels as NCCL does, and calls collectives of its own: what is said of the job stays.
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
