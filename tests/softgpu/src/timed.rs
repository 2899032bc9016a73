//! Runs the submissions in the time that a GPU takes, and writes time stamps and releases when a GPU would.
//!
//! One thread is the GPU: it takes each channel's submissions in order, channels beside each other. The times between a stamp,
//! the kernel's start and its end, and the next stamp are those measured on an H200 (580.159.04, CUDA 13.0). This thread may have
//! to wait for a processor: then stamps are later and kernels longer, and the truth says so.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::clock::{self, GpuClock};
use crate::layout::{Channel, Unit};
use crate::memory::Memory;
use crate::plan::Plan;
use crate::rng::Rng;
use crate::run::{self, How, Worker};
use crate::stream::{Ends, released, semaphore};
use crate::truth::{self, Ran};

/// From the stamp to the kernel's start, ns.
pub const STAMP_TO_START: u64 = 576;
/// From a kernel's end to the stamp of the submission that waits behind it.
pub const END_TO_STAMP: u64 = 900;
/// From a copy's end to the begin of the one that waits behind it.
pub const COPY_TO_COPY: u64 = 300;
/// From the doorbell to the stamp, where nothing runs.
pub const DOORBELL_TO_STAMP: u64 = 3000;
/// From the kernel's start to the moment in which its word is one less than at its end.
pub const START_TO_RESET: u64 = 1500;
/// A plan that is so old is made anew: this thread had to wait for a processor.
const STALE: u64 = 500;

/// How long things take.
#[derive(Clone, Debug)]
pub struct Timing {
    /// A kernel's or a copy's duration, ns.
    pub duration: u64,
    /// It varies by so many percent in both directions.
    pub spread: u64,
    /// From a kernel's end to the moment in which its word says so, ns.
    pub lag: u64,
    /// Submissions of a channel before their end is waited for; 0 for no waits.
    pub burst: u64,
    /// The pause after that.
    pub pause: Duration,
    /// The GPU's clock less CLOCK_MONOTONIC at the start, ns; none for a clock near CLOCK_REALTIME, as a GPU's is.
    pub clock_offset: Option<i64>,
    /// How much faster the GPU's clock is, parts per million.
    pub clock_drift: f64,
    /// Entries of a channel that may wait.
    pub queue: u32,
    /// Where the truth is written.
    pub truth: Option<PathBuf>,
}

impl Timing {
    /// How long the submission with this number runs.
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
    let mut memory = run::lay_out(how)?;
    if !how.files {
        memory.map_semaphores(how.gpus)?;
    }
    memory.doorbells = Some(crate::doorbells::Doorbells::new(timing.queue));
    let memory = memory;
    run::say("ready");
    std::thread::sleep(how.settle);
    let clock = timing.clock();
    let ended = AtomicBool::new(false);
    let ran = std::thread::scope(|scope| {
        let gpu = scope.spawn(|| Gpu::new(plan, timing, &memory, clock).run(&ended));
        let result = submit(plan, how, timing, &memory);
        ended.store(true, Ordering::Release);
        let ran = gpu
            .join()
            .ok()
            .context("the thread that is the GPU ended")?;
        result.map(|()| ran)
    })?;
    run::finish(plan, &memory)?;
    if let Some(file) = &timing.truth {
        truth::write(file, &memory, &clock, &ran)?;
    }
    std::thread::sleep(how.linger);
    if how.leave_mapped {
        std::mem::forget(memory);
    }
    Ok(())
}

/// All submissions, until the GPU has fetched the last ones.
fn submit(plan: &Plan, how: &How, timing: &Timing, memory: &Memory) -> Result<()> {
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
            scope.spawn(move || with_pauses(&worker(thread, how.threads), timing));
        }
    });
    for (i, &channel) in plan.channels.iter().enumerate() {
        memory.settle(channel, plan.quota(i))?;
    }
    Ok(())
}

/// Submits to the worker's channels in turn; after `burst` submissions of each it waits until they have run, and pauses.
fn with_pauses(worker: &Worker<'_>, timing: &Timing) {
    let channels = worker.channels();
    let mut round = 0;
    loop {
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
                synchronize(worker.memory, worker.plan.channels[i]);
            }
            pause(timing.pause);
        }
    }
}

