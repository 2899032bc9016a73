//! Silence of a source: steps without a record, and the consequences of their number.

use std::time::{Duration, Instant};

/// Number of steps after which the other thread may show the records that it holds back: some ms, in which records that belong
/// together have come.
const TELLS: u32 = 8;
/// Number of steps after a record for which the next look is soon, because a record may be committed without a wake-up.
const LOOKS_SOON: u32 = 64;
const SOON: Duration = Duration::from_millis(1);
/// Number of steps for which a program may merely pause, for a second or so. Later, only work that no record announces is
/// done.
const LOOKS_OFTEN: u32 = 128;
const OFTEN: Duration = Duration::from_millis(20);
/// Time without a record after which records that wait for more are not held back any longer. (`pipeline::loads` says how long
/// loads pause.)
const IDLE: Duration = Duration::from_millis(60);

/// Silence of a source since its newest record.
#[derive(Debug)]
pub(super) struct Quiet {
    /// Number of consecutive steps without a record.
    steps: u32,
    /// Number of times that the other thread was told of the silence since the newest record.
    told: u32,
    /// Time of the newest record, or of the beginning.
    newest: Instant,
}

impl Quiet {
    /// Begins the silence: records are expected soon.
    pub(super) fn new() -> Self {
        Self {
            steps: 0,
            told: 0,
            newest: Instant::now(),
        }
    }

    /// Returns the time to wait for the next records. `longest`: the longest that the source allows.
    pub(super) fn wait(&self, longest: impl FnOnce() -> Duration) -> Duration {
        match self.steps {
            0..LOOKS_SOON => SOON,
            LOOKS_SOON..LOOKS_OFTEN => OFTEN,
            _ => longest(),
        }
    }

    /// Tells whether the newest step gave records.
    pub(super) fn is_over(&self) -> bool {
        self.steps == 0
    }

    /// Takes note of a step with records.
    pub(super) fn ends(&mut self) {
        *self = Self::new();
    }

    /// Takes note of a step without records, while facts are awaited that concern earlier records: nothing is told yet, and
    /// the facts come soon.
    pub(super) fn awaits_facts(&mut self) {
        self.steps = self.steps.min(TELLS - 1);
    }

    /// Takes note of a step without records. True if the other thread must be told.
    pub(super) fn goes_on(&mut self) -> bool {
        self.steps = self.steps.saturating_add(1);
        // The second time, what waits for more is shown as it is.
        // Steps end early where what they took in gives no record: the second time goes by the clock.
        let is_long = self.told == 1 && self.newest.elapsed() >= IDLE;
        let tells = (self.steps >= TELLS && self.told == 0) || is_long;
        self.told += u32::from(tells);
        tells
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_grows() {
        let mut quiet = Quiet::new();
        let longest = Duration::from_secs(1);
        let mut waits = Vec::new();
        for _ in 0..=LOOKS_OFTEN {
            waits.push(quiet.wait(|| longest));
            quiet.goes_on();
        }
        let of = |wait| waits.iter().filter(|w| **w == wait).count() as u32;
        assert_eq!(
            (of(SOON), of(OFTEN), of(longest)),
            (LOOKS_SOON, LOOKS_OFTEN - LOOKS_SOON, 1)
        );
        quiet.ends();
        assert!(quiet.is_over() && quiet.wait(|| longest) == SOON);
    }

    #[test]
    fn it_is_told_after_some_steps_and_after_some_time() {
        let mut quiet = Quiet::new();
        let told = Vec::from_iter((1..=TELLS).map(|_| quiet.goes_on()));
        assert_eq!(told.iter().position(|told| *told), Some(TELLS as usize - 1));
        quiet.newest = Instant::now();
        assert!(!quiet.goes_on(), "not long enough for the second time");
        quiet.newest -= IDLE;
        assert!(quiet.goes_on() && !quiet.goes_on());
    }

    #[test]
    fn it_is_not_told_while_facts_are_awaited() {
        let mut quiet = Quiet::new();
        for _ in 1..TELLS {
            assert!(!quiet.goes_on());
        }
        for _ in 0..100 {
            quiet.awaits_facts();
        }
        assert!(quiet.goes_on());
    }
}
