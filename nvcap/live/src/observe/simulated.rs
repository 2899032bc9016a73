//! A channel that is fed while it is read: between any two reads of a follower's, and in the middle of writing an
//! entry, the program goes on. Whatever it does, what is delivered must be what was submitted, and the rest be
//! counted.

use std::{cell::RefCell, io};

use super::{
    channel::{Begin, Faults, Follower},
    pace::FASTEST_NS,
};
use nvcap_decode::ledger::Ledger;
use nvcap_decode::record::{At, Channel, ChannelId, CpuVa, Lost, Origin, Record};
use nvcap_process::memory::scan::GP_GET;
use nvcap_process::procfs::mem::Peek;

const RING: u64 = 0x2_0060_0000;
const USERD: u64 = 0x2_0060_2000;
const PUSHBUFFER: u64 = 0x2_0080_0000;
const SEMAPHORE: u64 = 0x2_0460_fff0;

/// Behaviour of the program between two reads.
#[derive(Clone, Copy)]
struct Program {
    /// Entries at most.
    most: u64,
    /// One in so many times; else nothing.
    one_in: u64,
    /// Bytes of pushbuffer memory, which is used again and again.
    memory: u64,
    /// Entries look alike from round to round: their memory goes round with the ring.
    alike: bool,
    /// Words of an entry at most.
    words: u64,
    /// Each entry ends with a release of the channel's semaphore.
    releases: bool,
    /// Simulated GPU that runs the entries; without one they are never waited for.
    gpu: Option<Gpu>,
}

/// Simulated GPU. The program waits for it only when the ring is full, and only then, as libcuda, looks how far it is;
/// if it is done with all, pushbuffer memory is used from its beginning again.
#[derive(Clone, Copy)]
struct Gpu {
    /// Time that it needs for an entry, ns.
    entry_ns: u64,
    /// Time that the program needs to submit one, ns.
    submit_ns: u64,
    /// Its semaphore can be read from outside.
    readable: bool,
    /// Amount by which the number read from the semaphore is too high.
    ahead: u32,
}

struct Inner {
    /// Slots of eight bytes.
    ring: Vec<u8>,
    put: u64,
    memory: Vec<u8>,
    offset: u64,
    truth: Vec<(u64, Vec<u8>)>,
    random: u64,
    reads: u64,
    /// Reads of the ring and of USERD.
    ring_reads: u32,
    fails_after: u64,
    program: Program,
    /// An entry whose words and slot are written and which is not committed.
    written: bool,
    /// ns.
    time: u64,
    /// Entries that the GPU is done with, until when that is computed, and how many of them the program knows of.
    done: u64,
    done_at: u64,
    known_done: u64,
    ran_until: u64,
}

struct Simulated(RefCell<Inner>);

impl Inner {
    fn random(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % below.max(1)
    }

    fn slots(&self) -> u64 {
        self.ring.len() as u64 / 8
    }

    fn words(&mut self) -> Vec<u8> {
        let payload = self.truth.len() as u32 + 1;
        let inline = self.random(self.program.words) as u32;
        let mut bytes = Vec::with_capacity(4 * (inline as usize + 6));
        bytes.extend_from_slice(&(0x6000_006d | (inline << 16)).to_le_bytes());
        // A byte of its own, between two words that are. Written so, because millions are made.
        let fill = (payload.wrapping_mul(0x9e37_79b9) >> 24) as u8;
        bytes.resize(4 * (inline as usize + 1), fill);
        if inline > 0 {
            let last = 4 * inline as usize;
            bytes[4..8].copy_from_slice(&payload.to_le_bytes());
            bytes[last..].copy_from_slice(&payload.to_le_bytes());
        }
        if self.program.releases {
            for word in [0x2004_26c0, 2, 0x0460_fff0, payload, 0] {
                bytes.extend_from_slice(&word.to_le_bytes());
            }
        }
        bytes
    }

    /// Half a submission: first its bytes and its entry, then GP_PUT.
    fn half(&mut self) {
        if std::mem::take(&mut self.written) {
            self.put += 1;
            if self.program.gpu.is_none() {
                self.time += FASTEST_NS;
            }
            return;
        }
        let bytes = self.words();
        let len = bytes.len() as u64;
        let slots = self.slots();
        let position = self.truth.len() as u64;
        if self.program.alike {
            self.offset = position % slots * (self.program.memory / slots);
        } else if self.offset + len > self.program.memory {
            self.offset = 0;
        }
        let at = self.offset as usize;
        self.memory[at..at + bytes.len()].copy_from_slice(&bytes);
        let entry = (PUSHBUFFER + self.offset) | (len / 4) << 42;
        self.offset += len;
        let slot = (position % slots) as usize * 8;
        self.ring[slot..slot + 8].copy_from_slice(&entry.to_le_bytes());
        self.truth.push((entry, bytes));
        self.written = true;
    }

    /// The GPU runs until `now`.
    fn run_gpu(&mut self, gpu: Gpu, now: u64) {
        if self.done == self.put {
            self.done_at = now;
        }
        let ran = (now - self.done_at) / gpu.entry_ns;
        self.done_at += ran * gpu.entry_ns;
        self.done = (self.done + ran).min(self.put);
    }

