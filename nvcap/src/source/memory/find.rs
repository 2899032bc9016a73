//! Channels of a process whose beginning was not seen: rings and USERD found in its mappings, by their structure.
//!
//! A channel is believed when GP_GET and GP_PUT are possible positions and the ring's entries before GP_PUT are
//! pushbuffer segments: in mapped memory, parsing as methods; or, where a GPU address is not the process's (graphics
//! clients), following one another as segments of a pushbuffer do. What was proven of each and what assumed is in its
//! [`Proof`]. Where to look, in order: libcuda's habit (slots of 0x3000 bytes in a mapping of /dev/nvidiaN, the ring
//! of 1024 entries at +0, USERD at +0x2000), then every place where a USERD can lie (`seek`).
//!
//! A read of GPU memory through /proc/PID/mem costs microseconds whatever its size, and more by the byte: so one
//! aligned read of 8 bytes a candidate, and never a page. Doorbell pages are never read: any mapping that could be one
//! is left out.

use super::{
    maps::Area,
    process::{Memory, Peek},
    seek,
};
use crate::decode::{
    entry,
    event::EntryKind,
    stream::{Item, Stream},
};
use crate::record::{At, Channel, ChannelId, CpuVa, Device, Origin};

pub use super::places::Places;

/// Size of libcuda's slots.
pub const SLOT: u64 = 0x3000;
/// USERD in a slot.
pub const USERD: u64 = 0x2000;
/// Ring entries of a slot.
pub const ENTRIES: u32 = 1024;
/// GP_GET in USERD; GP_PUT follows.
pub const GP_GET: u64 = 0x88;
/// Unused slots kept behind the last used one.
const UNUSED: usize = 24;
/// Entries before GP_PUT that are looked at.
const CHECKED: u64 = 8;
/// Bytes of a pushbuffer that are parsed.
const PARSED: usize = 512;

/// A ring that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// GPU by device file minor number.
    pub gpu: u32,
    /// Address of the ring.
    pub ring: u64,
    /// Entries.
    pub entries: u32,
    /// Address of USERD.
    pub userd: u64,
    /// GP_GET when found.
    pub get: u32,
    /// GP_PUT when found.
    pub put: u32,
    /// It has been used: its last entry was checked.
    pub used: bool,
    /// What stands behind it.
    pub proof: Proof,
}

impl Found {
    /// As a channel: what is known of it.
    #[must_use]
    pub fn channel(&self, at: At, id: ChannelId) -> Channel {
        Channel {
            at,
            id,
            gpu: Some(self.gpu),
            token: None,
            class: None,
            engine: None,
            handle: None,
            ring_gpu: None,
            ring: Some(CpuVa(self.ring)),
            entries: Some(self.entries),
            userd: Some(CpuVa(self.userd)),
            origin: Origin::Found,
        }
    }
}

/// How a ring's place relative to its USERD was known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// libcuda's habit.
    #[default]
    Habit,
    /// As with another channel of the process.
    Alike,
    /// Searched for.
    Sought,
    /// The user named it.
    Given,
}

/// How a ring's size was known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Size {
    /// libcuda's habit, and what it says fits: USERD lies right behind the ring.
    #[default]
    Habit,
    /// Proven: the ring has gone round, and its last entry is followed by its first.
    Wrapped,
    /// Assumed: all the room there is, a power of two.
    Room,
}

/// What is known of the memory that the entries point to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// Nothing: the ring was never used.
    #[default]
    Unused,
    /// Mapped, readable, and what lies there parses as methods.
    Parses,
    /// Mapped and readable; what lies there does not parse (overwritten since, or no pushbuffer).
    Readable,
    /// The addresses are not the process's: entries follow one another as those of a pushbuffer, no more.
    Elsewhere,
}

/// What was proven of a found channel and what was assumed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, serde::Serialize)]
pub struct Proof {
    /// The ring's place.
    pub place: Place,
    /// The ring's size.
    pub size: Size,
    /// What entries point to.
    pub target: Target,
    /// GP_GET or GP_PUT was seen moving.
    pub moved: bool,
}

/// How much is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Effort {
    /// libcuda's habit alone.
    Habit,
    /// And every page of mappings of up to 8 MiB.
    #[default]
    Usual,
    /// And every 512 bytes of them, and the pages of mappings of up to 256 MiB.
    Thorough,
}

/// What a search gave.
#[derive(Clone, Debug, Default)]
pub struct Search {
    /// The rings, by address of USERD.
    pub found: Vec<Found>,
    /// What was left out or could not be resolved, in words.
    pub notes: Vec<String>,
}

