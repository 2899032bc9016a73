//! Description of a recording's trace, which is gathered for the [`Recorder`].

use std::ffi::OsStr;
use std::hash::{BuildHasher as _, Hasher as _};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context as _;
use std::time::{SystemTime, UNIX_EPOCH};

use super::version;
use nvcap_recording::recording::{HostGpu, TraceInfo};
use nvcap_show::output::file::Place;
use nvcap_show::output::message::tell;
use nvcap_show::output::recorder::KernelLines;
use nvcap_show::output::recorder::{Files, Recorder, Rotation};
use nvcap_show::output::shell::quoted;
use nvcap_show::output::units;
use nvcap_show::output::writer::Output;

use super::overwrite::is_standard_output;
use super::usage::bail_usage;
use super::values;

/// Options for keeping a recording.
#[derive(clap::Args, Debug, Clone, Default)]
#[command(next_help_heading = "Recording")]
pub(super) struct RecordingOptions {
    /// Begin a new file after SIZE (100M) or TIME (10m); their names have numbers: nvcap.00001.pcapng
    ///
    /// Each file can be read alone. The signal SIGUSR2 seals the files that exist: they are renamed and never removed. This also works
    /// while nothing is submitted, as in a hang. Example: nvcap watch --hang 60s --exec 'pkill -USR2 -x nvcap'.
    #[arg(long, value_name = "SIZE|TIME", value_parser = parse_rotation)]
    pub rotate: Option<Limit>,

    /// With --rotate: keep the newest N files of this recording, and remove older ones; files that it did not write stay
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), requires = "rotate")]
    pub keep: Option<u32>,

    /// With --rotate: write tables of each finished file into FOLDER, by day, hour and host, as nvcap export partitions does
    #[cfg(feature = "parquet")]
    #[arg(long = "tables", value_name = "FOLDER", requires = "rotate")]
    pub tables_into: Option<std::path::PathBuf>,

    /// Compress the recording by zstd; a name that ends in .zst does that, too
    #[cfg(feature = "zstd")]
    #[arg(long)]
    pub zstd: bool,

    /// True if nothing is shown: `nvcap record`.
    #[arg(skip)]
    pub alone: bool,

    /// True if the place of the recording is reported at its end.
    #[arg(skip)]
    pub tells: bool,
}

/// Values of `--rotate`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Limit {
    /// Size of a file, bytes.
    Bytes(u64),
    /// Age of a file.
    Time(std::time::Duration),
}

/// The least size of a file after which another begins, bytes.
const LEAST_FILE: u64 = 1 << 20;

fn parse_rotation(text: &str) -> Result<Limit, String> {
    let is_time = text.ends_with(['s', 'm', 'h']);
    if is_time {
        return values::parse_time(text).map(Limit::Time);
    }
    let bytes = units::number(text).filter(|n| *n >= LEAST_FILE);
    bytes.map(Limit::Bytes).ok_or_else(|| {
        format!("'{text}' is no size and no time: give a size from 1M on, such as 100M or 2G, or a time such as 30s, 10m or 1h")
    })
}

impl RecordingOptions {
    fn compresses(&self, path: &Path) -> bool {
        #[cfg(feature = "zstd")]
        if self.zstd {
            return true;
        }
        cfg!(feature = "zstd") && path.extension() == Some(OsStr::new("zst"))
    }

    fn rotation(&self) -> Option<Rotation> {
        let limit = self.rotate?;
        let keep = self.keep.and_then(|n| usize::try_from(n).ok());
        Some(match limit {
            Limit::Bytes(bytes) => Rotation {
                bytes: Some(bytes),
                time: None,
                keep,
            },
            Limit::Time(time) => Rotation {
                bytes: None,
                time: Some(time),
                keep,
            },
        })
    }
}

/// Returns a number that another trace has only by a chance of 1 in 2^32.
fn random() -> u32 {
    let hasher = std::hash::RandomState::new().build_hasher();
    hasher.finish() as u32
}

