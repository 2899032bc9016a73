//! The hostile target's program: runs the mode named on the command line.

use std::io::Read;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;
use hostile::bed::{Bed, say};
use hostile::mode::{MODES, find};

/// Does what no program should while it submits, and says at its end what it submitted.
///
/// Example: hostile ends::sigkill --describe ch.txt; sudo nvcap --channels ch.txt -- hostile ends::sigkill
#[derive(Parser, Debug)]
#[command(version)]
struct Args {
    /// Mode to run; without it the modes are listed
    mode: Option<String>,
    /// Wait for a byte on standard input first
    #[arg(long)]
    wait: bool,
    /// Submit on after the mode, until standard input has a byte more or ends
    #[arg(long)]
    go_on: bool,
    /// Become another user before the mode
    #[arg(long)]
    stranger: bool,
    /// Map rings, doorbells and pushbuffers from files with the names of the driver's
    #[arg(long)]
    files: bool,
    /// Write the channels file of the mode to FILE and end
    #[arg(long, value_name = "FILE")]
    describe: Option<PathBuf>,
}

fn body() -> Result<()> {
    let args = Args::parse();
    let Some(name) = args.mode else {
        MODES.iter().for_each(|mode| println!("{}", mode.name));
        return Ok(());
    };
    let mode =
        find(&name).with_context(|| format!("no mode {name:?}: hostile alone lists them"))?;
    if let Some(file) = args.describe {
        return std::fs::write(&file, Bed::describe(mode.entries))
            .with_context(|| format!("cannot write {}", file.display()));
    }
    hostile::process::no_core_files();
    hostile::signals::survive_lost_hits();
    let bed = Bed::map(mode.entries, args.files)?;
    say("ready");
    if args.wait {
        std::io::stdin().read_exact(&mut [0])?;
    }
    if args.stranger {
        hostile::served::become_stranger()?;
    }
    (mode.run)(&bed)?;
    if args.go_on {
        hostile::served::go_on_until_told(&bed);
    }
    bed.tell();
    Ok(())
}

fn main() -> ExitCode {
    match body() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("hostile: {e:#}");
            ExitCode::FAILURE
        }
    }
}
