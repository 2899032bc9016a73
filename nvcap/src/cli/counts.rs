//! `nvcap counts`: exact numbers of submissions of processes, once a second.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use nvcap_decode::ledger::STATUS_NO_GPU;
use nvcap_monitor::counts::host::{Host, HostOptions};
use nvcap_monitor::counts::pace::rest;
use nvcap_monitor::counts::system::Machine;
use nvcap_monitor::counts::view::{ChannelView, NAMED, ProcessView, Refused};
use nvcap_process::host::choice::Whom;
use nvcap_process::host::uses;
use nvcap_show::output::ledger::no_gpu;
use nvcap_show::output::message::tell;
use nvcap_show::output::plural::plural_of;
use nvcap_show::output::style::Plain;

mod samples;
mod table;

use samples::Names;
use table::Table;

use super::overwrite;
use super::pids::Pids;
use super::process_filter::cannot_look;
use super::target::{self, usage};
use super::values::{Force, parse_core, parse_time};

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
  PENDING   submitted and not done;  OLDEST: how long the oldest of them has been there:
            >= so long at least, <= at most
  STATE     idle, working, or waiting: nothing of what is pending was done since the line before

Exit status: 0 all processes that were named have ended, or --times or --duration is over; 1 error;
2 usage; 4 the same as 0, and none of the named processes used a GPU.";

/// Processes to count, and form of the output.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    pub pid: Pids,

    /// Every process that uses a GPU, now or later
    #[arg(short, long, conflicts_with = "pid")]
    all: bool,

    /// How often the counts are read and shown
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_time)]
    interval: Duration,

    /// Use at most SHARE of one core, such as 1%. Processes are read less often if that is needed to stay within it
    #[arg(long, value_name = "SHARE", value_parser = parse_core)]
    budget: Option<f64>,

    /// Estimate what the submissions do, from samples: kernels by name with their share of GPU time, copies by direction, bytes; each with
    /// its 95 % interval. Sampling takes about SHARE of one core, such as 0.5%
    #[arg(long, value_name = "SHARE", value_parser = parse_core)]
    sample: Option<f64>,

    /// End after N readings
    #[arg(long, value_name = "N")]
    times: Option<u64>,

    /// End after TIME, with a last reading
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    duration: Option<Duration>,

    /// Show each channel
    #[arg(long)]
    channels: bool,

    /// Write JSON: at each reading one line (an object) for each process, and one for all
    #[arg(long)]
    json: bool,

    /// Write to FILE instead of standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Option by which FILE is replaced.
    #[command(flatten)]
    force: Force,

    /// Only processes of USER, a name, a number or a pattern; may be given several times
    #[arg(long, value_name = "USER", requires = "all", help_heading = super::values::WHOM)]
    user: Vec<String>,

    /// Filters of the processes.
    #[command(flatten)]
    filters: super::process_filter::Filters,
}

impl Args {
    /// Returns the reason why counting must not begin: its output would replace a file.
    pub(super) fn refusal(&self) -> Option<String> {
        overwrite::refusal(self.output.as_deref(), self.force.force, &[])
    }
}

/// Counts submissions until the end.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let users = args.user.iter().cloned();
    let Some(whom) = args.filters.whom("counts", &args.pid, args.all, users)? else {
        return Ok(usage());
    };
    let named = matches!(whom, Whom::Named(_));
    let mut out = target::open(args.output.as_deref(), args.force.force, false, &[])?;
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
    let mut told: Option<(usize, usize, usize)> = None;
    let mut without = Without::default();
    let mut names = Names::default();
    let end = args.duration.map(|duration| Instant::now() + duration);
    for n in 1.. {
        let is_last = args.times.is_some_and(|times| times <= n)
            || end.is_some_and(|end| end <= Instant::now());
        let wait = host.round();
        let view = host.view();
        if let Some((pid, refused)) = view.refused.iter().next().filter(|_| named) {
            return Err(cannot_look(*pid, refused));
        }
        // Processes that may not be read are reported when there are more of them than before; processes come and go.
        let (counted, refused) = (host.len(), view.refused.len());
        if named {
            without.look(&view.processes);
        }
        let idle = without.now.len();
        if told
            .is_none_or(|(before, none, most)| counted != before || idle != none || refused > most)
        {
            tell(said(counted, &without.now, &view.refused));
            let most = told.map_or(0, |(_, _, most)| most);
            told = Some((counted, idle, most.max(refused)));
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
        if is_last {
            break;
        }
        if host.is_over() {
            tell(format_args!("all processes that were counted have ended"));
            break;
        }
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        rest(left.map_or(wait, |left| left.min(wait)), || host.moment());
    }
    Ok(without.end())
}

