//! Finds the names of programs beside a live source, as records.
//!
//! Each submission is looked at as it comes from the source, some 100 ms before the pipeline decodes it. A separate thread looks for the names of new
//! programs. The kernels that it finds become records, which the pipeline takes at once.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use super::{
    backlog::Backlog,
    files::Files,
    in_step,
    programs::{New, Programs, Trust},
    resolver::{Ask, Resolver},
};
use crate::enrich;
use nvcap_decode::record::{At, Kernel, NamedBy, Record};
use nvcap_decode::wire::GpuVa;
use nvcap_process::clock;

/// Time for which lines wait for a name.
pub(crate) const PATIENCE: Duration = Duration::from_millis(100);
/// Time for which output waits for names if it has no line for a name that is found later.
pub(crate) const LONG_PATIENCE: Duration = Duration::from_secs(1);
/// Time between two calls of the source while names are outstanding.
pub(crate) const SOON: Duration = Duration::from_millis(2);
/// Time within which requests are gathered for one search.
const GATHER: Duration = Duration::from_millis(2);
/// Time between two searches for programs without a name, where processor time is left for it.
const AGAIN: Duration = Duration::from_secs(2);
/// Time from a search that did not find all programs to the next one. It doubles with each such search.
const FIRST_AGAIN: Duration = Duration::from_millis(30);
/// Time without a request after which files are searched.
const QUIET: Duration = Duration::from_millis(10);

/// The most ended processes whose programs are remembered.
const MOST_ENDED: usize = 64;

/// Environment variable that, set to `file`, makes names be looked for in mapped files alone, however long it takes. Tests compare these names with
/// the names from the driver's records.
const NAMES_BY: &str = "NVCAP_NAMES_BY";

/// Request to the searching thread.
enum Request {
    Find(Vec<Ask>),
    /// A process has ended or runs another program.
    Forget(u32),
}

/// Answer of the searching thread: the number of requests dealt with, and the kernels.
type Answer = (usize, Vec<Kernel>);

/// Asks a thread for the names of the programs that a live source's submissions launch, and gives the kernels that it finds as records.
pub(crate) struct Namer {
    /// The compute class of all GPUs, if known.
    class: Option<u32>,
    programs: HashMap<u32, Programs>,
    to: mpsc::Sender<Request>,
    from: mpsc::Receiver<Answer>,
    /// Number of requests that the thread has not taken yet.
    waiting: Arc<AtomicUsize>,
    /// Limit of the waiting requests.
    backlog: Arc<Mutex<Backlog>>,
    /// Number of requests without room: their kernels have no names.
    left_out: u64,
    /// Requests without an answer: time and number.
    outstanding: VecDeque<(Instant, usize)>,
    /// Programs of the last processes that ended or ran another program: their names may still come.
    ended: VecDeque<(u32, Programs)>,
    /// Programs whose code is not known any more.
    doubted: Vec<Record>,
    /// True once no records come any more: from then on writes to programs' addresses are not seen.
    has_ended: bool,
    patience: Duration,
    /// Programs that have names, for tests in step.
    named: in_step::Named,
    now: fn() -> Instant,
}

impl Namer {
    /// Starts the thread that searches.
    pub(crate) fn start(class: Option<u32>) -> Option<Self> {
        let (to, asked) = mpsc::channel();
        let (answer, from) = mpsc::channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let backlog = Arc::default();
        let namer = Self::between(class, (to, from), (waiting, backlog), Instant::now);
        let others = (namer.waiting.clone(), namer.backlog.clone());
        thread::Builder::new()
            .name("nvcap-names".into())
            .spawn(move || serve(&asked, &answer, &others.0, &others.1))
            .ok()?;
        Some(namer)
    }

