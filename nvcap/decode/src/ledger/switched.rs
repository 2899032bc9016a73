//! Account of context switches that the driver recorded.

use crate::record::Switches;
use crate::switches::Told;

/// Sums of recorded context switches. Lost records make nothing else incomplete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Switched {
    /// Number of windows of time in which switches were recorded.
    pub windows: u64,
    /// Number of the driver's records.
    pub records: u64,
    /// Number of missing records.
    pub missing: u64,
    /// Number of records that are not understood.
    pub strange: u64,
}

impl Switched {
    /// Takes in a window.
    pub(super) fn add(&mut self, window: &Switches) {
        self.windows = self.windows.saturating_add(1);
        for told in &window.told {
            let (sum, more) = match told {
                Told::Switch(_) => (&mut self.records, 1),
                Told::Missing(missing) => (&mut self.missing, *missing),
                Told::Strange => (&mut self.strange, 1),
                Told::Ended { .. } => continue,
            };
            *sum = sum.saturating_add(more);
        }
    }
}
