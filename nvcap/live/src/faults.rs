//! Faults of the GPU in traced processes, as records. They are read from the channels' error notifiers in the processes' memory, and from the kernel
//! log.
//!
//! The driver writes an error into the notifier of a channel that it stops. Notifiers are read every 100 ms at most (every second where nothing is
//! submitted), and when a process stands at its end, before its memory goes. One look at the process's rings then finds the work that had not ended
//! ([`suspects`]); a fault is rare, so the look may cost milliseconds. Where nvcap may read the kernel log ([`messages`]), a message about a
//! fault makes a look due at once: a program that sees its fault may give its channels up soon.

mod bell;
mod beside;
mod known;
mod messages;
mod noticed;
mod suspects;
mod watch;

pub(crate) use beside::FaultWatch;
