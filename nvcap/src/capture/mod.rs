//! Recordings: files of [`Record`](crate::record::Record)s, as raw as the source gave them, in the order in which they came.
//!
//! A recording is a pcapng file. Each record is a packet, or several where it is long; each channel is an interface, and what is
//! of no channel is on the first one, so that tools for packets can list, filter and cut. nvcap itself reads the packets alone: each has
//! a checksum and the record's number, so that damage anywhere is found, and what is missing is known. `docs/file-format.md` has
//! the layout, and `docs/nvcap.proto` the messages within.
//!
//! This room makes bytes of records, and records of bytes. It opens no file.

mod decode;
mod encode;
mod info;
mod kind;
mod messages;
mod reader;
mod writer;

#[cfg(test)]
mod tests;

pub use crate::pcapng::Damage;
pub use decode::NotUnderstood;
pub use info::{EndInfo, TraceInfo};
pub use reader::{Error, Item, Reader};
pub use writer::Writer;

/// The number of the organisation in custom blocks: that of examples (RFC 5612), as none is assigned to nvcap.
pub const ENTERPRISE: u32 = 32473;

/// Whether a file that begins with these bytes may be a recording.
#[must_use]
pub fn is_recording(head: &[u8]) -> bool {
    head.starts_with(&crate::pcapng::MAGIC) && head.windows(4).any(|w| w == kind::MAGIC)
}
