//! `nvcap export kineto`: a recording or a live trace as the JSON that PyTorch's profiler writes.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;

use super::exported::{self, Export, FileArgs, Order};
use crate::cli::overwrite::is_standard_output;
use crate::cli::values::{self, OUTPUT};
use crate::cli::{target, trace};
use nvcap_decode::ledger::Ledger;
use nvcap_process::procfs::environ::Environment;
use nvcap_show::export::kineto::{Kineto, KinetoOptions, Made, More, Rank, Written};
use nvcap_show::output::Sink;
use nvcap_show::output::message::tell;
use nvcap_show::output::names::pid_name;
use nvcap_show::output::plural::{plural, plural_of};
use nvcap_show::pipeline::Pipeline;

const EXAMPLES: &str = "\
Examples:
  nvcap export kineto run.pcapng -o traces/run.json.gz      a recording with --gpu-time
  nvcap export kineto run.pcapng --rank 3 --world-size 8 -o traces/rank3.json.gz
  nvcap export kineto node.pcapng --rank 4711=0 --rank 4712=1 -o traces/node.json.gz
  sudo nvcap export kineto -o run.json -p 4711 --duration 10
  python -c \"from hta.trace_analysis import TraceAnalysis
  print(TraceAnalysis(trace_dir='traces').get_temporal_breakdown(visualize=False))\"

A file has one process. The first that works goes into FILE; where there are more, each has a file
of its own beside it, with its number before the ending: node.4712.json.gz. A name that ends in .gz
is compressed. Kernels, copies and memsets whose times are not known are left out, and counted.
docs/from-kineto.md says what is in the file, and what is not.

Exit status: as nvcap decode.";

/// Arguments of `nvcap export kineto`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
#[group(skip)]
pub(in crate::cli) struct Args {
    /// A capture.
    #[command(flatten)]
    pub file: FileArgs,

    /// The process's rank in its distributed job; of several processes, with the process's number: --rank 4711=0
    ///
    /// Without it, a live trace takes RANK and WORLD_SIZE of the process's environment.
    #[arg(long = "rank", value_name = "[PID=]RANK", value_parser = parse_rank, help_heading = OUTPUT)]
    pub ranks: Vec<(Option<u32>, u32)>,

    /// The number of ranks of the job
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = OUTPUT)]
    pub world_size: Option<u32>,

    /// Target and options of the trace.
    #[command(flatten)]
    pub trace: trace::Args,
}

fn parse_rank(text: &str) -> Result<(Option<u32>, u32), String> {
    let wrong = || format!("'{text}' is no rank: give its number, such as 0, or PID=0");
    let (pid, rank) = match text.split_once('=') {
        Some((pid, rank)) => (Some(values::parse_pid(pid)?), rank),
        None => (None, text),
    };
    Ok((pid, rank.parse().map_err(|_| wrong())?))
}

impl Args {
    /// Returns the reason why the export must not begin: its output would replace a file.
    pub(super) fn refusal(&self) -> Option<String> {
        self.trace.refusal_of_program(self.file.file.as_deref())
    }
}

/// Returns the command for clap: without the options that have no meaning here, and with the help texts that fit here.
pub(in crate::cli) fn as_is(command: clap::Command) -> clap::Command {
    let more = ["verbose", "explain_streams", "redact"];
    exported::as_is(command, &more, target::FILE_FOR_A_PROGRAM)
}

/// Makes the export.
pub(in crate::cli) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let trace = Trace {
        ranks: args.ranks,
        world_size: args.world_size,
        is_live: args.file.file.is_none(),
        made: Rc::default(),
    };
    exported::run(&trace, &args.file, args.trace)
}

/// A trace as PyTorch's profiler writes it.
struct Trace {
    ranks: Vec<(Option<u32>, u32)>,
    world_size: Option<u32>,
    is_live: bool,
    made: Rc<RefCell<Made>>,
}

