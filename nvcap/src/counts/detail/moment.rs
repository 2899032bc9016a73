//! Which submission a channel is at, now.
//!
//! A submission's stamp is released half a microsecond before its kernel starts, and the next one's when that has ended: between the two
//! the channel is at that kernel, although its number says that it is done. Copy engines release the number behind the copy.

use super::super::block::{self, Entries, Newest};
use super::super::decoding::Decoding;
use super::super::find::{self, Readable};
use super::super::process::Followed;
use super::{Decoded, Doing};
use crate::decode::event::Operation;
use crate::procfs::mem::Peek;
use crate::source::memory::scan;
use crate::wire::GpuVa;

/// GP_PUT and the number of a channel that had no work.
pub(super) type Idle = (u32, u32);

/// What a channel is at, and the programs of that; none where it has no work, or cannot be told. `idle`: how it was when it had none the
/// last time, which spares most of the reading.
pub(super) fn now(
    memory: &impl Peek,
    readable: &Readable,
    followed: &Followed,
    decoding: &mut Decoding,
    idle: &mut Option<Idle>,
) -> Option<(Vec<Doing>, Vec<(GpuVa, Option<u32>)>)> {
    let tracking = followed.tracking_address()?;
    let done = find::number(memory, tracking.0)?;
    let found = followed.found();
    let size = found.entries.max(1);
    let (_, put) = scan::get_put(memory, found.userd).ok()?;
    if *idle == Some((put, done)) {
        return None;
    }
    let unread = Some((vec![Doing::Unread], Vec::new()));
    let index = (put % size + size - 1) % size;
    let raw = memory.word(found.ring + 8 * u64::from(index)).ok()?;
    let release = find::release_of(memory, readable, raw).filter(|r| r.address == tracking);
    let Some(release) = release else {
        // Its memory was used again already.
        return unread;
    };
    let newest = Newest {
        put,
        number: release.payload,
    };
    let pending = newest.number.wrapping_sub(done);
    if pending.cast_signed() < 0 {
        return None;
    }
    if pending >= size {
        return unread;
    }
    let mut decoded = |number: u32| {
        let at = (found, tracking);
        let Entries {
            position,
            segments,
            is_doubtful,
        } = block::submission(memory, readable, at, newest, number)?;
        let mut decoded = Decoded::default();
        let mut to = |operation: &Operation| decoded.operation(operation);
        decoding.decode((found, followed.gpu), position, segments, &mut to);
        (!is_doubtful || decoded.ends.agree()).then_some(decoded)
    };
    // The last one that is done: its kernels may run.
    let last = decoded(done);
    let runs = |last: &Decoded| match last.ends.run(memory, readable) {
        Some(runs) => runs,
        // No word tells it: they are followed by the next one's stamp.
        None => pending > 0,
    };
    if let Some(last) = last.as_ref().filter(|l| !l.programs.is_empty() && runs(l)) {
        let kernels = last.programs.iter().map(|(p, _)| Doing::Kernel(*p));
        return Some((kernels.collect(), last.programs.clone()));
    }
    if let Some(last) = last.as_ref().filter(|l| l.ends.replays() && runs(l)) {
        return Some((vec![Doing::Graph], last.programs.clone()));
    }
    if pending == 0 {
        *idle = Some((put, done));
        return None;
    }
    let Some(next) = decoded(done.wrapping_add(1)) else {
        return unread;
    };
    let open = |(at, payload): &(GpuVa, u64)| {
        let number = find::number(memory, at.0).filter(|_| readable.holds(at.0, 4));
        number.is_some_and(|n| n.wrapping_sub(*payload as u32).cast_signed() < 0)
    };
    let at = if next.waits.iter().any(open) {
        vec![Doing::Wait]
    } else if !next.copies.is_empty() {
        next.copies.iter().map(|path| Doing::Copy(path)).collect()
    } else if last.is_none() {
        vec![Doing::Unread]
    } else {
        vec![Doing::Other]
    };
    Some((at, Vec::new()))
}
