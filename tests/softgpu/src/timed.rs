//! Runs the submissions in the time that a GPU takes, and writes time stamps and releases when a GPU would.
//!
//! One thread is the GPU: it takes each channel's submissions in order, channels beside each other. The times between a stamp,
//! the kernel's start and its end, and the next stamp are those measured on an H200 (580.159.04, CUDA 13.0). This thread may have
//! to wait for a processor: then stamps are later and kernels longer, and the truth says so.
//!
//! In step with nvcap ([`crate::step`]) each kernel and copy lasts until nvcap has read what was written until then, and until the submission
//! behind it is in the ring, if there is to be one before a pause. So nothing is overwritten unread and nothing comes late: a kernel is longer.
//! What is written is true when it is written, and nvcap reads nothing in between; the word of a kernel with another one behind it is
//! written with that one's stamp.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::clock::{self, GpuClock};
use crate::layout::{Channel, Unit};
use crate::memory::Memory;
use crate::peers::Peers;
use crate::plan::Plan;
use crate::rng::Rng;
use crate::run::{self, How, Worker};
use crate::step::{InStep, Wait};
use crate::stream::{Ends, Part, released, semaphore};
use crate::truth::{self, Ran};

/// Time from the stamp to the kernel's start, ns.
pub const STAMP_TO_START: u64 = 576;
/// Time from a kernel's end to the stamp of the submission that waits behind it, ns.
pub const END_TO_STAMP: u64 = 900;
/// Time from a copy's end to the begin of the one that waits behind it, ns.
pub const COPY_TO_COPY: u64 = 300;
/// Time from the doorbell to the stamp, where nothing runs, ns.
pub const DOORBELL_TO_STAMP: u64 = 3000;
/// Time from the kernel's start to the moment in which its word is one less than at its end, ns.
pub const START_TO_RESET: u64 = 1500;
/// Time between two looks of a rank of a job at what is due.
const TURN: Duration = Duration::from_micros(50);
/// A plan that is so old is made anew: this thread had to wait for a processor.
const STALE: u64 = 500;

/// Times that things take.
#[derive(Clone, Debug)]
pub struct Timing {
    /// A kernel's or a copy's duration, ns.
    pub duration: u64,
    /// Percent by which the duration varies in both directions.
    pub spread: u64,
    /// Time from a kernel's end to the moment in which its word says so, ns.
    pub lag: u64,
    /// Submissions of a channel before their end is waited for; 0 for no waits.
    pub burst: u64,
    /// The pause after that.
    pub pause: Duration,
    /// The GPU's clock less CLOCK_MONOTONIC at the start, ns; none for a clock near CLOCK_REALTIME, as a GPU's is.
    pub clock_offset: Option<i64>,
    /// Rate at which the GPU's clock gains, parts per million.
    pub clock_drift: f64,
    /// Entries of a channel that may wait.
    pub queue: u32,
    /// File that the truth is written to.
    pub truth: Option<PathBuf>,
    /// The table in which nvcap tells how far it has read.
    pub in_step: Option<PathBuf>,
    /// The job of which this is a rank.
    pub job: Option<Job>,
}

/// A job whose collectives wait for all of its ranks.
#[derive(Clone, Debug)]
pub struct Job {
    /// The file by which they know of each other.
    pub file: PathBuf,
    /// Number of ranks.
    pub ranks: u32,
    /// This one comes last, in this way.
    pub late: Option<Late>,
    /// Least time by which it is late, ns.
    pub by: u64,
    /// Number of the first round that is late.
    pub from: u64,
}

/// Way of coming last: behind all others, and then three times as long as the round took until then, and [`Job::by`] at least. So it is last, and by
/// more than others are by chance, on any machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Late {
    /// By the last of the kernels that others do not have.
    Extra,
    /// Its host submits the collective late.
    Host,
    /// By the first kernel of each step.
    Slow,
}

