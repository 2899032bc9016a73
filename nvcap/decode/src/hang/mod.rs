//! Analysis of the waits of GPU processes, judged by the contents of their rings: no I/O, no clock.
//!
//! A [`RingState`] is one look at processes: their channels, each with GP_GET, GP_PUT and its newest ring entries, decoded into [`Step`]s.
//! From it and the values of semaphores in memory, [`analyse()`] finds whether the GPU has done each step, and for each channel its running
//! work, its wait, and the channel that is to end that wait. The result is the wait graph, with its cycles and the waits that nothing
//! releases. [`compare`] compares two looks and finds what moved.
//!
//! The rules, and their reasons:
//!
//! - *Done*: CUDA ends each submission with a release of its channel's own semaphore, whose payload grows by one. When the semaphore's
//!   value has reached a step's payload, the GPU's front end is past that step and all steps before it. If no such semaphore can be read,
//!   entries before GP_GET count as fetched, and no step counts as done.
//! - *Running*: a kernel may still run after that. CUDA's launches release a semaphore of their own at their end; the first fetched launch
//!   that has not released it is running, or hangs. Without such launches, the first step that is fetched and not done is running.
//! - *Waiting*: the channel is at the first acquire, among the steps that are not done and not behind GP_GET, whose condition the value in
//!   memory does not meet. An acquire in a step behind GP_GET is not reached yet.
//! - *Not ended*: work that may have been running when the GPU faulted ([`unended()`]). Unlike *running*, it includes each kernel and copy
//!   whose end is not proven.
//! - *Releaser*: any release of that address in any channel of the process whose payload meets the condition, by the host, compute or copy
//!   class or by a launch's own structure. A release that is not done yet is awaited. One that is done was overwritten. If there is none,
//!   the release must come from the CPU, another process or memory outside the rings.

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
