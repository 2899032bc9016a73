//! Sampling of several contexts in turns, one after another. A GPU has only one profiler, and a sample does not name its context.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write as _;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use nvcap_decode::driver::Version;
use nvcap_decode::record::{At, Kernel, Record, Samples};
use nvcap_decode::samples::{Counts, Programme, Stream, Totals};
use nvcap_lab::trigger::Trigger;
use nvcap_live::enrich::names;
use nvcap_live::samples::{Context, Error, Options, STREAM_LEN, Session, contexts};
use nvcap_process::rm::{Client, Os};
use nvcap_process::{clock, procfs};
use nvcap_show::output::message::tell;
use nvcap_show::samples::{ContextKey, ContextSums, Kernels, kernel_at};

use super::remedy::told;
use super::table;
use super::table::Listed;
use super::who::Who;

/// Length of a turn if several contexts are sampled, and the shortest length.
const TURN: Duration = Duration::from_millis(500);
const SHORTEST_TURN: Duration = Duration::from_millis(100);

/// A time that never passes in practice.
const LONG: Duration = Duration::from_secs(86_400);

/// Longest time for which the end of a process, or a signal, goes unnoticed.
const PEEP: Duration = Duration::from_millis(50);

/// Time between two looks for new processes.
const LOOK: Duration = Duration::from_secs(1);

/// Time between two looks for contexts while there are none yet.
const SOON: Duration = Duration::from_millis(50);

/// Time after which names are first looked for; later they are looked for again if there are new program counters. A process that ends
/// meanwhile has none later.
const FIRST_NAMES: Duration = Duration::from_millis(300);
const NAMES: Duration = Duration::from_secs(1);

/// Time that the driver is given for the last samples.
const PATIENCE: Duration = Duration::from_secs(2);

/// Time after which one window of samples ends and another begins.
const WINDOW: Duration = Duration::from_millis(500);

/// Receiver of records: the windows of each context, and kernels before the windows in which they are seen.
pub(super) type Deliver<'a> = Box<dyn FnMut(Record) -> anyhow::Result<()> + 'a>;

/// Means of sampling on one GPU.
pub(super) struct Sampler<'a> {
    pub(super) os: Rc<dyn Os>,
    pub(super) version: Option<Version>,
    /// Number N of `/dev/nvidiaN`.
    pub(super) gpu: u32,
    pub(super) programme: Programme,
    pub(super) poll: Duration,
    pub(super) trigger: Trigger,
    /// File for the unprocessed stream.
    pub(super) raw: Option<File>,
    /// Cycles between two samples of an SM, as their logarithm.
    pub(super) period: Option<u8>,
    pub(super) to: Deliver<'a>,
}

/// A context, and its samples.
pub(super) struct Subject {
    pub(super) pid: u32,
    pub(super) name: Option<String>,
    pub(super) context: Context,
    pub(super) sums: ContextSums,
    /// Kernels that were found while the samples came.
    pub(super) kernels: Kernels,
    /// True if the process or the context has ended meanwhile.
    pub(super) ended: bool,
    names_at: Option<Instant>,
    /// Number of program counters for which names were looked for.
    sought: usize,
    /// Kernels and windows that are not delivered yet. Windows wait until their kernels were looked for.
    waiting: Vec<Record>,
}

/// Window into which samples go.
struct Window {
    from_ns: u64,
    begun: Instant,
    counts: Counts,
    /// Sums of the stream at the window's beginning.
    totals: Totals,
    overflows: u64,
}

impl Window {
    fn new(totals: Totals, overflows: u64) -> Self {
        Self {
            from_ns: clock::now(),
            begun: Instant::now(),
            counts: Counts::default(),
            totals,
            overflows,
        }
    }
}

impl Subject {
    fn new(pid: u32, gpu: u32, context: Context) -> Self {
        Self {
            pid,
            name: procfs::name(pid, None),
            context,
            sums: ContextSums::new(ContextKey {
                pid,
                gpu: Some(gpu),
                client: context.client,
                group: context.group,
            }),
            kernels: Kernels::default(),
            ended: false,
            names_at: None,
            sought: 0,
            waiting: Vec::new(),
        }
    }

    /// Looks for the kernels of program counters that have none yet.
    pub(super) fn look(&mut self) {
        self.sought = self.sums.counters.len();
        let known = self.kernels.of(self.pid);
        let all = self.sums.counters.keys().copied();
        let unknown: Vec<u64> = all.filter(|pc| kernel_at(known, *pc).is_none()).collect();
        if unknown.is_empty() {
            return;
        }
        match names::of_counters(self.pid, &unknown) {
            Ok(found) => {
                let at = At::of_process(clock::now(), self.pid);
                let found = found.into_iter().map(|kernel| Kernel { at, ..kernel });
                let found: Vec<Kernel> = found.collect();
                found.iter().for_each(|kernel| self.kernels.add(kernel));
                // Kernels come before the windows.
                let found = found.into_iter().map(|k| Record::Kernel(Box::new(k)));
                self.waiting.splice(0..0, found);
            }
            Err(error) => log::debug!("no names of process {}: {error}", self.pid),
        }
    }

