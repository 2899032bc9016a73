//! Faults of the GPUs that happened while something was shown: which are new, and their lines.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::state::SECOND;
use crate::counts::view::View;
use nvcap_decode::hang::xid::REMOVAL;
use nvcap_decode::record::Xid;
use nvcap_show::output::style::Plain;

/// The most faults that are kept.
const MOST: usize = 64;
/// The most that have a line.
const LINES: usize = 3;
/// The most errors of one process that are told: it can write its error notifiers itself.
const MOST_OF_ONE: usize = 8;

/// A fault.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faulted {
    /// Time: nanoseconds of the day's clock (UTC), or since the begin of a recording whose day is not known.
    pub time_ns: u64,
    /// True if the time is one of day.
    pub of_day: bool,
    /// The process; 0 where it is not known.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// The GPU of a fault whose process is not known.
    pub gpu: Option<u32>,
    /// Words: the Xid and its sentence, with the kernel where it is known.
    pub text: String,
}

impl Faulted {
    fn line(&self) -> String {
        let second = self.time_ns / SECOND;
        let time = match self.of_day {
            true => format!(
                "{:02}:{:02}:{:02}",
                second / 3600 % 24,
                second / 60 % 60,
                second % 60
            ),
            false => format!("{:.1} s", self.time_ns as f64 / SECOND as f64),
        };
        let who = match (self.pid, self.gpu) {
            (0, Some(gpu)) => format!("GPU {gpu}, process not known"),
            (0, None) => "process not known".to_owned(),
            (pid, _) => format!("process {pid} {}", Plain(&self.name)),
        };
        format!("{time}  {}: {}", who.trim_end(), Plain(&self.text))
    }
}

/// Faults, oldest first: the newest of them, and how many there were.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    kept: VecDeque<Faulted>,
    left_out: u64,
}

impl Faults {
    /// Adds the newest one.
    pub fn add(&mut self, one: Faulted) {
        if self.kept.len() == MOST {
            self.kept.pop_front();
            self.left_out += 1;
        }
        self.kept.push_back(one);
    }

    /// Adds those that came later.
    pub fn append(&mut self, later: Self) {
        self.left_out += later.left_out;
        later.kept.into_iter().for_each(|one| self.add(one));
    }

    /// Returns the lines of the newest faults, newest first, and below them the number of those before.
    pub fn lines(&self) -> Vec<String> {
        let mut lines: Vec<String> = { self.kept.iter().rev() }
            .take(LINES)
            .map(Faulted::line)
            .collect();
        let before = self.left_out + self.kept.len().saturating_sub(LINES) as u64;
        if before > 0 {
            lines.push(format!("{before} before"));
        }
        lines
    }
}

/// An error that is new.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct New {
    /// The process, where it is known.
    pub pid: Option<u32>,
    /// The number of the Xid.
    pub code: u32,
    /// The kernel log's message, where that has told of it.
    pub message: Option<Xid>,
}

/// Errors of processes that were told: notifiers and the log tell the same one.
#[derive(Debug)]
pub struct Told {
    /// Errors by process, of all in the newest reading.
    known: BTreeMap<u32, BTreeSet<u32>>,
    has_begun: bool,
    is_of_all: bool,
}

impl Told {
    /// Makes one that has told nothing. `is_of_all`: processes are shown whoever they are.
    #[must_use]
    pub fn new(is_of_all: bool) -> Self {
        Self {
            known: BTreeMap::new(),
            has_begun: false,
            is_of_all,
        }
    }

    /// Returns the errors that are new with this reading and the kernel log's messages since the one before. Notifiers of the first reading tell older ones.
    pub fn take(&mut self, view: &View, messages: Vec<Xid>) -> Vec<New> {
        let mut new = Vec::new();
        for process in &view.processes {
            self.known.entry(process.pid).or_default();
        }
        // A message says more than a notifier.
        for xid in messages.into_iter().filter(|xid| xid.code != REMOVAL) {
            let is_told = match xid.process() {
                Some(pid) => self.is_new(pid, xid.code),
                None => self.is_of_all || is_on_a_gpu_of(view, &xid),
            };
            if is_told {
                new.push(New {
                    pid: xid.process(),
                    code: xid.code,
                    message: Some(xid),
                });
            }
        }
        for process in &view.processes {
            for code in process.gpus.values().flat_map(|gpu| &gpu.errors) {
                // Those of the first reading are older.
                if self.is_new(process.pid, *code) && self.has_begun {
                    new.push(New {
                        pid: Some(process.pid),
                        code: *code,
                        message: None,
                    });
                }
            }
        }
        let is_there = |pid: &u32| view.processes.iter().any(|p| p.pid == *pid);
        self.known.retain(|pid, _| is_there(pid));
        self.has_begun = true;
        new
    }

