//! `nvcap export csv` and `nvcap export parquet`: tables of a recording, or of a live trace.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::bail;
use clap::ValueEnum;
use clap::builder::PossibleValuesParser;

use super::exported::{self, Export, FileArgs, Order};
use crate::cli::overwrite::is_standard_output;
use crate::cli::usage::bail_usage;
use crate::cli::values::OUTPUT;
use crate::cli::{target, trace};
use nvcap_decode::ledger::Ledger;
use nvcap_show::export::tables::all::{TABLES, Table};
use nvcap_show::export::tables::layout::{Format, Key, Layout};
use nvcap_show::export::tables::schema::Trace;
use nvcap_show::export::tables::{Tables, TablesOptions};
use nvcap_show::output::Sink;
use nvcap_show::output::message::tell;
use nvcap_show::output::redact::Redactor;
use nvcap_show::pipeline::Pipeline;

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

/// Arguments of `nvcap export csv` and `nvcap export parquet`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
#[group(skip)]
pub(in crate::cli) struct Args {
    /// A capture.
    #[command(flatten)]
    pub file: FileArgs,

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

    /// Target and options of the trace.
    #[command(flatten)]
    pub trace: trace::Args,
}

impl Args {
    /// Returns the reason why the export must not begin: its tables would replace files, or be mixed with others.
    pub(super) fn refusal(&self, format: Format) -> Option<String> {
        let place = Place::of(self, format);
        let file = self.file.file.as_deref();
        let output = self.trace.output.output.as_deref();
        if place.is_one() || place.layout.device.is_some() || output.is_none_or(is_standard_output)
        {
            return self.trace.refusal_of_program(file);
        }
        let layout = &place.layout;
        let tables = || place.chosen.iter().map(|table| TABLES[*table].name);
        let files = self.trace.files_beside(file);
        if layout.has_folders() {
            let folders = tables().map(|table| layout.folder_of(table));
            let refusal = files.folders("-o", folders).refusal();
            return refusal.or_else(|| tables().find_map(|table| layout.refusal(table)));
        }
        let members = tables().map(|table| layout.file(table, format));
        files.members("-o", members).refusal()
    }
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

/// Returns the command for clap: without the options that have no meaning here, and with the help texts that fit here.
pub(in crate::cli) fn as_is(command: clap::Command) -> clap::Command {
    exported::as_is(
        command,
        &["verbose", "explain_streams", "exec_time"],
        "Write to this folder, a file a table; with one --table a name that ends in .csv or .parquet is a file, and - is standard output (then a command's own goes to standard error)",
    )
}

/// Makes the export.
pub(in crate::cli) fn run(args: Args, format: Format) -> anyhow::Result<ExitCode> {
    exported::run(&Place::of(&args, format), &args.file, args.trace)
}

/// Place and form of the tables.
struct Place {
    format: Format,
    /// Tables that are written, as indices into `TABLES`.
    chosen: Vec<usize>,
    layout: Layout,
    /// Value of `-o`.
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
                force: args.trace.output.force,
                device: output.clone().filter(|path| is_device(path)),
            },
            output,
        }
    }

    /// Tells whether the output is one file, or standard output.
    fn is_one(&self) -> bool {
        let is_file = |path: &PathBuf| {
            let ending = path.extension().and_then(|e| e.to_str());
            let is_named = matches!(ending, Some("csv" | "parquet"));
            is_standard_output(path) || !path.is_dir() && (is_named || path.exists())
        };
        self.chosen.len() == 1 && self.output.as_ref().is_none_or(is_file)
    }

    /// Makes the sink. `command` means that a command is traced, to which standard output belongs. `inputs` are files that must not be
    /// overwritten.
    fn tables(
        &self,
        options: TablesOptions,
        command: bool,
        inputs: &[&Path],
    ) -> anyhow::Result<Tables> {
        let ending = self.format.ending();
        let output = self.output.as_deref();
        let force = self.layout.force;
        if self.is_one() {
            if self.layout.partition.is_some() || self.layout.part_rows.is_some() {
                bail_usage!(
                    "--partition and --part-rows make several files: name a folder with -o, such as -o run.tables"
                );
            }
            if command && output.is_none() {
                bail_usage!(
                    "the table has no place to go: standard output is the command's; name a file with -o, such as -o {}.{ending}",
                    TABLES[self.chosen[0]].name
                );
            }
            let out = target::open(output, force, false, inputs)?;
            if ending != "csv" && out.is_terminal() {
                bail!(
                    "the table is no text, and standard output is a terminal; name a file with -o, such as -o {}.{ending}",
                    TABLES[self.chosen[0]].name
                );
            }
            return Ok(Tables::one(self.format, self.chosen[0], out, options)?);
        }
        if output.is_none_or(is_standard_output) {
            bail_usage!(
                "{} tables have no place to go: name a folder with -o, such as -o run.tables, or one table with --table, such as --table kernels",
                self.chosen.len()
            );
        }
        let inputs: Vec<PathBuf> = inputs.iter().map(|p| p.to_path_buf()).collect();
        let opener = move |path: &Path| {
            let inputs: Vec<&Path> = inputs.iter().map(PathBuf::as_path).collect();
            target::open(Some(path), force, false, &inputs)
                .map_err(|e| io::Error::other(format!("{e:#}")))
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
}

impl Export for Place {
    fn names(&self) -> (&'static str, &'static str) {
        (self.format.ending(), "run.tables")
    }

    fn sink(&self, order: Order<'_>) -> anyhow::Result<Box<dyn Sink>> {
        let about = Trace {
            monotonic_ns: order.about.monotonic_ns,
            realtime_ns: order.about.realtime_ns,
            driver: order.about.driver,
            ..Trace::default()
        };
        let options = options(order.args, about);
        Ok(Box::new(self.tables(
            options,
            order.command,
            order.inputs,
        )?))
    }

    fn needs_order(&self) -> bool {
        false
    }

    fn conclude(&self, args: &trace::Args, pipeline: Pipeline<'_>) -> anyhow::Result<Ledger> {
        let ledger = args.output.conclude_telling(pipeline)?;
        let output = self.output.as_deref().filter(|o| *o != Path::new("-"));
        if let Some(path) = output.filter(|o| o.is_dir() && ledger.unshown() == 0) {
            tell(format_args!(
                "{}: {} {}; nvcap schema lists their columns, docs/queries.md has queries for DuckDB",
                path.display(),
                self.chosen.len(),
                if self.chosen.len() == 1 {
                    "table"
                } else {
                    "tables"
                },
            ));
        }
        Ok(ledger)
    }
}

/// Tells whether a path is that of a device, such as /dev/null, to which all tables can go.
fn is_device(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt as _;

    path.metadata()
        .is_ok_and(|m| m.file_type().is_char_device())
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
