//! `nvcap dump`: the reason why a GPU process hangs or is slow, found by one or two looks at it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use nvcap_decode::record::Record;
use nvcap_monitor::dump as source;
use nvcap_monitor::dump::Refused;
use nvcap_process::memory::{captured::KnownRing, chip, scan::Effort};
use nvcap_process::procfs::unfit;
use nvcap_process::signals;
use nvcap_show::output::dump::{self, Shown, Status};
use nvcap_show::output::message::tell;
use nvcap_show::output::recorder::Recorder;
use nvcap_show::output::redact::Redactor;
use nvcap_show::output::shell::quoted;
use nvcap_show::output::writer::Output;
use nvcap_show::pipeline::{Pipeline, PipelineOptions};

use super::file_or_live;
use super::output_args::OutputArgs;
use super::overwrite::Files;
use super::pids::Pids;
use super::process_filter;
use super::recorder::{self, RecordingOptions, Traced};
use super::target::{self, usage};
use super::values::{CAPTURE, SHOWN, parse_seconds, parse_time};

const EXAMPLES: &str = "\
Examples:
  sudo nvcap dump -p 4711              what every channel is at, waits for and has not done
  sudo nvcap dump -p 4711 --watch 2    look twice, 2 s apart: is it stuck, or slow?
  sudo nvcap dump -a                   every process that uses a GPU
  sudo nvcap dump -p 4711 --last 1000  as far back as the rings hold
  sudo nvcap dump -p 4711 --record hang.pcapng   what was read, for nvcap decode, export and others
  nvcap dump hang.pcapng               the same report again, of that file
  nvcap dump run.pcapng --at 2.5s      what each channel of a recorded trace was at
  sudo nvcap dump -p 4711 --json       one JSON object (docs/dump.schema.json)
  nvcap dump --merge rank*.json        which ranks are in the same state, and the odd one out

