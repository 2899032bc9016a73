//! Processes of looks that are merged, as the looks' JSON has them.

use serde::Serialize;
use serde_json::Value;

use crate::output::style::Plain;

/// A process of a look.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Member {
    /// Its rank, where the look has it.
    pub rank: Option<u32>,
    /// The file that the look is from.
    pub file: String,
    /// Its id, on its machine.
    pub pid: u64,
    /// Its name.
    pub name: Option<String>,
}

pub(super) fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Returns a frame as text: `step (train.py:12)`.
pub(super) fn frame(frame: &Value) -> String {
    let line = frame["line"].as_u64().map(|line| format!(":{line}"));
    let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    format!(
        "{} ({}{})",
        text(&frame["function"]),
        text(&frame["file"]),
        line.unwrap_or_default()
    )
}

/// The Python frames of a process's first thread, or of the first that has some.
pub(super) fn stack(process: &Value) -> &[Value] {
    let of = |thread: &&Value| !items(&thread["python"]["frames"]).is_empty();
    let threads = items(&process["threads"]);
    let main = threads.iter().find(|t| t["tid"] == process["pid"]);
    let thread = main.filter(of).or(threads.iter().find(of));
    thread.map_or(&[], |t| items(&t["python"]["frames"]))
}

/// Place of a process in its program: the newest Python frame that is not a library's, else the newest.
pub(super) fn place(process: &Value) -> Option<String> {
    let frames = stack(process);
    let own = |f: &&Value| {
        let frame = nvcap_decode::hang::PythonFrame::new(
            String::new(),
            f["file"].as_str().unwrap_or_default().to_owned(),
            None,
        );
        !frame.is_of_a_library()
    };
    frames.iter().find(own).or(frames.first()).map(frame)
}

/// The places in their programs of a look's processes, by process.
#[must_use]
pub fn places(look: &Value) -> Vec<(u64, String)> {
    let all = items(&look["processes"]).iter();
    all.filter_map(|p| Some((p["pid"].as_u64()?, place(p)?)))
        .collect()
}

/// Returns ranks in ascending order as text: `ranks 0-2, 5`.
pub(super) fn numbered(ranks: &[u32]) -> String {
    let mut words = Vec::new();
    let mut rest = ranks;
    while let Some(first) = rest.first() {
        let run = rest
            .iter()
            .zip(*first..=u32::MAX)
            .take_while(|(have, wanted)| *have == wanted)
            .count();
        let last = first + (run as u32).saturating_sub(1);
        words.push(match run {
            1 => first.to_string(),
            _ => format!("{first}-{last}"),
        });
        rest = rest.get(run..).unwrap_or_default();
    }
    let rank = if ranks.len() == 1 { "rank" } else { "ranks" };
    format!("{rank} {}", words.join(", "))
}

/// Returns members as text: `ranks 0-2, 5` or, of those without a rank, `a.json (pid 4711 python)`.
pub(super) fn members(all: &[Member]) -> String {
    let mut ranks: Vec<u32> = all.iter().filter_map(|m| m.rank).collect();
    ranks.dedup();
    let mut parts = Vec::new();
    if !ranks.is_empty() {
        parts.push(numbered(&ranks));
    }
    let one = all.len() == 1;
    for member in all.iter().filter(|m| one || m.rank.is_none()) {
        parts.push(format!(
            "{} (pid {} {})",
            Plain(&member.file),
            member.pid,
            Plain(member.name.as_deref().unwrap_or("?"))
        ));
    }
    parts.join(", ")
}
