//! The analysis against jobs of which it is known who held up whom.

mod absent;
mod few_times;
mod order;
mod stranger;
mod waited;

use proptest::prelude::*;

use super::analysis::{Analysis, Seen};
use super::job::{Call, Class, Comm, Job, Rank, Work};
use super::matching::Doubt;
use super::shares::{self, Shares};
use super::simulated::{ERROR, Simulated};

const STEPS: usize = 100;
const GEMM: u64 = 70_000;

/// Runs steps of all `ranks`, in each of which a rank does `work` and then an all-reduce of 20 us on one communicator.
fn steps(of: &mut Simulated, steps: usize, mut work: impl FnMut(&mut Simulated, usize, usize)) {
    let ranks: Vec<usize> = (0..of.job.ranks.len()).collect();
    for step in 0..steps {
        for &rank in &ranks {
            work(of, step, rank);
        }
        of.collective(1, &ranks, "AllReduce", 20_000);
    }
}

fn analysed(mut of: Simulated) -> (Analysis, Vec<Vec<u64>>) {
    of.end(1_000);
    (Analysis::of(of.job), of.numbers)
}

fn text(of: &Analysis) -> String {
    let mut out = Vec::new();
    of.text(&mut out);
    String::from_utf8(out).expect("text")
}

/// Asserts that calls are matched with those of the same number, and with no others. Returns the number of calls that all ranks have.
fn assert_right(seen: &Seen, numbers: &[Vec<u64>]) -> usize {
    let mut whole = 0;
    for call in &seen.of.calls {
        let of = call.of.iter().zip(&seen.of.members);
        let mut found: Vec<u64> = of
            .filter_map(|(n, m)| Some(numbers[m.rank][(*n)?]))
            .collect();
        found.dedup();
        assert_eq!(found.len(), 1, "{call:?}");
        whole += usize::from(call.is_whole());
    }
    whole
}

#[test]
fn a_straggler_by_more_kernels() {
    let mut of = Simulated::new(4);
    steps(&mut of, STEPS, |of, _, rank| {
        for _ in 0..if rank == 1 { 40 } else { 10 } {
            of.kernel(rank, "gemm", GEMM);
        }
    });
    let (analysis, numbers) = analysed(of);
    let seen = &analysis.seen[0];
    assert_eq!(assert_right(seen, &numbers), STEPS);
    assert_eq!(seen.of.doubts, []);
    let sum = &seen.sums[0];
    assert_eq!(
        (sum.calls, sum.matched, sum.timed, sum.attributed),
        (100, 100, 100, 100)
    );
    let late = 30 * GEMM;
    assert!(
        sum.skew[0].abs_diff(late) <= ERROR && sum.error == ERROR,
        "{sum:?}"
    );
    assert_eq!((sum.last[1].alone, sum.last[0].alone), (100, 0));
    // Three ranks wait in each call.
    assert!(
        sum.waited.abs_diff(3 * 100 * late) <= sum.waited_error,
        "{sum:?}"
    );
    assert!(sum.waited_error <= 3 * 100 * ERROR);
    assert_eq!(
        analysis.verdict(),
        "rank 1 comes last in 100.0 % of 100 all-reduces, 2.10 ms late on average: 30 more of gemm before each, 2.10 ms"
    );
    // In each rank all time is told, and the others wait for three quarters of theirs.
    for (rank, its) in analysis.shares.iter().enumerate() {
        let parts = its.compute + its.exposed + its.waiting + its.copying + its.unknown + its.idle;
        assert_eq!(parts, its.span);
        let waits = if rank == 1 { 0 } else { 100 * late };
        assert!(
            its.waiting.abs_diff(waits) <= 100 * ERROR,
            "{rank}: {its:?}"
        );
        assert!(
            its.exposed.abs_diff(100 * 20_000) <= 100 * ERROR,
            "{rank}: {its:?}"
        );
    }
    let text = text(&analysis);
    assert!(
        text.contains("rank 1 100.0 %") && text.contains("communicator 0: ranks 0-3"),
        "{text}"
    );
}

#[test]
fn a_straggler_by_a_slower_kernel() {
    let mut of = Simulated::new(2);
    steps(&mut of, STEPS, |of, _, rank| {
        of.kernel(rank, "softmax", 30_000);
        of.kernel(rank, "gemm", if rank == 0 { 3 * GEMM } else { 2 * GEMM });
    });
    let (analysis, _) = analysed(of);
    assert_eq!(
        analysis.verdict(),
        "rank 0 comes last in 100.0 % of 100 all-reduces, 69.6 us late on average: gemm takes it 70.0 us more before each, 1.50 times as long as the others"
    );
}

