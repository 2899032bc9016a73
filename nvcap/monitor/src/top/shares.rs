//! Shares of the GPUs since the last reading, by the driver's record of context switches.

use std::collections::BTreeMap;

use nvcap_decode::switches::{GpuView, Scope, Who};

/// Time for which each process had each GPU since the last reading.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// Time of each GPU.
    gpus: BTreeMap<u32, Measured>,
    /// Time for which each process had each GPU, ns.
    resident_ns: BTreeMap<(u32, u32), u64>,
}

/// Time of a GPU, or of all its MIG instances.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Measured {
    ns: u64,
    /// True if it is not known of all of that time who had the GPU.
    is_part: bool,
    /// True if some had it whom the driver does not name to this user.
    hides: bool,
}

impl Part {
    /// Adds what came then.
    pub fn add(&mut self, views: &[GpuView]) {
        for view in views {
            let gpu = self.gpus.entry(view.gpu).or_default();
            gpu.ns += view.ns;
            gpu.is_part |= view.missing > 0;
            gpu.hides |= view.scope != Scope::AllUsers;
            for engine in &view.engines {
                gpu.is_part |= engine.unknown_ns > 0;
                for (who, held, _) in &engine.holders {
                    match *who {
                        Who::Process(pid) => {
                            let of = self.resident_ns.entry((pid, view.gpu)).or_default();
                            *of += held.resident_ns;
                        }
                        Who::Hidden => gpu.hides = true,
                        _ => {}
                    }
                }
            }
        }
    }

    /// Percent of the time for which a process had a GPU, and whether that is the least; none where that is not told.
    fn of(&self, pid: u32, gpu: u32) -> Option<(f64, bool)> {
        let measured = self.gpus.get(&gpu).filter(|measured| measured.ns > 0)?;
        let ns = match self.resident_ns.get(&(pid, gpu)) {
            None if measured.hides => return None,
            ns => ns.copied().unwrap_or(0),
        };
        Some((ns as f64 * 100.0 / measured.ns as f64, measured.is_part))
    }
}

/// Shares, where the driver tells them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Shares {
    /// The driver was not asked yet.
    #[default]
    Unasked,
    /// The reason why they cannot be had.
    Refused(String),
    /// Shares since the last reading.
    Of(Part),
}

impl Shares {
    /// Returns what [`Part::of`] does; none where there are no shares.
    pub(super) fn of(&self, pid: u32, gpu: Option<u32>) -> Option<(f64, bool)> {
        match self {
            Self::Of(part) => part.of(pid, gpu?),
            _ => None,
        }
    }

    /// Returns text that says what the shares are, or why there are none.
    pub(super) fn about(&self) -> Option<String> {
        match self {
            Self::Unasked => None,
            Self::Refused(why) => Some(format!("no GPU%: {why}")),
            Self::Of(_) => Some("GPU%: the driver's record of context switches".to_owned()),
        }
    }

    /// Takes the shares until now; what comes later is counted from 0.
    pub fn take(&mut self) -> Self {
        match self {
            Self::Of(part) => Self::Of(std::mem::take(part)),
            other => other.clone(),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use nvcap_decode::switches::{EngineView, Held};

    /// A GPU in a period of 1 us, of which processes had so much, and so much is unknown, ns.
    pub(in crate::top) fn view(gpu: u32, held: &[(Who, u64)], unknown_ns: u64) -> GpuView {
        let holder = |(who, resident_ns): &(Who, u64)| {
            let held = Held {
                resident_ns: *resident_ns,
                slices: 1,
                longest_ns: 1,
            };
            (*who, held, 1)
        };
        GpuView {
            gpu,
            scope: Scope::AllUsers,
            began_ns: 0,
            ns: 1000,
            engines: vec![EngineView {
                holders: held.iter().map(holder).collect(),
                unknown_ns,
                ..EngineView::default()
            }],
            missing: 0,
            strange: 0,
        }
    }

    #[test]
    fn shares_are_of_the_time_since_the_last_reading() {
        let mut shares = Shares::Of(Part::default());
        let add = |shares: &mut Shares, views: &[GpuView]| match shares {
            Shares::Of(part) => part.add(views),
            _ => panic!("{shares:?}"),
        };
        let process = Who::Process;
        add(&mut shares, &[view(0, &[(process(7), 600)], 0)]);
        add(
            &mut shares,
            &[view(0, &[(process(7), 200)], 0), view(1, &[], 9)],
        );
        let taken = shares.take();
        assert_eq!(taken.of(7, Some(0)), Some((40.0, false)));
        assert_eq!(taken.of(8, Some(0)), Some((0.0, false)));
        assert_eq!(taken.of(7, Some(1)), Some((0.0, true)));
        assert_eq!((taken.of(7, Some(2)), taken.of(7, None)), (None, None));
        // Nothing has come since.
        assert_eq!(shares.of(7, Some(0)), None);
        // Whether another user's process had it is not told.
        add(
            &mut shares,
            &[view(0, &[(process(7), 600), (Who::Hidden, 300)], 0)],
        );
        assert_eq!(shares.of(7, Some(0)), Some((60.0, false)));
        assert_eq!(shares.of(8, Some(0)), None);
        let mut refused = Shares::Refused("it is so".to_owned());
        assert_eq!(refused.take(), refused);
        assert_eq!(refused.about().unwrap(), "no GPU%: it is so");
    }
}
