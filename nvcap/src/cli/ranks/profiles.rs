//! Ranks from the traces that torch.profiler wrote of them.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};

use nvcap_decode::ledger::{STATUS_COMPLETE, STATUS_LOST};
use nvcap_recording::file::kind::{self, Kind};
use nvcap_recording::file::packed;
use nvcap_show::output::json;
use nvcap_show::output::message::tell;
use nvcap_show::output::style::Plain;
use nvcap_show::profile::About;
use nvcap_show::ranks::{Gathered, OfProfile};

use crate::cli::output_args::OutputArgs;
use crate::cli::profile::{self, Input};
use crate::cli::recording::RecordingArgs;
use crate::cli::target;

/// Way in which the ranks are shown.
pub(super) struct Shown<'a> {
    pub(super) output: &'a OutputArgs,
    pub(super) arrivals: bool,
    /// The most by which the base times of files of one host may differ, ns.
    pub(super) same_host_ns: u64,
}

/// Tells whether the files are traces of torch.profiler.
///
/// # Errors
/// When some are, and others are not.
pub(super) fn are_meant(files: &[PathBuf]) -> anyhow::Result<bool> {
    let is_one = |file: &PathBuf| {
        // A pipe's bytes could not be read a second time.
        let opened = file.is_file().then(|| packed::open(file).ok()).flatten();
        opened.is_some_and(|reader| kind::of(reader).0 == Kind::Kineto)
    };
    let (profiles, others): (Vec<_>, Vec<_>) = files.iter().partition(|file| is_one(file));
    match (profiles.first(), others.first()) {
        (Some(profile), Some(other)) => bail!(
            "{} is a trace of torch.profiler, and {} is none: ranks are compared by files of one kind",
            profile.display(),
            other.display()
        ),
        (profile, _) => Ok(profile.is_some()),
    }
}

/// Reads one file for each rank, and shows which rank holds up which.
pub(super) fn show(
    files: &[PathBuf],
    gathered: &Gathered,
    shown: &Shown<'_>,
) -> anyhow::Result<ExitCode> {
    let output = shown.output.output.as_deref();
    let inputs: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
    let mut out = target::open(output, shown.output.force, false, &inputs)?;
    let mut all = Vec::new();
    for file in files {
        let args = RecordingArgs::of(file);
        let Input::Profile(profile) = profile::open(&args)? else {
            bail!("{} is another file now", file.display());
        };
        let mut works = OfProfile::new(gathered);
        let about = profile.read_into(&mut works, output)?;
        works.finish(&args.name(), &about);
        all.push((args.name(), about));
    }
    of_one_clock(&all, shown.same_host_ns)?;
    let analysis = gathered.analysis().listing_arrivals(shown.arrivals);
    let to = out.object();
    if shown.output.json {
        json::write(to, &analysis.json());
        to.push(b'\n');
    } else {
        analysis.text(to);
        let mut lines = vec![String::new()];
        lines.extend(
            all.iter()
                .map(|(name, about)| format!("{name}: {}", about.says())),
        );
        if all.len() > 1 {
            lines.push("the times of these files are compared as they stand: ranks on several hosts are off by what their clocks differ".to_owned());
        }
        for line in lines {
            to.extend_from_slice(format!("{}\n", Plain(&line)).as_bytes());
        }
    }
    target::written(&mut out)?;
    if output.is_some_and(|output| output != Path::new("-")) {
        tell(analysis.verdict());
    }
    let is_whole = gathered.left_out() == 0 && all.iter().all(|(_, about)| about.status() == 0);
    Ok(ExitCode::from(if is_whole {
        STATUS_COMPLETE
    } else {
        STATUS_LOST
    }))
}

/// Refuses files whose times are not known to count from the same moment.
fn of_one_clock(all: &[(String, About)], same_host_ns: u64) -> anyhow::Result<()> {
    if all.len() < 2 {
        return Ok(());
    }
    let base = |(name, about): &(String, About)| {
        about.base_ns.with_context(|| {
            format!("{name} does not say from when on its times count (baseTimeNanoseconds): they cannot be compared with those of another file")
        })
    };
    let first = base(&all[0])?;
    for one in all {
        if base(one)?.abs_diff(first) > same_host_ns {
            bail!(
                "the times of {} and {} count from two moments (baseTimeNanoseconds), as those of two hosts do, and are not compared yet",
                all[0].0,
                one.0
            );
        }
    }
    Ok(())
}