It reads the process's memory and changes and stops nothing: no breakpoint; only the right to read
memory (root, or the process's owner with cap_sys_ptrace) is needed. For the native stacks of its
threads it uses, where it may, a BPF program that reads registers, and samples of threads that run
(--no-stacks: neither). docs/hang.md walks three real hangs.

Exit status, for scripts; of several processes the worst counts, with --times the last look's:
   0  idle: the GPU has done all that was submitted
   1  error: a process could not be looked at, and no other hangs; or the answer could not be
      written
   2  usage: the command line is not understood, or its output would replace a file (--force)
   3  idle as far as could be read, and something could not (it is said what)
   4  no GPU: the process has none of the driver's files open, or (-a) no process has
  10  moving: every channel that has work moved between two looks
  11  busy: there is work that is not done, and slow cannot be told from stuck: --watch 2
  12  unknown: it uses a GPU, and no channel was found that could be read
  13  hang: nothing moved between two looks, and there is work that is not done
  14  error: the driver has stopped a channel after an error
With --stream they are a trace's: 0 all was read, 1 error, 2 usage, 3 something could not be
read, 5 all was read, but not all was understood; and 4.";

/// Arguments of `nvcap dump`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten, next_help_heading = "Target")]
    pub pid: Pids,

    /// Look at every process that has a GPU's device file mapped
    #[arg(short, long, conflicts_with = "pid", help_heading = "Target")]
    all: bool,

    /// Only processes of USER, a name, a number or a pattern; may be given several times
    #[arg(long, value_name = "USER", requires = "all", help_heading = super::values::WHOM)]
    user: Vec<String>,

    /// Filters of the processes.
    #[command(flatten)]
    filters: super::process_filter::Filters,
    /// Show the state at the end of a recording instead of a process. A look (--record) is shown as it was; of a trace, each channel's last
    /// entries and what is known of their progress
    #[arg(
        value_name = "FILE",
        help_heading = "Target",
        conflicts_with_all = [
            "pid", "all", "watch", "stream", "channels", "merge", "record", "thorough",
        ]
    )]
    pub file: Option<PathBuf>,

    /// With FILE: the state TIME after the first doorbell (2.5s, 3m), instead of that at the end
    #[arg(long, value_name = "TIME", value_parser = parse_time, requires = "file", help_heading = SHOWN)]
    pub at: Option<Duration>,

    /// Show the newest N entries of each channel, done or not
    ///
    /// Without it text shows the entries that are not done, the oldest 20 of a channel and the one before
    /// them, and JSON the newest 20 and those that the GPU has not fetched.
    #[arg(long, value_name = "N", help_heading = SHOWN)]
    pub last: Option<u32>,

    /// Look twice, SECONDS apart, and say what moved; interrupted before the second, it shows the first
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds, help_heading = CAPTURE)]
    watch: Option<Duration>,

    /// With --watch: make N comparisons; 0: until interrupted
    #[arg(long, value_name = "N", default_value_t = 1, requires = "watch", help_heading = CAPTURE)]
    times: u64,

    /// Show only the entries of channel N of this look; may be given several times
    #[arg(short, long = "channel", value_name = "N", help_heading = SHOWN)]
    channel: Vec<u32>,

    /// Show only the entries of the channel with the work-submit token TOKEN, such as 0x10012; may be given several times
    #[arg(long = "token", value_name = "TOKEN", value_parser = parse_number, help_heading = SHOWN)]
    token: Vec<u32>,

    /// Take rings, USERDs and tokens from FILE too (docs/channels-file.md)
    #[arg(long, value_name = "FILE", help_heading = CAPTURE)]
    channels: Option<PathBuf>,

    /// Compare looks that were saved as JSON, such as those of all ranks of a job: which processes are in the same state, and which one
    /// differs
    #[arg(
        long,
        value_name = "FILE",
        num_args = 1..,
        help_heading = "Target",
        conflicts_with_all = ["pid", "all", "watch", "stream", "channels"]
    )]
    merge: Vec<PathBuf>,

    /// Search all mapped GPU memory for channels, however long it takes
    #[arg(long, help_heading = CAPTURE)]
    thorough: bool,

    /// Show programs by address. This skips the search for kernel names, so the look is faster
    #[arg(long, help_heading = SHOWN)]
    pub no_names: bool,

    /// Do not read the threads' stacks
    #[arg(long, conflicts_with = "full_stacks", help_heading = SHOWN)]
    no_stacks: bool,

    /// Show all frames of the threads' stacks, not only the newest 12
    #[arg(long, help_heading = SHOWN)]
    full_stacks: bool,

    /// Show the entries as a trace does, with the ledger; no verdict on the process
    ///
    /// -e, -s, -q, --time, --phases and --explain-streams need it.
    #[arg(long, conflicts_with = "watch", help_heading = SHOWN)]
    stream: bool,

    /// Also record what is read into FILE (docs/recordings.md), for nvcap decode, stats, export and others
    ///
    /// FILE has the rings' entries and their pushbuffers, the channels, mappings, semaphores, names of kernels and memory images, and is
    /// readable by its owner alone. A name that ends in .zst compresses it. Threads with their stacks are in it, too: nvcap dump FILE shows the
    /// report again. With --watch it is the first look.
    #[arg(long, value_name = "FILE", conflicts_with = "merge", help_heading = super::values::OUTPUT)]
    record: Option<PathBuf>,

    /// Form and place of the output. Without --stream, -v shows every operation, and what was assumed and what proven of each channel;
    /// --json is one object a look.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Returns the command for clap: with a file, without the options of a live target, and the other way round.
pub(super) fn as_is(command: clap::Command) -> clap::Command {
    let live = ["user", "times", "no_stacks"];
    let live = live.into_iter().chain(process_filter::IDS);
    let command = file_or_live::refusing(command, "file", live.clone());
    let command = file_or_live::refusing(command, "merge", live.chain(["thorough", "at"]));
    file_or_live::refusing(command, "at", ["pid", "all"])
}

impl Args {
    /// Returns the reason why the look must not begin: its output would replace a file.
    pub(super) fn refusal(&self) -> Option<String> {
        let files = [self.file.as_deref(), self.channels.as_deref()].into_iter();
        let merged = self.merge.iter().map(PathBuf::as_path);
        let inputs: Vec<&Path> = files.flatten().chain(merged).collect();
        let (output, record) = (&self.output, self.record.as_deref());
        let files = Files::new(output.force)
            .reads(inputs)
            .reads(output.phases.as_deref())
            .writes("-o", output.output.as_deref())
            .records("--record", record);
        match (&output.output, record) {
            (None, Some(_)) => files.shows().refusal(),
            _ => files.refusal(),
        }
    }

