//! The share of moments of late at which each GPU had work, by engine. Pure.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::estimate::Share;

/// Time for which moments are kept, ns.
const BACK: u64 = 60_000_000_000;
/// Length of time whose moments are kept as one, ns.
const SLOT: u64 = 1_000_000_000;

/// A GPU by device file minor number, and what had work: `compute`, `copy`, ...
pub(crate) type Unit = (Option<u32>, &'static str);

#[derive(Debug, Default)]
struct Slot {
    began: u64,
    moments: u64,
    busy: BTreeMap<Unit, u64>,
}

/// Moments since counting began, and those of them at which a kernel, a graph or a copy was at work.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moments {
    /// All moments.
    pub all: u64,
    /// Moments with work by GPU (device file minor number).
    pub gpus: BTreeMap<Option<u32>, u64>,
    /// Moments with work by process and GPU.
    pub processes: BTreeMap<(u32, Option<u32>), u64>,
}

impl Moments {
    /// Takes a moment at which these units of each process had work.
    pub(crate) fn take(&mut self, each: &[(u32, BTreeSet<Unit>)]) {
        self.all += 1;
        let mut gpus = BTreeSet::new();
        for (pid, busy) in each {
            let works = |(_, what): &&Unit| ["compute", "copy"].contains(what);
            let at: BTreeSet<_> = busy.iter().filter(works).map(|(gpu, _)| *gpu).collect();
            for gpu in &at {
                *self.processes.entry((*pid, *gpu)).or_default() += 1;
            }
            gpus.extend(at);
        }
        for gpu in gpus {
            *self.gpus.entry(gpu).or_default() += 1;
        }
    }

    /// Forgets a process that has ended.
    pub(crate) fn ended(&mut self, pid: u32) {
        self.processes.retain(|(of, _), _| *of != pid);
    }
}

/// Moments of late, with the engines of each GPU that had work, for the share of them at which each engine was busy.
#[derive(Debug, Default)]
pub(crate) struct Busy(VecDeque<Slot>);

impl Busy {
    /// Takes a moment at which these units had work.
    pub(crate) fn take(&mut self, now: u64, busy: &BTreeSet<Unit>) {
        while self.0.front().is_some_and(|s| s.began + BACK < now) {
            self.0.pop_front();
        }
        if self.0.back().is_none_or(|s| s.began + SLOT <= now) {
            self.0.push_back(Slot {
                began: now,
                ..Slot::default()
            });
        }
        if let Some(slot) = self.0.back_mut() {
            slot.moments += 1;
            for unit in busy {
                *slot.busy.entry(*unit).or_default() += 1;
            }
        }
    }

    /// Returns the share of each GPU's engine that had work in the time.
    pub(crate) fn shares(&self) -> BTreeMap<Unit, Share> {
        let moments: u64 = self.0.iter().map(|s| s.moments).sum();
        let mut sums: BTreeMap<Unit, u64> = BTreeMap::new();
        for (unit, count) in self.0.iter().flat_map(|s| &s.busy) {
            *sums.entry(*unit).or_default() += count;
        }
        let share =
            |(unit, count): (Unit, u64)| Some((unit, Share::new(count as f64, moments as f64)?));
        sums.into_iter().filter_map(share).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_of_two_processes_is_at_work_once() {
        let on = |what| BTreeSet::from([(Some(0), "any"), (Some(0), what)]);
        let mut looks = Moments::default();
        looks.take(&[(1, on("compute")), (2, on("copy"))]);
        // It waits for a semaphore: that is no work.
        looks.take(&[(1, BTreeSet::from([(Some(0), "any")])), (2, on("compute"))]);
        assert_eq!(
            (looks.all, &looks.gpus),
            (2, &BTreeMap::from([(Some(0), 2)]))
        );
        let processes = [((1, Some(0)), 1), ((2, Some(0)), 2)];
        assert_eq!(looks.processes, BTreeMap::from(processes));
        looks.ended(1);
        assert_eq!(looks.processes.len(), 1);
    }

    #[test]
    fn the_last_minute_counts() {
        let mut busy = Busy::default();
        let (idle, works) = (BTreeSet::new(), BTreeSet::from([(Some(0), "compute")]));
        for n in 0..1000 {
            busy.take(n * 100_000_000, if n < 500 { &works } else { &idle });
        }
        // From 39.9 s on, of which 10 s with work.
        let share = busy.shares()[&(Some(0), "compute")].share;
        assert!((0.15..0.18).contains(&share), "{share}");
    }
}
