//! `cargo xtask run --tour`: five commands on a recording of the repository, each with what it is for. For those without a GPU.

use std::path::Path;
use std::process::{ExitCode, Stdio};

use anyhow::{Context, Result, ensure};

use crate::{build, paths, shell::Cmd};

/// The recording: a training that never ran, computed by a test.
const RECORDING: &str = "tests/fixtures/training.pcapng";
/// Lines of a command's output that are shown.
const SHOWN: usize = 12;

/// A command of the tour.
struct Stop {
    /// Arguments behind `nvcap`; `FILE` is the recording, `PAGE` a page that is written.
    command: &'static str,
    /// Question that it answers, and how to read the answer.
    told: [&'static str; 2],
}

const STOPS: [Stop; 5] = [
    Stop {
        command: "decode FILE -e op=launch||op=copy",
        told: [
            "What does the program ask of the GPU? Each launch and copy in its order: when, on which channel and engine, how long the GPU took, grid, block, addresses.",
            "Live: sudo nvcap -p PID. `-e` filters by the words that are shown; `-v` shows the driver's own work, too.",
        ],
    },
    Stop {
        command: "time FILE",
        told: [
            "Why is it slow? The first line is the verdict: how much of the time the GPU worked, and what it lacked in the rest; then kernels and copies by time.",
            "Live, at the program's full speed: sudo nvcap time -p PID --duration 10",
        ],
    },
    Stop {
        command: "stats FILE",
        told: [
            "How often what was asked for, and how many bytes were moved. At the end stands the ledger: what was captured on each channel, and what is missing.",
            "Here three entries are missing on channel 2, on purpose: nvcap says INCOMPLETE then, and ends with status 3.",
        ],
    },
    Stop {
        command: "dump FILE",
        told: [
            "Why does it hang? What each channel has not done, what waits for what, and which kernel has not ended: here nothing, all is done.",
            "Live, of a process that stands still: sudo nvcap dump -p PID",
        ],
    },
    Stop {
        command: "report FILE --force -o PAGE",
        told: [
            "The whole trace as one page for a browser, with a timeline: it needs no server and no network.",
            "From the start: sudo nvcap record --gpu-time -o run.pcapng -- ./app, then nvcap report run.pcapng",
        ],
    },
];

/// Builds nvcap, and runs the commands one after the other.
pub fn run() -> Result<ExitCode> {
    let recording = paths::root().join(RECORDING);
    ensure!(
        recording.is_file(),
        "the tour's recording ({RECORDING}) is not in this checkout"
    );
    let nvcap = build::to_trace()?.join("nvcap");
    let page = paths::target().join("tour.html");
    println!(
        "A tour of nvcap on {RECORDING}: a training of 40 steps, as a recording of it would be."
    );
    for (n, stop) in (1..).zip(&STOPS) {
        println!("\n{n}. {}\n   {}\n", stop.told[0], stop.told[1]);
        println!("$ nvcap {}", typed(stop));
        print!("{}", shown(&output(stop, &nvcap, &page)?));
    }
    println!("\nThe page is {}.", page.display());
    println!("A live trace without a GPU: cargo xtask run. All commands: nvcap --help.");
    Ok(ExitCode::SUCCESS)
}

/// The command as a shell takes it, in the root of the repository.
fn typed(stop: &Stop) -> String {
    let words = stop.command.split(' ').map(|word| match word {
        "FILE" => RECORDING.to_owned(),
        "PAGE" => "target/tour.html".to_owned(),
        word if word.contains(['|', '&', '>']) => format!("'{word}'"),
        word => word.to_owned(),
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Runs a command, and returns what it says. Its status is 0, or 3: the recording lacks entries.
fn output(stop: &Stop, nvcap: &Path, page: &Path) -> Result<String> {
    let mut cmd = Cmd::new(nvcap).dir(paths::root());
    for word in stop.command.split(' ') {
        cmd = match word {
            "FILE" => cmd.arg(RECORDING),
            "PAGE" => cmd.arg(page),
            word => cmd.arg(word),
        };
    }
    let ran = cmd.command().stdin(Stdio::null()).output();
    let ran = ran.with_context(|| format!("{} could not be started", nvcap.display()))?;
    let text = String::from_utf8_lossy(&ran.stdout).into_owned();
    ensure!(
        matches!(ran.status.code(), Some(0 | 3)),
        "{} ended with {}: {text}{}",
        cmd.line(),
        ran.status,
        String::from_utf8_lossy(&ran.stderr)
    );
    Ok(text)
}

/// Makes the tour without showing it: each command answers.
pub fn check(programs: &Path) -> Result<()> {
    let nvcap = programs.join("nvcap");
    let page = paths::target().join("xtask-test/tour.html");
    for stop in &STOPS {
        let text = output(stop, &nvcap, &page)?;
        let is_page = stop.command.ends_with("PAGE");
        ensure!(
            is_page || text.lines().count() > 3,
            "nvcap {} says too little: {text}",
            typed(stop)
        );
    }
    let written = std::fs::metadata(&page).map_or(0, |m| m.len());
    ensure!(written > 10_000, "the page has {written} bytes");
    Ok(())
}

/// The first lines of an output and its last one, and how many there are in between.
fn shown(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let left_out = lines.len().saturating_sub(SHOWN + 1);
    let first = lines
        .iter()
        .take(if left_out > 0 { SHOWN } else { lines.len() });
    let mut all = String::new();
    for line in first {
        all += format!("   {line}").trim_end();
        all.push('\n');
    }
    if let (Some(last), 1..) = (lines.last(), left_out) {
        all += &format!("   ... {left_out} more lines\n   {last}\n");
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_output_is_cut_and_that_is_said() {
        let lines = |n: usize| (0..n).map(|n| format!("{n}\n")).collect::<String>();
        assert_eq!(shown("a\n\nb\n"), "   a\n\n   b\n");
        assert_eq!(shown(""), "");
        assert!(!shown(&lines(SHOWN + 1)).contains("more"));
        let cut = shown(&lines(SHOWN + 3));
        assert!(
            cut.ends_with("   11\n   ... 2 more lines\n   14\n"),
            "{cut}"
        );
    }

    #[test]
    fn commands_can_be_typed() {
        for stop in &STOPS {
            let typed = typed(stop);
            assert!(
                typed.contains(RECORDING) && !typed.contains("PAGE"),
                "{typed}"
            );
        }
        assert!(typed(&STOPS[0]).ends_with("-e 'op=launch||op=copy'"));
        assert!(paths::root().join(RECORDING).is_file());
    }
}
