//! Recordings that are read for some kinds of records alone.

use std::io;
use std::path::Path;

use nvcap_decode::decode::event::Event;
use nvcap_decode::driver::Model;
use nvcap_decode::ledger::Ledger;
use nvcap_decode::record::Record;
use nvcap_show::output::{Detail, Sink};
use nvcap_show::pipeline::{Pipeline, PipelineOptions};

use super::recording::RecordingArgs;

/// Gives each record to a function, and shows nothing.
struct Gather<F>(F);

impl<F: FnMut(&Record)> Sink for Gather<F> {
    fn detail(&self) -> Option<Detail> {
        None
    }

    fn event(&mut self, _: &Event<'_>) -> io::Result<()> {
        Ok(())
    }

    fn record(&mut self, record: &Record, _: &Model) -> io::Result<()> {
        (self.0)(record);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn finish(&mut self, _: &Ledger, _: &Model) -> io::Result<()> {
        Ok(())
    }
}

/// Reads a recording, and gives its records in order; `output`: where something will be shown of it.
///
/// # Errors
/// When it cannot be read.
pub(super) fn records(
    of: &RecordingArgs,
    output: Option<&Path>,
    each: impl FnMut(&Record),
) -> anyhow::Result<Ledger> {
    let recording = of.open()?.quiet_until_the_end(output);
    let mut pipeline = Pipeline::new(PipelineOptions::default(), vec![Box::new(Gather(each))]);
    recording.play(&mut pipeline)?;
    Ok(pipeline.finish()?)
}
