//! `nvcap ranks`: the rank of a job that holds up the others, in recordings or live.
//!
//! ```text
//! $ nvcap ranks node.pcapng
//! rank 1 comes last in 97.1 % of 1019 all-reduces, 2.10 ms late on average: 30 more of gemm before each, 2.09 ms
//! ```

mod profiles;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::bail;
use serde_json::Value;

use super::output_args::OutputArgs;
use super::recording::{self, Played, RecordingArgs};
use super::usage::bail_usage;
use super::{sums, target, trace, trace_run, usual_look, values};
use nvcap_decode::driver::Version;
use nvcap_decode::ledger::{
    Ledger, STATUS_COMPLETE, STATUS_FAULTED, STATUS_LOST, STATUS_NO_GPU, STATUS_NOT_UNDERSTOOD,
};
use nvcap_monitor::dump::{DumpOptions, rank_in};
use nvcap_process::memory::scan::Effort;
use nvcap_process::procfs::environ::Environment;
use nvcap_show::output::message::tell;
use nvcap_show::output::style::Plain;
use nvcap_show::output::writer::Output;
use nvcap_show::output::{dump, json, ledger};
use nvcap_show::pipeline::Pipeline;
use nvcap_show::ranks::{Gathered, Options};

const EXAMPLES: &str = "\
Examples:
  nvcap ranks node.pcapng                          of all ranks (nvcap record --gpu-time -a)
  nvcap ranks rank*.pcapng                         a recording of each rank, made on one host
  nvcap ranks node.pcapng --rank 4711=0 --rank 4712=1
  nvcap ranks traces/rank*.json.gz                 traces of torch.profiler, one of each rank
  sudo nvcap ranks -a --duration 10                every process that uses a GPU, live
  sudo nvcap ranks -p 4711 -p 4712 --duration 10   two running ranks
  nvcap ranks node.pcapng --collective '*exchange*'

A collective's kernel runs in each rank from its own arrival until the last rank's: who waits has
long ones, who is late short ones. The calls of each communicator are matched over ranks by their
order and checked by their times, and where that is not certain it is said.
docs/ranks.md says how, and what it cannot.

Exit status: as nvcap decode; of several files 3 where one lacks something.";

/// The most by which the time of day of two files of one host may differ at the same CLOCK_MONOTONIC, ns.
const SAME_HOST_NS: u64 = 1_000_000_000;

/// Arguments of `nvcap ranks`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
#[group(skip)]
pub(super) struct Args {
    /// Recordings with the GPU's time stamps (nvcap record --gpu-time) to read instead of live processes: one of all ranks, or one of each; or traces of torch.profiler, one of each rank
    #[arg(value_name = "FILE", conflicts_with_all = ["pid", "command", "all"], help_heading = "Target")]
    pub files: Vec<PathBuf>,

    /// Count kernels whose names fit PATTERN as collectives, too, besides NCCL's (ncclDevKernel_*); * is any run, ? any character
    ///
    /// Each counts as a collective that ends in no rank before it has begun in all. Its communicator is that of its channel.
    #[arg(long, value_name = "PATTERN", help_heading = values::SHOWN)]
    pub collective: Vec<String>,

    /// The rank of a process: --rank 4711=0; may be given several times
    ///
    /// Without it, a live trace takes RANK and WORLD_SIZE of the process's environment, or what other launchers set.
    #[arg(long, value_name = "PID=RANK", value_parser = parse_rank, help_heading = values::SHOWN)]
    pub rank: Vec<(u32, u32)>,

    /// List each call too: who came when
    #[arg(long, help_heading = values::SHOWN)]
    pub arrivals: bool,

    /// Target and options of the trace.
    #[command(flatten)]
    pub trace: trace::Args,
}

fn parse_rank(text: &str) -> Result<(u32, u32), String> {
    let wrong = || format!("'{text}' is no rank of a process: give PID=RANK, such as 4711=0");
    let (pid, rank) = text.split_once('=').ok_or_else(wrong)?;
    Ok((values::parse_pid(pid)?, rank.parse().map_err(|_| wrong())?))
}

