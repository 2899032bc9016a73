//! `cargo xtask bench`: the costs of nvcap, measured in one run so that the ratios mean something.
//!
//! Knows the software GPU's launch loop and how to set a bare watchpoint; judges nothing: a bench is not a test.

use std::{
    ffi::OsString,
    fs,
    io::{BufRead, BufReader, Read, Write},
    path::Path,
    process::{ChildStdout, Command, Stdio},
};

use anyhow::{Context, Result, bail};
use clap::Subcommand;

use crate::{
    bpf,
    build::{self, Profile},
    install::{self, Root},
    paths,
    watchpoint::Watchpoint,
};

/// The thing to measure.
#[derive(Subcommand)]
pub enum What {
    /// The decoder's speed on the capture in tests/captures
    Decode {
        /// Arguments for the benchmark, after `--`
        #[arg(last = true)]
        args: Vec<OsString>,
    },
    /// ns a launch of the software GPU: untraced, under a watchpoint without BPF, under nvcap (needs root)
    #[command(
        after_help = "The three take turns, and medians are compared: a trap's cost differs from machine to \
machine, so only the ratios of one run mean something.

Example:
  sudo -v && cargo xtask bench cost --rounds 7 --launches 20000"
    )]
    Cost {
        /// Turns of each
        #[arg(long, default_value_t = 5)]
        rounds: usize,
        /// Launches of one pass; each turn makes three passes
        #[arg(long, default_value_t = 10_000)]
        launches: u64,
    },
    /// Coverage, processor time and latency of live traces of the software GPU, into target/bench/live.jsonl (needs root)
    #[command(
        after_help = "Each figure stands beside its baseline of the same run. No figure fails anything.

Example:
  sudo -v && cargo xtask bench live samples"
    )]
    Live {
        /// Measurements whose names contain one of these; all without
        names: Vec<String>,
    },
}

/// Runs one benchmark.
pub fn run(what: &What) -> Result<()> {
    match what {
        What::Decode { args } => decode(args),
        What::Cost { rounds, launches } => cost(*rounds, *launches),
        What::Live { names } => live(names),
    }
}

fn decode(args: &[OsString]) -> Result<()> {
    if !paths::root().join("nvcap/benches/decode.rs").is_file() {
        bail!("nvcap/benches/decode.rs is not in this checkout");
    }
    build::host_cargo()
        .args([
            "bench", "--locked", "-p", "nvcap", "--bench", "decode", "--",
        ])
        .args(args)
        .run()
}

fn live(names: &[String]) -> Result<()> {
    bpf::fresh()?;
    let dir = build::packages(&build::programs(), Profile::RELEASE)?;
    let program = build::test_program("measure", Profile::RELEASE)?;
    let folder = paths::target().join("bench");
    fs::create_dir_all(&folder)?;
    let figures = folder.join("live.jsonl");
    if figures.exists() {
        fs::remove_file(&figures)?;
    }
    let variable = |name: &str, path: &Path| {
        let mut whole = OsString::from(format!("{name}="));
        whole.push(path);
        whole
    };
    // sudo drops the environment, so env sets it again.
    let result = install::as_root("env")
        .arg(variable("NVCAP_BIN", &dir.join("nvcap")))
        .arg(variable("SOFTGPU_BIN", &dir.join("softgpu")))
        .arg(variable("NVCAP_MEASURE_FILE", &figures))
        .arg(program)
        .args(names)
        .run();
    eprintln!("figures: {}", figures.display());
    result
}

/// A way to run the launch loop.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Untraced,
    Watchpoint,
    Nvcap,
}

const WAYS: [(Way, &str); 3] = [
    (Way::Untraced, "untraced"),
    (Way::Watchpoint, "watchpoint without BPF"),
    (Way::Nvcap, "nvcap"),
];

fn cost(rounds: usize, launches: u64) -> Result<()> {
    if install::root() != Root::Already {
        // Breakpoints on another process and sudo in the measured path do not mix: everything runs as root.
        bail!(
            "this measures as root. Type:\n  cargo xtask build --release && sudo {} bench cost",
            std::env::current_exe()?.display()
        );
    }
    if rounds == 0 || launches == 0 {
        bail!("--rounds and --launches must be at least 1");
    }
    let dir = Profile::RELEASE.dir();
    if std::env::var_os("SUDO_UID").is_none() {
        bpf::fresh()?;
        build::packages(&build::programs(), Profile::RELEASE)?;
    }
    // Nothing is built under sudo: the checkout belongs to a user, and so must its files.
    for name in ["nvcap", "softgpu"] {
        if !dir.join(name).is_file() {
            bail!(
                "{} is not built; type as yourself: cargo xtask build --release",
                dir.join(name).display()
            );
        }
    }
    let channels = paths::target().join("softgpu.channels");
    let described = Command::new(dir.join("softgpu"))
        .arg("--describe")
        .arg(&channels)
        .status()?;
    if !described.success() {
        bail!(
            "softgpu --describe {} ended with {described}",
            channels.display()
        );
    }
    let doorbells = doorbells(&fs::read_to_string(&channels)?)?;
    let mut turns = Vec::new();
    for round in 0..rounds {
        let mut medians = [0.0; WAYS.len()];
        for (n, (way, name)) in WAYS.iter().enumerate() {
            let passes = turn(*way, &dir, &channels, &doorbells, launches)
                .with_context(|| format!("turn {name}"))?;
            eprintln!("round {}: {name}: {passes:.0?} ns a launch", round + 1);
            medians[n] = median(passes);
        }
        turns.push(medians);
    }
    println!(
        "{:<24} {:>12} {:>12} {:>14}",
        "", "ns a launch", "x untraced", "x watchpoint"
    );
    for (n, (_, name)) in WAYS.iter().enumerate() {
        let of = |value: &dyn Fn(&[f64; 3]) -> f64| median(turns.iter().map(value).collect());
        println!(
            "{name:<24} {:>12.0} {:>12.2} {:>14.2}",
            of(&|turn| turn[n]),
            of(&|turn| turn[n] / turn[0]),
            of(&|turn| turn[n] / turn[1])
        );
    }
    println!(
        "(medians over {rounds} rounds; a ratio is of one round's turns; a turn is 3 passes of {launches} launches)"
    );
    Ok(())
}

