//! The command line: one file for each command, with no logic beyond wiring. Shared by all commands are the options that determine what is
//! shown and where it goes (`output_args`), words of options (`values`), and, in this file, the way in which a command ends.

mod bench;
mod beside;
mod channels;
mod code;
mod completions;
mod counts;
mod decode;
mod diff;
mod doctor;
mod dump;
mod dump_file;
mod explain;
mod export;
mod extcap;
mod fast_lines;
mod file_or_live;
mod help;
mod hint;
mod ioctls;
mod logger;
mod man_pages;
mod maps;
mod names_ahead;
mod output_args;
mod overview;
mod overwrite;
mod parts;
mod pids;
mod process_filter;
mod profile;
mod progress;
mod ranks;
mod record;
mod recorder;
mod recording;
mod report;
#[cfg(feature = "parquet")]
mod rotated_tables;
mod said;
mod sample;
mod schema;
#[cfg(feature = "serve")]
mod serve;
mod share;
mod stacks;
mod stats;
mod study;
mod sums;
mod target;
mod target_view;
mod thinning;
mod time;
mod top;
mod trace;
mod trace_end;
mod trace_recording;
mod trace_run;
mod usage;
mod usual_look;
mod values;
mod version;
mod watch;
mod way_options;
mod wireshark;

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use nvcap_decode::ledger::{STATUS_ERROR, STATUS_USAGE};
use nvcap_show::output::message::tell;

/// Shows the command streams that NVIDIA's userspace driver submits to the GPU, live and complete.
///
/// Without a subcommand it traces: a command given after `--`, or running processes named with -p.
#[derive(Parser, Debug)]
#[command(
    name = "nvcap",
    version = version::short(),
    long_version = version::long(),
    max_term_width = 100,
    args_conflicts_with_subcommands = true,
    after_long_help = help::EXAMPLES,
    override_usage = "nvcap [OPTIONS] -- COMMAND [ARGS]...\n       nvcap [OPTIONS] (-p PID | -a)\n       nvcap <SUBCOMMAND>"
)]
struct Cli {
    #[command(flatten)]
    trace: trace::Args,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Record a trace into a file, to be read later
    Record(Box<record::Args>),
    /// Decode a recording or capture instead of a live process
    Decode(decode::Args),
    /// Compare two recordings of one program: operation by operation
    Diff(Box<diff::Args>),
    /// Sum up a recording: kernels, how bytes were moved (and at which sizes the way changes), graphs, waits, histograms
    Stats(stats::Args),
    /// Write a page for a browser, of a recording: timeline, kernels, how bytes were moved, graphs, what is missing
    Report(Box<report::Args>),
    /// Install what Wireshark needs: to show nvcap's packets, and to capture live
    Wireshark(wireshark::Args),
    /// Answer Wireshark's questions for live capture; Wireshark calls it
    #[command(hide = true)]
    Extcap(Box<extcap::Args>),
    /// Show every ioctl on the driver's files: named and with its fields
    Ioctls(ioctls::Args),
    /// Show the channels of a process: token, engine, ring, how far it is
    #[command(after_help = channels::EXAMPLES)]
    Channels(target_view::Args),
    /// Sum up where in the program the GPU's work comes from: folded stacks, for flame graphs
    Stacks(Box<stacks::Args>),
    /// Sum up the GPU's time: kernels by what they took, copies, how busy the GPU was and what it waited for
    Time(Box<time::Args>),
    /// Show which rank of a job holds up the others: who comes last to collectives, and what it does instead
    Ranks(Box<ranks::Args>),
    /// Show the code of a kernel: of a running process, a cubin or program, or a capture
    Code(code::Args),
    /// Write Perfetto, Kineto, SQLite, Parquet, CSV or pcapng: of a recording or live
    Export(export::Args),
    /// List the tables of nvcap export csv and parquet: their columns
    Schema(schema::Args),
    /// Look once at a hung or slow process: the state of its channels, what they wait for, their last submissions
    Dump(Box<dump::Args>),
    /// Wait until a process hangs; then dump it and run a command
    Watch(watch::Args),
    /// Count submissions exactly: done, pending, the oldest's age; of all GPU processes at next to no cost
    Counts(counts::Args),
    /// Show who had the GPU: time slices and context switches of each process, from the driver's own record
    Share(share::Args),
    /// Sample the program counters of a process on the GPU: kernels by share, hot instructions, inside graphs too
    Sample(sample::Args),
    /// Measure the GPU without CUDA: copies by each engine, inline data, semaphores, doorbells, an empty kernel
    Bench(bench::Args),
    /// Study CUDA's copies and graphs: what it submits for them, and what of the time is the GPU's
    Study(study::Args),
    /// Show processes, channels and kernels on a screen: sorted and filtered, live or from a recording
    Top(Box<top::Args>),
    /// Serve the counts of this host as metrics over HTTP: for Prometheus and others
    #[cfg(feature = "serve")]
    Serve(Box<serve::Args>),
    /// Show a process's mappings of the driver's files: explained
    #[command(after_help = maps::EXAMPLES)]
    Maps(target_view::Args),
    /// Say what a number means: a method write, a QMD, a control command, a status
    Explain(explain::Args),
    /// Say what nvcap can do on this machine (discovery, breakpoints, rights), and why not where it cannot
    Doctor(doctor::Args),
    /// Write what a shell needs to complete command lines
    Completions(completions::Args),
    /// Write a manual page a command into a folder; whoever makes a package calls it
    #[command(hide = true)]
    ManPages(man_pages::Args),
}

