//! Runs a live source to its end: one thread reads and follows the processes, the caller's thread decodes and shows.
//!
//! A queue between the two threads is bounded in bytes. When it is full the reader waits, and the source counts what it cannot hold
//! back meanwhile as lost. The traced program never waits. This module knows only the common interface of all live sources
//! ([`Source`]).

mod quiet;
mod unanswered;

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

use self::{quiet::Quiet, unanswered::Unanswered};
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
    /// Processes of this host that use a GPU now, or begin to.
    All(Everyone),
}

/// Limits at which a trace stops by itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct Limits {
    /// Longest time of the trace.
    pub duration: Option<Duration>,
    /// Most submissions of the trace.
    pub max_submissions: Option<u64>,
}

/// Longest [`Source::longest_wait`] of a source that must be polled, because nothing announces its news.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_millis(200);

/// A live source, which one thread makes, drives and ends.
///
/// Methods have no defaults, so that a source that wraps another one (`how::LiveSource`) cannot forget to pass a call on.
pub trait Source: Sized {
    /// Report of the source at its end, beside the records.
    type End: Send + 'static;

    /// Called before anything else, with the id of the thread that decodes and shows, so that the two threads need not compete for
    /// one processor.
    fn shown_by(&mut self, thread: i32);

    /// Announces a command that `pid` will execute; the process waits to be let go.
    ///
    /// # Errors
    /// When the command cannot be traced.
    fn expect(&mut self, pid: u32) -> Result<()>;

    /// Takes on a running process.
    ///
    /// # Errors
    /// When the process is gone or cannot be traced.
    fn attach(&mut self, pid: u32) -> Result<()>;

    /// Takes on one of all processes that use a GPU, if it is not traced yet. `was_there`: the process may have submitted before;
    /// else it has begun to use a GPU just now.
    ///
    /// # Errors
    /// When the process is gone or cannot be traced. The trace of the others goes on.
    fn take_on(&mut self, pid: u32, was_there: bool) -> Result<()>;

    /// Gives the records that have come. Waits for records for `wait` at most.
    ///
    /// # Errors
    /// When the trace cannot go on.
    fn step(&mut self, wait: Duration, to: &mut Vec<Record>) -> Result<()>;

    /// Returns the process's address of the memory at a GPU address of a channel, where the driver's calls told it.
    fn locate(&self, channel: ChannelId, at: GpuVa) -> Option<CpuVa>;

    /// Returns the time for which records may gather after a step that gave some, so that batches are fewer and larger.
    fn batch_time(&self) -> Duration;

    /// Returns the most bytes of records that may wait to be decoded while the source is asked for more: `QUEUE`, unless the source
    /// has a reason for less.
    fn most_waiting(&self) -> usize;

    /// Returns the longest wait for records when none have come for a while. Work that no record announces is done once in that
    /// time.
    fn longest_wait(&self) -> Duration;

    /// True while a traced process lives.
    fn is_alive(&self) -> bool;

    /// Tells whether facts are awaited that concern earlier records: those are then held back, though nothing else comes.
    fn is_pending(&self) -> bool;

    /// Tells whether a process stands at its end until [`Source::let_end`] is called, for a limited time. All its submissions were
    /// given before.
    fn is_ending(&self) -> bool;

    /// Lets the processes that stand at their end go on.
    fn let_end(&mut self);

    /// Gives the last records, and ends the source.
    fn finish(self, to: &mut Vec<Record>) -> Self::End;
}

/// Result of a trace.
#[derive(Debug)]
pub struct Outcome<E> {
    /// Status of the command, if it has ended.
    pub child: Option<ExitStatus>,
    /// The command, if it still runs.
    pub left: Option<Left>,
    /// Report of the source.
    pub end: E,
}

/// A command that runs on untraced, because the trace ended before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    pid: u32,
    /// True if SIGTERM was passed on to the command, and the command went on.
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

