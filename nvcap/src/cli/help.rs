//! The help of the whole program: the text after the options in `nvcap --help`, and the one screen of `nvcap -h`. The names and words of
//! commands and options on that screen come from clap. This module only selects and orders them.

use std::fmt::Write as _;

use clap::error::ErrorKind;

/// End of `nvcap --help`.
pub(super) const EXAMPLES: &str = "\
Examples:
  sudo nvcap -- python train.py            trace a command from its beginning
  sudo nvcap -p 4711                       trace a running process until Ctrl-C
  sudo nvcap -a                            every process that uses a GPU, and those to come
  nvcap --how observe -- python train.py   the same without a trap: as fast as untraced, no root
  sudo nvcap -e kind=user -- ./vadd        kernel launches alone
  sudo nvcap -v -- ./vadd                  every operation, with all details
  sudo nvcap --json -o out.jsonl -p 4711   one JSON object a line into a file
  sudo nvcap -q --duration 10 -p 4711      ten seconds; only the ledger
  sudo nvcap ioctls -- ./vadd              what a command asks of the driver
  sudo nvcap channels -p 4711              a running process's channels
  sudo nvcap record -- python train.py     into a file, which nvcap decode shows
  sudo nvcap stacks -p 4711                where in the program its work comes from
  sudo nvcap dump -p 4711                  what a hung or slow process waits for
  sudo nvcap watch -a --hang 60s           wait for processes that hang, and dump them
  sudo nvcap counts -a                     submissions of all processes, exactly and for nothing
  sudo nvcap sample -p 4711                which kernels and instructions take the GPU's time
  sudo nvcap ranks -a --duration 10        which rank of a job holds up the others
  sudo nvcap share                         who had the GPU: slices and switches of each process
  sudo nvcap top                           the same on a screen, as htop shows processes
  sudo nvcap code vadd -p 4711             the instructions of a kernel
  nvcap bench                              what the GPU does without CUDA: latency, bandwidth
  nvcap export perfetto run.orc.xz -o run.pftrace    a timeline, for ui.perfetto.dev
  nvcap export kineto run.pcapng -o run.json.gz      for HolisticTraceAnalysis and TensorBoard
  nvcap export parquet run.orc.xz -o run.tables      tables, for DuckDB, pandas and Spark
  nvcap decode run.orc.xz                  a capture made elsewhere
  nvcap stats run.orc.xz                   the same in sums: kernels, copies, thresholds, graphs
  nvcap report run.orc.xz -o run.html      the same as a page: timeline, kernels, copies, graphs
  nvcap diff before.orc after.orc          what changed between two captures of a program
  nvcap explain c8b5 0300 182              what a method write means

Exit status:
  0  complete: nothing is known to be missing
  1  error: the trace could not be made, or not be written
  2  usage: the command line is not understood, asks for nothing (nvcap alone), or its output
     would replace a file (--force)
  3  something was lost: the ledger says what and how much
  4  no traced process used a GPU
  5  complete, but not all was understood: the ledger says what
  6  complete, and the GPU faulted: the verdict says which error, and in which kernel
nvcap dump and nvcap diff have statuses of their own beside these (nvcap dump --help).
With --exit-with-child the traced command's own status is passed on where the trace is complete
or no GPU was used, and where the GPU faulted and the command failed.

Where output goes:
  Of a command that nvcap starts, standard output is its own: events go to standard error, or
  where -o says. Otherwise they go to standard output.

Signals:
  Ctrl-C, SIGTERM and SIGHUP end the tracing, with the ledger; a command gets 2 s to end, a second
  one does not wait.

Environment:
  NVCAP_LOG=debug      nvcap's own diagnostics on standard error (error, warn, info, debug, trace)
  NVCAP_NO_CACHED_PUT=1   always read GP_PUT from video memory, not from the process's copy of it
  NVCAP_STORE_CACHE=FILE  where root keeps the stores that ring doorbells, for the next trace
                       (/var/cache/nvcap/stores; NVCAP_STORE_CACHE= keeps and takes none)
  NVCAP_SAMPLE_PROGRAMMES=FOLDER  where nvcap sample --learn keeps what it learns
                       (/var/cache/nvcap/sample)
  NVCAP_NO_BPF_LOOP=1  the BPF programs for kernels before 5.17";

/// Commands for one job.
struct Job {
    /// Name of the job, in at most as many lines as it has commands.
    name: &'static [&'static str],
    commands: &'static [&'static str],
}

