//! `nvcap top`: processes, channels, kernels and copies on a screen, live or from a recording.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use nvcap_monitor::top::state::State;
use nvcap_monitor::top::tally::Tally;
use nvcap_show::pipeline::Pipeline;

mod live;
mod observed;
mod readings;
mod recorded;
mod running;
mod screen;
mod shares;
mod shown;

use shown::shown;

use super::output_args::OutputArgs;
use super::pids::Pids;
use super::recording::RecordingArgs;
use super::values::{parse_share, parse_time};
use super::{file_or_live, process_filter};

const EXAMPLES: &str = "\
Examples:
  sudo nvcap top                   every process that uses a GPU
  sudo nvcap top -p 4711           one; Enter shows its channels, k its kernels by GPU time
  sudo nvcap top -a --user 'team*' those of some users
  nvcap top nvcap.pcapng           a recording (nvcap record --gpu-time): Left and Right go in time

Keys: ? shows them all. Enter goes into a process, Esc back; / filters, > and < choose the column to
sort by, r reverses, h shows first what may hang, Space pauses, q ends.

Processes and channels cost next to nothing: numbers that the GPU keeps are read once a second, and
what it is at is looked at some dozen times, for 0.5 % of a core (docs/counts.md). Kernels and
copies of a running process are observed while they are shown, with up to --observe-cpu of a core.
docs/top.md says what the columns mean.

Where the output is no terminal nvcap counts writes the same as lines.

Exit status: 0 the user ended it; 1 error; 2 usage.";

/// Arguments of `nvcap top`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// A recording or capture to show instead of this machine
    #[arg(value_name = "FILE", conflicts_with_all = ["pid", "all"])]
    file: Option<PathBuf>,

    #[command(flatten)]
    pub pid: Pids,

    /// Every process that uses a GPU, now or later (the default)
    #[arg(short, long, conflicts_with = "pid")]
    all: bool,

    /// How often the counts are read and shown: 200ms, 1s, 5s
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_time)]
    interval: Duration,

    /// Mark a channel as possibly hung when its oldest pending submission is this old: 30s, 5m
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_time)]
    hang: Duration,

    /// The time that sums cover when the key t is pressed
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_time)]
    last: Duration,

    /// The share of one core that observing a process for its kernels may use
    #[arg(long, value_name = "PERCENT", default_value = "10%", value_parser = parse_share)]
    observe_cpu: f64,

    /// Only processes of USER, a name, a number or a pattern; may be given several times
    #[arg(long, value_name = "USER", requires = "all", help_heading = super::values::WHOM)]
    user: Vec<String>,

    /// Filters of the processes.
    #[command(flatten)]
    filters: super::process_filter::Filters,
}

/// Returns the command for clap: with a file, without the options of a live target.
pub(super) fn as_is(command: clap::Command) -> clap::Command {
    let live = ["interval", "hang", "observe_cpu", "user"];
    let live = live.into_iter().chain(process_filter::IDS);
    file_or_live::refusing(command, "file", live)
}

/// Runs `nvcap top`.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    screen::need()?;
    let last_ns = args.last.as_nanos() as u64;
    if let Some(file) = &args.file {
        let mut recorded = recorded::Recorded::of(file, tally_of)?;
        let mut state = State::new(Some(recorded.length_ns()), last_ns);
        state.has_times = recorded.has_times();
        return shown(&mut recorded, state);
    }
    let users = args.user.iter().cloned();
    let all = args.all || args.pid.is_empty();
    let Some(whom) = args.filters.whom("top", &args.pid, all, users)? else {
        return Ok(super::target::usage());
    };
    let mut live = live::Machine::of(whom, args.interval, args.hang, args.observe_cpu)?;
    shown(&mut live, State::new(None, last_ns))
}

/// Returns the sums of a recording, and the number to add to its times for the time of day, ns (0: unknown).
fn tally_of(file: &Path) -> anyhow::Result<(Tally, u64)> {
    let args = RecordingArgs::of(file);
    let mut recording = args.open()?;
    let output = OutputArgs::default().of_recording(recording.trace());
    let offset = recording
        .trace()
        .map_or(0, |info| info.realtime_ns.saturating_sub(info.monotonic_ns));
    let options = output.pipeline_options(false, None)?;
    let mut tally = Tally::default();
    let mut pipeline = Pipeline::new(options, vec![Box::new(&mut tally)]);
    recording
        .quiet_until_the_end(Some(file))
        .play(&mut pipeline)?;
    pipeline.finish()?;
    Ok((tally, offset))
}
