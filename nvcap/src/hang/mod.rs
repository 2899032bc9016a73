//! What a GPU process waits for, from what stands in its rings: no I/O, no clock.
//!
//! A [`Scene`] is one look at processes: their channels, each with GP_GET, GP_PUT and its newest ring entries, decoded
//! into [`Step`]s. With the values that semaphores have in memory, [`analyse`] says of each step whether the GPU has
//! done it, of each channel what it runs and what it waits for, and who is to release that: the wait graph, with its
//! cycles and what nobody releases. [`compare`] sets two looks side by side: what moved.
//!
//! The rules, and what each rests on:
//!
//! - *Done*: CUDA ends each submission with a release of its channel's own semaphore, whose payload grows by one. A step
//!   whose payload the semaphore's value has reached is behind the GPU's front end, and so is every step before it. Where
//!   no such semaphore can be read, what lies before GP_GET counts as fetched, and no more is said.
//! - *Running*: a kernel goes on after that. CUDA's launches release a semaphore of their own at their end; the first that
//!   was fetched and has not released it is what the GPU is at, or hangs in. Without such launches it is the first step
//!   that is fetched and not done.
//! - *Waiting*: the first acquire in the steps that are not done, up to the one at GP_GET, whose condition the value in
//!   memory does not meet. An acquire in a step behind GP_GET is not reached yet.
//! - *Releaser*: any release of that address in any channel of the process, by host, compute or copy class or by a
//!   launch's own structure, whose payload meets the condition. One that is not done yet is waited for; one that is done
//!   was overwritten; where there is none, the CPU, another process or memory outside the rings has to do it.

mod analyse;
mod graph;
mod look;
mod moved;
mod scene;

pub use analyse::{
    Analysis, Blocked, Cycle, Judged, Line, Releaser, Root, State, Wait, Work, WorkKind, analyse,
};
pub use look::{ChannelFacts, Look, ProcessLook, Thread};
pub use moved::{ChannelMove, Movement, compare};
pub use scene::{ChannelScene, Scene, Step, Values, addresses};