#[test]
fn a_straggler_by_its_host() {
    let mut of = Simulated::new(3);
    steps(&mut of, STEPS, |of, _, rank| {
        of.kernel(rank, "gemm", GEMM);
        // Every host waits for its GPU; one thinks for longer, then submits another kernel.
        of.pause(rank, if rank == 2 { 2_000_000 } else { 50_000 });
        of.kernel(rank, "softmax", 30_000);
    });
    let (analysis, _) = analysed(of);
    assert_eq!(
        analysis.verdict(),
        "rank 2 comes last in 100.0 % of 100 all-reduces, 1.95 ms late on average: nothing is submitted for 1.95 ms more before each: its host is late"
    );
    let causes = analysis.seen[0].sums[0].last[2]
        .causes
        .as_ref()
        .expect("causes");
    // Of the first call it is not known when the time before it began.
    assert_eq!(causes.calls, 99);
    assert_eq!(causes.idle, causes.nothing);
}

#[test]
fn work_that_waits_is_not_the_hosts_fault() {
    let mut of = Simulated::new(2);
    steps(&mut of, 20, |of, _, rank| {
        of.kernel(rank, "gemm", GEMM);
        of.pause(rank, if rank == 1 { 400_000 } else { 0 });
        of.kernel(rank, "softmax", 30_000);
    });
    // It was submitted long before, as if it waited for a semaphore.
    for work in &mut of.job.ranks[1].works {
        work.there = Some(1);
    }
    let (analysis, _) = analysed(of);
    assert!(
        analysis.verdict().ends_with(
            "its GPU is idle for 400 us more before each, with work submitted that waits"
        ),
        "{}",
        analysis.verdict()
    );
}

#[test]
fn nobody_holds_up_the_others() {
    let mut of = Simulated::new(4);
    // Skews of less than the error.
    steps(&mut of, STEPS, |of, step, rank| {
        of.kernel(
            rank,
            "gemm",
            GEMM + (step as u64 * 7 + rank as u64 * 31) % 100,
        )
    });
    let (analysis, _) = analysed(of);
    let sum = &analysis.seen[0].sums[0];
    assert_eq!((sum.timed, sum.attributed), (100, 0));
    assert!(
        analysis
            .verdict()
            .starts_with("no rank holds up the others: ranks come together (in 0 of 100 calls"),
        "{}",
        analysis.verdict()
    );
}

#[test]
fn ranks_come_last_by_turns() {
    let mut of = Simulated::new(4);
    steps(&mut of, STEPS, |of, step, rank| {
        of.kernel(rank, "gemm", if step % 4 == rank { 3 * GEMM } else { GEMM })
    });
    let (analysis, _) = analysed(of);
    let sum = &analysis.seen[0].sums[0];
    assert!(sum.last.iter().all(|l| l.alone == 25), "{sum:?}");
    assert!(
        analysis.verdict().starts_with(
            "no rank holds up the others: they come last by turns (in 100 of 100 calls"
        ),
        "{}",
        analysis.verdict()
    );
}

/// Two of four ranks are late by the same: neither is the last one, and both are among the last.
#[test]
fn two_stragglers_are_both_last() {
    let mut of = Simulated::new(4);
    steps(&mut of, STEPS, |of, _, rank| {
        of.kernel(rank, "gemm", if rank > 1 { 3 * GEMM } else { GEMM })
    });
    let (analysis, _) = analysed(of);
    let sum = &analysis.seen[0].sums[0];
    assert_eq!(sum.attributed, 100);
    let last: Vec<_> = sum.last.iter().map(|l| (l.alone, l.among)).collect();
    assert_eq!(last, [(0, 0), (0, 0), (0, 100), (0, 100)]);
}

/// Does work of unequal length, so that the times of calls tell them apart.
fn uneven(of: &mut Simulated, step: usize, rank: usize) {
    of.kernel(
        rank,
        "gemm",
        GEMM + (step as u64 * 7919 + rank as u64 * 104_729) % 500_000,
    );
}

