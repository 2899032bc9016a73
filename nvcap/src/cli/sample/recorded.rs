//! `nvcap sample FILE`: samples of a recording.

use std::io;
use std::path::Path;

use anyhow::bail;
use nvcap_decode::decode::event::Event;
use nvcap_decode::driver::Model;
use nvcap_decode::ledger::Ledger;
use nvcap_decode::record::Record;
use nvcap_show::output::{Detail, Sink};
use nvcap_show::pipeline::{Pipeline, PipelineOptions};
use nvcap_show::samples::Gathered;

use crate::cli::recording::RecordingArgs;

/// Gathers samples, and nothing else.
#[derive(Default)]
struct Gather(Gathered);

impl Sink for &mut Gather {
    fn detail(&self) -> Option<Detail> {
        None
    }

    fn event(&mut self, _: &Event<'_>) -> io::Result<()> {
        Ok(())
    }

    fn record(&mut self, record: &Record, _: &Model) -> io::Result<()> {
        self.0.record(record);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn finish(&mut self, _: &Ledger, _: &Model) -> io::Result<()> {
        Ok(())
    }
}

/// Reads the samples of a recording; `output`: where they will be shown.
///
/// # Errors
/// When it cannot be read, or has none.
pub(super) fn read(
    of: &RecordingArgs,
    output: Option<&Path>,
) -> anyhow::Result<(Gathered, Ledger)> {
    let recording = of.open()?.quiet_until_the_end(output);
    let mut gather = Gather::default();
    let mut pipeline = Pipeline::new(PipelineOptions::default(), vec![Box::new(&mut gather)]);
    recording.play(&mut pipeline)?;
    let ledger = pipeline.finish()?;
    if gather.0.contexts().is_empty() {
        bail!(
            "{} has no samples of program counters: they are recorded by nvcap sample --record FILE, or beside a trace by nvcap record --sample-pc",
            of.name()
        );
    }
    Ok((gather.0, ledger))
}
