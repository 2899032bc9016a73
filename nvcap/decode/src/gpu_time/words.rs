//! Numbers seen in semaphores, by process and address, each with its time stamp or the time at which it was seen.

use std::collections::{HashMap, VecDeque};

use crate::record::Stamp;
use crate::wire::GpuVa;

/// A number in a semaphore.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Value {
    /// Address of the semaphore.
    pub address: GpuVa,
    /// The number.
    pub payload: u32,
}

/// The most numbers that are kept of a semaphore: as many as submissions may wait until they are decoded.
const MOST: usize = 1 << 18;
/// The most numbers of all semaphores of a process, which may write into them what it likes.
const MOST_OF_PROCESS: usize = 1 << 22;
/// Number of older numbers of a semaphore without stamps that are kept once a number is less than the previous one. Such a word may serve
/// another purpose from then on.
const MOST_BEFORE: usize = 256;

/// Numbers seen in one semaphore.
#[derive(Clone, Debug, Default)]
struct SemaphoreNumbers {
    /// Newest numbers, in rising order.
    rising: VecDeque<Stamp>,
    /// Some of the numbers before those.
    before: VecDeque<Stamp>,
}

/// Numbers seen in semaphores, by process and address, each with its time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Words {
    all: HashMap<(u32, GpuVa), SemaphoreNumbers>,
    /// Number of numbers of each process.
    counts: HashMap<u32, usize>,
}

impl SemaphoreNumbers {
    fn len(&self) -> usize {
        self.before.len() + self.rising.len()
    }

    /// Keeps the newest `most`.
    fn keep(&mut self, most: usize) {
        let old = self.len().saturating_sub(most);
        let before = old.min(self.before.len());
        self.before.drain(..before);
        self.rising.drain(..old - before);
        self.before.shrink_to_fit();
        self.rising.shrink_to_fit();
    }

    fn put(&mut self, stamp: &Stamp) {
        // The same number once more, as in the pairs of Vulkan's driver: the newest time is the one that is asked for.
        if stamp.gpu_ns.is_some()
            && let Some(newest) = self.rising.back_mut()
            && newest.payload == stamp.payload
        {
            *newest = *stamp;
            return;
        }
        let newest = self.rising.back();
        if newest.is_some_and(|n| is_less(stamp.payload, n.payload)) {
            // The count begins anew: another program, another context, or another purpose of the word.
            self.before.append(&mut self.rising);
            let kept = match stamp.gpu_ns {
                Some(_) => 0,
                None => MOST_BEFORE,
            };
            let old = self.before.len().saturating_sub(kept);
            self.before.drain(..old);
        }
        let is_full = self.len() >= MOST;
        if is_full && self.before.pop_front().is_none() {
            self.rising.pop_front();
        }
        self.rising.push_back(*stamp);
    }

    /// Returns the first of the rising numbers that is not less than `payload`.
    fn reached(&self, payload: u32) -> Option<&Stamp> {
        let newest = self.rising.back()?;
        // If the numbers rise by one each time, the place follows from the newest.
        let step = newest.payload.wrapping_sub(payload) as usize;
        let guess = self.rising.len().checked_sub(1 + step);
        let guess = guess.and_then(|i| self.rising.get(i));
        guess.filter(|s| s.payload == payload).or_else(|| {
            let less = |s: &Stamp| is_less(s.payload, payload);
            self.rising.get(self.rising.partition_point(less))
        })
    }

    /// Returns the last stamp with this number.
    fn get(&self, payload: u32) -> Option<&Stamp> {
        let exact = |s: &&Stamp| s.payload == payload;
        let before = || self.before.iter().rev().find(exact);
        self.reached(payload).filter(exact).or_else(before)
    }
}

/// Tells whether a number comes before another in a count that wraps.
fn is_less(a: u32, b: u32) -> bool {
    a.wrapping_sub(b).cast_signed() < 0
}

impl Words {
    /// Takes in a number that was seen.
    pub(crate) fn put(&mut self, pid: u32, stamp: &Stamp) {
        let semaphore = self.all.entry((pid, stamp.address)).or_default();
        let before = semaphore.len();
        semaphore.put(stamp);
        let after = semaphore.len();
        let count = self.counts.entry(pid).or_default();
        *count = (*count + after).saturating_sub(before);
        if *count > MOST_OF_PROCESS {
            self.halve(pid);
        }
    }

    /// Reduces the numbers of a process to half of the limit, keeping the newest of each semaphore.
    fn halve(&mut self, pid: u32) {
        let own = || self.all.keys().filter(|(of, _)| *of == pid);
        let each = (MOST_OF_PROCESS / 2 / own().count().max(1)).max(1);
        let mut count = 0;
        for ((of, _), semaphore) in &mut self.all {
            if *of == pid {
                semaphore.keep(each);
                count += semaphore.len();
            }
        }
        self.counts.insert(pid, count);
    }

    /// Returns the last stamp with this number in its semaphore.
    pub(crate) fn get(&self, pid: u32, value: Value) -> Option<&Stamp> {
        self.all.get(&(pid, value.address))?.get(value.payload)
    }