impl Timing {
    /// Returns the time that the submission with this number runs, ns.
    fn duration_of(&self, plan: &Plan, channel: Channel, number: u64) -> u64 {
        let mut rng = Rng::new(&[
            plan.shape.seed,
            channel.number() as u64,
            number,
            self.duration,
        ]);
        let spread = self.duration * self.spread / 100;
        (self.duration - spread + rng.below(2 * spread + 1)).max(1)
    }

    fn clock(&self) -> GpuClock {
        // 0.6 ms from CLOCK_REALTIME, as on an H200.
        let near = clock::realtime() as i64 - clock::monotonic() as i64 + 600_000;
        GpuClock {
            base: clock::monotonic(),
            offset: self.clock_offset.unwrap_or(near),
            drift: self.clock_drift,
        }
    }
}

/// Carries out the plan in a GPU's time. Of `how`, what is about memory, waiting, threads and doorbells counts.
pub fn run(plan: &Plan, how: &How, timing: &Timing) -> Result<()> {
    run::begin(how);
    if plan.shape.kernels {
        crate::kernels::keep(1);
    }
    if plan.shape.rounds.is_some() {
        crate::kernels::keep_collectives();
    }
    let peers = { timing.job.as_ref().zip(plan.shape.rounds) }
        .map(|(job, rounds)| Peers::join(&job.file, rounds.rank, job.ranks));
    let peers = peers.transpose()?;
    let peers = peers.as_ref();
    let mut memory = run::lay_out(how)?;
    if !how.files {
        memory.map_semaphores(how.gpus)?;
    }
    memory.doorbells = Some(crate::doorbells::Doorbells::new(timing.queue));
    let memory = memory;
    crate::say::say("ready");
    std::thread::sleep(how.settle);
    let clock = timing.clock();
    // Before it waits nobody may be there yet who reads.
    let waits = how.wait_stdin || how.wait_file.is_some();
    let from = if waits { how.before_wait } else { 0 };
    let in_step = timing.in_step.as_deref();
    let in_step = in_step.map(|file| InStep::open(file, from)).transpose()?;
    let in_step = in_step.as_ref();
    let ended = AtomicBool::new(false);
    let ran = std::thread::scope(|scope| {
        let gpu = Gpu {
            in_step,
            before: how.before_wait,
            peers,
            ..Gpu::new(plan, timing, &memory, clock)
        };
        let ended = &ended;
        let gpu = scope.spawn(move || gpu.run(ended));
        let others = Others {
            timing,
            peers,
            in_step,
        };
        let result = submit(plan, how, &memory, &others);
        ended.store(true, Ordering::Release);
        let ran = gpu
            .join()
            .ok()
            .context("the thread that is the GPU ended")?;
        result.map(|()| ran)
    })?;
    if let Some(peers) = peers {
        peers.leave();
    }
    run::finish(plan, &memory)?;
    if let Some(file) = &timing.truth {
        truth::write(file, &memory, &clock, &ran)?;
    }
    if in_step.is_some() && how.wait_stdin {
        // Until a trace that is asked to end has read its last.
        std::io::stdin().read_to_end(&mut Vec::new())?;
    }
    std::thread::sleep(how.linger);
    if how.leave_mapped {
        std::mem::forget(memory);
    }
    Ok(())
}

/// All submissions, until the GPU has fetched the last ones.
fn submit(plan: &Plan, how: &How, memory: &Memory, others: &Others<'_>) -> Result<()> {
    let worker = |index, of| Worker {
        plan,
        how,
        memory,
        log: None,
        index,
        of,
    };
    worker(0, 1).work(how.before_wait, u64::MAX);
    run::wait(how)?;
    std::thread::scope(|scope| {
        for thread in 0..how.threads {
            scope.spawn(move || with_pauses(&worker(thread, how.threads), others));
        }
    });
    for (i, &channel) in plan.channels.iter().enumerate() {
        memory.settle(channel, plan.quota(i))?;
    }
    Ok(())
}

/// Those that threads which submit wait for.
#[derive(Clone, Copy)]
struct Others<'a> {
    timing: &'a Timing,
    peers: Option<&'a Peers>,
    in_step: Option<&'a InStep>,
}

