//! The watch for faults, on a thread of its own: it searches memory for milliseconds, which the thread that reads rings must not wait for.

use std::{
    collections::HashSet,
    iter, mem,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use super::watch::{Note, Pace, Watch};
use nvcap_decode::record::{ChannelId, Fault, Life, Record};

/// Time without a submission after which looks become rare.
const STILL: Duration = Duration::from_secs(10);
/// Longest time for which the end of a trace waits for the last look.
const LAST: Duration = Duration::from_millis(250);
/// Time for which the thread sleeps while no process is watched. The first process wakes it.
const NOTHING: Duration = Duration::from_secs(3600);

enum Request {
    Note(Note),
    /// The pace of the looks from now on.
    Pace(Pace),
}

struct Answer {
    faults: Vec<Fault>,
    /// Number of requests at an end that this answers.
    asked: usize,
}

/// The session's end of the watch.
#[derive(Debug)]
pub(crate) struct FaultWatch {
    to: mpsc::Sender<Request>,
    from: mpsc::Receiver<Answer>,
    /// Channels that are known to have submitted.
    submitting: HashSet<ChannelId>,
    /// True once a channel was announced.
    any: bool,
    /// Time of the last submission.
    newest: Instant,
    pace: Pace,
    /// Number of requests at an end without an answer.
    asked: usize,
}

impl FaultWatch {
    /// Starts the thread; none where the system cannot start one.
    pub(crate) fn start() -> Option<Self> {
        let (to, requests) = mpsc::channel();
        let (answers, from) = mpsc::channel();
        thread::Builder::new()
            .name("nvcap-faults".into())
            .spawn(move || serve(&requests, &answers))
            .inspect_err(|e| log::info!("faults of the GPU are not watched for: {e}"))
            .ok()?;
        Some(Self {
            to,
            from,
            submitting: HashSet::new(),
            any: false,
            newest: Instant::now(),
            pace: Pace::Works,
            asked: 0,
        })
    }

    /// Returns the time for which a source may wait, so that faults are reported soon.
    pub(crate) fn wait(&self, wait: Duration) -> Duration {
        match self.any {
            true => wait.min(self.pace.shortest()),
            false => wait,
        }
    }

    /// Tells whether a process that stands at its end must still be looked at.
    pub(crate) fn is_asking(&self) -> bool {
        self.asked > 0
    }

    /// Takes note of new records, and adds the faults that have come. `at_end`: a process stands at its end.
    pub(crate) fn look(&mut self, records: &mut Vec<Record>, at_end: bool) {
        for record in &*records {
            if let Some(note) = self.note(record) {
                let _ = self.to.send(Request::Note(note));
            }
        }
        let pace = self.pace_of(records, at_end);
        if mem::replace(&mut self.pace, pace) != pace {
            self.ask(pace);
        }
        while let Ok(answer) = self.from.try_recv() {
            self.take(answer, records);
        }
    }

    /// Adds the faults that a last look finds. Waits a moment for them.
    pub(crate) fn finish(&mut self, records: &mut Vec<Record>) {
        self.ask(Pace::AtEnd);
        let until = Instant::now() + LAST;
        while self.asked > 0 {
            let left = until.saturating_duration_since(Instant::now());
            let Ok(answer) = self.from.recv_timeout(left) else {
                return;
            };
            self.take(answer, records);
        }
    }

    /// Returns the pace of the looks after these records.
    fn pace_of(&mut self, records: &[Record], at_end: bool) -> Pace {
        let comes = records.iter().any(|r| matches!(r, Record::Submission(_)));
        if comes {
            self.newest = Instant::now();
        }
        match at_end {
            true => Pace::AtEnd,
            false if comes || self.newest.elapsed() < STILL => Pace::Works,
            false => Pace::Rests,
        }
    }

    fn ask(&mut self, pace: Pace) {
        let sent = self.to.send(Request::Pace(pace)).is_ok();
        self.asked += usize::from(sent && pace == Pace::AtEnd);
    }

    fn take(&mut self, answer: Answer, records: &mut Vec<Record>) {
        self.asked = self.asked.saturating_sub(answer.asked);
        let faults = answer.faults.into_iter().map(Box::new);
        records.extend(faults.map(Record::Fault));
    }

    /// Returns the part of a record that the watch needs.
    fn note(&mut self, record: &Record) -> Option<Note> {
        match record {
            Record::Channel(c) if c.at.pid != 0 => {
                self.any = true;
                Some(Note::Channel(c.clone()))
            }
            Record::Submission(s) if self.submitting.insert(s.channel) => Some(Note::Submits {
                pid: s.at.pid,
                channel: s.channel,
            }),
            Record::Process(p) => match p.life {
                Life::Exec { .. } => Some(Note::Exec(p.at.pid)),
                Life::Exit { process: true } => Some(Note::Exit(p.at.pid)),
                _ => None,
            },
            _ => None,
        }
    }
}

/// Watches until nobody sends requests any more.
fn serve(from: &mpsc::Receiver<Request>, to: &mpsc::Sender<Answer>) {
    let mut watch = Watch::new();
    let mut pace = Pace::Works;
    loop {
        let wait = watch.until_next().unwrap_or(NOTHING);
        let first = match from.recv_timeout(wait) {
            Ok(first) => Some(first),
            Err(mpsc::RecvTimeoutError::Timeout) => None,
            Err(mpsc::RecvTimeoutError::Disconnected) => return,
        };
        let mut asked = 0;
        for request in first
            .into_iter()
            .chain(iter::from_fn(|| from.try_recv().ok()))
        {
            match request {
                Request::Note(note) => watch.note(note),
                Request::Pace(new) => {
                    pace = new;
                    asked += usize::from(new == Pace::AtEnd);
                    watch.hurry();
                }
            }
        }
        let is_asked = asked > 0;
        let faults = watch.look(if is_asked { Pace::AtEnd } else { pace }, is_asked);
        let says = is_asked || !faults.is_empty();
        if says && to.send(Answer { faults, asked }).is_err() {
            return;
        }
    }
}
