//! `nvcap share`: the process that had each GPU, by the driver's own record of context switches.

use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use nvcap_decode::record::Identity;
use nvcap_decode::switches::{GpuView, Scope};
use nvcap_monitor::share::Share;
use nvcap_process::rm::Kernel;
use nvcap_process::signals;
use nvcap_show::output::message::tell;
use nvcap_show::output::writer::Output;
use nvcap_show::shares::Works;

mod beside;
mod driver;
mod recorded;
mod table;

pub(super) use beside::beside;
use driver::CANNOT_READ;
pub(super) use driver::{POLL, refused, tell_of_limits};

use super::file_or_live;
use super::overwrite::Files;
use super::pids::Pids;
use super::recording::RecordingArgs;
use super::target;
use super::values::{Force, parse_time};

pub(super) const EXAMPLES: &str = "\
Examples:
  sudo nvcap share                       who has which GPU, a table a second, until Ctrl-C
  sudo nvcap share --duration 10         one table, of ten seconds
  sudo nvcap share -p 4711 --interval 5  one process beside the sum of the others
  sudo nvcap share --json --duration 10  one JSON object for each GPU
  nvcap share run.pcapng                 what was recorded beside a trace (nvcap record --shares)

The driver records when a context gets the graphics and compute engine of a GPU and when it loses
it (docs/sharing.md). nvcap reads that record: nothing is done to any process, nor to the GPU.

  SHARE    part of the time for which the process's contexts were resident
  SLICES   how often they got the engine;  MEAN, LONGEST: for how long each time
  /s       slices in a second
  lost in switches: from the end of a slice to the begin of the next. The time in which a context's
           state is saved, about as long, belongs to its slice: the driver tells no more

A share is residence, not work: a context that is alone stays resident though it does nothing.
Copy engines and video engines are not in it. MPS has one context for all its clients.

Exit status: 0 all that happened is in it; 1 error; 2 usage; 3 the driver has lost records: the
table says how many, and for how long it is not known who had the GPU.";

/// Status if records are missing.
const STATUS_LOST: u8 = nvcap_decode::ledger::STATUS_LOST;

/// Processes whose shares are shown, and form of the output.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// A recording that says it (nvcap record --shares) to read instead of asking the driver
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,

    /// More files of the same trace (nvcap record --rotate), in any order: they are read as one
    #[arg(value_name = "FILE", requires = "file")]
    more: Vec<PathBuf>,

    #[command(flatten)]
    pid: Pids,

    /// Every process, which is the default without -p
    #[arg(short, long, conflicts_with = "pid")]
    all: bool,

    /// Only this GPU, N of /dev/nvidiaN; may be given several times
    #[arg(long, value_name = "N")]
    gpu: Vec<u32>,

    /// Show a table of each TIME [default: 1s, without --duration]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    interval: Option<Duration>,

    /// End after TIME, with a table of all of it
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    duration: Option<Duration>,

    /// Write JSON: an object for each GPU (of MIG instances: for each of these)
    #[arg(long)]
    json: bool,

    /// Write to FILE instead of standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Option by which FILE is replaced.
    #[command(flatten)]
    force: Force,

    /// Find the host's files below FOLDER. For nvcap in a container with the host's /proc (hostPID), /etc and /var/log mounted there
    #[arg(long, value_name = "FOLDER", default_value = "/")]
    host_root: PathBuf,
}

/// Returns the command for clap: with a file, without the options of a live target.
pub(super) fn as_is(command: clap::Command) -> clap::Command {
    let live = ["pid", "all", "gpu", "interval", "duration", "host_root"];
    file_or_live::refusing(command, "file", live)
}

impl Args {
    /// Returns the reason why measuring must not begin: its output would replace a file.
    pub(super) fn refusal(&self) -> Option<String> {
        let inputs = self.file.iter().chain(&self.more);
        let files = Files::new(self.force.force)
            .reads(inputs.map(PathBuf::as_path))
            .writes("-o", self.output.as_deref());
        files.refusal()
    }
}

