//! Run of a live trace, from its command line to the ledger and the exit status.

use std::cell::RefCell;
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::recorder::{self, Traced};
use super::target::{launch, running_driver, tell_of_newer};
use super::trace::{Args, StopArg};
use super::trace_end;
use super::way_options::{HowArg, useless};
use nvcap_decode::ledger::{Ledger, STATUS_USAGE};
use nvcap_live::enrich::beside::Beside;
use nvcap_live::enrich::enriched::Enriched;
use nvcap_live::how::{self, How, LiveOptions};
use nvcap_live::observe::session::{ObserveOptions, StopAtExit};
use nvcap_live::run::{self, Limits, Target};
use nvcap_live::trap::session::{Mode, TrapOptions};
use nvcap_process::channels_file::{ChannelsFile, NamedDoorbell};
use nvcap_process::command::Launch;
use nvcap_process::host::{self, Host};
use nvcap_process::stacks::{queue::StackQueue, resolve::Resolver};
use nvcap_show::output::style::Plain;
use nvcap_show::{output::message::tell, pipeline::Pipeline};

/// Runs the trace.
pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    // clap cannot check this, because other commands read the GPU's times without --gpu-time.
    if args.gpu_time_cpu.is_some() && !args.gpu_time {
        tell(
            "--gpu-time-cpu has a meaning with --gpu-time alone: nvcap --gpu-time --gpu-time-cpu 5% ...",
        );
        return Ok(ExitCode::from(STATUS_USAGE));
    }
    let mut output = args.output.clone();
    output.has_gpu_time = args.gpu_time;
    output.has_stacks = args.stacks.is_some() && args.how != HowArg::Observe;
    let make = |args: &Args| {
        let inputs = Vec::from_iter(args.channels.as_deref());
        output.pipeline(args.leaves_standard_output(), &inputs)
    };
    let args = Args {
        is_soon: !output.waits_for_names(),
        ..args
    };
    run_into(args, make, |pipeline| output.conclude(pipeline))
}

