//! The command streams that NVIDIA's userspace driver submits to the GPU: captured, modelled, decoded.
//!
//! One pipeline, whatever the source:
//!
//! ```text
//! source (trap | memory | file) ── Record ──> driver model (who) ──> decoder (what) ── Event ──> output
//! ```
//!
//! - [`record`]: the raw facts a source delivers; the only thing a capture file holds.
//! - [`driver`]: from records to clients, memory objects, channels and engines. Pure.
//! - [`decode`]: from bytes to methods, launches, copies, semaphores. Pure: no I/O, no clock, no panic.
//! - [`hang`]: what a GPU process waits for, from one look at its rings. Pure.
//! - [`ledger`]: what was captured and what is known to be missing.
//! - [`output`]: text, JSON and the other ways to show an [`decode::event::Event`].
//! - `source::trap` (feature `trap`): BPF programs and hardware breakpoints.
//!
//! `decode` and `driver` build with `--no-default-features`: no BPF, no kernel, no root.

pub mod decode;
pub mod driver;
pub mod hang;
pub mod ledger;
pub mod output;
pub mod pipeline;
pub mod record;
pub mod source;
