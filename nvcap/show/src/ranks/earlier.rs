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
    /// Adds a look at the processes. If the trace has no call of a collective, the verdict is on the collectives that they have been in since before it.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ranks::job::Job;
    use crate::ranks::simulated::Simulated;
    use serde_json::Value;

    /// Calls of before the trace that have not ended are the verdict, where the trace has none.
    #[test]
    fn a_job_that_hung_before_the_trace() {
        let process = |pid: u32, rank: Option<u32>, kernel: Option<&str>| {
            serde_json::json!({
                "pid": pid, "name": "train", "rank": rank, "verdict": kernel.map_or("idle", |_| "hang"),
                "channels": [{
                    "semaphore": {"newest": 24},
                    "running": kernel.map(|name| serde_json::json!({"behind": 0, "operation": {"kernel": name}})),
                }],
            })
        };
        let verdict = |processes: &[Value]| {
            let look = serde_json::json!({ "processes": processes });
            let merged = crate::output::dump::merge(&[(String::new(), look)]);
            let told = Analysis::of(Job::default()).with_earlier(&merged);
            let mut text = Vec::new();
            told.text(&mut text);
            (told.verdict().to_owned(), String::from_utf8(text).unwrap())
        };
        let all_reduce = Some("ncclDevKernel_AllReduce_Sum_f32_RING_LL");
        let (said, all) = verdict(&[
            process(7, Some(0), all_reduce),
            process(8, Some(1), None),
            process(9, Some(2), all_reduce),
        ]);
        assert_eq!(
            said,
            "rank 1 has not come to all-reduce, which rank 0, rank 2 have been in since before the trace"
        );
        assert!(
            all.contains(
                "2 processes are in all-reduce: ranks 0, 2 (submission 24 of their channels)"
            ),
            "{all}"
        );
        assert!(all.contains("has not submitted all-reduce"), "{all}");
        let (said, _) = verdict(&[process(7, None, all_reduce)]);
        assert_eq!(
            said,
            "no collective was called in this time: process 7 (train) has been in all-reduce since before"
        );
        assert!(
            verdict(&[process(7, None, None)])
                .0
                .starts_with("no collective was seen")
        );
        // What the trace has seen comes first.
        let mut of = Simulated::new(2);
        for _ in 0..3 {
            of.collective(1, &[0, 1], "AllReduce", 20_000);
        }
        of.end(1_000);
        let analysis = Analysis::of(of.job);
        let seen = analysis.verdict().to_owned();
        let look = serde_json::json!({ "processes": [process(7, None, all_reduce)] });
        let merged = crate::output::dump::merge(&[(String::new(), look)]);
        assert_eq!(analysis.with_earlier(&merged).verdict(), seen);
    }
}
