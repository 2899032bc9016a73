//! The live trace without a trap: every channel's ring followed from outside, by polling through `/proc/PID/mem`.
//!
//! No BPF, no breakpoint and no stop is needed: the traced program runs as fast as untraced, and nvcap needs only the right to
//! read its memory. In exchange, threads are not known, and times are those of the looks.
//!
//! - `phase`, `pace`: the state of a channel, the time of its next look, and the CPU that looks may cost. Pure.
//! - `scheduler`: the order of looks at channels and processes. Pure.
//! - `proof`, `reuse`: proof that what was read is what was submitted. Pure.
//! - `semaphore_peek`: urgency of a look. Pure.
//! - `channel`, `deliver`, `resync`, `followed`: one ring, followed, and its place among the others. `channel::begin`: the
//!   position at which following begins.
//! - `emit`: the records of a followed ring.
//! - `process`, `discover`, `slots`: one process: its life, memory, mappings, rings and children. `discover::parts`: the parts
//!   of what is known of a process. `discover::missed`: reports of what may have been missed of a process that is gone.
//! - `mm_identity`, `births`, `forks`, `orphans`: processes that share memory by fork, found even where the parent has ended.
//! - `ends`: the last look at a process, and reports where there was none. `held_ends`: processes that stand at their end
//!   longer.
//! - `wakeups`, `sleepers`: processes that sleep need not be polled.
//! - `readers`, `balance`, `lending`: threads that look at busy channels beside the session's own.
//! - [`session`]: all of these, as a source that `run` drives; `looks`: its looks at channels.

mod balance;
mod births;
pub(crate) mod changes;
pub(crate) mod channel;
mod deliver;
pub(crate) mod discover;
mod emit;
mod ends;
pub(crate) mod followed;
mod forks;
mod held_ends;
mod lending;
mod looks;
mod mm_identity;
mod options;
mod orphans;
pub(crate) mod pace;
pub(crate) mod phase;
pub(crate) mod process;
pub(crate) mod proof;
mod readers;
mod resync;
pub(crate) mod reuse;
mod scheduler;
pub(crate) mod semaphore_peek;
pub mod session;
#[cfg(test)]
mod simulated;
mod sleepers;
mod slots;
mod wakeups;
