//! The traced processes, their address spaces, and their memory.
//!
//! Invariant: a traced process is in one address space. A space that its last process has left is kept for a while, because captures of it
//! may still be on their way.

use std::{
    collections::{BTreeSet, HashMap},
    io,
};

use nvcap_common::{Proc, proc_flag};

use nvcap_process::procfs::{self, mem::Memory};

/// Time for which channels keep their places after the end of their address space, ns.
const LINGER_NS: u64 = 500_000_000;

/// An address space that no process has any more.
#[derive(Clone, Copy, Debug)]
struct Gone {
    space: u32,
    since: u64,
}

/// The address spaces. Each is a process between two execs, with the children that share its mappings.
#[derive(Debug, Default)]
pub(super) struct AddressSpaces {
    /// Processes by address space.
    pids: HashMap<u32, BTreeSet<u32>>,
    processes: BTreeSet<u32>,
    /// Open memory files of processes.
    memories: HashMap<u32, Memory>,
    gone: Vec<Gone>,
}

impl AddressSpaces {
    /// Puts a process into the space.
    pub(super) fn join(&mut self, pid: u32, space: u32) {
        self.processes.insert(pid);
        self.pids.entry(space).or_default().insert(pid);
    }

    /// Takes a process out of all spaces but `stays`. Returns the spaces that are empty now.
    pub(super) fn leave(&mut self, pid: u32, stays: Option<u32>, now: u64) -> Vec<u32> {
        let mut ended = Vec::new();
        for (space, pids) in &mut self.pids {
            if Some(*space) != stays && pids.remove(&pid) && pids.is_empty() {
                ended.push(*space);
            }
        }
        let gone = ended.iter().map(|&space| Gone { space, since: now });
        self.gone.extend(gone);
        ended
    }

    /// Returns the spaces that are empty and not yet freed.
    pub(super) fn gone(&self) -> Vec<u32> {
        self.gone.iter().map(|g| g.space).collect()
    }

    /// Takes the spaces that have been empty long enough to be freed.
    pub(super) fn take_old(&mut self, now: u64) -> Vec<u32> {
        let old = |g: &mut Gone| now.saturating_sub(g.since) > LINGER_NS;
        let old = self.gone.extract_if(.., old);
        old.map(|g| g.space).collect()
    }

    /// Forgets a space.
    pub(super) fn forget(&mut self, space: u32) {
        self.pids.remove(&space);
    }

    /// Tells whether the space is known.
    pub(super) fn has(&self, space: u32) -> bool {
        self.pids.contains_key(&space)
    }

    /// The processes of a space.
    pub(super) fn pids(&self, space: u32) -> impl Iterator<Item = u32> + '_ {
        self.pids.get(&space).into_iter().flatten().copied()
    }

    /// Tells whether the process is in the space.
    pub(super) fn is_in(&self, pid: u32, space: u32) -> bool {
        self.pids(space).any(|p| p == pid)
    }

    /// The traced processes.
    pub(super) fn processes(&self) -> &BTreeSet<u32> {
        &self.processes
    }

    /// Takes note that a process has ended.
    pub(super) fn end_process(&mut self, pid: u32) {
        self.processes.remove(&pid);
        self.close_memory(pid);
    }

    /// Keeps the opened memory of a process.
    pub(super) fn keep_memory(&mut self, pid: u32, memory: Memory) {
        self.memories.insert(pid, memory);
    }

    /// Drops the open memory file, which is no longer the process's memory.
    pub(super) fn close_memory(&mut self, pid: u32) {
        self.memories.remove(&pid);
    }

    /// Opens the memory of a space, if none is open. `proc`: returns the BPF programs' state of a process. `is_laid_out`: tells whether the
    /// known mappings of the space are there.
    pub(super) fn open_memory(
        &mut self,
        space: u32,
        proc: impl Fn(u32) -> Option<Proc>,
        is_laid_out: impl Fn(&Memory) -> bool,
    ) {
        if self.reader(space).is_some() {
            return;
        }
        let pids = self.pids.get(&space).into_iter().flatten();
        for pid in pids {
            // The file shows the memory of the program that the process executes now. The BPF programs know when that is
            // another program than this program has heard of, or not yet the command to be started; but during an exec the
            // memory is the new program's for a while before they know. It is still empty then.
            let memory = Memory::open(*pid).and_then(|m| match is_laid_out(&m) {
                true => Ok(m),
                false => Err(io::ErrorKind::NotFound.into()),
            });
            let now = proc(*pid);
            let same = now.is_some_and(|p| p.space == space && p.flags & proc_flag::KEEP == 0);
            if let (Ok(memory), true) = (memory, same) {
                self.memories.insert(*pid, memory);
                return;
            }
        }
    }

    /// Returns the process whose memory file serves the space.
    fn reader(&self, space: u32) -> Option<u32> {
        let mut pids = self.pids(space);
        pids.find(|pid| self.memories.contains_key(pid))
    }

    /// The memory of a space, if open.
    pub(super) fn memory(&self, space: u32) -> Option<&Memory> {
        self.memories.get(&self.reader(space)?)
    }

    /// Tells whether the process whose memory is read for this space is ending. The driver then unmaps its memory while the rest can still be
    /// read, so that the bytes read would not be the submitted ones.
    pub(super) fn is_ending(&self, space: u32) -> bool {
        self.reader(space).is_none_or(procfs::is_ending)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_space_is_gone_with_its_last_process() {
        let mut spaces = AddressSpaces::default();
        spaces.join(10, 1);
        spaces.join(20, 1);
        spaces.join(20, 2);
        assert_eq!(spaces.leave(20, Some(2), 0), [0; 0]);
        assert_eq!(spaces.leave(10, None, 5), [1]);
        assert_eq!(spaces.gone(), [1]);
        assert!(spaces.has(1) && spaces.is_in(20, 2) && !spaces.is_in(10, 1));
        assert_eq!(spaces.take_old(5 + LINGER_NS), [0; 0]);
        assert_eq!(spaces.take_old(6 + LINGER_NS), [1]);
        spaces.forget(1);
        assert!(!spaces.has(1) && spaces.has(2));
    }

    #[test]
    fn memory_of_another_program_is_not_opened() {
        let pid = std::process::id();
        let mut spaces = AddressSpaces::default();
        spaces.join(pid, 1);
        let proc = |space, flags| move |_| Some(Proc { space, flags });
        for (space, flags) in [(2, 0), (1, proc_flag::KEEP)] {
            spaces.open_memory(1, proc(space, flags), |_| true);
            assert!(spaces.memory(1).is_none() && spaces.is_ending(1));
        }
        spaces.open_memory(1, proc(1, 0), |_| false);
        assert!(
            spaces.memory(1).is_none(),
            "the known mappings are not there"
        );
        spaces.open_memory(1, proc(1, 0), |_| true);
        assert!(spaces.memory(1).is_some() && !spaces.is_ending(1));
        spaces.end_process(pid);
        assert!(spaces.memory(1).is_none());
    }
}
