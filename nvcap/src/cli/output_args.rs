//! Options that determine what is shown and where it goes, and the pipeline that they make.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::{ArgAction, Args, ValueEnum};

use nvcap_decode::decode::defaults::{CHIPS, Chip};
use nvcap_decode::driver::Version;
use nvcap_decode::ledger::Ledger;
use nvcap_recording::blocked_write;
use nvcap_recording::recording::TraceInfo;
use nvcap_show::output::filter::{Field, Filter};
use nvcap_show::output::ledger::verdict;
use nvcap_show::output::message::tell;
use nvcap_show::output::phases::Phases;
use nvcap_show::output::plural::plural;
use nvcap_show::output::redact::Redactor;
use nvcap_show::output::stats::{Form, Stats};
use nvcap_show::output::streams::Streams;
use nvcap_show::output::style::Color;
use nvcap_show::output::text::{Clock, Fast, Text};
use nvcap_show::output::writer::Output;
use nvcap_show::output::{Detail, Sink, json, text};
use nvcap_show::pipeline::{Finished, Matched, Pipeline, PipelineOptions};

mod lacking;

use super::fast_lines;
use super::overwrite;
use super::target;
use super::usage::bail_usage;
use super::values::{OUTPUT, SHOWN};

/// Options that determine what is shown and where it goes, the same for every command that shows events.
#[derive(Args, Debug, Clone, Default)]
#[command(next_help_heading = SHOWN)]
pub(super) struct OutputArgs {
    /// Show all operations with details: -vv method writes too, -vvv raw words too
    ///
    /// By default one short line is shown for each thing that the program asked for: kernel launches, copies, fills,
    /// memsets, graph replays, waits for another channel; and each loss. With --json and -s, all operations are there
    /// without -v: -v adds method writes, and -vv (of --json) ring entries with their raw words.
    #[arg(short, long, action = ArgAction::Count)]
    pub verbose: u8,

    /// Show only events that EXPR is true for
    ///
    /// Comparisons of a field and a value, joined by && and ||, negated by !, grouped by parentheses.
    /// Operators: = != < <= > >=, and ~ !~ for patterns with * and ?. Numbers are 0x, or decimal with K, KiB, M,
    /// MiB, G, GiB (of 1024) or kB, MB, GB (of 1000); `a,b` after = means either. `nvcap explain filter` lists the fields.
    ///
    /// Examples: op=launch, 'op=copy && bytes>1MiB', channel=3, token=0x10012, method=SEND_PCAS_A, 'grid.x>1 && kind=user'.
    /// What EXPR asks for is shown without -v too; if it only says whose or when (pid, tid, thread, comm, user, cgroup, container,
    /// pod, namespace, gpu, channel, token, engine, phase, time, time_ns, how, late, api, frame), -v decides as without it. The ledger counts everything whatever EXPR says.
    #[arg(short = 'e', long = "filter", value_name = "EXPR", value_parser = parse_filter)]
    pub filter: Option<Filter>,

    /// Show whole names of kernels, with template arguments and parameters
    #[arg(long, help_heading = SHOWN)]
    pub full_names: bool,

    /// Show each entry that was in the rings of a running process before, not their number
    #[arg(long, help_heading = SHOWN)]
    pub history: bool,

    /// On a terminal, show each line, however fast they come
    ///
    /// By default sums stand in their place where more come than can be read: some hundred lines a second. A file or a pipe gets each line.
    #[arg(short = 'l', long)]
    pub lines: bool,

    /// Show only the ledger
    #[arg(short, long)]
    pub quiet: bool,

    /// Show sums at the end instead of events
    #[arg(short, long, conflicts_with = "quiet")]
    pub stats: bool,

    /// Show which threads share a channel, and which submissions had to wait behind another's wait
    #[arg(long)]
    pub explain_streams: bool,

