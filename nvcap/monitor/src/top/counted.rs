//! Exact counts of what a process has submitted, reading by reading, with which a trace of it is compared that may lack something. Pure.

use std::collections::VecDeque;

/// Time after which what was submitted is in the trace, if it was read at all, ns: its records wait for the GPU's times.
const LAG: u64 = 3_000_000_000;
/// Readings that are kept, beside the first.
const MOST: usize = 4096;

/// Exact counts of what a process has submitted, reading by reading.
#[derive(Debug, Default)]
pub struct Counted {
    first: Option<(u64, u64)>,
    newest: VecDeque<(u64, u64)>,
}

impl Counted {
    /// Takes a reading: its time, ns, and the number of submissions until then.
    pub fn take(&mut self, at: u64, submitted: u64) {
        self.first.get_or_insert((at, submitted));
        if self.newest.len() >= MOST {
            self.newest.pop_front();
        }
        self.newest.push_back((at, submitted));
    }

    /// Returns the least number of submissions since a time that a trace should have by now, ns; none where too few readings tell it.
    pub fn since(&self, from: u64, now: u64) -> Option<u64> {
        let is_in = |reading: &&(u64, u64)| reading.0 >= from;
        let begin = { self.first.iter().chain(&self.newest) }.find(is_in)?;
        let end = { self.newest.iter().rev() }.find(|r| r.0.saturating_add(LAG) <= now)?;
        (end.0 > begin.0).then(|| end.1.saturating_sub(begin.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn what_a_trace_should_have_is_counted_up_to_the_lag() {
        let mut counted = Counted::default();
        assert_eq!(counted.since(0, 100 * S), None);
        for second in 10..30 {
            counted.take(second * S, 1000 * second);
        }
        // Readings from 10 s to 26 s.
        assert_eq!(counted.since(0, 29 * S), Some(16_000));
        assert_eq!(counted.since(20 * S, 29 * S), Some(6_000));
        // Nothing can be said of the newest.
        assert_eq!(counted.since(26 * S, 29 * S), None);
        assert_eq!(counted.since(0, 12 * S), None);
        // The first reading is kept, however many there are.
        for n in 0..2 * MOST as u64 {
            counted.take(30 * S + n, 30_000);
        }
        assert_eq!(counted.since(0, 60 * S), Some(20_000));
    }
}
