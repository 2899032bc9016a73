//! Thread states of a CPython, each with the thread of the process to which it belongs.

use std::collections::BTreeMap;

use super::Python;
use super::offsets::NONE;
use crate::procfs::{self, mem::ReadMemory};

/// The most interpreters of a process.
const MOST_INTERPRETERS: usize = 256;
/// The most thread states of an interpreter.
const MOST_THREADS: usize = 1 << 14;

/// Two offsets in the structure to which pthread_self() points: that of a pointer to the structure itself, and that of the thread's id.
/// Neither is an interface of the C library; both are checked. glibc on x86-64: `header.self` and `tid` of `struct pthread`, unchanged
/// since 2.3. musl: `self` and `tid`.
const PTHREADS: [(u64, u64); 2] = [(0x10, 0x2d0), (0, 0x30)];

/// A thread state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadState {
    /// Thread, by the id that `/proc` shows to nvcap; `None` if it could not be found.
    pub tid: Option<u32>,
    /// Address of the thread state.
    pub address: u64,
}

/// Returns the threads of a process by their ids inside its PID namespace. In a container these differ from the ids outside.
pub fn ids_inside(pid: u32) -> BTreeMap<u32, u32> {
    let inside = |tid: u32| {
        let line = procfs::status(tid, "NSpid")?;
        line.split_whitespace().next_back()?.parse::<u32>().ok()
    };
    let threads = procfs::threads(pid).unwrap_or_default().into_iter();
    // A process has one namespace.
    if inside(pid) == Some(pid) {
        return threads.map(|tid| (tid, tid)).collect();
    }
    threads
        .filter_map(|tid| Some((inside(tid)?, tid)))
        .collect()
}

impl Python {
    /// Returns the thread states of all interpreters. `ids` has the process's threads by their ids inside ([`ids_inside`]).
    pub fn threads<M: ReadMemory + ?Sized>(
        &self,
        memory: &M,
        ids: &BTreeMap<u32, u32>,
    ) -> Vec<ThreadState> {
        let mut all = Vec::new();
        let o = &self.offsets;
        let word = |at: u64, offset: u32| memory.word(at.checked_add(offset.into())?).ok();
        let mut interpreter = word(self.runtime, o.interpreters).unwrap_or(0);
        for _ in 0..MOST_INTERPRETERS {
            if interpreter == 0 {
                break;
            }
            let mut state = word(interpreter, o.threads).unwrap_or(0);
            for _ in 0..MOST_THREADS {
                // The state was freed while the list was walked.
                if state == 0 || word(state, o.state_interpreter) != Some(interpreter) {
                    break;
                }
                all.push(ThreadState {
                    tid: self.thread_of(memory, state, ids),
                    address: state,
                });
                state = word(state, o.state_next).unwrap_or(0);
            }
            interpreter = word(interpreter, o.interpreter_next).unwrap_or(0);
        }
        all
    }

    fn thread_of<M: ReadMemory + ?Sized>(
        &self,
        memory: &M,
        state: u64,
        ids: &BTreeMap<u32, u32>,
    ) -> Option<u32> {
        let word = |offset: u32| memory.word(state.checked_add(offset.into())?).ok();
        if self.offsets.native_thread != NONE {
            let inside = word(self.offsets.native_thread)?;
            let inside = u32::try_from(inside).ok();
            if let Some(tid) = inside.and_then(|id| ids.get(&id)) {
                return Some(*tid);
            }
        }
        // 3.10 has no native id, and in a forked child it may still be the parent's.
        let pthread = word(self.offsets.pthread).filter(|p| *p != 0)?;
        PTHREADS.into_iter().find_map(|(own, id)| {
            let own = memory.word(pthread.checked_add(own)?).ok()?;
            let inside = memory.word(pthread.checked_add(id)?).ok()? as u32;
            ids.get(&inside).filter(|_| own == pthread).copied()
        })
    }
}
