//! The stacks of a process's threads, for a look at it.

use std::collections::{BTreeMap, HashMap};

use nvcap_decode::hang::{ProcessReport, PythonFrame, PythonStack};
use nvcap_process::procfs::{budget::Budget, mem::Ordinary};
use nvcap_process::stacks::python::{Python, frames::Frame, objects::Location, threads};

/// The most bytes of a process's Python functions that are looked through: of their names, and of their tables of lines, each time that
/// a line is looked up there.
const MOST_PYTHON: u64 = 256 << 20;

/// Reads the stacks of a process's threads.
pub(super) fn add(process: &mut ProcessReport) {
    // It may have ended since.
    let Ok(memory) = Ordinary::open(process.pid) else {
        return;
    };
    let mut python = python(process.pid, &memory);
    for thread in &mut process.threads {
        thread.python = python.of_threads.remove(&thread.tid);
    }
    process.python = python.version;
    process.notes.append(&mut python.notes);
    {
        let tids: Vec<u32> = process.threads.iter().map(|t| t.tid).collect();
        let entries = nvcap_live::trap::registers::of_process(process.pid);
        let entries = entries.unwrap_or_else(|e| {
            log::debug!("registers of process {}'s threads: {e}", process.pid);
            BTreeMap::new()
        });
        let entries = entries
            .into_iter()
            .map(|(tid, r)| (tid, [r.ip, r.sp, r.fp, r.lr]));
        let entries = entries.collect();
        let (mut native, left_out) =
            nvcap_process::stacks::snapshot::of_threads(process.pid, &memory, &tids, &entries);
        let left_out = left_out.into_iter();
        let note = |what| format!("frames lack names or callers: not read: {what}");
        process.notes.extend(left_out.map(note));
        for thread in &mut process.threads {
            let calls = native.remove(&thread.tid);
            thread.native = calls.map(|calls| calls.as_ref().into());
        }
    }
}

/// The Python side of a process.
#[derive(Debug, Default)]
struct PythonStacks {
    /// The version.
    version: Option<String>,
    /// The stacks by thread.
    of_threads: BTreeMap<u32, PythonStack>,
    /// Descriptions of what could not be read.
    notes: Vec<String>,
}

/// Reads the Python frames of all threads; nothing of a process without a CPython.
fn python(pid: u32, memory: &Ordinary) -> PythonStacks {
    let python = match Python::find(pid, memory) {
        Ok(Some(python)) => python,
        Ok(None) => return PythonStacks::default(),
        Err(e) => {
            return PythonStacks {
                notes: vec![format!("no Python frames: {e}")],
                ..PythonStacks::default()
            };
        }
    };
    let mut all = PythonStacks {
        version: Some(python.version.to_string()),
        ..PythonStacks::default()
    };
    let mut unknown = 0;
    let budget = Budget::of(MOST_PYTHON);
    // Threads wait in the same places, and functions call themselves.
    let mut known: HashMap<(u64, u64), Option<Location>> = HashMap::new();
    for state in python.threads(memory, &threads::ids_inside(pid)) {
        let Some(tid) = state.tid else {
            unknown += 1;
            continue;
        };
        let mut frames = python.frames(memory, state.address);
        let resolve = |f: &Frame| {
            let find = || python.resolve(memory, f.code, f.instruction, &budget);
            let found = known.entry((f.code, f.instruction)).or_insert_with(find);
            found.clone()
        };
        let resolved: Vec<_> = frames.frames.iter().map_while(resolve).collect();
        // A code object that went away: the frames were older than believed.
        frames.oldest_missing |= resolved.len() < frames.frames.len();
        let resolved = resolved
            .into_iter()
            .map(|l| PythonFrame::new(l.function, l.file, l.line));
        let stack = PythonStack::new(
            resolved.collect(),
            frames.newest_missing,
            frames.oldest_missing,
        );
        // A thread in two interpreters: what it runs is in the one that has frames.
        let old = all.of_threads.entry(tid).or_default();
        if old.frames.is_empty() {
            *old = stack;
        }
    }
    if unknown > 0 {
        all.notes.push(format!(
            "Python frames of {unknown} thread(s) are left out: which threads they are is not known"
        ));
    }
    if budget.is_spent() {
        all.notes.push(format!(
            "Python frames lack lines or are left out: no more than {} MiB of functions' names and tables are looked through",
            MOST_PYTHON >> 20
        ));
    }
    all
}