/// The most bytes of records that may wait to be decoded, unless a source has a reason for less.
pub(crate) const QUEUE: usize = 256 << 20;
/// Longest wait for records while processes may come.
const LOOKS_FOR_ARRIVALS: Duration = Duration::from_millis(50);
/// Time for which a command may go on after Ctrl-C before nvcap leaves it.
const GRACE: Duration = Duration::from_secs(2);
/// Time between two checks of a full queue.
const FULL_QUEUE: Duration = Duration::from_millis(2);

enum Message<E> {
    Records(Vec<Record>, usize),
    Idle,
    End(Box<Result<Outcome<E>>>),
}

/// Traces with the source that `make` makes until the target ends, a limit is reached or a signal comes. `each` takes the records in
/// order. `idle` is called when there is nothing to do for a moment. `attached` is called when every running process is followed and
/// before the command begins; for all processes that use a GPU, also when there is none yet.
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
    let reader = Reader::new(to, queued.clone(), stop.clone(), limits.max_submissions);
    let reader = reader.spawn(move |reader| {
        let mut source = make()?;
        source.shown_by(shows);
        let trace = Trace::begin(source, target, limits, command, attached)?;
        Ok(reader.run(trace))
    })?;
    // The reader has what it needs; this thread takes what others wrote.
    confine::keep(&rights::SHOWING);
    confine::decoding();
    let mut output = Output { failed: None, stop };
    let outcome = output.take_all(from, &queued, &mut each, &mut idle);
    let _ = reader.join();
    output.conclude(outcome)
}

/// Output of the records, which can fail.
struct Output {
    /// First failure. Nothing is written after it.
    failed: Option<io::Error>,
    /// Signal to the reader to end.
    stop: Arc<AtomicI32>,
}

impl Output {
    /// Takes the messages of the reader until it ends, and returns its outcome. `queued` counts the waiting bytes.
    fn take_all<E>(
        &mut self,
        from: mpsc::Receiver<Message<E>>,
        queued: &AtomicUsize,
        each: &mut impl FnMut(Record) -> io::Result<()>,
        idle: &mut impl FnMut() -> io::Result<()>,
    ) -> Result<Outcome<E>> {
        for message in from {
            match message {
                Message::Records(records, bytes) => {
                    for record in records {
                        self.write(|| each(record));
                    }
                    queued.fetch_sub(bytes, Ordering::SeqCst);
                }
                Message::Idle => self.write(&mut *idle),
                Message::End(end) => return *end,
            }
        }
        Err(Error::new(
            "tracing",
            "the reader ended",
            "please report this",
        ))
    }

    /// Writes, unless a write has failed before.
    fn write(&mut self, write: impl FnOnce() -> io::Result<()>) {
        if self.failed.is_none()
            && let Err(e) = write()
        {
            self.failed = Some(e);
            self.stop.store(1, Ordering::SeqCst);
        }
    }

