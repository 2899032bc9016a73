//! Samples by program counter and stall reason.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

use super::Sample;

/// The most program counters that are counted separately; samples of further ones are counted together.
pub const MOST_COUNTERS: usize = 1 << 20;

/// Number of stall reasons that the hardware can encode.
pub const REASONS: usize = 32;

/// Samples at a program counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counter {
    /// Number of samples.
    pub samples: u64,
    /// Number of samples in whose cycle the scheduler issued no instruction.
    pub not_issued: u64,
    /// Number of samples by stall reason.
    pub reasons: [u32; REASONS],
}

impl Counter {
    /// Adds the samples of another counter.
    pub fn join(&mut self, other: &Self) {
        self.samples = self.samples.saturating_add(other.samples);
        self.not_issued = self.not_issued.saturating_add(other.not_issued);
        for (reason, more) in self.reasons.iter_mut().zip(other.reasons) {
            *reason = reason.saturating_add(more);
        }
    }
}

/// Hash of a program counter: one multiplication, because there are millions of samples a second. A user who chose program counters that
/// collide would slow down only the count of his own samples, of [`MOST_COUNTERS`] at most.
#[derive(Clone, Copy, Debug, Default)]
struct OfCounter(u64);

impl Hasher for OfCounter {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64((self.0 << 8) ^ u64::from(*byte));
        }
    }

    fn write_u64(&mut self, pc: u64) {
        let spread = (pc >> 4).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = spread ^ (spread >> 32);
    }
}

/// Sums of samples.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Indexes in `counters`, by program counter.
    places: HashMap<u64, usize, BuildHasherDefault<OfCounter>>,
    counters: Vec<(u64, Counter)>,
    /// Set of the SMs that sent a sample, one bit for each.
    sms: [u64; 8],
    /// Number of samples of program counters for which there was no room.
    pub others: u64,
}

impl Counts {
    /// Adds a sample.
    pub fn take(&mut self, sample: &Sample) {
        if let Some(sms) = self.sms.get_mut(usize::from(sample.sm / 64)) {
            *sms |= 1 << (sample.sm % 64);
        }
        let next = self.counters.len();
        let place = match self.places.get(&sample.pc) {
            Some(place) => *place,
            None if next >= MOST_COUNTERS => {
                self.others = self.others.saturating_add(1);
                return;
            }
            None => {
                self.places.insert(sample.pc, next);
                self.counters.push((sample.pc, Counter::default()));
                next
            }
        };
        let Some((_, counter)) = self.counters.get_mut(place) else {
            return;
        };
        counter.samples = counter.samples.saturating_add(1);
        counter.not_issued = { counter.not_issued }.saturating_add(u64::from(!sample.issued));
        if let Some(reason) = counter.reasons.get_mut(usize::from(sample.reason)) {
            *reason = reason.saturating_add(1);
        }
    }

    /// Returns the program counters, in the order of addresses.
    #[must_use]
    pub fn counters(&self) -> BTreeMap<u64, Counter> {
        self.counters.iter().copied().collect()
    }

    /// Takes out all counts: the program counters in the order of addresses, the set of SMs that sent a sample (one bit for each), and the
    /// number of samples of program counters for which there was no room.
    pub fn drain(&mut self) -> (Vec<(u64, Counter)>, [u64; 8], u64) {
        let Self {
            mut counters,
            sms,
            others,
            ..
        } = std::mem::take(self);
        counters.sort_unstable_by_key(|(pc, _)| *pc);
        (counters, sms, others)
    }

    /// Returns the number of program counters.
    #[must_use]
    pub fn places(&self) -> usize {
        self.counters.len()
    }

    /// Returns the number of SMs that sent a sample.
    #[must_use]
    pub fn sms(&self) -> usize {
        self.sms.iter().map(|sms| sms.count_ones() as usize).sum()
    }

    /// Returns the number of all samples.
    #[must_use]
    pub fn samples(&self) -> u64 {
        let counted = self.counters.iter().map(|(_, c)| c.samples);
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
