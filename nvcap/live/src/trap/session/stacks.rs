//! Takes stacks out of their ring buffer, into the queue of the thread that finds their frames. Without `--stacks` it does nothing.

use std::collections::{HashMap, HashSet};

use nvcap_common::{self as c, kind};

use super::super::{assemble, load::Loaded};
pub(super) use nvcap_process::procfs::{
    budget::Budget,
    mem::{Ordinary, ReadMemory as _},
};
use nvcap_process::stacks::{
    left_out,
    python::{
        Python,
        threads::{ThreadState, ids_inside},
    },
    queue::{RawStack, StackQueue},
};

/// Time for which thread states are trusted while stacks of their process come without Python frames, ns.
const BELIEVED_NS: u64 = 20_000_000;

/// The most frames of a Python that are remembered because their names were passed on.
const MOST_NAMED: usize = 1 << 16;

/// The most bytes of an address space's Python functions that are read in a trace: their names, and their tables of lines (each
/// time that a line is looked up). Beyond it frames have no lines, then no names.
const MOST_PYTHON: u64 = 1 << 30;

/// The Python of an address space.
#[derive(Debug)]
struct Known {
    python: Python,
    memory: Ordinary,
    /// Time of the last look at its threads, ns.
    looked_ns: u64,
    /// Frames whose names were passed on.
    named: HashSet<c::PythonFrame>,
    /// Budget of bytes that may still be read for names.
    budget: Budget,
}

impl Known {
    /// Finds the Python of a process.
    fn find(pid: u32) -> Option<Self> {
        let memory = Ordinary::open(pid).ok()?;
        match Python::find(pid, &memory) {
            Ok(python) => Some(Self {
                python: python?,
                memory,
                looked_ns: 0,
                named: HashSet::new(),
                budget: Budget::of(MOST_PYTHON),
            }),
            Err(e) => {
                log::info!("no Python frames of process {pid}: {e}");
                None
            }
        }
    }

    /// Passes on the names of new frames at once, because the process may be gone when its stack's turn comes.
    fn name(&mut self, space: u32, frames: &[c::PythonFrame], to: &StackQueue) {
        if self.named.len() >= MOST_NAMED {
            self.named.clear();
        }
        for frame in frames {
            let frame = c::PythonFrame {
                code: frame.code & !c::PYTHON_ENTRY,
                ..*frame
            };
            if frame.code == 0 || self.named.contains(&frame) {
                continue;
            }
            let refused = self.budget.refused();
            let found =
                self.python
                    .resolve(&self.memory, frame.code, frame.instruction, &self.budget);
            if self.budget.refused() > refused {
                to.leave_out(left_out::PYTHON, space, frame);
            }
            if let Some(name) = found {
                to.put_name(space, frame, name);
                self.named.insert(frame);
            }
        }
    }

    /// Returns the Python's thread states.
    fn threads(&self, pid: u32, space: u32) -> Vec<c::PythonThread> {
        let id_at = self.python.offsets().native_thread;
        let states = self.python.threads(&self.memory, &ids_inside(pid));
        let thread = |state: ThreadState| {
            let id = match id_at {
                c::NO_FIELD => 0,
                at => {
                    let at = state.address.checked_add(at.into())?;
                    self.memory.word(at).ok()?
                }
            };
            Some(c::PythonThread {
                tid: state.tid?,
                space,
                state: state.address,
                id,
            })
        };
        states.into_iter().filter_map(thread).collect()
    }
}

/// Stacks on their way from the ring buffer to the queue of the thread that finds their frames. Does nothing without `--stacks`.
#[derive(Debug, Default)]
pub(super) struct Stacks {
    to: Option<StackQueue>,
    /// Address spaces that were put into the queue, with their Python.
    spaces: HashMap<u32, Option<Known>>,
    /// Python frames whose stack has not come yet, by thread.
    python: HashMap<u32, (u64, Vec<c::PythonFrame>)>,
}

impl Stacks {
    pub(super) fn new(to: Option<StackQueue>) -> Self {
        Self {
            to,
            ..Self::default()
        }
    }

