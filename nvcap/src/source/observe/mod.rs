//! The live trace without a trap: every channel's ring followed from outside, by polling through `/proc/PID/mem`.
//!
//! No BPF, no breakpoint, no stop: the traced program runs as fast as untraced, and what this needs is the right to
//! read its memory. In exchange the thread is not known and times are those of the look.
//!
//! - [`pace`]: when to look at a channel, and what CPU that may cost. Pure.
//! - [`proof`], [`reuse`]: whether what was read is what was submitted. Pure.
//! - [`glance`]: whether a look is urgent. Pure.
//! - [`channel`], `deliver`, `resync`, [`fetch`], [`followed`]: one ring, followed, and its place among the others.
//! - `told`: what is said of it.
//! - [`process`], [`discover`]: one process: whether it lives and runs, its memory, its mappings, its rings, its children.
//! - [`session`]: all of them, as a source that `source::run` drives.

pub mod channel;
mod deliver;
pub mod discover;
pub mod fetch;
pub mod followed;
pub mod glance;
pub mod pace;
pub mod process;
pub mod proof;
mod resync;
pub mod reuse;
pub mod session;
#[cfg(test)]
mod simulated;
mod told;