impl Cli {
    /// Returns the reason why the command must not begin: it would replace files, and the user has not given `--force`.
    fn refusal(&self) -> Option<String> {
        let recording = |of: &recording::RecordingArgs, output: &output_args::OutputArgs| {
            output.refusal(&of.inputs())
        };
        let shown = |target: &target::Target, show: &target::Show| {
            overwrite::refusal(show.output.as_deref(), show.force.force, &target.inputs())
        };
        match self.command.as_ref() {
            None => self.trace.refusal(None),
            Some(Command::Stacks(args)) => args.trace.refusal(args.file.as_deref()),
            Some(Command::Time(args)) => args.refusal(),
            Some(Command::Ranks(args)) => args.refusal(),
            Some(Command::Decode(args)) => recording(&args.recording, &args.output),
            Some(Command::Stats(args)) => recording(&args.recording, &args.output),
            Some(Command::Report(args)) => recording(&args.recording, &args.output),
            Some(Command::Ioctls(args)) => shown(&args.target, &args.show),
            Some(Command::Channels(args) | Command::Maps(args)) => shown(&args.target, &args.show),
            Some(Command::Diff(args)) => args.refusal(),
            Some(Command::Dump(args)) => args.refusal(),
            Some(Command::Counts(args)) => args.refusal(),
            Some(Command::Share(args)) => args.refusal(),
            Some(Command::Sample(args)) => args.refusal(),
            Some(Command::Code(args)) => args.refusal(),
            Some(Command::Bench(args)) => args.refusal(),
            Some(Command::Study(args)) => args.refusal(),
            Some(Command::Export(args)) => args.refusal(),
            Some(Command::Record(args)) => args.refusal(),
            #[cfg(feature = "serve")]
            Some(Command::Serve(_)) => None,
            Some(
                Command::Wireshark(_)
                | Command::Extcap(_)
                | Command::Watch(_)
                | Command::Top(_)
                | Command::Explain(_)
                | Command::Schema(_)
                | Command::Doctor(_)
                | Command::Completions(_)
                | Command::ManPages(_),
            ) => None,
        }
    }
}

/// Returns an error with its causes, each once, since some repeat their cause's words. A remedy names no option that the command lacks.
fn said(e: &anyhow::Error, has: &impl Fn(&str) -> bool) -> String {
    let words = |cause: &(dyn std::error::Error + 'static)| {
        if let Some(error) = cause.downcast_ref::<nvcap_process::error::Error>() {
            return error.for_command(has);
        }
        cause.to_string()
    };
    let mut text = String::new();
    for cause in e.chain().map(words) {
        if text.is_empty() {
            text = cause;
        } else if !text.ends_with(&cause) {
            text = text + ": " + &cause;
        }
    }
    text
}

/// The command that was typed, and those of its options that are no remedy although it has them.
#[derive(Debug)]
struct Typed {
    command: clap::Command,
    /// True if stacks are taken, which only the trap can do.
    needs_trap: bool,
    /// Hint for a number that was given as a file.
    number: Option<String>,
}