/// Measures, or shows the shares of a recording.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if let Some(file) = &args.file {
        let of = RecordingArgs {
            more: args.more.clone(),
            ..RecordingArgs::of(file)
        };
        return of_file(args, &of);
    }
    let version = target::running_driver();
    target::tell_of_newer(version);
    let opened = Share::open(Rc::new(Kernel), version, &args.gpu, &args.host_root);
    let (mut share, refusals) = opened.context("cannot ask the driver who has the GPUs")?;
    for refusal in &refusals {
        tell(refused(refusal));
    }
    let gpus: Vec<(u32, Scope)> = share.gpus().collect();
    if gpus.is_empty() {
        match refusals.is_empty() {
            true => bail!("the driver tells of no GPU"),
            false => bail!("no GPU's driver tells who has it"),
        }
    }
    tell_of_limits(&gpus);
    let mut out = target::open(args.output.as_deref(), args.force.force, false, &[])?;
    // SAFETY: reads an id.
    signals::catch(unsafe { libc::gettid() })?;
    signals::reads();
    let began = Instant::now();
    let end = args.duration.map(|duration| began + duration);
    let interval = match (args.interval, args.duration) {
        (None, Some(_)) => None,
        (interval, _) => Some(interval.unwrap_or(Duration::from_secs(1)).max(POLL)),
    };
    let mut due = interval.map(|interval| began + interval);
    // The driver's record alone shows no work.
    let works = Works::default();
    loop {
        let now = Instant::now();
        let next = { [Some(now + POLL), due, end].into_iter().flatten() }.min();
        signals::rest(next.unwrap_or(now).saturating_duration_since(now));
        let now = Instant::now();
        let gone = !args.pid.is_empty() && !args.pid.iter().any(is_there);
        if signals::is_one() || gone || end.is_some_and(|end| now >= end) {
            break;
        }
        match due {
            Some(at) if now >= at => {
                let part = share.part().context(CANNOT_READ)?;
                let told = (&part[..], &works);
                show(args, &mut out, told, |pid| share.identity(pid), false)?;
                // Tables that were missed are not made up for.
                due = interval.map(|interval| (at + interval).max(now));
            }
            _ => share.poll().context(CANNOT_READ)?,
        }
    }
    signals::traced();
    let whole = share.whole().context(CANNOT_READ)?;
    let told = (&whole[..], &works);
    show(args, &mut out, told, |pid| share.identity(pid), true)?;
    Ok(status(&whole))
}

/// Shows the shares of a recording.
fn of_file(args: &Args, of: &RecordingArgs) -> anyhow::Result<ExitCode> {
    let output = args.output.as_deref();
    let mut out = target::open(output, args.force.force, false, &[])?;
    let all = recorded::read(of, output)?;
    let views = all.shares.views();
    let told = (&views[..], &all.works);
    show(args, &mut out, told, |pid| all.shares.identity(pid), true)?;
    Ok(status(&views))
}

/// Returns the exit status of a table of the whole time.
fn status(views: &[GpuView]) -> ExitCode {
    match views.iter().any(|gpu| gpu.missing > 0 || gpu.strange > 0) {
        true => ExitCode::from(STATUS_LOST),
        false => ExitCode::SUCCESS,
    }
}

fn is_there(pid: &u32) -> bool {
    std::path::Path::new(&format!("/proc/{pid}")).exists()
}

fn show<'a>(
    args: &Args,
    out: &mut Output,
    told: (&[GpuView], &Works),
    who: impl Fn(u32) -> Option<&'a Identity>,
    whole: bool,
) -> anyhow::Result<()> {
    let only = (!args.pid.is_empty()).then_some(&args.pid[..]);
    match args.json {
        true => table::json(out.object(), told, who, only, whole),
        false => table::text(out.object(), told, who, only, whole),
    }
    target::written(out)
}
