//! Collectives that some processes of a job are in (`nvcap dump --merge`), and the processes that have not come. Reads what [`super::json()`] writes;
//! does no I/O.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde::Serialize;
use serde_json::Value;

use super::member::{Member, items, members, numbered, place};
use crate::output::plural::plural_of;
use crate::output::style::Plain;
use crate::ranks::kinds;

/// A process that is in a collective's kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Present {
    /// The process.
    pub member: Member,
    /// Address of the communicator's structure, which differs from process to process. `None` where the kernel's arguments are not in the look.
    pub communicator: Option<String>,
    /// Number of the call's submission on its channel, from 1, since the channel was made: ranks of one job that do the same have the same number.
    pub submission: Option<u64>,
}

/// A process that is not in the collective.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Absent {
    /// The process.
    pub member: Member,
    /// Its verdict's word.
    pub verdict: String,
    /// True if the process has submitted a call of this kind that is not done, behind other work; false also where the look has none.
    pub submitted: bool,
    /// Its place in the program: the newest Python frame that is not a library's, else its newest.
    pub python: Option<String>,
}

/// A collective that some processes are in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Collective {
    /// Its kind, such as `AllReduce`.
    pub kind: String,
    /// Number of the submission, where it is the same in all that are in it.
    pub submission: Option<u64>,
    /// Processes that are in it.
    pub present: Vec<Present>,
    /// Processes that are in no collective.
    pub absent: Vec<Absent>,
    /// Ranks of the job of which there is no look.
    pub not_looked_at: Vec<u32>,
}

/// The kind of a kernel of a look, where it is a collective.
fn kind(operation: &Value) -> Option<String> {
    let name = operation["kernel"].as_str()?;
    Some(kinds::of(name, name, &[])?.kind)
}

/// The address of the communicator: the first argument of the kernel.
fn communicator(operation: &Value) -> Option<String> {
    let digits = operation["args"].as_str()?.get(..16)?;
    let bytes = u64::from_str_radix(digits, 16).ok()?.swap_bytes();
    (bytes != 0).then(|| format!("{bytes:#x}"))
}

/// Returns the call that a process is in, and whether the look says how far its channel is.
fn running(process: &Value, member: &Member) -> Option<(String, Present)> {
    items(&process["channels"]).iter().find_map(|channel| {
        let running = &channel["running"];
        let kind = kind(&running["operation"])?;
        let submitted = channel["semaphore"]["newest"].as_u64();
        let behind = running["behind"].as_u64();
        let submission = submitted
            .zip(behind)
            .and_then(|(all, n)| all.checked_sub(n));
        Some((
            kind,
            Present {
                member: member.clone(),
                communicator: communicator(&running["operation"]),
                submission,
            },
        ))
    })
}

/// Tells whether a process has submitted a call of this kind that is not done.
fn has_submitted(process: &Value, of: &str) -> bool {
    let channels = items(&process["channels"]).iter();
    let mut open = { channels.flat_map(|c| items(&c["last"])) }
        .filter(|entry| entry["done"] == false)
        .flat_map(|entry| items(&entry["operations"]));
    open.any(|operation| kind(operation).is_some_and(|kind| kind == of))
}

/// The ranks of which there is no look, below the highest one or the number of ranks that a process was started with.
pub(super) fn not_looked_at(processes: &[(Member, &Value)]) -> Vec<u32> {
    let ranks: BTreeSet<u32> = processes.iter().filter_map(|(m, _)| m.rank).collect();
    let sizes = processes.iter().filter_map(|(m, p)| {
        m.rank?;
        p["ranks"].as_u64()
    });
    let below = ranks.last().map_or(0, |highest| u64::from(*highest));
    let below = sizes.max().map_or(below, |size| size.max(below));
    // A number that is no rank is not counted up to.
    let all = 0..below.min(4096) as u32;
    all.filter(|r| !ranks.contains(r)).collect()
}

/// The sentence on ranks of which there is no look.
pub(super) fn no_look(ranks: &[u32]) -> String {
    format!("there is no look of {}", numbered(ranks))
}

/// The collectives that some of the processes are in; those to which somebody has not come first. `missing` are the ranks without a look.
pub(super) fn of(processes: &[(Member, &Value)], missing: &[u32]) -> Vec<Collective> {
    let mut all: Vec<Collective> = Vec::new();
    let mut others = Vec::new();
    for (member, process) in processes {
        let Some((kind, present)) = running(process, member) else {
            others.push((member, process));
            continue;
        };
        match all.iter_mut().find(|c| c.kind == kind) {
            Some(collective) => collective.present.push(present),
            None => all.push(Collective {
                kind,
                submission: None,
                present: vec![present],
                absent: Vec::new(),
                not_looked_at: Vec::new(),
            }),
        }
    }
    for collective in &mut all {
        let mut numbers = collective.present.iter().map(|p| p.submission);
        let first = numbers.next().flatten();
        collective.submission = first.filter(|_| numbers.all(|n| n == first));
        collective.present.sort_by(|a, b| a.member.cmp(&b.member));
        collective.not_looked_at = missing.to_vec();
        collective.absent = { others.iter() }
            .map(|(member, process)| Absent {
                member: (*member).clone(),
                verdict: process["verdict"].as_str().unwrap_or("unknown").to_owned(),
                submitted: has_submitted(process, &collective.kind),
                python: place(process),
            })
            .collect();
        collective.absent.sort_by(|a, b| a.member.cmp(&b.member));
    }
    all.sort_by_key(|c| std::cmp::Reverse(c.present.len()));
    all
}

impl Collective {
    /// Returns the lines that tell of it: the processes in it, and each that is not.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let present: Vec<Member> = self.present.iter().map(|p| p.member.clone()).collect();
        let one = present.len() == 1;
        let kind = kinds::words(&self.kind, false);
        let mut first = format!(
            "{} in {kind}: {}",
            match one {
                true => "1 process is".to_owned(),
                false => format!(
                    "{} are",
                    plural_of(present.len() as u64, "process", "processes")
                ),
            },
            members(&present)
        );
        if let Some(number) = self.submission {
            let its = if one { "its channel" } else { "their channels" };
            let _ = write!(first, " (submission {number} of {its})");
        }
        let mut lines = vec![first];
        lines.extend(self.absent.iter().map(|absent| {
            let submitted = match absent.submitted {
                true => format!("has submitted {kind}, which waits behind other work"),
                false => format!("has not submitted {kind}"),
            };
            let python = { absent.python.as_ref() }
                .map_or_else(String::new, |at| format!("; python at {}", Plain(at)));
            format!(
                "has not come: {}: {}, {submitted}{python}",
                members(std::slice::from_ref(&absent.member)),
                absent.verdict
            )
        }));
        if !self.not_looked_at.is_empty() {
            lines.push(no_look(&self.not_looked_at));
        }
        lines
    }
}
