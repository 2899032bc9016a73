//! Collectives of before the trace that have not ended, where the trace itself has none: a job that hangs submits nothing.

use super::analysis::Analysis;
use super::kinds;
use crate::output::dump::{Collective, Member, Merged};
use crate::output::style::Plain;

/// The name of a process in a sentence.
fn name(member: &Member) -> String {
    match (member.rank, member.name.as_deref()) {
        (Some(rank), _) => format!("rank {rank}"),
        (None, Some(name)) => format!("process {} ({})", member.pid, Plain(name)),
        (None, None) => format!("process {}", member.pid),
    }
}

/// Names with commas, and the verb's form for so many.
fn names<'a>(members: impl Iterator<Item = &'a Member>) -> (String, &'static str) {
    let names: Vec<String> = members.map(name).collect();
    let has = if names.len() == 1 { "has" } else { "have" };
    (names.join(", "), has)
}

fn sentence(of: &Collective) -> String {
    let kind = kinds::words(&of.kind, false);
    let (present, is_in) = names(of.present.iter().map(|p| &p.member));
    let (absent, has) = names(of.absent.iter().map(|a| &a.member));
    match absent.is_empty() {
        true => format!(
            "no collective was called in this time: {present} {is_in} been in {kind} since before"
        ),
        false => format!(
            "{absent} {has} not come to {kind}, which {present} {is_in} been in since before the trace"
        ),
    }
}

impl Analysis {
    /// Adds a look at the processes. Where none called a collective in the trace, those that they have been in since before it are the verdict.
    #[must_use]
    pub fn with_earlier(mut self, look: &Merged) -> Self {
        let first = look.collectives.first();
        if let Some(first) = first.filter(|_| !self.has_calls()) {
            let worst = look.collectives.iter().find(|c| !c.absent.is_empty());
            self.verdict = sentence(worst.unwrap_or(first));
            self.earlier = look
                .collectives
                .iter()
                .flat_map(Collective::lines)
                .collect();
        }
        self
    }

    /// Tells whether a collective was called.
    #[must_use]
    pub fn has_calls(&self) -> bool {
        self.job.ranks.iter().any(|rank| !rank.calls.is_empty())
    }
}