/// In step, of a rank: waits before its second round and its second step until all functions that nvcap has seen have names.
fn wait_for_names(worker: &Worker<'_>, in_step: &InStep) {
    let (plan, memory) = (worker.plan, worker.memory);
    let (Some(rounds), Some(&channel)) = (plan.shape.rounds, plan.channels.first()) else {
        return;
    };
    let next = memory.lock(channel).done().cursor.number;
    if !rounds.awaits_names(next) {
        return;
    }
    let seen: BTreeSet<u64> = (worker.how.before_wait..next)
        .map(|n| rounds.function(n))
        .collect();
    let mut wait = Wait::default();
    while !wait.came(in_step.are_named(seen.len() as u64), || {
        format!("nvcap has not found the names of {} functions", seen.len())
    }) {
        std::thread::sleep(TURN);
    }
}

/// Submits to the worker's channels in turn; after `burst` submissions of each it waits until they have run, and pauses.
fn with_pauses(worker: &Worker<'_>, others: &Others<'_>) {
    let Others {
        timing,
        peers,
        in_step,
    } = *others;
    let channels = worker.channels();
    let mut round = 0;
    loop {
        if let Some(in_step) = in_step {
            wait_for_names(worker, in_step);
        }
        if let (Some(peers), Some(job)) = (peers, &timing.job)
            && job.late == Some(Late::Host)
        {
            come_last(worker, job, peers);
        }
        // Each is asked in every round: `|` and not `||`.
        let submitted = channels
            .iter()
            .fold(false, |any, &i| worker.submit(i, u64::MAX) | any);
        if !submitted {
            return;
        }
        round += 1;
        if timing.burst > 0 && round % timing.burst == 0 {
            for &i in &channels {
                synchronize(worker.memory, worker.plan.channels[i], true);
            }
            pause(timing.pause);
        }
    }
}

/// The host of a rank that comes last, before it submits a collective: it waits until the other ranks have come to it, and then three
/// times as long as that has taken.
fn come_last(worker: &Worker<'_>, job: &Job, peers: &Peers) {
    let (plan, memory) = (worker.plan, worker.memory);
    let (Some(rounds), Some(&channel)) = (plan.shape.rounds, plan.channels.first()) else {
        return;
    };
    let next = memory.lock(channel).done().cursor.number;
    let (round, part) = rounds.of(next);
    if part != Part::Collective || round < job.from || next >= plan.quota(0) {
        return;
    }
    let began = Instant::now();
    synchronize(memory, channel, false);
    let mut wait = Wait::default();
    while !has_come(peers, round, true, &mut wait) {
        std::thread::sleep(TURN);
    }
    pause(behind(began.elapsed(), job.by));
}

/// Returns the time by which a rank comes behind the others, in a round that took `round` until then.
fn behind(round: Duration, by: u64) -> Duration {
    (3 * round).max(Duration::from_nanos(by))
}

/// Tells whether a collective has begun in all ranks; ends the program where it never will.
fn has_come(peers: &Peers, number: u64, but_this: bool, wait: &mut Wait) -> bool {
    match peers.have_arrived(number, but_this) {
        Ok(come) => wait.came(come, || {
            format!("not all ranks have come to collective {number}")
        }),
        Err(e) => {
            // The other thread waits for this one: it could not end.
            eprintln!("softgpu: {e:#}");
            std::process::exit(1);
        }
    }
}

/// Waits until everything of a channel has run. `often`: it is to be known at once.
fn synchronize(memory: &Memory, channel: Channel, often: bool) {
    let Some(doorbells) = &memory.doorbells else {
        return;
    };
    while !doorbells.is_idle(channel) {
        match often {
            true => std::thread::yield_now(),
            false => std::thread::sleep(TURN),
        }
    }
}

