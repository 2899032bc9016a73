//! `nvcap share FILE`: the holders of the GPUs in a recording, and the time for which the traced ones worked in their turns.

use std::cell::RefCell;
use std::io;
use std::path::Path;
use std::rc::Rc;

use anyhow::bail;
use nvcap_decode::decode::event::Event;
use nvcap_decode::driver::Model;
use nvcap_decode::ledger::Ledger;
use nvcap_decode::record::Record;
use nvcap_show::output::{Detail, Sink};
use nvcap_show::pipeline::{Pipeline, PipelineOptions};
use nvcap_show::shares::{Shares, Works};

use crate::cli::recording::RecordingArgs;

/// Shares of a recording, with the work of processes in their turns.
#[derive(Clone, Debug, Default)]
pub(super) struct Recorded {
    pub(super) shares: Shares,
    pub(super) works: Works,
}

struct Gather(Rc<RefCell<Recorded>>);

impl Sink for Gather {
    fn detail(&self) -> Option<Detail> {
        Some(Detail::Operations)
    }

    fn shows_memory(&self) -> bool {
        false
    }

    fn event(&mut self, event: &Event<'_>) -> io::Result<()> {
        self.0.borrow_mut().works.event(event);
        Ok(())
    }

    fn record(&mut self, record: &Record, _: &Model) -> io::Result<()> {
        let mut all = self.0.borrow_mut();
        all.shares.record(record);
        all.works.record(record);
        Ok(())
    }

    fn is_for_later(&self) -> bool {
        true
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn finish(&mut self, _: &Ledger, _: &Model) -> io::Result<()> {
        Ok(())
    }
}

/// Reads the context switches of a recording. `output` is the place where they will be shown.
///
/// # Errors
/// When it cannot be read, or has none.
pub(super) fn read(of: &RecordingArgs, output: Option<&Path>) -> anyhow::Result<Recorded> {
    let recording = of.open()?.quiet_until_the_end(output);
    let all = Rc::new(RefCell::new(Recorded::default()));
    let sink = Box::new(Gather(Rc::clone(&all)));
    let mut pipeline = Pipeline::new(PipelineOptions::default(), vec![sink]);
    recording.play(&mut pipeline)?;
    pipeline.finish()?;
    let all = all.take();
    if all.shares.is_empty() {
        bail!(
            "{} does not say who had the GPUs: that is recorded beside a trace by nvcap record --shares",
            of.name()
        );
    }
    Ok(all)
}