    /// Returns the first sight of a semaphore that had reached a number, for numbers that count up.
    pub(crate) fn reached(&self, pid: u32, value: Value) -> Option<&Stamp> {
        self.all.get(&(pid, value.address))?.reached(value.payload)
    }

    /// Forgets a process that is gone.
    pub(crate) fn forget(&mut self, pid: u32) {
        self.all.retain(|(of, _), _| *of != pid);
        self.counts.remove(&pid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: GpuVa = GpuVa(0x2_0460_fff0);

    fn stamp(payload: u32, gpu_ns: Option<u64>) -> Stamp {
        Stamp {
            address: AT,
            payload,
            gpu_ns,
            before_ns: 0,
            seen_ns: u64::from(payload) * 10,
        }
    }

    fn value(payload: u32) -> Value {
        Value {
            address: AT,
            payload,
        }
    }

    #[test]
    fn numbers_are_found_though_some_were_not_seen() {
        let mut words = Words::default();
        let first = u32::MAX - 20;
        for n in 0..1000u32 {
            if n % 7 != 3 {
                words.put(1, &stamp(first.wrapping_add(n), Some(u64::from(n))));
            }
        }
        for n in 0..1000u32 {
            let found = words.get(1, value(first.wrapping_add(n)));
            let expected = (n % 7 != 3).then_some(Some(u64::from(n)));
            assert_eq!(found.map(|s| s.gpu_ns), expected, "{n}");
            let reached = words.reached(1, value(first.wrapping_add(n)));
            let expected = if n % 7 == 3 { n + 1 } else { n };
            assert_eq!(reached.and_then(|s| s.gpu_ns), Some(u64::from(expected)));
        }
        assert_eq!(words.get(1, value(first.wrapping_add(1000))), None);
        assert_eq!(words.reached(1, value(first.wrapping_add(1000))), None);
        assert_eq!(words.get(1, value(first.wrapping_sub(1))), None);
        assert_eq!(words.get(2, value(first)), None);
        words.forget(1);
        assert_eq!(words.get(1, value(first)), None);
    }

    /// Test of a process that writes into its semaphores without end: it takes no more memory than the limit, and the newest numbers of
    /// each semaphore are kept.
    #[test]
    fn numbers_of_a_process_are_bounded() {
        let mut words = Words::default();
        let semaphores = 100;
        let at = |s: u32| GpuVa(0x1000 + 16 * u64::from(s));
        let each = 60_000;
        words.put(2, &stamp(7, None));
        for n in 0..each {
            for s in 0..semaphores {
                let address = at(s);
                words.put(
                    1,
                    &Stamp {
                        address,
                        ..stamp(n, None)
                    },
                );
            }
        }
        let all: usize = words.all.values().map(SemaphoreNumbers::len).sum();
        assert!(all <= MOST_OF_PROCESS + 1, "{all}");
        assert_eq!(words.counts[&1] + words.counts[&2], all);
        let get = |n, s| {
            words.get(
                1,
                Value {
                    address: at(s),
                    payload: n,
                },
            )
        };
        assert!(get(each - 1, 0).is_some() && get(each - 20_000, 99).is_some());
        assert!(get(10, 50).is_none());
        assert!(words.get(2, value(7)).is_some(), "others keep theirs");
        words.forget(1);
        assert_eq!(words.counts.len(), 1);
    }

    #[test]
    fn numbers_that_begin_anew_are_those_of_another_context() {
        let mut words = Words::default();
        for n in 100..200 {
            words.put(1, &stamp(n, Some(u64::from(n))));
        }
        words.put(1, &stamp(1, Some(1000)));
        assert_eq!(words.get(1, value(1)).and_then(|s| s.gpu_ns), Some(1000));
        assert_eq!(words.get(1, value(150)), None);
    }

    #[test]
    fn words_without_stamps_come_back_with_any_number() {
        let mut words = Words::default();
        for n in [40, 41, 7, 8, 40, 41] {
            words.put(1, &stamp(n, None));
        }
        for n in [40, 41, 7, 8] {
            assert!(words.get(1, value(n)).is_some(), "{n}");
        }
        assert!(words.get(1, value(42)).is_none());
        // A kernel's word has the previous number when the kernel begins, and the kernel's own at its end.
        for n in 0..400_000 {
            words.put(1, &stamp(n * 4 + 3, None));
            words.put(1, &stamp(n * 4 + 4, None));
        }
        for n in [270_000, 399_000, 399_999] {
            assert!(words.get(1, value(n * 4 + 4)).is_some(), "{n}");
            assert!(words.get(1, value(n * 4 + 5)).is_none(), "{n}");
            let reached = words.reached(1, value(n * 4 + 2)).map(|s| s.payload);
            assert_eq!(reached, Some(n * 4 + 3));
        }
        assert!(words.get(1, value(4)).is_none(), "a bounded number is kept");
        words.put(1, &stamp(5, None));
        assert!(words.get(1, value(5)).is_some() && words.get(1, value(1_600_000)).is_some());
        assert!(words.get(1, value(1_200_000)).is_none());
    }
}
