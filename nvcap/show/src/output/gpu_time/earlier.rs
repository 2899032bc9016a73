//! Work of before the trace that has not ended, of processes that submitted nothing in it.

use std::collections::{BTreeSet, HashSet};

use serde_json::{Value, json};

use crate::output::plural::plural_of;
use nvcap_decode::record::{Life, Process, Record};

/// The most processes that are looked at: a look costs milliseconds.
pub const MOST: usize = 32;

/// A look at processes, by their ids: those whose work has not ended.
pub type Look = Box<dyn FnOnce(&[u32]) -> Vec<Work>>;

/// Work that was submitted before the trace began and has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work {
    /// The process.
    pub pid: u32,
    /// Sentence on its work.
    pub says: String,
}

/// Traced processes that have submitted nothing, and what a look at them tells.
#[derive(Debug, Default)]
pub(super) struct Earlier {
    /// Traced processes that have not ended, and those of which there is a submission.
    present: BTreeSet<u32>,
    submitted: HashSet<u32>,
    works: Vec<Work>,
    /// Number of processes that were not looked at.
    left: usize,
}

impl Earlier {
    /// Takes the next record.
    pub(super) fn record(&mut self, record: &Record) {
        let pid = record.at().pid;
        match record {
            Record::Process(Process { life, .. }) => match life {
                Life::Present { .. } | Life::Identity(_) => _ = self.present.insert(pid),
                Life::Fork { child } => _ = self.present.insert(*child),
                Life::Exec { .. } | Life::Exit { process: true } => {
                    self.present.remove(&pid);
                    self.submitted.remove(&pid);
                }
                Life::Thread { .. } | Life::Exit { process: false } => {}
            },
            // What was not read may be a submission.
            Record::Submission(_) | Record::Skipped(_) | Record::Loss(_) => {
                self.submitted.insert(pid);
            }
            _ => {}
        }
    }

    /// Looks at the processes that submitted nothing, and are there.
    pub(super) fn look(&mut self, look: Look) {
        let idle = self
            .present
            .iter()
            .filter(|pid| !self.submitted.contains(pid));
        let idle: Vec<u32> = idle.copied().collect();
        self.left = idle.len().saturating_sub(MOST);
        if !idle.is_empty() {
            self.works = look(&idle[..idle.len() - self.left]);
        }
    }

    /// Tells whether there is such work.
    pub(super) fn is_some(&self) -> bool {
        !self.works.is_empty()
    }

    /// Sentences on it. `alone`: nothing was submitted at all.
    pub(super) fn lines(&self, alone: bool) -> Vec<String> {
        let idle = match alone {
            true => "",
            false => " submitted nothing in this time, and earlier work has not ended",
        };
        let line = |work: &Work| format!("process {}{idle}: {}", work.pid, work.says);
        let mut lines: Vec<String> = self.works.iter().map(line).collect();
        if self.left > 0 {
            let left = plural_of(self.left as u64, "process", "processes");
            lines.push(format!(
                "{left} more submitted nothing: whether their earlier work has ended was not looked at"
            ));
        }
        lines
    }

    /// Number of processes that submitted nothing and were not looked at.
    pub(super) fn left(&self) -> usize {
        self.left
    }

    /// The works.
    pub(super) fn json(&self) -> Vec<Value> {
        let works = self.works.iter();
        works
            .map(|work| json!({"pid": work.pid, "says": work.says}))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvcap_decode::record::{At, ChannelId, Skipped, SkippedWhy};

    fn earlier(records: &[(u32, Life)]) -> Earlier {
        let mut earlier = Earlier::default();
        for (pid, life) in records {
            earlier.record(&Record::Process(Process {
                at: At::of_process(1, *pid),
                life: life.clone(),
            }));
        }
        earlier
    }

    fn present() -> Life {
        Life::Present { name: "x".into() }
    }

    /// Those that are there and of which there is no submission, however they came.
    #[test]
    fn processes_that_submitted_nothing_are_looked_at() {
        let mut earlier = earlier(&[
            (1, present()),
            (2, present()),
            (3, present()),
            (3, Life::Fork { child: 4 }),
            (2, Life::Exit { process: false }),
            (3, Life::Exit { process: true }),
        ]);
        earlier.record(&Record::Skipped(Skipped {
            at: At::of_process(2, 1),
            channel: ChannelId(1),
            position: 0,
            entries: 1,
            doorbells: None,
            why: SkippedWhy::Resting,
        }));
        earlier.look(Box::new(|pids| {
            assert_eq!(pids, [2, 4]);
            vec![Work {
                pid: 2,
                says: "a kernel".into(),
            }]
        }));
        assert_eq!(earlier.lines(true), ["process 2: a kernel"]);
        let line =
            "process 2 submitted nothing in this time, and earlier work has not ended: a kernel";
        assert_eq!(earlier.lines(false), [line]);
        assert_eq!(earlier.json(), [json!({"pid": 2, "says": "a kernel"})]);
    }

    #[test]
    fn so_many_are_looked_at_and_the_others_counted() {
        let all = Vec::from_iter((1..=40).map(|pid| (pid, present())));
        let mut earlier = earlier(&all);
        earlier.look(Box::new(|pids| {
            assert_eq!(pids.len(), MOST);
            Vec::new()
        }));
        assert!(!earlier.is_some() && earlier.left() == 8);
        let lines = earlier.lines(true);
        assert!(
            lines[0].starts_with("8 processes more submitted nothing"),
            "{lines:?}"
        );
        let mut none = Earlier::default();
        none.look(Box::new(|_| unreachable!()));
        assert!(none.lines(true).is_empty());
    }
}
