//! What a recording says of its trace, gathered for the [`Recorder`].

use std::hash::{BuildHasher as _, Hasher as _};
use std::io;
#[cfg(feature = "trap")]
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use super::version;
use crate::capture::TraceInfo;
use crate::output::recorder::Recorder;
use crate::output::writer::Output;

/// A number that no other trace has, but by a chance of 1 in 2^32.
fn random() -> u32 {
    let hasher = std::hash::RandomState::new().build_hasher();
    hasher.finish() as u32
}

/// What holds for all traces on this machine.
fn this_machine() -> TraceInfo {
    let realtime = SystemTime::now().duration_since(UNIX_EPOCH);
    TraceInfo {
        program: format!("nvcap {}", version::short()),
        driver: super::target::running_driver().map(|d| d.to_string()),
        kernel: first_line("/proc/sys/kernel/osrelease"),
        processor: processor(),
        monotonic_ns: monotonic_ns(),
        realtime_ns: realtime.map_or(0, |t| u64::try_from(t.as_nanos()).unwrap_or(u64::MAX)),
        ..TraceInfo::default()
    }
}

#[cfg(target_os = "linux")]
fn monotonic_ns() -> u64 {
    crate::source::clock::now()
}

#[cfg(not(target_os = "linux"))]
fn monotonic_ns() -> u64 {
    0
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

/// Opens the file that is recorded into, which must be none of those that are read or written otherwise.
#[cfg(feature = "trap")]
pub(super) fn open(path: &Path, args: &super::trace::Args) -> anyhow::Result<Output> {
    let others = [&args.channels, &args.output.phases, &args.output.output];
    let others: Vec<_> = others.into_iter().filter_map(|o| o.as_deref()).collect();
    let out = super::target::open(Some(path), false, &others)?;
    anyhow::ensure!(
        !out.is_terminal(),
        "a recording is no text for a terminal: name a file, or pipe it into a program"
    );
    Ok(out)
}

/// The recorder of a live trace.
///
/// # Errors
/// When the output can take nothing.
#[cfg(feature = "trap")]
pub(super) fn of_trace(out: Output, args: &super::trace::Args, how: &str) -> io::Result<Recorder> {
    let text = |word: &std::ffi::OsString| word.to_string_lossy().into_owned();
    let info = TraceInfo {
        how: how.to_owned(),
        gpu_time: args.gpu_time,
        stacks: args.stacks.is_some(),
        command: args.command.iter().map(text).collect(),
        ..this_machine()
    };
    Recorder::new(out, info, random())
}

/// The recorder of what is in a file; `of` is what that says of its trace.
///
/// # Errors
/// When the output can take nothing.
pub(super) fn of_file(out: Output, of: Option<&TraceInfo>) -> io::Result<Recorder> {
    let info = match of {
        Some(info) => info.clone(),
        // Of the machine on which the capture was made nothing is known; its times are shown as they are.
        None => TraceInfo {
            program: format!("nvcap {}", version::short()),
            how: "orc".to_owned(),
            in_order: true,
            ..TraceInfo::default()
        },
    };
    Recorder::new(out, info, random())
}