/// Named processes that use no GPU. They may begin to at any time.
#[derive(Default)]
struct Without {
    /// Existing processes that have used no GPU so far, with their names.
    now: BTreeMap<u32, String>,
    /// Processes that have used a GPU.
    users: BTreeSet<u32>,
    /// Names of all processes that were seen.
    names: BTreeSet<String>,
}

impl Without {
    /// Finds the processes that use no GPU. A channel, or mapped memory of a GPU, counts as use, as in a trace.
    fn look(&mut self, processes: &[ProcessView]) {
        let uses = |p: &ProcessView| {
            !p.gpus.is_empty()
                || p.shares.is_some()
                || uses::of_process(p.pid).is_ok_and(|uses| uses.mapped)
        };
        self.now.clear();
        for p in processes {
            self.names.insert(p.name.clone());
            if self.users.contains(&p.pid) || uses(p) {
                self.users.insert(p.pid);
            } else {
                self.now.insert(p.pid, p.name.clone());
            }
        }
    }

    /// Returns the status at the end. If no process has used a GPU, this is reported.
    fn end(&self) -> ExitCode {
        if !self.users.is_empty() || self.names.is_empty() {
            return ExitCode::SUCCESS;
        }
        tell(no_gpu(&Vec::from_iter(
            self.names.iter().map(String::as_str),
        )));
        ExitCode::from(STATUS_NO_GPU)
    }
}

/// Makes the first message: the number of processes that are counted, and those that may not be read. `without` are the counted ones that
/// use no GPU.
fn said(
    counted: usize,
    without: &BTreeMap<u32, String>,
    refused: &BTreeMap<u32, Refused>,
) -> String {
    let using = counted.saturating_sub(without.len()) as u64;
    let mut text = format!(
        "counting {} a GPU",
        plural_of(using, "process that uses", "processes that use")
    );
    if !without.is_empty() {
        let mut named: Vec<String> = { without.iter().take(NAMED) }
            .map(|(pid, name)| format!("{} {pid}", Plain(name)))
            .collect();
        if let Some(more @ 1..) = without.len().checked_sub(NAMED) {
            named.push(format!("{more} more"));
        }
        let _ = write!(
            text,
            "; {} none so far ({}), and will be counted when that changes",
            plural_of(without.len() as u64, "process uses", "processes use"),
            named.join(", ")
        );
    }
    let certain = refused.values().filter(|r| r.uses_gpu).count();
    if certain > 0 {
        let others = plural_of(certain as u64, "other", "others");
        let _ = write!(text, "; {others} may not be read");
    }
    if refused.len() > certain {
        let count = (refused.len() - certain) as u64;
        let others = plural_of(count, "process", "processes");
        let use_one = if count == 1 { "it uses" } else { "they use" };
        let _ = write!(
            text,
            "; {others} may not be looked into, whether or not {use_one} one"
        );
    }
    if !refused.is_empty() {
        let _ = write!(text, ": {}", nvcap_process::procfs::mem::remedy());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_message_tells_which_processes_use_a_gpu() {
        let none = BTreeMap::new();
        let without = |pids: std::ops::Range<u32>| -> BTreeMap<u32, String> {
            pids.map(|pid| (pid, "sleep".to_owned())).collect()
        };
        let said = |counted, without: &BTreeMap<u32, String>| said(counted, without, &none);
        assert_eq!(
            said(1, &without(0..0)),
            "counting 1 process that uses a GPU"
        );
        assert_eq!(
            said(2, &without(0..0)),
            "counting 2 processes that use a GPU"
        );
        assert_eq!(
            said(1, &without(7..8)),
            "counting 0 processes that use a GPU; 1 process uses none so far (sleep 7), and will be counted when that changes"
        );
        let text = said(12, &without(1..12));
        assert!(
            text.starts_with(
                "counting 1 process that uses a GPU; 11 processes use none so far (sleep 1, "
            ),
            "{text}"
        );
        assert!(text.contains("sleep 8, 3 more)"), "{text}");
    }

    #[test]
    fn a_process_that_used_a_gpu_once_is_one_that_uses_it() {
        let me = std::process::id();
        let process = |gpus: &[u32]| ProcessView {
            pid: me,
            name: "me".into(),
            gpus: gpus
                .iter()
                .map(|g| (Some(*g), Default::default()))
                .collect(),
            ..ProcessView::default()
        };
        let mut without = Without::default();
        without.look(&[process(&[])]);
        assert_eq!((without.now.len(), without.users.len()), (1, 0));
        without.look(&[]);
        assert_eq!((without.now.len(), without.users.len()), (0, 0));
        for gpus in [&[0][..], &[]] {
            without.look(&[process(gpus)]);
            assert_eq!((without.now.len(), without.users.len()), (0, 1));
        }
    }
}
