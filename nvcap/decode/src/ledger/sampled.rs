//! Account of samples of program counters.

use crate::record::Samples;

/// Sums of samples of program counters. Lost samples make nothing else incomplete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sampled {
    /// Number of windows of time in which samples were counted.
    pub windows: u64,
    /// Total length of these windows, ns.
    pub ns: u64,
    /// Number of samples.
    pub samples: u64,
    /// Number of readings at which the hardware had dropped samples.
    pub overflows: u64,
    /// Bytes of incomplete samples.
    pub cut_bytes: u64,
    /// Bytes of the samples' stream that are not understood.
    pub strange_bytes: u64,
}

impl Sampled {
    /// Takes in a window.
    pub(super) fn add(&mut self, s: &Samples) {
        for (sum, more) in [
            (&mut self.windows, 1),
            (&mut self.ns, s.length_ns()),
            (&mut self.samples, s.samples()),
            (&mut self.overflows, s.overflows),
            (&mut self.cut_bytes, s.cut_bytes),
            (&mut self.strange_bytes, s.strange_bytes),
        ] {
            *sum = sum.saturating_add(more);
        }
    }

    /// Tells whether samples are missing.
    #[must_use]
    pub fn lost(&self) -> bool {
        self.overflows > 0 || self.cut_bytes > 0
    }
}