    /// Returns the number of program counters that lie in a known kernel.
    fn named(&self) -> usize {
        let known = self.kernels.of(self.pid);
        let counters = self.sums.counters.keys();
        counters
            .filter(|pc| kernel_at(known, **pc).is_some())
            .count()
    }

    /// Tells whether names were looked for, for all program counters.
    fn is_sought(&self) -> bool {
        self.sums.counters.len() == self.sought
    }

    /// Looks for names if it is time, while samples are taken, for which there is room meanwhile.
    fn look_in_time(&mut self) {
        let now = Instant::now();
        let at = *self.names_at.get_or_insert(now);
        if now < at || self.is_sought() {
            return;
        }
        self.look();
        log::debug!("process {}: {} counters named", self.pid, self.named());
        // Takes at most a tenth of the time.
        self.names_at = Some(Instant::now() + NAMES.max(10 * now.elapsed()));
    }

    /// Delivers the waiting records.
    fn deliver(&mut self, to: &mut Deliver<'_>) -> anyhow::Result<()> {
        { self.waiting.drain(..) }.try_for_each(to)
    }

    /// Ends a window at a time.
    fn close(&mut self, window: &mut Window, read: (Totals, u64), period: Option<u8>, at_ns: u64) {
        let (counters, sms, others) = window.counts.drain();
        let (totals, overflows) = read;
        let more = |of: fn(&Totals) -> u64| of(&totals).saturating_sub(of(&window.totals));
        let key = self.sums.key;
        let samples = Samples {
            at: At::of_process(at_ns.max(window.from_ns), self.pid),
            from_ns: window.from_ns,
            gpu: key.gpu,
            client: key.client,
            group: key.group,
            period,
            sms,
            counters,
            others,
            overflows: overflows.saturating_sub(window.overflows),
            bytes: more(Totals::bytes),
            cut_bytes: more(|totals| totals.cut_bytes),
            strange_bytes: more(Totals::strange),
            ended: self.ended,
        };
        self.sums.add(&samples);
        self.waiting.push(Record::Samples(Box::new(samples)));
        window.from_ns = at_ns;
        window.begun = Instant::now();
        (window.totals, window.overflows) = read;
    }

    /// Records the end of the context between two turns.
    fn end(&mut self, period: Option<u8>) {
        self.ended = true;
        let mut window = Window::new(Totals::default(), 0);
        let at_ns = window.from_ns;
        self.close(&mut window, Default::default(), period, at_ns);
    }

    /// Samples for a time, or until `stops` returns true.
    fn turn(
        &mut self,
        sampler: &mut Sampler<'_>,
        length: Duration,
        stops: &mut dyn FnMut() -> bool,
    ) -> anyhow::Result<()> {
        let options = Options {
            gpu: sampler.gpu,
            pid: self.pid,
            context: self.context,
            programme: sampler.programme.clone(),
            buffer: STREAM_LEN,
        };
        let period = sampler.period;
        let opened = Session::open(Rc::clone(&sampler.os), sampler.version, &options);
        let mut session = match opened {
            Ok(session) => session,
            // The context was there before.
            Err(Error::NotItsOwn(_) | Error::NoProfiler { .. }) if self.sums.ns > 0 => {
                self.end(period);
                return Ok(());
            }
            Err(_) if procfs::has_ended(self.pid) => {
                self.end(period);
                return Ok(());
            }
            Err(error) => {
                return Err(told(error)).with_context(|| {
                    format!("cannot sample process {} on GPU {}", self.pid, sampler.gpu)
                });
            }
        };
        let trigger = &mut sampler.trigger;
        let mut fire = || trigger.fire().map_err(|error| error.to_string());
        session.trigger(&mut fire)?;
        let mut window = Window::new(Totals::default(), 0);
        let until = window.begun + length;
        let mut stream = Stream::default();
        let (raw, poll) = (&mut sampler.raw, sampler.poll);
        let mut read_at = window.begun + poll;
        loop {
            let now = Instant::now();
            self.ended = procfs::has_ended(self.pid);
            if now >= until || self.ended || stops() {
                break;
            }
            let next = until.min(read_at).saturating_duration_since(now);
            std::thread::sleep(next.min(PEEP));
            if Instant::now() >= read_at {
                take(&mut session, &mut stream, &mut window.counts, raw)?;
                // The first window ends soon, so that names are found soon.
                let length = match self.names_at {
                    Some(_) => WINDOW,
                    None => FIRST_NAMES,
                };
                if window.begun.elapsed() >= length {
                    let read = (stream.totals(), session.read().overflows);
                    self.close(&mut window, read, period, clock::now());
                    self.look_in_time();
                    if self.is_sought() {
                        self.deliver(&mut sampler.to)?;
                    }
                }
                read_at = Instant::now() + poll;
            }
        }
        session.trigger(&mut fire)?;
        let at_ns = clock::now();
        let patience = Instant::now() + PATIENCE;
        let counts = &mut window.counts;
        while take(&mut session, &mut stream, counts, raw)? > 0 && Instant::now() < patience {}
        session.flush()?;
        while take(&mut session, &mut stream, counts, raw)? > 0 && Instant::now() < patience {}
        let read = (stream.totals(), session.read().overflows);
        self.close(&mut window, read, period, at_ns);
        Ok(())
    }
}

