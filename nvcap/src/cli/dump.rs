//! `nvcap dump`: what a hung or slow GPU process waits for, by one look at it or two.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::bail;

use nvcap::decode::defaults::{CHIPS, Chip};
use nvcap::hang::{self, Look, Movement};
use nvcap::ledger::{STATUS_ERROR, STATUS_LOST};
use nvcap::output::dump::{self, Shown};
use nvcap::output::redact::Redactor;
use nvcap::output::writer::Output;
use nvcap::source::memory::{chip, dump as source, find::Effort, snapshot::Given};

use super::OutputArgs;
use super::target::{self, usage};
use super::trace::parse_seconds;

const EXAMPLES: &str = "\
Examples:
  sudo nvcap dump -p 4711                what every channel is at, what it waits for, its last 20 entries
  sudo nvcap dump -p 4711 --watch 2      look twice, 2 s apart: is it stuck, or slow?
  sudo nvcap dump -a                     every process that uses a GPU
  sudo nvcap dump -p 4711 --last 1000    as far back as the rings hold
  sudo nvcap dump -p 4711 --json         one JSON object (docs/dump.schema.json)

It reads the process's memory and changes, stops and traps nothing: no BPF, no breakpoint; only the right to read
memory (root, or the process's owner with cap_sys_ptrace) is needed. docs/hang.md walks three real hangs.
Exit status: 0 all was read, 1 error, 2 usage, 3 something could not be read (it is said what).";

/// What to look at.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The running process PID; may be given several times
    #[arg(short, long = "pid", value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pid: Vec<u32>,

    /// Every process that has a GPU's device file mapped
    #[arg(short, long, conflicts_with = "pid")]
    all: bool,

    /// Entries of each channel that are read and shown, beside those the GPU has not fetched
    #[arg(long, value_name = "N", default_value_t = 20)]
    last: u32,

    /// Look twice, SECONDS apart, and say what moved; more often with --times
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    watch: Option<Duration>,

    /// With --watch: how many times to compare, 0 for until interrupted
    #[arg(long, value_name = "N", default_value_t = 1, requires = "watch")]
    times: u64,

    /// Show the entries of this channel alone, by its number or token; may be given several times
    #[arg(short, long = "channel", value_name = "ID", value_parser = parse_number)]
    channel: Vec<u32>,

    /// Rings, USERDs and tokens that are known beforehand, from FILE (docs/channels-file.md)
    #[arg(long, value_name = "FILE")]
    channels: Option<PathBuf>,

    /// Search all mapped GPU memory for channels, also where it takes long
    #[arg(long)]
    thorough: bool,

    /// The GPU's chip, such as GH100, where neither PCI id nor stream tells it
    #[arg(long, value_name = "NAME", value_parser = parse_chip)]
    chip: Option<&'static Chip>,

    /// Show the entries as a trace would: the same lines, JSON objects, filters and ledger, and no verdict
    ///
    /// -e, -s, -q, --time, --phases and --explain-streams need it.
    #[arg(long, conflicts_with = "watch")]
    stream: bool,

    /// How and where. Without --stream, -v shows every operation, and what was assumed and what proven of each channel;
    /// --json is one object a look.
    #[command(flatten)]
    output: OutputArgs,
}

fn parse_number(text: &str) -> Result<u32, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.map_err(|e| e.to_string())
}

fn parse_chip(name: &str) -> Result<&'static Chip, String> {
    Chip::named(name).ok_or_else(|| {
        let known: Vec<&str> = CHIPS.iter().flat_map(|c| c.names).copied().collect();
        format!("no such chip; known are {}", known.join(", "))
    })
}

/// Looks and shows.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.pid.is_empty() && !args.all {
        eprintln!(
            "nvcap: nothing to look at: name a process (nvcap dump -p PID), or all that use a GPU (nvcap dump -a)"
        );
        return Ok(usage());
    }
    let options = source::Options {
        last: args.last,
        effort: if args.thorough {
            Effort::Thorough
        } else {
            Effort::Usual
        },
        chip: args.chip,
        given: given(args)?,
    };
    if args.stream {
        return stream(args, &options);
    }
    let output = &args.output;
    if output.filter.is_some()
        || output.stats
        || output.quiet
        || output.phases.is_some()
        || output.explain_streams
    {
        eprintln!(
            "nvcap: -e, -s, -q, --phases and --explain-streams show a stream of events: add --stream"
        );
        return Ok(usage());
    }
    let mut out = target::open(output.output.as_deref())?;
    let show = dump::Options {
        last: args.last,
        verbose: output.verbose > 0,
        color: output.color().enabled(out.is_terminal()),
        redact: output.redact.then(Redactor::default),
        channels: args.channel.clone(),
    };
    let mut status = 0;
    let mut began = Instant::now();
    let mut before = look(args, &options, &mut status)?;
    let Some(pause) = args.watch else {
        write(
            &mut out,
            output.json,
            Shown {
                look: &before,
                moved: None,
            },
            &show,
        )?;
        return Ok(ExitCode::from(end(&before, status)));
    };
    let mut left = args.times;
    loop {
        std::thread::sleep(pause.saturating_sub(began.elapsed()));
        let start = Instant::now();
        let now = look(args, &options, &mut status)?;
        let moved = compare(&before, &now, start.duration_since(began));
        write(
            &mut out,
            output.json,
            Shown {
                look: &now,
                moved: Some(&moved),
            },
            &show,
        )?;
        (before, began) = (now, start);
        left = left.saturating_sub(1);
        if left == 0 && args.times != 0 {
            return Ok(ExitCode::from(end(&before, status)));
        }
    }
}