    fn is_new(&mut self, pid: u32, code: u32) -> bool {
        if self.is_of_all {
            self.known.entry(pid).or_default();
        }
        let codes = self.known.get_mut(&pid);
        codes.is_some_and(|codes| codes.len() < MOST_OF_ONE && codes.insert(code))
    }
}

/// Tells whether a message is about a GPU that a shown process uses, as far as is known.
fn is_on_a_gpu_of(view: &View, xid: &Xid) -> bool {
    let mut gpus = view.processes.iter().flat_map(|p| p.gpus.keys());
    gpus.any(|gpu| gpu.is_none() || xid.gpu.is_none() || *gpu == xid.gpu)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counts::view::{GpuView, ProcessView};

    fn process(pid: u32, errors: &[u32]) -> ProcessView {
        let of = GpuView {
            errors: errors.iter().copied().collect(),
            ..GpuView::default()
        };
        ProcessView {
            pid,
            gpus: [(Some(0), of)].into(),
            ..ProcessView::default()
        }
    }

    fn view(processes: Vec<ProcessView>) -> View {
        View {
            processes,
            ..View::default()
        }
    }

    fn xid(rest: &str) -> Xid {
        let mut xid = Xid::parse(&format!("NVRM: Xid (PCI:0000:35:00): {rest}")).unwrap();
        xid.gpu = Some(0);
        xid
    }

    fn codes(new: Vec<New>) -> Vec<(Option<u32>, u32, bool)> {
        let of = |n: New| (n.pid, n.code, n.message.is_some());
        new.into_iter().map(of).collect()
    }

    #[test]
    fn an_error_is_told_once_by_whoever_tells_it() {
        let mut told = Told::new(false);
        let mut take = |processes: &[(u32, &[u32])], messages: &[&str]| {
            let processes = processes.iter().map(|(pid, errors)| process(*pid, errors));
            let messages = messages.iter().map(|rest| xid(rest));
            codes(told.take(&view(processes.collect()), messages.collect()))
        };
        // What was there before is none of it.
        assert_eq!(take(&[(7, &[31]), (8, &[])], &[]), []);
        // The notifier, and the log: one.
        let first = take(
            &[(7, &[31]), (8, &[13])],
            &["13, pid=8, name=b, a", "45, pid=8, name=b, a"],
        );
        assert_eq!(first, [(Some(8), 13, true)]);
        assert_eq!(
            take(&[(7, &[31, 43]), (8, &[13])], &[]),
            [(Some(7), 43, false)]
        );
        // It ended with it, between two readings; another user's process is not shown.
        let ended = take(
            &[(7, &[31])],
            &["43, pid=8, name=b, a", "31, pid=9, name=c, a"],
        );
        assert_eq!(ended, [(Some(8), 43, true)]);
        // Of the GPU.
        assert_eq!(
            take(&[(7, &[31])], &["79, GPU has fallen off the bus."]),
            [(None, 79, true)]
        );
        assert_eq!(take(&[], &["79, GPU has fallen off the bus."]), []);
    }

    #[test]
    fn the_newest_have_lines() {
        let mut faults = Faults::default();
        assert!(faults.lines().is_empty());
        for n in 0..70 {
            faults.add(Faulted {
                time_ns: (86_400 + 3600 + n) * SECOND,
                of_day: true,
                pid: n as u32,
                name: "a\x1bb".to_owned(),
                gpu: Some(2),
                text: "Xid 31".to_owned(),
            });
        }
        let lines = faults.lines();
        assert_eq!(lines.len(), 4, "{lines:?}");
        assert!(lines[0].starts_with("01:01:09  process 69 a") && lines[0].ends_with("b: Xid 31"));
        assert!(
            !lines[0].contains('\x1b') && lines[3] == "67 before",
            "{lines:?}"
        );
        let mut one = Faults::default();
        one.add(Faulted {
            time_ns: SECOND / 2,
            gpu: Some(2),
            text: "Xid 79".to_owned(),
            ..Faulted::default()
        });
        assert_eq!(one.lines(), ["0.5 s  GPU 2, process not known: Xid 79"]);
    }
}
