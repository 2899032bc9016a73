//! What the end-to-end tests stand on: a runner that says what could not run, the programs, their output, and the
//! comparison of a trace with what the software GPU's plan says must be in it.
//!
//! These tests need root, hardware breakpoints and a built nvcap. Where one is missing, a test is reported as NOT RUN
//! with the reason, and counted so; it never passes unrun.

pub mod bpf_calls;
pub mod harness;
pub mod needs;
pub mod operations;
pub mod perf;
pub mod programs;
pub mod verify;
