//! `nvcap sample`: the kernels of a running process by their share of the GPU's time, and its hottest instructions, from program counters
//! that the GPU samples.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, bail};

use nvcap_decode::driver::Version;
use nvcap_decode::ledger::{STATUS_LOST, STATUS_NOT_UNDERSTOOD};
use nvcap_decode::samples::Programme;
use nvcap_lab::trigger::Trigger;
use nvcap_live::enrich::beside::Beside;
use nvcap_process::memory::chip;
use nvcap_process::rm::{Kernel as System, Os};
use nvcap_process::signals;
use nvcap_show::output::message::tell;
use nvcap_show::output::writer::Output;
use nvcap_show::samples::{Folded, Places};

mod code;
mod kept;
mod learn;
mod record;
mod recorded;
mod remedy;
mod table;
mod turns;
mod who;

use super::beside;
use super::file_or_live;
use super::overwrite::Files;
use super::pids::Pids;
use super::recording::RecordingArgs;
use super::target;
use super::values::{Force, parse_time};
use record::Recording;
use table::Found;
use turns::{Deliver, Sampler};
use who::{Running, Who};

pub(super) const EXAMPLES: &str = "\
Examples:
  sudo nvcap sample --learn              once on each machine: learn how the GPU is told to sample
  sudo nvcap sample -p 4711              two seconds of a running process
  sudo nvcap sample -p 4711 --duration 10s --json
  sudo nvcap sample -- python infer.py   a command, to its end
  sudo nvcap sample -a --duration 10s    every process that uses the GPU, in turns
  sudo nvcap sample -p 4711 --top 40     the 40 hottest instructions
  sudo nvcap sample -p 4711 --code gemm  the code of a kernel, with samples beside each instruction
  sudo nvcap sample -p 4711 --record run.pcapng    record the samples, too
  nvcap sample run.pcapng                what was recorded, so or by nvcap record --sample-pc
  nvcap sample --folded run.pcapng | inferno-flamegraph > gpu.svg    a flame graph, with --stacks
                                         in the recording from the program's calls to instructions

The GPU itself samples the program counters of the process's warps, one on each SM in a period, also
within graph replays (docs/sampling.md). The process is not stopped and needs no restart; nothing is
written into it. Only one program can have a GPU's profiler: ncu, CUPTI and DCGM's profiling cannot
use it meanwhile. Of several contexts one is sampled at a time, in turns of half a second, and each
has a table of its own. What a COMMAND writes stays its own: the tables go to standard error, or to
the file of -o.

  SHARE      part of all samples: of the time of the SMs that had work, not of the time elapsed
  NO ISSUE   samples in whose cycle the warp scheduler had no instruction to issue

Exit status: 0 every sample is understood; 1 error; 2 usage; 3 samples were lost; 5 not all of the
stream was understood.";

/// Time between two readings of the stream. With a period of [`MIDDLE`] or more, at most 80 MB/s come; with one of [`LONG`] or more, 10.
/// The buffer has room for 64 MiB. Each reading takes some milliseconds of a processor, because the driver waits for the GPU.
const POLL: Duration = Duration::from_millis(250);
const MIDDLE_POLL: Duration = Duration::from_millis(50);
const SHORT_POLL: Duration = Duration::from_millis(10);
const LONG: u8 = 18;
const MIDDLE: u8 = 15;

/// Time for which processes are sampled unless another is given.
const DURATION: Duration = Duration::from_secs(2);

/// Period unless another is given, as its logarithm: some 4,000 samples a second from each SM.
const PERIOD: u8 = 19;

