//! `--shares`: context switches beside a trace.

use std::rc::Rc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use nvcap_decode::record::{At, Loss, Lost, Record};
use nvcap_live::enrich::beside::{self, Beside, BesideTrace};
use nvcap_monitor::share::{Share, Windows};
use nvcap_process::clock;
use nvcap_process::rm::Kernel;
use nvcap_show::output::message::tell;

use super::driver::{CANNOT_READ, POLL, refused, tell_of_limits};
use crate::cli::target;

/// Longest window of a record.
const WINDOW: Duration = Duration::from_millis(500);

/// Begins to record who has the GPUs beside a trace, if that was asked for: a thread, which ends with the trace.
///
/// # Errors
/// When it cannot begin. What fails later is told, and stands in the trace as a loss.
pub(in crate::cli) fn beside(args: &crate::cli::trace::Args) -> anyhow::Result<Option<Beside>> {
    if !args.shares {
        return Ok(None);
    }
    let (source, trace) = beside::beside(false);
    let (ready, is_ready) = mpsc::channel();
    let thread = std::thread::Builder::new().name("nvcap-shares".into());
    thread
        .spawn(move || run(&trace, &ready))
        .context("cannot start a thread")?;
    is_ready
        .recv()
        .context("the thread that records who has the GPUs has ended")??;
    Ok(Some(source))
}

/// The thread beside a trace.
fn run(trace: &BesideTrace, ready: &mpsc::Sender<anyhow::Result<()>>) {
    let mut windows = match open() {
        Ok(windows) => windows,
        Err(error) => {
            let _ = ready.send(Err(error));
            return;
        }
    };
    let _ = ready.send(Ok(()));
    if let Err(error) = record(&mut windows, trace) {
        let why = format!("who had the GPUs was not recorded to the end: {error:#}");
        tell(&why);
        let _ = trace.give(Record::Loss(Loss {
            at: At {
                time_ns: clock::now(),
                ..At::default()
            },
            channel: None,
            what: Lost::Untraced { why },
        }));
    }
}

fn open() -> anyhow::Result<Windows> {
    let opened = Share::open(
        Rc::new(Kernel),
        target::running_driver(),
        &[],
        std::path::Path::new("/"),
    );
    let (share, refusals) = opened.context("cannot ask the driver who has the GPUs")?;
    for refusal in &refusals {
        tell(refused(refusal));
    }
    let gpus: Vec<_> = share.gpus().collect();
    if gpus.is_empty() {
        bail!("no GPU's driver tells who has it: leave out --shares");
    }
    tell_of_limits(&gpus);
    Windows::new(share.of_parts_alone()).context(CANNOT_READ)
}

/// Gives windows until the trace ends.
fn record(windows: &mut Windows, trace: &BesideTrace) -> anyhow::Result<()> {
    let mut due = Instant::now() + WINDOW;
    let mut is_last = false;
    while !is_last {
        std::thread::sleep(POLL);
        is_last = trace.is_over();
        let is_much = windows.poll().context(CANNOT_READ)?;
        let now = Instant::now();
        if !is_last && !is_much && now < due {
            continue;
        }
        due = now + WINDOW;
        for record in windows.take(is_last).context(CANNOT_READ)? {
            if !trace.give(record) {
                return Ok(());
            }
        }
    }
    Ok(())
}
