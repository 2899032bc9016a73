//! Which submission a channel is at, now.

use super::super::find::{self, Readable};
use super::super::process::Followed;
use super::block;
use crate::procfs::mem::Peek;
use crate::record::Segment;
use crate::source::memory::scan;

/// Entries around the estimated one that are looked at for the release.
const AROUND: u32 = 16;
/// Entries of one submission that are decoded at most.
const MOST: u32 = 8;

/// What a channel with work is at.
pub(super) enum Now {
    /// The entries of the submission, and the position of the first.
    At(u64, Vec<Segment>),
    /// It could not be read.
    Unread,
}

/// GP_PUT and the number of a channel that had no work.
pub(super) type Idle = (u32, u32);

/// What a channel is at; none where it has no work, or cannot be told. `idle`: how it was when it had none the last time, which spares
/// most of the reading.
pub(super) fn now(
    memory: &impl Peek,
    readable: &Readable,
    followed: &Followed,
    idle: &mut Option<Idle>,
) -> Option<Now> {
    let semaphore = followed.tracking_address()?;
    let done = find::number(memory, semaphore.0)?;
    let found = followed.found();
    let size = found.entries.max(1);
    let (_, put) = scan::get_put(memory, found.userd).ok()?;
    if *idle == Some((put, done)) {
        return None;
    }
    let entry = |back: u32| {
        let index = (put + size - back % size) % size;
        memory.word(found.ring + 8 * u64::from(index)).ok()
    };
    let release = |back: u32| {
        let release = find::release_of(memory, readable, entry(back)?)?;
        (release.address == semaphore).then_some(release.payload)
    };
    let newest = match release(1) {
        Some(newest) => newest,
        // Its memory was used again already.
        None => return Some(Now::Unread),
    };
    let pending = newest.wrapping_sub(done);
    if pending == 0 || pending.cast_signed() < 0 {
        *idle = (pending == 0).then_some((put, done));
        return None;
    }
    if pending >= size {
        return Some(Now::Unread);
    }
    // The entry that ends with the number after `done`: as many back as are pending, if each has one entry.
    let wanted = done.wrapping_add(1);
    let last =
        (pending..(pending + AROUND).min(size - 1)).find(|back| release(*back) == Some(wanted));
    let Some(last) = last else {
        return Some(Now::Unread);
    };
    // Entries before it without a release are the same submission's.
    let first = (last + 1..(last + MOST).min(size - 1))
        .find(|back| release(*back).is_some())
        .unwrap_or(last + 1);
    let count = first - last;
    // It is not done, so that its bytes stay, unless it is by the time at which they were read.
    let at = block::At {
        readable,
        found,
        tracking: Some(semaphore),
        back: first - 1,
        count,
        running: Some(wanted),
    };
    match block::read(memory, at, &mut Vec::new()) {
        Ok(entries) => Some(Now::At(entries.position, entries.segments)),
        Err(_) => Some(Now::Unread),
    }
}
