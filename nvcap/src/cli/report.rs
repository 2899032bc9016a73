//! `nvcap report`: a recording as one page for a browser.

use std::path::Path;
use std::process::ExitCode;

use serde_json::json;

use nvcap_recording::recording::TraceInfo;
use nvcap_show::export::report::{MOST_OPERATIONS, Report, ReportOptions};
use nvcap_show::output::filter::Filter;
use nvcap_show::pipeline::Pipeline;

use super::output_args::OutputArgs;
use super::recording::RecordingArgs;
use super::target;
use super::usage::bail_usage;
use super::values::{self, SHOWN};

const EXAMPLES: &str = "\
Examples:
  nvcap report nvcap.pcapng -o run.html                      what nvcap record has written
  nvcap report run.orc.xz --phases run.phases -o run.html    with phases, and moves by series
  nvcap report run.orc.xz -e op=launch -o launches.html      of some operations
  nvcap report run.orc.xz -e 'time_ns>29300000000' -o b.html of a part of the time
  nvcap report run.orc.xz | ssh host 'cat > run.html'        elsewhere

The page needs nothing beside it and no network: open it in any browser, keep it, send it. It
has names, sizes and times, and no users' data (no arguments, no patterns, no bytes).
docs/report.md says what is on it.

Exit status: 0 complete, 1 error, 2 usage, 3 the recording lacks something or reading was
interrupted, 5 complete, but not all was understood (the page says what),
6 complete, and the GPU faulted (the verdict says where).";

/// A recording and its page.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Recording that is read.
    #[command(flatten)]
    pub recording: RecordingArgs,

    /// Show at most N single operations in the timeline; tables and plots cover all of them
    #[arg(long, value_name = "N", default_value_t = MOST_OPERATIONS, value_parser = clap::value_parser!(u64).range(1..), help_heading = SHOWN)]
    pub limit: u64,

    /// Form and place of the output.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Options of a trace that have no meaning here. The page never contains data that `--redact` hides.
const USELESS: [&str; 8] = [
    "quiet",
    "stats",
    "json",
    "time",
    "color",
    "explain_streams",
    "full_names",
    "history",
];

/// Returns the command for clap: without the options that have no meaning here, and with the help texts that fit here.
pub(super) fn as_is(command: clap::Command) -> clap::Command {
    let command = values::without(command, &USELESS);
    values::saying(
        command,
        &[
            (
                "verbose",
                "Show all operations, those of the driver's mechanics too: uploads, barriers, releases, nodes of graphs",
            ),
            ("output", target::FILE_FOR_A_PROGRAM),
            (
                "redact",
                "Allowed for scripts: the page has no users' data with or without it",
            ),
        ],
    )
}

/// Writes the page.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let shown = &args.output;
    if shown.json || shown.stats || shown.quiet || shown.explain_streams {
        bail_usage!(
            "nvcap report writes a page for a browser; for sums as text or JSON use nvcap stats {}",
            nvcap_show::output::shell::quoted(&args.recording.file)
        );
    }
    let mut recording = args.recording.open()?;
    let shown = shown.of_recording(recording.trace());
    let trace = recording.trace().map_or_else(Default::default, trace);
    let recording = recording.quiet_until_the_end(shown.output.as_deref());
    let options = shown.pipeline_options(args.recording.strict, None)?;
    let mut inputs = args.recording.inputs();
    inputs.extend(shown.phases.as_deref());
    let out = target::open_for_a_program(
        (shown.output.as_deref(), shown.force),
        false,
        &inputs,
        "the report is a page for a browser",
        "name a file with -o, such as -o report.html",
    )?;
    let report = ReportOptions {
        // As in text, kinds of operations for which the filter asks are also shown without -v.
        all: shown.verbose > 0 || shown.filter.as_ref().is_some_and(Filter::asks_for_kind),
        limit: args.limit,
        file: args.recording.name(),
        filtered: shown.filter.is_some(),
        trace,
    };
    // Each submission is held back until the GPU's timestamps, which follow it in the file, have been read.
    let mut pipeline = Pipeline::new(options, vec![Box::new(Report::new(out, report))])
        .with_gpu_time()
        .in_time_order();
    recording.play(&mut pipeline)?;
    let ledger = shown.conclude_file(pipeline, "open it in a browser")?;
    Ok(ExitCode::from(ledger.exit_status()))
}

/// Returns the page's description of a trace.
fn trace(info: &TraceInfo) -> serde_json::Value {
    // Arguments may be secrets.
    let command = info.command.first().map(Path::new);
    let command = command.and_then(Path::file_name);
    json!({
        "program": info.program, "driver": info.driver, "kernel": info.kernel, "processor": info.processor,
        "realtime_ns": info.realtime_ns, "monotonic_ns": info.monotonic_ns, "how": info.how, "gpu_time": info.gpu_time,
        "command": command.map(|c| c.to_string_lossy()), "file": info.file,
    })
}
