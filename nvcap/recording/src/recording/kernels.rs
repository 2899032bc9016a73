//! Reader of only the names of kernels in a recording. Names are looked up beside a trace, and come after the first launches of their
//! kernels.

use std::io::Read;

use super::decode;
use super::kind::{Head, Kind};
use super::reader::{Assembly, whole};
use crate::pcapng::{Block, Blocks};
use nvcap_decode::record::{Kernel, Record};

/// Returns the kernels in a recording of the trace with this number ([`super::Reader::trace_number`]), in the order of the packets. Damaged
/// packets and packets of other kinds are skipped; [`super::Reader`] reports them.
///
/// This is much faster than reading all records, because the packets of other records are not decoded.
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

/// Returns the kernel of a packet, or of several packets of which this is the last.
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
