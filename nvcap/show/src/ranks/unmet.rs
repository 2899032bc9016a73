//! Ranks and patterns that the user gave and that fit nothing of the trace.

use std::collections::BTreeSet;

use super::job::{Job, Unmet};
use super::kinds;
use crate::output::names::pid_name;

/// The most processes or kernels that are named for a choice.
const NAMED: usize = 6;

/// Lists ranks that were given to processes which called no collective. Must be asked while `job` still has all processes.
pub(super) fn ranks(job: &Job, given: &[(u32, u32)]) -> Vec<Unmet> {
    let pids = |calls: bool| -> BTreeSet<u32> {
        let ranks = job.ranks.iter();
        let ranks = ranks.filter(|rank| !calls || !rank.calls.is_empty());
        ranks.map(|rank| rank.pid).collect()
    };
    let (working, calling) = (pids(false), pids(true));
    let unmet = |(pid, rank): &(u32, u32)| {
        let given = format!("{pid}={rank}");
        let lacks = match (calling.contains(pid), working.contains(pid)) {
            (true, _) => return None,
            (false, true) => {
                format!("process {pid}, of --rank {given}, called no collective that was seen")
            }
            (false, false) => {
                format!("no work of a process {pid}, of --rank {given}, was seen")
            }
        };
        let there = match calling.is_empty() {
            true => ("there is work of", &working),
            false => ("there are calls of", &calling),
        };
        let all: Vec<String> = there.1.iter().map(|pid| pid_name(*pid)).collect();
        let process = if all.len() == 1 {
            "process"
        } else {
            "processes"
        };
        let text = match all.is_empty() {
            true => format!("{lacks}, nor of another process"),
            false => {
                let first = &all[..all.len().min(NAMED)];
                let first = some(first, all.len() - first.len());
                format!("{lacks}: {} {process} {first}", there.0)
            }
        };
        Some(Unmet {
            what: "rank",
            given,
            text,
        })
    };
    given.iter().filter_map(unmet).collect()
}

/// Kernels that were launched, and patterns that fit one of them.
#[derive(Default)]
pub(super) struct Launched {
    /// Short names, each once, in the order of the first launches, and no more than are told.
    names: Vec<String>,
    /// Number of names that are not among them.
    more: usize,
    fitting: BTreeSet<usize>,
}

impl Launched {
    /// Takes a kernel; called once for each.
    pub(super) fn see(&mut self, patterns: &[String], full: &str, short: &str) {
        let fitting = { patterns.iter().enumerate() }
            .filter(|(_, pattern)| kinds::fits(pattern, full, short))
            .map(|(n, _)| n);
        self.fitting.extend(fitting);
        if self.names.iter().any(|name| name == short) {
            return;
        }
        match self.names.len() < NAMED {
            true => self.names.push(short.to_owned()),
            false => self.more += 1,
        }
    }

    /// Lists the patterns that fit none.
    pub(super) fn unmet(&self, patterns: &[String]) -> Vec<Unmet> {
        let there = match self.names.is_empty() {
            true => "no kernel with a name was launched".to_owned(),
            false => format!("there are {}", some(&self.names, self.more)),
        };
        { patterns.iter().enumerate() }
            .filter(|(n, _)| !self.fitting.contains(n))
            .map(|(_, pattern)| Unmet {
                what: "collective",
                given: pattern.clone(),
                text: format!("no kernel's name fits --collective '{pattern}': {there}"),
            })
            .collect()
    }
}

/// Names in a sentence, and how many more there are.
fn some(names: &[String], more: usize) -> String {
    let names = names.join(", ");
    match more {
        0 => names,
        more => format!("{names} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ranks::job::{Call, Comm, Rank};

    fn process(pid: u32, calls: usize) -> Rank {
        let call = Call {
            comm: Comm::Channel(0),
            kind: 0,
            begin: None,
            error: 0,
            end: None,
            end_error: 0,
            submitted: None,
            epoch: 0,
        };
        Rank {
            pid,
            calls: vec![call; calls],
            ..Rank::default()
        }
    }

    #[test]
    fn a_rank_of_no_process_is_told_with_the_processes_that_there_are() {
        let told = |ranks: Vec<Rank>, given: (u32, u32)| {
            let job = Job {
                ranks,
                ..Job::default()
            };
            let unmet = ranks_of(&job, given);
            unmet.map(|unmet| (unmet.given, unmet.text))
        };
        fn ranks_of(job: &Job, given: (u32, u32)) -> Option<Unmet> {
            ranks(job, &[given]).pop()
        }
        let three = || vec![process(7, 1), process(8, 1), process(9, 0)];
        assert_eq!(told(three(), (8, 3)), None);
        let (given, text) = told(three(), (6, 3)).unwrap();
        assert_eq!(given, "6=3");
        assert_eq!(
            text,
            "no work of a process 6, of --rank 6=3, was seen: there are calls of processes 7, 8"
        );
        let (_, text) = told(three(), (9, 3)).unwrap();
        assert_eq!(
            text,
            "process 9, of --rank 9=3, called no collective that was seen: there are calls of processes 7, 8"
        );
        let (_, text) = told(vec![process(9, 0)], (6, 0)).unwrap();
        assert!(text.ends_with(": there is work of process 9"), "{text}");
        let (_, text) = told(Vec::new(), (6, 0)).unwrap();
        assert!(text.ends_with("was seen, nor of another process"), "{text}");
        let many = (1..=9).map(|pid| process(pid, 1)).collect();
        let (_, text) = told(many, (10, 0)).unwrap();
        assert!(text.ends_with(" 1, 2, 3, 4, 5, 6 and 3 more"), "{text}");
    }

    #[test]
    fn a_pattern_that_fits_no_kernel_is_told_with_the_kernels_that_there_are() {
        let patterns = ["*exchange*".to_owned(), "gem*".to_owned()];
        let mut launched = Launched::default();
        let unmet = launched.unmet(&patterns[..1]);
        assert!(
            unmet[0]
                .text
                .ends_with(": no kernel with a name was launched")
        );
        launched.see(&patterns, "gemm(float*)", "gemm");
        launched.see(&patterns, "gemm(int*)", "gemm");
        let [unmet] = &launched.unmet(&patterns)[..] else {
            panic!("one of two fits");
        };
        assert_eq!((unmet.what, &*unmet.given), ("collective", "*exchange*"));
        assert_eq!(
            unmet.text,
            "no kernel's name fits --collective '*exchange*': there are gemm"
        );
        for n in 0..7 {
            launched.see(&patterns, "", &format!("k{n}"));
        }
        let text = &launched.unmet(&patterns)[0].text;
        assert!(
            text.ends_with("gemm, k0, k1, k2, k3, k4 and 2 more"),
            "{text}"
        );
    }
}