/// Refuses a process with two ranks, and a rank of two processes.
fn each_is_one(ranks: &[(u32, u32)]) -> anyhow::Result<()> {
    for (n, (pid, rank)) in ranks.iter().enumerate() {
        let before = &ranks[..n];
        if let Some((_, other)) = before.iter().find(|(other, _)| other == pid) {
            bail_usage!(
                "--rank {pid}={other} and --rank {pid}={rank} are of one process: leave one out"
            );
        }
        if let Some((other, _)) = before.iter().find(|(_, other)| other == rank) {
            bail_usage!(
                "--rank {other}={rank} and --rank {pid}={rank} are of one rank: each process needs a rank of its own"
            );
        }
    }
    Ok(())
}

impl Args {
    /// Returns the reason why the command must not begin: its output would replace a file.
    pub(super) fn refusal(&self) -> Option<String> {
        self.trace.refusal(self.files.first().map(PathBuf::as_path))
    }
}

/// Returns the command for clap: it observes by default, and lacks the options without a meaning.
pub(super) fn as_is(command: clap::Command) -> clap::Command {
    let useless = ["filter", "no_names", "sample_pc", "sample_gpu", "shares"];
    sums::as_is(command, "files", &useless)
}

/// Reads recordings or traces, then shows which rank holds up which.
pub(super) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let shown = &args.trace.output;
    sums::refuse_events("nvcap ranks", shown)?;
    if shown.filter.is_some() || args.trace.no_names {
        bail_usage!(
            "nvcap ranks needs all works and their names: leave out {}",
            if args.trace.no_names {
                "--no-names"
            } else {
                "-e"
            }
        );
    }
    each_is_one(&args.rank)?;
    let live = args.files.is_empty();
    let given = args.rank.clone();
    let ranks: HashMap<u32, u32> = args.rank.iter().copied().collect();
    let gathered = Gathered::new(Options {
        patterns: args.collective,
        given,
        rank_of: Box::new(move |pid| {
            let told = live.then(|| Environment::of_process(pid).ok()).flatten();
            let told = told.and_then(|environment| rank_in(&environment));
            let rank = ranks.get(&pid).copied().or(told.map(|(rank, _)| rank))?;
            Some((rank, told.and_then(|(_, size)| size)))
        }),
        ..Options::default()
    });
    let shows = Shows {
        gathered,
        live,
        arrivals: args.arrivals,
        given: args.rank,
    };
    match live {
        true => of_trace(args.trace, &shows),
        false => of_files(&args.files, &args.trace.output, &shows),
    }
}

/// Works and calls that were gathered, and the way in which they are shown.
struct Shows {
    gathered: Gathered,
    live: bool,
    arrivals: bool,
    given: Vec<(u32, u32)>,
}

fn pipeline(
    output: &OutputArgs,
    gathered: &Gathered,
    driver: Option<Version>,
) -> anyhow::Result<Pipeline<'static>> {
    let options = output.pipeline_options(false, driver)?;
    Ok(Pipeline::new(options, vec![Box::new(gathered.collector())]))
}

/// Returns the places, in their programs, of processes for which others wait, as far as they can be read.
fn places(pids: &[u32]) -> BTreeMap<u32, String> {
    if pids.is_empty() {
        return BTreeMap::new();
    }
    let options = DumpOptions {
        last: 1,
        effort: Effort::Usual,
        chip: None,
        known_rings: Vec::new(),
        stacks: true,
        qmd_copies: |_| Vec::new(),
        kernels: |_, _| Vec::new(),
    };
    let pids = usual_look::few(pids.to_vec(), &[]);
    let all = dump::places(&look(&pids, &options)).into_iter();
    all.filter_map(|(pid, place)| Some((u32::try_from(pid).ok()?, place)))
        .collect()
}

/// Makes a look at processes in the form of `nvcap dump --json`.
fn look(pids: &[u32], options: &DumpOptions) -> Value {
    let report = nvcap_monitor::dump::look(pids, options).report;
    let shown = dump::Shown {
        report: &report,
        moved: None,
    };
    let mut json = Vec::new();
    dump::json(&mut json, &shown, &dump::ReportOptions::default());
    serde_json::from_slice(&json).unwrap_or_default()
}

/// Returns the collectives in which the traced processes are, and the ranks that are missing. `given` are the ranks that the user named.
fn earlier(ledger: &Ledger, given: &[(u32, u32)]) -> dump::Merged {
    let pids = ledger.channels().map(|(_, channel)| channel.pid).collect();
    let ranks: Vec<u32> = given.iter().map(|(pid, _)| *pid).collect();
    let mut look = look(
        &usual_look::few(pids, &ranks),
        &usual_look::options(dump::LAST, true),
    );
    let processes = look["processes"].as_array_mut().into_iter().flatten();
    for process in processes {
        if let Some((_, rank)) = given.iter().find(|(pid, _)| process["pid"] == *pid) {
            process["rank"] = (*rank).into();
        }
    }
    dump::merge(&[(String::new(), look)])
}

