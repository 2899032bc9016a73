//! Pushbuffers whose addresses in the process are not the GPU's (graphics clients).
//!
//! Only the driver knows the process's address, but candidates can be tried. A mapping and a shift are accepted if several of the newest
//! segments, read at the shifted addresses, are filled to the last word by methods and their data, and if no other shift achieves that.
//! Zeros are no methods, and other data does not end where a segment ends.

use super::scan::Places;
use crate::procfs::mem::ReadMemory;
use nvcap_decode::record::Device;
use nvcap_decode::wire::header::Header;
use nvcap_decode::wire::words::u32s;

const PAGE: u64 = 0x1000;
/// Number of segments that are tried.
const TRIED: usize = 8;
/// Number of tried segments that must fit.
const NEEDED: usize = 4;
/// Number of method headers that the fitting segments must have together.
const HEADERS: usize = 8;
/// The most shifts that are tried in one search: a read of system memory takes less than a microsecond.
const MOST_READS: u32 = 60_000;
/// The most bytes of a segment that is tried. A longer segment proves no more.
const MOST_BYTES: u32 = 0x1_0000;

/// A piece of the GPU's address space, and its address in the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// First address for the GPU.
    pub gpu: u64,
    /// First address in the process.
    pub cpu: u64,
    /// Length, bytes.
    pub len: u64,
}

impl Window {
    /// Returns the process's address of a range of GPU addresses, if the window contains all of the range.
    #[must_use]
    pub fn cpu_of(&self, gpu: u64, len: u64) -> Option<u64> {
        let offset = gpu.checked_sub(self.gpu)?;
        (offset.checked_add(len)? <= self.len).then(|| self.cpu + offset)
    }
}

/// Finds the window in which the newest of `segments` (address for the GPU and bytes, oldest first) lie.
pub(super) fn window(
    memory: &impl ReadMemory,
    places: &Places<'_>,
    segments: &[(u64, u32)],
) -> Option<Window> {
    let newest: Vec<(u64, u32)> = segments
        .iter()
        .rev()
        .filter(|s| s.1 >= 8 && s.1 <= MOST_BYTES)
        .take(TRIED)
        .copied()
        .collect();
    let first = newest.iter().map(|s| s.0).min()? & !(PAGE - 1);
    let end = newest.iter().map(|s| s.0 + u64::from(s.1)).max()?;
    if newest.len() < NEEDED {
        return None;
    }
    let mut reads = MOST_READS;
    let mut found: Option<Window> = None;
    for area in places
        .iter()
        .filter(|a| a.device() == Some(Device::Control))
    {
        let mut at = area.start;
        while at + (end - first) <= area.end {
            reads = reads.checked_sub(1)?;
            if fits(memory, &newest, at.wrapping_sub(first)) {
                // Two windows fit, so neither is certain.
                if found.is_some() {
                    return None;
                }
                // The part of the mapping before the segment is also before it for the GPU, as far as the mapping is one piece.
                let before = (at - area.start).min(first);
                found = Some(Window {
                    gpu: first - before,
                    cpu: at - before,
                    len: area.end - (at - before),
                });
            }
            at += PAGE;
        }
    }
    found
}

/// Tells whether, with this shift, enough of the segments are pushbuffers.
fn fits(memory: &impl ReadMemory, segments: &[(u64, u32)], shift: u64) -> bool {
    let (mut whole, mut headers) = (0, 0);
    for (n, (address, len)) in segments.iter().enumerate() {
        // Most shifts are given up after the first two segments.
        if n == 2 && whole == 0 {
            return false;
        }
        let mut bytes = vec![0; *len as usize];
        if memory
            .read_bytes(address.wrapping_add(shift), &mut bytes)
            .is_err()
        {
            return false;
        }
        if let Some(its) = filled(&bytes) {
            whole += 1;
            headers += its;
        }
    }
    whole >= NEEDED && headers >= HEADERS
}

/// Returns the number of methods, if methods and their data fill the bytes to the last word.
fn filled(bytes: &[u8]) -> Option<usize> {
    let mut words = u32s(bytes);
    let mut methods = 0;
    while let Some(word) = words.next() {
        match Header::read(word) {
            Header::Method { count, .. } => {
                methods += 1;
                for _ in 0..count {
                    words.next()?;
                }
            }
            Header::Illegal | Header::EndSegment => return None,
            _ => {}
        }
    }
    (methods > 0).then_some(methods)
}

#[cfg(test)]
mod tests {
    use super::super::fake_memory::FakeMemory;
    use super::*;

    /// Makes four rings with entries of different lengths, as a graphics client has them.
    fn graphics() -> (FakeMemory, Vec<(u64, u32)>) {
        let mut memory = FakeMemory::graphics();
        let ring = memory.graphics_rings(1)[0];
        let mut segments = Vec::new();
        let mut address = 0x402_0000;
        for n in 0..40u64 {
            let data = 2 + n as u32 % 5;
            let mut words = vec![0x2000_0000 | data << 16 | 0x2000 | 0x6c0];
            words.extend((0..data).map(|d| d * 77 + n as u32));
            words.extend([0x2001_a0c0, 0x182, 0, 0x8001_20c0]);
            memory.submit(ring, n, &words, 0);
            segments.push((address, words.len() as u32 * 4));
            address += words.len() as u64 * 4;
        }
        (memory, segments)
    }

    #[test]
    fn a_shift_is_found_by_what_fills_the_segments() {
        let (memory, segments) = graphics();
        let places = Places::new(memory.areas());
        let window = window(&memory, &places, &segments).unwrap();
        assert_eq!(window.cpu_of(0x402_0000, 8), Some(0x7f00_3000_0000));
        assert_eq!(window.cpu_of(0x402_0000 + 0x20_0000, 8), None);
        assert_eq!(window.cpu_of(1, 8), None);
    }

    #[test]
    fn what_fits_twice_or_not_at_all_is_not_claimed() {
        let (mut memory, segments) = graphics();
        let copy: Vec<u8> = {
            let mut b = vec![0; 0x2000];
            memory.read_bytes(0x7f00_3000_0000, &mut b).unwrap();
            b
        };
        memory.put_bytes(0x7f00_2010_0000, &copy);
        let places = Places::new(memory.areas());
        assert_eq!(window(&memory, &places, &segments), None, "twice");
        let empty = FakeMemory::graphics();
        let places = Places::new(empty.areas());
        assert_eq!(window(&empty, &places, &segments), None, "zeros");
        assert_eq!(window(&empty, &places, &segments[..3]), None, "too few");
    }
}
