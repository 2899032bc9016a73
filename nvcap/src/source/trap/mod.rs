//! The live trace: hardware breakpoints on the doorbells of running processes, and the BPF programs they start.
//!
//! - [`session`]: the trace as a whole; the rest serves it.
//! - [`load`], [`btf`], [`bpf`], [`kprobes`], [`fentry`], [`discover`]: BPF programs, kernel offsets, ways of learning the driver's calls.
//! - [`arm`], [`perf`]: breakpoints.
//! - [`site`], [`cached_put`]: which register holds the token, and where the process keeps its own copy of GP_PUT.
//! - [`assemble`], [`shared`], [`space`], [`table`]: what comes back, the channel table, and the other maps.
//! - [`live`]: running it to its end.

pub mod arm;
pub mod assemble;
pub mod bpf;
pub mod btf;
pub mod cached_put;
pub mod discover;
pub mod doctor;
pub mod fentry;
pub mod kprobes;
pub mod live;
pub mod load;
pub mod perf;
pub mod precheck;
mod program;
pub mod session;
pub mod shared;
pub mod site;
pub mod space;
pub mod table;

pub use super::{channels_file, error};
