//! A channel that is fed while it is read: between any two reads of a follower, and in the middle of writing an entry, the
//! program goes on. Whatever it does, delivered entries must be the submitted ones, and the rest must be counted.

mod program;

use super::{
    channel::{Begin, Faults, Follower},
    pace::FASTEST_NS,
};
use nvcap_decode::ledger::Ledger;
use nvcap_decode::record::{ChannelId, Lost, Record, Submission};
use program::{Gpu, Program, Simulated, channel, simulated};

/// Result of following a program.
#[derive(Default)]
struct Sum {
    delivered: u64,
    /// Number of submissions that are known not to have been there at the look before.
    dated: u64,
    lost: u64,
    faults: Faults,
    ring_reads: u32,
}

/// Follows a program for `looks` looks, and compares everything that is delivered with the submissions.
fn follow(
    seed: u64,
    entries: u32,
    begin: Begin,
    program: Program,
    looks: u32,
    fails_after: u64,
) -> Sum {
    let memory = begun(seed, entries, begin, program);
    let channel = channel(entries);
    let clock = || memory.0.borrow().time;
    let mut follower = Follower::new(channel.clone(), begin, &memory, clock())
        .unwrap()
        .unwrap();
    memory.0.borrow_mut().fails_after = fails_after;
    let (mut records, mut sum) = (vec![Record::Channel(Box::new(channel))], Sum::default());
    for _ in 0..looks {
        if program.gpu.is_some() && memory.0.borrow().truth.len() > 30_000 {
            break;
        }
        memory.0.borrow_mut().time += if program.gpu.is_some() {
            follower.interval()
        } else {
            FASTEST_NS * u64::from(entries) / 2
        };
        if follower
            .look(&memory, &clock, &mut records, &mut sum.faults)
            .is_err()
        {
            break;
        }
    }
    let inner = memory.0.into_inner();
    sum.ring_reads = inner.ring_reads;
    let truth = Truth {
        seed,
        entries,
        submitted: inner.truth,
        committed: inner.committed,
    };
    truth.compare(&records, &mut sum);
    sum
}

/// Begins a program that is found at its start, or after it has submitted for a while.
fn begun(seed: u64, entries: u32, begin: Begin, program: Program) -> Simulated {
    let memory = simulated(seed, entries, program);
    if program.gpu.is_some() {
        // The driver's, when it makes a channel; the program's come later.
        let mut s = memory.0.borrow_mut();
        s.half();
        s.half();
        s.ran_until = 5_000_000;
    }
    if begin == Begin::Here {
        for _ in 0..2 * (seed % 3000) {
            memory.0.borrow_mut().half();
        }
    }
    memory
}

/// Submissions that a program made.
struct Truth {
    seed: u64,
    /// Number of the ring's entries.
    entries: u32,
    /// Ring entry and bytes of each submission.
    submitted: Vec<(u64, Vec<u8>)>,
    /// Time at which each was committed, ns.
    committed: Vec<u64>,
}

impl Truth {
    /// Checks that all that was delivered was submitted, in this order, and that the rest is counted.
    fn compare(&self, records: &[Record], sum: &mut Sum) {
        let seed = self.seed;
        // Positions that the follower counts are the truth's modulo the ring when it did not see the beginning.
        let mut offset = None;
        let mut ledger = Ledger::new();
        for record in records {
            ledger.record(record);
            match record {
                Record::Submission(s) => {
                    let rounds = self.rounds_before(s);
                    assert!(
                        offset.is_none_or(|o| o <= rounds),
                        "seed {seed}: back by a round at position {}",
                        s.position
                    );
                    offset = Some(rounds);
                    let committed = self.committed[(s.position + rounds) as usize];
                    assert!(
                        s.absent_ns.is_none_or(|at| at <= committed),
                        "seed {seed}: position {} was there at {committed}, {:?}",
                        s.position,
                        s.absent_ns
                    );
                    sum.dated += u64::from(s.absent_ns.is_some());
                    sum.delivered += 1;
                }
                Record::Loss(l) => {
                    if let Lost::Entries { count, .. } = l.what {
                        sum.lost += count;
                    }
                }
                _ => {}
            }
        }
        let of = ledger.channel(ChannelId(3)).unwrap();
        assert_eq!((of.repeated, of.contradictions), (0, 0), "seed {seed}");
        assert_eq!(
            of.gaps, sum.lost,
            "seed {seed}: gaps are told by the source"
        );
    }