/// Processes that are sampled, and the way of sampling.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// A recording with samples (--record, nvcap record --sample-pc) to read instead of a live process
    #[arg(value_name = "FILE", conflicts_with_all = ["pid", "all", "learn", "command", "period", "gpu", "duration", "code", "record"])]
    file: Option<PathBuf>,

    /// More files of the same trace (nvcap record --rotate), in any order: they are read as one
    #[arg(value_name = "FILE", requires = "file")]
    more: Vec<PathBuf>,

    #[command(flatten)]
    pid: Pids,

    /// Sample every process that uses the GPU
    #[arg(short, long, conflicts_with_all = ["pid", "learn", "command"])]
    all: bool,

    /// Sample for TIME; Ctrl-C ends it before [default: 2s; a COMMAND to its end]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    duration: Option<Duration>,

    /// Run COMMAND as USER, a name or a number; `nvcap --help` says who it is by default
    #[arg(long, value_name = "USER", requires = "command")]
    user: Option<String>,

    /// The command to run and sample, with its arguments
    #[arg(last = true, value_name = "COMMAND", conflicts_with_all = ["pid", "learn"])]
    command: Vec<OsString>,

    /// One sample in 2^N cycles of each SM [default: 19, or what was learnt]
    #[arg(long, value_name = "N")]
    period: Option<u8>,

    /// The GPU, N of /dev/nvidiaN, where there are several
    #[arg(long, value_name = "N")]
    gpu: Option<u32>,

    /// Show so many of the hottest instructions
    #[arg(long, value_name = "COUNT", default_value_t = 10)]
    top: usize,

    /// Learn from NVIDIA's CUPTI how this GPU is made to sample: from FILE, the output of `nvcap ioctls -vv --json` for a program that
    /// samples with CUPTI; without FILE nvcap starts such a program itself
    #[arg(long, value_name = "FILE", num_args = 0..=1, conflicts_with = "pid")]
    learn: Option<Option<PathBuf>>,

    /// Write the bytes of the stream to FILE as they came
    #[arg(long, value_name = "FILE", hide = true)]
    raw: Option<PathBuf>,

    /// Write JSON: one object
    #[arg(long)]
    json: bool,

    /// Write a line for each instruction and stall reason, as flame graph programs read them; of a recording with stacks, behind the calls that launch the kernel
    #[arg(long, conflicts_with_all = ["json", "code", "top", "learn"])]
    folded: bool,

    /// Write to FILE instead of standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Also record the samples into FILE, for `nvcap sample FILE` and others (docs/sampling.md)
    #[arg(long, value_name = "FILE", conflicts_with = "learn")]
    record: Option<PathBuf>,

    /// Show the code of a kernel with the samples beside each instruction, too: by its name (`*` stands for any text, `?` for one character) or
    /// the address of its program (0x...)
    #[arg(long, value_name = "KERNEL|PROGRAM", conflicts_with = "learn")]
    code: Option<String>,

    /// Option by which FILE is replaced.
    #[command(flatten)]
    force: Force,
}

/// Returns the command for clap: with a file, without the options of a live target.
pub(super) fn as_is(command: clap::Command) -> clap::Command {
    let live = ["user", "raw"];
    file_or_live::refusing(command, "file", live)
}

impl Args {
    /// Returns the reason why sampling must not begin: its output would replace a file.
    pub(super) fn refusal(&self) -> Option<String> {
        let learnt = self.learn.iter().flatten();
        let inputs = learnt.chain(&self.file).chain(&self.more);
        let files = Files::new(self.force.force)
            .reads(inputs.map(PathBuf::as_path))
            .writes("-o", self.output.as_deref())
            .records("--record", self.record.as_deref());
        files.refusal()
    }
}

