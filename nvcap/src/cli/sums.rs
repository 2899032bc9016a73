//! Options of commands that show sums of a trace and no events: `nvcap time`, `nvcap ranks`.

use super::output_args::OutputArgs;
use super::usage::bail_usage;
use super::{file_or_live, trace, values};

/// Options of a trace that have no meaning there.
const USELESS: [&str; 10] = [
    "verbose",
    "quiet",
    "stats",
    "time",
    "redact",
    "explain_streams",
    "full_names",
    "history",
    "gpu_time",
    "stacks",
];

/// Returns the command for clap: it observes by default, and lacks the options without a meaning, those that `more` names and, with `file`,
/// those of a live target.
pub(super) fn as_is(
    command: clap::Command,
    file: &'static str,
    more: &[&'static str],
) -> clap::Command {
    let command = file_or_live::refusing(command, file, trace::live_options());
    let command = command.mut_arg("how", |arg| arg.default_value("observe"));
    values::without(values::without(command, &USELESS), more)
}

/// Refuses options that ask for events.
pub(super) fn refuse_events(name: &str, shown: &OutputArgs) -> anyhow::Result<()> {
    if shown.verbose > 0 || shown.quiet || shown.stats || shown.explain_streams {
        bail_usage!(
            "{name} shows sums alone: for events with their times trace with --gpu-time (nvcap --gpu-time -p PID)"
        );
    }
    Ok(())
}