/// Looks for rings in all GPU memory mappings of a process.
pub fn rings(memory: &Memory, areas: &[Area]) -> Vec<Found> {
    search(memory, areas, Effort::Usual).found
}

/// As [`rings`], on any memory, with as much effort as is asked for, and with what was left out.
pub fn search(memory: &impl Peek, areas: &[Area], effort: Effort) -> Search {
    let mut search = Search::default();
    let places = Places::new(areas);
    let mut left = Vec::new();
    for area in areas {
        let Some(Device::Gpu(gpu)) = area.device() else {
            continue;
        };
        if !area.read || !area.write {
            continue;
        }
        if area.is_doorbell_shape() {
            // A doorbell page of a graphics client looks like that, and must not be read.
            continue;
        }
        let before = search.found.len();
        if area.end - area.start >= SLOT && area.end - area.start <= 64 << 20 {
            search.found.extend(habitual(memory, &places, area, gpu));
        }
        left.push((area, gpu, search.found.len() == before));
    }
    if effort > Effort::Habit {
        seek::seek(memory, &places, &left, effort, &mut search);
    }
    search.found.sort_by_key(|f| (f.gpu, f.userd));
    search
}

fn habitual(memory: &impl Peek, places: &Places<'_>, area: &Area, gpu: u32) -> Vec<Found> {
    let mut found = Vec::new();
    let mut unused = 0;
    let mut at = area.start;
    while at + SLOT <= area.end && unused < UNUSED {
        unused += 1;
        if let Some((get, put, fit)) = settled(memory, at + USERD, |get, put| {
            if get < ENTRIES && put < ENTRIES {
                check(memory, places, at, ENTRIES, put)
            } else {
                Fit::No
            }
        }) {
            let used = match fit {
                Fit::Yes(target) if target != Target::Elsewhere => Some(target),
                // A process that was stopped between writing an entry and committing it; or a pushbuffer that has just
                // room for the ring's entries, so that the oldest lies behind the newest. No ring goes on before this one.
                Fit::Continues(target)
                    if target != Target::Elsewhere && begins_here(memory, places, at) =>
                {
                    Some(target)
                }
                _ => None,
            };
            if used.is_some() || (get, put) == (0, 0) {
                found.push(Found {
                    gpu,
                    ring: at,
                    entries: ENTRIES,
                    userd: at + USERD,
                    get,
                    put,
                    used: used.is_some(),
                    proof: Proof {
                        target: used.unwrap_or_default(),
                        ..Proof::default()
                    },
                });
                if used.is_some() {
                    unused = 0;
                }
            }
        }
        at += SLOT;
    }
    // With both positions 0 it is the entries alone that speak for it: not enough where nothing else does.
    if found.iter().any(|f| f.used && (f.get, f.put) != (0, 0)) {
        found
    } else {
        Vec::new()
    }
}

/// GP_GET and GP_PUT: the aligned 8 bytes at USERD + 0x88.
pub(super) fn get_put(memory: &impl Peek, userd: u64) -> std::io::Result<(u32, u32)> {
    let both = memory.word(userd + GP_GET)?;
    Ok((both as u32, (both >> 32) as u32))
}

/// Whether a ring fits GP_GET and GP_PUT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// It does; what it points to.
    Yes(Target),
    /// As `Yes`, but the entry behind the newest one continues it: written just now and not committed yet, or this is a
    /// piece out of the middle of a ring.
    Continues(Target),
    /// It does not.
    No,
}

/// Asks `fit` about the positions in a USERD, again where they move meanwhile.
pub(super) fn settled(
    memory: &impl Peek,
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
        // Busy, it has moved on by the time of another read.
        let now = get_put(memory, userd).ok()?;
        if now == (get, put) {
            break;
        }
        (get, put) = now;
    }
    Some((get, put, last))
}