/// Jobs with all commands that are not hidden.
const JOBS: &[Job] = &[
    Job {
        name: &["Live"],
        commands: &[
            "record", "time", "ranks", "sample", "stacks", "code", "channels", "ioctls", "maps",
        ],
    },
    Job {
        name: &["Recordings"],
        commands: &[
            "decode",
            "stats",
            "report",
            "diff",
            "export",
            "schema",
            "wireshark",
        ],
    },
    Job {
        name: &["Hangs", "and faults"],
        commands: &["dump", "watch"],
    },
    Job {
        name: &["Whole host"],
        commands: &[
            "top",
            "counts",
            "share",
            #[cfg(feature = "serve")]
            "serve",
        ],
    },
    Job {
        name: &["Reference"],
        commands: &["explain", "doctor", "bench", "study", "completions"],
    },
];

/// Options of daily use, by the names that clap has for them.
const DAILY: [&str; 12] = [
    "pid", "all", "filter", "verbose", "stats", "output", "json", "record", "how", "duration",
    "gpu_time", "stacks",
];

/// Lines of [`EXAMPLES`] that `-h` shows: their commands.
const FIRST: [&str; 3] = [
    "sudo nvcap -- python train.py",
    "sudo nvcap -p 4711",
    "sudo nvcap dump -p 4711",
];

/// Number of columns of the headings on the left.
const LEFT: usize = 12;

/// Tells whether clap's answer is the short help of the whole program, as requested by `-h`.
pub(super) fn is_short(answer: &clap::Error, cli: &mut clap::Command) -> bool {
    answer.kind() == ErrorKind::DisplayHelp && answer.to_string() == cli.render_help().to_string()
}

/// Returns the text of `nvcap -h`: one screen.
pub(super) fn screen(cli: &mut clap::Command) -> String {
    let usage = cli.render_usage().to_string();
    let usage = usage.trim_start_matches("Usage:").lines();
    let usage = usage.map(|line| line.trim().to_owned()).collect();
    let about = cli.get_about().map(ToString::to_string);
    let mut text = phrase(&about.unwrap_or_default(), &[", "]) + "\n";
    section(&mut text, &["Usage"], usage);
    text.push('\n');
    for job in JOBS {
        let commands = { job.commands.iter() }.filter_map(|name| cli.find_subcommand(name));
        let words = |of: &clap::Command| {
            let about = of.get_about().map(ToString::to_string);
            let words = phrase(&about.unwrap_or_default(), &[": ", "; ", " ("]);
            (of.get_name().to_owned(), words)
        };
        section(
            &mut text,
            job.name,
            aligned(commands.map(words).collect(), 11),
        );
    }
    text.push('\n');
    let options = DAILY.iter().filter_map(|id| option(cli, id)).collect();
    section(&mut text, &["Options"], aligned(options, 0));
    text.push('\n');
    section(&mut text, &["Examples"], aligned(examples(), 0));
    text + "nvcap --help has all options, nvcap COMMAND --help those of a command.\n"
}

/// Appends lines, with the lines of a heading on their left.
fn section(text: &mut String, heading: &[&str], lines: Vec<String>) {
    for (n, line) in lines.iter().enumerate() {
        let heading = heading.get(n).unwrap_or(&"");
        let _ = writeln!(text, "{heading:<LEFT$}{line}");
    }
}

/// Returns pairs of a name and its words as lines. Names take as many columns as the longest has, and at least `least`.
fn aligned(pairs: Vec<(String, String)>, least: usize) -> Vec<String> {
    let width = pairs.iter().map(|(name, _)| name.len()).max();
    let width = width.unwrap_or(0).max(least);
    { pairs.iter() }
        .map(|(name, words)| format!("{name:<width$}  {words}"))
        .collect()
}

/// Returns the part of a sentence before the first of these marks.
fn phrase(sentence: &str, marks: &[&str]) -> String {
    let first = marks.iter().filter_map(|mark| sentence.find(mark)).min();
    sentence[..first.unwrap_or(sentence.len())].to_owned()
}

