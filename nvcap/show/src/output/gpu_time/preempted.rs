//! The time in which others had the GPU while kernels were under way: no part of the kernels' own time.

use serde_json::{Map, Value, json};

use crate::output::plural::plural;
use crate::output::units::Nanoseconds;
use nvcap_decode::decode::event::Preempted;

/// Sums of works that are timed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Preemptions {
    /// Number of works for which that time is known, and of those for which it is not although the holders of the GPU were recorded.
    known: u64,
    unknown: u64,
    ns: u64,
    /// The works' own time, ns.
    worked_ns: u64,
}

impl Preemptions {
    /// Adds a work, with its own time, ns.
    pub(super) fn add(&mut self, of: Preempted, worked_ns: u64) {
        self.worked_ns = self.worked_ns.saturating_add(worked_ns);
        match of {
            Preempted::NotRecorded => {}
            Preempted::Unknown => self.unknown += 1,
            Preempted::Ns(ns) => {
                self.known += 1;
                self.ns = self.ns.saturating_add(ns);
            }
        }
    }

    /// Tells whether the holders of the GPU were recorded.
    pub(super) fn is_recorded(&self) -> bool {
        self.known > 0 || self.unknown > 0
    }

    /// Returns the cell of a table, with `>=` before a time that is not that of all works.
    pub(super) fn cell(&self) -> String {
        match (self.known, self.unknown) {
            (0, 0) => "-".to_owned(),
            (0, _) => "?".to_owned(),
            (_, 0) => Nanoseconds(self.ns).to_string(),
            _ => format!(">={}", Nanoseconds(self.ns)),
        }
    }

    /// A sentence on kernels. `None` where there is nothing to say.
    pub(super) fn sentence(&self) -> Option<String> {
        let unknown = match self.unknown {
            0 => String::new(),
            n => format!(
                "; of {} it is not known, and nothing is subtracted",
                plural(n, "kernel")
            ),
        };
        match (self.known, self.ns) {
            (0, _) if self.unknown == 0 => None,
            (0, _) => Some(format!(
                "for how long others had the GPU while {} ran is not known",
                plural(self.unknown, "kernel")
            )),
            (_, 0) if self.unknown == 0 => None,
            _ => {
                let all = self.ns.saturating_add(self.worked_ns);
                let share = 100.0 * self.ns as f64 / all.max(1) as f64;
                let (ns, all) = (Nanoseconds(self.ns), Nanoseconds(all));
                Some(format!(
                    "others had the GPU for {ns} ({share:.1} %) of the {all} from kernels' begins to their ends: that is not counted as the kernels' time{unknown}"
                ))
            }
        }
    }

    /// Adds the members of a JSON object: null where the holders of the GPU were not recorded.
    pub(super) fn members(&self, of: &mut Map<String, Value>) {
        let recorded = |n: u64| self.is_recorded().then_some(n);
        of.insert("preempted_ns".to_owned(), json!(recorded(self.ns)));
        of.insert(
            "preempted_unknown".to_owned(),
            json!(recorded(self.unknown)),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sums(all: &[Preempted]) -> Preemptions {
        let mut sums = Preemptions::default();
        all.iter().for_each(|of| sums.add(*of, 3_000));
        sums
    }

    #[test]
    fn what_is_not_known_is_said() {
        use Preempted::{NotRecorded, Ns, Unknown};
        let all = [
            (sums(&[NotRecorded]), "-", None),
            (sums(&[Ns(0), Ns(0)]), "0 ns", None),
            (
                sums(&[Ns(1_000), Ns(2_000), NotRecorded]),
                "3.00 us",
                Some(
                    "others had the GPU for 3.00 us (25.0 %) of the 12.0 us from kernels' begins to their ends: that is not counted as the kernels' time",
                ),
            ),
            (
                sums(&[Ns(3_000), Unknown, Ns(0)]),
                ">=3.00 us",
                Some(
                    "others had the GPU for 3.00 us (25.0 %) of the 12.0 us from kernels' begins to their ends: that is not counted as the kernels' time; of 1 kernel it is not known, and nothing is subtracted",
                ),
            ),
            (
                sums(&[Unknown, Unknown]),
                "?",
                Some("for how long others had the GPU while 2 kernels ran is not known"),
            ),
        ];
        for (sums, cell, sentence) in all {
            assert_eq!(sums.cell(), cell);
            assert_eq!(sums.sentence().as_deref(), sentence);
        }
    }
}
