//! `nvcap dump`: one look at processes, as text for an incident or as one JSON object. Knows no source.

mod json;
mod merge;
mod stacks;
mod status;
mod text;
mod verdict;

pub use json::json;
pub use merge::{
    Group, Member, MergeError, Merged, SharedState, last_look, merge, merged_json, merged_text,
};
pub use status::{Status, status};
pub use text::text;
pub use verdict::{Verdict, Word, verdict};

use super::redact::Redactor;
use crate::hang::{ChannelState, Judged, Progress, Report, Step};

/// What to show.
#[derive(Clone, Debug, Default)]
pub struct ReportOptions {
    /// Entries of each channel that are shown, beside those that are not fetched.
    pub last: u32,
    /// What was assumed and what proven; every operation.
    pub verbose: bool,
    /// All frames of the threads' stacks, not the newest alone.
    pub full_stacks: bool,
    /// Colour.
    pub color: bool,
    /// Hide users' data.
    pub redact: Option<Redactor>,
    /// Only these channels' entries, by number; all where this and `tokens` are empty.
    pub channels: Vec<u32>,
    /// Only these channels' entries, by work-submit token.
    pub tokens: Vec<u32>,
}

/// A look and, where there was one before it, what moved since.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a> {
    /// The look.
    pub report: &'a Report,
    /// Since the one before.
    pub moved: Option<&'a Progress>,
}

impl ReportOptions {
    /// The steps of a channel that are shown: none of a channel that was not asked for, and else the newest, with all
    /// that is not fetched and what runs.
    fn steps<'a>(&self, c: &'a ChannelState, judged: Option<&Judged>) -> &'a [Step] {
        let wanted = self.channels.is_empty() && self.tokens.is_empty()
            || self.channels.contains(&c.id.0)
            || c.token.is_some_and(|t| self.tokens.contains(&t));
        let shown = (self.last as usize).max(c.pending() as usize + 1);
        let from = c.steps.len().saturating_sub(shown);
        // What runs is shown however much is queued behind it.
        let running = judged.and_then(|j| j.running.as_ref());
        let runs = running.and_then(|w| c.steps.iter().position(|s| s.position == w.position));
        let from = from.min(runs.unwrap_or(from));
        c.steps.get(from..).filter(|_| wanted).unwrap_or_default()
    }
}
