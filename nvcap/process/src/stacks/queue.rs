//! Queue of stacks: the reader thread adds stacks as they come, and the main thread takes them out and finds their frames.
//!
//! The queue is bounded in bytes: if the main thread falls behind, further stacks are dropped and counted. Submissions have a queue of
//! their own and do not wait for stacks.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use nvcap_common::PythonFrame;

use super::{
    left_out::LeftOut,
    modules::Mapped,
    python::{Python, objects::Location},
};
use nvcap_decode::record::At;

/// The most bytes of waiting stacks.
const MOST_BYTES: usize = 64 << 20;

/// Registers and bytes of a stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawStack {
    /// Time, process and thread of the doorbell.
    pub at: At,
    /// Address space (see docs/glossary.md).
    pub space: u32,
    /// Instruction pointer.
    pub ip: u64,
    /// Stack pointer: the address of the first of `bytes`.
    pub sp: u64,
    /// Frame pointer register.
    pub fp: u64,
    /// Link register, on processors that have one.
    pub lr: u64,
    /// The stack from `sp` upward.
    pub bytes: Vec<u8>,
    /// True if as many bytes came as were asked for, so that the stack may continue behind them.
    pub cut: bool,
    /// The Python frames, the newest first.
    pub python: Vec<PythonFrame>,
}

#[derive(Debug, Default)]
struct Inside {
    waiting: VecDeque<RawStack>,
    bytes: usize,
    lost: u64,
    /// Mappings of address spaces at the time of their first stack. They are kept because a process may be gone before its stack is
    /// resolved.
    first: HashMap<u32, (Vec<Mapped>, Option<Python>)>,
    /// Names of Python frames, by address space.
    named: Vec<(u32, PythonFrame, Location)>,
    left_out: LeftOut,
}

/// Queue of stacks, bounded in bytes. Clones share one queue.
#[derive(Clone, Debug)]
pub struct StackQueue {
    inside: Arc<Mutex<Inside>>,
    /// Number of bytes that are copied of each stack.
    pub stack_bytes: u32,
    /// Number of doorbells for each stack that is taken.
    pub every: u32,
}

impl StackQueue {
    /// Makes an empty queue for stacks of this many bytes, of one in `every` doorbells.
    pub fn new(stack_bytes: u32, every: u32) -> Self {
        Self {
            inside: Arc::default(),
            stack_bytes,
            every,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a stack, unless too many bytes wait.
    pub fn put(&self, stack: RawStack) {
        let mut inside = self.lock();
        if inside.bytes + stack.bytes.len() > MOST_BYTES {
            inside.lost += 1;
            return;
        }
        inside.bytes += stack.bytes.len();
        inside.waiting.push_back(stack);
    }

    /// Counts stacks that were lost before they reached the queue.
    pub fn add_lost(&self, count: u64) {
        self.lock().lost += count;
    }

    /// Records the mappings and the Python of an address space, at its first stack.
    pub fn put_space(&self, space: u32, pid: u32, python: Option<Python>) {
        let mapped = super::modules::of_process(pid);
        self.lock().first.insert(space, (mapped, python));
    }

    /// Returns the number of stacks that were lost since the last call.
    pub(crate) fn take_lost(&self) -> u64 {
        std::mem::take(&mut self.lock().lost)
    }

    /// Records a Python frame's name. It must be called before the stack with the frame is put in.
    pub fn put_name(&self, space: u32, frame: PythonFrame, name: Location) {
        self.lock().named.push((space, frame, name));
    }

    /// Counts, once, a Python frame of an address space whose name or line was left out.
    pub fn leave_out(&self, why: &'static str, space: u32, frame: PythonFrame) {
        if self.lock().left_out.add(why, (space, frame)) {
            log::warn!("not read for stacks: {why}");
        }
    }

    /// Returns the counts of omissions so far, by reason.
    pub(super) fn left_out(&self) -> Vec<(&'static str, u64)> {
        self.lock().left_out.counts().collect()
    }

    /// Takes out the names that were recorded since the last call.
    pub(super) fn take_names(&self) -> Vec<(u32, PythonFrame, Location)> {
        std::mem::take(&mut self.lock().named)
    }

    /// Takes out the next stack.
    pub(crate) fn take(&self) -> Option<RawStack> {
        let mut inside = self.lock();
        let stack = inside.waiting.pop_front()?;
        inside.bytes -= stack.bytes.len();
        Some(stack)
    }

    /// Takes out the mappings and the Python that were recorded at an address space's first stack. This works once.
    pub(super) fn take_space(&self, space: u32) -> Option<(Vec<Mapped>, Option<Python>)> {
        self.lock().first.remove(&space)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_beyond_the_bound_are_counted() {
        let queue = StackQueue::new(16384, 1);
        let stack = |time_ns| RawStack {
            at: At {
                time_ns,
                pid: 1,
                tid: 1,
            },
            space: 1,
            ip: 0,
            sp: 0,
            fp: 0,
            lr: 0,
            bytes: vec![0; 16 << 20],
            cut: false,
            python: Vec::new(),
        };
        for time in 0..6 {
            queue.put(stack(time));
        }
        assert_eq!((queue.take_lost(), queue.take_lost()), (2, 0));
        assert_eq!(queue.take().unwrap().at.time_ns, 0);
        queue.put(stack(6));
        let rest: Vec<u64> = std::iter::from_fn(|| queue.take())
            .map(|s| s.at.time_ns)
            .collect();
        assert_eq!((rest, queue.take_lost()), (vec![1, 2, 3, 6], 0));
    }
}
