//! Samples by program counter and stall reason.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use super::Sample;

/// Program counters that are counted one by one; what comes later is a sum.
const MOST_COUNTERS: usize = 1 << 20;

/// Stall reasons that the hardware can number.
pub const REASONS: usize = 32;

/// Samples at a program counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counter {
    /// Their number.
    pub samples: u64,
    /// Those in whose cycle the scheduler issued no instruction.
    pub not_issued: u64,
    /// Number by the stall reason's number.
    pub reasons: [u32; REASONS],
}

impl Counter {
    /// Adds those of another.
    pub fn join(&mut self, other: &Self) {
        self.samples = self.samples.saturating_add(other.samples);
        self.not_issued = self.not_issued.saturating_add(other.not_issued);
        for (reason, more) in self.reasons.iter_mut().zip(other.reasons) {
            *reason = reason.saturating_add(more);
        }
    }
}

/// Sums of samples.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    counters: BTreeMap<u64, Counter>,
    sms: BTreeSet<u16>,
    /// Samples of program counters for which there was no room.
    pub others: u64,
}

impl Counts {
    /// Adds a sample.
    pub fn take(&mut self, sample: &Sample) {
        self.sms.insert(sample.sm);
        let full = self.counters.len() >= MOST_COUNTERS;
        if full && !self.counters.contains_key(&sample.pc) {
            self.others = self.others.saturating_add(1);
            return;
        }
        let counter = self.counters.entry(sample.pc).or_default();
        counter.samples = counter.samples.saturating_add(1);
        counter.not_issued = { counter.not_issued }.saturating_add(u64::from(!sample.issued));
        if let Some(reason) = counter.reasons.get_mut(usize::from(sample.reason)) {
            *reason = reason.saturating_add(1);
        }
    }

    /// The program counters, in the order of addresses.
    #[must_use]
    pub fn counters(&self) -> &BTreeMap<u64, Counter> {
        &self.counters
    }

    /// Returns the number of SMs that sent a sample.
    #[must_use]
    pub fn sms(&self) -> usize {
        self.sms.len()
    }

    /// Returns the number of all samples.
    #[must_use]
    pub fn samples(&self) -> u64 {
        let counted = self.counters.values().map(|c| c.samples);
        counted.fold(self.others, u64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_counted_by_program_counter() {
        let mut counts = Counts::default();
        for i in 0..10u64 {
            counts.take(&Sample {
                sm: (i % 2) as u16,
                pc: 0x1000 + 16 * (i % 3),
                warp: 0,
                reason: 8,
                issued: i == 0,
            });
        }
        assert_eq!((counts.samples(), counts.sms()), (10, 2));
        let first = counts.counters()[&0x1000];
        assert_eq!((first.samples, first.not_issued), (4, 3));
        assert_eq!(first.reasons[8], 4);
        let mut both = first;
        both.join(&counts.counters()[&0x1010]);
        assert_eq!((both.samples, both.reasons[8]), (7, 7));
    }
}
