//! Exact counts of submissions, for nothing: no breakpoint, no BPF, no stop, and no look at each entry.
//!
//! libcuda ends each submission with a release of its channel's tracking semaphore, and the payload grows by one from submission to
//! submission. So the number in that semaphore says how many are done, and the payload of the newest entry how many there are. Both are
//! read once a second: no submission is missed, however many came between two readings.
//!
//! - [`channel`]: one channel's numbers as counts, ages and states; `pace`: when to read. Pure.
//! - `find`: which channels a process has, and which of their numbers are proven; `process` and `followed`: reading them.
//! - `errors`: channels that the driver has stopped.
//! - `block`: entries that were submitted a while ago; `decoding`: what they do; `ends`: whether a submission's kernels have ended.
//! - [`detail`]: samples of what the submissions are (`--sample`).
//! - `patient`: reads of a process that does not answer are given up.
//! - `delay`: how long submissions take; `exited`: what stays of processes that have ended.
//! - [`host`]: all processes of a `source`; [`system`]: those of this machine. [`view`]: what they come to.

// Some of what is counted is read by `nvcap serve` alone.
#![cfg_attr(not(feature = "serve"), allow(dead_code))]

mod block;
pub mod channel;
mod decoding;
pub(crate) mod delay;
pub mod detail;
mod ends;
mod errors;
#[cfg(test)]
mod exact_tests;
mod exited;
#[cfg(test)]
pub(crate) mod fakes;
mod find;
mod followed;
#[cfg(test)]
mod given_up_tests;
pub mod host;
pub mod pace;
pub mod patient;
mod process;
pub(crate) mod source;
pub mod system;
#[cfg(test)]
mod tests;
pub mod view;