    fn between(
        class: Option<u32>,
        (to, from): (mpsc::Sender<Request>, mpsc::Receiver<Answer>),
        (waiting, backlog): (Arc<AtomicUsize>, Arc<Mutex<Backlog>>),
        now: fn() -> Instant,
    ) -> Self {
        Self {
            class,
            programs: HashMap::new(),
            to,
            from,
            waiting,
            backlog,
            left_out: 0,
            outstanding: VecDeque::new(),
            ended: VecDeque::new(),
            doubted: Vec::new(),
            has_ended: false,
            patience: in_step::patience(PATIENCE),
            named: in_step::Named::default(),
            now,
        }
    }

    /// Makes a namer without a thread, with the test's clock: the test gives the answers.
    #[cfg(test)]
    pub(crate) fn answered_by_test(class: Option<u32>, now: fn() -> Instant) -> (Self, Answers) {
        let (to, _asked) = mpsc::channel();
        let (answer, from) = mpsc::channel();
        let namer = Self::between(class, (to, from), Default::default(), now);
        (namer, Answers { answer, _asked })
    }

    /// Returns the number of asks that have no answer.
    #[cfg(test)]
    pub(crate) fn asks(&self) -> usize {
        self.outstanding.iter().map(|(_, count)| count).sum()
    }

    /// Returns the time for which the oldest ask has had no answer.
    fn asked_for(&self) -> Option<Duration> {
        let (asked, _) = self.outstanding.front()?;
        Some((self.now)().saturating_duration_since(*asked))
    }

    /// Makes output wait longer for names.
    #[must_use]
    pub(crate) fn patient(self) -> Self {
        Self {
            patience: in_step::patience(LONG_PATIENCE),
            ..self
        }
    }

    /// Looks at new records, and asks for the names of new programs.
    pub(crate) fn look(&mut self, records: &[Record]) {
        let mut asks = Vec::new();
        for record in records {
            let at = record.at();
            match record {
                Record::Submission(s) => {
                    let programs = self.programs.entry(at.pid).or_default();
                    let new = programs.of(s, self.class);
                    if let Some(what) = programs.left_out() {
                        log::info!("process {}: {what}", at.pid);
                    }
                    asks.extend(new.into_iter().map(|n| ask(at, n)));
                    let doubted = programs.take_doubted().into_iter();
                    let unknown = |(program, time_ns)| {
                        Record::Kernel(Box::new(Kernel::unknown(At { time_ns, ..at }, program)))
                    };
                    self.doubted.extend(doubted.map(unknown));
                }
                Record::QmdCopy(i) => {
                    // It was there before the trace.
                    let at = At { time_ns: 0, ..at };
                    let programs = self.programs.entry(at.pid).or_default();
                    let new = programs.of_image(&i.bytes, self.class);
                    asks.extend(new.map(|n| ask(at, n)));
                }
                Record::Process(p) if p.life.ends_work() => {
                    if let Some(programs) = self.programs.remove(&at.pid) {
                        if self.ended.len() == MOST_ENDED {
                            self.ended.pop_front();
                        }
                        self.ended.push_back((at.pid, programs.ended()));
                        let _ = self.to.send(Request::Forget(at.pid));
                    }
                }
                _ => {}
            }
        }
        if !asks.is_empty() {
            let mut backlog = lock(&self.backlog);
            let before = asks.len();
            asks.retain(|ask| backlog.take(ask));
            drop(backlog);
            self.leave_out((before - asks.len()) as u64);
        }
        if !asks.is_empty() {
            let count = asks.len();
            self.waiting.fetch_add(1, Ordering::SeqCst);
            if self.to.send(Request::Find(asks)).is_ok() {
                self.outstanding.push_back(((self.now)(), count));
            }
        }
    }

    /// Counts requests for which there is no room; logs the first.
    fn leave_out(&mut self, asks: u64) {
        if asks > 0 && self.left_out == 0 {
            log::info!("programs come faster than names are found: kernels of some have none");
        }
        self.left_out += asks;
    }