impl Typed {
    fn of(mut command: clap::Command, given: &clap::ArgMatches) -> Self {
        let mut given = given;
        let mut path = Vec::new();
        while let Some((name, below)) = given.subcommand() {
            let Some(found) = command.find_subcommand(name).cloned() else {
                break;
            };
            (command, given) = (found, below);
            path.push(name);
        }
        let asked = |id| {
            matches!(given.try_contains_id(id), Ok(true))
                && given.value_source(id) == Some(clap::parser::ValueSource::CommandLine)
        };
        Self {
            needs_trap: command.get_name() == "stacks" || asked("stacks"),
            number: hint::number_for_a_file(&command, &path.join(" "), given),
            command,
        }
    }

    /// Tells whether an option (its name without dashes) can be given to this command.
    fn has(&self, option: &str) -> bool {
        if option == "how" && self.needs_trap {
            return false;
        }
        let mut all = self.command.get_arguments();
        all.any(|a| a.get_long() == Some(option) && !a.is_hide_set())
    }
}

/// Tells whether an error means that the reader of nvcap's output went away, which ends a command quietly.
fn reader_went_away(e: &anyhow::Error) -> bool {
    e.chain()
        .filter_map(|c| c.downcast_ref::<io::Error>())
        .any(|c| c.kind() == io::ErrorKind::BrokenPipe)
}

/// Returns the command line for clap. Options that several commands share have the help text that fits each command.
fn command_line() -> clap::Command {
    Cli::command()
        .mut_subcommand("stacks", stacks::as_is)
        .mut_subcommand("stats", stats::without_useless)
        .mut_subcommand("report", report::as_is)
        .mut_subcommand("time", time::as_is)
        .mut_subcommand("ranks", ranks::as_is)
        .mut_subcommand("record", record::as_is)
        .mut_subcommand("export", export::as_is)
        .mut_subcommand("sample", sample::as_is)
        .mut_subcommand("share", share::as_is)
        .mut_subcommand("top", top::as_is)
        .mut_subcommand("dump", dump::as_is)
        .mut_subcommand("ioctls", target::as_is)
        .mut_subcommand("channels", target::as_is)
        .mut_subcommand("maps", target::as_is)
}

impl Cli {
    /// Runs the command.
    fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            None if std::env::args_os().len() < 2 => overview::run(),
            None => trace_run::run(self.trace),
            Some(Command::Record(args)) => record::run(*args),
            Some(Command::Decode(args)) => decode::run(&args),
            Some(Command::Diff(args)) => diff::run(&args),
            Some(Command::Stats(args)) => stats::run(&args),
            Some(Command::Report(args)) => report::run(&args),
            Some(Command::Wireshark(args)) => wireshark::run(&args),
            Some(Command::Extcap(args)) => extcap::run(&args),
            Some(Command::Ioctls(args)) => ioctls::run(&args),
            Some(Command::Channels(args)) => channels::run(&args),
            Some(Command::Code(args)) => code::run(&args),
            Some(Command::Dump(args)) => match &args.file {
                Some(file) => dump_file::run(&args, file),
                None => dump::run(&args),
            },
            Some(Command::Watch(args)) => watch::run(&args),
            Some(Command::Bench(args)) => bench::run(&args),
            Some(Command::Study(args)) => study::run(&args),
            Some(Command::Counts(args)) => counts::run(&args),
            Some(Command::Share(args)) => share::run(&args),
            Some(Command::Sample(args)) => sample::run(&args),
            Some(Command::Top(args)) => top::run(&args),
            #[cfg(feature = "serve")]
            Some(Command::Serve(args)) => serve::run(&args),
            Some(Command::Stacks(args)) => stacks::run(*args),
            Some(Command::Time(args)) => time::run(*args),
            Some(Command::Ranks(args)) => ranks::run(*args),
            Some(Command::Export(args)) => export::run(args),
            Some(Command::Maps(args)) => maps::run(&args),
            Some(Command::Schema(args)) => schema::run(&args),
            Some(Command::Explain(args)) => explain::run(&args),
            Some(Command::Doctor(args)) => doctor::run(&args),
            Some(Command::Completions(args)) => completions::run(&args, &command_line()),
            Some(Command::ManPages(args)) => man_pages::run(&args, command_line()),
        }
    }
}

