//! `nvcap -- COMMAND` and `nvcap -p PID`: the live trace.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::ValueEnum;

use super::output_args::OutputArgs;
use super::thinning::ThinningArgs;
use super::values::CAPTURE;
use super::values::{Discover, parse_part, parse_pid, parse_seconds, parse_share, parse_size};
use super::way_options::useless;
use super::way_options::{HowArg, WayOption};
use nvcap_process::channels_file::{ChannelsFile, NamedDoorbell};
use nvcap_show::{output::message::tell, pipeline::Pipeline};

/// Target and options of a trace.
#[derive(clap::Args, Debug, Clone)]
#[command(next_help_heading = "Target")]
pub(super) struct Args {
    /// Trace the running process PID; may be given several times
    ///
    /// The id of a thread stands for its process.
    #[arg(short, long = "pid", value_name = "PID", value_parser = parse_pid)]
    pub pid: Vec<u32>,

    /// Trace every process of this host that uses a GPU, and those to come
    ///
    /// They are observed: nvcap stops and slows down none. --how trap traps each. A process that cannot be traced is counted and
    /// named in the ledger, and the others go on (docs/hosts.md).
    #[arg(short, long, conflicts_with = "pid", group = "whose")]
    pub all: bool,

    /// Filters of the processes.
    #[command(flatten)]
    pub filters: super::process_filter::Filters,

    /// Options of [`super::way_options::WAY_OPTIONS`] that the user has given.
    #[arg(skip)]
    pub given: Vec<&'static WayOption>,

    /// The command that traces, as it is typed.
    #[arg(skip = "nvcap")]
    pub typed: String,

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
    /// What is captured then has not been given to the GPU yet (`how` is precommit), and one debug register serves all GPUs of
    /// a process. Without this it is done where a process has more doorbells than debug registers are left.
    #[arg(long, help_heading = CAPTURE)]
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
        help_heading = CAPTURE
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
        help_heading = CAPTURE
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
        help_heading = CAPTURE
    )]
    pub discover: Discover,

    /// With -p: do not search the process's memory for graphs that it made before
    ///
    /// The search reads the process's private memory once, at low priority, for up to a few seconds, and changes
    /// nothing. Without it, the kernels of such graphs are shown without grid, block and program.
    #[arg(long, help_heading = CAPTURE)]
    pub no_images: bool,

    /// Show for each submission where in the program it came from: the calls that led to its doorbell
    ///
    /// The trap copies the top of the thread's stack, and nvcap finds the frames with the unwind tables of the mapped
    /// files; the program needs no frame pointers and no debugging information, which adds lines where it is there. Each
    /// doorbell costs more for it: with --stacks=N one in N has its stack taken, drawn by lot. docs/stacks.md has more;
    /// `nvcap stacks` makes flame graphs of it.
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
    #[arg(long, value_name = "SIZE", default_value = "16K", value_parser = parse_stack_size, help_heading = CAPTURE)]
    pub stack_size: u32,

    /// Show when the GPU began each submission, how long it waited and how long it ran
    ///
    /// The GPU writes a time stamp for each submission; nvcap reads these all the time, on another processor, which it takes whole while
    /// the GPU works. The traced program is not slowed by it. Lines come up to a second later than without. docs/gpu-time.md says how exact
    /// these times are.
    #[arg(long, help_heading = CAPTURE)]
    pub gpu_time: bool,

    /// With --gpu-time: use at most PERCENT of one core for reading time stamps, such as 5%; then stamps are read only part of the time
    #[arg(long, value_name = "PERCENT", value_parser = parse_part, help_heading = CAPTURE)]
    pub gpu_time_cpu: Option<f64>,

    /// Show programs by address, without the names of their kernels
    ///
    /// The names lie in the process's private memory, which is searched when a program is new. `--no-names` leaves that out.
    #[arg(long, help_heading = CAPTURE)]
    pub no_names: bool,

    /// Also record the trace into FILE, for `nvcap decode` and others (docs/recordings.md)
    ///
    /// FILE has all records, whatever a filter says, and is readable by its owner alone.
    #[arg(long, value_name = "FILE", help_heading = super::values::OUTPUT)]
    pub record: Option<PathBuf>,

    /// Options of keeping the recording.
    #[command(flatten)]
    pub recording: super::recorder::RecordingOptions,

    /// Watch the doorbell at ADDR, a hexadecimal address of the traced process; may be given several times
    ///
    /// By default doorbells are found.
    #[arg(
        long,
        value_name = "ADDR",
        value_parser = parse_address,
        help_heading = CAPTURE
    )]
    pub doorbell: Vec<u64>,

    /// Take the channels from FILE (docs/channels-file.md); by default they are found
    #[arg(long, value_name = "FILE", help_heading = CAPTURE)]
    pub channels: Option<PathBuf>,
}

/// `--stop-at-exit`.
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