    /// Takes the answers that have come. Waits for the first one up to `wait`.
    pub(crate) fn answers(&mut self, wait: Duration, to: &mut Vec<Record>) {
        to.append(&mut self.doubted);
        let mut next = if wait.is_zero() {
            self.from.try_recv().ok()
        } else {
            self.from.recv_timeout(wait).ok()
        };
        while let Some((done, kernels)) = next {
            self.answered(done);
            let read_ns = clock::now();
            let kernels = kernels.into_iter().filter_map(|k| self.trusted(k, read_ns));
            to.extend(kernels.map(|k| Record::Kernel(Box::new(k))));
            self.named.tell(to);
            next = self.from.try_recv().ok();
        }
    }

    /// Takes note that no records come any more.
    pub(crate) fn end(&mut self) {
        self.has_ended = true;
    }

    /// Returns a kernel with the certainty that the writes to its program's address allow. Memory is read later than the launch: it may hold code
    /// that was loaded since, or the record of code that was there before.
    fn trusted(&mut self, kernel: Kernel, read_ns: u64) -> Option<Kernel> {
        let (pid, time_ns) = (kernel.at.pid, kernel.at.time_ns);
        let ended = self.ended.iter_mut().rev();
        let ended = ended.filter_map(|(of, programs)| (*of == pid).then_some(programs));
        let (trust, programs) = (self.programs.get_mut(&pid).into_iter().chain(ended))
            .find_map(|p| Some((p.found(kernel.program.0, time_ns, read_ns)?, p)))?;
        let is_trusted = match trust {
            Trust::Whole => true,
            Trust::ByCode => kernel.by != NamedBy::Record,
            Trust::None => false,
        };
        let may_be_later = self.has_ended && programs.uses_memory_again();
        Some(Kernel {
            certain: kernel.certain && is_trusted && !may_be_later,
            ..kernel
        })
    }

    /// Takes note that this many of the oldest requests have an answer.
    fn answered(&mut self, mut done: usize) {
        while let Some((_, count)) = self.outstanding.front_mut() {
            if *count > done {
                *count -= done;
                return;
            }
            done -= *count;
            self.outstanding.pop_front();
        }
    }

    /// Tells whether names have been outstanding for less than `most`.
    pub(crate) fn is_asking(&self, most: Duration) -> bool {
        self.asked_for().is_some_and(|time| time < most)
    }

    /// Tells whether output waits for a name longer than its order requires.
    pub(crate) fn is_holding(&self) -> bool {
        self.patience > PATIENCE && self.is_asking(self.patience)
    }

    /// Returns the time for which output still waits for names.
    pub(crate) fn patience(&self) -> Duration {
        self.asked_for()
            .map_or(Duration::ZERO, |time| self.patience.saturating_sub(time))
    }
}

/// The test's end of [`Namer::answered_by_test`].
#[cfg(test)]
pub(crate) struct Answers {
    answer: mpsc::Sender<Answer>,
    _asked: mpsc::Receiver<Request>,
}

#[cfg(test)]
impl Answers {
    /// Answers this many requests without a name.
    pub(crate) fn none_of(&self, asks: usize) {
        self.answer.send((asks, Vec::new())).unwrap();
    }
}

fn lock(backlog: &Mutex<Backlog>) -> MutexGuard<'_, Backlog> {
    backlog.lock().unwrap_or_else(PoisonError::into_inner)
}

fn ask(at: At, new: New) -> Ask {
    Ask {
        at,
        program: GpuVa(new.address),
        registers: new.registers,
        code: new.code,
    }
}

