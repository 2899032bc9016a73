//! `nvcap counts`: how many submissions processes make, exactly, once a second.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;

use crate::counts::host::{Host, HostOptions};
use crate::counts::pace::rest;
use crate::counts::system::Machine;
use crate::counts::view::{ChannelView, Refused};
use crate::host::choice::Whom;
use crate::output::message::tell;
use crate::output::plural::plural_of;

mod samples;
mod table;

use samples::Names;
use table::Table;

use super::target::{self, usage};
use super::values::{parse_pid, parse_share, parse_time};

pub(super) const EXAMPLES: &str = "\
Examples:
  sudo nvcap counts -a                   every process that uses a GPU, once a second
  sudo nvcap counts -p 4711 --channels   each channel of one
  sudo nvcap counts -a --times 1 --json  once, one JSON object a line
  sudo nvcap counts -a --sample 0.5%     kernels by name, copies and bytes, from samples

It reads numbers that the GPU itself keeps (docs/counts.md): no breakpoint, no BPF, no stop, and
some hundredths of a percent of a core for a process. Every submission is counted, however fast
they come.

  DONE      submissions that the GPU has done since counting began (IN ALL: since the channels'
            beginnings); ~ before a number: the least that there can have been
  PENDING   submitted and not done;  OLDEST: how long the oldest of them is there, at least
  STATE     idle, working, or waiting: nothing of what is pending was done since the line before

Exit status: 0 all processes that were named have ended, or --times is over; 1 error; 2 usage.";

/// Whom to count, and how.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// The running process PID (or the process of the thread PID); may be given several times
    #[arg(short, long = "pid", value_name = "PID", value_parser = parse_pid)]
    pub pid: Vec<u32>,

    /// Every process that uses a GPU, now or later
    #[arg(short, long, conflicts_with = "pid")]
    all: bool,

    /// How often the counts are read and shown
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_time)]
    interval: Duration,

    /// Use at most SHARE of one core, such as 1%. Processes are read less often if that is needed to stay within it
    #[arg(long, value_name = "SHARE", value_parser = parse_share)]
    budget: Option<f64>,

    /// Estimate what the submissions do, from samples: kernels by name with their share of GPU time, copies by direction, bytes; each with
    /// its 95 % interval. Sampling takes about SHARE of one core, such as 0.5%
    #[arg(long, value_name = "SHARE", value_parser = parse_share)]
    sample: Option<f64>,

    /// End after N readings
    #[arg(long, value_name = "N")]
    times: Option<u64>,

    /// Show each channel
    #[arg(long)]
    channels: bool,

    /// Write JSON: at each reading one line (an object) for each process, and one for all
    #[arg(long)]
    json: bool,

    /// Write to FILE instead of standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Only processes of USER, a name, a number or a pattern; may be given several times
    #[arg(long, value_name = "USER", requires = "all", help_heading = super::values::WHOM)]
    user: Vec<String>,

    /// Which of them.
    #[command(flatten)]
    filters: super::whom::Filters,
}

/// Counts.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let users = args.user.iter().cloned();
    let Some(whom) = args.filters.whom("counts", &args.pid, args.all, users)? else {
        return Ok(usage());
    };
    let named = matches!(whom, Whom::Named(_));
    let mut out = target::open(args.output.as_deref(), false, &[])?;
    let mut host = Host::new(
        Machine::new(whom),
        HostOptions {
            interval: args.interval,
            budget: args.budget,
            sample: args.sample,
            ..HostOptions::default()
        },
    );
    let mut table = Table::default();
    let mut left = args.times;
    let mut told: Option<(usize, usize)> = None;
    let mut names = Names::default();
    loop {
        let wait = host.round();
        let view = host.view();
        if let Some((pid, refused)) = view.refused.iter().next().filter(|_| named) {
            bail!(
                "cannot look into process {pid}: {}; {}",
                refused.why,
                crate::procfs::mem::remedy()
            );
        }
        // Those that may not be read are told of when they are more than ever; processes come and go.
        let (counted, refused) = (host.len(), view.refused.len());
        if told.is_none_or(|(before, most)| counted != before || refused > most) {
            tell(said(counted, &view.refused));
            told = Some((counted, told.map_or(0, |(_, most)| most).max(refused)));
        }
        let host = &mut host;
        let rings: BTreeMap<u32, Vec<ChannelView>> = match args.channels {
            true => { view.processes.iter() }
                .map(|p| (p.pid, host.channels(p.pid)))
                .collect(),
            false => BTreeMap::new(),
        };
        let channels = |pid: u32| rings.get(&pid).cloned().unwrap_or_default();
        match args.json {
            true => {
                let sampled = |pid| Some(names.json(pid, host.samples(pid)?));
                table::json(out.object(), &view, channels, sampled);
            }
            false => {
                let sampled = |out: &mut Vec<u8>, pid| {
                    if let Some(samples) = host.samples(pid) {
                        names.text(out, pid, samples);
                    }
                };
                table.text(out.object(), &view, channels, sampled);
            }
        }
        target::written(&mut out)?;
        if let Some(left) = &mut left {
            *left = left.saturating_sub(1);
            if *left == 0 {
                return Ok(ExitCode::SUCCESS);
            }
        }
        if host.is_over() {
            tell(format_args!("all processes that were counted have ended"));
            return Ok(ExitCode::SUCCESS);
        }
        rest(wait, || host.moment());
    }
}

/// The first message: how many processes are counted, and which may not be read.
fn said(counted: usize, refused: &BTreeMap<u32, Refused>) -> String {
    let mut text = format!(
        "counting {} that use a GPU",
        plural_of(counted as u64, "process", "processes")
    );
    let certain = refused.values().filter(|r| r.uses_gpu).count();
    if certain > 0 {
        let others = plural_of(certain as u64, "other", "others");
        let _ = write!(text, "; {others} may not be read");
    }
    if refused.len() > certain {
        let others = plural_of((refused.len() - certain) as u64, "process", "processes");
        let _ = write!(
            text,
            "; {others} may not be looked into, whether or not they use one"
        );
    }
    if !refused.is_empty() {
        let _ = write!(text, ": {}", crate::procfs::mem::remedy());
    }
    text
}