    /// Time kernels from their first instruction on
    ///
    /// By default, and in JSON's gpu_ns, a kernel's time begins with its launch, as CUPTI and nsys count (docs/gpu-time.md).
    #[arg(long)]
    pub exec_time: bool,

    /// Label events by the time ranges in FILE
    ///
    /// One `PHASE NAME BEGIN END` a line; times are nanoseconds of CLOCK_MONOTONIC.
    #[arg(long, value_name = "FILE")]
    pub phases: Option<PathBuf>,

    /// Decode as for the chip NAME, such as GH100; by default the chip is detected
    ///
    /// The chip decides the class of a subchannel whose SET_OBJECT was not seen.
    #[arg(long, value_name = "NAME", value_parser = parse_chip)]
    pub chip: Option<&'static Chip>,

    /// Show times in text output in seconds since CLOCK
    #[arg(long, value_name = "CLOCK", value_enum, default_value_t)]
    pub time: TimeArg,

    /// Write one JSON object a line instead of text (docs/output.md)
    #[arg(long, help_heading = OUTPUT)]
    pub json: bool,

    /// Write to FILE, readable by its owner alone; - is standard output
    ///
    /// By default events and ledger go to standard output; if a COMMAND is started, they go to standard error, and its
    /// standard output stays its own.
    #[arg(short, long, value_name = "FILE", help_heading = OUTPUT)]
    pub output: Option<PathBuf>,

    /// Write over FILE where there is something in it; without this option nvcap leaves it as it is, and ends
    ///
    /// A recording (nvcap record, --record) is not refused: without this option it gets a name with a number (run.2.pcapng).
    #[arg(long, help_heading = OUTPUT)]
    pub force: bool,

    /// When text is coloured
    #[arg(
        long,
        value_name = "WHEN",
        value_enum,
        default_value_t,
        help_heading = OUTPUT
    )]
    pub color: When,

    /// Replace users' data by its length and a short hash
    ///
    /// Users' data are inline bytes, kernel arguments, fill patterns and raw words.
    #[arg(long, help_heading = OUTPUT)]
    pub redact: bool,

    /// True if events will have stacks, so that a filter may ask for them.
    #[arg(skip)]
    pub has_stacks: bool,
    /// True if the GPU's times are read.
    #[arg(skip)]
    pub has_gpu_time: bool,
    /// True if a recording is shown. The command line alone does not tell what it contains.
    #[arg(skip)]
    pub is_recorded: bool,
}

/// Values of `--color`.
#[derive(ValueEnum, Clone, Copy, Debug, Default)]
pub(super) enum When {
    /// On a terminal, unless NO_COLOR is set or TERM is dumb
    #[default]
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// Values of `--time`.
#[derive(ValueEnum, Clone, Copy, Debug, Default)]
pub(super) enum TimeArg {
    /// The beginning of the trace
    #[default]
    Relative,
    /// The zero of the traced machine's CLOCK_MONOTONIC
    Monotonic,
    /// The previous line
    Delta,
}

/// Parses `--filter`.
pub(super) fn parse_filter(text: &str) -> Result<Filter, String> {
    Filter::parse(text).map_err(|e| e.to_string())
}

fn parse_chip(name: &str) -> Result<&'static Chip, String> {
    Chip::named(name).ok_or_else(|| {
        let all: Vec<&str> = CHIPS.iter().flat_map(|c| c.names).copied().collect();
        format!(
            "'{name}' is no chip known here: give one of {}",
            all.join(", ")
        )
    })
}

impl OutputArgs {
    /// Returns these options for a recording with `trace` in its header (`None` for a capture): whether it has stacks and times of the GPU
    /// to show, and whether users' data was redacted earlier.
    pub(super) fn of_recording(&self, trace: Option<&TraceInfo>) -> Self {
        let trace = trace.map(|t| (t.stacks, t.gpu_time, t.redacted));
        let (has_stacks, has_gpu_time, redacted) = trace.unwrap_or_default();
        Self {
            has_stacks,
            has_gpu_time,
            is_recorded: true,
            redact: self.redact || redacted,
            ..self.clone()
        }
    }

