//! Reads nvcap's JSON lines and compares two traces of the same work.
//!
//! [`read`] gives what a comparison needs of each line; [`channels`] lines up what two sides saw of each channel and
//! counts what differs. Neither knows how a trace was taken.

pub mod channels;
pub mod read;
