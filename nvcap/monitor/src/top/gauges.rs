//! Shares of the time for which GPUs and processes were at work, step by step, from moments chosen by chance. Pure.

use std::collections::{BTreeMap, VecDeque};

use crate::counts::detail::busy::Moments;

/// Steps that are kept.
const STEPS: usize = 60;
/// Number of moments that a share is of at least, where there are as many.
const LEAST: u64 = 20;
/// Heights of a line of history, the least first.
const HEIGHTS: [char; 8] = [
    '\u{2581}', '\u{2582}', '\u{2583}', '\u{2584}', '\u{2585}', '\u{2586}', '\u{2587}', '\u{2588}',
];

/// Process and GPU that a share is of; the whole GPU where there is no process.
pub(super) type Of = (Option<u32>, Option<u32>);

/// Moments of a step, and those with work.
#[derive(Clone, Copy, Debug)]
struct Step {
    all: u64,
    works: u64,
}

/// Shares of the time for which GPUs and processes were at work, step by step.
#[derive(Debug, Default)]
pub(crate) struct Gauges {
    before: Moments,
    steps: BTreeMap<Of, VecDeque<Step>>,
    /// Moments of the last step.
    pub(super) looks: u64,
}

/// The gauge of a GPU.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gauge {
    /// The GPU, by device file minor number, where it is known.
    pub gpu: Option<u32>,
    /// The share of the time at work of late, 0 to 1, where there were moments.
    pub share: Option<f64>,
    /// The shares of the steps, oldest first.
    pub history: String,
    /// The processes with their shares, as a text.
    pub by: String,
}

impl Gauges {
    /// Takes the moments up to a reading, which has these processes and their GPUs.
    pub(super) fn take(&mut self, looks: &Moments, of: impl Iterator<Item = (u32, Option<u32>)>) {
        let all = looks.all.saturating_sub(self.before.all);
        let mut steps: BTreeMap<Of, VecDeque<Step>> = BTreeMap::new();
        let keys = of.flat_map(|(pid, gpu)| [(None, gpu), (Some(pid), gpu)]);
        for key in keys {
            if steps.contains_key(&key) {
                continue;
            }
            let works = works(looks, key).saturating_sub(works(&self.before, key));
            let mut kept = self.steps.remove(&key).unwrap_or_default();
            if looks.all > 0 {
                kept.push_back(Step { all, works });
            }
            while kept.len() > STEPS {
                kept.pop_front();
            }
            steps.insert(key, kept);
        }
        self.steps = steps;
        self.before = looks.clone();
        self.looks = all;
    }

    /// Returns the share of late: of the last step, and of as many before it as are needed to have enough moments.
    pub(super) fn share(&self, of: Of) -> Option<f64> {
        let (mut all, mut works) = (0, 0);
        for step in self.steps.get(&of)?.iter().rev() {
            if all >= LEAST {
                break;
            }
            all += step.all;
            works += step.works;
        }
        (all > 0).then(|| works as f64 / all as f64)
    }

    /// Returns the last steps as a line; blank where there was no moment.
    pub(super) fn history(&self, of: Of, steps: usize) -> String {
        let Some(kept) = self.steps.get(&of) else {
            return String::new();
        };
        let height = |step: &Step| match step.all {
            0 => ' ',
            all => {
                let at = (step.works * HEIGHTS.len() as u64 / all) as usize;
                let at = at.min(HEIGHTS.len() - 1);
                HEIGHTS.get(at).copied().unwrap_or(' ')
            }
        };
        let first = kept.len().saturating_sub(steps);
        kept.iter().skip(first).map(height).collect()
    }

    /// Returns the gauges of the GPUs, with the processes at work there. `name` gives that of a process.
    pub(super) fn gpus(&self, name: impl Fn(u32) -> String) -> Vec<Gauge> {
        let gpus = self.steps.keys().filter(|(pid, _)| pid.is_none());
        let gauge = |(_, gpu): &Of| {
            let its = self.steps.keys().filter(|(_, on)| on == gpu);
            let its = its.filter_map(|of| Some((of.0?, self.share(*of)?)));
            let mut its: Vec<(u32, f64)> = its.filter(|(_, share)| *share >= 0.01).collect();
            its.sort_by(|a, b| b.1.total_cmp(&a.1));
            let each = its
                .iter()
                .map(|(pid, share)| format!("{} {pid} {:.0} %", name(*pid), 100.0 * share));
            Gauge {
                gpu: *gpu,
                share: self.share((None, *gpu)),
                history: self.history((None, *gpu), STEPS),
                by: each.collect::<Vec<_>>().join(", "),
            }
        };
        gpus.map(gauge).collect()
    }
}

/// Returns the number of moments at which it was at work.
fn works(looks: &Moments, (pid, gpu): Of) -> u64 {
    let known = match pid {
        Some(pid) => looks.processes.get(&(pid, gpu)),
        None => looks.gpus.get(&gpu),
    };
    known.copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looks(all: u64, first: u64, second: u64) -> Moments {
        Moments {
            all,
            gpus: BTreeMap::from([(Some(0), first.max(second))]),
            processes: BTreeMap::from([((7, Some(0)), first), ((8, Some(0)), second)]),
        }
    }

    #[test]
    fn shares_are_of_the_last_step_with_enough_moments() {
        let of = || [(7, Some(0)), (8, Some(0)), (9, Some(1))].into_iter();
        let mut gauges = Gauges::default();
        gauges.take(&looks(0, 0, 0), of());
        assert_eq!(gauges.share((None, Some(0))), None);
        gauges.take(&looks(100, 100, 0), of());
        gauges.take(&looks(200, 150, 10), of());
        assert_eq!(gauges.share((Some(7), Some(0))), Some(0.5));
        // Ten moments are too few: those of the step before count, too.
        gauges.take(&looks(210, 150, 10), of());
        assert_eq!(gauges.share((Some(7), Some(0))), Some(50.0 / 110.0));
        // No moment at all.
        gauges.take(&looks(210, 150, 10), of());
        assert_eq!(
            gauges.history((Some(7), Some(0)), 60),
            "\u{2588}\u{2585}\u{2581} "
        );
        let all = gauges.gpus(|pid| format!("p{pid}"));
        let by: Vec<_> = all.iter().map(|g| (g.gpu, g.by.as_str())).collect();
        assert_eq!(by, [(Some(0), "p7 7 45 %, p8 8 9 %"), (Some(1), "")]);
        assert_eq!(all[1].share, Some(0.0));
        // One that has ended is not kept.
        gauges.take(&looks(310, 250, 10), [(7, Some(0))].into_iter());
        assert_eq!(gauges.gpus(|_| String::new()).len(), 1);
        assert_eq!(gauges.share((Some(8), Some(0))), None);
    }
}
