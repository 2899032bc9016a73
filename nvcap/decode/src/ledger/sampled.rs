//! The account of samples of program counters.

use crate::record::Samples;

/// Sums of samples of program counters. What is lost of them makes nothing else incomplete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sampled {
    /// Windows of time in which they were counted.
    pub windows: u64,
    /// Time of these windows, ns.
    pub ns: u64,
    /// Number of samples.
    pub samples: u64,
    /// Readings at which the hardware had dropped samples.
    pub overflows: u64,
    /// Bytes of samples that are not whole.
    pub cut_bytes: u64,
    /// Bytes of their stream that are not understood.
    pub strange_bytes: u64,
}

impl Sampled {
    /// Takes a window into account.
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