/// Returns the description that holds for all traces on this machine.
fn this_machine() -> TraceInfo {
    let realtime = SystemTime::now().duration_since(UNIX_EPOCH);
    TraceInfo {
        program: format!("nvcap {}", version::short()),
        driver: super::target::running_driver().map(|d| d.to_string()),
        kernel: first_line("/proc/sys/kernel/osrelease"),
        processor: processor(),
        monotonic_ns: monotonic_ns(),
        realtime_ns: realtime.map_or(0, |t| u64::try_from(t.as_nanos()).unwrap_or(u64::MAX)),
        gpus: gpus(),
        ..TraceInfo::default()
    }
}

/// Returns the GPUs of this machine. A software GPU does not count.
fn gpus() -> Vec<HostGpu> {
    let known = |text: String| Some(text).filter(|text| !text.is_empty());
    { nvcap_process::memory::chip::names().into_iter() }
        .map(|gpu| HostGpu {
            minor: gpu.minor,
            model: known(gpu.model),
            uuid: known(gpu.uuid),
            bus: known(gpu.bus),
        })
        .collect()
}

fn monotonic_ns() -> u64 {
    nvcap_process::clock::now()
}

fn first_line(path: &str) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines().next().unwrap_or("").to_owned()
}

fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == "model name").then(|| value.trim().to_owned())
    });
    name.unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

/// Opens the file for the recording, which must not be a file that is read or written otherwise. `force` means that an existing recording
/// is overwritten.
pub(super) fn open(
    path: &Path,
    options: &RecordingOptions,
    force: bool,
    others: &[Option<&Path>],
) -> anyhow::Result<(Files, Option<Place>)> {
    let compressed = options.compresses(path);
    if let Some(rotation) = options.rotation() {
        if is_standard_output(path) {
            bail_usage!(
                "--rotate makes several files: name the first with -o, such as -o run.pcapng"
            );
        }
        let files = Files::numbered(path, rotation, compressed)
            .with_context(|| format!("cannot write recordings like {}", path.display()))?;
        return Ok((with_tables(files, options)?, None));
    }
    let others: Vec<&Path> = others.iter().copied().flatten().collect();
    let out = super::target::open_recording(path, force, &others)?;
    anyhow::ensure!(
        !out.is_terminal(),
        "a recording is no text for a terminal: name a file, or pipe it into a program"
    );
    let place = out.place();
    let files = Files::one(out, compressed);
    // Reported when the file has its end and before the verdict, because the verdict is the last message.
    let files = match options.tells {
        true => files.telling(Box::new(tell_of)),
        false => files,
    };
    Ok((files, place))
}

/// Makes tables of each complete file, if that was asked for.
#[cfg(feature = "parquet")]
fn with_tables(files: Files, options: &RecordingOptions) -> anyhow::Result<Files> {
    let Some(folder) = &options.tables_into else {
        return Ok(files);
    };
    let exporter = super::rotated_tables::Exporter::new(folder).with_context(|| {
        format!(
            "cannot write tables into {}; name another folder with --tables",
            folder.display()
        )
    })?;
    Ok(files.telling(Box::new(move |path| exporter.whole(path))))
}

#[cfg(not(feature = "parquet"))]
fn with_tables(files: Files, _: &RecordingOptions) -> anyhow::Result<Files> {
    Ok(files)
}

/// Fails if the file of a recording was removed, renamed or replaced while it was written.
pub(super) fn check(place: &Place) -> anyhow::Result<()> {
    anyhow::ensure!(
        place.is_there(),
        "the recording is lost: {} was removed, renamed or replaced while it was written; record again",
        place.path.display()
    );
    Ok(())
}

/// Reports the place of the finished recording, and the command that shows it.
fn tell_of(path: &Path) {
    if let Ok(file) = path.metadata() {
        tell(format_args!(
            "recorded into {} ({}); nvcap decode {} shows it",
            path.display(),
            units::Bytes(file.len() as f64),
            quoted(path)
        ));
    }
}

/// Description of a live trace.
pub(super) struct Traced<'a> {
    /// Way in which submissions are captured.
    pub how: &'static str,
    /// True if the trace turns out to observe; set before the first record.
    pub observes: Arc<AtomicBool>,
    /// True if the GPU's timestamps are read.
    pub gpu_time: bool,
    /// True if stacks are taken.
    pub stacks: bool,
    /// True if users' data is left out.
    pub redacted: bool,
    /// True if the trace is a look at one moment: its records are in order, and earlier lines of the kernel's log belong to it.
    pub is_moment: bool,
    /// Command with its arguments.
    pub command: &'a [std::ffi::OsString],
}