    /// Finds where a submission was made: the number of entries, in whole rounds, behind its delivered position.
    fn rounds_before(&self, s: &Submission) -> u64 {
        let segment = &s.segments[0];
        // A round that was not counted is a loss too few, not a submission too many.
        let found = (s.position..self.submitted.len() as u64)
            .step_by(self.entries as usize)
            .find(|p| {
                let t = &self.submitted[*p as usize];
                t.0 == segment.entry && t.1 == segment.bytes
            });
        let position = found.unwrap_or_else(|| {
            panic!(
                "seed {}: position {} was never submitted so",
                self.seed, s.position
            )
        });
        position - s.position
    }
}

const SLOW: Program = Program {
    most: 5,
    one_in: 1,
    memory: 1 << 20,
    alike: false,
    words: 40,
    releases: true,
    gpu: None,
};

#[test]
fn a_program_that_can_be_followed_loses_nothing() {
    for seed in 0..60 {
        for begin in [Begin::First, Begin::Here] {
            let sum = follow(seed, 128, begin, SLOW, 300, u64::MAX);
            assert!(sum.delivered > 1000, "{}", sum.delivered);
            // All but what the begin and looks in pieces find.
            assert!(10 * sum.dated > 9 * sum.delivered, "{}", sum.dated);
            assert_eq!(
                (sum.lost, sum.faults),
                (0, Faults::default()),
                "seed {seed}"
            );
        }
    }
}

#[test]
fn a_program_that_is_too_fast_is_shown_in_part_and_the_rest_counted() {
    let fast = Program {
        most: 400,
        one_in: 3,
        ..SLOW
    };
    let mut laps = 0;
    for seed in 0..60 {
        for begin in [Begin::First, Begin::Here] {
            let sum = follow(seed, 128, begin, fast, 60, u64::MAX);
            laps += sum.faults.laps;
            assert!(sum.lost > 0, "seed {seed}");
        }
    }
    assert!(laps > 400, "{laps}");
}

#[test]
fn entries_that_look_alike_round_after_round_are_told_apart_by_their_payload() {
    let fast = Program {
        most: 400,
        one_in: 3,
        memory: 128 * 256,
        alike: true,
        words: 30,
        releases: true,
        gpu: None,
    };
    let mut laps = 0;
    for seed in 0..60 {
        laps += follow(seed, 128, Begin::First, fast, 60, u64::MAX)
            .faults
            .laps;
        laps += follow(seed, 128, Begin::Here, fast, 60, u64::MAX)
            .faults
            .laps;
    }
    assert!(laps > 400, "{laps}");
}

#[test]
fn memory_used_again_before_it_was_read_is_never_shown() {
    // Room for about forty entries behind a ring of 128.
    let small = Program {
        most: 90,
        one_in: 4,
        memory: 4 << 10,
        ..SLOW
    };
    let mut reused = 0;
    for seed in 0..60 {
        reused += follow(seed, 128, Begin::First, small, 100, u64::MAX)
            .faults
            .reused;
    }
    assert!(reused > 400, "{reused}");
}

#[test]
fn a_ring_that_goes_away_at_any_moment_is_an_end_and_no_panic() {
    for reads in 0..400 {
        follow(7, 128, Begin::First, SLOW, 300, reads);
    }
}

/// A program that uses memory as libcuda does, about as fast as its GPU: now one waits, now the other.
fn paced(gpu: Gpu) -> Program {
    Program {
        memory: 1024 * 268,
        words: 40,
        gpu: Some(gpu),
        ..SLOW
    }
}

const GPU: Gpu = Gpu {
    entry_ns: 2_700,
    submit_ns: 2_600,
    readable: true,
    ahead: 0,
};

