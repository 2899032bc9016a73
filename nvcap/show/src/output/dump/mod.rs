//! `nvcap dump`: one look at processes, as text for an incident or as one JSON object. Knows no source.

mod json;
mod last;
mod merge;
mod stacks;
mod status;
mod text;
mod verdict;

pub use json::json;
pub use last::LastEntries;
pub use merge::{
    Group, Member, MergeError, Merged, SharedState, last_look, merge, merged_json, merged_text,
};
pub use status::{Status, status};
pub use text::text;
pub use verdict::{Verdict, Word, verdict};

use super::redact::Redactor;
use nvcap_decode::hang::{ChannelState, Judged, Progress, Report, Step};

/// Options of the report.
#[derive(Clone, Debug, Default)]
pub struct ReportOptions {
    /// Number of the newest entries of each channel that are shown, beside those that the GPU has not fetched.
    pub last: u32,
    /// Show every operation, and what was assumed and what proven of each channel.
    pub verbose: bool,
    /// All frames of the threads' stacks, not the newest alone.
    pub full_stacks: bool,
    /// Colour.
    pub color: bool,
    /// Hide users' data.
    pub redact: Option<Redactor>,
    /// Show the entries of these channels alone, by number; of all channels if this and `tokens` are empty.
    pub channels: Vec<u32>,
    /// Show the entries of these channels alone, by work-submit token.
    pub tokens: Vec<u32>,
}

/// A look, and what moved since the look before it if there was one.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a> {
    /// The look.
    pub report: &'a Report,
    /// Progress since the look before it.
    pub moved: Option<&'a Progress>,
}

impl ReportOptions {
    /// The steps of a channel that are shown: the newest, all that are not fetched, and the one that runs; none if the user
    /// did not ask for this channel.
    fn steps<'a>(&self, c: &'a ChannelState, judged: Option<&Judged>) -> &'a [Step] {
        let wanted = self.channels.is_empty() && self.tokens.is_empty()
            || self.channels.contains(&c.id.0)
            || c.token.is_some_and(|t| self.tokens.contains(&t));
        let shown = (self.last as usize).max(c.pending() as usize + 1);
        let from = c.steps.len().saturating_sub(shown);
        // The step that runs is shown even if many are queued behind it.
        let running = judged.and_then(|j| j.running.as_ref());
        let runs = running.and_then(|w| c.steps.iter().position(|s| s.position == w.position));
        let from = from.min(runs.unwrap_or(from));
        c.steps.get(from..).filter(|_| wanted).unwrap_or_default()
    }
}
