//! The watch for faults, on a thread of its own: it searches memory for milliseconds, which the thread that reads rings must not wait for.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    iter, mem,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use super::{
    bell::Bell,
    watch::{Looked, Note, Pace, Watch},
};
use nvcap_decode::record::{At, ChannelId, Life, Loss, Lost, Record};
use nvcap_process::clock;

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
    /// The last look.
    Last,
}

struct Answer {
    looked: Looked,
    /// Number of requests at an end that this answers.
    asked: usize,
}

/// The session's end of the watch.
#[derive(Debug)]
pub(crate) struct FaultWatch {
    to: mpsc::Sender<Request>,
    /// Wakes the thread for a request.
    bell: Bell,
    from: mpsc::Receiver<Answer>,
    /// Channels that are known to have submitted.
    submitting: HashSet<ChannelId>,
    /// Channels of each process whose notifiers are read, until its end is answered.
    watched: BTreeMap<u32, BTreeSet<ChannelId>>,
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
        let started = Bell::new().and_then(|bell| {
            let rung = bell.clone();
            thread::Builder::new()
                .name("nvcap-faults".into())
                .spawn(move || serve(&rung, &requests, &answers))?;
            Ok(bell)
        });
        let bell = started
            .inspect_err(|e| log::info!("faults of the GPU are not watched for: {e}"))
            .ok()?;
        Some(Self::of(bell, to, from))
    }

    fn of(bell: Bell, to: mpsc::Sender<Request>, from: mpsc::Receiver<Answer>) -> Self {
        Self {
            to,
            bell,
            from,
            submitting: HashSet::new(),
            watched: BTreeMap::new(),
            newest: Instant::now(),
            pace: Pace::Works,
            asked: 0,
        }
    }

    /// Returns the time for which a source may wait, so that faults are reported soon.
    pub(crate) fn wait(&self, wait: Duration) -> Duration {
        match self.watched.is_empty() {
            false => wait.min(self.pace.shortest()),
            true => wait,
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
                self.send(Request::Note(note));
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

    /// Adds the faults that a last look finds. Waits a moment for them; where they do not come, says whose are lacking.
    pub(crate) fn finish(&mut self, records: &mut Vec<Record>) {
        self.asked += usize::from(self.send(Request::Last));
        let until = Instant::now() + LAST;
        while self.asked > 0 {
            let left = until.saturating_duration_since(Instant::now());
            match self.from.recv_timeout(left) {
                Ok(answer) => self.take(answer, records),
                Err(_) => {
                    let all = mem::take(&mut self.watched).into_iter();
                    records.extend(all.map(|(pid, channels)| unread((pid, channels.len() as u64))));
                    return;
                }
            }
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
        let is_sent = self.send(Request::Pace(pace));
        self.asked += usize::from(is_sent && pace == Pace::AtEnd);
    }

    /// Sends a request to the thread. False where the thread has ended.
    fn send(&self, request: Request) -> bool {
        let is_sent = self.to.send(request).is_ok();
        self.bell.ring();
        is_sent
    }

    fn take(&mut self, answer: Answer, records: &mut Vec<Record>) {
        self.asked = self.asked.saturating_sub(answer.asked);
        let Looked {
            faults,
            unread: not_read,
            ended,
        } = answer.looked;
        records.extend(faults.into_iter().map(Box::new).map(Record::Fault));
        records.extend(not_read.into_iter().map(unread));
        for pid in ended {
            self.watched.remove(&pid);
        }
    }

    /// Returns the part of a record that the watch needs.
    fn note(&mut self, record: &Record) -> Option<Note> {
        match record {
            Record::Channel(c) if c.at.pid != 0 => {
                self.watched.entry(c.at.pid).or_default().insert(c.id);
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

/// The loss of a process whose notifiers were not read: its id and the number of its channels.
fn unread((pid, count): (u32, u64)) -> Record {
    Record::Loss(Loss {
        at: At::of_process(clock::now(), pid),
        channel: None,
        what: Lost::Notifiers { count },
    })
}

impl Drop for FaultWatch {
    /// Lets the thread see that nobody asks any more.
    fn drop(&mut self) {
        let (none, _) = mpsc::channel();
        self.to = none;
        self.bell.ring();
    }
}

/// Watches until nobody sends requests any more.
fn serve(bell: &Bell, from: &mpsc::Receiver<Request>, to: &mpsc::Sender<Answer>) {
    let mut watch = Watch::new();
    let mut pace = Pace::Works;
    loop {
        let wait = watch.until_next();
        let log = wait.and_then(|_| watch.log());
        if bell.wait(log, wait.unwrap_or(NOTHING)) {
            watch.read_log();
        }
        let first = match from.try_recv() {
            Ok(first) => Some(first),
            Err(mpsc::TryRecvError::Empty) => None,
            Err(mpsc::TryRecvError::Disconnected) => return,
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
                Request::Last => {
                    pace = Pace::AtEnd;
                    asked += 1;
                    watch.end();
                }
            }
        }
        let is_asked = asked > 0;
        let looked = watch.look(if is_asked { Pace::AtEnd } else { pace }, is_asked);
        let says = is_asked || !looked.faults.is_empty() || !looked.ended.is_empty();
        if says && to.send(Answer { looked, asked }).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvcap_decode::record::{Channel, Origin, Process};

    fn losses(records: &[Record]) -> Vec<(u32, Lost)> {
        let of = |r: &Record| match r {
            Record::Loss(l) => Some((l.at.pid, l.what.clone())),
            _ => None,
        };
        records.iter().filter_map(of).collect()
    }

    fn channel(pid: u32, id: u32) -> Record {
        let at = At::of_process(1, pid);
        Record::Channel(Box::new(Channel::bare(at, ChannelId(id), Origin::Given)))
    }

    /// The thread that reads notifiers has no processor for longer than the end of a trace waits for it.
    #[test]
    fn what_the_last_look_did_not_read_is_told() {
        let (to, _requests) = mpsc::channel();
        let (answers, from) = mpsc::channel();
        let mut watch = FaultWatch::of(Bell::new().unwrap(), to, from);
        watch.look(
            // What is learnt of a channel announces it again.
            &mut vec![channel(7, 0), channel(7, 1), channel(7, 1), channel(8, 2)],
            false,
        );
        let exit = Life::Exit { process: true };
        let at = At::of_process(2, 8);
        watch.look(&mut vec![Record::Process(Process { at, life: exit })], true);
        assert!(watch.is_asking());
        // 8 ended unread, and that is answered; the last look at 7 is not.
        let looked = Looked {
            unread: vec![(8, 1)],
            ended: vec![8],
            ..Looked::default()
        };
        answers.send(Answer { looked, asked: 1 }).unwrap();
        let mut records = Vec::new();
        watch.look(&mut records, false);
        assert_eq!(losses(&records), [(8, Lost::Notifiers { count: 1 })]);
        assert!(!watch.is_asking());
        records.clear();
        watch.finish(&mut records);
        assert_eq!(losses(&records), [(7, Lost::Notifiers { count: 2 })]);
    }
}
