//! Faults of the GPU in traced processes, as records: from the channels' error notifiers in their memory, and from the kernel log.
//!
//! The driver writes an error into the notifier of a channel that it stops. Notifiers are read every 100 ms at most (every second where nothing is submitted), and when a
//! process stands at its end, before its memory goes. What had not ended then is told by one look at the process's rings
//! ([`suspects`]): a fault is rare, so it may cost milliseconds. The kernel log is read at the same time, where it may be ([`messages`]).

mod beside;
mod known;
mod messages;
mod noticed;
mod suspects;
mod watch;

pub(crate) use beside::FaultWatch;
