//! The command streams that NVIDIA's userspace driver submits to the GPU: captured, modelled, decoded.
//!
//! One pipeline, whatever the source:
//!
//! ```text
//! source (trap | memory | file) ── Record ──> driver model (who) ──> decoder (what) ── Event ──> output
//! ```
//!
//! - [`wire`]: what stands in memory word by word: ring entries, method headers. The bottom room.
//! - `procfs`: processes as the kernel shows them in `/proc`: mappings, memory, state, threads.
//! - [`record`]: the raw facts a source delivers; the only thing a capture file holds.
//! - [`driver`]: from records to clients, memory objects, channels and engines. Pure.
//! - [`decode`]: from bytes to methods, launches, copies, semaphores. Pure: no I/O, no clock, no panic.
//! - [`hang`]: what a GPU process waits for, from one look at its rings. Pure.
//! - `dump`: one look at the rings of processes, read, decoded and judged.
//! - [`ledger`]: what was captured and what is known to be missing.
//! - [`output`]: text, JSON and the other ways to show an [`decode::event::Event`].
//! - `source::trap` (feature `trap`): BPF programs and hardware breakpoints.
//!
//! `decode` and `driver` build with `--no-default-features`: no BPF, no kernel, no root.

// A standard stream that is full or closed must not end a trace: `output::writer` and `output::message` know what to do then.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]
#![cfg_attr(
    not(feature = "trap"),
    allow(
        dead_code,
        unused_imports,
        reason = "rooms have items that only the program's rooms call, which this build leaves out"
    )
)]

pub mod decode;
pub mod driver;
pub mod hang;
pub mod ledger;
pub mod record;
pub mod source;
pub mod wire;

#[cfg(feature = "output")]
mod blocked_write;
#[cfg(feature = "output")]
pub mod output;
#[cfg(feature = "output")]
pub mod pipeline;

#[cfg(feature = "cli")]
mod cli;
#[cfg(all(feature = "cli", target_os = "linux"))]
mod dump;
#[cfg(all(feature = "cli", target_os = "linux"))]
mod enrich;
#[cfg(all(feature = "cli", target_os = "linux"))]
mod procfs;

/// The `nvcap` program, for its main.rs alone.
#[cfg(feature = "cli")]
#[doc(hidden)]
pub use cli::main;

/// What nvcap's own integration tests call of the rooms that are private. No part of the interface: it changes without notice.
#[cfg(feature = "trap")]
#[doc(hidden)]
pub mod internals {
    pub use crate::dump::{DumpOptions, look};
    pub use crate::enrich::images::{Found, Part, search_in};
    pub use crate::procfs::mem::Peek;
    pub use crate::source::channels_file::ChannelsFile;
    pub use crate::source::memory::{captured::SnapshotOptions, scan::Effort, snapshot::take};
    pub use crate::source::observe::session::{ObserveOptions, Session};
    pub use crate::source::run::Source;
}