    /// Returns the detail of events that sums need: method writes with -v, and what the filter asks for.
    pub(super) fn detail_of_sums(&self) -> Detail {
        let shown = Detail::from_count(self.verbose);
        let filter = self.filter.as_ref();
        filter.map_or(shown, |f| shown.max(f.detail()))
    }

    fn detail(&self) -> Detail {
        // In text, the first -v adds operations, which JSON and statistics have without it.
        let text = !self.json && !self.stats;
        let shown = Detail::from_count(self.verbose.saturating_sub(u8::from(text)));
        // A filter that asks for methods shows the methods that it matches, with or without -v.
        self.filter
            .as_ref()
            .map_or(shown, |f| shown.max(f.detail()))
    }

    /// Tells whether output waits longer for the names of kernels, as JSON and sums do. Text does not wait: a later line gives a name that
    /// is found late. Recordings do not wait either, because they must contain what was seen even if nvcap is killed.
    pub(super) fn waits_for_names(&self) -> bool {
        self.json || self.stats
    }

    pub(super) fn color(&self) -> Color {
        match self.color {
            When::Auto => Color::Auto,
            When::Always => Color::Always,
            When::Never => Color::Never,
        }
    }

    /// Returns the reason why a command that would write its output must not begin. `inputs` are files that it reads.
    pub(super) fn refusal(&self, inputs: &[&Path]) -> Option<String> {
        let inputs: Vec<&Path> = inputs
            .iter()
            .copied()
            .chain(self.phases.as_deref())
            .collect();
        overwrite::refusal(self.output.as_deref(), self.force, &inputs)
    }

    fn sink(&self, out: Output, fast: Fast) -> Box<dyn Sink> {
        let redact = self.redact.then(Redactor::default);
        let screen = out.is_terminal();
        match (self.stats, self.json) {
            (true, json) => {
                let form = if json {
                    Form::Json
                } else {
                    Form::Text {
                        color: self.color().enabled(out.is_terminal()),
                    }
                };
                Box::new(Stats::new(out, form, self.detail(), self.filter.is_some()))
            }
            (false, true) => Box::new(json::Json::new(
                out,
                json::JsonOptions {
                    detail: self.detail(),
                    quiet: self.quiet,
                    needed_only: self.filter.is_some(),
                    redact,
                },
            )),
            (false, false) => Box::new(Text::new(
                out,
                text::TextOptions {
                    detail: self.detail(),
                    verbose: self.verbose > 0,
                    filtered: self.filter.as_ref().is_some_and(Filter::asks_for_kind),
                    needed_only: self.filter.is_some(),
                    width: None,
                    quiet: self.quiet,
                    color: self.color(),
                    clock: match self.time {
                        TimeArg::Relative => Clock::Relative,
                        TimeArg::Monotonic => Clock::Monotonic,
                        TimeArg::Delta => Clock::Delta,
                    },
                    full_names: self.full_names,
                    screen,
                    fast,
                    history: self.history,
                    redact,
                },
            )),
        }
    }

    /// Makes the sink for the section of `--explain-streams`. The section follows the ledger, which the earlier sinks have written by then.
    fn streams(&self, out: Output) -> Box<dyn Sink> {
        Box::new(if self.json {
            Streams::json(out)
        } else {
            Streams::text(out)
        })
    }

