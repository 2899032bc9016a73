//! The software GPU's program: options in, a run out. See the library for what it does.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Parser, ValueEnum};
use softgpu::hang::Hang;
use softgpu::in_step::{self, Lap};
use softgpu::layout::{CHANNELS, Channel, GPUS, USUAL_GPUS, channels_file};
use softgpu::memory::CachedPut;
use softgpu::plan::Plan;
use softgpu::run::{How, bench, run};
use softgpu::store::Site;
use softgpu::stream::{Ends, Rounds, Shape};
use softgpu::timed::{self, Late, Timing};

/// Submits as libcuda does, with no GPU: rings, pushbuffers and doorbells in shared memory at fixed addresses.
///
/// What is submitted follows from --seed, --image, --channels, --gpus, --submissions, --burst and --big alone; everything
/// else is about who submits when. At its end it forms the plan again and compares it with what was in memory.
///
/// Example: softgpu --describe ch.txt; sudo nvcap --channels ch.txt -- softgpu --threads 8
#[derive(Parser, Debug)]
#[command(version, args_override_self = true)]
struct Args {
    /// Everything that is submitted follows from it
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Which program image of a run this is (set when it executes itself)
    #[arg(long, default_value_t = 0, hide = true)]
    image: u32,
    /// Ask the driver for memory, doorbells and channels as a CUDA process does (the stand-in module of tests/vm only);
    /// SOFTGPU_DEVICE=1 says the same
    #[arg(long)]
    device: bool,
    /// Map everything from files with the names of the driver's device files, semaphores and error notifiers too:
    /// from outside the process looks as a CUDA process does
    #[arg(long, conflicts_with = "device")]
    files: bool,
    /// With --files: after the last submission, hang this way and say "hung" and what hangs
    #[arg(long, value_enum, requires = "files")]
    hang: Option<HangArg>,
    /// With --files: after the last submission, launch a kernel that does not end, stop its channel with an error of this Xid, and say
    /// "faulted"
    #[arg(long, value_name = "XID", requires = "files", conflicts_with = "hang")]
    fault: Option<u32>,
    /// With --fault: channels that do so
    #[arg(long, value_name = "N", requires = "fault", default_value_t = 1)]
    fault_channels: usize,
    /// With --device: how long making a context takes beside its calls, and ending it, milliseconds (making CUDA's
    /// takes 200 and more)
    #[arg(long, value_name = "MS", default_value_t = 400)]
    context_ms: u64,
    /// GPUs
    #[arg(long, default_value_t = USUAL_GPUS, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=GPUS as u64))]
    gpus: usize,
    /// Channels used, of all GPUs together
    #[arg(long)]
    channels: Option<usize>,
    /// Submissions of all channels together
    #[arg(long, default_value_t = 2000)]
    submissions: u64,
    /// Entries of a submission at most
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=512))]
    burst: u32,
    /// One submission in N carries an upload of about 1 MiB
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "10", default_value_t = 0)]
    big: u64,
    /// Threads of each process
    #[arg(long, default_value_t = 4, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1024))]
    threads: usize,
    /// Threads end after N submissions each and others take their places
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "5", default_value_t = 0)]
    churn: u64,
    /// Children that submit to the same channels, in shared memory
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "1", default_value_t = 0)]
    fork: usize,
    /// Children that lay out memory of their own and carry out plans of their own
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "1", default_value_t = 0)]
    fork_own: usize,
    /// Children that execute the program anew, each with a plan of its own
    #[arg(
        long,
        value_name = "N",
        num_args = 0..=1,
        default_missing_value = "1",
        default_value_t = 0
    )]
    spawn: usize,
    /// Execute itself N times, each time with memory and a plan of its own
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "1", default_value_t = 0)]
    exec: u32,
    /// With --exec: from a thread that is not the first
    #[arg(long)]
    exec_from_thread: bool,
    /// Pause after each submission, microseconds
    #[arg(long, value_name = "US", default_value_t = 0)]
    sleep_us: u64,
    /// As long as FILE is there, pause longer after the first half of the submissions, and make none of the last quarter
    #[arg(long, value_name = "FILE")]
    hold: Option<PathBuf>,
    /// After the last submission, stay as long as FILE is there
    #[arg(long, value_name = "FILE")]
    stay_while: Option<PathBuf>,
    /// Wait until this file exists before submitting
    #[arg(long, value_name = "FILE")]
    wait_file: Option<PathBuf>,
    /// Wait for a byte on standard input before submitting
    #[arg(long)]
    wait_stdin: bool,
    /// Submissions of each channel before the wait
    #[arg(long, value_name = "N", default_value_t = 1)]
    before_wait: u64,
    /// With --wait-stdin: after so many submissions of each channel say "portion" and wait for a byte again (0: never)
    #[arg(long, value_name = "N", default_value_t = 0)]
    portion: u64,
    /// Each thread begins this long after the one before it, milliseconds: a channel is first used when others have been for long
    #[arg(long, value_name = "MS", default_value_t = 0)]
    apart_ms: u64,
    /// Stay this long after the last submission, milliseconds
    #[arg(long, value_name = "MS", default_value_t = 0)]
    linger_ms: u64,
    /// End with everything mapped, as a CUDA program does that does not destroy its context
    #[arg(long)]
    leave_mapped: bool,
    /// Entries that GP_GET stays behind GP_PUT
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=500))]
    lag: u64,
    /// Which doorbell page is rung (Hopper rings the second of the two it maps)
    #[arg(long, value_enum, default_value_t = Page::Second)]
    page: Page,
    /// Which doorbell store is used
    #[arg(long, value_enum, default_value_t = Sites::Both)]
    sites: Sites,
    /// Ring after giving the channel up, so that another thread's doorbell may come first
    #[arg(long)]
    late_doorbell: bool,
    /// Its own copy of GP_PUT stops being kept after N submissions of a channel
    #[arg(long, value_name = "N", conflicts_with = "cached_put_ahead")]
    cached_put_stuck: Option<u64>,
    /// Its own copy of GP_PUT is one ahead after N submissions of a channel
    #[arg(long, value_name = "N")]
    cached_put_ahead: Option<u64>,
    /// Leave SIGTRAP alone: a stray trap then ends the program, as it would any other
    #[arg(long)]
    default_sigtrap: bool,
    /// Wait this long before the first submission of each program, as a CUDA process is busy with its set-up
    #[arg(long, value_name = "MS", default_value_t = 0)]
    settle_ms: u64,
    /// With --files: after the last submission, leave N copies of a ring in memory and ring for a channel that there is not
    #[arg(long, value_name = "N", requires = "files", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=1000))]
    remains: u64,
    /// The first thread ends at once, and others do all
    #[arg(long)]
    leaderless: bool,
    /// With --remains: give up all but the first of them, and ring again
    #[arg(long, requires = "remains")]
    remains_shrink: bool,
    /// After the last submission, fill a ring at once with entries of this many bytes each, and ring no doorbell
    #[arg(long, value_name = "BYTES", conflicts_with = "device", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=4 << 20))]
    claim: u32,
    /// Ring through N calls of functions with known names
    #[arg(long, value_name = "N", default_value_t = 0)]
    call_depth: u32,
    /// Launch functions that have names, and keep records and an image of them as libcuda does
    #[arg(long)]
    kernels: bool,
    /// Keep the handles of this client of the driver in memory, as libcuda does; may be given several times
    #[arg(long, value_name = "HANDLE", value_parser = hexadecimal)]
    client: Vec<u32>,
    /// Open FILE as the driver's control device, and nvidia0 beside it as the GPU's
    #[arg(long, value_name = "FILE")]
    driver_file: Option<PathBuf>,
    /// With --kernels: after every N submissions of a channel a new module of functions is there, of which it launches some
    #[arg(
        long,
        value_name = "N",
        requires = "kernels",
        conflicts_with = "timed",
        default_value_t = 0
    )]
    module_every: u64,
    /// With --kernels: touch so much private memory before the first submission; modules lie in it
    #[arg(
        long,
        value_name = "MB",
        requires = "kernels",
        conflicts_with = "timed",
        default_value_t = 0
    )]
    private_mb: u64,
    #[command(flatten)]
    timed: TimedArgs,
    #[command(flatten)]
    job: JobArgs,
    /// Launch functions that have names, keep nothing of them in memory, but map FILE, which has an image of them, and write their code
    #[arg(long, value_name = "FILE", conflicts_with = "kernels")]
    kernels_in: Option<PathBuf>,
    /// Keep a log of the doorbells in a file of FOLDER: who rang for which submission, and when (it outlives kill -9)
    #[arg(
        long,
        value_name = "FOLDER",
        conflicts_with_all = ["timed", "bench"]
    )]
    log: Option<PathBuf>,
    /// After N submissions of its first channel, become user nobody's (setuid)
    #[arg(long, value_name = "N")]
    nobody_after: Option<u64>,
    /// After N submissions of its first channel, execute int1: a debug exception without a cause, as where a machine loses a hit
    #[arg(long, value_name = "N")]
    int1_after: Option<u64>,
    #[command(flatten)]
    in_step: InStepArgs,
    /// After the last submission, say "held" and wait for a byte on standard input, or its end
    #[arg(long)]
    hold_end: bool,
    /// A launch loop of N launches, three times, printing ns a launch
    #[arg(long, value_name = "N")]
    bench: Option<u64>,
    /// Run `nvcap bench` with a driver and a GPU of its own, in memory, and print what it prints; with --describe, write its
    /// channels file
    #[arg(long)]
    nvcap_bench: bool,
    /// With --nvcap-bench: write each submission that was executed to FILE, a line each: token, ring entry, pushbuffer
    #[arg(long, value_name = "FILE", requires = "nvcap_bench")]
    nvcap_bench_truth: Option<PathBuf>,
    /// Write the channels file for nvcap to FILE (- for standard output) and end
    #[arg(long, value_name = "FILE")]
    describe: Option<PathBuf>,
    /// Print what the plan amounts to, as a run's last line does, and end
    #[arg(long)]
    dry_run: bool,
}