/// Waits until everything of a channel has run.
fn synchronize(memory: &Memory, channel: Channel) {
    let Some(doorbells) = &memory.doorbells else {
        return;
    };
    while !doorbells.is_idle(channel) {
        std::thread::yield_now();
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

/// What a channel's unit does. Times are the GPU's.
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
    /// When the one before it ended.
    last_end: u64,
    /// When the word of a kernel that has ended is due, and where that kernel is in [`Gpu::ran`].
    word: Option<(u64, usize)>,
}

struct Gpu<'a> {
    plan: &'a Plan,
    timing: &'a Timing,
    memory: &'a Memory,
    clock: GpuClock,
    channels: Vec<Engine>,
    ran: Vec<Ran>,
}

impl<'a> Gpu<'a> {
    fn new(plan: &'a Plan, timing: &'a Timing, memory: &'a Memory, clock: GpuClock) -> Self {
        let channels = plan.channels.iter().map(|&channel| Engine {
            channel,
            state: State::Idle,
            now: blank(channel, 0),
            last_end: 0,
            word: None,
        });
        Gpu {
            plan,
            timing,
            memory,
            clock,
            channels: channels.collect(),
            ran: Vec::with_capacity(plan.submissions as usize),
        }
    }

    /// Until everything has run and `ended` says that nothing more comes.
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
                idle &= matches!(engine.state, State::Idle) && engine.word.is_none();
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

    /// Writes the word of the last kernel of a channel that ended, if it is due.
    fn write_word(&mut self, i: usize, now: u64) {
        let engine = &mut self.channels[i];
        let Some((_, place)) = engine.word.take_if(|w| w.0 <= now) else {
            return;
        };
        let ran = &mut self.ran[place];
        if let Some((address, payload)) = ran.released {
            self.memory.release(address, payload);
        }
        ran.end_written_host = clock::monotonic();
        if let Some(doorbells) = &self.memory.doorbells {
            doorbells.ran(engine.channel);
        }
    }

    /// What is due of one channel.
    fn step(&mut self, i: usize) {
        let now = self.clock.now();
        self.write_word(i, now);
        let unit = &mut self.channels[i];
        let (channel, compute) = (unit.channel, unit.channel.unit() == Unit::Compute);
        match unit.state {
            State::Idle => {
                let Some(doorbells) = &self.memory.doorbells else {
                    return;
                };
                let Some([before, rung]) = doorbells.times(channel, unit.now.number) else {
                    return;
                };
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
                    let at = self.memory.stamp(semaphore(channel), payload, || {
                        let now = clock.now();
                        if now > planned + STALE { now } else { planned }
                    });
                    unit.now.stamp = at;
                    unit.now.stamp_written_host = clock::monotonic();
                    unit.now.start = at + STAMP_TO_START;
                    if at > planned {
                        let prolonged = queued && prolong(&mut self.ran, unit, at, self.timing.lag);
                        unit.now.queued = prolonged;
                        unit.now.delayed = !prolonged;
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
                self.memory.fetch(channel, unit.now.number + 1);
                unit.now.end = unit.now.start + duration;
            }
            State::Resets { at } if now >= at => {
                if let Some((address, payload)) = unit.now.released {
                    self.memory.release(address, payload - 1);
                }
                unit.state = State::Ends { at: unit.now.end };
            }
            State::Ends { at } if now >= at => {
                unit.now.end = now;
                if !compute {
                    let payload = (unit.now.number + 1) as u32;
                    let clock = self.clock;
                    let stamp = self
                        .memory
                        .stamp(semaphore(channel), payload, || clock.now());
                    (unit.now.stamp, unit.now.end) = (stamp, stamp);
                    unit.now.stamp_written_host = clock::monotonic();
                }
                let ran = unit.now;
                unit.last_end = ran.end;
                unit.now = blank(channel, ran.number + 1);
                unit.state = State::Idle;
                // A word that is still due comes before the next one.
                self.write_word(i, u64::MAX);
                let lag = if compute { self.timing.lag } else { 0 };
                self.channels[i].word = Some((now + lag, self.ran.len()));
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
    }
}