impl Trace {
    /// Makes the function that returns the rank of a process: by the user's word for the process's number or for the first process, or else
    /// by the process's environment.
    fn rank_of(&self) -> Box<dyn Fn(u32) -> Option<Rank>> {
        let of: HashMap<u32, u32> = { self.ranks.iter() }
            .filter_map(|(pid, rank)| Some(((*pid)?, *rank)))
            .collect();
        let of_first = self.ranks.iter().find(|(pid, _)| pid.is_none());
        let of_first = RefCell::new(of_first.map(|(_, rank)| *rank));
        let (world_size, is_live) = (self.world_size, self.is_live);
        Box::new(move |pid| {
            let given = of.get(&pid).copied();
            let given = given.or_else(|| of_first.borrow_mut().take());
            let environment = is_live.then(|| rank_in_environment(pid)).flatten();
            Some(Rank {
                rank: given.or(environment.map(|e| e.rank))?,
                world_size: world_size.or(environment.and_then(|e| e.world_size)),
            })
        })
    }
}

/// Returns RANK and WORLD_SIZE of a running process, as torchrun and others set them.
fn rank_in_environment(pid: u32) -> Option<Rank> {
    of_environment(&Environment::of_process(pid).ok()?)
}

fn of_environment(environment: &Environment) -> Option<Rank> {
    let number = |name: &str| environment.value(name)?.trim().parse().ok();
    Some(Rank {
        rank: number("RANK")?,
        world_size: number("WORLD_SIZE"),
    })
}

/// Returns the path of a further process's file, which has the process's number before the extension.
fn beside(path: &Path, pid: u32) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let number = pid_name(pid).replace('?', "unknown");
    let at = [".json.gz", ".json", ".gz"]
        .iter()
        .find_map(|ending| Some(name.strip_suffix(ending)?.len()))
        .unwrap_or(name.len());
    let (stem, ending) = name.split_at(at);
    path.with_file_name(format!("{stem}.{number}{ending}"))
}

/// Makes the function that opens the files of further processes; `None` if the output is no file.
fn more(path: Option<&Path>, force: bool, inputs: &[&Path]) -> More {
    let path = path.filter(|path| !is_standard_output(path) && !is_special(path));
    let path = path.map(Path::to_owned);
    let inputs: Vec<PathBuf> = inputs.iter().map(|p| p.to_path_buf()).collect();
    Box::new(move |pid| {
        let Some(path) = &path else { return Ok(None) };
        let inputs: Vec<&Path> = inputs.iter().map(PathBuf::as_path).collect();
        let out = target::open(Some(&beside(path, pid)), force, false, &inputs);
        out.map(Some)
            .map_err(|e| io::Error::other(format!("{e:#}")))
    })
}

/// Tells whether a path is that of something other than a regular file, such as /dev/null.
fn is_special(path: &Path) -> bool {
    path.metadata().is_ok_and(|m| !m.is_file())
}

impl Export for Trace {
    fn names(&self) -> (&'static str, &'static str) {
        ("kineto", "trace.json.gz")
    }

    fn sink(&self, order: Order<'_>) -> anyhow::Result<Box<dyn Sink>> {
        let shown = &order.args.output;
        let output = shown.output.as_deref();
        let out = target::open_for_a_program(
            (output, shown.force),
            order.command,
            order.inputs,
            "the trace is for other programs",
            "name a file with -o, such as -o trace.json.gz",
        )?;
        let options = KinetoOptions {
            base_ns: order.about.base_ns(),
            driver: order.about.driver,
            packed: output.is_some_and(|o| o.extension().is_some_and(|e| e == "gz")),
            rank_of: self.rank_of(),
            more: more(output, shown.force, order.inputs),
            made: self.made.clone(),
        };
        Ok(Box::new(Kineto::new(out, options)))
    }

    fn needs_order(&self) -> bool {
        true
    }

    fn conclude(&self, args: &trace::Args, pipeline: Pipeline<'_>) -> anyhow::Result<Ledger> {
        let ledger = args.output.conclude_telling(pipeline)?;
        if ledger.unshown() > 0 {
            return Ok(ledger);
        }
        let made = self.made.borrow();
        let output = args.output.output.as_deref();
        let output = output.filter(|o| !is_standard_output(o));
        for (n, file) in made.files.iter().enumerate() {
            let place = match (output, n) {
                (Some(path), 0) => format!("{}: ", path.display()),
                (Some(path), _) => format!("{}: ", beside(path, file.pid).display()),
                (None, _) => String::new(),
            };
            tell(format_args!("{place}{}", content(file)));
        }
        tell_left_out(&made);
        if made.files.len() > 1 && made.files.iter().any(|f| f.rank.is_none()) {
            tell(
                "not each file has a rank, and HolisticTraceAnalysis needs one to tell them apart: --rank PID=RANK, for each process",
            );
        }
        Ok(ledger)
    }
}

