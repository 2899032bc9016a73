//! Readers: threads that look at channels beside the session's own thread, which cannot keep up with many busy ones.
//!
//! The session gives a channel to a reader and takes it back; [`super::balance`] decides the moves. A reader looks at each of
//! its channels when the channel's pace says so, and puts the records into its outbox. It does not judge why a ring cannot be
//! read any more, but gives the channel back.
//!
//! The records of one channel stay in order, whichever thread looks: a reader puts them into its outbox before it unlocks the
//! ring, and the next thread that looks at the ring empties that outbox first.

use std::{
    collections::BTreeMap,
    mem,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, atomic::Ordering},
    thread,
    time::Duration,
};

use super::{
    channel::ReadRing,
    followed::SharedRing,
    process::{self, OpenedProcess, now},
    scheduler::{Scheduler, Turn},
};
use nvcap_decode::ledger::ReaderCost;
use nvcap_decode::record::{ChannelId, Record};

/// Longest time for which a reader without work waits before it checks for work.
const LONGEST_WAIT: Duration = Duration::from_millis(100);
/// The most bytes of records in an outbox. With more, its reader does not look.
const MOST_WAITING: usize = 64 << 20;
/// Time after which a reader with a full outbox tries again.
const FULL: Duration = Duration::from_millis(1);

/// A channel that a reader is to look at.
#[derive(Debug)]
pub(super) struct Task {
    /// Number of the channel.
    pub channel: ChannelId,
    /// Ring of the channel.
    pub ring: Arc<SharedRing>,
    /// A process that has the ring.
    pub process: Arc<OpenedProcess>,
}

/// Results of a reader that the session has not taken yet.
#[derive(Debug, Default)]
struct Outbox {
    records: Vec<Record>,
    bytes: usize,
    /// Channels whose rings could not be read.
    failed: Vec<ChannelId>,
    latest_ns: u64,
    longest_look_ns: u64,
}

impl Outbox {
    /// Takes the records out of the outbox.
    fn empty(&mut self, to: &mut Vec<Record>) {
        self.bytes = 0;
        to.append(&mut self.records);
    }
}

/// Results of all readers.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Collected {
    /// Channels whose rings could not be read. Their readers do not look at them any more.
    pub failed: Vec<ChannelId>,
    /// Longest delay of a look at a used channel, ns.
    pub latest_ns: u64,
    /// Longest duration of a look, ns.
    pub longest_look_ns: u64,
}

/// Tasks that a reader has not taken yet.
#[derive(Debug, Default)]
struct Inbox {
    tasks: Vec<Task>,
    ends: bool,
}

/// The two boxes between the session and one reader.
#[derive(Debug, Default)]
struct Boxes {
    inbox: Mutex<Inbox>,
    /// Bell that rings when something was put into the inbox.
    bell: Condvar,
    outbox: Mutex<Outbox>,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A reading thread.
#[derive(Debug)]
struct Reader {
    boxes: Arc<Boxes>,
    /// Handle of the thread, which returns the CPU time that it used, ns.
    thread: thread::JoinHandle<u64>,
    /// Number of times that the reader was given a channel.
    given: u64,
}

/// All readers of a session.
#[derive(Debug, Default)]
pub(super) struct Readers {
    all: Vec<Reader>,
}

impl Readers {
    /// Returns the number of readers.
    pub(super) fn count(&self) -> usize {
        self.all.len()
    }

    /// Starts a further reader; false where the system cannot start a thread.
    pub(super) fn start(&mut self) -> bool {
        let boxes = Arc::new(Boxes::default());
        let number = self.all.len();
        let desk = Desk {
            number,
            boxes: boxes.clone(),
            tasks: BTreeMap::new(),
            scheduler: Scheduler::default(),
            records: Vec::new(),
        };
        let thread = thread::Builder::new()
            .name(format!("nvcap-reader-{}", number + 1))
            .spawn(move || desk.run());
        match thread {
            Ok(thread) => {
                self.all.push(Reader {
                    boxes,
                    thread,
                    given: 0,
                });
                true
            }
            Err(e) => {
                log::debug!("no further thread to read with: {e}");
                false
            }
        }
    }

    /// Gives a channel to a reader. The ring must name this reader.
    pub(super) fn give(&mut self, reader: usize, task: Task) {
        let reader = &mut self.all[reader];
        reader.given += 1;
        lock(&reader.boxes.inbox).tasks.push(task);
        reader.boxes.bell.notify_one();
    }

