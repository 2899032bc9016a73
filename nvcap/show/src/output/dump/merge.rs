//! Looks at several processes of one job (`nvcap dump --merge`): the groups that are in the same state, and the odd one out. Reads what
//! [`super::json()`] writes; does no I/O.

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::Value;

use super::collective::{self, Collective};
use super::member::{Member, frame, items, members, place, stack};
use super::status::Status;
use super::verdict::Word;
use crate::output::json::write;
use crate::output::plural::{plural, plural_of};
use crate::output::style::{Formatter, Plain, Role};
use nvcap_decode::hang::xid::{UNKNOWN, meaning};

/// Frames of a group's stack that are shown as text.
const FRAMES: usize = 6;

/// State that processes may have in common. Addresses and entries are no part of it: they differ between processes that do the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SharedState {
    /// The verdict's word.
    pub verdict: String,
    /// Kernels and copies that have not ended.
    pub running: BTreeSet<String>,
    /// Reasons for which channels wait.
    pub waits: BTreeSet<String>,
    /// Place of the thread of [`Group::stack`] in the program: its newest Python frame that is not a library's, else its newest.
    pub python: Option<String>,
    /// Numbers of the driver's messages about it.
    pub xids: BTreeSet<u64>,
}

/// Processes in the same state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Group {
    /// The state.
    pub state: SharedState,
    /// The processes.
    pub members: Vec<Member>,
    /// The Python frames of its first member's first thread, newest first.
    pub stack: Vec<String>,
    /// True if the group stands out and may be the cause: it has an error and another group has none, or it has fewer processes
    /// than another group. Of groups of one size, the one whose state is the likelier cause stands out (idle while others work).
    pub odd: bool,
}

/// All groups, the odd ones first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Merged {
    /// Number of processes.
    pub processes: usize,
    /// The groups.
    pub groups: Vec<Group>,
    /// Collectives that some of the processes are in.
    pub collectives: Vec<Collective>,
    /// Ranks of the job of which there is no look.
    pub not_looked_at: Vec<u32>,
}

/// Reason why a file cannot be merged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MergeError {
    /// The file is no JSON.
    #[error("it is no JSON ({0}); make it by: nvcap dump -p PID --json -o FILE")]
    Json(String),
    /// The file has no look.
    #[error("it has no look of nvcap dump; make it by: nvcap dump -p PID --json -o FILE")]
    NoLook,
    /// The look is of another version of nvcap.
    #[error("it is a look of version {0}, and this nvcap reads version 1")]
    Version(u64),
}

/// The last look of a file.
///
/// # Errors
/// When the text has none.
pub fn last_look(text: &str) -> Result<Value, MergeError> {
    let mut last = None;
    for value in serde_json::Deserializer::from_str(text).into_iter::<Value>() {
        match value {
            Ok(value) if value["type"] == "dump" => last = Some(value),
            Ok(_) => {}
            // A file that is still written ends within a look.
            Err(e) if e.is_eof() && last.is_some() => break,
            Err(e) => return Err(MergeError::Json(e.to_string())),
        }
    }
    let last = last.ok_or(MergeError::NoLook)?;
    match last["version"].as_u64() {
        Some(1) => Ok(last),
        other => Err(MergeError::Version(other.unwrap_or(0))),
    }
}