    /// Returns the options of the report of a look, without colour.
    pub(super) fn shown(&self) -> dump::ReportOptions {
        dump::ReportOptions {
            last: self.last,
            verbose: self.output.verbose > 0,
            full_stacks: self.full_stacks,
            color: false,
            redact: self.output.redact.then(Redactor::default),
            channels: self.channel.clone(),
            tokens: self.token.clone(),
        }
    }
}

fn parse_number(text: &str) -> Result<u32, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.map_err(|e| e.to_string())
}

/// Looks at the processes, and shows the result.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if !args.merge.is_empty() {
        return merge(args);
    }
    if args.pid.is_empty() && !args.all && args.file.is_none() {
        tell(format_args!(
            "nothing to look at: name a process (nvcap dump -p PID), all that use a GPU (nvcap dump -a), or a recording (nvcap dump FILE)"
        ));
        return Ok(usage());
    }
    args.filters.check(args.all, None)?;
    let options = source::DumpOptions {
        last: args.last.unwrap_or(dump::LAST),
        effort: if args.thorough {
            Effort::Thorough
        } else {
            Effort::Usual
        },
        chip: args.output.chip,
        qmd_copies: nvcap_live::enrich::graph_qmds::of,
        kernels: if args.no_names {
            |_, _| Vec::new()
        } else {
            nvcap_live::enrich::names::of
        },
        known_rings: known_rings(args)?,
        stacks: !args.no_stacks,
    };
    if args.stream {
        return stream(args, &options);
    }
    if is_of_a_stream(args) {
        return Ok(usage());
    }
    let output = &args.output;
    if args.watch.is_some() {
        // SAFETY: reads an id.
        signals::catch(unsafe { libc::gettid() })?;
        signals::reads();
    }
    let mut began = Instant::now();
    let (seen, refused) = match look(args, &options)? {
        LookOutcome::Look(seen, refused) => (seen, refused),
        LookOutcome::Nothing(status) => return Ok(ExitCode::from(status.code())),
    };
    if let Some(path) = &args.record {
        let recorder = recorder(args, path)?;
        record(recorder, seen.records(options.qmd_copies))?;
    }
    let mut before = seen.report;
    // The output is opened only when there is something to write: a wrong process id is no reason to lose a file.
    let mut out = target::open(
        output.output.as_deref(),
        output.force,
        false,
        &Vec::from_iter(args.channels.as_deref()),
    )?;
    let show = dump::ReportOptions {
        color: output.color().enabled(out.is_terminal()),
        ..args.shown()
    };
    let Some(pause) = args.watch else {
        let shown = Shown {
            report: &before,
            moved: None,
        };
        write(&mut out, output.json, shown, &show)?;
        return Ok(ExitCode::from(dump::status(&shown).worst(refused).code()));
    };
    let mut left = args.times;
    let mut status = None;
    loop {
        signals::rest(pause.saturating_sub(began.elapsed()));
        if signals::is_one() {
            signals::traced();
            // The first look is shown if there is no second.
            let status = match status {
                Some(status) => status,
                None => {
                    let shown = Shown {
                        report: &before,
                        moved: None,
                    };
                    write(&mut out, output.json, shown, &show)?;
                    dump::status(&shown).worst(refused)
                }
            };
            return Ok(ExitCode::from(status.code()));
        }
        let start = Instant::now();
        let (now, refused) = match look(args, &options)? {
            LookOutcome::Look(seen, refused) => (seen.report, refused),
            LookOutcome::Nothing(status) => return Ok(ExitCode::from(status.code())),
        };
        let moved = source::compare(&before, &now, start.duration_since(began));
        let shown = Shown {
            report: &now,
            moved: Some(&moved),
        };
        write(&mut out, output.json, shown, &show)?;
        let last = dump::status(&shown).worst(refused);
        status = Some(last);
        (before, began) = (now, start);
        left = left.saturating_sub(1);
        if left == 0 && args.times != 0 {
            return Ok(ExitCode::from(last.code()));
        }
    }
}

