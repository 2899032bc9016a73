//! Knowledge of a process's memory: its areas, the parts of them that were present, and the places of the last finds.

use std::{
    collections::{HashSet, VecDeque},
    io,
    time::{Duration, Instant},
};

use crate::enrich::names::scan::{self, Run};

/// Distance from the last finds within which memory is searched first, B, and the number of these finds.
pub(super) const CLOSE: u64 = 512 << 10;
const MOST_RECENT: usize = 16;

/// Ways in which a process's memory is listed.
#[derive(Clone, Copy)]
pub(crate) struct Listing {
    /// Lists the areas that are searched, the smallest first.
    pub(crate) areas: fn(u32) -> io::Result<Vec<Run>>,
    /// Lists the parts of areas that are present.
    pub(crate) present: fn(u32, &[Run]) -> Vec<Run>,
}

impl Listing {
    pub(in crate::enrich::names) const PROCESS: Self = Self {
        areas: scan::areas,
        present: scan::present,
    };
}

/// Known parts of a process's memory.
#[derive(Default)]
pub(super) struct Known {
    /// The areas of the last listing.
    pub(super) areas: Vec<Run>,
    /// Memory that was present at the last search, by address.
    pub(super) present: Vec<Run>,
    /// The records and images that were found last, the newest at the end.
    pub(super) recent: VecDeque<u64>,
    /// Number of bytes that are done in the round through all memory.
    pub(super) done: u64,
    /// Time of the last listing of all pages, and its duration.
    pub(super) listed: Option<(Instant, Duration)>,
    /// The programs that the current search is made for. Programs that earlier searches did not find are looked for
    /// beside them.
    pub(super) driving: HashSet<u64>,
    /// True once the first search was made.
    pub(super) has_begun: bool,
    /// True once all memory was searched.
    pub(super) is_whole: bool,
}

impl Known {
    /// The run of present memory that contains an address.
    pub(super) fn around(&self, at: u64) -> Option<Run> {
        let behind = self.present.partition_point(|r| r.start <= at);
        let run = self.present.get(behind.checked_sub(1)?)?;
        (at < run.end).then_some(*run)
    }

    /// Takes note of a find at this address.
    pub(super) fn find(&mut self, at: u64) {
        let is_near = |r: &u64| r.abs_diff(at) < CLOSE / 2;
        self.recent.retain(|r| !is_near(r));
        if self.recent.len() == MOST_RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(at);
    }

    pub(super) fn keep(&mut self, mut present: Vec<Run>) {
        present.sort_unstable();
        self.present = present;
    }
}
