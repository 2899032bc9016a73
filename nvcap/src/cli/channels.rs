//! `nvcap channels`: the channels of a process, the engines that they feed, and their progress.

use std::process::ExitCode;

use super::target::usage;
use super::target_view;
use nvcap_show::output::message::tell;
use nvcap_show::output::plural::plural_of;

/// Examples at the end of `nvcap channels --help`.
pub(super) const EXAMPLES: &str = "\
Examples:
  sudo nvcap channels -p 4711                 one look: rings, GP_GET and GP_PUT as they are now
  sudo nvcap channels -p 4711 --duration 5    traced for five seconds: tokens and submissions too
  sudo nvcap channels -- ./vadd               a command, traced to its end
  nvcap channels run.log.gz                   those that a log tells of

One look neither stops nor slows the process and needs no BPF; what only the allocation tells
(class, TSG) is unknown then and shown as ?. Tokens are known where libcuda's order of channels
and error notifiers tells them, engines by the methods in the rings, as in nvcap dump.
Exit status: 0 complete, 1 error, 2 usage, 3 something was lost (said on standard error).";

/// Runs `nvcap channels`: prints the channels of the target as a table or as JSON.
pub(super) fn run(args: &target_view::Args) -> anyhow::Result<ExitCode> {
    if !args.target.is_named("channels") {
        return Ok(usage());
    }
    let whole = target_view::view(args)?;
    let objects = whole.model.channels_json();
    args.show
        .write(&whole.model.channels_text(), &objects, &args.target)?;
    if objects.is_empty() {
        tell(format_args!(
            "no channel was found: nothing here has submitted work to a GPU by a ring that nvcap knows"
        ));
    }
    if whole.unused != 0 {
        tell(format_args!(
            "{} all zero behind the last used ring: channels that were never used, or nothing",
            plural_of(whole.unused as u64, "more slot is", "more slots are")
        ));
    }
    Ok(whole.end())
}
