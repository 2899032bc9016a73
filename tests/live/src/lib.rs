//! Support for the end-to-end tests: a runner that reports tests that could not run, starting programs and reading their
//! output, and the comparison of a trace with the software GPU's plan.
//!
//! These tests need root, hardware breakpoints and a built nvcap. If one is missing, the test is reported and counted as
//! NOT RUN, with the reason; it never passes without running.

pub mod bpf_calls;
pub mod census;
pub mod debugger;
pub mod harness;
pub mod in_step;
pub mod json_lines;
pub mod measure;
pub mod needs;
pub mod operations;
pub mod perf;
pub mod programs;
pub mod truth;
pub mod verify;