    /// Returns the result of the trace. A failure of the output takes precedence over that of the reader.
    fn conclude<E>(self, outcome: Result<Outcome<E>>) -> Result<Outcome<E>> {
        match self.failed {
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
}

/// Returns the loss of everything that came after the error which ended the trace.
pub fn ended_early(e: &Error) -> Record {
    Record::Loss(Loss {
        at: At::default(),
        channel: None,
        what: Lost::Untraced {
            why: format!("the trace ended early: {e}"),
        },
    })
}

/// Takes on processes that have come. Those that could not be followed are reported to `to`.
fn take_on(source: &mut impl Source, came: &[Came], to: &mut Vec<Record>) {
    to.extend(came.iter().filter_map(|came| {
        let taken = source.take_on(came.pid, came.was_there);
        came.refused(&taken.err()?)
    }));
}

/// Cause of the end of a trace.
enum Cause {
    /// The source cannot go on.
    Failed(Error),
    /// No traced process lives, and none can come.
    NoProcess,
    /// The other thread can write nothing more.
    OutputFailed,
    /// The user's limit of time is reached.
    Duration,
    /// The user's limit of submissions is reached.
    Submissions,
    /// A signal came, and there is no command to wait for.
    Signal,
    /// The command went on after the time that it had to end after a signal.
    OutlivedGrace,
}

/// A source with its target, and the state of the trace.
struct Trace<S> {
    source: S,
    limits: Limits,
    command: Option<Command>,
    /// Processes to come, where all that use a GPU are traced.
    arrivals: Option<Arrivals>,
    started: Instant,
    quiet: Quiet,
    /// Time at which the command was first told to end.
    stopping: Option<Instant>,
    /// Signal that was passed on to the command; 0 for none.
    passed_on: i32,
}

impl<S: Source> Trace<S> {
    /// Begins to trace the target.
    fn begin(
        mut source: S,
        target: Target,
        limits: Limits,
        mut command: Option<Command>,
        attached: impl FnOnce(),
    ) -> Result<Self> {
        let arrivals = match target {
            Target::All(whom) => {
                let arrivals = Arrivals::begin(whom)?;
                if !arrivals.any_at_first() {
                    attached();
                }
                Some(arrivals)
            }
            Target::Pids(pids) => {
                for pid in pids {
                    source.attach(pid)?;
                }
                attached();
                None
            }
            Target::Command(_) => {
                if let Some(command) = &mut command {
                    source.expect(command.pid)?;
                    attached();
                    command.go()?;
                }
                None
            }
        };
        Ok(Self {
            source,
            limits,
            command,
            arrivals,
            started: Instant::now(),
            quiet: Quiet::new(),
            stopping: None,
            passed_on: 0,
        })
    }

    /// Returns the time to wait in the next step.
    fn wait(&self) -> Duration {
        let wait = self.quiet.wait(|| self.source.longest_wait());
        let duration = self.limits.duration;
        let left = duration.map(|d| d.saturating_sub(self.started.elapsed()));
        left.map_or(wait, |left| wait.min(left))
    }

    /// Takes on processes that have come, then waits for records and takes them.
    fn step(&mut self, batch: &mut Vec<Record>) -> Result<()> {
        let mut wait = self.wait();
        if let Some(arrivals) = &mut self.arrivals {
            let came = arrivals.take(batch);
            take_on(&mut self.source, &came, batch);
            wait = wait.min(LOOKS_FOR_ARRIVALS);
        }
        self.source.step(wait, batch)
    }

    /// Answers a signal that came; true where the trace ends at once. `child`: the status of the command, where it has ended.
    fn ends_by(&mut self, signal: i32, child: Option<ExitStatus>) -> bool {
        match (&mut self.command, self.stopping) {
            // A command in the foreground got Ctrl-C itself; give it time to end, and trace its end.
            (Some(command), None) if child.is_none() => {
                if signal != libc::SIGINT {
                    command.signal(signal);
                    self.passed_on = signal;
                }
                self.stopping = Some(Instant::now());
                false
            }
            _ => true,
        }
    }

    /// Tells whether the command has had its time to end.
    fn is_grace_over(&self) -> bool {
        self.stopping.is_some_and(|since| since.elapsed() >= GRACE)
    }
}

/// The reading thread's end of the queue.
struct Reader<E> {
    to: mpsc::Sender<Message<E>>,
    queued: Arc<AtomicUsize>,
    stop: Arc<AtomicI32>,
    submissions: u64,
    /// The most submissions that are passed on.
    most: Option<u64>,
    unanswered: Unanswered,
}

impl<E: Send + 'static> Reader<E> {
    fn new(
        to: mpsc::Sender<Message<E>>,
        queued: Arc<AtomicUsize>,
        stop: Arc<AtomicI32>,
        most: Option<u64>,
    ) -> Self {
        Self {
            to,
            queued,
            stop,
            submissions: 0,
            most,
            unanswered: Unanswered::default(),
        }
    }

    /// Starts the reading thread, in which `trace` gives the outcome.
    fn spawn(
        mut self,
        trace: impl FnOnce(&mut Self) -> Result<Outcome<E>> + Send + 'static,
    ) -> Result<thread::JoinHandle<()>> {
        let name = "nvcap-reader".into();
        let read = move || {
            #[cfg(feature = "in-step")]
            nvcap_process::in_step::begin();
            let outcome = trace(&mut self);
            #[cfg(feature = "in-step")]
            nvcap_process::in_step::end();
            signals::traced();
            let _ = self.to.send(Message::End(Box::new(outcome)));
        };
        let thread = thread::Builder::new().name(name).spawn(read);
        thread.map_err(|e| no_thread(&e))
    }

    /// Reads until something ends the trace.
    fn run<S: Source<End = E>>(&mut self, mut trace: Trace<S>) -> Outcome<E> {
        let cause = loop {
            if let Some(cause) = self.round(&mut trace) {
                break cause;
            }
            self.pause(&trace);
        };
        self.end(trace, cause)
    }

    /// Makes one step of the source and the work after it. Returns the cause where the trace ends.
    fn round<S: Source<End = E>>(&mut self, trace: &mut Trace<S>) -> Option<Cause> {
        let mut batch = Vec::new();
        if let Err(e) = trace.step(&mut batch) {
            // What there is until now is worth its ledger.
            self.send(batch);
            return Some(Cause::Failed(e));
        }
        self.unanswered.take(&mut batch);
        self.pass_on(batch, trace);
        if signals::asks_for_sealing() {
            let _ = self.to.send(Message::Idle);
        }
        self.cause_to_end(trace)
    }

    /// Passes a step's records on, or reports that there are none for the moment.
    fn pass_on<S: Source>(&mut self, batch: Vec<Record>, trace: &mut Trace<S>) {
        let quiet = &mut trace.quiet;
        if !batch.is_empty() {
            quiet.ends();
            self.send(batch);
        } else if trace.source.is_pending() {
            quiet.awaits_facts();
        } else if quiet.goes_on() {
            let _ = self.to.send(Message::Idle);
        }
    }

    /// Returns the cause that ends the trace now, if there is one. A first signal is passed on to a command.
    fn cause_to_end<S: Source>(&self, trace: &mut Trace<S>) -> Option<Cause> {
        let child = trace.command.as_mut().and_then(Command::try_wait);
        // Others may come.
        if !trace.source.is_alive() && trace.arrivals.is_none() {
            return Some(Cause::NoProcess);
        }
        if self.stop.load(Ordering::SeqCst) != 0 {
            return Some(Cause::OutputFailed);
        }
        let duration = trace.limits.duration;
        if duration.is_some_and(|d| trace.started.elapsed() >= d) {
            return Some(Cause::Duration);
        }
        if self.most.is_some_and(|n| self.submissions >= n) {
            return Some(Cause::Submissions);
        }
        match signals::take() {
            0 => {}
            signal if trace.ends_by(signal, child) => return Some(Cause::Signal),
            _ => {}
        }
        trace.is_grace_over().then_some(Cause::OutlivedGrace)
    }

    /// Lets records gather after a step that gave some, and waits while the queue is full.
    fn pause<S: Source>(&self, trace: &Trace<S>) {
        let source = &trace.source;
        if trace.quiet.is_over() && !source.batch_time().is_zero() {
            thread::sleep(source.batch_time());
        }
        while self.queued.load(Ordering::SeqCst) > source.most_waiting()
            && self.stop.load(Ordering::SeqCst) == 0
            && !signals::is_one()
            && !trace.is_grace_over()
        {
            thread::sleep(FULL_QUEUE);
        }
    }

    /// Takes the last records, ends the source, and reports the state of the command.
    fn end<S: Source<End = E>>(&mut self, trace: Trace<S>, cause: Cause) -> Outcome<E> {
        let Trace {
            mut source,
            mut command,
            arrivals,
            passed_on,
            ..
        } = trace;
        let mut failed = match cause {
            Cause::Failed(e) => Some(e),
            _ => None,
        };
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
        self.unanswered.take(&mut last);
        last.extend(failed.as_ref().map(ended_early));
        self.send(last);
        let child = command
            .as_mut()
            .and_then(|c| if alive { c.try_wait() } else { c.wait() });
        let left = command.filter(|_| child.is_none()).map(|command| Left {
            pid: command.pid,
            outlived_sigterm: passed_on == libc::SIGTERM,
        });
        Outcome { child, left, end }
    }

    fn send(&mut self, mut records: Vec<Record>) {
        let most = self.most.unwrap_or(u64::MAX);
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