/// In a GPU's time.
#[derive(clap::Args, Debug)]
struct TimedArgs {
    /// Run each submission as a GPU does, one launch or copy each: a stamp in the tracking semaphore when a launch begins or a
    /// copy ends, a release at a kernel's end, nothing before the submissions ahead of it have ended
    #[arg(long, conflicts_with_all = ["device", "hang", "fault", "burst", "big", "churn", "fork", "fork_own", "spawn", "exec", "lag",
        "late_doorbell", "remains", "claim", "bench"])]
    timed: bool,
    /// With --timed: how long a kernel or a copy runs, microseconds
    #[arg(long, value_name = "US", requires = "timed", default_value_t = 20.0)]
    timed_kernel_us: f64,
    /// With --timed: that varies by up to so many percent in both directions
    #[arg(long, value_name = "PERCENT", requires = "timed", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=100))]
    timed_spread: u64,
    /// With --timed: kernels release no words at their ends
    #[arg(long, requires = "timed", conflicts_with = "timed_lag_ns")]
    timed_no_ends: bool,
    /// With --timed: the word that a kernel releases is written so many nanoseconds after its end (on an H200 about 2000)
    #[arg(long, value_name = "NS", requires = "timed", default_value_t = 0)]
    timed_lag_ns: u64,
    /// With --timed: after so many submissions of each channel wait until they have run, and pause (0: never)
    #[arg(long, value_name = "N", requires = "timed", default_value_t = 0)]
    timed_burst: u64,
    /// With --timed-burst: the pause, microseconds
    #[arg(long, value_name = "US", requires = "timed", default_value_t = 100)]
    timed_pause_us: u64,
    /// With --timed: the GPU's clock less CLOCK_MONOTONIC at the start, microseconds; without it the clock is 0.6 ms from
    /// CLOCK_REALTIME
    #[arg(
        long,
        value_name = "US",
        requires = "timed",
        allow_hyphen_values = true
    )]
    timed_clock_us: Option<i64>,
    /// With --timed: how much faster than CLOCK_MONOTONIC the GPU's clock is, parts per million
    #[arg(
        long,
        value_name = "PPM",
        requires = "timed",
        allow_hyphen_values = true,
        default_value_t = 20.0
    )]
    timed_drift_ppm: f64,
    /// With --timed: entries of a channel that may wait for the GPU
    #[arg(long, value_name = "N", requires = "timed", default_value_t = 900, value_parser = clap::value_parser!(u32).range(1..=1000))]
    timed_queue: u32,
    /// With --timed: write what ran when to FILE, a JSON object a line
    #[arg(long, value_name = "FILE", requires = "timed")]
    timed_truth: Option<PathBuf>,
}

