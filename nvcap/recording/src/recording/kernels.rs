//! Names of kernels alone, from the bytes of a recording: they are looked for beside a trace, and come behind the first launches of theirs.

use std::io::Read;

use super::decode;
use super::kind::{Head, Kind};
use super::reader::{Assembly, whole};
use crate::pcapng::{Block, Blocks};
use nvcap_decode::record::{Kernel, Record};

/// The kernels of the trace with this number ([`super::Reader::trace_number`]) in a recording, in the order of its packets. What is damaged,
/// and what is no kernel, is passed over: [`super::Reader`] tells of it.
///
/// Much faster than reading all records, whose packets are not decoded.
pub fn kernels(reader: impl Read, trace: u32) -> impl Iterator<Item = Kernel> {
    let mut blocks = Blocks::new(reader);
    let mut assembly = None;
    std::iter::from_fn(move || {
        loop {
            let Ok(Block::Packet(packet)) = blocks.next_block()? else {
                continue;
            };
            if let Some(kernel) = kernel(packet.data, trace, &mut assembly) {
                return Some(kernel);
            }
        }
    })
}

/// The kernel of a packet, or of those of which it is the last one.
fn kernel(packet: &[u8], trace: u32, assembly: &mut Option<Assembly>) -> Option<Kernel> {
    let (head, part) = Head::parse(packet)?;
    if head.trace != trace || Kind::with_number(head.kind) != Some(Kind::Kernel) {
        return None;
    }
    let body = whole(assembly, head, part)?;
    match decode::record(Kind::Kernel, &body, |_| None) {
        Ok(Some(Record::Kernel(kernel))) => Some(*kernel),
        _ => None,
    }
}
