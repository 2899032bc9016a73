//! Pages of a process that are in memory.

use std::{fs::File, os::unix::fs::FileExt};

use nvcap_decode::wire::words::u64s;
use nvcap_process::procfs;

/// Bit of an entry of the page map: the page is in memory.
const PRESENT: u64 = 1 << 63;
/// Largest hole that is read as well, bytes.
const SMALL: u64 = 65536;

/// The parts of a range that are in memory, by `/proc/PID/pagemap`; the whole range where the page map cannot be read. (A
/// read of an untouched page would allocate it.)
pub(super) fn pages(pagemap: Option<&File>, start: u64, end: u64) -> Vec<(u64, u64)> {
    let Some(pagemap) = pagemap else {
        return vec![(start, end)];
    };
    let size = procfs::page_size();
    let mut all: Vec<(u64, u64)> = Vec::new();
    let mut entries = vec![0u8; 8 << 12];
    let mut page = start / size;
    while page < end / size {
        let count = (end / size - page).min(entries.len() as u64 / 8);
        let part = entries.get_mut(..count as usize * 8).unwrap_or_default();
        if pagemap.read_exact_at(part, page * 8).is_err() {
            return vec![(start, end)];
        }
        for bits in u64s(part) {
            if bits & PRESENT != 0 {
                let at = page * size;
                match all.last_mut() {
                    Some(last) if at - last.1 <= SMALL => last.1 = at + size,
                    _ => all.push((at, at + size)),
                }
            }
            page += 1;
        }
    }
    all
}