/// Runs the trace.
pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    // clap cannot check this: other commands read the GPU's times without --gpu-time.
    if args.gpu_time_cpu.is_some() && !args.gpu_time {
        tell(
            "--gpu-time-cpu has a meaning with --gpu-time alone: nvcap --gpu-time --gpu-time-cpu 5% ...",
        );
        return Ok(ExitCode::from(nvcap_decode::ledger::STATUS_USAGE));
    }
    let mut output = args.output.clone();
    output.has_gpu_time = args.gpu_time;
    output.has_stacks = args.stacks.is_some() && args.how != HowArg::Observe;
    let make = |args: &Args| {
        let inputs = Vec::from_iter(args.channels.as_deref());
        output.pipeline(!args.command.is_empty(), &inputs)
    };
    let args = Args {
        is_soon: !output.waits_for_names(),
        ..args
    };
    run_into(args, make, |pipeline| output.conclude(pipeline))
}

/// Runs the trace into the pipeline that `make` makes once the command line was found to make sense; `conclude` ends it.
pub(super) fn run_into<'a>(
    args: Args,
    make: impl FnOnce(&Args) -> anyhow::Result<Pipeline<'a>>,
    conclude: impl FnOnce(Pipeline<'a>) -> anyhow::Result<nvcap_decode::ledger::Ledger>,
) -> anyhow::Result<ExitCode> {
    use std::cell::RefCell;

    use super::target::launch;
    use super::{recorder, trace_end};
    use nvcap_live::enrich::enriched::Enriched;
    use nvcap_live::observe::session::StopAtExit;
    use nvcap_live::{how, observe, run, trap::session};
    use nvcap_process::stacks::{queue::StackQueue, resolve::Resolver};

    if args.command.is_empty() && args.pid.is_empty() && !args.all {
        let typed = &args.typed;
        tell(format_args!(
            "nothing to trace: give a command after -- ({typed} -- ./vadd), a process ({typed} -p PID), or all that use a GPU \
             ({typed} -a); {typed} --help has more"
        ));
        return Ok(ExitCode::from(nvcap_decode::ledger::STATUS_USAGE));
    }
    if let Some(useless) = useless(args.how, &args.given) {
        tell(useless);
    }
    let given = channels_file(&args)?;
    let take = |every| StackQueue::new(args.stack_size, every);
    let queue = args.stacks.map(take);
    let mut stacks = queue.clone().map(Resolver::new);
    let options = how::LiveOptions {
        how: match args.how {
            HowArg::Auto => how::How::Auto,
            HowArg::Trap => how::How::Trap,
            HowArg::Observe => how::How::Observe,
        },
        trap: session::TrapOptions {
            discover: args.discover.way(),
            follow: !args.no_follow,
            watch: true,
            named: given.clone(),
            buffer: u32::try_from(args.buffer).unwrap_or(1 << 31),
            no_bpf_loop: std::env::var_os("NVCAP_NO_BPF_LOOP").is_some(),
            notice: |line| tell(format_args!("{line}")),
            stacks: queue.clone(),
            gp_get: args.output.explain_streams,
            no_cached_put: std::env::var_os("NVCAP_NO_CACHED_PUT").is_some(),
            precommit: args.precommit,
            mode: args.thinning.mode(),
        },
        observe: observe::session::ObserveOptions {
            follow: !args.no_follow,
            named: given,
            cpu: args.observe_cpu,
            stop_at_exit: match args.stop_at_exit {
                StopArg::Command => StopAtExit::Command,
                StopArg::Always => StopAtExit::Always,
                StopArg::Never => StopAtExit::Never,
            },
            hold_ends: !args.no_names,
        },
    };
    let limits = run::Limits {
        duration: args.duration,
        max_submissions: args.max_submissions,
    };
    args.filters.check(args.all, args.output.filter.as_ref())?;
    // As strace does: on standard error, so that output stays what was asked for.
    let quiet = args.output.quiet && !args.recording.alone;
    if !quiet {
        super::target::tell_of_newer(super::target::running_driver());
    }
    let target = if args.all {
        let mut everyone = args.filters.everyone(args.user.clone());
        let notice: fn(&str) = |line| tell(line);
        everyone.notice = (!quiet).then_some(notice);
        run::Target::All(everyone)
    } else if args.command.is_empty() {
        run::Target::Pids(args.pid.clone())
    } else {
        run::Target::Command(launch(&args.command, args.user.as_deref())?)
    };
    // A search takes seconds of processor time, which a budget has not to give.
    let search = !args.no_images && args.observe_cpu.is_none() && !args.all;
    if args.observe_cpu.is_some() && !args.pid.is_empty() && !args.output.quiet {
        tell(
            "graphs that were made before are not looked for in the process's memory, for with --observe-cpu there is a limit on \
             the time that it takes: their kernels show as not seen",
        );
    }
    let names = !args.no_names;
    let is_soon = args.is_soon;
    let pids = args.pid.clone();
    let all = args.all;
    let attached = move || {
        if all && !quiet {
            tell(
                "no process that is meant uses a GPU yet: waiting for those to come (Ctrl-C ends the trace)",
            );
        }
        for pid in pids.iter().filter(|_| !quiet) {
            tell(format_args!("process {pid} attached"));
        }
    };
    let made = make(&args)?;
    let (record, place) = match args.recording_files()? {
        Some((files, place)) => (Some(files), place),
        None => (None, None),
    };
    let made = if args.gpu_time {
        made.with_gpu_time()
    } else {
        made
    };
    // A limit on all of nvcap holds for the reading of stamps, too: half of it, for the rest is needed as well.
    let share = args.gpu_time_cpu.or(args.observe_cpu.map(|all| all / 2.0));
    let takes_times = args.gpu_time;
    let (chosen, why) = how::choose(&options, &target)?;
    let made = match record {
        None => made,
        Some(out) => {
            let how = match chosen {
                how::How::Observe => "observe",
                how::How::Auto | how::How::Trap => "trap",
            };
            made.also(Box::new(recorder::of_trace(out, &args.recorded(how))?))
        }
    };
    let pipeline = RefCell::new(made.in_time_order());
    // An observer holds the processes that it stops at their ends by itself.
    let hold = chosen != how::How::Observe && args.stop_at_exit != StopArg::Never;
    let takes_stacks = args.stacks.is_some();
    let observing = move |why: &str| {
        observing(why);
        if takes_stacks {
            tell("no stacks are shown: they are taken in the trap");
        }
    };
    if let Some(why) = why {
        observing(&why);
    }
    let outcome = run::run(
        move || {
            let source = how::make(chosen, options, observing)?;
            let source = Enriched::new(source, search, names, hold);
            let source = if is_soon { source } else { source.patient() };
            Ok(match takes_times {
                true => source.with_stamps(share),
                false => source,
            })
        },
        target,
        limits,
        |record| {
            take_stacks(&mut stacks, &mut pipeline.borrow_mut())?;
            pipeline.borrow_mut().record(record)
        },
        || pipeline.borrow_mut().flush(),
        attached,
    )
    .inspect_err(|e| {
        // What was captured before the error is shown. A second error, from writing it, would hide the first.
        let mut pipeline = pipeline.borrow_mut();
        let _ = pipeline.flush();
        if pipeline.ledger().totals().submissions > 0 {
            // The verdict is of a trace that is not whole.
            let _ = pipeline.record(run::ended_early(e));
            tell(format_args!(
                "{}",
                nvcap_show::output::ledger::verdict(pipeline.ledger())
            ));
        }
    })?;
    if let Some(left) = outcome.left {
        tell(left);
    }
    let mut pipeline = pipeline.into_inner();
    take_stacks(&mut stacks, &mut pipeline)?;
    for (what, count) in stacks.iter().flat_map(Resolver::all_left_out) {
        pipeline.left_out_of_stacks(what, count);
        if !quiet {
            tell(format_args!(
                "note: frames of stacks lack names or callers: not read: {what}"
            ));
        }
    }
    if let Some(lost) = stacks.as_ref().and_then(Resolver::lost) {
        pipeline.record(lost)?;
    }
    match &outcome.end {
        how::End::Trap(end) => {
            pipeline.trapped(trace_end::account(end));
            if let Some(every) = args.stacks.filter(|n| *n > 1) {
                pipeline.stacks_sampled(every, end.totals.stats.stacks_passed);
            }
            if let Some(record) = trace_end::lost_trap(outcome.child, end) {
                pipeline.record(record)?;
            }
        }
        how::End::Observe(observed) => pipeline.observed(observed.clone()),
    }
    let ledger = conclude(pipeline)?;
    if let Some(place) = &place {
        recorder::check(place)?;
    }
    Ok(trace_end::end(
        args.exit_with_child,
        outcome.child,
        ledger.exit_status(),
    ))
}

/// Finds the frames of the stacks that have come, while the process is there to ask.
fn take_stacks(
    stacks: &mut Option<nvcap_process::stacks::resolve::Resolver>,
    pipeline: &mut Pipeline<'_>,
) -> std::io::Result<()> {
    while let Some(stack) = stacks.as_mut().and_then(|s| s.next()) {
        pipeline.record(stack)?;
    }
    Ok(())
}

/// Says why `--how auto` does not trap.
fn observing(why: &str) {
    tell(format_args!(
        "observing without a trap, because: {why} (docs/observe.md says what that gives; --how trap insists)"
    ));
}

fn channels_file(args: &Args) -> anyhow::Result<ChannelsFile> {
    let mut given = match &args.channels {
        Some(path) => ChannelsFile::read(path)?,
        None => ChannelsFile::default(),
    };
    for address in &args.doorbell {
        if !given.doorbells.iter().any(|d| d.address == *address) {
            given.doorbells.push(NamedDoorbell {
                address: *address,
                gpu: None,
            });
        }
    }
    Ok(given)
}
