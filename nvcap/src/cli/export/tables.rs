//! `nvcap export csv` and `nvcap export parquet`: tables of a recording, or of a live trace.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::bail;
use clap::ValueEnum;
use clap::builder::PossibleValuesParser;

use crate::cli::recording::{self, RecordingArgs};
use crate::cli::values::OUTPUT;
use crate::cli::{target, trace};
use crate::export::tables::all::{TABLES, Table};
use crate::export::tables::layout::{Format, Key, Layout};
use crate::export::tables::schema::Trace;
use crate::export::tables::{Tables, TablesOptions};
use crate::ledger::Ledger;
use crate::output::message::tell;
use crate::output::redact::Redactor;
use crate::pipeline::Pipeline;

const EXAMPLES: &str = "\
Examples:
  nvcap export parquet nvcap.pcapng -o run.tables     a recording: a file a table in a folder
  duckdb -c \"SELECT kernel, count(*) FROM 'run.tables/kernels.parquet' GROUP BY 1 ORDER BY 2 DESC\"
  nvcap export csv nvcap.pcapng --table kernels > kernels.csv
  nvcap export csv nvcap.pcapng --table operations -e op=copy -o copies.csv
  sudo nvcap export parquet -o run.tables -p 4711 --duration 10
  nvcap export parquet nvcap.pcapng -o out --partition pid --part-rows 10000000
                                                      out/operations/pid=4711/part-0.parquet, ...

A live trace takes the GPU's time stamps, too, which takes one processor (--gpu-time-cpu 5% takes
less, for a part of the times). nvcap schema lists tables and columns; docs/queries.md has queries.

Exit status: as nvcap decode.";

/// What is exported.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
#[group(skip)]
pub(in crate::cli) struct Args {
    /// A capture to read instead of a live process, plain or compressed by gzip, xz or zstd; - is standard input
    #[arg(value_name = "FILE", conflicts_with_all = ["pid", "command"], help_heading = "Target")]
    pub file: Option<PathBuf>,

    /// With FILE: its format; by default its content tells
    #[arg(long, value_name = "FORMAT", value_enum, help_heading = "Target")]
    pub from: Option<recording::Format>,

    /// With FILE: end with an error at the first thing that is missing or cannot be decoded
    #[arg(long, help_heading = "Target")]
    pub strict: bool,

    /// Write this table; may be given several times. By default all of them
    #[arg(
        long = "table",
        value_name = "NAME",
        value_parser = PossibleValuesParser::new(TABLES.each_ref().map(|t| t.name)),
        help_heading = OUTPUT
    )]
    pub tables: Vec<String>,

    /// Write a folder for each value of a column (pid=4711/part-0.parquet), as Hive, Spark and DuckDB read them
    #[arg(long, value_name = "COLUMN", value_enum, help_heading = OUTPUT)]
    pub partition: Option<Partition>,

    /// Begin a new file (part-1, part-2, ...) after N rows of a table
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u64).range(1..),
        help_heading = OUTPUT
    )]
    pub part_rows: Option<u64>,

    /// What is traced.
    #[command(flatten)]
    pub trace: trace::Args,
}

/// `--partition`.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cli) enum Partition {
    /// The process
    Pid,
    /// The GPU
    Gpu,
    /// The channel
    Channel,
}

impl From<Partition> for Key {
    fn from(partition: Partition) -> Self {
        match partition {
            Partition::Pid => Self::Pid,
            Partition::Gpu => Self::Gpu,
            Partition::Channel => Self::Channel,
        }
    }
}

/// Options of a trace that have no meaning here.
const USELESS: [&str; 10] = [
    "quiet",
    "stats",
    "json",
    "time",
    "color",
    "full_names",
    "gpu_time",
    "no_names",
    "verbose",
    "explain_streams",
];

