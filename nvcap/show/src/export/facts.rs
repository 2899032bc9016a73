//! Names of processes and threads, and chips of GPUs, as a trace tells them: for formats that name both.

use std::collections::BTreeMap;

use crate::output::ended::Ended;
use crate::output::names::known_name;
use nvcap_decode::decode::defaults::Chip;
use nvcap_decode::decode::event::Context;
use nvcap_decode::record::{Life, Process, Record};

/// The name of a thread that has ended: its process, the thread, the name.
pub(super) type Former = (u32, u32, String);

/// Facts that a trace has told, of those that live and of the last ones that have ended.
#[derive(Debug, Default)]
pub(super) struct Facts {
    /// Names of threads, by process and thread; a process has that of its first thread.
    names: BTreeMap<(u32, u32), String>,
    ended: Ended<(u32, u32)>,
    /// GPUs by their minor number, with the names of their chips.
    pub(super) gpus: BTreeMap<u32, Option<&'static str>>,
}

impl Facts {
    /// Takes the context of a submission.
    pub(super) fn submission(&mut self, c: &Context) {
        if let (Some(name), tid @ 1..) = (&c.thread, c.at.tid) {
            self.names
                .entry((c.at.pid, tid))
                .or_insert_with(|| name.to_string());
        }
    }

    /// Takes a record. Returns what is forgotten now: names of threads that have ended.
    pub(super) fn record(&mut self, record: &Record) -> Vec<Former> {
        let mut former = Vec::new();
        match record {
            Record::Process(p) => self.life(p, &mut former),
            Record::Gpu(g) => {
                let chip = Chip::with_pci_device(g.pci_device);
                let name = chip.and_then(|c| c.names.first().copied());
                self.gpus.insert(g.minor, name);
            }
            _ => {}
        }
        former
    }

    fn life(&mut self, p: &Process, former: &mut Vec<Former>) {
        let pid = p.at.pid;
        let tid = if p.at.tid == 0 { pid } else { p.at.tid };
        match &p.life {
            Life::Present { name } | Life::Exec { name } => {
                self.begins(pid, tid, former);
                self.names.insert((pid, tid), name.clone());
                self.names.entry((pid, pid)).or_insert_with(|| name.clone());
            }
            Life::Thread { child } => self.begins(pid, *child, former),
            Life::Fork { child } => self.begins(*child, *child, former),
            Life::Exit { process: false } => self.ends((pid, tid), former),
            Life::Exit { process: true } => {
                let all = self.names.range((pid, 0)..=(pid, u32::MAX));
                let all: Vec<_> = all.map(|(of, _)| *of).collect();
                all.into_iter().for_each(|of| self.ends(of, former));
            }
            Life::Identity(_) => {}
        }
    }

    /// Takes note that a thread begins: the name of one that had its number is not its own. The name of a process goes with those of its threads.
    fn begins(&mut self, pid: u32, tid: u32, former: &mut Vec<Former>) {
        if !self.ended.begins((pid, tid)) {
            return;
        }
        let of = if tid == pid { 0..=u32::MAX } else { tid..=tid };
        let all = self.names.range((pid, *of.start())..=(pid, *of.end()));
        let all: Vec<_> = all.map(|(of, _)| *of).collect();
        all.into_iter().for_each(|of| self.forget(of, former));
    }

    fn ends(&mut self, of: (u32, u32), former: &mut Vec<Former>) {
        if let Some(oldest) = self.ended.ends(of) {
            self.forget(oldest, former);
        }
    }

    fn forget(&mut self, of: (u32, u32), former: &mut Vec<Former>) {
        let name = self.names.remove(&of).filter(|n| known_name(n).is_some());
        former.extend(name.map(|name| (of.0, of.1, name)));
    }

    /// The name of a thread, where it is known.
    pub(super) fn name(&self, pid: u32, tid: u32) -> Option<&str> {
        known_name(self.names.get(&(pid, tid))?)
    }

    /// All threads with known names: process, thread, name.
    #[cfg(feature = "sqlite")]
    pub(super) fn names(&self) -> impl Iterator<Item = (u32, u32, &str)> {
        let ids = self.names.keys();
        ids.filter_map(|&(pid, tid)| Some((pid, tid, self.name(pid, tid)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvcap_decode::record::At;

    fn life(facts: &mut Facts, pid: u32, tid: u32, life: Life) -> Vec<Former> {
        let at = At {
            time_ns: 1,
            pid,
            tid,
        };
        facts.record(&Record::Process(Process { at, life }))
    }

    /// A program that makes threads without end costs no more than one with as many as live, and a number that is used again has the name of
    /// its later thread.
    #[test]
    fn names_are_those_of_who_lives() {
        let mut facts = Facts::default();
        let called = |name: &str| Life::Present { name: name.into() };
        let all = 2000;
        let mut former = life(&mut facts, 7, 7, called("p"));
        for tid in 100..100 + all {
            former.extend(life(&mut facts, 7, 7, Life::Thread { child: tid }));
            former.extend(life(&mut facts, 7, tid, called(&format!("t{tid}"))));
            former.extend(life(&mut facts, 7, tid, Life::Exit { process: false }));
        }
        assert!(facts.names.len() < 300, "{}", facts.names.len());
        assert_eq!(former.len() + facts.names.len(), all as usize + 1);
        assert_eq!(former[0], (7, 100, "t100".to_owned()));
        assert_eq!(facts.name(7, 7), Some("p"));

        let last = 99 + all;
        assert_eq!(facts.name(7, last), Some(&*format!("t{last}")));
        life(&mut facts, 7, 7, Life::Thread { child: last });
        assert_eq!(facts.name(7, last), None);

        // The next process with the number has neither its name nor its threads'.
        life(&mut facts, 7, 7, Life::Exit { process: true });
        assert_eq!(facts.name(7, 7), Some("p"));
        life(&mut facts, 1, 1, Life::Fork { child: 7 });
        assert!(facts.names.is_empty(), "{:?}", facts.names);
    }
}