/// Returns an option as it is typed, and its effect.
fn option(cli: &clap::Command, id: &str) -> Option<(String, String)> {
    let arg = cli.get_arguments().find(|arg| arg.get_id() == id)?;
    let names = [
        arg.get_short().map(|short| format!("-{short}")),
        arg.get_long().map(|long| format!("--{long}")),
    ];
    let mut typed = Vec::from_iter(names.into_iter().flatten()).join(", ");
    if arg.get_action().takes_values() {
        let value = { arg.get_value_names().into_iter().flatten() }
            .map(|name| name.as_str())
            .collect::<Vec<_>>()
            .join(" ");
        typed += &match arg.is_require_equals_set() {
            true => format!("[={value}]"),
            false => format!(" {value}"),
        };
    }
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let mut words = phrase(&help, &[": ", "; ", ", ", " ("]);
    let values = arg.get_possible_values();
    if arg.get_action().takes_values() && !values.is_empty() {
        let names: Vec<&str> = values
            .iter()
            .map(clap::builder::PossibleValue::get_name)
            .collect();
        let _ = write!(words, " ({})", names.join(", "));
    }
    Some((typed, words))
}

/// Returns the first examples: the command to type, and its effect.
fn examples() -> Vec<(String, String)> {
    let line = |command: &&str| {
        let mut words = EXAMPLES.lines().filter_map(|line| {
            let words = line.trim_start().strip_prefix(command)?;
            words.strip_prefix("  ")
        });
        Some(((*command).to_owned(), words.next()?.trim().to_owned()))
    };
    FIRST.iter().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::command_line;

    #[test]
    fn each_command_is_for_one_job() {
        let mut cli = command_line();
        cli.build();
        let mut shown: Vec<&str> = JOBS.iter().flat_map(|job| job.commands).copied().collect();
        shown.sort_unstable();
        let all = cli.get_subcommands().filter(|c| !c.is_hide_set());
        let names = all.map(clap::Command::get_name);
        let mut names: Vec<&str> = names.filter(|name| *name != "help").collect();
        names.sort_unstable();
        assert_eq!(shown, names);
        for job in JOBS {
            assert!(job.name.len() <= job.commands.len(), "{:?}", job.name);
        }
    }

    #[test]
    fn short_help_is_one_screen() {
        let text = screen(&mut command_line());
        assert!(text.lines().count() <= 50, "{text}");
        for line in text.lines() {
            assert!(
                line.chars().count() <= 80 && line.trim_end() == line,
                "{line}"
            );
        }
        let last = text.lines().last().unwrap();
        assert!(last.contains("nvcap --help") && last.contains("COMMAND --help"));
        assert!(
            text.contains("stacks       Sum up where in the program"),
            "{text}"
        );
    }

    #[test]
    fn short_help_has_every_option_and_example_that_it_names() {
        let cli = command_line();
        for id in DAILY {
            let (typed, words) = option(&cli, id).expect(id);
            assert!(
                typed.starts_with('-') && !words.is_empty(),
                "{typed}: {words}"
            );
        }
        let (typed, _) = option(&cli, "stacks").unwrap();
        assert_eq!(typed, "--stacks[=N]");
        assert_eq!(examples().len(), FIRST.len());
    }

    #[test]
    fn short_help_is_that_of_the_whole_program_alone() {
        let is_short = |args: &[&str]| {
            let line = ["nvcap"].iter().chain(args);
            let answer = command_line().try_get_matches_from(line).unwrap_err();
            super::is_short(&answer, &mut command_line())
        };
        for args in [&["-h"][..], &["-qh"], &["-p", "7", "-h"]] {
            assert!(is_short(args), "{args:?}");
        }
        for args in [
            &["--help"][..],
            &["help"],
            &["decode", "-h"],
            &["-V"],
            &["--no-such"],
        ] {
            assert!(!is_short(args), "{args:?}");
        }
    }

    #[test]
    fn rare_options_come_last() {
        let text = command_line().render_long_help().to_string();
        let (daily, rare) = text.split_once("\nAdvanced:\n").unwrap();
        for name in [
            "doorbell",
            "discover",
            "batch-time",
            "channels",
            "observe-threads",
            "no-images",
            "stack-size",
            "buffer",
        ] {
            let line = format!("  --{name} <");
            let flag = format!("  --{name}\n");
            assert!(rare.contains(&line) || rare.contains(&flag), "{name}");
            assert!(!daily.contains(&line) && !daily.contains(&flag), "{name}");
        }
        let headings = rare.split("\nExamples:\n").next().unwrap();
        let is_heading = |line: &str| !line.starts_with(' ') && line.ends_with(':');
        assert!(!headings.lines().any(is_heading), "{headings}");
    }
}
