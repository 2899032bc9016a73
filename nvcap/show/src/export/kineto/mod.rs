//! A trace as the JSON that PyTorch's profiler (Kineto) writes, a file a process: for HolisticTraceAnalysis, TensorBoard, Perfetto and
//! chrome://tracing. docs/from-kineto.md says what is in it.
//!
//! - `counts`: what is told of a file.
//! - `file`: the file of one process.
//! - `words`: names and arguments of events.

mod counts;
mod file;
mod words;

#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::rc::Rc;

use super::facts::Facts;
use super::works::{Work, Works};
use crate::output::ledger::verdict;
use crate::output::writer::Output;
use crate::output::{Detail, Sink};
pub use counts::{Counts, Rank};
use file::{File, Head};
use nvcap_decode::decode::event::{Body, Event};
use nvcap_decode::driver::Model;
use nvcap_decode::ledger::Ledger;
use nvcap_decode::record::{Life, Process, Record};

/// The most files that are written: each is open until the end.
pub const MOST_FILES: usize = 512;

/// The most processes that are told apart: works of others are in no file.
const MOST_PROCESSES: usize = 1 << 16;

/// The most processes whose file could not be opened that are told apart.
const MOST_REFUSED: usize = 8;

/// The exit status that is written into a file which an error ended.
const FAILED: u8 = 1;

/// A file that was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The process; 0 where it is not known.
    pub pid: u32,
    /// Its name; empty where it is not known.
    pub process: String,
    /// Its place in a distributed job, where that is known.
    pub rank: Option<Rank>,
    /// Numbers of what is in the file.
    pub counts: Counts,
}

/// Files that were written, and the works of processes that have none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Made {
    /// Files in the order of their processes' first works.
    pub files: Vec<Written>,
    /// Number of works of processes for which there is no file.
    pub elsewhere: u64,
    /// Number of processes for whose file there was no place, as far as they are told apart. Processes whose file could not be opened are not among
    /// them.
    pub others: u64,
    /// Part of `elsewhere`: works of processes whose file could not be opened. They count as not written.
    pub refused: u64,
    /// The first processes whose file could not be opened, each with the reason.
    pub reasons: Vec<(u32, String)>,
}

/// Opens the file of a further process; `None` where there is no place for one. Where that fails the works of this process are left out.
pub type More = Box<dyn FnMut(u32) -> io::Result<Option<Output>>>;

/// Options of the files.
pub struct KinetoOptions {
    /// Unix time at which `CLOCK_MONOTONIC` was 0, ns, where that is known.
    pub base_ns: Option<u64>,
    /// The driver's release.
    pub driver: Option<String>,
    /// True if files are compressed by gzip.
    pub packed: bool,
    /// Tells the place of a process in a distributed job.
    pub rank_of: Box<dyn Fn(u32) -> Option<Rank>>,
    /// Opens further files.
    pub more: More,
    /// Takes what was made, at the end.
    pub made: Rc<RefCell<Made>>,
}

/// The sink.
pub struct Kineto {
    options: KinetoOptions,
    works: Works,
    /// Files in the order in which they began, and the file of each process.
    files: Vec<File>,
    of: BTreeMap<u32, Option<usize>>,
    written: Vec<Written>,
    facts: Facts,
    ranks: HashMap<u32, Option<Rank>>,
    elsewhere: u64,
    /// Processes whose file could not be opened, and the number of their works.
    refused: HashSet<u32>,
    refused_works: u64,
    reasons: Vec<(u32, String)>,
    /// Processes that have submitted something.
    seen: HashSet<u32>,
}

impl Kineto {
    /// Writes the first process's file to `out`.
    pub fn new(out: Output, options: KinetoOptions) -> Self {
        Self {
            files: vec![File::new(out, options.packed)],
            options,
            works: Works::default(),
            of: BTreeMap::new(),
            written: Vec::new(),
            facts: Facts::default(),
            ranks: HashMap::new(),
            elsewhere: 0,
            refused: HashSet::new(),
            refused_works: 0,
            reasons: Vec::new(),
            seen: HashSet::new(),
        }
    }

    /// Asks for the rank of a process while it is there to be asked.
    fn see(&mut self, pid: u32) {
        if pid != 0 && self.seen.len() < MOST_PROCESSES && self.seen.insert(pid) {
            let rank = (self.options.rank_of)(pid);
            self.ranks.insert(pid, rank);
        }
    }

    /// Returns the file of a process, whose begin is written.
    fn file(&mut self, pid: u32) -> io::Result<Option<usize>> {
        if let Some(known) = self.of.get(&pid) {
            return Ok(*known);
        }
        if self.of.len() >= MOST_PROCESSES {
            return Ok(None);
        }
        let at = match self.of.is_empty() {
            true => Some(0),
            false if self.files.len() >= MOST_FILES => None,
            false => self.more(pid).map(|out| {
                self.files.push(File::new(out, self.options.packed));
                self.files.len() - 1
            }),
        };
        self.of.insert(pid, at);
        let Some(at) = at else { return Ok(None) };
        self.begin(at, pid)?;
        Ok(Some(at))
    }

