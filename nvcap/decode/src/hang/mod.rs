//! Analysis of a GPU process's waits, judged by the contents of its rings: no I/O, no clock.
//!
//! A [`RingState`] is one look at processes: their channels, each with GP_GET, GP_PUT and its newest ring entries, decoded
//! into [`Step`]s. With the values that semaphores have in memory, [`analyse()`] finds for each step whether the GPU has
//! done it, for each channel what it runs and waits for, and which channel is to release that: the wait graph, with its
//! cycles and the waits that nothing releases. [`compare`] compares two looks and finds what moved.
//!
//! The rules, and their grounds:
//!
//! - *Done*: CUDA ends each submission with a release of its channel's own semaphore, whose payload grows by one. When
//!   the semaphore's value has reached a step's payload, the GPU's front end is past that step and all before it. Where no
//!   such semaphore can be read, entries before GP_GET count as fetched, and nothing is concluded on done.
//! - *Running*: a kernel may still run then. CUDA's launches release a semaphore of their own at their end; the first
//!   fetched launch that has not released it is running, or hangs. Without such launches it is the first step that is
//!   fetched and not done.
//! - *Waiting*: the first acquire in the steps that are not done, up to the one at GP_GET, whose condition the value in
//!   memory does not meet. An acquire in a step behind GP_GET is not reached yet.
//! - *Not ended*: what may have been running when the GPU faulted ([`unended()`]); unlike what is *running* it is each kernel and
//!   copy whose end is not proven.
//! - *Releaser*: any release of that address in any channel of the process, by host, compute or copy class or by a
//!   launch's own structure, whose payload meets the condition. A release that is not done yet is waited for; one that is
//!   done was overwritten; where there is none, the release must come from the CPU, another process or memory outside the
//!   rings.

mod analyse;
mod analysis;
mod graph;
mod progress;
mod report;
mod ring_state;
mod unended;
pub mod xid;

pub use crate::record::{
    ChannelFacts, EntryTarget, NativeFrame, NativeStack, PythonFrame, PythonStack, RingPlace,
    RingSize, Thread, TokenFrom, Xid,
};
pub use analyse::{analyse, done};
pub use analysis::{
    Analysis, Blocked, Cycle, Judged, Releaser, Root, State, TrackingSemaphore, Wait, WaitMode,
    Work, WorkKind,
};
pub use progress::{ChannelProgress, Progress, compare};
pub use report::{ProcessReport, Report};
pub use ring_state::{ChannelState, RingState, Step, Values, addresses};
pub use unended::{Unended, suspect, unended};
