//! Threads that make records beside a trace.

use std::cell::Cell;
use std::sync::mpsc;

use anyhow::Context as _;
use nvcap_decode::record::{At, Loss, Lost, Record};
use nvcap_live::enrich::beside::{self, Beside, BesideTrace};
use nvcap_process::clock;
use nvcap_show::output::message::tell;

/// A thread that is to be started.
pub(super) struct Thread {
    /// Name of the thread.
    pub name: &'static str,
    /// True if the thread needs processes that end. They are stopped at their ends until it has answered.
    pub asks: bool,
    /// Words for the work that the thread did not complete.
    pub failed: &'static str,
}

/// Starts a thread that ends with the trace, and waits until it is ready: `work` then calls the function that it is given.
///
/// # Errors
/// When `work` fails before it is ready. A later failure is reported, and recorded in the trace as a loss.
pub(super) fn begin(
    thread: Thread,
    work: impl FnOnce(&BesideTrace, &dyn Fn()) -> anyhow::Result<()> + Send + 'static,
) -> anyhow::Result<Beside> {
    let Thread { name, asks, failed } = thread;
    let (source, trace) = beside::beside(asks);
    let (to, is_ready) = mpsc::channel();
    let run = move || {
        let ready = Cell::new(false);
        let worked = work(&trace, &|| {
            ready.set(true);
            let _ = to.send(Ok(()));
        });
        match worked {
            Ok(()) => {}
            Err(error) if !ready.get() => {
                let _ = to.send(Err(error));
            }
            Err(error) => {
                let why = format!("{failed}: {error:#}");
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
    };
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(run)
        .context("cannot start a thread")?;
    let begun = is_ready.recv();
    begun.with_context(|| format!("the thread {name} has ended"))??;
    Ok(source)
}