/// A rank of a job.
#[derive(clap::Args, Debug)]
struct JobArgs {
    /// With --timed and --kernels: a rank of a job. Its one channel launches rounds of kernels and a collective, whose kernel ends in no rank
    /// before it has begun in all; they know of each other by FILE, which each of them maps
    #[arg(long, value_name = "FILE", requires_all = ["timed", "kernels"], conflicts_with_all = ["submissions", "timed_burst", "wait_file"])]
    collective: Option<PathBuf>,
    /// With --collective: ranks of the job
    #[arg(long, value_name = "N", requires = "collective", default_value_t = 2)]
    ranks: u32,
    /// With --collective: which of them this is, from 0
    #[arg(long, value_name = "N", requires = "collective", default_value_t = 0)]
    rank: u32,
    /// With --collective: rounds
    #[arg(long, value_name = "N", requires = "collective", default_value_t = 100)]
    rounds: u64,
    /// With --collective: kernels of a round
    #[arg(long, value_name = "N", requires = "collective", default_value_t = 3)]
    round_kernels: u64,
    /// With --collective: rounds of a step
    #[arg(long, value_name = "N", requires = "collective", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..))]
    step_rounds: u64,
    /// With --collective: come last, by --late-us and by three times what the round (slow: what followed the last late one) took until then, in this way
    #[arg(long, value_enum, requires = "collective")]
    late: Option<LateArg>,
    /// With --late: by how much at least, microseconds
    #[arg(long, value_name = "US", requires = "late", default_value_t = 2000)]
    late_us: u64,
    /// With --late: from this round on, counted from 0
    #[arg(long, value_name = "N", requires = "late", default_value_t = 0)]
    late_from: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LateArg {
    /// Kernels more in each round, of which the last one takes the time
    Extra,
    /// The host submits each collective late
    Host,
    /// The first kernel of each step takes the time
    Slow,
}

impl JobArgs {
    /// Kernels that a late rank has more in each round.
    const EXTRA: u64 = 2;

