//! `nvcap sample FILE`: samples of a recording.

use std::io;
use std::process::ExitCode;

use anyhow::bail;
use nvcap_decode::decode::event::Event;
use nvcap_decode::driver::Model;
use nvcap_decode::ledger::{Ledger, STATUS_LOST};
use nvcap_decode::record::Record;
use nvcap_show::output::message::tell;
use nvcap_show::output::{Detail, Sink, ledger};
use nvcap_show::pipeline::{Pipeline, PipelineOptions};
use nvcap_show::samples::Gathered;

use super::table::Found;
use super::{Args, number, show};
use crate::cli::recording::RecordingArgs;
use crate::cli::target;

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

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let Some(file) = &args.file else {
        return Ok(target::usage());
    };
    let of = RecordingArgs {
        more: args.more.clone(),
        ..RecordingArgs::of(file)
    };
    let recording = of.open()?.quiet_until_the_end(args.output.as_deref());
    let mut gather = Gather::default();
    let mut pipeline = Pipeline::new(PipelineOptions::default(), vec![Box::new(&mut gather)]);
    recording.play(&mut pipeline)?;
    let ledger = pipeline.finish()?;
    let all = gather.0;
    if all.contexts().is_empty() {
        bail!(
            "{} has no samples of program counters: they are recorded by nvcap sample --record FILE, or beside a trace by nvcap record --sample-pc",
            of.name()
        );
    }
    let mut out = target::open(
        args.output.as_deref(),
        args.force.force,
        false,
        &of.inputs(),
    )?;
    let pids: Vec<u32> = all.contexts().iter().map(|sums| sums.key.pid).collect();
    let found = all.contexts().iter().enumerate().map(|(i, sums)| Found {
        name: all.name(sums.key.pid).map(str::to_owned),
        number: number(&pids, i),
        kernels: all.kernels(sums.key.pid).to_vec(),
        sums: sums.clone(),
        code: Vec::new(),
    });
    let status = show(args, &mut out, found)?;
    if all.left_out() > 0 {
        tell(format_args!(
            "{} samples of more contexts are not shown",
            all.left_out()
        ));
    }
    // Ring entries that are missing take no samples with them; a file that was cut may.
    if ledger.untraced().is_empty() {
        return Ok(status);
    }
    tell(ledger::verdict(&ledger));
    Ok(ExitCode::from(STATUS_LOST))
}
