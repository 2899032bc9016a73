//! Names of processes and threads, and chips of GPUs, as a trace tells them: for formats that name both.

use std::collections::BTreeMap;

use crate::output::names::known_name;
use nvcap_decode::decode::defaults::Chip;
use nvcap_decode::decode::event::Context;
use nvcap_decode::record::{Life, Process, Record};

/// Facts that a trace has told so far.
#[derive(Debug, Default)]
pub(super) struct Facts {
    /// Names of threads, by process and thread; a process has that of its first thread.
    names: BTreeMap<(u32, u32), String>,
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

    /// Takes a record.
    pub(super) fn record(&mut self, record: &Record) {
        match record {
            Record::Process(p) => self.life(p),
            Record::Gpu(g) => {
                let chip = Chip::with_pci_device(g.pci_device);
                let name = chip.and_then(|c| c.names.first().copied());
                self.gpus.insert(g.minor, name);
            }
            _ => {}
        }
    }

    fn life(&mut self, p: &Process) {
        let (Life::Present { name } | Life::Exec { name }) = &p.life else {
            return;
        };
        let tid = if p.at.tid == 0 { p.at.pid } else { p.at.tid };
        self.names.insert((p.at.pid, tid), name.clone());
        self.names
            .entry((p.at.pid, p.at.pid))
            .or_insert_with(|| name.clone());
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
