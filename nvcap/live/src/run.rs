//! Running a live source to its end: one thread reads and follows the processes, the caller's decodes and shows.
//!
//! Between them lies a queue bounded in bytes. When it is full the reader waits: what a source cannot hold back
//! meanwhile it counts as lost. The traced program never waits. This module knows no source, only what all live
//! ones can do ([`Source`]).

use std::{
    fmt, io,
    process::ExitStatus,
    sync::{
        Arc,
        atomic::{AtomicI32, AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use super::arrivals::{Arrivals, Came, Everyone};
use nvcap_decode::record::{At, ChannelId, CpuVa, Loss, Lost, Record};
use nvcap_decode::wire::GpuVa;
use nvcap_process::{
    command::{Command, Launch},
    confine,
    error::{Error, Result, no_thread},
    exit_stop, rights, signals,
};

/// Target of a trace.
#[derive(Clone, Debug)]
pub enum Target {
    /// A command, from its first submission.
    Command(Launch),
    /// Running processes.
    Pids(Vec<u32>),
    /// Processes of this host that use a GPU, and those to come.
    All(Everyone),
}

/// Limits at which a trace stops by itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// After this time.
    pub duration: Option<Duration>,
    /// After this many submissions.
    pub max_submissions: Option<u64>,
}

/// Longest [`Source::longest_wait`] of a source that must be polled, because nothing tells of what it waits for.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_millis(200);

/// A live source, which one thread makes, drives and ends.
///
/// Methods have no defaults: else a source that stands for another (`how::LiveSource`) could forget to pass one on unnoticed.
pub trait Source: Sized {
    /// Report of the source at its end, beside the records.
    type End: Send + 'static;

    /// Called before anything else, with the id of the thread that decodes and shows, so that the two need not compete for
    /// one processor.
    fn shown_by(&mut self, thread: i32);

    /// A command will be executed by `pid`, which waits to be let go.
    ///
    /// # Errors
    /// When it cannot be traced.
    fn expect(&mut self, pid: u32) -> Result<()>;

    /// Takes on a running process.
    ///
    /// # Errors
    /// When it is gone or cannot be traced.
    fn attach(&mut self, pid: u32) -> Result<()>;

    /// Takes on one process of all that use a GPU, if it has not got it yet. `was_there`: it may have submitted before; else it has
    /// come to use a GPU just now.
    ///
    /// # Errors
    /// When it is gone or cannot be traced: the others are, nevertheless.
    fn take_on(&mut self, pid: u32, was_there: bool) -> Result<()>;

    /// Gives the records that have come; waits for some for `wait` at most.
    ///
    /// # Errors
    /// When the trace cannot go on.
    fn step(&mut self, wait: Duration, to: &mut Vec<Record>) -> Result<()>;

    /// The process's address of what the GPU has at an address of a channel, where the driver's calls told it.
    fn locate(&self, channel: ChannelId, at: GpuVa) -> Option<CpuVa>;

    /// Returns the time for which records may gather after a step that gave some: fewer, larger batches.
    fn batch_time(&self) -> Duration;

    /// Bytes of records that may wait to be decoded while more are asked for; `QUEUE` where there is no reason to let
    /// it be less.
    fn most_waiting(&self) -> usize;

    /// Returns the longest wait for records when none have come for a while: what no record tells is looked after once in that time.
    fn longest_wait(&self) -> Duration;

    /// True while a traced process lives.
    fn is_alive(&self) -> bool;

    /// Tells whether facts are awaited that concern records given before: then those are not shown yet, though nothing else comes.
    fn is_pending(&self) -> bool;

    /// Tells whether a process stands at its end until [`Source::let_end`] is called, for a limited time; all that it submitted
    /// was given.
    fn is_ending(&self) -> bool;

    /// Lets the processes go on that stand at their end.
    fn let_end(&mut self);

    /// The last records, and the end.
    fn finish(self, to: &mut Vec<Record>) -> Self::End;
}

/// Result of a trace.
#[derive(Debug)]
pub struct Outcome<E> {
    /// Status of the command, if it has ended.
    pub child: Option<ExitStatus>,
    /// The command, if it goes on.
    pub left: Option<Left>,
    /// Report of the source.
    pub end: E,
}

/// A command that goes on without being traced: the trace ended before it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    pid: u32,
    /// SIGTERM was passed on to it, and it went on.
    outlived_sigterm: bool,
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pid = self.pid;
        let kill = match self.outlived_sigterm {
            true => "kill -KILL",
            false => "kill",
        };
        write!(
            f,
            "the command goes on as process {pid}, no longer traced; to end it: {kill} {pid}"
        )
    }
}

/// Bytes of records that may wait to be decoded, where a source has no reason to let it be less.
pub(crate) const QUEUE: usize = 256 << 20;
/// Time without a record after which nothing that waits for more is held back (`pipeline::loads` says how long loads pause).
const IDLE: Duration = Duration::from_millis(60);
/// Longest wait for records while processes may come.
const LOOKS_FOR_ARRIVALS: Duration = Duration::from_millis(50);
/// Time for which a command may go on after Ctrl-C before nvcap leaves it.
const GRACE: Duration = Duration::from_secs(2);