fn take(
    session: &mut Session,
    stream: &mut Stream,
    counts: &mut Counts,
    raw: &mut Option<File>,
) -> anyhow::Result<u64> {
    let mut written = Ok(());
    let read = session.poll(&mut |bytes| {
        stream.take(bytes, |s| counts.take(&s));
        if let Some(raw) = raw {
            written = raw.write_all(bytes);
        }
    });
    written.context("cannot write the stream")?;
    read.context("cannot read the samples")
}

/// Contexts that are sampled.
struct Subjects {
    all: Vec<Subject>,
    /// Number of the GPU in the driver.
    card: Option<u32>,
    /// Processes at the last look.
    seen: Vec<(u32, usize)>,
    /// Number of contexts on other GPUs.
    elsewhere: usize,
    /// Processes for which it was reported why they are not sampled.
    refused: BTreeSet<u32>,
}

impl Subjects {
    fn new(sampler: &Sampler<'_>) -> anyhow::Result<Self> {
        let client = Client::new(Rc::clone(&sampler.os), sampler.version)?;
        let cards = client.cards()?;
        let card = cards.iter().find(|card| card.minor == sampler.gpu);
        Ok(Self {
            all: Vec::new(),
            card: card.map(|card| card.id),
            seen: Vec::new(),
            elsewhere: 0,
            refused: BTreeSet::new(),
        })
    }

    /// Finds the contexts of processes that are new, or have opened or closed files of the driver. Returns the last error.
    fn find(&mut self, sampler: &Sampler<'_>, processes: Vec<(u32, usize)>) -> Option<Error> {
        let mut last = None;
        let mut seen = Vec::new();
        for process in processes {
            let pid = process.0;
            if self.seen.contains(&process) {
                seen.push(process);
                continue;
            }
            match contexts(&sampler.os, sampler.version, pid) {
                Ok(found) => {
                    // Processes that have no context yet are looked at again.
                    if !found.is_empty() {
                        seen.push(process);
                    }
                    found
                        .into_iter()
                        .for_each(|context| self.add(pid, sampler.gpu, context));
                }
                Err(_) if procfs::has_ended(pid) => {}
                Err(error) => {
                    log::debug!("process {pid}: {error}");
                    last = Some(error);
                    self.refused.insert(pid);
                }
            }
        }
        self.seen = seen;
        last
    }

    fn add(&mut self, pid: u32, gpu: u32, context: Context) {
        if context.gpu.is_some() && self.card.is_some() && context.gpu != self.card {
            self.elsewhere += 1;
            return;
        }
        // A forked child has the client of its parent, which has the lower number.
        let same = |s: &Subject| (s.context, s.ended) == (context, false);
        if !self.all.iter().any(same) {
            self.all.push(Subject::new(pid, gpu, context));
        }
    }

    fn live(&self) -> Vec<usize> {
        let all = self.all.iter().enumerate();
        let live = all.filter(|(_, subject)| !subject.ended);
        live.map(|(i, _)| i).collect()
    }
}