/// Makes the recorder of a live trace.
///
/// # Errors
/// When the output can take nothing.
pub(super) fn of_trace(files: Files, traced: &Traced<'_>) -> io::Result<Recorder> {
    let text = |word: &std::ffi::OsString| word.to_string_lossy().into_owned();
    let redacted = traced.redacted;
    let rotates = files.rotates();
    // Arguments may be secrets.
    let words = if redacted { 1 } else { usize::MAX };
    let info = TraceInfo {
        how: traced.how.to_owned(),
        gpu_time: traced.gpu_time,
        stacks: traced.stacks,
        redacted,
        in_order: redacted || traced.is_moment,
        command: traced.command.iter().take(words).map(text).collect(),
        ..this_machine()
    };
    let since = match traced.is_moment {
        true => 0,
        false => info.monotonic_ns,
    };
    // A live trace cannot be repeated.
    let recorder = Recorder::new(files.on_disk()?, info, random())?;
    let recorder = recorder.observing(traced.observes.clone());
    let recorder = match redacted {
        true => recorder.redacting(),
        false => recorder,
    };
    let recorder = match kernel_lines(since) {
        Some(lines) => recorder.with_log(lines),
        None => recorder,
    };
    // Only live traces rotate their files.
    let recorder = match rotates {
        true => recorder.sealing(nvcap_process::signals::sealing()),
        false => recorder,
    };
    Ok(recorder)
}

/// Returns the lines of the kernel's log from this time on that are of NVIDIA's driver, if the log may be read.
fn kernel_lines(since: u64) -> Option<KernelLines> {
    let mut log = nvcap_process::procfs::kernel_log::KernelLog::open().ok()?;
    Some(Box::new(move || {
        let messages = log.messages().unwrap_or_default();
        let is_of_driver = |text: &str| text.contains("NVRM") || text.contains("nvidia");
        { messages.into_iter() }
            .filter(|m| m.time_ns >= since && is_of_driver(&m.text))
            .map(|m| (m.time_ns, m.text))
            .collect()
    }))
}

/// Makes the recorder for records that come from a file of the format `format`. `of` is that file's description of its trace.
///
/// # Errors
/// When the output can take nothing.
pub(super) fn of_file(
    out: Output,
    (format, of): (&str, Option<&TraceInfo>),
    redacted: bool,
    path: &Path,
) -> io::Result<Recorder> {
    let info = match of {
        Some(info) => TraceInfo {
            in_order: info.in_order || redacted,
            redacted: info.redacted || redacted,
            command: {
                info.command
                    .iter()
                    .take(if redacted { 1 } else { usize::MAX })
            }
            .cloned()
            .collect(),
            ..info.clone()
        },
        // Nothing is known about the machine on which the capture was made; its times are shown unchanged.
        None => TraceInfo {
            program: format!("nvcap {}", version::short()),
            how: format.to_owned(),
            in_order: true,
            redacted,
            ..TraceInfo::default()
        },
    };
    let compressed = RecordingOptions::default().compresses(path);
    // Data that was hidden before stays hidden.
    let recorder = Recorder::new(Files::one(out, compressed), info, random())?;
    Ok(match redacted {
        true => recorder.redacting(),
        false => recorder,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rotations_are_sizes_or_times() {
        let minutes = |m: u64| Ok(Limit::Time(std::time::Duration::from_secs(60 * m)));
        assert_eq!(parse_rotation("100M"), Ok(Limit::Bytes(100 << 20)));
        assert_eq!(parse_rotation("2GiB"), Ok(Limit::Bytes(2 << 30)));
        assert_eq!(parse_rotation("10m"), minutes(10));
        assert_eq!(parse_rotation("1h"), minutes(60));
        for wrong in ["", "0", "1000", "12kB", "x", "-1s"] {
            assert!(parse_rotation(wrong).is_err(), "{wrong}");
        }
    }
}