    /// Tells whether the program may use another slot.
    fn has_room(&mut self) -> bool {
        let most = self.slots() - 1;
        if self.put - self.known_done >= most {
            self.known_done = self.done;
            if self.done == self.put {
                self.offset = 0;
            }
        }
        self.put - self.known_done < most
    }

    /// Program and GPU run until now, with pauses.
    fn run_both(&mut self, gpu: Gpu) {
        while self.ran_until <= self.time {
            self.run_gpu(gpu, self.ran_until);
            if self.written || self.has_room() {
                self.half();
            }
            // Not in the middle of a submission: docs/limitations.md.
            let pauses = !self.written && self.random(500) == 0;
            let pause = self.random(3_000_000 * u64::from(pauses));
            self.ran_until += gpu.submit_ns / 2 + pause;
        }
    }

    fn run(&mut self) {
        if let Some(gpu) = self.program.gpu {
            return self.run_both(gpu);
        }
        if self.random(self.program.one_in) != 0 {
            return;
        }
        for _ in 0..2 * self.random(self.program.most) + self.random(2) {
            self.half();
        }
    }
}

impl Peek for Simulated {
    fn peek(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
        let mut s = self.0.borrow_mut();
        s.reads += 1;
        if s.reads > s.fails_after {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        let video = (RING..PUSHBUFFER).contains(&at);
        s.time += if video && s.program.gpu.is_some() {
            5_000
        } else {
            1_000
        };
        s.run();
        let slots = s.slots();
        let userd = (((s.put % slots) << 32) | (s.put % slots)).to_le_bytes();
        let gpu = s.program.gpu.filter(|g| g.readable);
        let semaphore = gpu.map_or([0; 4], |g| (s.done as u32 + g.ahead).to_le_bytes());
        if at == SEMAPHORE && gpu.is_none() {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        s.ring_reads += u32::from(video);
        for (base, bytes) in [
            (SEMAPHORE, &semaphore[..]),
            (RING, &s.ring[..]),
            (USERD + GP_GET, &userd[..]),
            (PUSHBUFFER, &s.memory[..]),
        ] {
            if at >= base && at + to.len() as u64 <= base + bytes.len() as u64 {
                let from = (at - base) as usize;
                to.copy_from_slice(&bytes[from..from + to.len()]);
                return Ok(());
            }
        }
        Err(io::Error::from_raw_os_error(libc::EIO))
    }
}

fn simulated(seed: u64, entries: u32, program: Program) -> Simulated {
    Simulated(RefCell::new(Inner {
        ring: vec![0; 8 * entries as usize],
        put: 0,
        memory: vec![0; program.memory as usize],
        offset: 0,
        truth: Vec::new(),
        random: seed * 2 + 1,
        reads: 0,
        ring_reads: 0,
        fails_after: u64::MAX,
        program,
        written: false,
        time: 1_000,
        done: 0,
        done_at: 0,
        known_done: 0,
        ran_until: 0,
    }))
}

fn channel(entries: u32) -> Channel {
    Channel {
        at: At::default(),
        id: ChannelId(3),
        gpu: None,
        token: None,
        class: None,
        engine: None,
        handle: None,
        ring_gpu: None,
        ring: Some(CpuVa(RING)),
        entries: Some(entries),
        userd: Some(CpuVa(USERD)),
        origin: Origin::Given,
    }
}

/// Result of following a program.
#[derive(Default)]
struct Sum {
    delivered: u64,
    lost: u64,
    faults: Faults,
    ring_reads: u32,
}

/// Follows a program for `looks` looks, and compares all that is delivered with what was submitted.
fn follow(
    seed: u64,
    entries: u32,
    begin: Begin,
    program: Program,
    looks: u32,
    fails_after: u64,
) -> Sum {
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
    let channel = channel(entries);
    let clock = || memory.0.borrow().time;
    let mut follower = Follower::new(channel.clone(), begin, &memory, clock())
        .unwrap()
        .unwrap();
    // Positions that the follower counts are the truth's modulo the ring when it did not see the beginning.
    let mut offset = None;
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
    let truth = inner.truth;
    let mut ledger = Ledger::new();
    for record in &records {
        ledger.record(record);
        match record {
            Record::Submission(s) => {
                let segment = &s.segments[0];
                // A round that was not counted is a loss too few, not a submission too many.
                let found = (s.position..truth.len() as u64)
                    .step_by(entries as usize)
                    .find(|p| {
                        let t = &truth[*p as usize];
                        t.0 == segment.entry && t.1 == segment.bytes
                    });
                let position = found.unwrap_or_else(|| {
                    panic!(
                        "seed {seed}: position {} was never submitted so",
                        s.position
                    )
                });
                let rounds = position - s.position;
                assert!(
                    offset.is_none_or(|o| o <= rounds),
                    "seed {seed}: back by a round at position {}",
                    s.position
                );
                offset = Some(rounds);
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
    sum
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

/// libcuda's way with memory, where program and GPU are about as fast: now the one waits, now the other.
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

/// The process ends in the middle of the first look, at each of its reads: what GP_PUT told is shown or counted.
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