/// Samples the contexts of `who` for a time, or until all have ended, or a signal comes.
pub(super) fn sample(
    sampler: &mut Sampler<'_>,
    who: &mut Who,
    duration: Option<Duration>,
) -> anyhow::Result<Vec<Subject>> {
    let mut subjects = Subjects::new(sampler)?;
    if let Who::Pids(pids) = &*who {
        let processes = pids.iter().map(|pid| (*pid, 0)).collect();
        let error = subjects.find(sampler, processes);
        nothing_to_sample(&subjects, pids, error)?;
    }
    who.go()?;
    let end = duration.map(|duration| Instant::now() + duration);
    let mut looked: Option<Instant> = None;
    let mut first_round = true;
    loop {
        if let Some(asked) = who.is_asked() {
            for subject in &mut subjects.all {
                if !subject.is_sought() && !procfs::has_ended(subject.pid) {
                    subject.look();
                }
            }
            who.answer(asked);
        }
        let now = Instant::now();
        if who.is_over() || end.is_some_and(|end| now >= end) {
            break;
        }
        let wait = if subjects.live().is_empty() {
            SOON
        } else {
            LOOK
        };
        if who.grows() && looked.is_none_or(|at| now >= at + wait) {
            subjects.find(sampler, who.processes());
            looked = Some(Instant::now());
        }
        let live = subjects.live();
        if live.is_empty() {
            if !who.grows() {
                break;
            }
            std::thread::sleep(SOON);
            continue;
        }
        let turn = match (&live[..], duration) {
            ([_], _) => None,
            (_, None) => Some(TURN),
            (several, Some(whole)) => {
                let share = whole / several.len() as u32;
                Some(share.clamp(SHORTEST_TURN, TURN))
            }
        };
        for i in live {
            let now = Instant::now();
            let left = end.map(|end| end.saturating_duration_since(now));
            let length = match (turn, left) {
                // Each context gets at least one turn, however short the time is.
                (Some(turn), Some(left)) if first_round => turn.min(left.max(SHORTEST_TURN)),
                // The time until the first sample does not count.
                (None, Some(_)) if first_round => duration.unwrap_or(LONG),
                (turn, left) => turn.into_iter().chain(left).min().unwrap_or(LONG),
            };
            let seen = subjects.seen.clone();
            let mut next = now + LOOK;
            let alone = turn.is_none() && who.grows();
            let mut stops = || {
                if who.is_over() || who.is_asked().is_some() {
                    return true;
                }
                let now = Instant::now();
                if !alone || now < next {
                    return false;
                }
                next = now + LOOK;
                who.processes() != seen
            };
            let subject = &mut subjects.all[i];
            subject.turn(sampler, length, &mut stops)?;
            match who.is_asked() {
                Some(_) => subject.look(),
                None => subject.look_in_time(),
            }
            if subject.is_sought() {
                subject.deliver(&mut sampler.to)?;
            }
            if who.is_over() {
                break;
            }
        }
        first_round = false;
    }
    for pid in &subjects.refused {
        if who.grows() && !subjects.all.iter().any(|s| s.pid == *pid) && !procfs::has_ended(*pid) {
            tell(format_args!(
                "process {pid} is not sampled: `sudo nvcap sample -p {pid}` says why"
            ));
        }
    }
    if subjects.elsewhere > 0 {
        tell(format_args!(
            "{} on other GPUs than {}: --gpu samples those",
            nvcap_show::output::plural::plural(subjects.elsewhere as u64, "context"),
            sampler.gpu
        ));
    }
    for subject in &mut subjects.all {
        if !procfs::has_ended(subject.pid) {
            subject.look();
        }
        log::debug!(
            "process {}: {} of {} program counters have a kernel",
            subject.pid,
            subject.named(),
            subject.sums.counters.len()
        );
        subject.deliver(&mut sampler.to)?;
    }
    Ok(subjects.all)
}

/// Returns an error if the named processes have no context. If only some have none, that is reported.
fn nothing_to_sample(
    subjects: &Subjects,
    pids: &[u32],
    error: Option<Error>,
) -> anyhow::Result<()> {
    if subjects.all.is_empty() {
        if let Some(error) = error {
            return Err(told(error));
        }
        if subjects.elsewhere > 0 {
            anyhow::bail!("the contexts are on another GPU: --gpu names it");
        }
    }
    for pid in pids {
        if subjects.all.iter().any(|subject| subject.pid == *pid) {
            continue;
        }
        let why = format!(
            "process {pid} has no CUDA context of its own here: no client of the driver that it made is in its memory; `sudo nvcap channels -p {pid}` tells what it has of the GPU"
        );
        match subjects.all.is_empty() {
            true => anyhow::bail!("{why}"),
            false => tell(why),
        }
    }
    Ok(())
}

/// Results in the form in which they are shown.
impl Subject {
    pub(super) fn found(self, number: (usize, usize), code: Vec<Listed>) -> table::Found {
        if self.sums.samples() == 0 {
            tell(format_args!(
                "no sample came: process {} had no work on GPU {}, or its work is in another context than the one that was sampled ({})",
                self.pid,
                self.sums.key.gpu.unwrap_or_default(),
                self.context
            ));
        }
        table::Found {
            number,
            code,
            name: self.name,
            kernels: self.kernels.of(self.pid).to_vec(),
            sums: self.sums,
        }
    }
}