#[test]
fn ranks_that_were_seen_from_other_calls_on() {
    let mut of = Simulated::new(4);
    steps(&mut of, STEPS, uneven);
    of.forget(1, 3);
    of.forget(2, 7);
    let (analysis, numbers) = analysed(of);
    let seen = &analysis.seen[0];
    assert_eq!(seen.of.members.len(), 4);
    assert_eq!(assert_right(seen, &numbers), STEPS - 7);
    assert_eq!(seen.of.doubts, []);
    let sum = &seen.sums[0];
    assert_eq!((sum.calls, sum.matched), (100, 93));
    assert_eq!(seen.absent, None);
}

#[test]
fn calls_behind_a_loss_are_not_shifted_in_silence() {
    for lost in [1, 2, 5] {
        let mut of = Simulated::new(3);
        steps(&mut of, 40, uneven);
        of.lose(1, lost);
        steps(&mut of, 30, uneven);
        // Another rank loses some, too.
        of.lose(2, lost + 1);
        steps(&mut of, 30, uneven);
        let (analysis, numbers) = analysed(of);
        let seen = &analysis.seen[0];
        assert_eq!(seen.of.members.len(), 3, "{lost}");
        assert_eq!(assert_right(seen, &numbers), STEPS - 2 * lost - 1, "{lost}");
        let doubts = &seen.of.doubts;
        assert!(
            doubts.contains(&Doubt::Loss(1)) && doubts.contains(&Doubt::Loss(2)),
            "{doubts:?}"
        );
        assert!(
            doubts.contains(&Doubt::Between(2 * lost as u64 + 1)),
            "{doubts:?}"
        );
        assert!(text(&analysis).contains("not certain: entries of rank 1 are missing, and calls behind them are matched by their times"));
    }
}

/// Calls behind a loss are not matched without times: nothing tells how many are missing.
#[test]
fn without_times_a_loss_ends_the_matching() {
    let mut of = Simulated::new(2);
    of.untimed = true;
    steps(&mut of, 40, uneven);
    of.lose(1, 2);
    steps(&mut of, 30, uneven);
    let (analysis, numbers) = analysed(of);
    let seen = &analysis.seen[0];
    assert_eq!(assert_right(seen, &numbers), 38);
    let sum = &seen.sums[0];
    // 30 calls of rank 1 have no place; they may be those of rank 0, or not.
    assert_eq!((sum.calls, sum.matched, sum.timed), (100, 38, 0));
    assert_eq!(
        seen.of
            .doubts
            .iter()
            .filter(|d| matches!(d, Doubt::Loss(1) | Doubt::Order(_)))
            .count(),
        2
    );
    assert!(
        analysis.verdict().contains("who comes last is not known")
            && analysis.verdict().contains("nvcap record --gpu-time"),
        "{}",
        analysis.verdict()
    );
}

#[test]
fn a_rank_that_does_not_come() {
    let mut of = Simulated::new(4);
    steps(&mut of, STEPS, uneven);
    for rank in [0, 1, 3] {
        of.waits(1, rank, "AllReduce");
    }
    of.end(12_000_000_000);
    let analysis = Analysis::of(of.job);
    let absent = analysis.seen[0]
        .absent
        .as_ref()
        .expect("rank 2 has not come");
    assert_eq!(
        (absent.number, &absent.absent[..], &absent.present[..]),
        (101, &[2][..], &[0, 1, 3][..])
    );
    assert_eq!(
        analysis.verdict(),
        "rank 2 has not come to all-reduce 101 of communicator 0, for which ranks 0-1, 3 have waited for 12.0 s"
    );
    assert!(text(&analysis).contains("all-reduce 101 at the end of the trace: ranks 0-1, 3 there"));
    // The simulated rank 2 is process 102.
    assert_eq!(analysis.absent(), [102]);
    let place = "next_batch (data.py:31)".to_owned();
    let told = analysis.with_places([(102, place.clone()), (7, "x".to_owned())].into());
    assert!(text(&told).contains("\n    rank 2: python at next_batch (data.py:31)\n"));
    let python = &told.json()["communicators"][0]["absent"]["python"];
    assert_eq!(*python, serde_json::json!([place]));
}

/// A rank whose trace ended before is not said to be missing; nor is one whose partners' call has ended.
#[test]
fn a_rank_that_was_not_traced_to_the_end() {
    let mut of = Simulated::new(2);
    steps(&mut of, STEPS, uneven);
    let kept = of.job.ranks[1].calls[59].end.expect("an end");
    of.lose(1, 40);
    of.end(0);
    let analysis = Analysis::of(of.job.clone());
    assert_eq!(analysis.seen[0].absent, None);
    of.job.ranks[1].until = kept;
    assert_eq!(Analysis::of(of.job).seen[0].absent, None);
}

