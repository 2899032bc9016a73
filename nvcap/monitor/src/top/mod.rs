//! `nvcap top`: what runs on the GPUs, on a terminal's screen. Nothing here reads a process, a file or a clock.
//!
//! - [`table`]: rows of cells, sorted and filtered.
//! - [`live`]: readings of the counts as tables; [`gauges`]: shares of the time at work; [`shares`]: who had the GPUs; [`tally`]: a sink that sums up a trace in steps of time, for any part of it.
//! - [`works`]: those sums as tables; [`counted`]: the counts that a trace is held against.
//! - [`faults`]: faults that happened meanwhile.
//! - [`state`]: what the user sees and has asked for, by the keys; [`view`]: drawing it.

pub mod counted;
pub mod faults;
pub mod gauges;
pub mod live;
pub mod shares;
pub mod state;
pub mod table;
pub mod tally;
#[cfg(test)]
mod tests;
pub mod view;
pub mod works;
