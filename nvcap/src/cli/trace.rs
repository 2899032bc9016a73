//! Command line of a live trace: `nvcap -- COMMAND`, `nvcap -p PID`, `nvcap -a`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args as _, Command, Id, ValueEnum};

use super::output_args::OutputArgs;
use super::pids::Pids;
use super::thinning::ThinningArgs;
use super::values::{ADVANCED, CAPTURE};
use super::values::{Discover, parse_part, parse_seconds, parse_share, parse_size};
use super::way_options::{HowArg, WaysTyped};

/// Target and options of a trace.
#[derive(clap::Args, Debug, Clone)]
#[command(next_help_heading = "Target")]
pub(super) struct Args {
    /// Options of a single way of capture that were typed. They come first, because a value that was taken no longer shows its origin.
    #[command(flatten)]
    pub ways: WaysTyped,

    #[command(flatten)]
    pub pid: Pids,

    /// Trace every process of this host that uses a GPU, and those to come
    ///
    /// They are observed: nvcap stops and slows down none. --how trap traps each. A process that cannot be traced is counted and
    /// named in the ledger, and the others go on (docs/hosts.md).
    #[arg(short, long, conflicts_with = "pid", group = "whose")]
    pub all: bool,

    /// Filters of the processes.
    #[command(flatten)]
    pub filters: super::process_filter::Filters,

    /// Command that traces, as it is typed.
    #[arg(skip = "nvcap")]
    pub typed: String,

    /// True if `-o` is for another program, so that a traced command must not write there.
    #[arg(skip)]
    pub exports: bool,

    /// True if output does not wait long for names.
    #[arg(skip)]
    pub is_soon: bool,

    /// Run COMMAND as USER, a name or a number; with -a: trace only the processes of USER
    ///
    /// With -a USER may be a pattern, such as 'team-*'.
    ///
    /// It gets USER's groups, HOME, SHELL, USER and LOGNAME. Without this option COMMAND runs as nvcap's own user, with one
    /// exception: under sudo it runs as the user who called sudo, and a line says so. `--user root` keeps it root's.
    #[arg(long, value_name = "USER", requires = "whose", conflicts_with = "pid")]
    pub user: Option<String>,

    /// Do not trace the children and execs of what is traced
    #[arg(long)]
    pub no_follow: bool,

    /// End with the status of COMMAND if the trace is complete
    #[arg(long, requires = "command", conflicts_with = "pid")]
    pub exit_with_child: bool,

