//! Driver model of a whole target, for the commands that show it at the end.

use std::process::ExitCode;

use nvcap_decode::driver::Version;
use nvcap_decode::ledger::Ledger;
use nvcap_process::memory::probe;
use nvcap_show::output::message::tell;
use nvcap_show::output::model_view::ModelView;
use nvcap_show::pipeline::{Pipeline, PipelineOptions};

use super::target::{Show, Target, tell_of_newer};

/// Arguments of `nvcap channels` and `nvcap maps`.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Target to look at.
    #[command(flatten)]
    pub target: Target,

    /// Form and place of the output.
    #[command(flatten)]
    pub show: Show,
}

/// The driver model of a target.
pub(super) struct TargetView {
    /// The model.
    pub model: ModelView,
    /// Number of slots of which one look cannot tell whether they are channels.
    pub unused: usize,
    ledger: Ledger,
}

impl TargetView {
    /// Returns the exit status. Missing data is reported.
    pub(super) fn end(&self) -> ExitCode {
        if let Some(missing) = nvcap_show::output::ledger::missing(&self.ledger) {
            tell(missing);
        }
        ExitCode::from(self.ledger.exit_status())
    }
}

/// Builds the model: by one look at running processes, unless a time is given; by tracing; or from a log.
///
/// # Errors
/// When the processes cannot be read, the trace cannot be made or the log cannot be read.
pub(super) fn view(args: &Args) -> anyhow::Result<TargetView> {
    let target = &args.target;
    let mut opened = target
        .open()
        .quiet_until_the_end(args.show.output.as_deref());
    let version = opened.version();
    if !target.pid.is_empty() && target.duration.is_none() {
        return one_look(&target.pid, version);
    }
    let mut model = ModelView::new(opened.is_trace());
    let mut pipeline = feed(&mut model, version);
    opened.records(true, |record| pipeline.record(record), || Ok(()))?;
    tell_of_newer(pipeline.model().version());
    let ledger = pipeline.finish()?;
    Ok(TargetView {
        model,
        unused: 0,
        ledger,
    })
}

fn one_look(pids: &[u32], version: Option<Version>) -> anyhow::Result<TargetView> {
    let mut model = ModelView::new(false);
    let mut pipeline = feed(&mut model, version);
    let (mut unused, mut next) = (0, 0);
    let (mut positions, mut engines) = (Vec::new(), Vec::new());
    for pid in pids {
        let seen = probe::probe(*pid, next).map_err(|e| cannot_look(*pid, &e))?;
        for record in seen.records {
            pipeline.record(record)?;
        }
        for (channel, get, put) in seen.positions {
            positions.push((channel, get, put));
            next = channel.0 + 1;
        }
        engines.extend(seen.engines);
        unused += seen.unused;
    }
    pipeline.finish()?;
    for (channel, get, put) in positions {
        model.positions(channel, get, put);
    }
    for (channel, engine) in engines {
        model.engine(channel, engine);
    }
    Ok(TargetView {
        model,
        unused,
        // A single look loses nothing.
        ledger: Ledger::new(),
    })
}

/// Makes a pipeline with the model as its only sink.
fn feed(view: &mut ModelView, driver_version: Option<Version>) -> Pipeline<'_> {
    let options = PipelineOptions {
        driver_version,
        ..PipelineOptions::default()
    };
    Pipeline::new(options, vec![Box::new(view)])
}

fn cannot_look(pid: u32, cause: &std::io::Error) -> anyhow::Error {
    let unfit = nvcap_process::procfs::unfit::because_of(pid, cause);
    anyhow::anyhow!("cannot look into process {pid}: {unfit}")
}
