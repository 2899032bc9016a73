//! `nvcap doctor`: a report of what this machine allows, and a measurement of how often it loses a hit.

use std::process::ExitCode;

mod lost_hits;

/// Options of `nvcap doctor`.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Measure how often this machine loses a hit of a breakpoint, which sends SIGTRAP to the program
    ///
    /// For SECONDS (10 if not given), on at most 8 of the processors on which it may run (taskset chooses them), two processes of nvcap's
    /// own store to watched words. Stores, hits, runs of the BPF program and SIGTRAPs are compared. Exit status 3: some hits were lost.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "10", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    trap: Option<u64>,
}

/// Examines and reports. The status is 0 if a live trace can be made; with `--trap`, if no hit was lost.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match args.trap {
        None => examine(),
        Some(seconds) => measure(seconds),
    }
}

/// Examines what this machine allows, and shows it.
fn examine() -> anyhow::Result<ExitCode> {
    use std::fmt::Write as _;

    use nvcap_live::how;
    use nvcap_live::trap::doctor::{CheckOutcome, examine};

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
    match how::auto_observes() {
        None => text.push_str("--how auto takes the trap\n"),
        Some(why) => {
            let _ = writeln!(text, "--how auto observes without a trap, because: {why}");
        }
    }
    write(&text)?;
    Ok(ExitCode::from(if can {
        0
    } else {
        nvcap_decode::ledger::STATUS_ERROR
    }))
}

/// Measures how often this machine loses a hit.
fn measure(seconds: u64) -> anyhow::Result<ExitCode> {
    use std::time::Duration;

    use nvcap_decode::ledger::{STATUS_COMPLETE, STATUS_LOST};
    use nvcap_live::trap::lost_hits::measure;
    use nvcap_show::output::message::tell;

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

fn write(text: &str) -> anyhow::Result<()> {
    let mut out = nvcap_show::output::writer::Output::stdout();
    out.object().extend_from_slice(text.as_bytes());
    super::target::written(&mut out)?;
    Ok(())
}