/// A short pause is as long as it says only without sleep.
fn pause(length: Duration) {
    const SLEEP: Duration = Duration::from_micros(100);
    let start = Instant::now();
    if length > SLEEP {
        std::thread::sleep(length - SLEEP);
    }
    while start.elapsed() < length {
        std::hint::spin_loop();
    }
}

/// State of a channel's unit. Times are the GPU's.
#[derive(Clone, Copy, Debug)]
enum State {
    /// Nothing was submitted, as far as is known.
    Idle,
    /// A submission was fetched; its stamp (of a copy: its start) is due then.
    Begins { at: u64, queued: bool },
    /// The kernel runs; its word is due to be written with one less than its last value.
    Resets { at: u64 },
    /// The kernel or copy runs until then.
    Ends { at: u64 },
}

struct Engine {
    channel: Channel,
    state: State,
    /// The submission in question.
    now: Ran,
    /// Time at which the submission before that one ended.
    last_end: u64,
    /// Time at which the word of a kernel that has ended is due, and that kernel's index in [`Gpu::ran`].
    word: Option<(u64, usize)>,
    /// In step: that word comes with the next stamp.
    held: bool,
    /// In step: a submission that has ended, of whose end nvcap has not read yet.
    unread: Option<Ran>,
    /// In step: for nvcap, or for the next submission.
    wait: Wait,
    /// Wait for other ranks.
    peers: Wait,
    /// Time at which a kernel ends that comes last: it was found when the other ranks had come.
    late_until: Option<u64>,
    /// Time at which the last collective ended; in a rank that is late once a step, the last one for which it may have been late. By a multiple
    /// of what has gone since it is late again: others cannot have waited as long for each other.
    late_from: Option<u64>,
}

struct Gpu<'a> {
    plan: &'a Plan,
    timing: &'a Timing,
    memory: &'a Memory,
    clock: GpuClock,
    channels: Vec<Engine>,
    ran: Vec<Ran>,
    in_step: Option<&'a InStep>,
    /// Submissions of each channel before the bursts.
    before: u64,
    /// The other ranks.
    peers: Option<&'a Peers>,
}

impl<'a> Gpu<'a> {
    fn new(plan: &'a Plan, timing: &'a Timing, memory: &'a Memory, clock: GpuClock) -> Self {
        let channels = plan.channels.iter().map(|&channel| Engine {
            channel,
            state: State::Idle,
            now: blank(channel, 0),
            last_end: 0,
            word: None,
            held: false,
            unread: None,
            wait: Wait::default(),
            peers: Wait::default(),
            late_until: None,
            late_from: None,
        });
        Gpu {
            plan,
            timing,
            memory,
            clock,
            channels: channels.collect(),
            ran: Vec::with_capacity(plan.submissions as usize),
            in_step: None,
            before: 0,
            peers: None,
        }
    }

    /// Runs until everything has run and `ended` says that nothing more comes.
    fn run(mut self, ended: &AtomicBool) -> Vec<Ran> {
        const PATIENCE: Duration = Duration::from_millis(2);
        let mut busy = Instant::now();
        // The first write of a page takes its time.
        for engine in &self.channels {
            self.memory.stamp(semaphore(engine.channel), 0, || 0);
            self.memory.release(released(engine.channel, 0).0, 0);
        }
        loop {
            let nothing_more = ended.load(Ordering::Acquire);
            let mut idle = true;
            for i in 0..self.channels.len() {
                self.step(i);
                let engine = &self.channels[i];
                idle &= matches!(engine.state, State::Idle)
                    && engine.word.is_none()
                    && engine.unread.is_none();
            }
            if self.in_step.is_some() {
                Wait::pause(self.channels.iter().any(|e| e.wait.is_on()));
            }
            if self.peers.is_some() {
                // Eight ranks on few processors: none of them is to be in another's way.
                std::thread::sleep(TURN);
            }
            if !idle {
                busy = Instant::now();
            } else if nothing_more {
                return self.ran;
            } else if busy.elapsed() > PATIENCE {
                // Others need the processor too.
                std::thread::sleep(Duration::from_micros(20));
            }
        }
    }

