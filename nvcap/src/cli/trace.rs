//! `nvcap -- COMMAND` and `nvcap -p PID`: the live trace.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::ValueEnum;

use super::OutputArgs;

/// What to trace, and how.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = "Tracing")]
pub struct Args {
    /// Trace the running process PID; may be given several times
    #[arg(short, long = "pid", value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pub pid: Vec<u32>,

    /// How submissions are seen
    ///
    /// trap: a hardware breakpoint on the doorbell and BPF programs; every submission at the moment of its commit,
    /// with its thread; each costs the traced program a trap. observe: no trap, no BPF, no root for one's own
    /// processes; the rings are polled through /proc/PID/mem, the program runs as fast as untraced, times are those
    /// of the look and the thread is unknown. auto takes the trap where it may be used, else observes and says why.
    /// docs/observe.md has more.
    #[arg(long, value_name = "HOW", value_enum, default_value_t)]
    pub how: HowArg,

    /// CPU that observing may use, in percent of one core, such as 5%; without it what following takes
    ///
    /// All of nvcap counts, decoding and output too. Where the budget does not suffice to follow a channel, what
    /// its ring overwrote meanwhile is counted as lost and the ledger says why.
    #[arg(long, value_name = "PERCENT", value_parser = parse_share)]
    pub observe_cpu: Option<f64>,

    /// How mappings of the driver are found
    ///
    /// kprobe on nvidia.ko's mmap handler; fentry of the same, which needs the module's BTF; tracepoint: raw
    /// tracepoints on mmap and munmap, which work everywhere and cost every mapping of the process a little. auto
    /// takes the first that this machine allows, in that order. `nvcap doctor` says which those are.
    #[arg(long, value_name = "WAY", value_enum, default_value_t)]
    pub discover: Discover,

    /// Leave out the children and execs of what is traced; they are followed otherwise
    #[arg(long)]
    pub no_follow: bool,

    /// Watch the doorbell word at ADDR (hex) of the traced process instead of finding it; may be given several times
    #[arg(long, value_name = "ADDR", value_parser = parse_address)]
    pub doorbell: Vec<u64>,

    /// Take the channels from FILE instead of finding them (docs/channels-file.md has the format)
    #[arg(long, value_name = "FILE")]
    pub channels: Option<PathBuf>,

    /// End after SECONDS (fractions allowed); the traced processes run on
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub duration: Option<std::time::Duration>,

    /// End after N submissions; the traced processes run on
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub max_submissions: Option<u64>,

    /// Size of the ring buffer between kernel and nvcap, in bytes, with K, M or G; a power of two
    ///
    /// When nvcap falls behind by more than this, submissions are dropped and counted; the traced program never
    /// waits.
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = parse_size)]
    pub buffer: u64,

    /// End with the status of COMMAND where the trace is complete
    #[arg(long, requires = "command")]
    pub exit_with_child: bool,

    /// What is shown and where it goes.
    #[command(flatten)]
    pub output: OutputArgs,

    /// The command to run and trace, with its arguments
    #[arg(
        last = true,
        value_name = "COMMAND",
        conflicts_with = "pid",
        help_heading = "Tracing"
    )]
    pub command: Vec<OsString>,
}

/// `--how`.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HowArg {
    /// The trap where it may be used, else observe
    Auto,
    /// A breakpoint on the doorbell: what is refused is an error
    #[default]
    Trap,
    /// Polling, without a trap
    Observe,
}

/// `--discover`.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Discover {
    /// The first that works of kprobe, fentry, tracepoint
    #[default]
    Auto,
    /// kprobe on nvidia_mmap
    Kprobe,
    /// fentry and fexit through the module's BTF
    Fentry,
    /// Raw tracepoints on mmap and munmap
    Tracepoint,
}

