//! `nvcap top`: what runs on the GPUs, on a terminal's screen. Nothing here reads a process, a file or a clock.
//!
//! - [`table`]: rows of cells, sorted and filtered.
//! - [`live`]: readings of the counts as tables; [`tally`]: a sink that sums up a trace in steps of time, for any part of it.
//! - [`works`]: those sums as tables.
//! - [`state`]: what the user sees and has asked for, by the keys; [`view`]: drawing it.

pub(crate) mod live;
pub(crate) mod state;
pub(crate) mod table;
pub(crate) mod tally;
#[cfg(test)]
mod tests;
pub(crate) mod view;
pub(crate) mod works;
