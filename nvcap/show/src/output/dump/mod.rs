//! `nvcap dump`: one look at processes, as text for an incident or as one JSON object. Knows no source.

mod collective;
mod json;
mod last;
mod member;
mod merge;
mod stacks;
mod status;
mod text;
mod verdict;

pub use collective::{Absent, Collective, Present};
pub use json::json;
pub use last::LastEntries;
pub use member::{Member, places};
pub use merge::{
    Group, MergeError, Merged, SharedState, last_look, merge, merged_json, merged_text,
};
pub use status::{Status, status};
pub use text::text;
pub use verdict::{Verdict, Word, cause, verdict};

use super::names::token_name;
use super::redact::Redactor;
use nvcap_decode::hang::{ChannelState, Judged, Progress, Report, Step};

/// Options of the report.
#[derive(Clone, Debug, Default)]
pub struct ReportOptions {
    /// Number of the newest entries of each channel that are shown, beside those that the GPU has not fetched; `None`: text shows those that are
    /// not done, JSON [`LAST`].
    pub last: Option<u32>,
    /// True to show every operation, and what was assumed and what proven of each channel.
    pub verbose: bool,
    /// True for all frames of the threads' stacks, not the newest alone.
    pub full_stacks: bool,
    /// True for colour.
    pub color: bool,
    /// Replaces users' data; `None` shows the data.
    pub redact: Option<Redactor>,
    /// Numbers of the channels whose entries alone are shown; those of all channels are if this and `tokens` are empty.
    pub channels: Vec<u32>,
    /// Work-submit tokens of the channels whose entries alone are shown.
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

/// Number of entries of a channel that are read and shown where the user does not say how many.
pub const LAST: u32 = 20;

/// The most channels that are named where one is asked for that is not there.
const NAMED: usize = 32;

/// Steps of a channel that are shown.
#[derive(Clone, Copy, Debug, Default)]
struct Part<'a> {
    steps: &'a [Step],
    /// Number of the channel's steps that are not done, where the part shows those and the newest that is done.
    undone: Option<usize>,
}

impl ReportOptions {
    /// Tells whether a channel's entries are asked for.
    fn wants(&self, c: &ChannelState) -> bool {
        self.channels.is_empty() && self.tokens.is_empty() || self.chooses(c)
    }

    /// Tells whether the user has named a channel.
    fn chooses(&self, c: &ChannelState) -> bool {
        self.channels.contains(&c.id.0) || c.token.is_some_and(|t| self.tokens.contains(&t))
    }

    /// Returns a sentence on the channels and tokens that the user named and a look does not have, with those that it has; `None` if it has all.
    #[must_use]
    pub fn lacks(&self, report: &Report) -> Option<String> {
        let all = &report.rings.channels;
        let numbers = self
            .channels
            .iter()
            .filter(|n| !all.iter().any(|c| c.id.0 == **n));
        let tokens = self.tokens.iter();
        let tokens = tokens.filter(|t| !all.iter().any(|c| c.token == Some(**t)));
        let numbers = numbers.map(|n| format!("no channel {n}"));
        let tokens = tokens.map(|t| format!("no channel with the token {}", token_name(Some(*t))));
        let lacking: Vec<String> = numbers.chain(tokens).collect();
        if lacking.is_empty() {
            return None;
        }
        let has = all.iter().take(NAMED).map(|c| match c.token {
            Some(_) => format!("{} ({})", c.id.0, token_name(c.token)),
            None => c.id.0.to_string(),
        });
        let mut has = has.collect::<Vec<_>>().join(", ");
        if all.len() > NAMED {
            has = format!("{has} and {} more", all.len() - NAMED);
        }
        let lacking = lacking.join(", ");
        Some(match all.is_empty() {
            true => format!("there is {lacking}, and no other"),
            false => format!("there is {lacking}; there are (token) {has}"),
        })
    }

    /// Returns the steps of a channel that text shows. They are those of [`Self::steps`] where the user has given a number or named the channel, or
    /// nothing tells how far the GPU is; else the oldest that are not done, and the one before them.
    fn part<'a>(&self, c: &'a ChannelState, judged: Option<&Judged>) -> Part<'a> {
        if !self.wants(c) {
            return Part::default();
        }
        let progress = judged.filter(|j| j.semaphore.is_some_and(|l| l.done.is_some()));
        let judged_by = progress.filter(|_| self.last.is_none() && !self.chooses(c));
        let Some(judged_by) = judged_by else {
            return Part {
                steps: self.steps(c, judged),
                undone: None,
            };
        };
        let is_done = |s: &Step| !s.pending && judged_by.has_done(s.position);
        let from = c.steps.iter().rposition(is_done).map_or(0, |at| at + 1);
        // The channel's semaphore may have passed a kernel that has not ended.
        let works = judged_by.running.as_ref().map(|w| w.position);
        let works = [works, judged_by.wait.as_ref().map(|w| w.position)];
        let at = |position| c.steps.iter().position(|s| s.position == position);
        let first = works.into_iter().flatten().filter_map(at).min();
        let from = from.min(first.unwrap_or(from));
        let undone = c.steps.len() - from;
        let to = c.steps.len().min(from + LAST as usize);
        // The newest that is done stands before those that are not, where there are such.
        let shown = c.steps.get(from.saturating_sub(1)..to);
        Part {
            steps: shown.filter(|_| undone > 0).unwrap_or_default(),
            undone: Some(undone),
        }
    }

    /// Returns the steps of a channel that JSON shows: the newest, all that are not fetched, and the one that runs; none if the user asked for other
    /// channels.
    fn steps<'a>(&self, c: &'a ChannelState, judged: Option<&Judged>) -> &'a [Step] {
        let last = self.last.unwrap_or(LAST) as usize;
        let shown = last.max(c.pending() as usize + 1);
        let from = c.steps.len().saturating_sub(shown);
        // The step that runs is shown even if many are queued behind it.
        let running = judged.and_then(|j| j.running.as_ref());
        let runs = running.and_then(|w| c.steps.iter().position(|s| s.position == w.position));
        let from = from.min(runs.unwrap_or(from));
        let steps = c.steps.get(from..);
        steps.filter(|_| self.wants(c)).unwrap_or_default()
    }
}