/// The command as clap knows it: without options that have no meaning here, and with what others mean here.
pub(in crate::cli) fn as_is(command: clap::Command) -> clap::Command {
    let command = USELESS.into_iter().fold(command, |command, id| {
        command.mut_arg(id, |arg| arg.hide(true))
    });
    [
        (
            "output",
            "Write to this folder, a file a table; with one --table a name that ends in .csv or .parquet is a file, and - is standard output",
        ),
        (
            "gpu_time_cpu",
            "Take PERCENT of one processor for reading time stamps, such as 5%: those of a part of the time",
        ),
        (
            "channels",
            "Take the channels from FILE (docs/channels-file.md); with a capture, from what the oracle wrote to its standard error",
        ),
    ]
    .into_iter()
    .fold(command, |command, (id, help)| {
        command.mut_arg(id, |arg| arg.help(help).long_help(None))
    })
}

/// Exports.
pub(in crate::cli) fn run(args: Args, format: Format) -> anyhow::Result<ExitCode> {
    let shown = &args.trace.output;
    if shown.json || shown.stats || shown.quiet {
        bail!(
            "nvcap export writes a file for another program; for text, JSON and sums: nvcap decode FILE, nvcap -p PID"
        );
    }
    match &args.file {
        Some(file) => of_file(file, &args, format),
        None if args.strict || args.from.is_some() => {
            tell(format_args!(
                "--from and --strict are of a FILE: nvcap export {} FILE --strict -o run.tables",
                format.ending()
            ));
            Ok(target::usage())
        }
        None => live(args, format),
    }
}

/// Where tables go.
struct Place {
    format: Format,
    /// By their places among all tables.
    chosen: Vec<usize>,
    layout: Layout,
    /// `-o`.
    output: Option<PathBuf>,
}

impl Place {
    fn of(args: &Args, format: Format) -> Self {
        let chosen = args.tables.iter().filter_map(|name| Table::index(name));
        let mut chosen: Vec<usize> = match args.tables.is_empty() {
            true => (0..TABLES.len()).collect(),
            false => chosen.collect(),
        };
        chosen.sort_unstable();
        chosen.dedup();
        let output = args.trace.output.output.clone();
        Self {
            format,
            chosen,
            layout: Layout {
                folder: output.clone().unwrap_or_default(),
                partition: args.partition.map(Key::from),
                part_rows: args.part_rows,
            },
            output,
        }
    }

    /// Whether it is one file, or standard output.
    fn is_one(&self) -> bool {
        let is_file = |path: &PathBuf| {
            let ending = path.extension().and_then(|e| e.to_str());
            *path == Path::new("-") || ending == Some(self.format.ending()) && !path.is_dir()
        };
        self.chosen.len() == 1 && self.output.as_ref().is_none_or(is_file)
    }

    /// The sink. `command`: standard output is that of a command. `inputs` are read meanwhile.
    fn sink(
        &self,
        options: TablesOptions,
        command: bool,
        inputs: &[&Path],
    ) -> anyhow::Result<Tables> {
        let ending = self.format.ending();
        let output = self.output.as_deref();
        let standard = output.is_none_or(|path| path == Path::new("-"));
        if self.is_one() {
            if self.layout.partition.is_some() || self.layout.part_rows.is_some() {
                bail!(
                    "--partition and --part-rows make several files: name a folder with -o, such as -o run.tables"
                );
            }
            if command && output.is_none() {
                bail!(
                    "the table has no place to go: standard output is the command's; name a file with -o, such as -o {}.{ending}",
                    TABLES[self.chosen[0]].name
                );
            }
            let out = target::open(output, false, inputs)?;
            if ending != "csv" && out.is_terminal() {
                bail!(
                    "the table is no text, and standard output is a terminal; name a file with -o, such as -o {}.{ending}",
                    TABLES[self.chosen[0]].name
                );
            }
            return Ok(Tables::one(self.format, self.chosen[0], out, options));
        }
        if standard {
            bail!(
                "{} tables have no place to go: name a folder with -o, such as -o run.tables, or one table with --table, such as --table kernels",
                self.chosen.len()
            );
        }
        let inputs: Vec<PathBuf> = inputs.iter().map(|p| p.to_path_buf()).collect();
        let opener = move |path: &Path| {
            let inputs: Vec<&Path> = inputs.iter().map(PathBuf::as_path).collect();
            target::open(Some(path), false, &inputs).map_err(|e| io::Error::other(format!("{e:#}")))
        };
        let layout = &self.layout;
        Ok(Tables::several(
            self.format,
            &self.chosen,
            layout,
            Box::new(opener),
            options,
        )?)
    }

