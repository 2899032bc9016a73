//! Silence of a source: steps without a record, and what follows from their number.

use std::time::{Duration, Instant};

/// Number of steps after which the other thread may show what it holds back: some ms, in which what belongs together has come.
const TELLS: u32 = 8;
/// Records may be committed without a wake-up each: for so many steps after some, the next look is soon.
const LOOKS_SOON: u32 = 64;
const SOON: Duration = Duration::from_millis(1);
/// For so many steps a program may just pause, for a second or so. Later only what no record tells is looked after.
const LOOKS_OFTEN: u32 = 128;
const OFTEN: Duration = Duration::from_millis(20);
/// Time without a record after which nothing that waits for more is held back (`pipeline::loads` says how long loads pause).
const IDLE: Duration = Duration::from_millis(60);

/// Silence of a source since its newest record.
#[derive(Debug)]
pub(super) struct Quiet {
    /// Steps in a row that gave no record.
    steps: u32,
    /// Times that the other thread was told since the newest record.
    told: u32,
    /// Time of the newest record, or of the beginning.
    newest: Instant,
}

impl Quiet {
    /// Begins: records are expected soon.
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

    /// A step gave records.
    pub(super) fn ends(&mut self) {
        *self = Self::new();
    }

    /// A step gave none, but facts are awaited that concern records given before: nothing is told yet, and they come soon.
    pub(super) fn awaits_facts(&mut self) {
        self.steps = self.steps.min(TELLS - 1);
    }

    /// A step gave none; true where the other thread is to be told so.
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
