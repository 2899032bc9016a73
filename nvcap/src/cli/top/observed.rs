//! A running process that is observed while its kernels are shown: a trace like that of `nvcap time`, summed up step by step.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use anyhow::Context as _;
use clap::Parser;

use super::super::{target, trace, trace_run};
use nvcap_decode::decode::event::Event;
use nvcap_decode::driver::Model;
use nvcap_decode::ledger::Ledger;
use nvcap_decode::record::Record;
use nvcap_monitor::top::counted::Counted;
use nvcap_monitor::top::state::{SECOND, Screen, State};
use nvcap_monitor::top::table::Table;
use nvcap_monitor::top::tally::Tally;
use nvcap_monitor::top::works;
use nvcap_process::clock;
use nvcap_show::output::{Detail, Sink};
use nvcap_show::pipeline::Pipeline;

/// A running process that is observed while its kernels are shown. Observing ends some moments after this is dropped.
pub(super) struct Observed {
    pid: u32,
    tally: Arc<Mutex<Tally>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<anyhow::Result<()>>>,
    /// Reason why observing has ended.
    ended: Option<String>,
    began_ns: u64,
    counted: Counted,
}

/// Options of such a trace.
#[derive(Parser)]
struct Options {
    #[command(flatten)]
    trace: trace::Args,
}

/// A sink that ends the trace when nobody looks at it any more.
struct Shared {
    tally: Arc<Mutex<Tally>>,
    stop: Arc<AtomicBool>,
}

fn locked(tally: &Mutex<Tally>) -> MutexGuard<'_, Tally> {
    tally.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn unless_stopped(&self) -> io::Result<()> {
        match self.stop.load(Ordering::SeqCst) {
            true => Err(io::ErrorKind::BrokenPipe.into()),
            false => Ok(()),
        }
    }
}

impl Sink for Shared {
    fn detail(&self) -> Option<Detail> {
        Some(Detail::Operations)
    }

    fn event(&mut self, event: &Event<'_>) -> io::Result<()> {
        self.unless_stopped()?;
        locked(&self.tally).event(event)
    }

    fn record(&mut self, record: &Record, model: &Model) -> io::Result<()> {
        self.unless_stopped()?;
        locked(&self.tally).record(record, model)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.unless_stopped()
    }

    fn finish(&mut self, ledger: &Ledger, model: &Model) -> io::Result<()> {
        locked(&self.tally).finish(ledger, model)
    }
}

impl Observed {
    /// Begins to observe a process, with up to this share of a core.
    ///
    /// # Errors
    /// When there are no more threads.
    pub(super) fn begin(pid: u32, cpu: f64) -> anyhow::Result<Self> {
        let tally = Arc::new(Mutex::new(Tally::default()));
        let stop = Arc::new(AtomicBool::new(false));
        let sink = Shared {
            tally: tally.clone(),
            stop: stop.clone(),
        };
        let options = Options::try_parse_from([
            "nvcap",
            "--quiet",
            "--how=observe",
            "--gpu-time",
            "--stop-at-exit=never",
            &format!("--observe-cpu={}%", cpu * 100.0),
            &format!("--pid={pid}"),
        ])
        .context("the options of observing a process; please report this")?;
        let thread = thread::Builder::new()
            .name("nvcap-observes".into())
            .spawn(move || trace_into(options.trace, sink))
            .map_err(|e| nvcap_process::error::no_thread(&e))?;
        Ok(Self {
            pid,
            tally,
            stop,
            thread: Some(thread),
            ended: None,
            began_ns: clock::now(),
            counted: Counted::default(),
        })
    }

    /// Returns the id of the observed process.
    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// Takes in the number of the process's submissions, checks whether observing has ended, and keeps the reason.
    pub(super) fn take(&mut self, submitted: Option<u64>) {
        let has_begun = self.ended.is_none() && locked(&self.tally).origin() > 0;
        if let Some(submitted) = submitted.filter(|_| has_begun) {
            self.counted.take(clock::now(), submitted);
        }
        let Some(thread) = self.thread.take_if(|t| t.is_finished()) else {
            return;
        };
        self.ended = Some(match thread.join() {
            Ok(Ok(())) => "it is not observed any more, for it has ended".to_owned(),
            Ok(Err(e)) => format!("it cannot be observed: {e:#}"),
            Err(_) => "observing it failed; please report this".to_owned(),
        });
    }

    /// Returns the table of its kernels or copies.
    pub(super) fn table(&self, screen: Screen, state: &State) -> Table {
        let tally = locked(&self.tally);
        let newest = match &self.ended {
            None => clock::now().saturating_sub(tally.origin()),
            Some(_) => tally.length_ns(),
        };
        let span = state.span(newest);
        let from = tally.origin().saturating_add(span.0);
        let counted = self.counted.since(from, clock::now());
        let table = works::table(&tally, screen, Some(self.pid), span, counted);
        let since = clock::now().saturating_sub(self.began_ns) / SECOND;
        let empty = match &self.ended {
            None => format!("{} (observed for {since} s)", table.empty),
            Some(why) => why.clone(),
        };
        Table { empty, ..table }
    }

    /// Returns a text about the cost of observing, or about the reason why it has ended.
    pub(super) fn about(&self, cpu: f64) -> String {
        match &self.ended {
            Some(why) => why.clone(),
            None => format!(
                "observing it costs up to {} % of a core (--observe-cpu)",
                cpu * 100.0
            ),
        }
    }
}

impl Drop for Observed {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
    }
}

/// Traces until the sink takes no more.
fn trace_into(args: trace::Args, sink: Shared) -> anyhow::Result<()> {
    let output = args.output.clone();
    let options = output.pipeline_options(false, target::running_driver())?;
    trace_run::run_into(
        args,
        move |_| Ok(Pipeline::new(options, vec![Box::new(sink)])),
        |pipeline| match pipeline.finish() {
            Err(e) if e.kind() != io::ErrorKind::BrokenPipe => Err(e.into()),
            Err(_) => Ok(Ledger::default()),
            Ok(ledger) => Ok(ledger),
        },
    )
    .map(|_| ())
}