/// Samples, learns how to sample, or shows the samples of a recording.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if let Some(file) = &args.learn {
        return learn::run(&gpu(args.gpu, "--gpu")?, file.as_deref());
    }
    if let Some(file) = &args.file {
        let of = RecordingArgs {
            more: args.more.clone(),
            ..RecordingArgs::of(file)
        };
        return of_file(args, &of);
    }
    if args.pid.is_empty() && !args.all && args.command.is_empty() {
        tell(
            "nothing to sample: give a process (nvcap sample -p PID), a command (nvcap sample -- ./vadd), -a, or a recording (nvcap sample FILE), or learn first how this GPU is told to (nvcap sample --learn)",
        );
        return Ok(target::usage());
    }
    let prepared = Prepared::new(args.gpu, "--gpu", args.period)?;
    target::tell_of_newer(prepared.version);
    let command = !args.command.is_empty();
    let mut out = target::open(args.output.as_deref(), args.force.force, command, &[])?;
    let raw = args.raw.as_deref().map(std::fs::File::create_new);
    let raw = raw
        .transpose()
        .context("cannot make the file for the stream")?;
    let recording = args.record.as_deref();
    let mut recording = recording
        .map(|path| {
            let output = args.output.as_deref();
            Recording::begin(path, args.force.force, output, &args.command)
        })
        .transpose()?;
    // This comes before there are threads.
    let mut who = match command {
        true => Who::Command(Box::new(Running::prepare(
            &args.command,
            args.user.as_deref(),
        )?)),
        false if args.all => Who::All,
        false => Who::Pids(args.pid.to_vec()),
    };
    let to: Deliver<'_> = match &mut recording {
        Some(recording) => Box::new(|record| recording.record(record)),
        None => Box::new(|_| Ok(())),
    };
    let mut sampler = prepared.sampler(raw, to)?;
    // SAFETY: reads an id.
    signals::catch(unsafe { libc::gettid() })?;
    signals::reads();
    // A command is sampled to its end.
    let duration = args.duration.or((!command).then_some(DURATION));
    let sampled = turns::sample(&mut sampler, &mut who, duration);
    signals::traced();
    // The GPU's profiler is given back before code is looked for. A command that is stopped at its end goes on only then.
    drop(sampler);
    let listings = |sampled: &Vec<turns::Subject>| -> Vec<Vec<table::Listed>> {
        let of = |subject| match &args.code {
            Some(what) => code::listed(subject, what),
            None => Vec::new(),
        };
        sampled.iter().map(of).collect()
    };
    let codes = sampled.as_ref().map(listings).unwrap_or_default();
    who.end();
    let sampled = sampled?;
    if sampled.is_empty() {
        tell("nothing was sampled: no process had a CUDA context");
    }
    let pids: Vec<u32> = sampled.iter().map(|subject| subject.pid).collect();
    let found = sampled.into_iter().zip(codes).enumerate();
    let found = found.map(|(i, (subject, code))| subject.found(table::number(&pids, i), code));
    let status = show(args, &mut out, found, &Places::default())?;
    recording.map_or(Ok(()), Recording::end)?;
    Ok(status)
}

/// Shows the samples in a recording.
fn of_file(args: &Args, of: &RecordingArgs) -> anyhow::Result<ExitCode> {
    let (all, places, ledger) = recorded::read(of, args.output.as_deref(), args.folded)?;
    let mut out = target::open(
        args.output.as_deref(),
        args.force.force,
        false,
        &of.inputs(),
    )?;
    let pids: Vec<u32> = all.contexts().iter().map(|sums| sums.key.pid).collect();
    let found = all.contexts().iter().enumerate().map(|(i, sums)| Found {
        name: all.name(sums.key.pid).map(str::to_owned),
        number: table::number(&pids, i),
        kernels: all.kernels(sums.key.pid).to_vec(),
        sums: sums.clone(),
        code: Vec::new(),
    });
    let status = show(args, &mut out, found, &places)?;
    if all.left_out() > 0 {
        tell(format_args!(
            "{} samples of more contexts are not shown",
            all.left_out()
        ));
    }
    // Missing ring entries do not mean missing samples; a file that was cut may lack some.
    if ledger.untraced().is_empty() {
        return Ok(status);
    }
    tell(nvcap_show::output::ledger::verdict(&ledger));
    Ok(ExitCode::from(STATUS_LOST))
}