    /// Ends the trace, with the verdict and what to do next.
    fn conclude(&self, args: &trace::Args, pipeline: Pipeline<'_>) -> anyhow::Result<Ledger> {
        let ledger = args.output.conclude(pipeline)?;
        let output = self.output.as_deref().filter(|o| *o != Path::new("-"));
        match output {
            None => tell(format_args!("{}", crate::output::ledger::verdict(&ledger))),
            // The verdict has been told.
            Some(path) if path.is_dir() => tell(format_args!(
                "{}: {} {}; nvcap schema lists their columns, docs/queries.md has queries for DuckDB",
                path.display(),
                self.chosen.len(),
                if self.chosen.len() == 1 {
                    "table"
                } else {
                    "tables"
                },
            )),
            Some(_) => {}
        }
        Ok(ledger)
    }
}

fn options(args: &trace::Args, trace: Trace) -> TablesOptions {
    TablesOptions {
        redact: args.output.redact.then(Redactor::default),
        trace: Trace {
            redacted: args.output.redact,
            filtered: args.output.filter.is_some(),
            ..trace
        },
    }
}

fn of_file(file: &Path, args: &Args, format: Format) -> anyhow::Result<ExitCode> {
    let of = RecordingArgs {
        from: args.from,
        channels: args.trace.channels.clone(),
        strict: args.strict,
        ..RecordingArgs::of(file)
    };
    let mut recording = of.open()?;
    let mut trace = args.trace.clone();
    trace.output = trace.output.of_recording(recording.trace());
    let about = recording.trace().map(|info| Trace {
        monotonic_ns: Some(info.monotonic_ns).filter(|ns| *ns != 0),
        realtime_ns: Some(info.realtime_ns).filter(|ns| *ns != 0),
        driver: info.driver.clone(),
        ..Trace::default()
    });
    let place = Place::of(args, format);
    let recording = recording.quiet_until_the_end(place.output.as_deref());
    let mut inputs = of.inputs();
    inputs.extend(trace.output.phases.as_deref());
    let pipeline_options = trace.output.pipeline_options(args.strict, None)?;
    let sink = place.sink(options(&trace, about.unwrap_or_default()), false, &inputs)?;
    let mut pipeline = Pipeline::new(pipeline_options, vec![Box::new(sink)]);
    recording.play(&mut pipeline)?;
    let ledger = place.conclude(&trace, pipeline)?;
    Ok(ExitCode::from(ledger.exit_status()))
}

#[cfg(not(feature = "trap"))]
fn live(_args: Args, format: Format) -> anyhow::Result<ExitCode> {
    bail!(
        "live tracing is not built into this program; captures are read (nvcap export {} FILE -o run.tables)",
        format.ending()
    )
}

#[cfg(feature = "trap")]
fn live(args: Args, format: Format) -> anyhow::Result<ExitCode> {
    use crate::source::clock;

    let place = Place::of(&args, format);
    let mut trace = args.trace;
    trace.gpu_time = true;
    trace.output.has_gpu_time = true;
    trace.output.has_stacks = trace.stacks.is_some() && trace.how != trace::HowArg::Observe;
    let given = trace.clone();
    let command = !trace.command.is_empty();
    trace::run_into(
        trace,
        |args| {
            let mut inputs = Vec::from_iter(args.channels.as_deref());
            inputs.extend(args.output.phases.as_deref());
            let driver = target::running_driver();
            let about = Trace {
                monotonic_ns: Some(clock::now()),
                realtime_ns: clock::read(libc::CLOCK_REALTIME),
                driver: driver.map(|version| version.to_string()),
                ..Trace::default()
            };
            let pipeline_options = args.output.pipeline_options(false, driver)?;
            let sink = place.sink(options(args, about), command, &inputs)?;
            Ok(Pipeline::new(pipeline_options, vec![Box::new(sink)]))
        },
        |pipeline| place.conclude(&given, pipeline),
    )
}