fn given(args: &Args) -> anyhow::Result<Vec<Given>> {
    let Some(path) = &args.channels else {
        return Ok(Vec::new());
    };
    #[cfg(feature = "trap")]
    {
        let given = nvcap::source::trap::given::Given::read(path)?;
        Ok(given
            .channels
            .iter()
            .map(|c| Given {
                gpu: c.gpu,
                ring: c.ring,
                entries: c.entries,
                userd: c.userd,
                token: c.token,
            })
            .collect())
    }
    #[cfg(not(feature = "trap"))]
    bail!(
        "{}: channels files are not built into this program",
        path.display()
    )
}

/// The same records as any other source's, through the same pipeline.
fn stream(args: &Args, options: &source::Options) -> anyhow::Result<ExitCode> {
    let mut pipeline = args.output.pipeline()?;
    match options.chip {
        Some(chip) => pipeline.chip(None, chip),
        None => {
            for (minor, chip) in chip::chips() {
                pipeline.chip(Some(minor), chip);
            }
        }
    }
    let mut status = 0;
    let pids = pids(args)?;
    let (records, refused) = source::records(&pids, options);
    told(args, &refused, refused.len() == pids.len(), &mut status)?;
    for record in records {
        pipeline.record(record)?;
    }
    let ledger = args.output.conclude(pipeline)?;
    Ok(ExitCode::from(status.max(ledger.exit_status())))
}

fn pids(args: &Args) -> anyhow::Result<Vec<u32>> {
    let pids = if args.all {
        source::gpu_processes()
    } else {
        args.pid.clone()
    };
    if pids.is_empty() {
        bail!(
            "no process that may be looked at has a GPU's device file mapped: run nvcap as root (sudo nvcap dump -a), or \
             nothing uses a GPU"
        );
    }
    Ok(pids)
}

fn look(args: &Args, options: &source::Options, status: &mut u8) -> anyhow::Result<Look> {
    let (look, refused) = source::look(&pids(args)?, options);
    told(args, &refused, look.processes.is_empty(), status)?;
    Ok(look)
}

/// Says which processes could not be looked at: an error where `none` could.
fn told(
    args: &Args,
    refused: &[(u32, io::Error)],
    none: bool,
    status: &mut u8,
) -> anyhow::Result<()> {
    for (pid, error) in refused {
        // Of all processes, one that has ended meanwhile is no failure.
        if args.all && gone(*pid, error) {
            continue;
        }
        if none {
            bail!("{}", cannot(*pid, error));
        }
        eprintln!("nvcap: {}", cannot(*pid, error));
        *status = STATUS_ERROR;
    }
    Ok(())
}

fn gone(pid: u32, error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
        || !std::path::Path::new(&format!("/proc/{pid}")).exists()
}

fn cannot(pid: u32, error: &io::Error) -> String {
    if gone(pid, error) {
        format!(
            "cannot look into process {pid}: there is no such process; check the process id (pgrep, nvidia-smi)"
        )
    } else {
        format!(
            "cannot look into process {pid}: run nvcap as root (sudo nvcap dump ...) or as the process's owner with \
             cap_sys_ptrace"
        )
    }
}

fn compare(before: &Look, now: &Look, passed: Duration) -> Movement {
    hang::compare(
        (&before.scene, &before.analysis),
        (&now.scene, &now.analysis),
        passed.as_nanos() as u64,
        source::same_channel(before, now),
    )
}

fn write(
    out: &mut Output,
    json: bool,
    shown: Shown<'_>,
    options: &dump::Options,
) -> anyhow::Result<()> {
    if json {
        dump::json(out.object(), &shown, options);
    } else {
        dump::text(out.object(), &shown, options);
    }
    out.end_object()?;
    out.flush()?;
    if out.unshown() != 0 {
        bail!("the answer could not be written: make room, or name another file with -o");
    }
    Ok(())
}

fn end(look: &Look, status: u8) -> u8 {
    if status != 0 {
        status
    } else if look.is_incomplete() {
        STATUS_LOST
    } else {
        0
    }
}