/// Writes the result, and the ledger of each trace, with the trace's name if there are several.
fn show(
    output: &OutputArgs,
    out: &mut Output,
    shows: &Shows,
    ledgers: &[(String, Ledger)],
) -> anyhow::Result<()> {
    let analysis = shows.gathered.analysis();
    let analysis = analysis.listing_arrivals(shows.arrivals);
    let analysis = match shows.live {
        true => {
            let absent = analysis.absent();
            let analysis = analysis.with_places(places(&absent));
            match ledgers {
                [(_, ledger)] if !analysis.has_calls() => {
                    analysis.with_earlier(&earlier(ledger, &shows.given))
                }
                _ => analysis,
            }
        }
        false => analysis,
    };
    let color = output.color().enabled(out.is_terminal());
    let to = out.object();
    if output.json {
        json::write(to, &analysis.json());
        to.push(b'\n');
        for (_, of) in ledgers {
            ledger::json(to, of);
        }
    } else {
        analysis.text(to);
        match ledgers {
            [(_, of)] => {
                to.push(b'\n');
                ledger::text(to, of, color);
            }
            several => {
                for (name, of) in several {
                    let line = format!("{name}: {}\n", ledger::verdict(of));
                    to.extend_from_slice(Plain(line.trim_end()).to_string().as_bytes());
                    to.push(b'\n');
                }
            }
        }
    }
    target::written(out)?;
    // The user has not seen a result that went into a file.
    if output
        .output
        .as_deref()
        .is_some_and(|o| o != Path::new("-"))
    {
        tell(analysis.verdict());
        for (name, of) in ledgers {
            match ledgers.len() {
                1 => tell(ledger::verdict(of)),
                _ => tell(format_args!("{name}: {}", ledger::verdict(of))),
            }
        }
    }
    Ok(())
}

/// Returns the status of several traces: the worst one; "none used a GPU" only if it holds for all.
fn status(ledgers: &[(String, Ledger)], left_out: u64) -> u8 {
    let all: Vec<u8> = ledgers.iter().map(|(_, l)| l.exit_status()).collect();
    if left_out > 0 {
        return STATUS_LOST;
    }
    let worst = [STATUS_LOST, STATUS_FAULTED, STATUS_NOT_UNDERSTOOD];
    let worst = worst.into_iter().find(|status| all.contains(status));
    let none = all.iter().all(|status| *status == STATUS_NO_GPU);
    worst.unwrap_or(if none { STATUS_NO_GPU } else { STATUS_COMPLETE })
}

/// Files of one trace, and the trace's beginning on two clocks, ns.
struct Trace {
    number: Option<u32>,
    files: Vec<PathBuf>,
    clocks: Option<(u64, u64)>,
}

/// Groups the files by trace (`nvcap record --rotate`).
fn traces(files: &[PathBuf]) -> Vec<Trace> {
    let mut all: Vec<Trace> = Vec::new();
    for file in files {
        let mut reader = recording::watched(file).map(|(reader, _)| reader);
        let clocks = reader.as_mut().and_then(|r| {
            let info = r.trace()?;
            Some((info.monotonic_ns, info.realtime_ns))
        });
        let number = reader.and_then(|r| r.trace_number());
        let same = all
            .iter_mut()
            .find(|t| number.is_some() && t.number == number);
        match same {
            Some(trace) => trace.files.push(file.clone()),
            None => all.push(Trace {
                number,
                files: vec![file.clone()],
                clocks,
            }),
        }
    }
    all
}

/// Refuses files of several hosts, whose clocks cannot be compared.
fn of_one_host(traces: &[Trace]) -> anyhow::Result<()> {
    fn base(t: &Trace) -> Option<(u64, &PathBuf)> {
        let (monotonic, realtime) = t.clocks?;
        Some((realtime.wrapping_sub(monotonic), t.files.first()?))
    }
    let mut bases = traces.iter().filter_map(base);
    let Some((first, file)) = bases.next() else {
        return Ok(());
    };
    for (other, another) in bases {
        if first.abs_diff(other) > SAME_HOST_NS {
            bail!(
                "{} and {} are of two hosts, or of one that was booted between them, and times of two hosts are not compared yet: give the files of one",
                file.display(),
                another.display()
            );
        }
    }
    Ok(())
}