fn string(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

/// Returns dimensions as text: `24x1x1`.
fn dimensions(value: &Value) -> String {
    let numbers: Vec<String> = items(value).iter().map(Value::to_string).collect();
    if numbers.is_empty() {
        "?".to_owned()
    } else {
        numbers.join("x")
    }
}

/// Describes the running work, in words that are the same for the same work of another process.
fn work(running: &Value) -> Option<String> {
    let operation = &running["operation"];
    Some(match running["kind"].as_str()? {
        "kernel" => {
            let name = operation["kernel"].as_str().map(|name| format!("{name} "));
            format!(
                "kernel {}grid {} block {}",
                name.unwrap_or_default(),
                dimensions(&operation["grid"]),
                dimensions(&operation["block"])
            )
        }
        "copy" => format!("a copy of {} B", operation["bytes"]),
        _ => "other work".to_owned(),
    })
}

/// Describes the reason that a channel's wait comes down to.
fn wait(channel: &Value) -> Option<String> {
    if channel["wait"].is_null() {
        return None;
    }
    let reason = match channel["root"]["kind"].as_str() {
        Some("work") => "unfinished work of its own process",
        Some("nobody_releases") => {
            "a semaphore that its own process does not release: the CPU, another process or another GPU must"
        }
        Some("cycle") => "a cycle of channels that wait for one another",
        Some("about_to") => "a release that is about to come",
        _ => "a semaphore whose value could not be read",
    };
    Some(reason.to_owned())
}

fn state(process: &Value) -> SharedState {
    let channels = items(&process["channels"]);
    SharedState {
        verdict: string(&process["verdict"]).unwrap_or_else(|| "unknown".to_owned()),
        running: channels
            .iter()
            .filter_map(|c| work(&c["running"]))
            .collect(),
        waits: channels.iter().filter_map(wait).collect(),
        python: place(process),
        xids: items(&process["xids"])
            .iter()
            .filter(|x| x["unknown_process"] != true)
            .filter_map(|x| x["code"].as_u64())
            .collect(),
    }
}

/// Ranks a state as the cause of the other processes' states: 0 is the likeliest (an error), then 1 (idle while others work).
fn rank(state: &SharedState) -> u8 {
    match state.verdict.as_str() {
        "error" => 0,
        _ if !state.xids.is_empty() => 0,
        "idle" => 1,
        "unknown" => 2,
        "moving" => 3,
        "busy" => 4,
        _ => 5,
    }
}

/// Groups the processes of looks, each with the name of its file.
#[must_use]
pub fn merge(looks: &[(String, Value)]) -> Merged {
    let mut merged = Merged::default();
    let mut all = Vec::new();
    for (file, look) in looks {
        for process in items(&look["processes"]) {
            merged.processes += 1;
            let member = Member {
                rank: process["rank"].as_u64().and_then(|r| u32::try_from(r).ok()),
                file: file.clone(),
                pid: process["pid"].as_u64().unwrap_or(0),
                name: string(&process["name"]),
            };
            all.push((member.clone(), process));
            let state = state(process);
            match merged.groups.iter_mut().find(|g| g.state == state) {
                Some(group) => group.members.push(member),
                None => merged.groups.push(Group {
                    state,
                    members: vec![member],
                    stack: stack(process).iter().map(frame).collect(),
                    odd: false,
                }),
            }
        }
    }
    merged.not_looked_at = collective::not_looked_at(&all);
    merged.collectives = collective::of(&all, &merged.not_looked_at);
    for group in &mut merged.groups {
        group.members.sort();
    }
    // Groups with an error come first, whatever their size: the others may wait for a process that failed. Then the smallest.
    let order = |g: &Group| (rank(&g.state) != 0, g.members.len(), rank(&g.state));
    merged.groups.sort_by_key(order);
    let most = merged.groups.last().map(order);
    for group in &mut merged.groups {
        group.odd = Some(order(group)) != most;
    }
    merged
}

impl Merged {
    /// The worst verdict of all, as the exit status of `nvcap dump`.
    #[must_use]
    pub fn status(&self) -> Status {
        let status = |g: &Group| match g.state.verdict.as_str() {
            "idle" => Status::Idle,
            "moving" => Status::Moving,
            "busy" => Status::Busy,
            "hang" => Status::Hang,
            "error" => Status::Stopped,
            _ => Status::Unknown,
        };
        let all = self.groups.iter().map(status);
        all.fold(Status::Idle, Status::worst)
    }
}

/// Appends the groups as an object on a line; docs/merge.schema.json has its form.
pub fn merged_json(out: &mut Vec<u8>, merged: &Merged) {
    #[derive(Serialize)]
    struct Line<'a> {
        r#type: &'static str,
        version: u32,
        #[serde(flatten)]
        merged: &'a Merged,
    }
    write(
        out,
        &Line {
            r#type: "merge",
            version: 1,
            merged,
        },
    );
    out.push(b'\n');
}

/// Appends the groups as text.
pub fn merged_text(out: &mut Vec<u8>, merged: &Merged, color: bool) {
    let mut f = Formatter::new(out, color);
    f.line("", 0, None);
    f.text(format_args!(
        "{} in {}",
        plural_of(merged.processes as u64, "process", "processes"),
        plural(merged.groups.len() as u64, "state")
    ));
    if merged.groups.iter().any(|g| g.odd) {
        f.text(format_args!("; the odd one out first"));
    }
    f.end();
    // A collective's lines say it, too.
    if merged.collectives.is_empty() && !merged.not_looked_at.is_empty() {
        f.line("", 0, Some(Role::Alarm));
        f.text(format_args!(
            "{}",
            collective::no_look(&merged.not_looked_at)
        ));
        f.end();
    }
    for collective in &merged.collectives {
        f.line("", 0, None);
        f.end();
        for (n, text) in collective.lines().into_iter().enumerate() {
            let role = (n > 0).then_some(Role::Alarm);
            f.line("", usize::from(n > 0), role);
            f.text(format_args!("{text}"));
            f.end();
        }
    }
    for group in &merged.groups {
        f.line("", 0, None);
        f.end();
        let alarm = [Word::Hang, Word::Error].map(Word::name);
        let role = if group.odd || alarm.contains(&group.state.verdict.as_str()) {
            Role::Alarm
        } else {
            Role::Operation
        };
        f.line("", 0, Some(role));
        f.text(format_args!(
            "{}: {}: {}",
            plural_of(group.members.len() as u64, "process", "processes"),
            members(&group.members),
            Plain(&group.state.verdict.to_uppercase())
        ));
        f.end();
        let mut line = |text: std::fmt::Arguments<'_>| {
            f.line("", 1, None);
            f.text(text);
            f.end();
        };
        for code in &group.state.xids {
            let meaning = u32::try_from(*code).map_or(UNKNOWN, meaning);
            line(format_args!("the kernel log has Xid {code}, {meaning}"));
        }
        for work in &group.state.running {
            line(format_args!("has not ended: {}", Plain(work)));
        }
        for wait in &group.state.waits {
            line(format_args!("waits for {}", Plain(wait)));
        }
        if group.state.running.is_empty() && group.state.waits.is_empty() {
            line(format_args!(
                "nothing of its work is unfinished, as far as was read"
            ));
        }
        if let Some(python) = &group.state.python {
            line(format_args!("python at {}", Plain(python)));
        }
        for frame in group.stack.iter().take(FRAMES) {
            line(format_args!("    {}", Plain(frame)));
        }
    }
}