/// Answers requests until the namer is gone.
fn serve(
    from: &mpsc::Receiver<Request>,
    to: &mpsc::Sender<Answer>,
    waiting: &Arc<AtomicUsize>,
    backlog: &Mutex<Backlog>,
) {
    enrich::set_niceness(enrich::SEARCHES);
    let mut searches = Searches::new(to, waiting);
    let take = |requests: &[Request]| {
        let mut backlog = lock(backlog);
        for request in requests {
            if let Request::Find(asks) = request {
                asks.iter().for_each(|ask| backlog.give(ask));
            }
        }
    };
    loop {
        let in_files = searches.want_files();
        let wait = searches
            .next
            .again
            .saturating_duration_since(Instant::now());
        let wait = if in_files { wait.min(QUIET) } else { wait };
        match from.recv_timeout(wait) {
            Ok(request) => {
                let mut requests = vec![request];
                thread::sleep(GATHER);
                requests.extend(from.try_iter());
                take(&requests);
                if searches.answer(requests).is_err() {
                    break;
                }
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {
                if searches.use_quiet(in_files).is_err() {
                    return;
                }
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
        }
    }
    searches.tell();
}

/// The namer is gone.
struct NobodyAsks;

/// Searches for the names of each process's programs.
struct Searches<'a> {
    to: &'a mpsc::Sender<Answer>,
    waiting: &'a Arc<AtomicUsize>,
    /// Searches by process; none where the process's memory cannot be opened.
    resolvers: HashMap<u32, Option<Resolver>>,
    files: Files,
    files_alone: bool,
    next: NextSearch,
}

impl<'a> Searches<'a> {
    fn new(to: &'a mpsc::Sender<Answer>, waiting: &'a Arc<AtomicUsize>) -> Self {
        let files_alone = std::env::var_os(NAMES_BY).is_some_and(|by| by == "file");
        Self {
            to,
            waiting,
            resolvers: HashMap::new(),
            files: match files_alone {
                true => Files::without_limit(),
                false => Files::default(),
            },
            files_alone,
            next: NextSearch::new(),
        }
    }

    /// Tells whether names are to be looked for in files, and there is time for it.
    fn want_files(&self) -> bool {
        let mut all = self.resolvers.values().flatten();
        all.any(|r| self.files.may_work() && r.wants_files().is_some())
    }

    /// Answers requests that came at about the same time, with one search for each process.
    fn answer(&mut self, requests: Vec<Request>) -> Result<(), NobodyAsks> {
        let mut asks: BTreeMap<u32, Vec<Ask>> = BTreeMap::new();
        let mut over = Vec::new();
        for request in requests {
            match request {
                Request::Find(all) => {
                    self.waiting.fetch_sub(1, Ordering::SeqCst);
                    for ask in all {
                        asks.entry(ask.at.pid).or_default().push(ask);
                    }
                }
                Request::Forget(pid) => over.push(pid),
            }
        }
        for (pid, asks) in asks {
            let answer = self.find(pid, &asks);
            if self.to.send(answer).is_err() {
                break;
            }
        }
        for pid in over {
            if let Some(Some(resolver)) = self.resolvers.remove(&pid) {
                tell(pid, &resolver);
            }
        }
        // Where new programs keep coming, too.
        match self.next.is_due() {
            true => self.find_again(),
            false => Ok(()),
        }
    }

    /// Looks for the programs of a process. Requests for programs that are not found are answered by the next search.
    fn find(&mut self, pid: u32, asks: &[Ask]) -> Answer {
        let (files_alone, waiting) = (self.files_alone, self.waiting);
        let resolver = self
            .resolvers
            .entry(pid)
            .or_insert_with(|| match Resolver::open(pid) {
                Ok(r) if files_alone => Some(r.in_files_alone()),
                Ok(r) => Some(r.that_yields_to(waiting)),
                Err(e) => {
                    log::info!("process {pid}: names of kernels are not looked for: {e}");
                    None
                }
            });
        let Some(resolver) = resolver else {
            return (asks.len(), Vec::new());
        };
        let kernels = resolver.resolve(asks);
        let mut done = asks.len();
        if resolver.has_left() {
            let named = |a: &Ask| kernels.iter().any(|k| k.program == a.program && k.certain);
            let nameless = asks.iter().filter(|a| !named(a)).count();
            done -= nameless;
            self.next.owe(nameless);
        }
        (done, kernels)
    }

    /// Uses a time without requests: looks again for programs that were not found, or else in files, where `in_files` says so.
    fn use_quiet(&mut self, in_files: bool) -> Result<(), NobodyAsks> {
        if self.next.is_due() {
            return self.find_again();
        }
        if !in_files {
            return Ok(());
        }
        let wanting = self.resolvers.values_mut().flatten();
        let wanting = wanting.filter_map(|r| Some((r.wants_files()?, r)));
        // Those that have had least of it.
        match wanting.min_by_key(|(search, _)| *search) {
            Some((_, resolver)) => {
                let kernels = resolver.in_files(&mut self.files);
                self.give(0, kernels)
            }
            None => Ok(()),
        }
    }

    /// Looks again for programs that were not found, where there is time for it.
    fn find_again(&mut self) -> Result<(), NobodyAsks> {
        let left = self.resolvers.values_mut().flatten();
        let left = left.filter(|r| r.has_left());
        let kernels = left.flat_map(|r| r.resolve(&[])).collect();
        let done = self.next.searched(self.waiting);
        self.give(done, kernels)
    }

    /// Gives an answer, unless it is empty.
    fn give(&self, done: usize, kernels: Vec<Kernel>) -> Result<(), NobodyAsks> {
        if done == 0 && kernels.is_empty() {
            return Ok(());
        }
        self.to.send((done, kernels)).map_err(|_| NobodyAsks)
    }

    /// Logs the cost of all searches.
    fn tell(&self) {
        if !self.files.is_empty() {
            log::info!("names of kernels: {}", self.files.cost());
        }
        for (pid, resolver) in &self.resolvers {
            if let Some(resolver) = resolver {
                tell(*pid, resolver);
            }
        }
    }
}

/// The next search for programs that were not found.
struct NextSearch {
    /// Time at which it is due.
    again: Instant,
    /// Pause before the search after that, if not all are found.
    soon: Duration,
    /// Number of requests that it answers.
    owed: usize,
}

impl NextSearch {
    fn new() -> Self {
        Self {
            again: Instant::now() + AGAIN,
            soon: FIRST_AGAIN,
            owed: 0,
        }
    }

    fn is_due(&self) -> bool {
        Instant::now() >= self.again
    }

    /// Takes note that a search left this many requests without a name.
    fn owe(&mut self, nameless: usize) {
        if nameless > 0 {
            self.owed += nameless;
            self.again = self.again.min(Instant::now() + self.soon);
            self.soon = AGAIN.min(self.soon * 2);
        }
    }

    /// Takes note that programs were looked for again, and returns the number of requests that it answers. The next search comes soon if this one was
    /// interrupted by requests.
    fn searched(&mut self, waiting: &AtomicUsize) -> usize {
        let (done, pause) = match waiting.load(Ordering::SeqCst) {
            0 => (std::mem::take(&mut self.owed), AGAIN),
            _ => (0, FIRST_AGAIN),
        };
        self.again = Instant::now() + pause;
        done
    }
}

/// Logs the cost of a process's search.
fn tell(pid: u32, resolver: &Resolver) {
    let cost = resolver.cost();
    log::info!(
        "process {pid}: names of {} of {} programs; {} searches ({} of known memory), {:.0} MB; processor time {:.0} ms at first and {:.0} ms later; {:.1} ms in all, the longest {:.1} ms, at most {:.1} ms after a launch; {}",
        cost.found,
        cost.asked,
        cost.searches,
        cost.whole,
        cost.bytes as f64 / 1e6,
        cost.first.as_secs_f64() * 1e3,
        cost.later.as_secs_f64() * 1e3,
        cost.time.as_secs_f64() * 1e3,
        cost.longest.as_secs_f64() * 1e3,
        cost.latest.as_secs_f64() * 1e3,
        resolver.learnt()
    );
}

#[cfg(test)]
mod tests;
