//! Images of CUDA code in a running process: libcuda keeps those of the modules that it has loaded in private memory.

use std::fs::File;
use std::io;

use super::images::{is_private, touched};
use crate::cubin::{Image, beginnings};
use crate::procfs::{self, mem::Memory};
use crate::source::memory::maps;

/// Bytes read at once.
const CHUNK: usize = 4 << 20;
/// The most bytes of memory that are read; the smallest areas first, which include libcuda's own.
const MOST_READ: u64 = 32 << 30;
/// The most images.
const MOST_IMAGES: usize = 1 << 16;

/// The images of a process, in the order of their addresses, and the memory that they were found in.
///
/// # Errors
/// Those of opening `/proc/PID/mem` and `/proc/PID/maps`. Memory that cannot be read is skipped.
pub(crate) fn of(pid: u32) -> io::Result<(Memory, Vec<Image>)> {
    let memory = Memory::open(pid)?;
    let pages = File::open(procfs::of_process(pid, "pagemap")).ok();
    let mut areas = maps::areas(pid)?;
    areas.retain(is_private);
    areas.sort_by_key(|area| area.end - area.start);
    let mut images: Vec<Image> = Vec::new();
    let mut left = MOST_READ;
    for area in areas {
        for (mut at, end) in touched(pages.as_ref(), area.start, area.end) {
            while at < end && left > 0 && images.len() < MOST_IMAGES {
                let len = usize::try_from(end - at).unwrap_or(CHUNK).min(CHUNK);
                left = left.saturating_sub(len as u64);
                let (bytes, _) = memory.read_lax(at, len);
                let found = beginnings(&bytes).map(|offset| at + offset as u64);
                images.extend(found.filter_map(|at| Image::read(&memory, at)));
                at += len as u64;
            }
        }
    }
    images.sort_by_key(|image| image.at);
    Ok((memory, images))
}