#[test]
fn communicators_are_told_apart() {
    // Two pairs of tensor parallelism, each with its own speed, and two pairs across them.
    let mut of = Simulated::new(4);
    for step in 0..STEPS {
        for layer in 0..3 {
            for rank in 0..4 {
                uneven(&mut of, step * 3 + layer, rank);
                of.kernel(
                    rank,
                    "norm",
                    1_000 + 90_000 * (rank as u64 / 2) * (layer as u64 % 2),
                );
            }
            of.collective(1, &[0, 1], "AllReduce", 10_000);
            of.collective(1, &[2, 3], "AllReduce", 10_000);
        }
        for rank in 0..4 {
            of.kernel(
                rank,
                "shard",
                1_000 + (step as u64 * 6_151 + rank as u64 * 24_593) % 300_000,
            );
        }
        of.collective(2, &[0, 2], "ReduceScatter", 15_000);
        of.collective(2, &[1, 3], "ReduceScatter", 15_000);
    }
    let (analysis, numbers) = analysed(of);
    let mut groups: Vec<_> = { analysis.seen.iter() }
        .map(|s| s.of.members.iter().map(|m| m.rank).collect::<Vec<_>>())
        .collect();
    groups.sort();
    assert_eq!(groups, [vec![0, 1], vec![0, 2], vec![1, 3], vec![2, 3]]);
    for seen in &analysis.seen {
        let calls = seen.of.calls.len();
        assert_eq!(assert_right(seen, &numbers), calls);
        assert_eq!(seen.of.doubts, [], "{:?}", seen.of.members);
    }
}

/// Communicators whose ranks always come together look like one, which is said. The waits are the same.
#[test]
fn communicators_in_step_are_not_told_apart_and_that_is_said() {
    let mut of = Simulated::new(4);
    for step in 0..STEPS {
        for rank in 0..4 {
            of.kernel(rank, "gemm", GEMM * (1 + rank as u64 % 2));
        }
        let both = [[0, 1], [2, 3]];
        both.iter()
            .for_each(|ranks| of.collective(1, ranks, "AllReduce", 20_000));
        // Something keeps the pairs together.
        let free = 1_000_000_000 + step as u64 * 2_000_000;
        (0..4).for_each(|rank| of.idle_until(rank, free));
    }
    let (analysis, _) = analysed(of);
    assert_eq!(analysis.seen[0].of.members.len(), 4);
    assert_eq!(analysis.seen[0].of.doubts, [Doubt::Several]);
    assert!(analysis.verdict().ends_with("; not certain: it may be several communicators in step: no rank came last by more than a call takes"), "{}", analysis.verdict());
}

#[test]
fn calls_of_different_kinds_are_no_pair() {
    let mut of = Simulated::new(2);
    steps(&mut of, 300, uneven);
    let kind = of.job.names.number("AllGather");
    of.job.ranks[1].calls[150].kind = kind;
    let (analysis, _) = analysed(of);
    assert!(
        analysis.seen[0].of.doubts.contains(&Doubt::Kinds(1)),
        "{:?}",
        analysis.seen[0].of.doubts
    );
}

#[test]
fn what_makes_a_matching_uncertain() {
    let mut of = Simulated::new(2);
    steps(&mut of, STEPS, uneven);
    of.job.ranks[0].unnamed = 3;
    for call in &mut of.job.ranks[1].calls {
        call.comm = Comm::Channel(7);
    }
    let (analysis, _) = analysed(of);
    assert_eq!(
        analysis.seen[0].of.doubts,
        [Doubt::Channel(1), Doubt::Unnamed(0)]
    );
    // One call is too few to know which of another's it is.
    let mut of = Simulated::new(2);
    steps(&mut of, 1, uneven);
    let (analysis, _) = analysed(of);
    assert_eq!(analysis.seen[0].of.doubts, [Doubt::Moved(1)]);
}

