//! What a GPU process waits for, from what stands in its rings: no I/O, no clock.
//!
//! A [`RingState`] is one look at processes: their channels, each with GP_GET, GP_PUT and its newest ring entries, decoded
//! into [`Step`]s. With the values that semaphores have in memory, [`analyse()`] says of each step whether the GPU has
//! done it, of each channel what it runs and what it waits for, and who is to release that: the wait graph, with its
//! cycles and what nobody releases. [`compare`] compares two looks: what moved.
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
mod analysis;
mod graph;
mod progress;
mod report;
mod ring_state;

pub use analyse::analyse;
pub use analysis::{
    Analysis, Blocked, Cycle, Judged, Releaser, Root, State, TrackingSemaphore, Wait, WaitMode,
    Work, WorkKind,
};
pub use progress::{ChannelProgress, Progress, compare};
pub use report::{
    ChannelFacts, EntryTarget, ProcessReport, Report, RingPlace, RingSize, Thread, TokenFrom,
};
pub use ring_state::{ChannelState, RingState, Step, Values, addresses};