    /// Makes the pipeline for which these options ask, for records of this machine. `command` means that a command is traced, to which
    /// standard output belongs. `inputs` are files that are read besides the phases; the output must not be one of them.
    ///
    /// # Errors
    /// When a file cannot be read, understood or made.
    pub(super) fn pipeline(
        &self,
        command: bool,
        inputs: &[&Path],
    ) -> anyhow::Result<Pipeline<'static>> {
        let driver = target::running_driver();
        let fast = fast_lines::form(self.lines || self.has_stacks, command);
        self.pipeline_of(false, driver, command, fast, inputs)
    }

    /// Makes a pipeline as [`OutputArgs::pipeline`] does, for any driver. `strict` ends at the first item that is incomplete.
    ///
    /// # Errors
    /// As for [`OutputArgs::pipeline`].
    pub(super) fn pipeline_of(
        &self,
        strict: bool,
        driver_version: Option<Version>,
        command: bool,
        fast: Fast,
        inputs: &[&Path],
    ) -> anyhow::Result<Pipeline<'static>> {
        let inputs: Vec<&Path> = inputs
            .iter()
            .copied()
            .chain(self.phases.as_deref())
            .collect();
        let options = self.pipeline_options(strict, driver_version)?;
        let out = target::open(self.output.as_deref(), self.force, command, &inputs)?;
        let behind = self.explain_streams.then(|| out.again()).transpose()?;
        let mut sinks = vec![self.sink(out, fast)];
        sinks.extend(behind.map(|out| self.streams(out)));
        Ok(Pipeline::new(options, sinks))
    }

    /// Returns the options of the pipeline, which are the same for all sinks.
    ///
    /// # Errors
    /// When the phases cannot be read or understood.
    pub(super) fn pipeline_options(
        &self,
        strict: bool,
        driver_version: Option<Version>,
    ) -> anyhow::Result<PipelineOptions> {
        if let Some(lacking) = self.lacking() {
            match self.is_recorded {
                true => bail!(lacking),
                false => bail_usage!("{lacking}"),
            }
        }
        Ok(PipelineOptions {
            filter: self.filter.clone(),
            phases: self.phases()?,
            chip: self.chip,
            driver_version,
            strict,
            exec_time: self.exec_time,
        })
    }

    /// Reads the file of `--phases`. A phase that the filter names must be in this file.
    fn phases(&self) -> anyhow::Result<Option<Phases>> {
        let filter = self.filter.as_ref();
        let Some(path) = &self.phases else {
            if filter.is_some_and(|f| f.asks_for(Field::Phase)) {
                bail_usage!(
                    "the filter asks for phase, and there are none: name their file with --phases FILE"
                );
            }
            return Ok(None);
        };
        let text = nvcap_recording::file::text(path)
            .with_context(|| format!("cannot read the phases in {}", path.display()))?;
        let phases = Phases::parse(&text)
            .with_context(|| format!("cannot understand the phases in {}", path.display()))?;
        if let Some(unknown) = filter.and_then(|f| f.unknown_phase(&phases)) {
            bail!(
                "no phase in {} is called {unknown}, which the filter asks for; it has {}",
                path.display(),
                some(phases.names())
            );
        }
        Ok(Some(phases))
    }

    /// Ends a command: every sink shows the ledger, and its exit status becomes the command's.
    ///
    /// # Errors
    /// When the output could not be written.
    pub(super) fn conclude(&self, pipeline: Pipeline<'_>) -> anyhow::Result<Ledger> {
        let finished = self.finish(pipeline)?;
        // The user has not seen a ledger that went into a file, or that could not be written.
        let file = self.output.as_deref().is_some_and(|o| o != Path::new("-"));
        if file || blocked_write::is_over() || !finished.is_shown {
            tell(verdict(&finished.ledger));
        }
        Ok(finished.ledger)
    }

    /// Ends the pipeline, and reports if the filter let nothing through, which is known only after the last event.
    pub(super) fn finish(&self, pipeline: Pipeline<'_>) -> std::io::Result<Finished> {
        let finished = pipeline.finish_counted()?;
        if let Some(nothing) = self.nothing_matched(finished.matched, finished.unmatched.as_deref())
        {
            tell(nothing);
        }
        Ok(finished)
    }

    /// Concludes as [`OutputArgs::conclude`] does, for output without a ledger: it reports the verdict, whatever the output is.
    ///
    /// # Errors
    /// As for [`OutputArgs::conclude`].
    pub(super) fn conclude_telling(&self, pipeline: Pipeline<'_>) -> anyhow::Result<Ledger> {
        let ledger = self.finish(pipeline)?.ledger;
        tell(verdict(&ledger));
        Ok(ledger)
    }

    /// Concludes as [`OutputArgs::conclude_telling`] does, for one file, and also says `what_to_do` with it.
    ///
    /// # Errors
    /// As for [`OutputArgs::conclude`].
    pub(super) fn conclude_file(
        &self,
        pipeline: Pipeline<'_>,
        what_to_do: &str,
    ) -> anyhow::Result<Ledger> {
        let ledger = self.conclude_telling(pipeline)?;
        if let Some(path) = self.output.as_deref().filter(|o| *o != Path::new("-"))
            && path.is_file()
            && ledger.unshown() == 0
        {
            tell(format_args!("{}: {what_to_do}", path.display()));
        }
        Ok(ledger)
    }

    /// Returns the message that there were events and the filter let none of them through.
    fn nothing_matched(&self, matched: Matched, unmatched: Option<&str>) -> Option<String> {
        let filter = self.filter.as_ref()?;
        if matched.shown > 0 || matched.of == 0 {
            return None;
        }
        let of_channel = if filter.asks_for(Field::Channel) {
            "; channel is the number that the ledger has in its first column, token the work-submit token"
        } else {
            ""
        };
        let unmatched = unmatched.map_or_else(String::new, |u| format!(": {u}"));
        Some(format!(
            "0 of {} matched the filter{unmatched}{of_channel}; nvcap explain filter lists the fields and their values",
            plural(matched.of, "event")
        ))
    }
}