/// Runs the trace into the pipeline that `make` makes, once the command line has been found valid; `conclude` ends it.
pub(super) fn run_into<'a>(
    args: Args,
    make: impl FnOnce(&Args) -> anyhow::Result<Pipeline<'a>>,
    conclude: impl FnOnce(Pipeline<'a>) -> anyhow::Result<Ledger>,
) -> anyhow::Result<ExitCode> {
    if args.command.is_empty() && args.pid.is_empty() && !args.all {
        let typed = &args.typed;
        tell(format_args!(
            "nothing to trace: give a command after -- ({typed} -- ./vadd), a process ({typed} -p PID), or all that use a GPU \
             ({typed} -a); {typed} --help has more"
        ));
        return Ok(ExitCode::from(STATUS_USAGE));
    }
    let how = match args.how {
        HowArg::Auto if !args.ways.is_how && insists(&args) => HowArg::Trap,
        how => how,
    };
    let args = Args { how, ..args };
    args.keep_standard_output()?;
    if let Some(useless) = useless(args.how, &args.ways.options) {
        tell(useless);
    }
    let given = channels_file(&args)?;
    let take = |every| StackQueue::new(args.stack_size, every);
    let queue = args.stacks.map(take);
    let mut stacks = queue.clone().map(Resolver::new);
    let options = options(&args, given, queue);
    args.filters.check(args.all, args.output.filter.as_ref())?;
    let is_quiet = is_quiet(&args);
    if !is_quiet {
        tell_of_newer(running_driver());
    }
    let target = target(&args, is_quiet)?;
    let searches = searches(&args);
    // This comes before rights are given up.
    let beside = { super::sample::beside(&args)?.into_iter() }
        .chain(super::share::beside(&args)?)
        .collect();
    let made = make(&args)?;
    let (record, place) = match args.recording_files()? {
        Some((files, place)) => (Some(files), place),
        None => (None, None),
    };
    let made = match args.gpu_time {
        true => made.with_gpu_time(),
        false => made,
    };
    let (chosen, why) = how::choose(&options, &target)?;
    let way = match (args.how, chosen) {
        (HowArg::Auto, How::Observe) => HowArg::Observe,
        (HowArg::Auto, _) => HowArg::Trap,
        _ => HowArg::Auto,
    };
    if let Some(useless) = useless(way, &args.ways.options) {
        tell(useless);
    }
    let watched = Arc::new(AtomicBool::new(chosen == How::Observe));
    let made = match record {
        None => made,
        Some(out) => {
            let traced = Traced {
                observes: watched.clone(),
                ..args.recorded(way_recorded(chosen))
            };
            made.also(Box::new(recorder::of_trace(out, &traced)?))
        }
    };
    let pipeline = RefCell::new(made.in_time_order());
    let takes_stacks = args.stacks.is_some();
    let attached = attached(&args, &target, is_quiet, watched.clone());
    let observing = move |why: &str| {
        watched.store(true, Relaxed);
        observing(why);
        if takes_stacks {
            tell("no stacks are shown: they are taken in the trap");
        }
    };
    if let Some(why) = why {
        observing(&why);
    }
    let additions = Additions::of(&args, searches, chosen);
    let outcome = run::run(
        move || Ok(additions.add(how::make(chosen, options, observing)?, beside)),
        target,
        Limits {
            duration: args.duration,
            max_submissions: args.max_submissions,
        },
        |record| {
            take_stacks(&mut stacks, &mut pipeline.borrow_mut())?;
            pipeline.borrow_mut().record(record)
        },
        || pipeline.borrow_mut().flush(),
        attached,
    )
    .inspect_err(|e| show_what_there_is(&mut pipeline.borrow_mut(), e))?;
    if let Some(left) = outcome.left {
        tell(left);
    }
    let mut pipeline = pipeline.into_inner();
    take_stacks(&mut stacks, &mut pipeline)?;
    account_of_stacks(stacks.as_ref(), &mut pipeline, is_quiet)?;
    account_of_source(&args, &outcome, &mut pipeline)?;
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

/// Tells whether options ask for something that only the trap gives, so that another way would not do.
fn insists(args: &Args) -> bool {
    args.ways.options.iter().any(|option| option.is_of_trap())
        || args.stacks.is_some()
        || args.precommit
        || !args.doorbell.is_empty()
        || !matches!(args.thinning.mode(), Mode::Each)
}

/// Returns the options of the two ways of capture, as the command line gives them.
fn options(args: &Args, given: ChannelsFile, stacks: Option<StackQueue>) -> LiveOptions {
    LiveOptions {
        how: match args.how {
            HowArg::Auto => How::Auto,
            HowArg::Trap => How::Trap,
            HowArg::Observe => How::Observe,
        },
        trap: TrapOptions {
            discover: args.discover.way(),
            follow: !args.no_follow,
            watch: true,
            named: given.clone(),
            buffer: u32::try_from(args.buffer).unwrap_or(1 << 31),
            no_bpf_loop: std::env::var_os("NVCAP_NO_BPF_LOOP").is_some(),
            notice: |line| tell(format_args!("{line}")),
            stacks,
            gp_get: args.output.explain_streams,
            no_cached_put: std::env::var_os("NVCAP_NO_CACHED_PUT").is_some(),
            precommit: args.precommit,
            mode: args.thinning.mode(),
            store_cache: store_cache(),
        },
        observe: ObserveOptions {
            follow: !args.no_follow,
            named: given,
            cpu: args.observe_cpu,
            readers: args.observe_threads.map(|n| usize::from(n) - 1),
            stop_at_exit: match args.stop_at_exit {
                StopArg::Command => StopAtExit::Command,
                StopArg::Always => StopAtExit::Always,
                StopArg::Never => StopAtExit::Never,
            },
            hold_ends: true,
        },
    }
}

/// Returns the file that hands the known doorbell stores from one trace to the next. Only root has one by default: with file capabilities,
/// nvcap has rights that its user does not have, and the user's environment names the file's place.
fn store_cache() -> Option<PathBuf> {
    if !nvcap_process::procfs::is_root() {
        return None;
    }
    match std::env::var_os("NVCAP_STORE_CACHE") {
        None => Some("/var/cache/nvcap/stores".into()),
        Some(path) => (!path.is_empty()).then(|| path.into()),
    }
}

/// Tells whether notes on standard error are left out, as strace leaves them out, so that output stays what was asked for.
fn is_quiet(args: &Args) -> bool {
    args.output.quiet && !args.recording.alone
}

/// Returns the processes that are traced; a command is prepared for its start.
fn target(args: &Args, is_quiet: bool) -> anyhow::Result<Target> {
    Ok(if args.all {
        let mut everyone = args.filters.everyone(args.user.clone());
        let notice: fn(&str) = |line| tell(line);
        everyone.notice = (!is_quiet).then_some(notice);
        Target::All(everyone)
    } else if args.command.is_empty() {
        Target::Pids(args.pid.to_vec())
    } else {
        Target::Command(launch(&args.command, args.user.as_deref())?)
    })
}

/// Tells whether graphs that were made before are looked for in a process's memory. That takes seconds of processor time, which a budget
/// does not allow. If the user may expect it nevertheless, a note says so.
fn searches(args: &Args) -> bool {
    if args.observe_cpu.is_some() && !args.pid.is_empty() && !args.output.quiet {
        tell(
            "graphs that were made before are not looked for in the process's memory, for with --observe-cpu there is a limit on \
             the time that it takes: their kernels show as not seen",
        );
    }
    !args.no_images && args.observe_cpu.is_none() && !args.all
}

/// Makes the header of the trace, shown when the target is attached or the command begins: the target, the way of capture, its cost, and
/// how to end it.
///
/// The header of a command is shown on a terminal only: it shares standard error with the command, whose output must stay unchanged in
/// files and pipes.
fn attached(
    args: &Args,
    target: &Target,
    is_quiet: bool,
    observes: Arc<AtomicBool>,
) -> impl FnOnce() + Send + use<> {
    let pids: Vec<(u32, String, bool)> = match is_quiet {
        true => Vec::new(),
        false => args
            .pid
            .iter()
            .map(|pid| {
                let uses = host::uses::of_process(*pid);
                // A process that may not be looked into may have a GPU.
                let waits = uses.as_ref().is_ok_and(|uses| uses.gpus.is_empty());
                (*pid, who(*pid, &uses.unwrap_or_default()), waits)
            })
            .collect(),
    };
    let all = args.all;
    let command = match target {
        Target::Command(launch) if std::io::stderr().is_terminal() => Some(starts(launch)),
        _ => None,
    };
    move || {
        if is_quiet {
            return;
        }
        if all {
            tell(
                "no process that is meant uses a GPU yet: waiting for those to come (Ctrl-C ends the trace)",
            );
        }
        let way = match observes.load(Relaxed) {
            true => "by observing, which does not slow it",
            false => "by the trap, which slows each doorbell",
        };
        for (pid, who, waits) in pids {
            let how = match waits {
                true => {
                    "it has no GPU open: waiting until it, or a child that it starts, opens one"
                }
                false => way,
            };
            tell(format_args!(
                "process {pid} attached: {who}{how}; Ctrl-C ends the trace, not the process"
            ));
        }
        if let Some(command) = command {
            tell(format_args!("{command}, {way}; Ctrl-C ends both"));
        }
    }
}

/// Returns the command that is to be started, and its user, for a message.
fn starts(launch: &Launch) -> String {
    let program = launch.argv.first().map(PathBuf::from).unwrap_or_default();
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    let own = || Host::new(Path::new("/")).identity(std::process::id(), &host::Uses::default());
    let user = match &launch.user {
        Some(user) => Some(user.name.clone()),
        None => own().ok().and_then(|who| who.user),
    };
    match user {
        Some(user) => format!("{} of {user}", Plain(&name)),
        None => Plain(&name).to_string(),
    }
}

/// Returns a process's name, user and GPUs for a message, as far as they are known.
fn who(pid: u32, uses: &host::uses::Uses) -> String {
    let Ok(who) = Host::new(Path::new("/")).identity(pid, uses) else {
        return String::new();
    };
    let uid = who.uid.map(|uid| uid.to_string());
    let mut text = who.comm;
    if let Some(user) = who.user.or(uid) {
        text += &format!(" of {user}");
    }
    let gpus: Vec<String> = uses.gpus.iter().map(u32::to_string).collect();
    match gpus.len() {
        0 => {}
        1 => text += &format!(" on GPU {}", gpus.join("")),
        _ => text += &format!(" on GPUs {}", gpus.join(", ")),
    }
    text + ", "
}

/// Returns the name of the way of capture for a recording.
fn way_recorded(chosen: How) -> &'static str {
    match chosen {
        How::Observe => "observe",
        How::Auto | How::Trap => "trap",
    }
}