    /// Writes; in step between two reads of nvcap's.
    fn at_once<T>(&self, write: impl FnOnce() -> T) -> T {
        match self.in_step {
            Some(in_step) => in_step.at_once(write),
            None => write(),
        }
    }

    /// Writes the word of the last kernel of a channel that ended, if it is due.
    fn write_word(&mut self, i: usize, now: u64) {
        let engine = &mut self.channels[i];
        if engine.held {
            return;
        }
        let Some((_, place)) = engine.word.take_if(|w| w.0 <= now) else {
            return;
        };
        let released = self.ran[place].released;
        let written = self.at_once(|| {
            let written = self.clock.now();
            if let Some((address, payload)) = released {
                self.memory.release(address, payload);
            }
            written
        });
        if self.in_step.is_some() && released.is_some() {
            // Its end is what the word tells.
            self.ran[place].end = written - self.timing.lag;
        }
        self.word_is_written(i, place);
    }

    fn word_is_written(&mut self, i: usize, place: usize) {
        let ran = &mut self.ran[place];
        ran.end_written_host = clock::monotonic();
        match self.in_step {
            Some(in_step) if in_step.is_seen(ran.number) => self.channels[i].unread = Some(*ran),
            _ => self.has_run(i),
        }
    }

    fn has_run(&self, i: usize) {
        if let Some(doorbells) = &self.memory.doorbells {
            doorbells.ran(self.channels[i].channel);
        }
    }

    /// In step: true once nvcap has read of the last submission's end. Until then it counts as running.
    fn is_read(&mut self, in_step: &InStep, i: usize) -> bool {
        let engine = &mut self.channels[i];
        let Some(ran) = engine.unread else {
            return true;
        };
        let read = match ran.released {
            Some(word) => in_step.word(word),
            None => in_step.stamp(ran.channel, ran.number),
        };
        let what = || format!("nvcap has not read of the end of {ran:?}");
        if engine.wait.came(read, what) {
            engine.unread = None;
            self.has_run(i);
        }
        read
    }

    /// In step: true where another submission comes behind this one before a pause.
    fn has_next(&self, i: usize, number: u64) -> bool {
        let next = number + 1;
        let burst = self.timing.burst;
        // A host that is late submits the collective when what is before it has run.
        let late = self.timing.job.as_ref().and_then(|job| job.late);
        let rounds = self.plan.shape.rounds.filter(|_| late == Some(Late::Host));
        let is_late =
            rounds.is_some_and(|r| next > self.before && r.of(next).1 == Part::Collective);
        let awaits_names = self.plan.shape.rounds.is_some_and(|r| r.awaits_names(next));
        next < self.plan.quota(i)
            && !is_late
            && !awaits_names
            && (next <= self.before || burst == 0 || !(next - self.before).is_multiple_of(burst))
    }

    /// In step: true once the submission that runs may end.
    fn may_end(&mut self, in_step: &InStep, i: usize) -> bool {
        let ran = self.channels[i].now;
        if !in_step.is_seen(ran.number) {
            return true;
        }
        let compute = ran.channel.unit() == Unit::Compute;
        let read = self.is_read(in_step, i)
            && (!compute || in_step.stamp(ran.channel, ran.number))
            && ran
                .released
                .is_none_or(|(word, n)| in_step.word((word, n - 1)));
        let doorbells = self.memory.doorbells.as_ref();
        let next = !self.has_next(i, ran.number)
            || doorbells.is_none_or(|d| in_step.is_queued(d, ran.channel, ran.number + 1));
        let what = || {
            let missing = match (read, next) {
                (false, _) => "nvcap has not read its begin",
                _ => "nvcap has not read of the next one",
            };
            format!("{missing}: {ran:?}")
        };
        self.channels[i].wait.came(read && next, what)
    }