/// Writes the tables, and returns the status, which reflects lost samples and parts of their stream that are not understood.
fn show(
    args: &Args,
    out: &mut Output,
    all: impl Iterator<Item = Found>,
    places: &Places,
) -> anyhow::Result<ExitCode> {
    let mut status = ExitCode::SUCCESS;
    let mut folded = Folded::default();
    for (i, found) in all.enumerate() {
        let to = out.object();
        match args.json {
            true => table::json(to, &found, args.top),
            false if args.folded => {
                let name = found.name.as_deref().unwrap_or("?");
                folded.add(name, &found.sums, &found.kernels, places);
                tell(table::summary(&found));
            }
            false => {
                if i > 0 {
                    to.push(b'\n');
                }
                table::text(to, &found, args.top);
            }
        }
        if found.sums.lost() {
            status = ExitCode::from(STATUS_LOST);
        } else if found.sums.strange_bytes > 0 && status == ExitCode::SUCCESS {
            status = ExitCode::from(STATUS_NOT_UNDERSTOOD);
        }
    }
    folded.write(out.object());
    target::written(out)?;
    Ok(status)
}

/// Everything that sampling on a GPU needs, except what a thread must have of its own.
struct Prepared {
    gpu: chip::Named,
    version: Option<Version>,
    programme: Programme,
    period: Option<u8>,
}

impl Prepared {
    /// Reads the programme that was learnt for the chosen GPU; `option` names a GPU.
    fn new(wanted: Option<u32>, option: &str, period: Option<u8>) -> anyhow::Result<Self> {
        let gpu = gpu(wanted, option)?;
        let programme = kept::read(&gpu.uuid, &kept::driver()?)?;
        let (programme, period) = with_period(programme, period)?;
        Ok(Self {
            gpu,
            version: target::running_driver(),
            programme,
            period,
        })
    }

    /// Requests from the driver what a sampling needs.
    fn sampler(self, raw: Option<std::fs::File>, to: Deliver<'_>) -> anyhow::Result<Sampler<'_>> {
        let os = || -> Rc<dyn Os> { Rc::new(System) };
        let trigger = Trigger::new(os(), self.version, self.gpu.minor);
        let trigger =
            trigger.context("cannot get a channel of nvcap's own, which starts the samples")?;
        Ok(Sampler {
            os: os(),
            version: self.version,
            gpu: self.gpu.minor,
            programme: self.programme,
            poll: match self.period {
                Some(LONG..) => POLL,
                Some(MIDDLE..) => MIDDLE_POLL,
                _ => SHORT_POLL,
            },
            trigger,
            raw,
            period: self.period,
            to,
        })
    }
}

/// Begins to sample beside a trace, if that was asked for (`--sample-pc`), in a thread that ends with the trace.
///
/// # Errors
/// When it cannot begin. A later failure is reported, and recorded in the trace as a loss.
pub(super) fn beside(args: &super::trace::Args) -> anyhow::Result<Option<Beside>> {
    let Some(period) = args.sample_pc else {
        return Ok(None);
    };
    let prepared = Prepared::new(args.sample_gpu, "--sample-gpu", period)?;
    let thread = beside::Thread {
        name: "nvcap-samples",
        asks: true,
        failed: "program counters were not sampled to the end",
    };
    let begun = beside::begin(thread, move |trace, ready| {
        let to: Deliver<'_> = Box::new(|record| {
            anyhow::ensure!(trace.give(record), "nobody takes the samples any more");
            Ok(())
        });
        let mut sampler = prepared.sampler(None, to)?;
        ready();
        turns::sample(&mut sampler, &mut Who::Traced(trace.clone()), None).map(drop)
    });
    begun.map(Some)
}

/// Returns the chosen GPU; `option` names one.
fn gpu(wanted: Option<u32>, option: &str) -> anyhow::Result<chip::Named> {
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
            "there are several GPUs: type {option} with the one that the process uses, of {}",
            numbers()
        ),
        (Some(minor), all) => match all.iter().find(|gpu| gpu.minor == minor) {
            Some(gpu) => gpu.clone(),
            None => bail!(
                "there is no GPU {minor}: type {option} with one of {}",
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

/// Returns the programme with the chosen period, and that period.
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
