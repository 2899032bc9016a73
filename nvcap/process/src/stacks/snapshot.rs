//! Snapshot of the native stacks of a process's threads, without stopping them.
//!
//! - A thread that waits in the kernel: `/proc/PID/task/TID/syscall` has its instruction and stack pointers, and `/proc/PID/mem` has the
//!   stack. The caller gives the frame pointer ([`Entries`]). Without it the stack ends at the first function that needs the frame pointer,
//!   if no inner function has saved it. The scheduler's counts of the thread are read before and after; if the thread has run meanwhile, it
//!   is read again.
//! - A thread that runs in user mode: a sample of a perf event (`super::sample`).

use std::collections::BTreeMap;
use std::sync::Arc;

use super::queue::{RawStack, StackQueue};
use super::resolve::Resolver;
use super::sample;
use crate::procfs::{
    self,
    mem::{Ordinary, ReadMemory},
    tasks::{self, Position},
};
use nvcap_decode::record::{At, Calls, Record};

/// Registers of threads that wait in the kernel, by thread, from a source other than `/proc`: instruction, stack and frame pointer and link
/// register at the entry into the kernel. They are trusted for a thread if the first two equal those of `/proc`.
pub type Entries = BTreeMap<u32, [u64; 4]>;

/// The most bytes of a stack.
const STACK: usize = 256 << 10;
/// Number of times that a thread that keeps running is read.
const TRIES: usize = 3;

/// Returns how often a thread was given the processor and lost it. If the counts are the same twice, the thread has not run in between.
fn switches(tid: u32) -> Option<(u64, u64)> {
    let count = |line| procfs::status(tid, line)?.parse().ok();
    Some((
        count("voluntary_ctxt_switches")?,
        count("nonvoluntary_ctxt_switches")?,
    ))
}

/// Returns the bytes from an address up to the end of its mapping, [`STACK`] at most.
fn bytes_at(memory: &Ordinary, at: u64) -> Vec<u8> {
    let (mut bytes, holes) = memory.read_bytes_lax(at, STACK);
    if let Some(hole) = holes.first() {
        bytes.truncate(hole.offset as usize);
    }
    bytes
}

/// Returns the known registers and the stack of a thread in the kernel; `None` for a thread that runs.
fn in_kernel(pid: u32, tid: u32, memory: &Ordinary, entries: &Entries) -> Option<RawStack> {
    for _ in 0..TRIES {
        let before = switches(tid)?;
        let Position::InKernel { sp, ip } = tasks::position(pid, tid) else {
            return None;
        };
        let bytes = bytes_at(memory, sp);
        let entry = entries.get(&tid).filter(|e| (e[0], e[1]) == (ip, sp));
        if switches(tid) == Some(before) {
            return Some(RawStack {
                at: At {
                    time_ns: 0,
                    pid,
                    tid,
                },
                space: pid,
                ip,
                sp,
                fp: entry.map_or(0, |e| e[2]),
                lr: entry.map_or(0, |e| e[3]),
                cut: bytes.len() == STACK,
                bytes,
                python: Vec::new(),
            });
        }
    }
    None
}

/// Returns the stacks of a process's threads that could be read and, in words, the data of its files that was left out.
pub fn of_threads(
    pid: u32,
    memory: &Ordinary,
    tids: &[u32],
    entries: &Entries,
) -> (BTreeMap<u32, Arc<Calls>>, Vec<&'static str>) {
    // The queue bounds memory: all stacks of a thousand threads would take 256 MB.
    let queue = StackQueue::new(STACK as u32, 1);
    let mut resolver = Resolver::new(queue.clone());
    queue.put_space(pid, pid, None);
    let mut all = BTreeMap::new();
    let mut resolve = |stack: RawStack| {
        let tid = stack.at.tid;
        queue.put(stack);
        if let Some(Record::Stack(stack)) = resolver.next() {
            all.insert(tid, stack.calls);
        }
    };
    let mut running = Vec::new();
    for tid in tids {
        match in_kernel(pid, *tid, memory, entries) {
            Some(stack) => resolve(stack),
            None => running.push(*tid),
        }
    }
    for (tid, sample) in sample::of_threads(&running) {
        resolve(RawStack {
            at: At {
                time_ns: 0,
                pid,
                tid,
            },
            space: pid,
            ip: sample.ip,
            sp: sample.sp,
            fp: sample.fp,
            lr: sample.lr,
            bytes: sample.bytes,
            cut: sample.cut,
            python: Vec::new(),
        });
    }
    let left_out = resolver.left_out(pid);
    (all, left_out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{PipeReader, Read as _};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    #[inline(never)]
    fn waits_here(gate: &mut PipeReader) {
        let _ = gate.read(&mut [0]);
        std::hint::black_box(());
    }

    #[inline(never)]
    fn spins_here(spins: &AtomicBool, end: &AtomicBool) {
        spins.store(true, Ordering::Relaxed);
        while !end.load(Ordering::Relaxed) {
            std::hint::black_box(end);
        }
        std::hint::black_box(());
    }

    /// Returns the id of this thread.
    fn own_id() -> u32 {
        // SAFETY: reads an id.
        unsafe { libc::gettid() as u32 }
    }

    fn has(calls: &Calls, function: &str) {
        let names: Vec<&str> = calls
            .frames
            .iter()
            .filter_map(|f| f.symbol.as_deref())
            .collect();
        assert!(
            names.iter().any(|n| n.contains(function)),
            "{function}: {names:#?}"
        );
    }

    /// Test that a stack without a known frame pointer ends at the first function that needs it.
    #[test]
    fn a_thread_that_waits_has_the_innermost_functions_on_the_stack() {
        let pid = std::process::id();
        let (mut gate, open) = std::io::pipe().unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        let waits = thread::spawn(move || {
            tell.send(own_id()).unwrap();
            waits_here(&mut gate);
        });
        let tid = told.recv().unwrap();
        nvcap_waiting::sits_in(pid, tid, libc::SYS_read);
        let memory = Ordinary::open(pid).unwrap();
        let (stacks, _) = of_threads(pid, &memory, &[tid], &Entries::new());
        has(&stacks[&tid], "read");
        drop(open);
        waits.join().unwrap();
    }

    #[test]
    #[ignore = "needs perf events: cargo xtask test runs it as root"]
    fn a_thread_that_spins_has_its_function_on_the_stack() {
        let pid = std::process::id();
        let (spins, end) = (AtomicBool::new(false), AtomicBool::new(false));
        let (tell, told) = std::sync::mpsc::channel();
        thread::scope(|scope| {
            let (spins, end) = (&spins, &end);
            scope.spawn(move || {
                tell.send(own_id()).unwrap();
                spins_here(spins, end);
            });
            let _end = nvcap_waiting::SetAtEnd(end);
            let tid = told.recv().unwrap();
            nvcap_waiting::until("it spins", || spins.load(Ordering::Relaxed));
            let memory = Ordinary::open(pid).unwrap();
            let (mut stacks, _) = of_threads(pid, &memory, &[tid], &Entries::new());
            if let Err(e) = sample::allowed(tid) {
                println!("NOT RUN the stack of a thread that spins: no perf event: {e}");
            } else {
                // A sample needs a thread that keeps its processor for a moment.
                nvcap_waiting::until("a sample of a thread that spins", || {
                    if stacks.is_empty() {
                        (stacks, _) = of_threads(pid, &memory, &[tid], &Entries::new());
                    }
                    !stacks.is_empty()
                });
                has(&stacks[&tid], "spins_here");
            }
        });
    }
}