/// Returns the first of these names, each once, and the number of further ones.
fn some<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut all: Vec<&str> = Vec::new();
    for name in names {
        if !all.contains(&name) {
            all.push(name);
        }
    }
    match all.len() {
        0 => "none".to_owned(),
        n if n <= 8 => all.join(", "),
        n => format!("{} and {} more", all[..6].join(", "), n - 6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvcap_decode::decode::encode::Pushbuffer;
    use nvcap_decode::record::{At, ChannelId, How, Record, Submission};
    use nvcap_decode::wire::GpuVa;

    /// Returns the message about `expression` after a live trace of one submission, which the pipeline holds back until the end.
    fn said_of(expression: &str) -> Option<String> {
        let args = OutputArgs {
            filter: Some(Filter::parse(expression).unwrap()),
            quiet: true,
            output: Some("/dev/null".into()),
            ..OutputArgs::default()
        };
        let mut words = Pushbuffer::new();
        words.bind(4, 0xc8b5);
        let submission = Submission {
            absent_ns: None,
            segments: vec![words.segment(GpuVa(0x2_0080_0000))],
            gp_put: 1,
            at: At {
                time_ns: 1,
                pid: 7,
                tid: 7,
            },
            channel: ChannelId(0),
            token: None,
            position: 0,
            gp_get: None,
            prev_put: 0,
            ip: None,
            doorbell: None,
            how: How::Recorded,
            late: false,
            thread: None,
        };
        let options = PipelineOptions {
            filter: args.filter.clone(),
            ..PipelineOptions::default()
        };
        let nowhere = Output::to(Box::new(std::io::sink()));
        let sink = json::Json::new(nowhere, json::JsonOptions::default());
        let mut pipeline = Pipeline::new(options, vec![Box::new(sink)]).in_time_order();
        pipeline.record(Record::Submission(submission)).unwrap();
        let finished = pipeline.finish_counted().unwrap();
        args.nothing_matched(finished.matched, finished.unmatched.as_deref())
    }

    #[test]
    fn what_waits_until_the_end_is_matched_too() {
        assert_eq!(said_of("op=bind"), None);
        let said = said_of("op=launch").unwrap();
        assert!(said.contains(" matched the filter"), "{said}");
    }
}