/// Tells whether options were given that only a stream of events (`--stream`) can use. If so, the user is told.
pub(super) fn is_of_a_stream(args: &Args) -> bool {
    let output = &args.output;
    let of_a_stream = output.filter.is_some()
        || output.stats
        || output.quiet
        || output.phases.is_some()
        || output.explain_streams;
    if of_a_stream {
        tell(format_args!(
            "-e, -s, -q, --phases and --explain-streams show a stream of events: {}",
            match &args.file {
                Some(file) => format!("nvcap decode {} has them", quoted(file)),
                None => "add --stream".to_owned(),
            }
        ));
    }
    of_a_stream
}

fn known_rings(args: &Args) -> anyhow::Result<Vec<KnownRing>> {
    let Some(path) = &args.channels else {
        return Ok(Vec::new());
    };
    let given = nvcap_process::channels_file::ChannelsFile::read(path)?;
    Ok(given
        .channels
        .iter()
        .map(|c| KnownRing {
            gpu: c.gpu,
            ring: c.ring,
            entries: c.entries,
            userd: c.userd,
            token: c.token,
        })
        .collect())
}

/// Compares saved looks.
fn merge(args: &Args) -> anyhow::Result<ExitCode> {
    let mut looks = Vec::new();
    for path in &args.merge {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("{}: it cannot be read", path.display()))?;
        let look = dump::last_look(&text).with_context(|| path.display().to_string())?;
        looks.push((path.display().to_string(), look));
    }
    let merged = dump::merge(&looks);
    let inputs: Vec<&Path> = args.merge.iter().map(PathBuf::as_path).collect();
    let mut out = target::open(
        args.output.output.as_deref(),
        args.output.force,
        false,
        &inputs,
    )?;
    if args.output.json {
        dump::merged_json(out.object(), &merged);
    } else {
        let color = args.output.color().enabled(out.is_terminal());
        dump::merged_text(out.object(), &merged, color);
    }
    target::written(&mut out)?;
    Ok(ExitCode::from(merged.status().code()))
}

/// Makes the recorder of a look.
fn recorder(args: &Args, path: &Path) -> anyhow::Result<Recorder> {
    let others = [&args.channels, &args.output.phases, &args.output.output];
    let others = others.map(|p| p.as_deref());
    let options = RecordingOptions {
        tells: true,
        ..RecordingOptions::default()
    };
    let (files, _) = recorder::open(path, &options, args.output.force, &others)?;
    let made = recorder::of_trace(
        files,
        &Traced {
            how: "dump",
            observes: Arc::default(),
            gpu_time: false,
            stacks: false,
            redacted: args.output.redact,
            is_moment: true,
            command: &[],
        },
    );
    made.with_context(|| format!("cannot write to {}", path.display()))
}

/// Records a look unchanged; nothing of it is shown.
fn record(recorder: Recorder, records: impl Iterator<Item = Record>) -> anyhow::Result<()> {
    let options = PipelineOptions {
        driver_version: target::running_driver(),
        ..PipelineOptions::default()
    };
    let mut pipeline = Pipeline::new(options, vec![Box::new(recorder)]);
    for record in records {
        pipeline.record(record)?;
    }
    let ledger = pipeline.finish()?;
    if ledger.unshown() > 0 {
        bail!("the recording could not be written as a whole: is the disk full?");
    }
    Ok(())
}

/// Runs `nvcap dump --stream`: the records of the look go through the pipeline of a trace.
fn stream(args: &Args, options: &source::DumpOptions) -> anyhow::Result<ExitCode> {
    let pids = match pids(args)? {
        Some(pids) => pids,
        None => return Ok(ExitCode::from(Status::NoGpu.code())),
    };
    let (records, refused) = source::records(&pids, options);
    let status = told(args, &refused);
    if refused.len() == pids.len() {
        return Ok(ExitCode::from(nothing(status).code()));
    }
    let mut pipeline = args
        .output
        .pipeline(false, &Vec::from_iter(args.channels.as_deref()))?;
    if let Some(path) = &args.record {
        pipeline = pipeline.also(Box::new(recorder(args, path)?));
    }
    for gpu in chip::records() {
        pipeline.record(gpu)?;
    }
    if !args.no_names {
        for kernel in nvcap_live::enrich::names::of_records(&records) {
            pipeline.record(kernel)?;
        }
    }
    for record in records {
        pipeline.record(record)?;
    }
    let ledger = args.output.conclude(pipeline)?;
    Ok(ExitCode::from(match status {
        Status::Idle => ledger.exit_status(),
        refused => refused.code(),
    }))
}

