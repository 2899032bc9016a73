//! `nvcap sample`: kernels of a running process by share of the GPU's time, and its hottest instructions, by program counters that the GPU
//! samples.

use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use nvcap_decode::driver::Version;
use nvcap_decode::ledger::{STATUS_LOST, STATUS_NOT_UNDERSTOOD};
use nvcap_decode::record::Kernel;
use nvcap_decode::samples::{Counts, Programme, Stream};
use nvcap_lab::trigger::Trigger;
use nvcap_live::enrich::names;
use nvcap_live::samples::{Context, Error, Options, STREAM_LEN, Session, contexts};
use nvcap_process::memory::chip;
use nvcap_process::procfs;
use nvcap_process::rm::{Kernel as System, Os};
use nvcap_process::signals;
use nvcap_show::output::message::tell;

mod kept;
mod learn;
mod table;

use super::overwrite;
use super::pids::Pids;
use super::target;
use super::values::{Force, parse_time};
use table::Found;

pub(super) const EXAMPLES: &str = "\
Examples:
  sudo nvcap sample --learn              once on each machine: learn how the GPU is told to sample
  sudo nvcap sample -p 4711              two seconds of a running process
  sudo nvcap sample -p 4711 --duration 10s --json
  sudo nvcap sample -p 4711 --top 40     the 40 hottest instructions

The GPU itself samples the program counters of the process's warps, one on each SM in a period, also
within graph replays (docs/sampling.md). The process is not stopped and needs no restart; nothing is
written into it. Only one program can have a GPU's profiler: ncu, CUPTI and DCGM's profiling cannot
use it meanwhile.

  SHARE      part of all samples: of the time of the SMs that had work, not of the time elapsed
  NO ISSUE   samples in whose cycle the warp scheduler had no instruction to issue

Exit status: 0 every sample is understood; 1 error; 2 usage; 3 samples were lost; 5 not all of the
stream was understood.";

/// Time between two readings of the stream, and where the period is shorter than some thousand cycles or not known.
const POLL: Duration = Duration::from_millis(50);
const SHORT_POLL: Duration = Duration::from_millis(10);
const LONG_PERIOD: u8 = 15;

/// Time after which names are looked for first: a process that ends meanwhile has none later.
const FIRST_LOOK: Duration = Duration::from_millis(300);

/// Time that the driver gets for the last samples.
const PATIENCE: Duration = Duration::from_secs(2);

/// The period unless another is asked for, as its logarithm: some 4,000 samples a second of each SM.
const PERIOD: u8 = 19;

/// Who is sampled, and how.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    pid: Pids,

    /// Sample for TIME; Ctrl-C ends it before
    #[arg(long, value_name = "TIME", value_parser = parse_time, default_value = "2s")]
    duration: Duration,

    /// One sample in 2^N cycles of each SM [default: 19, or what was learnt]
    #[arg(long, value_name = "N")]
    period: Option<u8>,

    /// The GPU, N of /dev/nvidiaN, where there are several
    #[arg(long, value_name = "N")]
    gpu: Option<u32>,

    /// Show so many of the hottest instructions
    #[arg(long, value_name = "COUNT", default_value_t = 10)]
    top: usize,

    /// Learn how this GPU is told to sample, from NVIDIA's CUPTI: of FILE, what `nvcap ioctls -vv --json` wrote of a program that samples with CUPTI; without FILE nvcap starts such a program itself
    #[arg(long, value_name = "FILE", num_args = 0..=1, conflicts_with = "pid")]
    learn: Option<Option<PathBuf>>,

    /// Write the bytes of the stream to FILE as they came
    #[arg(long, value_name = "FILE", hide = true)]
    raw: Option<PathBuf>,

    /// Write JSON: one object
    #[arg(long)]
    json: bool,

    /// Write to FILE instead of standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Option that has FILE replaced.
    #[command(flatten)]
    force: Force,
}

impl Args {
    /// Returns the reason why sampling must not begin: its output would replace a file.
    pub(super) fn refusal(&self) -> Option<String> {
        let inputs: Vec<_> = { self.learn.iter() }
            .flatten()
            .map(PathBuf::as_path)
            .collect();
        overwrite::refusal(self.output.as_deref(), self.force.force, &inputs)
    }
}

