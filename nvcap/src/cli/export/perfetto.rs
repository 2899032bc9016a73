//! `nvcap export perfetto`: a recording or a live trace for Perfetto.

use std::process::ExitCode;

use super::exported::{self, Export, FileArgs, Order};
use crate::cli::{target, trace, values};
use nvcap_decode::ledger::Ledger;
use nvcap_show::export::perfetto::{Clocks, Perfetto, PerfettoOptions};
use nvcap_show::output::Sink;
use nvcap_show::output::filter::Filter;
use nvcap_show::output::redact::Redactor;
use nvcap_show::pipeline::Pipeline;

const EXAMPLES: &str = "\
Examples:
  nvcap export perfetto nvcap.pcapng -o run.pftrace        a recording
  sudo nvcap export perfetto -o run.pftrace -- ./vadd      a command, from its first submission
  sudo nvcap export perfetto -o run.pftrace -p 4711 --duration 10
  nvcap export perfetto run.orc.xz -e op=launch | gzip > launches.pftrace.gz

Open the file at https://ui.perfetto.dev (it is read in the browser and not sent anywhere), or ask
trace processor. A live trace takes the GPU's time stamps, too, which takes one processor
(--gpu-time-cpu 5% takes less, for a part of the times).
docs/perfetto.md says what is on which track.";

/// Arguments of `nvcap export perfetto`.
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
    let command = exported::as_is(command, &[], target::FILE_FOR_A_PROGRAM);
    values::saying(
        command,
        &[
            (
                "verbose",
                "Write all operations, those of the driver's mechanics too: uploads, barriers, releases, nodes of graphs",
            ),
            (
                "explain_streams",
                "With --how trap: read GP_GET at each doorbell too, for the counter of the ring's fill",
            ),
        ],
    )
}

/// Makes the export.
pub(in crate::cli) fn run(args: Args) -> anyhow::Result<ExitCode> {
    exported::run(&Trace, &args.file, args.trace)
}

/// A trace for Perfetto.
struct Trace;

impl Export for Trace {
    fn names(&self) -> (&'static str, &'static str) {
        ("perfetto", "trace.pftrace")
    }

    fn sink(&self, order: Order<'_>) -> anyhow::Result<Box<dyn Sink>> {
        let shown = &order.args.output;
        let out = target::open_for_a_program(
            (shown.output.as_deref(), shown.force),
            order.command,
            order.inputs,
            "the trace is no text",
            "name a file with -o, such as -o trace.pftrace, and open it at https://ui.perfetto.dev",
        )?;
        // As in text, kinds of operations for which the filter asks are also shown without -v.
        let filtered = shown.filter.as_ref().is_some_and(Filter::asks_for_kind);
        let about = order.about;
        let options = PerfettoOptions {
            all: shown.verbose > 0 || filtered,
            redact: shown.redact.then(Redactor::default),
            clocks: about.monotonic_ns.map(|monotonic| Clocks {
                monotonic,
                boottime: about.boottime_ns,
                realtime: about.realtime_ns,
            }),
        };
        Ok(Box::new(Perfetto::new(out, options)))
    }

    fn needs_order(&self) -> bool {
        true
    }

    fn conclude(&self, args: &trace::Args, pipeline: Pipeline<'_>) -> anyhow::Result<Ledger> {
        args.output.conclude_file(
            pipeline,
            "open it at https://ui.perfetto.dev (the browser reads it; it is not sent anywhere)",
        )
    }
}