    /// Tells whether what runs may end, as far as other ranks are concerned: a collective once it has begun in all of them; in a rank that
    /// comes last the kernel that makes it so some time after the others have come.
    fn have_come(&mut self, i: usize) -> bool {
        let (Some(peers), Some(job)) = (self.peers, &self.timing.job) else {
            return true;
        };
        let Some(rounds) = self.plan.shape.rounds else {
            return true;
        };
        let now = self.clock.now();
        let engine = &mut self.channels[i];
        let (round, part) = rounds.of(engine.now.number);
        let comes_last = match (part, job.late) {
            (Part::Collective, _) => return has_come(peers, round, false, &mut engine.peers),
            (Part::Extra(last), Some(Late::Extra)) => last,
            (Part::Kernel(0), Some(Late::Slow)) => rounds.begins_step(round),
            _ => false,
        };
        // Before nvcap is there nobody is late.
        if !comes_last || round < job.from || engine.now.number < self.before {
            return true;
        }
        if let Some(until) = engine.late_until {
            return now >= until;
        }
        if has_come(peers, round, true, &mut engine.peers) {
            let began = engine.late_from.unwrap_or(engine.now.start);
            let round = Duration::from_nanos(now.saturating_sub(began));
            engine.late_until = Some(now + behind(round, job.by).as_nanos() as u64);
        }
        false
    }

    /// In step: writes a launch's stamp, and with it the word of the kernel before it. Returns the stamp.
    fn stamp_in_step(&mut self, in_step: &InStep, i: usize) -> u64 {
        let engine = &mut self.channels[i];
        let (channel, number) = (engine.channel, engine.now.number);
        let word = engine.word.take_if(|_| std::mem::take(&mut engine.held));
        let released = word.and_then(|(_, place)| self.ran[place].released);
        let at = in_step.at_once(|| {
            let payload = (number + 1) as u32;
            let at = self
                .memory
                .stamp(semaphore(channel), payload, || self.clock.now());
            if let Some((address, payload)) = released {
                self.memory.release(address, payload);
            }
            at
        });
        if let Some((_, place)) = word {
            self.ran[place].end = at - END_TO_STAMP;
            self.word_is_written(i, place);
        }
        at
    }

