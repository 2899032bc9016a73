//! Results of a trace when it has ended.

use nvcap_decode::ledger::Ledger;

/// Events that a filter was given, and those that it passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Matched {
    /// Events.
    pub of: u64,
    /// Events that were shown.
    pub shown: u64,
}

/// End of a trace: its account, and what was shown of it.
pub struct Finished {
    /// The ledger, with what each sink could not take.
    pub ledger: Ledger,
    /// Counts of the filter.
    pub matched: Matched,
    /// The comparisons of the filter that were true for no event, and what there is instead; none if an event was shown.
    pub unmatched: Option<String>,
    /// No sink that shows the ledger failed to write it.
    pub is_shown: bool,
}

impl Matched {
    pub(super) fn count(&mut self, matches: bool) -> bool {
        self.of += 1;
        self.shown += u64::from(matches);
        matches
    }
}
