//! `nvcap doctor`: what this machine allows.

use std::process::ExitCode;

/// `nvcap doctor` takes no options.
#[derive(clap::Args, Debug)]
pub struct Args {}

/// Looks and reports: status 0 when a live trace can be made.
#[cfg(feature = "trap")]
pub fn run(_args: &Args) -> anyhow::Result<ExitCode> {
    use nvcap::source::how;
    use nvcap::source::trap::doctor::{Verdict, examine};

    let mut can = true;
    for f in examine() {
        let mark = match f.verdict {
            Verdict::Works => "yes",
            Verdict::Refused => "no",
            Verdict::Missing => {
                can = false;
                "NO"
            }
            Verdict::Note => "-",
        };
        println!("{mark:<4} {:<24} {}", f.what, f.detail);
    }
    let verdict = if can {
        "live tracing works here"
    } else {
        "live tracing by the trap does not work here: see the lines with NO"
    };
    println!("\n{verdict}");
    match how::trap_refused() {
        None => println!("--how auto takes the trap"),
        Some(why) => println!("--how auto observes without a trap, because: {why}"),
    }
    Ok(ExitCode::from(if can {
        0
    } else {
        nvcap::ledger::STATUS_ERROR
    }))
}

/// Without live tracing there is nothing to examine.
#[cfg(not(feature = "trap"))]
pub fn run(_args: &Args) -> anyhow::Result<ExitCode> {
    anyhow::bail!("this program is built without live tracing, so there is nothing to examine")
}
