//! `nvcap export partitions`: tables of recordings in the folder of a fleet, by day, hour and host.

use std::cell::Cell;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;

use anyhow::Context as _;

use crate::cli::recording::{INTERRUPTED, Played, RecordingArgs};
use crate::cli::target;
use crate::cli::usage::Usage;
use crate::cli::values::OUTPUT;
use nvcap_decode::decode::event::Event;
use nvcap_decode::driver::Model;
use nvcap_decode::ledger::{Ledger, STATUS_ERROR, STATUS_USAGE};
use nvcap_decode::record::Record;
use nvcap_show::export::tables::all::Table;
use nvcap_show::export::tables::layout::{Format, Layout};
use nvcap_show::export::tables::partitions::{PARTITIONED, Partition};
use nvcap_show::export::tables::schema::Trace;
use nvcap_show::export::tables::{Tables, TablesOptions};
use nvcap_show::output::message::tell;
use nvcap_show::output::plural::plural_of;
use nvcap_show::output::redact::Redactor;
use nvcap_show::output::{Detail, Sink};
use nvcap_show::pipeline::{Pipeline, PipelineOptions};

const EXAMPLES: &str = "\
Examples:
  nvcap export partitions -o fleet run.*.pcapng
  nvcap export partitions -o fleet --host gpu-7 gpu-7/run.00012.pcapng
  sudo nvcap record -a --rotate 10m --keep 3 -o run.pcapng --tables fleet
  duckdb -c \"SELECT host, count(*) FROM 'fleet/kernels/**/*.parquet' GROUP BY 1\"

A recording becomes a file in each table: fleet/kernels/date=2026-11-23/hour=12/host=gpu-7/....parquet.
The hour (UTC) is that of the recording's first submission. Files are readable by their owner alone, and
come to their places whole; the same recording exported again with --force replaces its own.
docs/scale.md has a recipe for many hosts, and queries.

Exit status: 0 if all were exported, 1 if one was not, 2 usage, or tables are there already.";

/// Arguments of `nvcap export partitions`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(in crate::cli) struct Args {
    /// Recordings, plain or compressed; - is standard input
    #[arg(value_name = "FILE", required = true, help_heading = "Target")]
    pub files: Vec<PathBuf>,

    /// The folder into which the tables of all hosts go
    #[arg(short, long, value_name = "FOLDER", help_heading = OUTPUT)]
    pub output: PathBuf,

    /// Write the tables of a recording again that FOLDER has already; without this option nvcap leaves them as they are, and ends
    #[arg(long, help_heading = OUTPUT)]
    pub force: bool,

    /// The host that was traced; by default this one
    #[arg(long, value_name = "NAME", help_heading = OUTPUT)]
    pub host: Option<String>,

    /// Hide users' data
    #[arg(long, help_heading = OUTPUT)]
    pub redact: bool,

    /// Show only errors
    #[arg(short, long, help_heading = OUTPUT)]
    pub quiet: bool,
}

impl Args {
    /// Returns the host that was traced.
    fn traced_host(&self) -> String {
        let own = || std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        self.host.clone().unwrap_or_else(own)
    }

    /// Returns the reason why the export must not begin: the folder already has the tables of a recording.
    pub(super) fn refusal(&self) -> Option<String> {
        if self.force {
            return None;
        }
        let host = self.traced_host();
        // A file that is not regular can be read only once.
        let mut files = self.files.iter().filter(|file| file.is_file());
        files.find_map(|file| {
            let of = RecordingArgs::of(file);
            let info = of.open().ok()?.trace().cloned()?;
            let partition = Partition::of(&self.output, &host, info.realtime_ns, info.file);
            Some(there_already(file, &partition.published()?))
        })
    }
}

/// Returns the words that refuse a recording whose tables already exist; `ledger` is one of them.
fn there_already(file: &Path, ledger: &Path) -> String {
    format!(
        "the tables of {} are there already ({}), and would be lost: leave it out, name another folder with -o, or add --force to write \
         them again",
        file.display(),
        ledger.display()
    )
}

/// Exports each recording, and continues after one that cannot be exported.
pub(in crate::cli) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let host = args.traced_host();
    let (mut failed, mut refused) = (0, 0);
    for (at, file) in args.files.iter().enumerate() {
        match export(args, file, &host) {
            Ok(Some(place)) if !args.quiet => {
                tell(format_args!("{}: {}", file.display(), place.display()));
            }
            Ok(Some(_)) => {}
            Ok(None) => {
                let left = args.files.len() - at;
                tell(format_args!(
                    "{}: {INTERRUPTED}, and no table was written of it; {} not exported",
                    file.display(),
                    plural_of(left as u64, "recording is", "recordings are")
                ));
                failed += 1;
                break;
            }
            Err(error) => {
                tell(format_args!("{}: {error:#}", file.display()));
                match error.is::<Usage>() {
                    true => refused += 1,
                    false => failed += 1,
                }
            }
        }
    }
    Ok(ExitCode::from(match (failed, refused) {
        (0, 0) => 0,
        (0, _) => STATUS_USAGE,
        _ => STATUS_ERROR,
    }))
}