    /// Takes the contents of the ring buffer. Called before each record of a submission is taken, because a doorbell's stack was
    /// put there before its submission.
    pub(super) fn take(&mut self, bpf: &mut Loaded) {
        let Some(to) = self.to.clone() else { return };
        while let Some(item) = bpf.stacks.next() {
            if let Some((header, frames)) = parse_python(&item) {
                self.python.insert(header.tid, (header.time_ns, frames));
                continue;
            }
            let Some((stack, bytes)) = parse(&item) else {
                continue;
            };
            let header = stack.header;
            let python = self.python.remove(&header.tid);
            let python = python.filter(|(time, _)| *time == header.time_ns);
            let has_python = python.is_some();
            let raw = RawStack {
                at: assemble::at(&header),
                space: stack.space,
                ip: stack.ip,
                sp: stack.sp,
                fp: stack.fp,
                lr: stack.lr,
                bytes: bytes.to_vec(),
                cut: bytes.len() as u64 == u64::from(stack.wanted),
                python: python.map(|(_, frames)| frames).unwrap_or_default(),
            };
            drop(item);
            let (space, pid) = (stack.space, header.pid);
            let known = self.spaces.entry(space).or_insert_with(|| {
                // A process may be gone by the time that its first stack's turn comes.
                let known = Known::find(pid);
                let python = known.as_ref().map(|k| k.python);
                to.put_space(space, pid, python);
                if let (Some(tables), Some(python)) = (&bpf.pythons, &python) {
                    tables.set_walk(space, walk_of(python));
                }
                known
            });
            if let Some(known) = known {
                known.name(space, &raw.python, &to);
                if !has_python && header.time_ns.saturating_sub(known.looked_ns) > BELIEVED_NS {
                    known.looked_ns = header.time_ns;
                    if let Some(tables) = &mut bpf.pythons {
                        tables.set_threads(space, &known.threads(pid, space));
                    }
                }
            }
            to.put(raw);
        }
    }

    /// Forgets an address space.
    pub(super) fn forget(&mut self, space: u32, bpf: &mut Loaded) {
        self.spaces.remove(&space);
        if let Some(tables) = &mut bpf.pythons {
            tables.set_walk(space, c::PythonWalk::default());
            tables.set_threads(space, &[]);
        }
    }

    /// Passes on the number of stacks for which the BPF programs had no room.
    pub(super) fn tell_lost(&mut self, stats: &c::Stats) {
        if let Some(to) = &self.to {
            to.add_lost(stats.stacks_lost);
        }
    }
}

/// Returns the data that the BPF programs need to walk a Python's frames.
fn walk_of(python: &Python) -> c::PythonWalk {
    let o = python.offsets();
    let walk = o.walk;
    let fields = [walk.previous, walk.code, walk.instruction, walk.owner];
    let last = fields.into_iter().filter(|f| *f != c::NO_FIELD).max();
    let span = last.map_or(0, |f| (f & !7) + 8);
    c::PythonWalk {
        known: u32::from(span <= c::MOST_PYTHON_SPAN),
        state_frame: walk.state_frame,
        cframe_frame: walk.cframe_frame,
        state_thread: o.native_thread,
        span,
        previous: walk.previous,
        code: walk.code,
        instruction: walk.instruction,
        instruction_bytes: walk.instruction_bytes,
        owner: walk.owner,
        first_inner_owner: walk.first_inner_owner,
        // 3.11: `is_entry`, the byte before `owner` (pycore_frame.h).
        entry: match python.version.minor {
            11 => walk.owner - 1,
            _ => c::NO_FIELD,
        },
    }
}

/// Parses the Python frames of a doorbell whose stack follows.
fn parse_python(bytes: &[u8]) -> Option<(c::Header, Vec<c::PythonFrame>)> {
    let fixed = bytes.get(..size_of::<c::PythonFrames>())?;
    // SAFETY: `fixed` has the size of a PythonFrames, which is valid for any bits.
    let all = unsafe { fixed.as_ptr().cast::<c::PythonFrames>().read_unaligned() };
    (all.header.kind == kind::PYTHON).then_some(())?;
    Some((all.header, all.frames.get(..all.count as usize)?.to_vec()))
}

/// Parses a stack's record and its bytes; `None` where it is too short or another record.
fn parse(bytes: &[u8]) -> Option<(c::Stack, &[u8])> {
    let (fixed, rest) = bytes.split_at_checked(size_of::<c::Stack>())?;
    // SAFETY: `fixed` has the size of a Stack, which is valid for any bits.
    let stack = unsafe { fixed.as_ptr().cast::<c::Stack>().read_unaligned() };
    (stack.header.kind == kind::STACK).then_some(())?;
    Some((stack, rest.get(..stack.header.len as usize)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_that_are_too_short_are_none() {
        let mut bytes = vec![0; size_of::<c::Stack>() + 8];
        bytes[..2].copy_from_slice(&kind::STACK.to_le_bytes());
        bytes[4] = 8;
        assert_eq!(parse(&bytes).map(|(_, b)| b.len()), Some(8));
        bytes[4] = 9;
        assert!(parse(&bytes).is_none());
        bytes[4] = 8;
        bytes[0] = kind::DATA as u8;
        assert!(parse(&bytes).is_none());
        for n in 0..bytes.len() {
            let _ = parse(&bytes[..n]);
        }
    }
}
