//! Results of a trace when it has ended.

use nvcap_decode::ledger::Ledger;

/// Number of events that a filter was given, and of those that it passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Matched {
    /// Number of events.
    pub of: u64,
    /// Number of events that were shown.
    pub shown: u64,
}

/// End of a trace: its account, and what was shown of it.
pub struct Finished {
    /// The ledger, with what each sink could not take.
    pub ledger: Ledger,
    /// Counts of the filter.
    pub matched: Matched,
    /// Comparisons of the filter that were true for no event, and the values that there are instead; none if an event was shown.
    pub unmatched: Option<String>,
    /// True if no sink that shows the ledger failed to write it.
    pub is_shown: bool,
}

impl Matched {
    pub(super) fn count(&mut self, matches: bool) -> bool {
        self.of += 1;
        self.shown += u64::from(matches);
        matches
    }
}
