//! The live trace: hardware breakpoints on the doorbells of running processes, and the BPF programs that they run.
//!
//! - [`session`]: the trace as a whole; the other modules serve it.
//! - [`load`], [`btf`], `bpf`, `kprobes`, `fentry`, [`discover`]: BPF programs, kernel offsets, ways of seeing the
//!   driver's calls.
//! - `watchpoints`, `perf`: breakpoints; `stepping`: test of whether a thread gets past one.
//! - `doorbell_store`, `cached_put`: the register that holds the token, and the place of the process's own copy of
//!   GP_PUT.
//! - `known_stores`: the stores that were learnt from processes, for later ones.
//! - [`assemble`], `shared`, `space`, `map_ops`: ring-buffer records, the channel table, and the other maps.
//! - [`registers`]: registers of threads that sit in the kernel, for `nvcap dump`.
//! - [`live`]: runs the trap to its end.
//! - [`doctor`], [`lost_hits`]: checks of what this machine allows, and of how often it loses a hit.

pub mod assemble;
pub(crate) mod bpf;
pub mod btf;
pub(crate) mod cached_put;
pub mod discover;
pub mod doctor;
pub(crate) mod doorbell_store;
pub(crate) mod fentry;
pub(crate) mod known_stores;
pub(crate) mod kprobes;
pub mod live;
pub mod load;
pub mod lost_hits;
pub(crate) mod map_ops;
pub(crate) mod perf;
pub(crate) mod precheck;
mod program;
mod pythons;
pub mod registers;
pub mod session;
pub(crate) mod shared;
pub(crate) mod space;
mod stepping;
pub(crate) mod watchpoints;