/// Exports one recording, and returns the place of its ledger; `None`, and nothing is written, if the user ended the reading.
fn export(args: &Args, file: &Path, host: &str) -> anyhow::Result<Option<PathBuf>> {
    let of = RecordingArgs::of(file);
    let mut recording = of.open()?;
    if !args.quiet {
        recording = recording.quiet_until_the_end(Some(&args.output));
    }
    let info = recording.trace().cloned();
    let info = info.filter(|i| i.realtime_ns > 0).context(
        "nothing in it tells when it was made: it is no recording of a live trace; nvcap export parquet makes tables of it",
    )?;
    let partition = Partition::of(&args.output, host, info.realtime_ns, info.file);
    // The file may not have been regular, or may have been exported meanwhile.
    if !args.force
        && let Some(ledger) = partition.published()
    {
        return Err(Usage(there_already(file, &ledger)).into());
    }
    let say = || format!("cannot write tables into {}", args.output.display());
    let redact = args.redact || info.redacted;
    let options = TablesOptions {
        redact: redact.then(Redactor::default),
        trace: Trace {
            monotonic_ns: Some(info.monotonic_ns),
            realtime_ns: Some(info.realtime_ns),
            driver: info.driver.clone(),
            redacted: redact,
            filtered: false,
        },
    };
    let times = Times::default();
    let tables = tables(&partition, options).with_context(say)?;
    let sinks: Vec<Box<dyn Sink>> = vec![Box::new(tables), Box::new(times.clone())];
    let written = (|| {
        let mut pipeline = Pipeline::new(PipelineOptions::default(), sinks);
        let played = recording.known_as_part().play(&mut pipeline)?;
        let ledger = pipeline.finish().with_context(say)?;
        // Incomplete tables would replace complete ones.
        if played == Played::Interrupted {
            return Ok(None);
        }
        anyhow::ensure!(
            ledger.unshown() == 0,
            "{}: {} rows found no room",
            say(),
            ledger.unshown()
        );
        let first = times.first().unwrap_or(info.monotonic_ns);
        let time = (info.realtime_ns).saturating_add_signed(since(first, info.monotonic_ns));
        match partition.publish(time, args.force) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                return Err(Usage(e.to_string()).into());
            }
            published => published.with_context(say)?,
        }
        Ok(Some(partition.place("ledger", time)))
    })();
    if !matches!(written, Ok(Some(_))) {
        partition.discard();
    }
    written
}

const fn since(time: u64, begin: u64) -> i64 {
    time.wrapping_sub(begin).cast_signed()
}

fn tables(partition: &Partition, options: TablesOptions) -> io::Result<Tables> {
    let layout = Layout {
        folder: partition.folder()?,
        ..Layout::default()
    };
    let chosen: Vec<usize> = { PARTITIONED.iter() }
        .filter_map(|name| Table::index(name))
        .collect();
    let opener = |path: &Path| {
        target::open(Some(path), false, false, &[]).map_err(|e| io::Error::other(format!("{e:#}")))
    };
    Tables::several(Format::Parquet, &chosen, &layout, Box::new(opener), options)
}

/// Time by which a file is sorted into the folders: that of its earliest submission; without one, the latest time of any other record. The
/// earliest record would be wrong, because a rotated file begins with older records that it needs.
#[derive(Clone, Debug, Default)]
struct Times {
    submission: Rc<Cell<Option<u64>>>,
    other: Rc<Cell<Option<u64>>>,
}

impl Times {
    fn first(&self) -> Option<u64> {
        self.submission.get().or(self.other.get())
    }

    fn note(&self, record: &Record) {
        let Some(time) = record.at().time() else {
            return;
        };
        match record {
            Record::Submission(_) => {
                let least = self.submission.get().map_or(time, |t| t.min(time));
                self.submission.set(Some(least));
            }
            _ => self.other.set(self.other.get().max(Some(time))),
        }
    }
}

impl Sink for Times {
    fn detail(&self) -> Option<Detail> {
        None
    }

    fn event(&mut self, _event: &Event<'_>) -> io::Result<()> {
        Ok(())
    }

    fn record(&mut self, record: &Record, _model: &Model) -> io::Result<()> {
        self.note(record);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn finish(&mut self, _ledger: &Ledger, _model: &Model) -> io::Result<()> {
        Ok(())
    }
}
