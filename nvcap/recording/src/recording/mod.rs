//! Recordings: files of [`Record`](nvcap_decode::record::Record)s, as raw as the source gave them, in the order in which they came.
//!
//! A recording is a pcapng file. Each record is a packet, or several where it is long; each channel is an interface, and what is
//! of no channel is on the first one, so that tools for packets can list, filter and cut. nvcap itself reads the packets alone: each has
//! a checksum and the record's number, so that damage anywhere is found, and what is missing is known. `docs/file-format.md` has
//! the layout, and `docs/nvcap.proto` the messages within.
//!
//! This module makes bytes of records, and records of bytes. It opens no file.

mod decode;
pub mod decoded;
mod encode;
mod fault_messages;
mod identity;
mod info;
mod kernels;
mod kind;
mod known_calls;
mod messages;
mod parts;
mod reader;
mod sample_messages;
mod skipped_messages;
mod snapshot;
mod snapshot_messages;
mod stack_messages;
mod switch_messages;

mod trapped_messages;
mod writer;

#[cfg(test)]
mod tests;

pub use crate::pcapng::Damage;
pub use decode::NotUnderstood;
pub use info::{EndInfo, GpuClock, HostGpu, TraceInfo};
pub use kernels::kernels;
pub use reader::{Error, Item, Reader};
pub use writer::Writer;

/// The number of the organisation in custom blocks: that of examples (RFC 5612), as none is assigned to nvcap.
pub const ENTERPRISE: u32 = 32473;

/// A recording with one packet, of this kind and with this body: for tests of what is in packets.
#[doc(hidden)]
#[must_use]
pub fn recording_with(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut file = Vec::new();
    for (part, bytes) in body.chunks(kind::MOST_PART).enumerate() {
        let head = kind::Head {
            kind,
            flags: 0,
            trace: 1,
            number: 0,
            part: (part as u32, body.len().div_ceil(kind::MOST_PART) as u32),
        };
        crate::pcapng::packet(&mut file, 0, 0, &[&head.bytes(bytes), bytes]);
    }
    file
}

/// Tells whether a file that begins with these bytes may be a recording.
#[must_use]
pub fn is_recording(head: &[u8]) -> bool {
    head.starts_with(&crate::pcapng::MAGIC) && head.windows(4).any(|w| w == kind::MAGIC)
}
