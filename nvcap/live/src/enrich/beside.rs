//! Records that other threads make beside a source (samples of program counters, context switches).

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};

use nvcap_decode::record::Record;

/// The most records that may wait for the source.
const MOST_WAITING: usize = 64;

/// State that both sides share.
#[derive(Debug, Default)]
struct Shared {
    /// Processes with a channel.
    processes: Mutex<BTreeSet<u32>>,
    /// True when the trace ends.
    ends: AtomicBool,
    /// Number of times that a process stood at its end; and the count up to which the other thread has done the work that needs such a
    /// process.
    asked: AtomicUsize,
    answered: AtomicUsize,
}

/// The source's side. When it is dropped, the other thread is told to end.
#[derive(Debug)]
pub struct Beside {
    shared: Arc<Shared>,
    from: mpsc::Receiver<Record>,
    /// True if processes that end are needed by the other thread.
    asks: bool,
    at_end: bool,
}

/// The side of the thread that makes the records. When it is dropped, the thread counts as ended.
#[derive(Clone, Debug)]
pub struct BesideTrace {
    shared: Arc<Shared>,
    to: mpsc::SyncSender<Record>,
}

/// Makes both sides. `asks`: a process stands at its end until the other thread has done the work that needs it.
#[must_use]
pub fn beside(asks: bool) -> (Beside, BesideTrace) {
    let shared = Arc::new(Shared::default());
    let (to, from) = mpsc::sync_channel(MOST_WAITING);
    let source = Beside {
        shared: shared.clone(),
        from,
        asks,
        at_end: false,
    };
    (source, BesideTrace { shared, to })
}

impl BesideTrace {
    /// Returns the traced processes that have a channel, without those that were seen to end.
    #[must_use]
    pub fn processes(&self) -> BTreeSet<u32> {
        let processes = self.shared.processes.lock();
        processes.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Tells whether the trace has ended.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.shared.ends.load(Ordering::SeqCst)
    }

    /// Returns a number while a process stands at its end: the process waits for a moment, until [`BesideTrace::answer`] is called
    /// with the number.
    #[must_use]
    pub fn is_asked(&self) -> Option<usize> {
        let asked = self.shared.asked.load(Ordering::SeqCst);
        (asked > self.shared.answered.load(Ordering::SeqCst)).then_some(asked)
    }

    /// Reports that the work is done that needs the process at its end.
    pub fn answer(&self, asked: usize) {
        self.shared.answered.store(asked, Ordering::SeqCst);
    }

    /// Gives a record to the trace; false if the trace takes no more records.
    #[must_use]
    pub fn give(&self, record: Record) -> bool {
        self.to.send(record).is_ok()
    }
}

impl Beside {
    /// Takes note of the source's records, and adds the other thread's. `at_end`: a process stands at its end.
    pub(super) fn look(&mut self, records: &mut Vec<Record>, at_end: bool) {
        {
            let processes = self.shared.processes.lock();
            let mut processes = processes.unwrap_or_else(PoisonError::into_inner);
            for record in &*records {
                match record {
                    Record::Channel(c) if c.at.pid != 0 => {
                        processes.insert(c.at.pid);
                    }
                    Record::Process(p) if p.life.ends_work() => {
                        processes.remove(&p.at.pid);
                    }
                    _ => {}
                }
            }
        }
        if self.asks && at_end && !std::mem::replace(&mut self.at_end, at_end) {
            self.shared.asked.fetch_add(1, Ordering::SeqCst);
        }
        self.at_end = at_end;
        records.extend(self.from.try_iter());
    }

    /// Tells whether a process that stands at its end is still needed.
    pub(super) fn is_asking(&self) -> bool {
        let answered = self.shared.answered.load(Ordering::SeqCst);
        // Once the other thread has ended, nobody answers.
        let is_there = Arc::strong_count(&self.shared) > 1;
        is_there && self.shared.asked.load(Ordering::SeqCst) > answered
    }

    /// Ends the other thread, and gives its last records.
    pub(super) fn finish(self, records: &mut Vec<Record>) {
        self.shared.ends.store(true, Ordering::SeqCst);
        records.extend(self.from.iter());
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvcap_decode::record::{At, Life, Process, Samples};

    fn samples(pid: u32) -> Record {
        Record::Samples(Box::new(Samples {
            at: At::of_process(1, pid),
            ..Samples::default()
        }))
    }

    fn exit(pid: u32) -> Record {
        Record::Process(Process {
            at: At::of_process(1, pid),
            life: Life::Exit { process: true },
        })
    }

    #[test]
    fn a_thread_beside_a_source_is_asked_and_ended() {
        let (mut source, thread) = beside(true);
        let mut records = vec![exit(3)];
        assert!(thread.give(samples(1)));
        source.look(&mut records, false);
        assert_eq!(records, [exit(3), samples(1)]);
        assert_eq!((thread.is_asked(), source.is_asking()), (None, false));
        // One process at its end is one question.
        source.look(&mut records, true);
        source.look(&mut records, true);
        assert_eq!((thread.is_asked(), source.is_asking()), (Some(1), true));
        thread.answer(1);
        assert_eq!((thread.is_asked(), source.is_asking()), (None, false));
        source.look(&mut records, false);
        source.look(&mut records, true);
        assert_eq!(thread.is_asked(), Some(2));
        let worker = std::thread::spawn(move || {
            while !thread.is_over() {
                std::thread::yield_now();
            }
            assert!(thread.give(samples(2)));
        });
        let mut last = Vec::new();
        source.finish(&mut last);
        assert_eq!(last, [samples(2)]);
        worker.join().unwrap();
    }

    #[test]
    fn nobody_waits_for_a_thread_that_has_ended() {
        let (mut source, thread) = beside(true);
        source.look(&mut Vec::new(), true);
        assert!(source.is_asking());
        drop(thread);
        assert!(!source.is_asking());
        let (mut source, thread) = beside(false);
        source.look(&mut Vec::new(), true);
        assert!(!source.is_asking());
        drop(source);
        assert!(thread.is_over() && !thread.give(samples(1)));
    }
}