#[test]
fn peeks_find_in_time_what_may_be_used_again() {
    let (mut lost, mut lost_blind, mut spared) = (0, 0, 0);
    let speeds = [
        (2_700, 2_600),
        (2_600, 2_700),
        (2_600, 1_200),
        (2_600, 3_400),
    ];
    for (entry_ns, submit_ns) in speeds {
        for seed in 0..20 {
            let one = |readable| {
                let gpu = Gpu {
                    entry_ns,
                    submit_ns,
                    readable,
                    ahead: 0,
                };
                follow(seed, 1024, Begin::First, paced(gpu), 100_000, u64::MAX)
            };
            let (seen, blind) = (one(true), one(false));
            if seen.lost > 0 {
                println!(
                    "S {entry_ns} {submit_ns} {seed}: {} {:?} {}",
                    seen.lost, seen.faults, seen.delivered
                );
            }
            lost += seen.lost;
            lost_blind += blind.lost;
            spared += u32::from(seen.ring_reads < blind.ring_reads);
        }
    }
    // Of 2.4 million. Memory that is used again within microseconds cannot be read by anyone.
    assert!(lost <= 1, "{lost}");
    assert!(lost_blind > 5, "{lost_blind}");
    // Where the program waits for the GPU.
    assert!(spared >= 20, "{spared}");
}

#[test]
fn a_channel_that_is_used_and_stands_still_is_peeked_at_from_the_first_look_on() {
    let memory = simulated(7, 1024, paced(GPU));
    for _ in 0..2_000 {
        let mut s = memory.0.borrow_mut();
        s.time += 3_000;
        s.run();
    }
    // No more comes, and the GPU runs all of it.
    memory.0.borrow_mut().ran_until = u64::MAX;
    {
        let mut s = memory.0.borrow_mut();
        s.done = s.put;
    }
    let clock = || memory.0.borrow().time;
    let mut follower = Follower::new(channel(1024), Begin::Here, &memory, clock())
        .unwrap()
        .unwrap();
    memory.0.borrow_mut().ring_reads = 0;
    let mut peeked = 0;
    for _ in 0..100 {
        memory.0.borrow_mut().time += follower.interval();
        let looked = follower
            .look(&memory, &clock, &mut Vec::new(), &mut Faults::default())
            .unwrap();
        peeked += u32::from(looked.peeked);
    }
    assert!(peeked > 90, "{peeked}");
    assert!(memory.0.borrow().ring_reads < 10);
}

#[test]
fn a_semaphore_that_is_ahead_is_not_believed_and_nothing_is_lost() {
    for seed in 0..10 {
        let gpu = Gpu { ahead: 30, ..GPU };
        let sum = follow(seed, 1024, Begin::First, paced(gpu), 100_000, u64::MAX);
        assert!(sum.delivered > 20_000, "seed {seed}");
        assert_eq!(sum.lost, 0, "seed {seed}");
    }
}

/// The process ends in the middle of the first look, at each of its reads. Entries that GP_PUT announced are shown or
/// counted.
#[test]
fn what_an_interrupted_look_knew_is_counted() {
    let still = Program {
        most: 0,
        one_in: u64::MAX,
        ..SLOW
    };
    let mut interrupted = 0;
    // The first read is that of taking the channel on.
    for reads in 2.. {
        let memory = simulated(5, 1024, still);
        for _ in 0..2 * 600 {
            memory.0.borrow_mut().half();
        }
        let clock = || memory.0.borrow().time;
        let announced = channel(1024);
        let mut follower = Follower::new(announced.clone(), Begin::First, &memory, clock())
            .unwrap()
            .unwrap();
        memory.0.borrow_mut().fails_after = reads;
        let mut records = vec![Record::Channel(Box::new(announced))];
        let mut faults = Faults::default();
        let mut ended = false;
        while !ended && (follower.phase().is_behind() || follower.seen == 0) {
            let looked = follower.look(&memory, &clock, &mut records, &mut faults);
            ended = looked.is_err();
        }
        follower.end(clock(), &mut records);
        let mut ledger = Ledger::new();
        records.iter().for_each(|r| ledger.record(r));
        let totals = ledger.totals();
        assert_eq!(totals.entries + totals.gaps, 600, "after {reads} reads");
        if !ended {
            break;
        }
        interrupted += 1;
    }
    assert!(interrupted > 5, "{interrupted}");
}
