//! Recordings: files of [`Record`](nvcap_decode::record::Record)s, as raw as the source gave them, in the order in which they came.
//!
//! A recording is a pcapng file. Each record is a packet, or several if the record is long. Each channel is an interface, and records of no
//! channel are on the first interface, so that tools for packets can list, filter and cut them. nvcap itself reads only the packets. Each
//! packet has a checksum and the record's number, so damage anywhere is found, and missing records are known. `docs/file-format.md` has the
//! layout, and `docs/nvcap.proto` the messages within.
//!
//! This module converts records to bytes, and bytes to records. It opens no file.

mod decode;
pub mod decoded;
mod encode;
mod fault_messages;
mod identity;
mod info;
mod kernel_messages;
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

/// Private enterprise number in custom blocks. It is the number for examples (RFC 5612), because nvcap has none.
pub const ENTERPRISE: u32 = 32473;

/// Makes a recording with one packet of this kind and body, for tests of packets' contents.
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