    /// Does what is due of one channel.
    fn step(&mut self, i: usize) {
        let now = self.clock.now();
        self.write_word(i, now);
        if let Some(in_step) = self.in_step {
            self.is_read(in_step, i);
        }
        let unit = &mut self.channels[i];
        let (channel, compute) = (unit.channel, unit.channel.unit() == Unit::Compute);
        match unit.state {
            State::Idle => {
                let Some(doorbells) = &self.memory.doorbells else {
                    return;
                };
                let Some([put, before, rung]) = doorbells.times(channel, unit.now.number) else {
                    return;
                };
                let rounds = self.plan.shape.rounds.map(|r| r.of(unit.now.number));
                unit.now.collective = match rounds {
                    Some((round, Part::Collective)) => Some(round),
                    _ => None,
                };
                unit.now.put_host = put;
                unit.now.rings_host = before;
                unit.now.rung_host = rung;
                let alone = self.clock.gpu(rung) + DOORBELL_TO_STAMP;
                let gap = if compute { END_TO_STAMP } else { COPY_TO_COPY };
                let behind = unit.last_end + gap;
                unit.state = State::Begins {
                    at: alone.max(behind),
                    queued: behind >= alone,
                };
            }
            State::Begins {
                at: planned,
                queued,
            } if now >= planned => {
                let duration = self.timing.duration_of(self.plan, channel, unit.now.number);
                let payload = (unit.now.number + 1) as u32;
                unit.now.queued = queued;
                if compute {
                    // A stamp is true when it is written.
                    let clock = self.clock;
                    let at = match self.in_step {
                        Some(in_step) => self.stamp_in_step(in_step, i),
                        None => self.memory.stamp(semaphore(channel), payload, || {
                            let now = clock.now();
                            if now > planned + STALE { now } else { planned }
                        }),
                    };
                    let unit = &mut self.channels[i];
                    unit.now.stamp = at;
                    unit.now.stamp_written_host = clock::monotonic();
                    unit.now.start = at + STAMP_TO_START;
                    if at > planned && self.in_step.is_none() {
                        let prolonged = queued && prolong(&mut self.ran, unit, at, self.timing.lag);
                        unit.now.queued = prolonged;
                        unit.now.delayed = !prolonged;
                    }
                    if let (Some(peers), Some(number)) = (self.peers, unit.now.collective) {
                        peers.arrive(number);
                    }
                    unit.now.released = (self.plan.shape.timed == Some(Ends::Released))
                        .then(|| released(channel, unit.now.number));
                    let reset = START_TO_RESET.min(duration * 3 / 4);
                    unit.state = State::Resets {
                        at: unit.now.start + reset,
                    };
                } else {
                    // The begin of a copy is nowhere to be seen.
                    unit.now.start = planned;
                    unit.state = State::Ends {
                        at: planned + duration,
                    };
                }
                let unit = &mut self.channels[i];
                self.memory.fetch(channel, unit.now.number + 1);
                unit.now.end = unit.now.start + duration;
            }
            State::Resets { at } if now >= at => {
                let (released, end) = (unit.now.released, unit.now.end);
                if let Some((address, payload)) = released {
                    self.at_once(|| self.memory.release(address, payload - 1));
                }
                self.channels[i].state = State::Ends { at: end };
            }
            State::Ends { at } if now >= at => {
                if !self.have_come(i) {
                    return;
                }
                if let Some(in_step) = self.in_step
                    && !self.may_end(in_step, i)
                {
                    return;
                }
                let number = self.channels[i].now.number;
                let held = self.in_step.is_some_and(|s| s.is_seen(number))
                    && compute
                    && self.has_next(i, number);
                let late_once_a_step =
                    matches!(&self.timing.job, Some(job) if job.late == Some(Late::Slow));
                let rounds = self.plan.shape.rounds;
                let ends_lateness = !late_once_a_step
                    || rounds.is_some_and(|rounds| rounds.begins_step(rounds.of(number).0));
                let now = self.clock.now();
                let payload = (number + 1) as u32;
                let stamp = (!compute).then(|| {
                    let clock = self.clock;
                    self.at_once(|| {
                        self.memory
                            .stamp(semaphore(channel), payload, || clock.now())
                    })
                });
                let unit = &mut self.channels[i];
                unit.now.end = now;
                if let Some(stamp) = stamp {
                    (unit.now.stamp, unit.now.end) = (stamp, stamp);
                    unit.now.stamp_written_host = clock::monotonic();
                }
                let ran = unit.now;
                unit.last_end = ran.end;
                unit.late_until = None;
                if ran.collective.is_some() && ends_lateness {
                    unit.late_from = Some(now);
                }
                unit.now = blank(channel, ran.number + 1);
                unit.state = State::Idle;
                // A word that is still due comes before the next one.
                self.write_word(i, u64::MAX);
                let lag = if compute { self.timing.lag } else { 0 };
                self.channels[i].word = Some((now + lag, self.ran.len()));
                self.channels[i].held = held;
                self.ran.push(ran);
                self.write_word(i, now);
            }
            State::Begins { .. } | State::Resets { .. } | State::Ends { .. } => {}
        }
    }
}

/// A stamp comes late. If the word of the kernel before it is not written yet, then that kernel ran longer.
fn prolong(ran: &mut [Ran], engine: &mut Engine, stamp: u64, lag: u64) -> bool {
    let Some((due, place)) = &mut engine.word else {
        return false;
    };
    let end = stamp - END_TO_STAMP;
    ran[*place].end = end;
    *due = end + lag;
    true
}

fn blank(channel: Channel, number: u64) -> Ran {
    Ran {
        channel,
        number,
        put_host: 0,
        rings_host: 0,
        rung_host: 0,
        queued: false,
        delayed: false,
        stamp: 0,
        stamp_written_host: 0,
        start: 0,
        end: 0,
        end_written_host: 0,
        released: None,
        collective: None,
    }
}