enum Message<E> {
    Records(Vec<Record>, usize),
    Idle,
    End(Box<Result<Outcome<E>>>),
}

/// Traces with the source that `make` makes until the target ends, a limit is reached or a signal comes. `each`
/// takes the records in order; `idle` is called when there is nothing to do for a moment; `attached` when every
/// running process is followed, or, of all that use a GPU, when there is none yet.
///
/// # Errors
/// When the trace cannot be made, or `each` can take no more.
pub fn run<S: Source>(
    make: impl FnOnce() -> Result<S> + Send + 'static,
    target: Target,
    limits: Limits,
    mut each: impl FnMut(Record) -> io::Result<()>,
    mut idle: impl FnMut() -> io::Result<()>,
    attached: impl FnOnce() + Send + 'static,
) -> Result<Outcome<S::End>> {
    // Forked before there are threads.
    let command = match &target {
        Target::Command(launch) => Some(Command::prepare(launch)?),
        Target::Pids(_) | Target::All(_) => None,
    };
    // SAFETY: reads an id.
    let shows = unsafe { libc::gettid() };
    exit_stop::block_sigchld();
    confine::keep(&rights::TRACING);
    signals::catch(shows)?;
    let queued = Arc::new(AtomicUsize::new(0));
    let stop = Arc::new(AtomicI32::new(0));
    let (to, from) = mpsc::channel();
    let reader = {
        let (queued, stop) = (queued.clone(), stop.clone());
        thread::Builder::new()
            .name("nvcap-reader".into())
            .spawn(move || {
                let mut reader = Reader {
                    to,
                    queued,
                    stop,
                    submissions: 0,
                    #[cfg(feature = "in-step")]
                    rings: nvcap_process::in_step::Rings::default(),
                };
                #[cfg(feature = "in-step")]
                nvcap_process::in_step::begin();
                let outcome = make().and_then(|mut s| {
                    s.shown_by(shows);
                    reader.run(s, target, limits, command, attached)
                });
                #[cfg(feature = "in-step")]
                nvcap_process::in_step::end();
                signals::traced();
                let _ = reader.to.send(Message::End(Box::new(outcome)));
            })
            .map_err(|e| no_thread(&e))?
    };
    // The reader has what it needs; this thread takes what others wrote.
    confine::keep(&rights::SHOWING);
    confine::decoding();
    let mut failed = None;
    let mut outcome = Err(Error::new(
        "tracing",
        "the reader ended",
        "please report this",
    ));
    for message in from {
        match message {
            Message::Records(records, bytes) => {
                for record in records {
                    if failed.is_none()
                        && let Err(e) = each(record)
                    {
                        failed = Some(e);
                        stop.store(1, Ordering::SeqCst);
                    }
                }
                queued.fetch_sub(bytes, Ordering::SeqCst);
            }
            Message::Idle => {
                if failed.is_none()
                    && let Err(e) = idle()
                {
                    failed = Some(e);
                    stop.store(1, Ordering::SeqCst);
                }
            }
            Message::End(end) => {
                outcome = *end;
                break;
            }
        }
    }
    let _ = reader.join();
    match failed {
        Some(e) if e.kind() == io::ErrorKind::BrokenPipe => outcome,
        Some(e) => {
            let next = "name another file with -o, or make room";
            let left = outcome.ok().and_then(|o| o.left);
            Err(Error::new(
                "writing the output",
                e,
                left.map_or(next.to_owned(), |left| format!("{next}; {left}")),
            ))
        }
        None => outcome,
    }
}

/// The loss of all that came after an error which ended the trace.
pub fn ended_early(e: &Error) -> Record {
    Record::Loss(Loss {
        at: At::default(),
        channel: None,
        what: Lost::Untraced {
            why: format!("the trace ended early: {e}"),
        },
    })
}

/// Takes on processes that have come; `to` gets which of them could not be followed.
fn take_on(source: &mut impl Source, came: &[Came], to: &mut Vec<Record>) {
    to.extend(came.iter().filter_map(|came| {
        let taken = source.take_on(came.pid, came.was_there);
        came.refused(&taken.err()?)
    }));
}

struct Reader<E> {
    to: mpsc::Sender<Message<E>>,
    queued: Arc<AtomicUsize>,
    stop: Arc<AtomicI32>,
    submissions: u64,
    #[cfg(feature = "in-step")]
    rings: nvcap_process::in_step::Rings,
}

