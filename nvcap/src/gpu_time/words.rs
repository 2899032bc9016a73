//! What was seen in semaphores: by process and address the numbers, each with its time stamp or the time at which it was seen.

use std::collections::{HashMap, VecDeque};

use super::unit::Value;
use crate::record::Stamp;
use crate::wire::GpuVa;

/// How many numbers of a semaphore are kept. A ring of 1,024 entries and the pause until they are decoded lie behind the newest.
const MOST: usize = 1 << 16;
/// How many of a semaphore without stamps, which comes back with other numbers.
const MOST_OF_WORD: usize = 256;

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Words(HashMap<(u32, GpuVa), VecDeque<Stamp>>);

impl Words {
    /// Takes what was seen.
    pub(crate) fn put(&mut self, pid: u32, stamp: &Stamp) {
        let all = self.0.entry((pid, stamp.address)).or_default();
        let most = match stamp.gpu_ns {
            Some(_) => MOST,
            None => MOST_OF_WORD,
        };
        // Another program, or another context, begins anew.
        let anew = |newest: &Stamp| stamp.payload.wrapping_sub(newest.payload).cast_signed() < 0;
        if stamp.gpu_ns.is_some() && all.back().is_some_and(anew) {
            all.clear();
        }
        if all.len() >= most {
            all.pop_front();
        }
        all.push_back(*stamp);
    }

    /// Where this number was seen in its semaphore, the last time.
    pub(crate) fn get(&self, pid: u32, value: Value) -> Option<&Stamp> {
        let all = self.0.get(&(pid, value.address))?;
        // Numbers of a stamped semaphore rise by one each time: where they do, its place follows from the newest.
        let newest = all.back()?;
        let behind = newest.payload.wrapping_sub(value.payload) as usize;
        let guess = all.len().checked_sub(1 + behind);
        if let Some(stamp) = guess.and_then(|i| all.get(i))
            && stamp.payload == value.payload
        {
            return Some(stamp);
        }
        if newest.gpu_ns.is_some() {
            // Some were not seen: the number lies behind the guessed place.
            let rising = |s: &Stamp| newest.payload.wrapping_sub(s.payload) as usize > behind;
            let at = all.partition_point(rising);
            return all.get(at).filter(|s| s.payload == value.payload);
        }
        all.iter().rev().find(|s| s.payload == value.payload)
    }

    /// The first time that a semaphore had reached a number that counts up.
    pub(crate) fn reached(&self, pid: u32, value: Value) -> Option<&Stamp> {
        let all = self.0.get(&(pid, value.address))?;
        let reached = |s: &Stamp| s.payload.wrapping_sub(value.payload).cast_signed() >= 0;
        let newest = all.back().filter(|s| reached(s))?;
        let behind = newest.payload.wrapping_sub(value.payload) as usize;
        let at = all.partition_point(|s| newest.payload.wrapping_sub(s.payload) as usize > behind);
        all.get(at).filter(|s| reached(s))
    }

    /// A process is gone.
    pub(crate) fn forget(&mut self, pid: u32) {
        self.0.retain(|(of, _), _| *of != pid);
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
        for n in 0..1000 {
            words.put(1, &stamp(n, None));
        }
        assert!(words.get(1, value(1000 - 256)).is_some());
        assert!(words.get(1, value(700)).is_none());
    }
}
