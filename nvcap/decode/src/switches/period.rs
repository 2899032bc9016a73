//! Sums of a GPU's context switches over a period, by engine and process.

use std::collections::BTreeMap;

use super::record::{Instance, Who};
use super::residence::{EngineSums, Held, Residence};
use super::told::{Scope, Told};

/// Sums of the news of a GPU's driver in a period.
#[derive(Clone, Debug)]
pub struct Period {
    began: u64,
    residence: Residence,
    missing: u64,
    strange: u64,
}

impl Period {
    /// Begins a period at a GPU time, ns.
    #[must_use]
    pub fn new(began: u64) -> Self {
        Self {
            began,
            residence: Residence::new(began),
            missing: 0,
            strange: 0,
        }
    }

    /// Takes the next news.
    pub fn take(&mut self, told: &Told) {
        match told {
            Told::Switch(switch) => self.residence.take(switch),
            Told::Missing(missing) => {
                self.missing = self.missing.saturating_add(*missing);
                self.residence.lost();
            }
            Told::Strange => self.strange += 1,
            Told::Ended { pid, by_ns } => self.residence.ended(*pid, *by_ns),
        }
    }

    /// Returns the sums up to a GPU time. `dropped` is the number of records that were lost after the last news.
    #[must_use]
    pub fn view(&self, gpu: u32, scope: Scope, now: u64, dropped: u64) -> GpuView {
        let engines = self.residence.sums(now).into_iter().map(EngineView::of);
        GpuView {
            gpu,
            scope,
            began_ns: self.began,
            ns: now.saturating_sub(self.began),
            engines: engines.collect(),
            missing: self.missing.saturating_add(dropped),
            strange: self.strange,
        }
    }

    /// Returns the processes that have an engine after the last news.
    pub fn holding(&self) -> impl Iterator<Item = u32> {
        self.residence.holding()
    }

    /// Begins a new period at a GPU time. The holders of the engines stay known.
    pub fn restart(&mut self, now: u64) {
        (self.began, self.missing, self.strange) = (now, 0, 0);
        self.residence.restart(now);
    }
}

/// A GPU in a period.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuView {
    /// Number N of `/dev/nvidiaN`.
    pub gpu: u32,
    /// Users whose processes the driver names.
    pub scope: Scope,
    /// Beginning of the period, GPU time, ns.
    pub began_ns: u64,
    /// Length of the period, GPU time, ns.
    pub ns: u64,
    /// Engines: one, or one for each MIG instance that was reported. Empty if no switch was reported.
    pub engines: Vec<EngineView>,
    /// Number of records that the driver has dropped, or that the GPU has overwritten before the driver read them.
    pub missing: u64,
    /// Number of records that are not understood.
    pub strange: u64,
}

/// An engine in a period.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineView {
    /// MIG instance, if the GPU is in that mode.
    pub instance: Option<Instance>,
    /// Length of the period, ns.
    pub ns: u64,
    /// Processes with the sums of their contexts, and the number of these contexts. The process with the longest time comes first.
    pub holders: Vec<(Who, Held, usize)>,
    /// Number of switches.
    pub switches: u64,
    /// Total time of the switches, ns.
    pub switch_ns: u64,
    /// Time in which no context had the engine, ns.
    pub nobody_ns: u64,
    /// Time about which nothing is known, ns.
    pub unknown_ns: u64,
    /// Number of slices without a beginning or an end.
    pub incomplete: u64,
}

impl EngineView {
    /// Makes the sums of an engine, by process.
    #[must_use]
    pub fn of(sums: EngineSums) -> Self {
        let mut by_process: BTreeMap<Who, (Held, usize)> = BTreeMap::new();
        for ((who, _), held) in &sums.holders {
            let (all, contexts) = by_process.entry(*who).or_default();
            all.join(*held);
            *contexts += 1;
        }
        let rows = by_process.into_iter();
        let mut holders: Vec<_> = rows.map(|(who, (held, n))| (who, held, n)).collect();
        holders.sort_by_key(|(who, held, _)| (std::cmp::Reverse(held.resident_ns), *who));
        Self {
            instance: sums.instance,
            ns: sums.ns,
            holders,
            switches: sums.switches,
            switch_ns: sums.switch_ns,
            nobody_ns: sums.nobody_ns,
            unknown_ns: sums.unknown_ns,
            incomplete: sums.incomplete,
        }
    }

    /// Returns a time as a share of the period.
    #[must_use]
    pub fn share(&self, ns: u64) -> f64 {
        match self.ns {
            0 => 0.0,
            all => ns as f64 / all as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::{Switch, Tag};
    use super::*;

    fn switch(tag: Tag, pid: u32, context: u32, time_ns: u64) -> Told {
        Told::Switch(Switch {
            tag,
            pid,
            context,
            time_ns,
            ..Switch::default()
        })
    }

    #[test]
    fn contexts_of_a_process_are_one_line_and_the_longest_stands_first() {
        let mut period = Period::new(0);
        let slices = [(1, 10), (2, 20), (1, 11), (1, 10)];
        for (time, (pid, context)) in (0..).step_by(100).zip(slices) {
            period.take(&switch(Tag::BEGIN, pid, context, time));
            period.take(&switch(Tag::END, pid, context, time + 90));
        }
        let view = period.view(3, Scope::AllUsers, 390, 0);
        let [engine] = &view.engines[..] else {
            panic!("{view:?}");
        };
        let holders: Vec<_> = { engine.holders.iter() }
            .map(|(who, held, contexts)| (*who, held.resident_ns, held.slices, *contexts))
            .collect();
        let expected = [(Who::Process(1), 270, 3, 2), (Who::Process(2), 90, 1, 1)];
        assert_eq!((holders, engine.ns), (expected.to_vec(), 390));
        assert_eq!((engine.switches, engine.switch_ns), (3, 30));
    }

    #[test]
    fn a_period_begins_anew_and_losses_are_its_own() {
        let mut period = Period::new(1_000);
        period.take(&switch(Tag::BEGIN, 1, 10, 1_000));
        period.take(&Told::Missing(7));
        period.take(&Told::Strange);
        let view = period.view(0, Scope::OwnUser, 2_000, 5);
        assert_eq!((view.missing, view.strange, view.ns), (12, 1, 1_000));
        assert_eq!(view.engines[0].unknown_ns, 1_000);
        period.restart(2_000);
        period.take(&switch(Tag::BEGIN, 2, 20, 2_400));
        let view = period.view(0, Scope::OwnUser, 3_000, 0);
        let engine = &view.engines[0];
        assert_eq!((view.began_ns, view.missing, view.strange), (2_000, 0, 0));
        assert_eq!((engine.ns, engine.unknown_ns), (1_000, 400));
        assert_eq!(engine.holders[0].1.resident_ns, 600);
    }
}
