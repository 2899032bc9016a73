//! `nvcap doctor`: what this machine allows, and how often it loses a hit.

use std::process::ExitCode;

#[cfg(feature = "trap")]
mod lost_hits;

/// Options of `nvcap doctor`.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Measure how often this machine loses a hit of a breakpoint, which sends SIGTRAP to the program
    ///
    /// For so many seconds (10), on at most 8 processors of those that it may run on (taskset says which), two processes of nvcap's own store
    /// to watched words. Stores, hits, runs of the BPF program and SIGTRAPs are compared. Exit status 3: some hits were lost.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "10", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    #[cfg(feature = "trap")]
    trap: Option<u64>,
}

/// Looks and reports: status 0 when a live trace can be made; with `--trap`, when no hit was lost.
#[cfg(feature = "trap")]
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match args.trap {
        None => examine(),
        Some(seconds) => measure(seconds),
    }
}

/// What this machine allows.
#[cfg(feature = "trap")]
fn examine() -> anyhow::Result<ExitCode> {
    use std::fmt::Write as _;

    use crate::source::how;
    use crate::source::trap::doctor::{CheckOutcome, examine};

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
    write(&text)?;
    Ok(ExitCode::from(if can {
        0
    } else {
        crate::ledger::STATUS_ERROR
    }))
}

/// How often this machine loses a hit.
#[cfg(feature = "trap")]
fn measure(seconds: u64) -> anyhow::Result<ExitCode> {
    use std::time::Duration;

    use crate::ledger::{STATUS_COMPLETE, STATUS_LOST};
    use crate::output::message::tell;
    use crate::source::trap::lost_hits::measure;

    tell(format_args!("storing to watched words for {seconds} s"));
    let measured = measure(Duration::from_secs(seconds))?;
    write(&lost_hits::report(&measured))?;
    let lost = measured.lost() > 0 || measured.traps > 0;
    Ok(ExitCode::from(if lost {
        STATUS_LOST
    } else {
        STATUS_COMPLETE
    }))
}

#[cfg(feature = "trap")]
fn write(text: &str) -> anyhow::Result<()> {
    let mut out = crate::output::writer::Output::stdout();
    out.object().extend_from_slice(text.as_bytes());
    super::target::written(&mut out)?;
    Ok(())
}

/// Without live tracing there is nothing to examine.
#[cfg(not(feature = "trap"))]
pub fn run(_args: &Args) -> anyhow::Result<ExitCode> {
    anyhow::bail!("this program is built without live tracing, so there is nothing to examine")
}