impl<E> Reader<E> {
    fn run<S: Source<End = E>>(
        &mut self,
        mut source: S,
        target: Target,
        limits: Limits,
        mut command: Option<Command>,
        attached: impl FnOnce(),
    ) -> Result<Outcome<E>> {
        if let Some(command) = &mut command {
            source.expect(command.pid)?;
            command.go()?;
        }
        if let Target::Pids(pids) = &target {
            for pid in pids {
                source.attach(*pid)?;
            }
        }
        let mut arrivals = match target {
            Target::All(whom) => {
                let arrivals = Arrivals::begin(whom)?;
                if !arrivals.any_at_first() {
                    attached();
                }
                Some(arrivals)
            }
            Target::Pids(_) => {
                attached();
                None
            }
            Target::Command(_) => None,
        };
        let started = Instant::now();
        let mut stopping: Option<Instant> = None;
        let mut passed_on = 0;
        let mut quiet = 0u32;
        let mut said_idle = 0;
        let mut newest = Instant::now();
        let mut failed = None;
        loop {
            let mut batch = Vec::new();
            // Records may be committed without a wake-up each: look again soon while there are any.
            let wait = match quiet {
                0..64 => Duration::from_millis(1),
                64..128 => Duration::from_millis(20),
                _ => source.longest_wait(),
            };
            let left = limits.duration.map(|d| d.saturating_sub(started.elapsed()));
            let wait = left.map_or(wait, |left| wait.min(left));
            let wait = match &mut arrivals {
                Some(arrivals) => {
                    let came = arrivals.take(&mut batch);
                    take_on(&mut source, &came, &mut batch);
                    wait.min(LOOKS_FOR_ARRIVALS)
                }
                None => wait,
            };
            if let Err(e) = source.step(wait, &mut batch) {
                // What there is until now is worth its ledger.
                failed = Some(e);
                self.send(batch, limits.max_submissions);
                break;
            }
            if batch.is_empty() && source.is_pending() {
                quiet = quiet.min(7);
            } else if batch.is_empty() {
                quiet = quiet.saturating_add(1);
                // The second time, what waits for more is shown as it is.
                // Steps end early where what they took in gives no record: the second time goes by the clock.
                let is_long = said_idle == 1 && newest.elapsed() >= IDLE;
                if (quiet >= 8 && said_idle == 0) || is_long {
                    said_idle += 1;
                    let _ = self.to.send(Message::Idle);
                }
            } else {
                (quiet, said_idle) = (0, 0);
                newest = Instant::now();
                self.send(batch, limits.max_submissions);
            }
            if signals::asks_for_sealing() {
                let _ = self.to.send(Message::Idle);
            }
            let child = command.as_mut().and_then(Command::try_wait);
            // Others may come.
            if !source.is_alive() && arrivals.is_none() {
                break;
            }
            if self.stop.load(Ordering::SeqCst) != 0
                || limits.duration.is_some_and(|d| started.elapsed() >= d)
                || limits
                    .max_submissions
                    .is_some_and(|n| self.submissions >= n)
            {
                break;
            }
            match signals::take() {
                0 => {}
                signal => match (&mut command, stopping) {
                    // A command in the foreground got Ctrl-C itself; give it time to end, and trace its end.
                    (Some(command), None) if child.is_none() => {
                        if signal != libc::SIGINT {
                            command.signal(signal);
                            passed_on = signal;
                        }
                        stopping = Some(Instant::now());
                    }
                    _ => break,
                },
            }
            if stopping.is_some_and(|s| s.elapsed() >= GRACE) {
                break;
            }
            if quiet == 0 && !source.batch_time().is_zero() {
                thread::sleep(source.batch_time());
            }
            while self.queued.load(Ordering::SeqCst) > source.most_waiting()
                && self.stop.load(Ordering::SeqCst) == 0
                && !signals::is_one()
                && stopping.is_none_or(|s| s.elapsed() < GRACE)
            {
                thread::sleep(Duration::from_millis(2));
            }
        }
        let mut last = Vec::new();
        if let Some(arrivals) = arrivals {
            let came = arrivals.end(&mut last);
            if failed.is_none() && !came.is_empty() {
                take_on(&mut source, &came, &mut last);
                failed = source.step(Duration::ZERO, &mut last).err();
            }
        }
        let alive = source.is_alive();
        let end = source.finish(&mut last);
        last.extend(failed.as_ref().map(ended_early));
        self.send(last, limits.max_submissions);
        let child = command
            .as_mut()
            .and_then(|c| if alive { c.try_wait() } else { c.wait() });
        let left = command.filter(|_| child.is_none()).map(|command| Left {
            pid: command.pid,
            outlived_sigterm: passed_on == libc::SIGTERM,
        });
        Ok(Outcome { child, left, end })
    }

    fn send(&mut self, mut records: Vec<Record>, most: Option<u64>) {
        #[cfg(feature = "in-step")]
        self.rings.tell(&records);
        let most = most.unwrap_or(u64::MAX);
        records.retain(|r| match r {
            Record::Submission(_) => {
                self.submissions += 1;
                self.submissions <= most
            }
            // What is missing after the end that was asked for is not missing from the trace.
            Record::Loss(_) => self.submissions < most,
            _ => true,
        });
        let bytes = records.iter().map(Record::size).sum();
        self.queued.fetch_add(bytes, Ordering::SeqCst);
        // The other side only goes away with the whole program.
        let _ = self.to.send(Message::Records(records, bytes));
    }
}