    /// Opens the file of a further process. Where that fails the works of this process are left out, and those of others go on.
    fn more(&mut self, pid: u32) -> Option<Output> {
        (self.options.more)(pid).unwrap_or_else(|e| {
            self.refused.insert(pid);
            if self.reasons.len() < MOST_REFUSED {
                self.reasons.push((pid, e.to_string()));
            }
            None
        })
    }

    /// Ends every file: an error leaves none of them without its end.
    fn end(&mut self, verdict: &str, status: u8, until: u64) -> io::Result<()> {
        let mut result = Ok(());
        for file in self.files.iter_mut().filter(|file| file.is_begun()) {
            result = result.and(file.end(verdict, status, until));
        }
        result
    }

    fn begin(&mut self, at: usize, pid: u32) -> io::Result<()> {
        let process = self.facts.name(pid, pid).unwrap_or_default();
        let rank = self.ranks.get(&pid).copied().flatten();
        let gpus = self.facts.gpus.iter();
        let gpus: Vec<_> = gpus.map(|(id, chip)| (*id, *chip)).collect();
        let head = Head {
            pid,
            process,
            base_ns: self.options.base_ns,
            driver: self.options.driver.as_deref(),
            rank,
            gpus: &gpus,
        };
        self.written.push(Written {
            pid,
            process: process.to_owned(),
            rank,
            counts: Counts::default(),
        });
        self.files[at].begin(&head)
    }

    fn life(&mut self, p: &Process) {
        let Some(Some(file)) = self.of.get(&p.at.pid) else {
            return;
        };
        let file = &mut self.files[*file];
        match p.life {
            Life::Thread { child } => file.thread_begins(child),
            Life::Exit { process: false } => file.thread_ends(p.at.tid),
            _ => {}
        }
    }

    fn work(&mut self, work: &Work) -> io::Result<()> {
        self.see(work.pid);
        let Some(at) = self.file(work.pid)? else {
            self.elsewhere += 1;
            self.refused_works += u64::from(self.refused.contains(&work.pid));
            return Ok(());
        };
        let thread = self.facts.name(work.pid, work.tid);
        self.files[at].work(work, thread)
    }
}

impl Sink for Kineto {
    fn detail(&self) -> Option<Detail> {
        Some(Detail::Operations)
    }

    fn shows_memory(&self) -> bool {
        false
    }

    fn event(&mut self, event: &Event<'_>) -> io::Result<()> {
        let c = event.context;
        match &event.body {
            Body::Submission(_) => {
                self.facts.submission(c);
                Ok(())
            }
            Body::Operation(op) => match self.works.operation(c, event.entry, op) {
                Some(work) => self.work(&work).inspect_err(|e| {
                    let _ = self.end(&format!("the export ended early: {e}"), FAILED, 0);
                }),
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }

    fn record(&mut self, record: &Record, _model: &Model) -> io::Result<()> {
        self.facts.record(record);
        match record {
            Record::Channel(c) => self.see(c.at.pid),
            Record::Process(p) => self.life(p),
            _ => {}
        }
        Ok(())
    }

    fn is_for_later(&self) -> bool {
        true
    }

    fn flush(&mut self) -> io::Result<()> {
        self.files.iter_mut().try_for_each(File::flush)
    }

    fn unshown(&self) -> u64 {
        let unshown: u64 = self.files.iter().map(File::unshown).sum();
        unshown.saturating_add(self.refused_works)
    }

    fn finish(&mut self, ledger: &Ledger, _model: &Model) -> io::Result<()> {
        let last = self.works.finish().map_or(Ok(()), |work| self.work(&work));
        if !self.files[0].is_begun() {
            let pid = self.seen.iter().min().copied().unwrap_or(0);
            self.begin(0, pid)?;
        }
        let (verdict, status) = (verdict(ledger), ledger.exit_status());
        let ends = self.end(&verdict, status, ledger.end_ns());
        for (written, file) in self.written.iter_mut().zip(&self.files) {
            written.counts = file.counts;
        }
        let without =
            { self.of.iter() }.filter(|(pid, file)| file.is_none() && !self.refused.contains(pid));
        *self.options.made.borrow_mut() = Made {
            others: without.count() as u64,
            files: std::mem::take(&mut self.written),
            elsewhere: self.elsewhere,
            refused: self.refused_works,
            reasons: std::mem::take(&mut self.reasons),
        };
        last.and(ends)
    }
}
