//! Helpers for tests of several parts.

pub mod cli;
pub mod events;
#[cfg(feature = "zstd")]
pub mod fat;
pub mod files;
pub mod job;
pub mod replays;
pub mod schema;
pub mod training;
pub mod tshark;
pub use nvcap_waiting as waiting;