/// Whether a ring of `entries` at `ring` has, before GP_PUT, what a ring has there; and what it points to.
pub(super) fn check(
    memory: &impl Peek,
    places: &Places<'_>,
    ring: u64,
    entries: u32,
    put: u32,
) -> Fit {
    // The entries before GP_PUT that do not go over the ring's end; with GP_PUT at 0 those at its end.
    let end = u64::from(if put == 0 { entries } else { put });
    let first = end.saturating_sub(CHECKED);
    // And the one behind it, in the same read: reads cost more than bytes.
    let behind = end < u64::from(entries);
    let count = (end - first) as usize + usize::from(behind);
    let mut raw = [0; (CHECKED as usize + 1) * 8];
    let Some(raw) = raw.get_mut(..count * 8) else {
        return Fit::No;
    };
    if memory.peek(ring + 8 * first, raw).is_err() {
        return Fit::No;
    }
    let mut entries = entry::iter(raw);
    let mut last: Option<Extent> = None;
    let (mut segments, mut mapped, mut row) = (0, 0, 0);
    for raw in entries.by_ref().take((end - first) as usize) {
        match entry::read(raw, 0) {
            EntryKind::Control { opcode, .. } if opcode <= 4 && raw != 0 => {}
            // A ring that has not gone round yet begins with zeros where GP_PUT says it has entries: no ring.
            EntryKind::Control { .. } => return Fit::No,
            EntryKind::Segment { address, len, .. } => {
                let this = Extent {
                    address: address.0,
                    len: u64::from(len),
                };
                segments += 1;
                mapped += u32::from(places.holds(this.address, this.len));
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
        // Nothing of it is mapped: three that follow one another are no accident.
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

/// Whether what lies before a ring is no entry that its first one continues.
pub(super) fn begins_here(memory: &impl Peek, places: &Places<'_>, ring: u64) -> bool {
    let Some(before) = ring.checked_sub(8).filter(|b| places.holds(*b, 16)) else {
        return true;
    };
    let mut b = [0; 16];
    if memory.peek(before, &mut b).is_err() {
        return false;
    }
    let mut both = entry::iter(&b).map(Extent::of);
    match (both.next().flatten(), both.next().flatten()) {
        (Some(before), Some(first)) => !before.is_followed_by(first),
        _ => true,
    }
}

/// Where a segment entry points.
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

    /// Whether the second lies right behind the first, as a pushbuffer is filled: with padding, and what another
    /// channel took in between.
    pub(super) fn is_followed_by(self, second: Self) -> bool {
        let end = self.address + self.len;
        second.address >= end && second.address - end < 0x1_0000
    }
}

/// Whether what lies at `address` parses as methods, as far as is looked.
fn parses(memory: &impl Peek, address: u64, len: u32) -> bool {
    let mut bytes = vec![0; (len as usize).min(PARSED)];
    if memory.peek(address, &mut bytes).is_err() {
        return false;
    }
    let whole = bytes.len() == len as usize;
    let mut stream = Stream::default();
    let mut runs = 0;
    let looked = bytes.len() as u32;
    for item in stream.runs(&bytes, looked, &[]) {
        match item {
            Item::Run(_) => runs += 1,
            Item::Control(..) | Item::Skipped { .. } => {}
            // The last method may go on behind what was looked at.
            Item::Stop(..) if !whole => break,
            Item::Stop(..) => return false,
        }
    }
    runs > 0
}

#[cfg(test)]
mod tests {
    use super::super::made_up::{MadeUp, Ring};
    use super::*;

    fn searched(memory: &MadeUp, effort: Effort) -> Search {
        search(memory, memory.areas(), effort)
    }

    #[test]
    fn libcudas_slots_cost_little() {
        let mut memory = MadeUp::cuda();
        for (slot, entries) in [(0, 700), (3, 5), (8, 3000), (19, 1024)] {
            memory.submit_many(Ring::slot(slot), entries);
        }
        let found = searched(&memory, Effort::Usual);
        let used: Vec<_> = found.found.iter().filter(|f| f.used).collect();
        assert_eq!(
            used.iter().map(|f| (f.ring, f.put)).collect::<Vec<_>>(),
            [(0, 700), (3, 5), (8, 3000 % 1024), (19, 0)]
                .map(|(slot, put)| (Ring::slot(slot).ring, put))
        );
        assert!(used.iter().all(|f| f.entries == 1024
            && f.proof.target == Target::Parses
            && f.proof.place == Place::Habit));
        assert_eq!(found.notes, Vec::<String>::new());
        // By the costs measured on an H200: 5.4 us a read of GPU memory and 26 ns a byte.
        let us = memory.gpu_cost_us();
        assert!(us < 5_000.0, "{us} us");
        let habit = MadeUp::cuda();
        let _ = search(&habit, habit.areas(), Effort::Habit);
        assert!(habit.gpu_cost_us() < 1_000.0, "{}", habit.gpu_cost_us());
    }

    #[test]
    fn rings_at_any_place() {
        // Slots of another size, rings of another length, USERD before its ring.
        for (apart, entries) in [
            (0x4000i64, 2048u32),
            (0x1000, 512),
            (-0x1000, 256),
            (0x8000, 4096),
        ] {
            let mut memory = MadeUp::cuda();
            let rings: Vec<Ring> = (0..3)
                .map(|i| {
                    let ring = memory.rings_at() + 0x2_3000 + i * 0x1_0000;
                    Ring {
                        ring,
                        entries,
                        userd: ring.wrapping_add_signed(apart),
                        gpu_va: 0,
                    }
                })
                .collect();
            for (i, ring) in rings.iter().enumerate() {
                memory.submit_many(
                    *ring,
                    [20, 2 * u64::from(entries) + 9, 3 * u64::from(entries) - 3][i],
                );
            }
            let found = searched(&memory, Effort::Usual).found;
            assert_eq!(
                found
                    .iter()
                    .map(|f| (f.ring, f.userd, f.put))
                    .collect::<Vec<_>>(),
                rings
                    .iter()
                    .zip([20, 9, entries - 3])
                    .map(|(r, put)| (r.ring, r.userd, put))
                    .collect::<Vec<_>>(),
                "{apart:#x} {entries}"
            );
            // Those that went round show their size; of the first the room is all that is known. (One with both
            // positions at 0 is not found: any zeros look like that.)
            assert_eq!(
                (found[1].entries, found[1].proof.size),
                (entries, Size::Wrapped)
            );
            assert_eq!(
                (found[2].entries, found[2].proof.size),
                (entries, Size::Wrapped)
            );
            assert!(found[0].entries >= entries);
        }
    }

    #[test]
    fn a_pushbuffer_that_just_holds_the_rings_entries_is_no_reason_to_doubt() {
        // 2 MiB of pushbuffer and entries of 2048 bytes: the oldest entry's bytes lie right behind the newest's.
        let mut memory = MadeUp::cuda();
        memory.submit_many(Ring::slot(0), 2);
        let mut words = vec![0x2001_8000, 0xc8b5];
        words.resize(512, 0);
        for position in 0..3000 {
            memory.submit(Ring::slot(1), position, &words, 0);
        }
        let found = searched(&memory, Effort::Usual).found;
        let used: Vec<u64> = found.iter().filter(|f| f.used).map(|f| f.ring).collect();
        assert_eq!(used, [Ring::slot(0).ring, Ring::slot(1).ring]);
    }

    #[test]
    fn a_process_stopped_before_it_committed_an_entry() {
        let mut memory = MadeUp::cuda();
        memory.submit_many(Ring::slot(0), 700);
        memory.submit_many(Ring::slot(1), 2000);
        for slot in 0..2 {
            let ring = Ring::slot(slot);
            let last = memory.word(ring.userd + GP_GET).unwrap() >> 32;
            let newest = memory.word(ring.ring + 8 * (last - 1)).unwrap();
            memory.put_word(ring.ring + 8 * last, newest + 20);
        }
        let found = searched(&memory, Effort::Usual).found;
        assert_eq!(found.iter().filter(|f| f.used).count(), 2);
    }

    #[test]
    fn rings_in_system_memory_that_the_process_addresses_otherwise() {
        let mut memory = MadeUp::graphics();
        let rings = memory.graphics_rings(4);
        for ring in &rings {
            memory.submit_many(*ring, 40);
        }
        let found = searched(&memory, Effort::Usual);
        assert_eq!(
            found
                .found
                .iter()
                .map(|f| (f.ring, f.userd, f.put))
                .collect::<Vec<_>>(),
            rings
                .iter()
                .map(|r| (r.ring, r.userd, 40))
                .collect::<Vec<_>>()
        );
        assert!(
            found
                .found
                .iter()
                .all(|f| f.proof.target == Target::Elsewhere)
        );
    }

    #[test]
    fn nothing_is_found_where_nothing_is() {
        let mut memory = MadeUp::cuda();
        assert!(searched(&memory, Effort::Thorough).found.is_empty());
        // Words that look like positions, with no ring that fits.
        memory.put_word(memory.rings_at() + 0x7088, 12 << 32 | 7);
        memory.put_word(memory.rings_at() + 0x9088, 900 << 32 | 7);
        let search = searched(&memory, Effort::Usual);
        assert!(search.found.is_empty());
        assert!(
            search.notes[0].contains("look like USERD"),
            "{:?}",
            search.notes
        );
    }

    #[test]
    fn memory_that_goes_away_at_any_moment_is_no_panic() {
        for reads in 0..400 {
            let mut memory = MadeUp::cuda();
            for slot in 0..6 {
                memory.submit_many(Ring::slot(slot), 3 + slot * 300);
            }
            memory.fail_after(reads);
            let found = searched(&memory, Effort::Usual).found;
            assert!(found.iter().filter(|f| f.used).count() <= 6);
        }
    }
}