/// Samples, or learns how to.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let [pid] = args.pid[..] else {
        return match (&args.learn, args.pid.is_empty()) {
            (Some(file), _) => learn::run(&gpu(args.gpu)?, file.as_deref()),
            (None, true) => {
                tell(
                    "nothing to sample: give a process (nvcap sample -p PID), or learn first how this GPU is told to (nvcap sample --learn)",
                );
                Ok(target::usage())
            }
            (None, false) => bail!(
                "one process at a time: a GPU has one PC sampler; -p names {} processes",
                args.pid.len()
            ),
        };
    };
    let gpu = gpu(args.gpu)?;
    let version = target::running_driver();
    target::tell_of_newer(version);
    let programme = kept::read(&gpu.uuid, &kept::driver()?)?;
    let (programme, period) = with_period(programme, args.period)?;
    let mut out = target::open(args.output.as_deref(), args.force.force, false, &[])?;
    let (mut session, mut trigger) = open(pid, gpu.minor, version, programme)?;
    let raw = args.raw.as_deref().map(std::fs::File::create_new);
    let raw = raw
        .transpose()
        .context("cannot make the file for the stream")?;
    let poll = match period {
        Some(LONG_PERIOD..) => POLL,
        _ => SHORT_POLL,
    };
    let timing = (args.duration, poll);
    let sampled = sample(pid, timing, raw, &mut session, &mut trigger)?;
    let context = session.context();
    // The GPU's profiler is given back before names are looked for.
    drop((session, trigger));
    let found = sampled.found(pid, gpu.minor, period, context);
    match args.json {
        true => table::json(out.object(), &found, args.top),
        false => table::text(out.object(), &found, args.top),
    }
    target::written(&mut out)?;
    Ok(match (found.lost(), found.totals.strange()) {
        (true, _) => ExitCode::from(STATUS_LOST),
        (false, 0) => ExitCode::SUCCESS,
        (false, _) => ExitCode::from(STATUS_NOT_UNDERSTOOD),
    })
}

/// The GPU that is meant.
fn gpu(wanted: Option<u32>) -> anyhow::Result<chip::Named> {
    let all = chip::names();
    let numbers = || -> String {
        let all: Vec<String> = all.iter().map(|gpu| gpu.minor.to_string()).collect();
        all.join(", ")
    };
    let gpu = match (wanted, &all[..]) {
        (_, []) => bail!(
            "the driver tells of no GPU (/proc/driver/nvidia/gpus): it is not loaded, or this container was started without a GPU"
        ),
        (None, [only]) => only.clone(),
        (None, _) => bail!(
            "there are several GPUs: type --gpu with the one that the process uses, of {}",
            numbers()
        ),
        (Some(minor), all) => match all.iter().find(|gpu| gpu.minor == minor) {
            Some(gpu) => gpu.clone(),
            None => bail!(
                "there is no GPU {minor}: type --gpu with one of {}",
                numbers()
            ),
        },
    };
    if gpu.uuid.is_empty() {
        bail!(
            "the driver does not tell the UUID of GPU {} yet: start a program that uses it (nvidia-smi), then type this again",
            gpu.minor
        );
    }
    Ok(gpu)
}

/// The programme with the period that is meant, and that period.
fn with_period(
    programme: Programme,
    wanted: Option<u8>,
) -> anyhow::Result<(Programme, Option<u8>)> {
    let learnt: Vec<u8> = programme.periods.keys().copied().collect();
    let period = match (wanted, learnt.binary_search(&PERIOD)) {
        (None, Ok(_)) => PERIOD,
        (None, Err(_)) => return Ok((programme, None)),
        (Some(wanted), _) => wanted,
    };
    match (programme.periods.get(&period), &learnt[..]) {
        (Some(value), _) => Ok((programme.with_switch(*value), Some(period))),
        (None, []) => bail!(
            "the period cannot be chosen: it is that of the program of which nvcap learnt; type `sudo nvcap sample --learn`, without a file"
        ),
        (None, [first, .., last]) => {
            bail!("no period of 2^{period} cycles was learnt: give one from {first} to {last}")
        }
        (None, [only]) => bail!("no period of 2^{period} cycles was learnt, only 2^{only}"),
    }
}

fn open(
    pid: u32,
    gpu: u32,
    version: Option<Version>,
    programme: Programme,
) -> anyhow::Result<(Session, Trigger)> {
    let os = || -> Rc<dyn Os> { Rc::new(System) };
    let found = contexts(&os(), version, pid).map_err(told)?;
    let Some(context) = found.first() else {
        bail!(
            "process {pid} has no CUDA context: no client of the driver is in its memory; `sudo nvcap channels -p {pid}` tells what it has of the GPU"
        );
    };
    let options = Options {
        gpu,
        pid,
        context: *context,
        programme,
        buffer: STREAM_LEN,
    };
    let trigger = Trigger::new(os(), version, gpu);
    let trigger =
        trigger.context("cannot get a channel of nvcap's own, which starts the samples")?;
    let session = Session::open(os(), version, &options).map_err(told);
    let session = session.with_context(|| format!("cannot sample process {pid} on GPU {gpu}"))?;
    Ok((session, trigger))
}

/// The error, behind the remedy where one is known.
fn told(error: Error) -> anyhow::Error {
    match remedy(&error) {
        "" => anyhow::Error::new(error),
        remedy => anyhow::Error::new(error).context(remedy),
    }
}

