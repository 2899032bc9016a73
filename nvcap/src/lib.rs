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

pub mod blocked_write;
pub mod decode;
pub mod driver;
#[cfg(target_os = "linux")]
pub mod dump;
#[cfg(target_os = "linux")]
pub mod enrich;
pub mod hang;
pub mod ledger;
pub mod output;
pub mod pipeline;
#[cfg(target_os = "linux")]
pub mod procfs;
pub mod record;
pub mod source;
mod tables;
pub mod wire;
