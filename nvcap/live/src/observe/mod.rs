//! The live trace without a trap: every channel's ring followed from outside, by polling through `/proc/PID/mem`.
//!
//! No BPF, no breakpoint, no stop: the traced program runs as fast as untraced, and what this needs is the right to
//! read its memory. In exchange the thread is not known and times are those of the look.
//!
//! - `phase`, `pace`: what a channel is doing, and how soon it must be looked at again; what CPU that may cost. Pure.
//! - `scheduler`: which channel or process is looked at next. Pure.
//! - `proof`, `reuse`: whether what was read is what was submitted. Pure.
//! - `semaphore_peek`: whether a look is urgent. Pure.
//! - `channel`, `deliver`, `resync`, `followed`: one ring, followed, and its place among the others. `channel::begin`: where
//!   following begins.
//! - `emit`: its records.
//! - `process`, `discover`, `slots`: one process: whether it lives and runs, its memory, its mappings, its rings, its children.
//!   `discover::parts`: the parts of what is known of it. `discover::missed`: what of it may have been missed when it is gone.
//! - `mm_identity`, `births`, `forks`, `orphans`: whose memory a process has by fork, found also where its parent has ended.
//! - `ends`: the last look at a process, and what is said where there was none. `held_ends`: who stands at its end longer.
//! - `wakeups`, `sleepers`: processes that sleep need not be polled.
//! - `readers`, `balance`, `lending`: threads that look at busy channels beside the session's own.
//! - [`session`]: all of them, as a source that `source::run` drives; `looks`: its looks at channels.

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