/// Parses the command line. `Err` has the status with which nvcap ends because the line was not understood, or asked for help.
fn parse() -> Result<(Cli, Typed), ExitCode> {
    let mut command = command_line();
    let parsed = command.try_get_matches_from_mut(std::env::args_os());
    let parsed = parsed.and_then(|mut given| {
        let typed = Typed::of(command_line(), &given);
        let cli = Cli::from_arg_matches_mut(&mut given).map_err(|e| e.format(&mut command))?;
        Ok((cli, typed))
    });
    parsed.map_err(|e| not_parsed(&hint::without_escape(e)))
}

/// Prints why a command line is not run: an error, help or the version. Returns the status.
fn not_parsed(e: &clap::Error) -> ExitCode {
    // Help and version are not errors.
    let status = if e.use_stderr() { STATUS_USAGE } else { 0 };
    let mut cli = command_line();
    let printed = match help::is_short(e, &mut cli) {
        true => write!(io::stdout(), "{}", help::screen(&mut cli)),
        false => e.print(),
    };
    let printed = printed.and_then(|()| io::stdout().flush());
    if let (Err(cause), false) = (printed, e.use_stderr())
        && cause.kind() != io::ErrorKind::BrokenPipe
    {
        tell(format_args!("cannot write to standard output: {cause}"));
        return ExitCode::from(STATUS_ERROR);
    }
    let args = std::env::args_os().skip(1);
    let args: Vec<String> = args.map(|a| a.to_string_lossy().into_owned()).collect();
    if let Some(meant) = hint::of(e, &args, Cli::command()) {
        tell(meant);
    }
    ExitCode::from(status)
}

