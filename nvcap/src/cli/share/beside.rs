//! `--shares`: context switches beside a trace.

use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use nvcap_live::enrich::beside::{Beside, BesideTrace};
use nvcap_monitor::share::{Share, Windows};
use nvcap_process::rm::Kernel;
use nvcap_show::output::message::tell;

use super::driver::{CANNOT_READ, POLL, refused, tell_of_limits};
use crate::cli::{beside, target};

/// Longest window of a record.
const WINDOW: Duration = Duration::from_millis(500);

/// Begins to record the holders of the GPUs beside a trace, if that was asked for, in a thread that ends with the trace.
///
/// # Errors
/// When it cannot begin. A later failure is reported, and recorded in the trace as a loss.
pub(in crate::cli) fn beside(args: &crate::cli::trace::Args) -> anyhow::Result<Option<Beside>> {
    if !args.shares {
        return Ok(None);
    }
    let thread = beside::Thread {
        name: "nvcap-shares",
        asks: false,
        failed: "who had the GPUs was not recorded to the end",
    };
    let begun = beside::begin(thread, |trace, ready| {
        let mut windows = open()?;
        ready();
        record(&mut windows, trace)
    });
    begun.map(Some)
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

/// Delivers windows until the trace ends.
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