    /// The command to run and trace, with its arguments
    #[arg(
        last = true,
        value_name = "COMMAND",
        conflicts_with = "pid",
        group = "whose"
    )]
    pub command: Vec<OsString>,

    /// Form and place of the output.
    #[command(flatten)]
    pub output: OutputArgs,

    /// Also record the trace into FILE, for `nvcap decode` and others (docs/recordings.md)
    ///
    /// FILE has all records, whatever a filter says, and is readable by its owner alone. - is standard output: what is shown, and what
    /// COMMAND writes there, goes to standard error then.
    #[arg(long, value_name = "FILE", help_heading = super::values::OUTPUT)]
    pub record: Option<PathBuf>,

    /// Options of keeping the recording.
    #[command(flatten)]
    pub recording: super::recorder::RecordingOptions,

    /// How submissions are seen
    ///
    /// trap sets a hardware breakpoint on the doorbell: every submission is seen when it is made, with its thread, and
    /// costs the traced program one trap. observe sets no breakpoint and needs no BPF, and no root for one's own
    /// processes: it reads the rings through /proc/PID/mem often enough; the program runs as fast as untraced, a time is
    /// that of the reading, and the thread is unknown (docs/observe.md).
    #[arg(
        long,
        value_name = "HOW",
        value_enum,
        default_value_t,
        default_value_if("all", "true", "observe"),
        help_heading = CAPTURE
    )]
    pub how: HowArg,

    /// Trap before each doorbell is rung: at the store that rings it, once that is known
    ///
    /// The captured work has then not been given to the GPU yet (`how` is precommit), and one debug register serves all GPUs of a process.
    /// Without this option it is done if a process has more doorbells than debug registers are left.
    #[arg(long, help_heading = ADVANCED)]
    pub precommit: bool,

    /// Choice of the doorbells that are captured.
    #[command(flatten)]
    pub thinning: ThinningArgs,

    /// End after SECONDS, such as 10 or 0.5; the traced processes run on
    #[arg(
        long,
        value_name = "SECONDS",
        value_parser = parse_seconds,
        help_heading = CAPTURE
    )]
    pub duration: Option<std::time::Duration>,

    /// End after N submissions; the traced processes run on
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u64).range(1..),
        help_heading = CAPTURE
    )]
    pub max_submissions: Option<u64>,

    /// Size in bytes of the ring buffer between kernel and nvcap, a power of two such as 64M
    ///
    /// K, M and G (or KiB, MiB, GiB) are powers of 1024. When nvcap falls behind by more than this, and than
    /// 256 MiB that it copies out of it then, submissions are fetched from the rings later, and counted as missing if they are overwritten before; nvcap says so. The traced program never waits.
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "16M",
        value_parser = parse_size,
        help_heading = ADVANCED
    )]
    pub buffer: u64,

    /// With --how observe: use at most PERCENT of one core, such as 5%; no limit by default
    ///
    /// The limit is for all of nvcap, with decoding and output. Entries that a ring overwrites because the limit is too low are counted as
    /// lost.
    #[arg(
        long,
        value_name = "PERCENT",
        value_parser = parse_share,
        help_heading = CAPTURE
    )]
    pub observe_cpu: Option<f64>,

    /// Most threads that look at channels with --how observe [default: as many as are needed, up to half the processors]
    ///
    /// One is enough for some ten thousand submissions a second. Where looking takes it more than a third of a core, the busiest
    /// channels go to further threads. With --observe-cpu there is one.
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u16).range(1..=64),
        conflicts_with = "observe_cpu",
        help_heading = ADVANCED
    )]
    pub observe_threads: Option<u16>,

    /// Processes that are held for a moment at their end, so that their last submissions and kernel names can be read
    ///
    /// With --how trap only the command is held, for up to 0.25 s.
    ///
    /// They are stopped by ptrace, as strace does it. A command that nvcap starts needs no right for that. Meanwhile no
    /// debugger can attach to the process, and if nvcap is not root, a program with the set-user-id bit (such as sudo)
    /// runs without it: give never for such a program.
    #[arg(
        long,
        value_name = "WHICH",
        value_enum,
        default_value_t,
        help_heading = ADVANCED
    )]
    pub stop_at_exit: StopArg,

    /// With --how trap: how the driver's mappings are found
    ///
    /// `nvcap doctor` says which ways this machine allows.
    #[arg(
        long,
        value_name = "WAY",
        value_enum,
        default_value_t,
        help_heading = ADVANCED
    )]
    pub discover: Discover,

    /// With -p: do not search the process's memory for graphs that it made before
    ///
    /// The search reads the process's private memory once, at low priority, for up to a few seconds, and changes
    /// nothing. Without it, the kernels of such graphs are shown without grid, block and program.
    #[arg(long, help_heading = ADVANCED)]
    pub no_images: bool,

    /// Show the calls that led to each submission: where in the program it came from
    ///
    /// The trap copies the top of the thread's stack, and nvcap finds the frames with the unwind tables of the mapped files; the program
    /// needs no frame pointers and no debugging information, which adds lines if it is present. Each doorbell costs more with it: with
    /// --stacks=N the stack is taken at one doorbell in N, chosen at random. docs/stacks.md has more; `nvcap stacks` makes flame graphs of
    /// it.
    #[arg(
        long,
        value_name = "N",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "1",
        value_parser = clap::value_parser!(u32).range(1..),
        help_heading = CAPTURE
    )]
    pub stacks: Option<u32>,

    /// With --stacks: bytes of each stack that are taken, 4KiB to 60KiB
    #[arg(long, value_name = "SIZE", default_value = "16K", value_parser = parse_stack_size, help_heading = ADVANCED)]
    pub stack_size: u32,

    /// Show when the GPU began each submission, how long it waited and how long it ran
    ///
    /// The GPU writes a time stamp for each submission; nvcap reads these all the time, on another processor, which it takes whole while
    /// the GPU works. The traced program is not slowed by it. Lines come up to a second later than without. docs/gpu-time.md says how exact
    /// these times are.
    #[arg(long, help_heading = CAPTURE)]
    pub gpu_time: bool,

    /// With --gpu-time: use at most PERCENT of one core for reading time stamps, such as 5%; then stamps are read only part of the time
    #[arg(long, value_name = "PERCENT", value_parser = parse_part, help_heading = ADVANCED)]
    pub gpu_time_cpu: Option<f64>,

    /// Also sample program counters: which kernels had the GPU's SMs, within graph replays too
    ///
    /// As nvcap sample does, with its needs (nvcap sample --learn once, root, the GPU's profiler), one sample of each SM in 2^N cycles. `nvcap time` splits the
    /// time of graph replays by them, and `nvcap sample FILE` shows them of a recording (docs/sampling.md).
    #[arg(
        long,
        value_name = "N",
        num_args = 0..=1,
        require_equals = true,
        help_heading = CAPTURE
    )]
    pub sample_pc: Option<Option<u8>>,

    /// With --sample-pc: the GPU that is sampled, N of /dev/nvidiaN, where there are several
    #[arg(long, value_name = "N", requires = "sample_pc", help_heading = ADVANCED)]
    pub sample_gpu: Option<u32>,

    /// Also record who had which GPU: the driver's record of context switches, of all processes
    ///
    /// As nvcap share does, with its rights. `nvcap share FILE` shows it of a recording; so do Perfetto, the report's page and the table slices
    /// (docs/sharing.md).
    #[arg(long, help_heading = CAPTURE)]
    pub shares: bool,

    /// Show programs by address, without the names of their kernels
    ///
    /// The names lie in the process's private memory, which is searched when a program is new. `--no-names` leaves that out.
    #[arg(long, help_heading = CAPTURE)]
    pub no_names: bool,

    /// Watch the doorbell at ADDR, a hexadecimal address of the traced process; may be given several times
    ///
    /// By default doorbells are found.
    #[arg(
        long,
        value_name = "ADDR",
        value_parser = parse_address,
        help_heading = ADVANCED
    )]
    pub doorbell: Vec<u64>,

    /// Take the channels from FILE (docs/channels-file.md); by default they are found
    #[arg(long, value_name = "FILE", help_heading = ADVANCED)]
    pub channels: Option<PathBuf>,
}