#[cfg(feature = "trap")]
impl Discover {
    /// The way; none for all in turn.
    pub fn way(self) -> Option<nvcap::source::trap::discover::Way> {
        use nvcap::source::trap::discover::Way;

        match self {
            Discover::Auto => None,
            Discover::Kprobe => Some(Way::Kprobe),
            Discover::Fentry => Some(Way::Fentry),
            Discover::Tracepoint => Some(Way::Tracepoint),
        }
    }
}

fn parse_address(text: &str) -> Result<u64, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    u64::from_str_radix(digits, 16).map_err(|_| format!("'{text}' is no hexadecimal address"))
}

fn parse_share(text: &str) -> Result<f64, String> {
    let digits = text.strip_suffix('%').unwrap_or(text);
    digits
        .parse::<f64>()
        .ok()
        .filter(|p| (0.01..=10_000.0).contains(p))
        .map(|p| p / 100.0)
        .ok_or_else(|| {
            format!("'{text}' is no share of a core: give percent from 0.01 on, such as 5%")
        })
}

pub fn parse_seconds(text: &str) -> Result<std::time::Duration, String> {
    text.parse::<f64>()
        .ok()
        .filter(|s| *s > 0.0)
        .and_then(|s| std::time::Duration::try_from_secs_f64(s).ok())
        .ok_or_else(|| format!("'{text}' is no time: give seconds above 0, such as 10 or 0.5"))
}

pub fn parse_size(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.char_indices().last() {
        Some((at, 'K' | 'k')) => (&text[..at], 10),
        Some((at, 'M' | 'm')) => (&text[..at], 20),
        Some((at, 'G' | 'g')) => (&text[..at], 30),
        _ => (text, 0),
    };
    digits
        .parse::<u64>()
        .ok()
        .and_then(|n| n.checked_mul(1 << shift))
        .filter(|n| n.is_power_of_two() && *n >= 64 << 10 && *n <= 2 << 30)
        .ok_or_else(|| {
            format!("'{text}' is no buffer size: give a power of two from 64K to 2G, such as 64M")
        })
}

/// Runs the trace.
#[cfg(not(feature = "trap"))]
pub fn run(_args: Args) -> anyhow::Result<ExitCode> {
    anyhow::bail!("live tracing is not built into this program; `nvcap decode` reads captures")
}

/// Runs the trace.
#[cfg(feature = "trap")]
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    use std::cell::RefCell;

    use nvcap::source::{how, observe, run, trap::session};

    if args.command.is_empty() && args.pid.is_empty() {
        eprintln!(
            "nvcap: nothing to trace: give a command after -- (nvcap -- ./vadd) or a process (nvcap -p PID); \
             nvcap --help has more"
        );
        return Ok(ExitCode::from(nvcap::ledger::STATUS_USAGE));
    }
    let given = given(&args)?;
    let options = how::Options {
        how: match args.how {
            HowArg::Auto => how::How::Auto,
            HowArg::Trap => how::How::Trap,
            HowArg::Observe => how::How::Observe,
        },
        trap: session::Options {
            discover: args.discover.way(),
            follow: !args.no_follow,
            watch: true,
            given: given.clone(),
            buffer: u32::try_from(args.buffer).unwrap_or(1 << 31),
            no_bpf_loop: std::env::var_os("NVCAP_NO_BPF_LOOP").is_some(),
            notice: |line| eprintln!("nvcap: {line}"),
            gp_get: args.output.explain_streams,
            no_own_put: std::env::var_os("NVCAP_NO_OWN_PUT").is_some(),
        },
        observe: observe::session::Options {
            follow: !args.no_follow,
            given,
            cpu: args.observe_cpu,
        },
    };
    let limits = run::Limits {
        duration: args.duration,
        max_submissions: args.max_submissions,
    };
    let target = if args.command.is_empty() {
        run::Target::Pids(args.pid.clone())
    } else {
        run::Target::Command(args.command.clone())
    };
    // As strace does: on standard error, so that output stays what was asked for.
    let (pids, quiet) = (args.pid.clone(), args.output.quiet);
    let attached = move || {
        for pid in pids.iter().filter(|_| !quiet) {
            eprintln!("nvcap: process {pid} attached");
        }
    };
    let pipeline = RefCell::new(args.output.pipeline()?);
    let (chosen, why) = how::choose(&options, &target)?;
    if let Some(why) = why {
        observing(&why);
    }
    let outcome = run::run(
        move || how::make(chosen, options, observing),
        target,
        limits,
        |record| pipeline.borrow_mut().record(record),
        || pipeline.borrow_mut().flush(),
        attached,
    )?;
    let mut pipeline = pipeline.into_inner();
    match &outcome.end {
        how::End::Trap(end) => {
            tell_hits(end);
            if let Some(record) = lost_trap(&outcome.child, end) {
                pipeline.record(record)?;
            }
        }
        how::End::Observe(observed) => pipeline.observed(observed.clone()),
    }
    let ledger = args.output.conclude(pipeline)?;
    Ok(end(&args, outcome.child, ledger.exit_status()))
}