/// Outcome of a look.
enum LookOutcome {
    /// At least one process could be read. The status reflects the messages about the others.
    Look(Box<source::Look>, Status),
    /// No process could be read. The user was told why, and the status says the same.
    Nothing(Status),
}

/// Returns the processes to look at; `None` if no process uses a GPU, which the user is told.
fn pids(args: &Args) -> anyhow::Result<Option<Vec<u32>>> {
    if !args.all {
        return Ok(Some(args.pid.to_vec()));
    }
    let choice = args.filters.choice(args.user.iter().cloned());
    let found = nvcap_process::host::gpu_processes();
    let found = found.chosen(&choice, &args.filters.host_root);
    let not_shown = nvcap_process::host::hidden_from_user(&choice, &args.filters.host_root);
    let pids: Vec<u32> = found.mapped().collect();
    if !pids.is_empty() {
        if let Some(why) = not_shown {
            tell(format_args!("{why}"));
        }
        return Ok(Some(pids));
    }
    if let Some(why) = not_shown {
        bail!(
            "no process that is meant and may be looked at has a GPU's device file mapped, and {why}"
        );
    }
    if !found.hidden.is_empty() {
        bail!(
            "no process that is meant and may be looked at has a GPU's device file mapped, and {} may not be: {}",
            found.hidden.len(),
            nvcap_process::procfs::mem::remedy()
        );
    }
    tell(format_args!(
        "no process {}: none has a GPU's device file mapped; start one, or trace it from its beginning \
         (nvcap -- COMMAND)",
        match choice.is_any() {
            true => "uses a GPU",
            false => "that the filters choose uses a GPU",
        }
    ));
    Ok(None)
}

fn look(args: &Args, options: &source::DumpOptions) -> anyhow::Result<LookOutcome> {
    let Some(pids) = pids(args)? else {
        return Ok(LookOutcome::Nothing(Status::NoGpu));
    };
    let look = source::look(&pids, options);
    let status = told(args, &look.refused);
    Ok(if look.report.processes.is_empty() {
        LookOutcome::Nothing(nothing(status))
    } else {
        LookOutcome::Look(Box::new(look), status)
    })
}

/// Returns the exit status if no process could be looked at. The user is told why, unless something was said already.
fn nothing(said: Status) -> Status {
    if said == Status::Idle {
        tell(format_args!(
            "no process uses a GPU any more: those that did have ended"
        ));
        return Status::NoGpu;
    }
    said
}

/// Reports the processes that could not be looked at, and returns the status for them.
fn told(args: &Args, refused: &[(u32, Refused)]) -> Status {
    let mut status = Status::Idle;
    for (pid, why) in refused {
        let (text, is) = match why {
            // With all processes, one that has ended meanwhile is no failure.
            _ if args.all && gone(*pid, why) => continue,
            Refused::NoGpu if args.all => continue,
            Refused::NoGpu => (no_gpu(*pid), Status::NoGpu),
            Refused::Error(_) => (cannot(*pid, why), Status::Error),
        };
        tell(format_args!("{text}"));
        status = status.worst(is);
    }
    status
}

fn gone(pid: u32, why: &Refused) -> bool {
    matches!(why, Refused::Error(e) if e.kind() == std::io::ErrorKind::NotFound)
        || !nvcap_process::procfs::exists(pid)
}

fn no_gpu(pid: u32) -> String {
    format!(
        "process {pid} uses no GPU: it has none of the driver's files open; look at its child (pgrep -P {pid}), or at all \
         that use one (nvcap dump -a)"
    )
}

fn cannot(pid: u32, why: &Refused) -> String {
    let unfit = match why {
        Refused::Error(e) => unfit::because_of(pid, e),
        Refused::NoGpu => unfit::unfit(pid).unwrap_or_else(|| unfit::refused(pid)),
    };
    format!("cannot look into process {pid}: {unfit}")
}

pub(super) fn write(
    out: &mut Output,
    json: bool,
    shown: Shown<'_>,
    options: &dump::ReportOptions,
) -> anyhow::Result<()> {
    if let Some(lacks) = options.lacks(shown.report) {
        tell(format_args!("{lacks}"));
    }
    if json {
        dump::json(out.object(), &shown, options);
    } else {
        dump::text(out.object(), &shown, options);
    }
    target::written(out)
}
