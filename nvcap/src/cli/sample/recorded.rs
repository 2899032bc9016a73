//! `nvcap sample FILE`: the samples of a recording.

use std::path::Path;

use anyhow::bail;
use nvcap_decode::ledger::Ledger;
use nvcap_show::output::Sink;
use nvcap_show::pipeline::{Pipeline, PipelineOptions};
use nvcap_show::samples::{Gathered, Places};

use crate::cli::recording::RecordingArgs;

/// Reads the samples of a recording and, if asked for, the callers of its kernels. `output` is the place where they will be shown.
///
/// # Errors
/// When it cannot be read, or has no samples.
pub(super) fn read(
    of: &RecordingArgs,
    output: Option<&Path>,
    callers: bool,
) -> anyhow::Result<(Gathered, Places, Ledger)> {
    let (mut gathered, mut places) = (Gathered::default(), Places::default());
    let mut recording = of.open()?.quiet_until_the_end(output);
    let has_stacks = recording.trace().is_some_and(|info| info.stacks);
    let mut sinks: Vec<Box<dyn Sink + '_>> = vec![Box::new(&mut gathered)];
    if callers && has_stacks {
        sinks.push(Box::new(&mut places));
    }
    let mut pipeline = Pipeline::new(PipelineOptions::default(), sinks);
    recording.play(&mut pipeline)?;
    let ledger = pipeline.finish()?;
    if gathered.contexts().is_empty() {
        bail!(
            "{} has no samples of program counters: they are recorded by nvcap sample --record FILE, or beside a trace by nvcap record --sample-pc",
            of.name()
        );
    }
    Ok((gathered, places, ledger))
}