/// Lists the options of a trace except those that determine what is shown and where. All of them belong to a live target.
pub(super) fn live_options() -> impl Iterator<Item = Id> {
    fn ids(command: &Command) -> Vec<Id> {
        let options = command.get_arguments().filter(|arg| !arg.is_positional());
        options.map(|arg| arg.get_id().clone()).collect()
    }
    let trace = Args::augment_args(Command::new("trace"));
    let shown = ids(&OutputArgs::augment_args(Command::new("shown")));
    let all = ids(&trace).into_iter();
    all.filter(move |id| !shown.contains(id))
}

/// Values of `--stop-at-exit`.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum StopArg {
    /// COMMAND and the children that it makes
    #[default]
    Command,
    /// COMMAND, its children, and running processes (-p)
    Always,
    /// No process: submissions after the last look may be missing; the ledger says so
    Never,
}

fn parse_stack_size(text: &str) -> Result<u32, String> {
    nvcap_show::output::units::number(text)
        .filter(|n| n % 4096 == 0 && (4096..=u64::from(nvcap_common::MOST_STACK)).contains(n))
        .and_then(|n| u32::try_from(n).ok())
        .ok_or_else(|| {
            format!("'{text}' is no size of a stack: give a multiple of 4KiB from 4KiB to 60KiB, such as 16KiB")
        })
}

fn parse_address(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    u64::from_str_radix(digits, 16).map_err(|_| format!("'{text}' is no hexadecimal address"))
}
