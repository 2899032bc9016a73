//! Checks whether memory is a ring. GP_GET and GP_PUT must be possible positions, and the entries before GP_PUT must be pushbuffer segments
//! in mapped memory that parse as methods. If GPU addresses are not the process's (graphics clients), the entries must instead follow one
//! another as segments of a pushbuffer do.

use super::found::{GP_GET, Target};
use crate::memory::places::Places;
use crate::procfs::mem::ReadMemory;
use nvcap_decode::wire::{
    entry::{self, EntryKind},
    stream::{Item, Stream},
};

/// Number of entries before GP_PUT that are checked.
const CHECKED: u64 = 8;
/// Number of bytes of a pushbuffer that are parsed.
const PARSED: usize = 512;

/// Returns GP_GET and GP_PUT of a USERD, in one read.
pub fn get_put(memory: &impl ReadMemory, userd: u64) -> std::io::Result<(u32, u32)> {
    let both = memory.word(userd + GP_GET)?;
    Ok((both as u32, (both >> 32) as u32))
}

/// Result of comparing a ring with GP_GET and GP_PUT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// The ring fits; with the state of the memory to which its entries point.
    Yes(Target),
    /// The ring fits as with `Yes`, but the entry behind GP_PUT continues the newest entry. Either that entry was just written and is not
    /// committed yet, or the memory is a piece from the middle of a ring.
    Continues(Target),
    /// The ring does not fit.
    No,
}

/// Asks `fit` about the positions in a USERD, and once more if they moved meanwhile. Returns the positions and the last answer.
pub(super) fn settled(
    memory: &impl ReadMemory,
    userd: u64,
    mut fit: impl FnMut(u32, u32) -> Fit,
) -> Option<(u32, u32, Fit)> {
    let (mut get, mut put) = get_put(memory, userd).ok()?;
    let mut last = Fit::No;
    for _ in 0..4 {
        last = fit(get, put);
        if !matches!(last, Fit::Continues(_)) {
            break;
        }
        // A busy ring has moved on by the time of another read.
        let now = get_put(memory, userd).ok()?;
        if now == (get, put) {
            break;
        }
        (get, put) = now;
    }
    Some((get, put, last))
}

/// Checks the entries before GP_PUT of a ring of `entries` at `ring`, and the memory to which they point.
pub(super) fn check(
    memory: &impl ReadMemory,
    places: &Places<'_>,
    ring: u64,
    entries: u32,
    put: u32,
) -> Fit {
    // The entries before GP_PUT that do not cross the ring's end; with GP_PUT at 0, those at the ring's end.
    let end = u64::from(if put == 0 { entries } else { put });
    let first = end.saturating_sub(CHECKED);
    // The entry behind GP_PUT comes with the same read: reads cost more than bytes.
    let behind = end < u64::from(entries);
    let count = (end - first) as usize + usize::from(behind);
    let mut raw = [0; (CHECKED as usize + 1) * 8];
    let Some(raw) = raw.get_mut(..count * 8) else {
        return Fit::No;
    };
    if memory.read_bytes(ring + 8 * first, raw).is_err() {
        return Fit::No;
    }
    let mut entries = entry::iter(raw);
    let mut last: Option<Extent> = None;
    let (mut segments, mut mapped, mut row) = (0, 0, 0);
    for raw in entries.by_ref().take((end - first) as usize) {
        match entry::read(raw, 0) {
            EntryKind::Control { opcode, .. } if opcode <= 4 && raw != 0 => {}
            // A ring that has not wrapped yet has entries up to GP_PUT. If these are zeros, it is no ring.
            EntryKind::Control { .. } => return Fit::No,
            EntryKind::Segment { address, len, .. } => {
                let this = Extent {
                    address: address.0,
                    len: u64::from(len),
                };
                segments += 1;
                mapped += u32::from(places.has(this.address, this.len));
                row += u32::from(last.is_some_and(|l| l.is_followed_by(this)));
                last = Some(this);
            }
        }
    }
    let Some(newest) = last else {
        return Fit::No;
    };
    let behind = match (behind, put) {
        (true, _) => entries.next(),
        (false, 0) => memory.word(ring).ok(),
        (false, _) => None,
    };
    let target = if mapped == segments {
        if parses(memory, newest.address, newest.len as u32) {
            Target::Parses
        } else {
            Target::Readable
        }
    } else if mapped == 0 && row >= 2 {
        // None of the memory is mapped. Three entries that follow one another are no accident.
        Target::Elsewhere
    } else {
        return Fit::No;
    };
    let goes_on = behind.and_then(Extent::of);
    if goes_on.is_some_and(|b| newest.is_followed_by(b)) {
        Fit::Continues(target)
    } else {
        Fit::Yes(target)
    }
}

/// Tells whether a ring may begin here: the first entry must not continue an entry that lies before it.
pub(super) fn begins_here(memory: &impl ReadMemory, places: &Places<'_>, ring: u64) -> bool {
    let Some(before) = ring.checked_sub(8).filter(|b| places.holds(*b, 16)) else {
        return true;
    };
    let mut b = [0; 16];
    if memory.read_bytes(before, &mut b).is_err() {
        return false;
    }
    let mut both = entry::iter(&b).map(Extent::of);
    match (both.next().flatten(), both.next().flatten()) {
        (Some(before), Some(first)) => !before.is_followed_by(first),
        _ => true,
    }
}

/// Range to which a segment entry points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    address: u64,
    len: u64,
}

impl Extent {
    pub(super) fn of(raw: u64) -> Option<Self> {
        match entry::read(raw, 0) {
            EntryKind::Segment { address, len, .. } if address.0 != 0 => Some(Self {
                address: address.0,
                len: u64::from(len),
            }),
            _ => None,
        }
    }

    /// Tells whether the second range follows the first as in filling a pushbuffer: with room for padding, and for memory that another
    /// channel took in between.
    pub(super) fn is_followed_by(self, second: Self) -> bool {
        let end = self.address + self.len;
        second.address >= end && second.address - end < 0x1_0000
    }
}

/// Tells whether the bytes at `address` parse as methods, as far as they are examined.
fn parses(memory: &impl ReadMemory, address: u64, len: u32) -> bool {
    let mut bytes = vec![0; (len as usize).min(PARSED)];
    if memory.read_bytes(address, &mut bytes).is_err() {
        return false;
    }
    is_methods(&bytes, len as usize)
}

/// Tells whether these bytes, the first of `len`, parse as methods, as far as they are examined.
pub fn is_methods(bytes: &[u8], len: usize) -> bool {
    let bytes = bytes.get(..PARSED).unwrap_or(bytes);
    let whole = bytes.len() == len;
    let mut stream = Stream::default();
    let mut runs = 0;
    let looked = bytes.len() as u32;
    for item in stream.runs(bytes, looked, &[]) {
        match item {
            Item::Run(_) => runs += 1,
            Item::Control(..) | Item::Skipped { .. } => {}
            // The last method may continue behind the examined bytes.
            Item::Stop(..) if !whole => break,
            Item::Stop(..) => return false,
        }
    }
    runs > 0
}
