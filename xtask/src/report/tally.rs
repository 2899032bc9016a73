//! Tally of tests: the numbers, and the names of those that did not run or failed.

/// The numbers of tests.
#[derive(Default, Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    pub passed: usize,
    pub failed: usize,
    pub skipped: usize,
}

impl Counts {
    /// Adds the numbers of other tests.
    pub fn add(&mut self, more: Self) {
        self.passed += more.passed;
        self.failed += more.failed;
        self.skipped += more.skipped;
    }
}

/// The numbers with the names behind them, each with its reason.
#[derive(Default)]
pub struct Tally {
    pub counts: Counts,
    pub not_run: Vec<String>,
    pub failed: Vec<String>,
}

impl Tally {
    /// Adds the tally of other tests.
    pub fn add(&mut self, more: Self) {
        self.counts.add(more.counts);
        self.not_run.extend(more.not_run);
        self.failed.extend(more.failed);
    }
}
