//! `nvcap doctor`: what this machine allows.

use std::process::ExitCode;

/// `nvcap doctor` takes no options.
#[derive(clap::Args, Debug)]
pub(super) struct Args {}

/// Looks and reports: status 0 when a live trace can be made.
#[cfg(feature = "trap")]
pub(super) fn run(_args: &Args) -> anyhow::Result<ExitCode> {
    use std::fmt::Write as _;

    use crate::output::writer::Output;
    use crate::source::how;
    use crate::source::trap::doctor::{CheckOutcome, examine};

    use super::target;

    let mut can = true;
    let mut text = String::new();
    for f in examine() {
        let mark = match f.verdict {
            CheckOutcome::Works => "yes",
            CheckOutcome::Refused => "no",
            CheckOutcome::Missing => {
                can = false;
                "NO"
            }
            CheckOutcome::Note => "-",
        };
        let _ = writeln!(text, "{mark:<4} {:<24} {}", f.what, f.detail);
    }
    let verdict = if can {
        "live tracing works here"
    } else {
        "live tracing by the trap does not work here: see the lines with NO"
    };
    let _ = writeln!(text, "\n{verdict}");
    match how::trap_refused() {
        None => text.push_str("--how auto takes the trap\n"),
        Some(why) => {
            let _ = writeln!(text, "--how auto observes without a trap, because: {why}");
        }
    }
    let mut out = Output::stdout();
    out.object().extend_from_slice(text.as_bytes());
    target::written(&mut out)?;
    Ok(ExitCode::from(if can {
        0
    } else {
        crate::ledger::STATUS_ERROR
    }))
}

/// Without live tracing there is nothing to examine.
#[cfg(not(feature = "trap"))]
pub fn run(_args: &Args) -> anyhow::Result<ExitCode> {
    anyhow::bail!("this program is built without live tracing, so there is nothing to examine")
}