/// Runs the command line.
pub fn main() -> ExitCode {
    // A file size limit then makes a write fail, like a full disk. SAFETY: ignores a signal, before there are threads.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    nvcap_process::signals::survive_sealing();
    nvcap_process::descriptors::make_room();
    logger::init();
    let (cli, typed) = match parse() {
        Ok(parsed) => parsed,
        Err(status) => return status,
    };
    if let Some(why) = typed.number.clone().or_else(|| cli.refusal()) {
        tell(why);
        return ExitCode::from(STATUS_USAGE);
    }
    let failed = match &cli.command {
        // 1 means that the inputs differ.
        Some(Command::Diff(_)) => diff::TROUBLE,
        _ => STATUS_ERROR,
    };
    match cli.run() {
        Ok(status) => status,
        Err(e) if reader_went_away(&e) => ExitCode::SUCCESS,
        Err(e) => {
            tell(said(&e, &|option| typed.has(option)));
            match e.is::<usage::Usage>() {
                true => ExitCode::from(STATUS_USAGE),
                false => ExitCode::from(failed),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser as _};
    use std::collections::{BTreeMap, BTreeSet};

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }

    /// Calls `visit` with each command, and with its name preceded by the commands above it.
    fn each_command(
        of: &str,
        command: &clap::Command,
        visit: &mut impl FnMut(&str, &clap::Command),
    ) {
        let name = format!("{of} {}", command.get_name());
        visit(&name, command);
        for below in command.get_subcommands() {
            each_command(&name, below, visit);
        }
    }

    #[test]
    fn ways_out_are_options_of_the_command_that_was_typed() {
        let has = |line: &str| {
            let args = ["nvcap"].into_iter().chain(line.split_whitespace());
            let given = super::command_line().try_get_matches_from(args);
            let given = given.unwrap_or_else(|e| panic!("{line}: {e}"));
            let typed = super::Typed::of(super::command_line(), &given);
            ["how", "channels"].map(|option| typed.has(option))
        };
        for (line, expected) in [
            ("-p 7", [true, true]),
            ("--stacks -p 7", [false, true]),
            ("record -p 7", [true, true]),
            ("record --stacks -p 7", [false, true]),
            ("time -p 7", [true, true]),
            ("stacks -p 7", [false, true]),
            ("ioctls -p 7", [false, false]),
            ("channels -p 7", [false, false]),
            ("maps -p 7", [false, false]),
            ("export perfetto -p 7", [true, true]),
            ("export kineto -p 7", [true, true]),
        ] {
            assert_eq!(has(line), expected, "{line}");
        }
    }

    /// Test that a heading of a group of options does not extend to the options declared after it.
    #[test]
    fn options_stand_under_their_own_heading() {
        let whom = [
            "user",
            "cgroup",
            "comm",
            "gpu",
            "container",
            "pod",
            "host_root",
        ];
        let mut all: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        each_command("", &super::command_line(), &mut |name, command| {
            for arg in command.get_arguments().filter(|a| !a.is_hide_set()) {
                let (id, heading) = (arg.get_id().as_str(), arg.get_help_heading());
                if heading == Some(super::values::WHOM) {
                    assert!(whom.contains(&id), "{name}: {id} is under {heading:?}");
                }
                if arg.is_positional() {
                    let own = [None, Some("Target")];
                    assert!(own.contains(&heading), "{name}: {id} is under {heading:?}");
                    continue;
                }
                // Some commands have no groups.
                if let Some(heading) = heading {
                    all.entry(id.to_owned())
                        .or_default()
                        .insert(heading.to_owned());
                }
            }
        });
        // An option that several commands have is under the same heading in each, except for these, where it means something else.
        let differ = { all.iter() }.filter(|(_, headings)| headings.len() > 1);
        let differ: Vec<String> = differ
            .map(|(id, at)| format!("{id}: {}", Vec::from_iter(at.iter().cloned()).join(", ")))
            .collect();
        let known = [
            "buffer: Advanced, Capture",
            "channels: Advanced, Capture, Target",
            "discover: Advanced, Capture",
            "no_names: Capture, What to show",
            "quiet: Output, What to show",
            "user: Target, Which processes (-a)",
        ];
        assert_eq!(differ, known);
    }

    /// Test that text wrapped by hand fits the width of the help, because clap would wrap a longer line once more.
    #[test]
    fn what_is_wrapped_by_hand_fits() {
        let cli = super::Cli::command();
        for command in cli.get_subcommands().chain([&cli]) {
            let texts = [command.get_after_help(), command.get_after_long_help()];
            let text: String = texts
                .into_iter()
                .flatten()
                .map(ToString::to_string)
                .collect();
            for line in text.lines() {
                assert!(
                    line.chars().count() <= 100,
                    "{}: {line}",
                    command.get_name()
                );
            }
        }
    }

    fn hint(line: &str) -> Option<String> {
        let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let whole = ["nvcap".to_owned()].into_iter().chain(args.clone());
        let error = super::Cli::try_parse_from(whole).expect_err(line);
        super::hint::of(&error, &args, super::Cli::command())
    }

    #[test]
    fn a_command_without_dashes_is_meant_wherever_it_stands() {
        for (line, meant) in [
            ("./vadd --size 4", "nvcap -- ./vadd ..."),
            ("-q ./vadd", "nvcap -q -- ./vadd ..."),
            ("--how observe ./vadd", "nvcap --how observe -- ./vadd ..."),
            (
                "-e op=launch ./vadd --x",
                "nvcap -e op=launch -- ./vadd ...",
            ),
        ] {
            let said = hint(line).expect(line);
            assert!(said.ends_with(meant), "{line}: {said}");
            assert!(said.contains("after --"), "{line}: {said}");
        }
    }

    #[test]
    fn what_is_no_command_is_not_taken_for_one() {
        let capture = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../tests/fixtures/h200-cut.orc"
        );
        assert!(std::path::Path::new(capture).is_file(), "{capture}");
        for (line, meant) in [
            ("4711", "nvcap -p 4711"),
            (capture, &format!("nvcap decode {capture}")),
            ("-q dump", "nvcap dump ..."),
            ("decod x", "nvcap decode ..."),
            ("map", "nvcap maps ..."),
            ("dunp", "nvcap dump ..."),
            (
                "tiem x",
                "no command `tiem`; did you mean `time`? nvcap time ...",
            ),
            ("-q rnaks", "nvcap ranks ..."),
            (
                "gone.pcapng",
                "there is no file gone.pcapng; nvcap decode FILE shows a recording",
            ),
            (
                "stats -p 4711",
                "reads recordings; of a running process: nvcap -s -p PID",
            ),
            ("report x -p 4711", "nvcap record -p PID"),
            ("counts --by process", "leave --by process out"),
            ("top --by=process", "leave --by process out"),
            ("stats x --by process", "nvcap time FILE --by process"),
            ("stacks --by process -p 1", "nvcap time --by process"),
        ] {
            let said = hint(line).expect(line);
            assert!(said.ends_with(meant), "{line}: {said}");
        }
        for line in [
            "help foo",
            "--sise 4",
            "dump a b",
            "watch -q 4",
            "stats --by kernels x",
            "counts --by kernel",
        ] {
            assert_eq!(hint(line), None, "{line}");
        }
    }
}