/// Additions to a source's records: graphs that were made before, names, and the GPU's times.
#[derive(Clone, Copy)]
struct Additions {
    searches: bool,
    names: bool,
    /// True if processes are held at their ends until their names are read.
    holds: bool,
    is_soon: bool,
    takes_times: bool,
    /// Limit on the processor time for the GPU's times, as a share of one processor.
    share: Option<f64>,
}

impl Additions {
    fn of(args: &Args, searches: bool, chosen: How) -> Additions {
        Additions {
            searches,
            names: !args.no_names,
            // An observer itself holds the processes that it stops at their ends.
            holds: chosen != How::Observe && args.stop_at_exit != StopArg::Never,
            is_soon: args.is_soon,
            takes_times: args.gpu_time,
            // A limit for all of nvcap also covers the reading of stamps. They get half of it, because the rest is needed, too.
            share: args.gpu_time_cpu.or(args.observe_cpu.map(|all| all / 2.0)),
        }
    }

    fn add(self, source: how::LiveSource, beside: Vec<Beside>) -> Enriched<how::LiveSource> {
        let source = Enriched::new(source, self.searches, self.names, self.holds);
        let source = source.with_beside(beside);
        let source = if self.is_soon {
            source
        } else {
            source.patient()
        };
        match self.takes_times {
            true => source.with_stamps(self.share),
            false => source,
        }
    }
}