/// Says why `--how auto` does not trap.
#[cfg(feature = "trap")]
fn observing(why: &str) {
    eprintln!(
        "nvcap: observing without a trap, because: {why} (docs/observe.md says what that gives; --how trap insists)"
    );
}

#[cfg(feature = "trap")]
fn given(args: &Args) -> anyhow::Result<nvcap::source::trap::given::Given> {
    use nvcap::source::trap::given::{Given, GivenDoorbell};

    let mut given = match &args.channels {
        Some(path) => Given::read(path)?,
        None => Given::default(),
    };
    for address in &args.doorbell {
        if !given.doorbells.iter().any(|d| d.address == *address) {
            given.doorbells.push(GivenDoorbell {
                address: *address,
                gpu: 0,
            });
        }
    }
    Ok(given)
}

/// Says which hits of breakpoints ran no program.
#[cfg(feature = "trap")]
fn tell_hits(end: &nvcap::source::trap::live::End) {
    log::info!("{:?}", end.totals);
    let ran = end.totals.stats.hits + end.totals.stats.foreign;
    if end.totals.kernel_hits > ran {
        eprintln!(
            "nvcap: {} of {} breakpoint hits ran no BPF program (another one was running); what they rang for was \
             fetched from the rings later",
            end.totals.kernel_hits - ran,
            end.totals.kernel_hits
        );
    }
}

/// A command that a SIGTRAP has ended while its doorbells were watched: some hypervisors lose a hit, and the program
/// gets the trap instead (see `nvcap doctor`).
#[cfg(feature = "trap")]
fn lost_trap(
    child: &Option<std::process::ExitStatus>,
    end: &nvcap::source::trap::live::End,
) -> Option<nvcap::record::Record> {
    use std::os::unix::process::ExitStatusExt;

    use nvcap::record::{At, Loss, Lost, Record};

    let trapped = child.is_some_and(|c| c.signal() == Some(libc::SIGTRAP));
    (trapped && end.totals.kernel_hits > 0).then(|| {
        Record::Loss(Loss {
            at: At::default(),
            channel: None,
            what: Lost::Blind {
                why: "the command was ended by SIGTRAP: this machine may have lost a hit of nvcap's breakpoint (nvcap doctor), \
                      and with it the command's last submission; --how observe sets no breakpoint"
                    .to_owned(),
            },
        })
    })
}

/// The exit status, after the command's own has been told.
#[cfg(feature = "trap")]
fn end(args: &Args, child: Option<std::process::ExitStatus>, status: u8) -> ExitCode {
    use std::os::unix::process::ExitStatusExt;

    let Some(child) = child else {
        return ExitCode::from(status);
    };
    if !child.success() {
        eprintln!("nvcap: the command ended with {child}");
    }
    if args.exit_with_child && status == 0 {
        // As a shell tells it: 128 and the signal's number.
        let code = child
            .code()
            .or(child.signal().map(|s| 128 + s))
            .unwrap_or(1);
        return ExitCode::from(u8::try_from(code).unwrap_or(1));
    }
    ExitCode::from(status)
}
