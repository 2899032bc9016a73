//! Ranks of a job, with their work and their calls of collectives. Times are those of one host's `CLOCK_MONOTONIC`, ns.

use std::collections::HashMap;

/// Communicator as one rank names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Comm {
    /// By its address, the first argument of the kernel.
    Argument(u64),
    /// By the channel of its calls: the argument is not known, or is no communicator.
    Channel(u32),
}

/// Kind of a work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    Kernel,
    Copy,
    Collective,
}

/// A work whose times are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Work {
    pub(super) begin: u64,
    pub(super) end: u64,
    /// Time by which it was submitted, where that is known.
    pub(super) there: Option<u64>,
    pub(super) name: u32,
    pub(super) class: Class,
}

/// A call of a collective by one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) comm: Comm,
    pub(super) kind: u32,
    /// Begin on the GPU, where that is known, and the error of it.
    pub(super) begin: Option<u64>,
    pub(super) error: u64,
    /// End, where that is known, and the error of it.
    pub(super) end: Option<u64>,
    pub(super) end_error: u64,
    /// Latest time at which it was submitted: that at which it was seen.
    pub(super) submitted: Option<u64>,
    /// Number of losses of this rank before it: calls with the same number follow each other without a gap.
    pub(super) epoch: u32,
}

impl Call {
    /// Begin and end, where both are known.
    pub(super) fn span(&self) -> Option<(u64, u64)> {
        Some((self.begin?, self.end?))
    }
}

/// A process on a GPU.
#[derive(Clone, Debug, Default)]
pub(super) struct Rank {
    /// Its rank in the job, where that was told.
    pub(super) number: Option<u32>,
    /// The number of ranks of the job, where that was told.
    pub(super) world_size: Option<u32>,
    pub(super) pid: u32,
    pub(super) gpu: Option<u32>,
    /// The recording that it is in, from 0.
    pub(super) file: usize,
    /// The user of its process, where that is known.
    pub(super) uid: Option<u32>,
    /// The name of its process, where that is known.
    pub(super) process: Option<String>,
    pub(super) works: Vec<Work>,
    /// Calls in the order in which they were submitted.
    pub(super) calls: Vec<Call>,
    /// Number of works whose times are not known.
    pub(super) untimed: u64,
    /// Times in which works without known times ran, if at all: from the begin of each, or its submission, to the next begin on its channel.
    pub(super) unknown: Vec<(u64, u64)>,
    /// Number of kernels whose names are not known: each may have been a collective.
    pub(super) unnamed: u64,
    /// Number of calls whose kernels ran within a graph replay or together with others in one entry: they have no time of their own.
    pub(super) shared: u64,
    /// Number of losses in this rank that may have hidden calls.
    pub(super) losses: u32,
    /// Time up to which the rank was traced.
    pub(super) until: u64,
    /// True if its process has ended.
    pub(super) has_ended: bool,
}

impl Job {
    /// Tells whether two ranks may be of one job: those of two users are not, whatever their kernels are called.
    pub(super) fn may_be_one(&self, a: usize, b: usize) -> bool {
        let uid = |rank: usize| self.ranks.get(rank).and_then(|r| r.uid);
        uid(a).zip(uid(b)).is_none_or(|(a, b)| a == b)
    }
}

/// Texts, each with a number.
#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    all: Vec<String>,
    numbers: HashMap<String, u32>,
}

impl Names {
    /// The number of a text.
    pub(super) fn number(&mut self, text: &str) -> u32 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        let number = self.all.len() as u32;
        self.all.push(text.to_owned());
        self.numbers.insert(text.to_owned(), number);
        number
    }

    /// The text of a number.
    pub(super) fn text(&self, number: u32) -> &str {
        self.all.get(number as usize).map_or("?", String::as_str)
    }
}

/// A request of the user's that fits nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unmet {
    /// `rank` or `collective`: the option without its dashes.
    pub(super) what: &'static str,
    /// Its value.
    pub(super) given: String,
    /// One sentence, with what there is.
    pub(super) text: String,
}

/// Ranks, and the names of what they do.
#[derive(Clone, Debug, Default)]
pub(super) struct Job {
    pub(super) ranks: Vec<Rank>,
    pub(super) names: Names,
    /// Number of works that were left out because there were too many.
    pub(super) left_out: u64,
    /// Number of processes with work of which none is a collective.
    pub(super) others: u64,
    /// Number of kernels of those processes that have no name: each may have been a collective.
    pub(super) others_unnamed: u64,
    /// True if times of the GPU were asked for.
    pub(super) has_times: bool,
    pub(super) unmet: Vec<Unmet>,
}

impl Job {
    /// A rank as sentences name it.
    pub(super) fn name(&self, rank: usize) -> String {
        let Some(of) = self.ranks.get(rank) else {
            return "?".to_owned();
        };
        let gpu = of
            .gpu
            .map_or_else(String::new, |gpu| format!(" on GPU {gpu}"));
        let twins =
            |same: &dyn Fn(&Rank) -> bool| self.ranks.iter().filter(|r| same(r)).count() > 1;
        match of.number {
            Some(n) if twins(&|r| r.number == Some(n)) => format!("rank {n}{gpu}"),
            Some(n) => format!("rank {n}"),
            None => {
                let file = match twins(&|r| r.pid == of.pid && r.gpu == of.gpu) {
                    true => format!(" of file {}", of.file + 1),
                    false => String::new(),
                };
                format!(
                    "process {}{gpu}{file}",
                    crate::output::names::pid_name(of.pid)
                )
            }
        }
    }

    /// Several ranks as sentences name them.
    pub(super) fn several(&self, ranks: &[usize]) -> String {
        let numbers: Option<Vec<u32>> = ranks.iter().map(|r| self.ranks.get(*r)?.number).collect();
        match numbers {
            Some(mut numbers) if numbers.len() > 1 => {
                numbers.sort_unstable();
                numbers.dedup();
                format!("ranks {}", runs(&numbers))
            }
            _ => {
                let names: Vec<String> = ranks.iter().map(|r| self.name(*r)).collect();
                names.join(", ")
            }
        }
    }
}

/// Returns numbers as text: `0-3, 5`.
fn runs(numbers: &[u32]) -> String {
    let mut parts: Vec<(u32, u32)> = Vec::new();
    for &n in numbers {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == n => *last = n,
            _ => parts.push((n, n)),
        }
    }
    let parts = parts.iter().map(|(a, b)| match a == b {
        true => a.to_string(),
        false => format!("{a}-{b}"),
    });
    parts.collect::<Vec<_>>().join(", ")
}
