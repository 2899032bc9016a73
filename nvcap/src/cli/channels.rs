//! `nvcap channels`: which channels a process has, what they feed and how far they are.

use std::process::ExitCode;

use super::target::usage;
use super::whole;

/// The end of its help.
pub const EXAMPLES: &str = "\
Examples:
  sudo nvcap channels -p 4711                 one look: rings, GP_GET and GP_PUT as they are now
  sudo nvcap channels -p 4711 --duration 5    traced for five seconds: tokens and submissions too
  sudo nvcap channels -- ./vadd               a command, traced to its end
  nvcap channels --from ioctl-log run.log.gz  those that a log tells of

One look neither stops nor slows the process and needs no BPF; what only the allocation tells (class, engine,
TSG) is unknown then and shown as ?.
Exit status: 0 complete, 1 error, 2 usage, 3 something was lost (said on standard error).";

/// Shows them.
pub fn run(args: &whole::Args) -> anyhow::Result<ExitCode> {
    if !args.target.is_named("channels") {
        return Ok(usage());
    }
    let mut whole = whole::gather(&args.target)?;
    let objects = whole.gather.channels_json();
    args.show.write(&whole.gather.channels_text(), &objects)?;
    if objects.is_empty() {
        eprintln!(
            "nvcap: no channel was found: nothing here has submitted work to a GPU by a ring that nvcap knows"
        );
    }
    if whole.unused != 0 {
        eprintln!(
            "nvcap: {} more slots behind the last used ring are all zero: channels that were never used, or nothing",
            whole.unused
        );
    }
    Ok(whole.end())
}