    /// Takes the records that one reader has found so far.
    pub(super) fn empty(&self, reader: usize, to: &mut Vec<Record>) {
        lock(&self.all[reader].boxes.outbox).empty(to);
    }

    /// Takes the findings of all readers so far.
    pub(super) fn collect(&self, to: &mut Vec<Record>) -> Collected {
        let mut all = Collected::default();
        for reader in &self.all {
            let mut outbox = lock(&reader.boxes.outbox);
            outbox.empty(to);
            all.failed.append(&mut outbox.failed);
            all.latest_ns = all.latest_ns.max(outbox.latest_ns);
            all.longest_look_ns = all.longest_look_ns.max(outbox.longest_look_ns);
        }
        all
    }

    /// Ends all readers, and returns the channels given to each and the CPU time it used. The readers must have no channels any
    /// more, and empty outboxes.
    pub(super) fn end(&mut self) -> Vec<ReaderCost> {
        let all = mem::take(&mut self.all);
        for reader in &all {
            lock(&reader.boxes.inbox).ends = true;
            reader.boxes.bell.notify_one();
        }
        let cost = |reader: Reader| ReaderCost {
            channels: reader.given,
            cpu_ns: reader.thread.join().unwrap_or_default(),
        };
        all.into_iter().map(cost).collect()
    }
}

/// A reader's own side.
struct Desk {
    number: usize,
    boxes: Arc<Boxes>,
    tasks: BTreeMap<ChannelId, Task>,
    scheduler: Scheduler,
    /// Buffer for the records of a look.
    records: Vec<Record>,
}

impl Desk {
    /// Looks at channels until the reader is ended. Returns the CPU time that this took, ns.
    fn run(mut self) -> u64 {
        process::run_before_others();
        while self.take_tasks() {
            let round = Scheduler::round(now());
            while let Some(turn) = self.scheduler.choose(now(), round) {
                if lock(&self.boxes.outbox).bytes > MOST_WAITING {
                    thread::sleep(FULL);
                    break;
                }
                self.look(turn);
            }
            self.wait();
        }
        process::thread_cpu()
    }

    /// Takes new tasks; false when the reader is to end.
    fn take_tasks(&mut self) -> bool {
        let mut inbox = lock(&self.boxes.inbox);
        for task in inbox.tasks.drain(..) {
            self.scheduler.follow(task.channel);
            self.tasks.insert(task.channel, task);
        }
        !inbox.ends
    }

    /// Waits until a channel is due, or something is put into the inbox.
    fn wait(&self) {
        let inbox = lock(&self.boxes.inbox);
        if !inbox.tasks.is_empty() || inbox.ends {
            return;
        }
        let ns = self.scheduler.next().saturating_sub(now());
        if ns > 0 {
            let wait = Duration::from_nanos(ns).min(LONGEST_WAIT);
            let _ = self.boxes.bell.wait_timeout(inbox, wait);
        }
    }

    /// Looks at a channel, unless the session has taken it back.
    fn look(&mut self, turn: Turn) {
        let Some(task) = self.tasks.get(&turn.channel) else {
            self.scheduler.forget(turn.channel);
            return;
        };
        let mut ring = task.ring.lock();
        let begun = now();
        if ring.reader != Some(self.number) {
            drop(ring);
            self.leave(turn.channel);
            return;
        }
        let moved = ring.moved;
        let memory = &task.process.memory;
        let looked = ring.look(memory, ReadRing::IfNeeded, begun, &mut self.records);
        if ring.moved != moved {
            task.ring.came_at.store(begun, Ordering::Relaxed);
        }
        let again = ring.follower.again();
        let took = now() - begun;
        task.ring.looking_ns.fetch_add(took, Ordering::Relaxed);
        let mut outbox = lock(&self.boxes.outbox);
        outbox.bytes += self.records.iter().map(Record::size).sum::<usize>();
        outbox.records.append(&mut self.records);
        outbox.longest_look_ns = outbox.longest_look_ns.max(took);
        if ring.follower.phase().is_used() {
            outbox.latest_ns = outbox.latest_ns.max(turn.late_ns.unwrap_or(0));
        }
        if looked.is_ok() {
            self.scheduler.looked(turn.channel, begun, again);
            return;
        }
        outbox.failed.push(turn.channel);
        drop(outbox);
        drop(ring);
        self.leave(turn.channel);
    }

    /// Stops looking at a channel.
    fn leave(&mut self, channel: ChannelId) {
        self.tasks.remove(&channel);
        self.scheduler.forget(channel);
    }
}