/// One run of the launch loop; ns a launch of each pass.
fn turn(
    way: Way,
    dir: &Path,
    channels: &Path,
    doorbells: &[u64],
    launches: u64,
) -> Result<Vec<f64>> {
    let softgpu = dir.join("softgpu");
    let mut cmd = match way {
        Way::Nvcap => {
            let mut cmd = Command::new(dir.join("nvcap"));
            cmd.args(["-q", "-o", "-", "--channels"])
                .arg(channels)
                .arg("--")
                .arg(&softgpu)
                // As the same user as the untraced turns, even under sudo.
                .env_remove("SUDO_UID");
            cmd
        }
        Way::Untraced | Way::Watchpoint => Command::new(&softgpu),
    };
    cmd.args(["--bench", &launches.to_string()])
        .stdout(Stdio::piped());
    if way == Way::Watchpoint {
        cmd.arg("--wait-stdin").stdin(Stdio::piped());
    }
    let mut child = cmd
        .spawn()
        .with_context(|| format!("could not start {cmd:?}"))?;
    let mut out = BufReader::new(child.stdout.take().expect("it is piped"));
    let mut watched = Vec::new();
    if way == Way::Watchpoint {
        wait_until_ready(&mut out)?;
        // The loop runs on the first thread, whose id is the process's.
        let pid = i32::try_from(child.id())?;
        watched = doorbells
            .iter()
            .map(|&addr| Watchpoint::on_writes(pid, addr))
            .collect::<Result<_>>()?;
        child.stdin.take().expect("it is piped").write_all(b"\n")?;
    }
    let mut text = String::new();
    out.read_to_string(&mut text)?;
    let status = child.wait()?;
    if !status.success() {
        bail!("it ended with {status}; its output:\n{text}");
    }
    let passes = ns_per_launch(&text);
    if passes.is_empty() {
        bail!("it printed no ns_per_launch; its output:\n{text}");
    }
    if way == Way::Watchpoint {
        let hits: u64 = watched.iter().map(Watchpoint::count).sum::<Result<u64>>()?;
        let rung = launches * passes.len() as u64;
        // A few hits are lost on some virtual machines; if all are lost, nothing was watched.
        if hits < rung / 10 * 9 {
            bail!("{rung} doorbells were rung and the watchpoints counted {hits}");
        }
    }
    Ok(passes)
}

fn wait_until_ready(out: &mut BufReader<ChildStdout>) -> Result<()> {
    let mut line = String::new();
    while out.read_line(&mut line)? > 0 {
        if line.trim_end() == "ready" {
            return Ok(());
        }
        line.clear();
    }
    bail!("softgpu ended before it was ready")
}

/// The values of `ns_per_launch=` in the software GPU's output.
fn ns_per_launch(text: &str) -> Vec<f64> {
    text.lines()
        .filter_map(|line| {
            line.split("ns_per_launch=")
                .nth(1)?
                .split_whitespace()
                .next()?
                .parse()
                .ok()
        })
        .collect()
}

/// The doorbell words of a channels file; a thread has debug registers for four.
fn doorbells(text: &str) -> Result<Vec<u64>> {
    let of_line = |line: &str| {
        let hex = line
            .strip_prefix("doorbell")?
            .split("addr=0x")
            .nth(1)?
            .split_whitespace()
            .next()?;
        u64::from_str_radix(hex, 16).ok()
    };
    let found: Vec<u64> = text.lines().filter_map(of_line).take(4).collect();
    if found.is_empty() {
        bail!("the channels file names no doorbell");
    }
    Ok(found)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loops_words_are_read() {
        let text = "pid 7\nready\nbench pass=0 launches=10 ns_per_launch=30123.5\nbench pass=1 launches=10 ns_per_launch=9.0\n";
        assert_eq!(ns_per_launch(text), [30123.5, 9.0]);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
    }

    #[test]
    fn doorbells_come_from_the_channels_file() {
        let text = "# x\ndoorbell addr=0x210000090 gpu=0\nchannel gpu=0 token=0xa ring=0x1\ndoorbell addr=0x210010090 gpu=0\n";
        assert_eq!(
            doorbells(text).expect("two"),
            [0x2_1000_0090, 0x2_1001_0090]
        );
        assert!(doorbells("channel gpu=0\n").is_err());
    }
}