/// Reports the work that is in no file, and why.
fn tell_left_out(made: &Made) {
    let are = |count: u64| if count == 1 { "is" } else { "are" };
    for (pid, why) in &made.reasons {
        tell(format_args!(
            "the works of process {} are left out, for it can have no file: {why}",
            pid_name(*pid)
        ));
    }
    if made.refused > 0 {
        tell(format_args!(
            "{} of processes that can have no file {} left out; name a file in a folder of your own with -o",
            plural_of(made.refused, "work", "works"),
            are(made.refused),
        ));
    }
    let others = made.elsewhere.saturating_sub(made.refused);
    if others > 0 {
        tell(format_args!(
            "{} of {} {} left out: a file has one process; name a file with -o, beside which {} can be",
            plural_of(others, "work", "works"),
            if made.others == 1 {
                "another process"
            } else {
                "other processes"
            },
            are(others),
            if made.others == 1 {
                "its own"
            } else {
                "theirs"
            },
        ));
    }
}

/// Describes the contents of a file.
fn content(file: &Written) -> String {
    let counts = &file.counts;
    let process = match file.process.as_str() {
        "" => format!("process {}", pid_name(file.pid)),
        name => format!("process {} {name}", pid_name(file.pid)),
    };
    let rank = file.rank.map(|r| format!(", rank {}", r.rank));
    let mut parts = vec![plural(counts.kernels, "kernel")];
    if counts.replays > 0 {
        parts.push(plural(counts.replays, "graph replay"));
    }
    parts.push(plural_of(counts.copies, "copy", "copies"));
    parts.push(plural(counts.memsets, "memset"));
    let left_out = match (counts.untimed, counts.works()) {
        (0, _) => String::new(),
        (n, 0) => format!(
            "; none of {} has a time (nvcap record --gpu-time takes the GPU's times)",
            plural(n, "work")
        ),
        (n, _) => format!(
            "; left out, for {} times are not known: {n}",
            if n == 1 { "its" } else { "their" }
        ),
    };
    format!(
        "{process}{}: {}{left_out}",
        rank.unwrap_or_default(),
        parts.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_given_for_processes_or_for_the_first() {
        assert_eq!(parse_rank("3"), Ok((None, 3)));
        assert_eq!(parse_rank("4711=0"), Ok((Some(4711), 0)));
        for wrong in ["", "-1", "a", "4711=", "0=1", "x=1", "1=2=3"] {
            assert!(parse_rank(wrong).is_err(), "{wrong}");
        }
        let trace = Trace {
            ranks: vec![(Some(8), 1), (None, 0)],
            world_size: Some(2),
            is_live: false,
            made: Rc::default(),
        };
        let rank_of = trace.rank_of();
        let ranks = [7, 8, 9].map(|pid| rank_of(pid).map(|r| (r.rank, r.world_size)));
        assert_eq!(ranks, [Some((0, Some(2))), Some((1, Some(2))), None]);
    }

    #[test]
    fn a_rank_is_read_from_an_environment() {
        let of = |text: &str| {
            let environment = Environment::read(text.as_bytes()).expect("memory is read");
            of_environment(&environment).map(|r| (r.rank, r.world_size))
        };
        let torchrun = "LOCAL_RANK=1\0RANK=5\0WORLD_SIZE=8\0";
        assert_eq!(of(torchrun), Some((5, Some(8))));
        assert_eq!(of("RANK=5"), Some((5, None)));
        assert_eq!(of("LOCAL_RANK=1\0WORLD_SIZE=8"), None);
        assert_eq!(of("RANK=\0RANKS=3"), None);
        assert_eq!(of(""), None);
    }

    #[test]
    fn further_files_lie_beside_the_first() {
        let of = |path: &str| beside(Path::new(path), 7).display().to_string();
        assert_eq!(of("a/run.json.gz"), "a/run.7.json.gz");
        assert_eq!(of("run.json"), "run.7.json");
        assert_eq!(of("run.gz"), "run.7.gz");
        assert_eq!(of("./run"), "./run.7");
        let unknown = beside(Path::new("run.json"), 0);
        assert_eq!(unknown, Path::new("run.unknown.json"));
    }
}