fn of_files(files: &[PathBuf], output: &OutputArgs, shows: &Shows) -> anyhow::Result<ExitCode> {
    if profiles::are_meant(files)? {
        let shown = profiles::Shown {
            output,
            arrivals: shows.arrivals,
            same_host_ns: SAME_HOST_NS,
        };
        return profiles::show(files, &shows.gathered, &shown);
    }
    let traces = traces(files);
    of_one_host(&traces)?;
    let args: Vec<RecordingArgs> = { traces.iter() }
        .filter_map(|trace| {
            let (first, more) = trace.files.split_first()?;
            Some(RecordingArgs {
                more: more.to_vec(),
                ..RecordingArgs::of(first)
            })
        })
        .collect();
    let inputs: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
    // All files are opened before the first is read, since rights are given up then.
    let mut out = target::open(output.output.as_deref(), output.force, false, &inputs)?;
    let recordings: Result<Vec<_>, _> = args.iter().map(RecordingArgs::open).collect();
    let mut ledgers = Vec::new();
    for (mut recording, of) in recordings?.into_iter().zip(&args) {
        let output = output.of_recording(recording.trace());
        let mut pipeline = pipeline(&output, &shows.gathered, None)?;
        let recording = recording.quiet_until_the_end(output.output.as_deref());
        let played = recording.play(&mut pipeline)?;
        ledgers.push((of.name(), pipeline.finish()?));
        if played == Played::Interrupted {
            break;
        }
    }
    show(output, &mut out, shows, &ledgers)?;
    Ok(ExitCode::from(status(&ledgers, shows.gathered.left_out())))
}

fn of_trace(mut trace: trace::Args, shows: &Shows) -> anyhow::Result<ExitCode> {
    trace.typed = "nvcap ranks".to_owned();
    trace.gpu_time = true;
    let mut output = trace.output.clone();
    output.has_gpu_time = true;
    let command = trace.leaves_standard_output();
    let out: RefCell<Option<Output>> = RefCell::new(None);
    let is_cut = Cell::new(false);
    let ended = trace_run::run_into(
        trace,
        |args| {
            let inputs = Vec::from_iter(args.channels.as_deref());
            let opened = target::open(output.output.as_deref(), output.force, command, &inputs)?;
            *out.borrow_mut() = Some(opened);
            pipeline(&output, &shows.gathered, target::running_driver())
        },
        |pipeline| {
            let ledgers = [(String::new(), pipeline.finish()?)];
            is_cut.set(shows.gathered.left_out() > 0);
            if let Some(out) = out.borrow_mut().as_mut() {
                show(&output, out, shows, &ledgers)?;
            }
            let [(_, ledger)] = ledgers;
            Ok(ledger)
        },
    )?;
    Ok(match is_cut.get() && ended == ExitCode::SUCCESS {
        true => ExitCode::from(STATUS_LOST),
        false => ended,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_given_by_process() {
        assert_eq!(parse_rank("4711=0"), Ok((4711, 0)));
        for wrong in ["", "3", "=1", "4711=", "0=1", "x=1", "1=2=3", "1=-1"] {
            assert!(parse_rank(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_process_has_one_rank_and_a_rank_one_process() {
        assert!(each_is_one(&[]).is_ok() && each_is_one(&[(1, 0), (2, 1), (3, 2)]).is_ok());
        for wrong in [[(1, 0), (1, 1)], [(1, 0), (1, 0)], [(1, 0), (2, 0)]] {
            let refused = each_is_one(&wrong).unwrap_err();
            assert!(refused.is::<crate::cli::usage::Usage>(), "{refused}");
        }
    }

    #[test]
    fn files_of_two_hosts_are_refused() {
        let of = |monotonic: u64, realtime: u64| Trace {
            number: Some(1),
            files: vec![PathBuf::from("a")],
            clocks: Some((monotonic, realtime)),
        };
        let none = Trace {
            clocks: None,
            ..of(0, 0)
        };
        let second = 1_000_000_000;
        // The time of day was set by 0.2 s in between.
        let same = [
            of(second, 90 * second),
            none,
            of(3 * second, 92 * second + second / 5),
        ];
        assert!(of_one_host(&same).is_ok());
        let other = [of(second, 90 * second), of(second, 95 * second)];
        assert!(of_one_host(&other).is_err());
        assert!(of_one_host(&[]).is_ok());
    }
}
