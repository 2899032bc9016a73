//! `nvcap export nsys-sqlite`: a recording or a live trace as the tables that Nsight Systems exports.

use std::process::ExitCode;

use anyhow::Context as _;

use super::exported::{self, Export, FileArgs, Order};
use crate::cli::usage::bail_usage;
use crate::cli::{target, trace};
use nvcap_decode::ledger::Ledger;
use nvcap_show::export::nsys::{NsysOptions, NsysSqlite};
use nvcap_show::output::Sink;
use nvcap_show::pipeline::Pipeline;

const EXAMPLES: &str = "\
Examples:
  nvcap export nsys-sqlite run.pcapng -o run.sqlite     a recording with --gpu-time
  sudo nvcap export nsys-sqlite -o run.sqlite -p 4711 --duration 10
  sqlite3 run.sqlite \"SELECT value, count(*), sum(end - start) FROM CUPTI_ACTIVITY_KIND_KERNEL
    JOIN StringIds ON id = demangledName GROUP BY 1 ORDER BY 3 DESC\"

The tables are those of nsys export --type sqlite, as far as nvcap knows them. Kernels, copies and
memsets whose times are not known are left out, and counted in the table NVCAP, with the verdict.
docs/from-nsys.md says what is in the tables, and what is not.

Exit status: as nvcap decode.";

/// Arguments of `nvcap export nsys-sqlite`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
#[group(skip)]
pub(in crate::cli) struct Args {
    /// A capture.
    #[command(flatten)]
    pub file: FileArgs,

    /// Target and options of the trace.
    #[command(flatten)]
    pub trace: trace::Args,
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
    let output = "Write to FILE, readable by its owner alone";
    exported::as_is(command, &more, output)
}

/// Makes the export.
pub(in crate::cli) fn run(args: Args) -> anyhow::Result<ExitCode> {
    exported::run(&Trace, &args.file, args.trace)
}

/// A trace as tables of Nsight Systems.
struct Trace;

impl Export for Trace {
    fn names(&self) -> (&'static str, &'static str) {
        ("nsys-sqlite", "trace.sqlite")
    }

    fn sink(&self, order: Order<'_>) -> anyhow::Result<Box<dyn Sink>> {
        let shown = &order.args.output;
        let output = shown.output.as_deref();
        let (Some(path), about) = (output, order.about) else {
            bail_usage!(
                "SQLite writes to places all over its file, and cannot write to standard output; name a file with -o, such as -o trace.sqlite"
            );
        };
        let out = target::open(output, shown.force, false, order.inputs)?;
        let options = NsysOptions {
            base_ns: about.base_ns(),
            driver: about.driver,
        };
        let sink = NsysSqlite::new(out, options);
        let sink = sink.with_context(|| format!("cannot write to {}", path.display()))?;
        Ok(Box::new(sink))
    }

    fn needs_order(&self) -> bool {
        true
    }

    fn conclude(&self, args: &trace::Args, pipeline: Pipeline<'_>) -> anyhow::Result<Ledger> {
        args.output.conclude_file(
            pipeline,
            "its tables are those of Nsight Systems' exports (docs/from-nsys.md); SELECT * FROM NVCAP has the verdict, and what was left out",
        )
    }
}