/// A remedy where one is known; the error itself stands behind it.
fn remedy(error: &Error) -> &'static str {
    match error {
        Error::Held(_) => {
            "end the other profiler first (ncu, nsys with GPU metrics, a program with CUPTI, DCGM's profiling, another nvcap sample); then type this again"
        }
        Error::Rights(_) => "run as root (sudo nvcap sample)",
        Error::Memory(..) => "run as root (sudo nvcap sample), and check that the process is there",
        Error::Files(..) => {
            "run as root (sudo nvcap sample) on Linux 5.6 or later, in a container with CAP_SYS_PTRACE and without a seccomp filter against pidfd_getfd"
        }
        Error::NotItsOwn(_) => {
            "name the process that made the CUDA context: `sudo nvcap channels -a` lists those that use the GPU"
        }
        Error::NoProfiler { .. } => "its context is on another GPU (--gpu), or has ended",
        _ => "",
    }
}

/// Results of a sampling.
struct Sampled {
    began: Instant,
    seconds: f64,
    counts: Counts,
    stream: Stream,
    overflows: u64,
    /// Kernels that were found while the samples came.
    kernels: Vec<Kernel>,
    ended: bool,
    /// File for the stream as it comes.
    raw: Option<File>,
}

fn sample(
    pid: u32,
    (duration, poll): (Duration, Duration),
    raw: Option<File>,
    session: &mut Session,
    trigger: &mut Trigger,
) -> anyhow::Result<Sampled> {
    // SAFETY: reads an id.
    signals::catch(unsafe { libc::gettid() })?;
    signals::reads();
    let mut fire = || trigger.fire().map_err(|error| error.to_string());
    session.trigger(&mut fire)?;
    let mut sampled = Sampled {
        began: Instant::now(),
        seconds: 0.0,
        counts: Counts::default(),
        stream: Stream::default(),
        overflows: 0,
        kernels: Vec::new(),
        ended: false,
        raw,
    };
    let end = sampled.began + duration;
    let mut look = Some(sampled.began + FIRST_LOOK.min(duration / 2));
    loop {
        let now = Instant::now();
        if signals::is_one() || now >= end {
            break;
        }
        if procfs::has_ended(pid) {
            sampled.ended = true;
            break;
        }
        std::thread::sleep(poll.min(end - now));
        sampled.take(session)?;
        if look.is_some_and(|at| Instant::now() >= at) {
            look = None;
            // Beside the samples, for which there is room meanwhile.
            sampled.look(pid);
        }
    }
    session.trigger(&mut fire)?;
    sampled.seconds = sampled.began.elapsed().as_secs_f64();
    signals::traced();
    let patience = Instant::now() + PATIENCE;
    while sampled.take(session)? > 0 && Instant::now() < patience {}
    session.flush()?;
    while sampled.take(session)? > 0 && Instant::now() < patience {}
    sampled.overflows = session.read().overflows;
    Ok(sampled)
}

impl Sampled {
    fn take(&mut self, session: &mut Session) -> anyhow::Result<u64> {
        let (stream, counts) = (&mut self.stream, &mut self.counts);
        let (raw, mut written) = (&mut self.raw, Ok(()));
        let read = session.poll(&mut |bytes| {
            stream.take(bytes, |s| counts.take(&s));
            if let Some(raw) = raw {
                written = raw.write_all(bytes);
            }
        });
        written.context("cannot write the stream")?;
        read.context("cannot read the samples")
    }

    /// Looks for the kernels of what has none yet.
    fn look(&mut self, pid: u32) {
        let counters = self.counts.counters().into_keys();
        let unknown: Vec<u64> = { counters }
            .filter(|pc| table::kernel_at(&self.kernels, *pc).is_none())
            .collect();
        if unknown.is_empty() {
            return;
        }
        match names::of_counters(pid, &unknown) {
            Ok(found) => {
                self.kernels.extend(found);
                self.kernels.sort_by_key(|kernel| kernel.program);
                self.kernels.dedup_by_key(|kernel| kernel.program);
            }
            Err(error) => log::debug!("no names of process {pid}: {error}"),
        }
    }

    fn found(mut self, pid: u32, gpu: u32, period: Option<u8>, context: Context) -> Found {
        let name = procfs::name(pid, None);
        if !self.ended && !procfs::has_ended(pid) {
            self.look(pid);
        }
        if self.counts.samples() == 0 {
            tell(format_args!(
                "no sample came: process {pid} had no work on GPU {gpu}, or its work is in another context than the one that was sampled (client {:#x}, channel group {:#x})",
                context.client, context.group
            ));
        }
        Found {
            pid,
            name,
            gpu,
            period,
            context,
            seconds: self.seconds,
            totals: self.stream.totals(),
            overflows: self.overflows,
            counts: self.counts,
            kernels: self.kernels,
            ended: self.ended,
        }
    }
}
