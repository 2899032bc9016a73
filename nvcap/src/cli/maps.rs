//! `nvcap maps`: a process's mappings of the driver's files, and their contents.

use std::process::ExitCode;

use super::target::usage;
use super::target_view;
use nvcap_show::output::message::tell;

/// Examples at the end of `nvcap maps --help`.
pub(super) const EXAMPLES: &str = "\
Examples:
  sudo nvcap maps -p 4711                 the mappings of a running process
  sudo nvcap maps -- ./vadd               a command, traced to its end: each mapping with its object
  nvcap maps run.log.gz                   those that a log tells of

Exit status: 0 complete, 1 error, 2 usage, 3 something was lost (said on standard error).";

/// Runs `nvcap maps`: prints the mappings of the target.
pub(super) fn run(args: &target_view::Args) -> anyhow::Result<ExitCode> {
    if !args.target.is_named("maps") {
        return Ok(usage());
    }
    let whole = target_view::view(args)?;
    let objects = whole.model.maps_json();
    args.show
        .write(&whole.model.maps_text(), &objects, &args.target)?;
    match &args.target.file {
        _ if !objects.is_empty() => {}
        Some(file) => tell(format_args!(
            "{} tells of no mapping of the NVIDIA driver's files",
            file.display()
        )),
        None => tell("no file of the NVIDIA driver is mapped: no GPU is in use"),
    }
    Ok(whole.end())
}
