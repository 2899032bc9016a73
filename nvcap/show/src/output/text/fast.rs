//! The change from lines to sums, where lines come too fast to be read.

use std::time::Instant;

use nvcap_decode::record::At;

use super::pace::Pace;

/// Form of the output where lines come too fast to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Fast {
    /// Every line is shown.
    #[default]
    Lines,
    /// Sums, written anew in their place: nobody else writes to the terminal.
    Anew,
    /// Sums, in one more line each second.
    Appended,
}

/// State of the change from lines to sums.
#[derive(Debug)]
pub(super) struct Board {
    pub(super) began: Instant,
    pub(super) pace: Pace,
    /// Time of the last sums; none while lines are shown, before one was too fast.
    pub(super) since: Option<Instant>,
    /// Time of the last operation that was no line.
    pub(super) at: Option<At>,
}

impl Default for Board {
    fn default() -> Self {
        Self {
            began: Instant::now(),
            pace: Pace::default(),
            since: None,
            at: None,
        }
    }
}

impl Board {
    /// Tells whether sums are shown, and no lines.
    pub(super) fn is_shown(&self) -> bool {
        self.since.is_some()
    }
}