/// Shows the data that was captured before an error. A second error, while writing it, would hide the first.
fn show_what_there_is(pipeline: &mut Pipeline<'_>, error: &nvcap_process::error::Error) {
    let _ = pipeline.settle().and_then(|()| pipeline.flush());
    if pipeline.ledger().totals().submissions > 0 {
        // The verdict is about a trace that is incomplete.
        let _ = pipeline.record(run::ended_early(error));
        let ledger = pipeline.ledger();
        tell(format_args!(
            "{}",
            nvcap_show::output::ledger::verdict(ledger)
        ));
    }
}

/// Records in the ledger the stacks that are incomplete, and why.
fn account_of_stacks(
    stacks: Option<&Resolver>,
    pipeline: &mut Pipeline<'_>,
    is_quiet: bool,
) -> std::io::Result<()> {
    let Some(stacks) = stacks else {
        return Ok(());
    };
    for (what, count) in stacks.all_left_out() {
        pipeline.left_out_of_stacks(what, count);
        if !is_quiet {
            tell(format_args!(
                "note: frames of stacks lack names or callers: not read: {what}"
            ));
        }
    }
    if let Some(lost) = stacks.lost() {
        pipeline.record(lost)?;
    }
    Ok(())
}

/// Records in the ledger what the source itself counted.
fn account_of_source(
    args: &Args,
    outcome: &run::Outcome<how::End>,
    pipeline: &mut Pipeline<'_>,
) -> std::io::Result<()> {
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
    Ok(())
}

/// Finds the frames of the stacks that have come, while the process still exists.
fn take_stacks(stacks: &mut Option<Resolver>, pipeline: &mut Pipeline<'_>) -> std::io::Result<()> {
    while let Some(stack) = stacks.as_mut().and_then(|s| s.next()) {
        pipeline.record(stack)?;
    }
    Ok(())
}

/// Reports why `--how auto` does not trap.
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