    fn rounds(&self) -> Option<Rounds> {
        self.collective.as_ref()?;
        Some(Rounds {
            rank: self.rank,
            kernels: self.round_kernels,
            extra: match self.late {
                Some(LateArg::Extra) => Self::EXTRA,
                _ => 0,
            },
            of_step: self.step_rounds,
        })
    }

    fn job(&self) -> Option<timed::Job> {
        Some(timed::Job {
            file: self.collective.clone()?,
            ranks: self.ranks,
            late: self.late.map(|late| match late {
                LateArg::Extra => Late::Extra,
                LateArg::Host => Late::Host,
                LateArg::Slow => Late::Slow,
            }),
            by: self.late_us.saturating_mul(1000),
            from: self.late_from,
        })
    }
}

/// In step with those who trace it.
#[derive(clap::Args, Debug)]
struct InStepArgs {
    /// Go on only so far as nvcap has read, as it tells in the table FILE (NVCAP_IN_STEP; a build with the feature in-step): before the
    /// end it has read all
    #[arg(long, value_name = "FILE", conflicts_with_all = ["device", "bench"])]
    in_step: Option<PathBuf>,
    /// With --in-step: entries of a channel that may be unread
    #[arg(long, value_name = "N", requires = "in_step", default_value_t = 256, value_parser = clap::value_parser!(u64).range(0..=900))]
    in_step_window: u64,
    /// With --in-step: nvcap attaches at any time. Until it tells of a channel the program goes on by itself, with pauses that double
    /// every 500 submissions
    #[arg(long, requires = "in_step")]
    in_step_follow: bool,
    /// With --in-step: say "read N" once nvcap has read what was submitted up to the Nth submission in step
    #[arg(long, value_name = "N", requires = "in_step")]
    in_step_say: Option<u64>,
    /// With --in-step: after AFTER submissions of each channel make BY more without waiting; "before the lap" and "lapped" are said, and a
    /// byte on standard input is waited for each time
    #[arg(long, value_name = "AFTER:BY", requires = "in_step")]
    in_step_lap: Option<Lap>,
}

impl InStepArgs {
    fn options(&self) -> Option<in_step::Options> {
        Some(in_step::Options {
            table: self.in_step.clone()?,
            window: self.in_step_window,
            follow: self.in_step_follow,
            say: self.in_step_say,
            lap: self.in_step_lap,
        })
    }
}

impl TimedArgs {
    fn ends(&self) -> Option<Ends> {
        self.timed.then_some(match self.timed_no_ends {
            true => Ends::Untold,
            false => Ends::Released,
        })
    }