#[test]
fn nothing_to_compare() {
    let verdict = |job: Job| Analysis::of(job).verdict().to_owned();
    assert!(verdict(Job::default()).starts_with("no collective was seen"));
    let mut of = Simulated::new(1);
    steps(&mut of, 3, uneven);
    let called = || of.job.ranks[0].clone();
    assert!(verdict(of.job.clone()).starts_with("rank 0 alone called collectives"));
    for (ranks, others, whose) in [
        (vec![], 1, ""),
        (vec![called()], 1, " of another process"),
        (vec![called()], 2, " of other processes"),
    ] {
        let job = Job {
            ranks,
            others,
            others_unnamed: 2,
            ..Job::default()
        };
        let said = verdict(job);
        let end = format!("; 2 kernels{whose} have no name, and may be collectives");
        assert!(said.ends_with(&end), "{said}");
    }
    // Two ranks, not at the same time.
    let mut of = Simulated::new(2);
    of.collective(1, &[0], "AllReduce", 10);
    of.pause(1, 1_000_000_000);
    of.collective(1, &[1], "AllReduce", 10);
    assert!(verdict(of.job).starts_with("no call of a collective could be matched"));
}

#[test]
fn time_is_told_by_what_it_went_to() {
    let work = |class, begin, end| Work {
        begin,
        end,
        there: None,
        name: 0,
        class,
    };
    let rank = Rank {
        works: vec![
            work(Class::Kernel, 100, 200),
            work(Class::Kernel, 150, 250),
            work(Class::Collective, 220, 400),
            work(Class::Copy, 380, 450),
            work(Class::Kernel, 500, 510),
        ],
        // Beyond the span, beside a copy, and where nothing is known to have run.
        unknown: vec![(0, 90), (440, 480), (470, 490), (505, 600)],
        ..Rank::default()
    };
    let expected = Shares {
        span: 410,
        compute: 160,
        hidden: 30,
        exposed: 100,
        waiting: 50,
        copying: 50,
        unknown: 40,
        idle: 10,
    };
    assert_eq!(shares::of(&rank, &[(220, 300)]), expected);
    assert_eq!(shares::of(&Rank::default(), &[]), Shares::default());
}

#[test]
fn json_has_all() {
    let mut of = Simulated::new(2);
    steps(&mut of, STEPS, |of, _, rank| {
        for _ in 0..=rank {
            of.kernel(rank, "gemm", GEMM);
        }
    });
    let (analysis, _) = analysed(of);
    let json = analysis.json();
    assert_eq!(json["type"], "ranks");
    assert_eq!(json["verdict"], analysis.verdict());
    let of = &json["communicators"][0];
    assert_eq!(of["certain"], true);
    let kind = &of["kinds"][0];
    assert_eq!(
        (&kind["kind"], &kind["unmatched"]),
        (&"AllReduce".into(), &0.into())
    );
    let causes = &kind["members"][1]["causes"];
    assert_eq!(
        (&causes["works"][0]["name"], &causes["works"][0]["more"]),
        (&"gemm".into(), &99.into())
    );
    assert_eq!(json["ranks"][1]["rank"], 1);
}

fn call() -> impl Strategy<Value = Call> {
    let time = prop::option::of(0u64..2_000);
    (
        0u64..3,
        0u32..3,
        time,
        prop::option::of(0u64..500),
        0u64..50,
        0u32..3,
    )
        .prop_map(|(comm, kind, begin, length, error, epoch)| Call {
            comm: Comm::Argument(comm),
            kind,
            begin,
            error,
            end: begin.zip(length).map(|(b, l)| b + l),
            end_error: 3 * error,
            submitted: begin,
            epoch,
        })
}

proptest! {
    /// Any calls leave each call in one place at most, lose none from the counts, and make nothing panic.
    #[test]
    fn any_calls(of in prop::collection::vec(prop::collection::vec(call(), 0..30), 0..5)) {
        let mut job = Job::default();
        for kind in ["AllReduce", "Broadcast", "SendRecv"] {
            job.names.number(kind);
        }
        let all: usize = of.iter().map(Vec::len).sum();
        for mut calls in of {
            calls.sort_by_key(|c| c.epoch);
            job.ranks.push(Rank { calls, until: 1_000, ..Rank::default() });
        }
        let analysis = Analysis::of(job);
        let mut places = Vec::new();
        let mut astray = 0;
        for seen in &analysis.seen {
            for call in &seen.of.calls {
                for (n, member) in call.of.iter().zip(&seen.of.members) {
                    places.extend(n.map(|n| (member.rank, n)));
                }
            }
            astray += seen.of.astray.values().sum::<u64>();
        }
        let found = places.len();
        places.sort_unstable();
        places.dedup();
        prop_assert_eq!(places.len(), found);
        prop_assert_eq!(found as u64 + astray, all as u64);
        text(&analysis);
        let _ = analysis.json();
    }
}