    fn timing(&self) -> Timing {
        Timing {
            duration: (self.timed_kernel_us * 1000.0) as u64,
            spread: self.timed_spread,
            lag: self.timed_lag_ns,
            burst: self.timed_burst,
            pause: Duration::from_micros(self.timed_pause_us),
            clock_offset: self.timed_clock_us.map(|us| us.saturating_mul(1000)),
            clock_drift: self.timed_drift_ppm,
            queue: self.timed_queue,
            truth: self.timed_truth.clone(),
            in_step: None,
            job: None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Page {
    First,
    Second,
    Both,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum HangArg {
    /// A kernel that does not end, with launches queued behind it and channels that wait for it
    Spin,
    /// A kernel that does not end, fetched and alone
    Lost,
    /// A wait for a semaphore that nobody releases
    Wait,
    /// Two channels that wait for each other
    Cycle,
    /// No hang: a kernel that takes 50 ms, again and again
    Slow,
}

impl HangArg {
    fn kind(self) -> Hang {
        match self {
            HangArg::Spin => Hang::Spin,
            HangArg::Lost => Hang::Lost,
            HangArg::Wait => Hang::Wait,
            HangArg::Cycle => Hang::Cycle,
            HangArg::Slow => Hang::Slow,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Sites {
    /// mov %ecx,(%rax)
    Plain,
    /// mov %edx,0x90(%r8)
    Displaced,
    Both,
}

impl Args {
    fn plan(&self) -> Result<Plan> {
        let all = CHANNELS * self.gpus;
        let channels = self.channels.unwrap_or(all);
        if channels == 0 || channels > all {
            bail!(
                "--channels {channels}: {} GPU(s) have 1 to {all} channels",
                self.gpus
            );
        }
        let rounds = self.job.rounds();
        if rounds.is_some() && (channels != 1 || self.threads != 1) {
            bail!(
                "--collective: a rank has one channel and one thread: add --channels 1 --threads 1"
            );
        }
        Ok(Plan {
            shape: Shape {
                seed: self.seed,
                image: self.image,
                burst: self.burst,
                big_one_in: self.big,
                launches_only: self.bench.is_some(),
                timed: self.timed.ends(),
                kernels: self.kernels || self.kernels_in.is_some(),
                module_every: self.module_every,
                rounds,
                code: self.kernels_in.is_some(),
            },
            channels: Channel::first(channels, self.gpus),
            submissions: rounds.map_or(self.submissions, |r| {
                r.len().saturating_mul(self.job.rounds)
            }),
        })
    }

    fn how(&self) -> How {
        How {
            device: self.device || std::env::var_os("SOFTGPU_DEVICE").is_some(),
            files: self.files,
            hang: match self.fault {
                Some(code) => Some(Hang::Fault {
                    code,
                    channels: self.fault_channels,
                }),
                None => self.hang.map(HangArg::kind),
            },
            context: Duration::from_millis(self.context_ms),
            gpus: self.gpus,
            threads: self.threads,
            churn: self.churn,
            fork: self.fork,
            fork_own: self.fork_own,
            spawn: self.spawn,
            exec: self.exec,
            exec_from_thread: self.exec_from_thread,
            sleep: Duration::from_micros(self.sleep_us),
            hold: self.hold.clone(),
            stay_while: self.stay_while.clone(),
            wait_file: self.wait_file.clone(),
            wait_stdin: self.wait_stdin,
            before_wait: self.before_wait,
            portion: self.portion,
            apart: Duration::from_millis(self.apart_ms),
            linger: Duration::from_millis(self.linger_ms),
            leave_mapped: self.leave_mapped,
            lag: self.lag,
            page: match self.page {
                Page::First => Some(0),
                Page::Second => Some(1),
                Page::Both => None,
            },
            site: match self.sites {
                Sites::Plain => Some(Site::Plain),
                Sites::Displaced => Some(Site::Displaced),
                Sites::Both => None,
            },
            late_doorbell: self.late_doorbell,
            cached_put: match (self.cached_put_stuck, self.cached_put_ahead) {
                (Some(n), _) => CachedPut::Stuck(n),
                (_, Some(n)) => CachedPut::Ahead(n),
                _ => CachedPut::Right,
            },
            default_sigtrap: self.default_sigtrap,
            settle: Duration::from_millis(self.settle_ms),
            remains: self.remains,
            remains_shrink: self.remains_shrink,
            claim: self.claim,
            call_depth: self.call_depth,
            kernels_in: self.kernels_in.clone(),
            private_bytes: self.private_mb << 20,
            log: self.log.clone(),
            nobody_after: self.nobody_after,
            int1_after: self.int1_after,
            // In a GPU's time it is the GPU that is in step.
            in_step: self.in_step.options().filter(|_| !self.timed.timed),
            hold_end: self.hold_end,
        }
    }
}

fn hexadecimal(text: &str) -> std::result::Result<u32, std::num::ParseIntError> {
    u32::from_str_radix(text, 16)
}

fn body() -> Result<()> {
    let args = Args::parse();
    if args.nvcap_bench {
        match &args.describe {
            Some(file) => softgpu::measured::describe(file)?,
            None => print!(
                "{}",
                softgpu::measured::bench(args.nvcap_bench_truth.as_deref())?
            ),
        }
        return Ok(());
    }
    if let Some(file) = &args.describe {
        let text = channels_file(args.gpus);
        if file.as_os_str() == "-" {
            print!("{text}");
            return Ok(());
        }
        return std::fs::write(file, text)
            .with_context(|| format!("cannot write {}", file.display()));
    }
    let plan = args.plan()?;
    if args.dry_run {
        let (mut submissions, mut entries, mut bytes) = (0, 0, 0);
        for s in (0..plan.channels.len()).flat_map(|i| plan.stream(i)) {
            submissions += 1;
            entries += s.entries.len();
            bytes += s.entries.iter().map(|e| e.bytes.len()).sum::<usize>();
        }
        println!(
            "plan submissions={submissions} entries={entries} bytes={bytes} checksum={:#018x}",
            plan.checksum()
        );
        return Ok(());
    }
    for client in &args.client {
        softgpu::clients::keep(*client);
    }
    if let Some(file) = &args.driver_file {
        softgpu::clients::open(file).with_context(|| format!("cannot open {}", file.display()))?;
    }
    let how = args.how();
    if args.timed.timed {
        if how.device {
            bail!("--timed: the device of --device and SOFTGPU_DEVICE runs submissions by itself");
        }
        let timing = Timing {
            in_step: args.in_step.in_step.clone(),
            job: args.job.job(),
            ..args.timed.timing()
        };
        return timed::run(&plan, &how, &timing);
    }
    match args.bench {
        Some(launches) => bench(&plan, &how, launches, 3),
        None => run(&plan, &how),
    }
}

fn main() -> ExitCode {
    if std::env::args_os().any(|arg| arg == "--leaderless") {
        std::thread::spawn(|| std::process::exit(i32::from(said(body()))));
        // SAFETY: ends this thread alone, the process's first; nothing of it is used by the others.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
    }
    ExitCode::from(said(body()))
}

/// The status.
fn said(done: Result<()>) -> u8 {
    let Err(e) = done else { return 0 };
    eprintln!("softgpu: {e:#}");
    1
}
