//! Search for rings at any place, for programs that do not put them where libcuda does.
//!
//! First the search looks for USERD: an aligned word of two possible ring positions at +0x88, at the start of every page of the GPU memory
//! mappings, and then around each hit (graphics clients lay USERDs of 512 bytes side by side). Then it looks for the USERD's ring: at the
//! same distance as with the process's other channels, else in the pages around it, else in system memory that nvidiactl mapped. The ring's
//! own structure decides: a run of segments must end at GP_PUT. Behind GP_PUT there must be nothing, or the oldest entry, which does not
//! continue the newest.
//!
//! The search assumes no usual places. The number of its reads is limited, and a note says when the limit was reached.

use super::{
    check::{Extent, Fit, begins_here, check, get_put, settled},
    found::{Effort, FoundRing, Place, Proof, Search, Size, Target},
    libcuda::{SLOT, USERD},
};
use crate::memory::{maps::Area, places::Places};
use crate::procfs::mem::ReadMemory;
use nvcap_decode::record::Device;
use nvcap_decode::wire::entry;

const PAGE: u64 = 0x1000;
/// Size of USERD.
const USERD_SIZE: u64 = 0x200;
/// The most entries of a ring. Larger numbers are no positions: the largest measured ring has 32768 entries.
const MOST_ENTRIES: u32 = 1 << 16;
/// The least entries of a ring that is looked for.
const LEAST_ENTRIES: u32 = 64;
/// Size of a mapping up to which every 512 bytes are examined, bytes.
const SMALL: u64 = 256 << 10;
/// Number of places without a USERD that ends a row of USERDs.
const ROW_END: u32 = 8;
/// Number of pages before and behind a USERD in which its ring is looked for.
const NEAR: u64 = 64;

/// Number of reads that may still be made. It ensures that a process with unusual mappings costs only a moment.
struct Budget {
    gpu: u32,
    system: u32,
    out: bool,
}

impl Budget {
    fn of(effort: Effort) -> Self {
        let (gpu, system) = match effort {
            Effort::Habit => (0, 0),
            // 6 us each: 25 ms at most; reads of system memory take less than 1 us.
            Effort::Usual => (4096, 32768),
            Effort::Thorough => (1 << 18, 1 << 20),
        };
        Self {
            gpu,
            system,
            out: false,
        }
    }

    fn take(left: &mut u32, out: &mut bool) -> bool {
        match left.checked_sub(1) {
            Some(less) => {
                *left = less;
                true
            }
            None => {
                *out = true;
                false
            }
        }
    }

    fn gpu(&mut self) -> bool {
        Self::take(&mut self.gpu, &mut self.out)
    }

    fn system(&mut self) -> bool {
        Self::take(&mut self.system, &mut self.out)
    }
}

/// Adds the rings in `areas` to `search`. Each area comes with its GPU.
pub(super) fn add_rings(
    memory: &impl ReadMemory,
    places: &Places<'_>,
    areas: &[(&Area, u32)],
    effort: Effort,
    search: &mut Search,
) {
    let mut budget = Budget::of(effort);
    let most: u64 = if effort == Effort::Thorough {
        256 << 20
    } else {
        8 << 20
    };
    let mut hits = Vec::new();
    for &(area, gpu) in areas {
        let len = area.end - area.start;
        if len > most {
            search.notes.push(format!(
                "the mapping of {} MiB of GPU memory at {:#x} was not searched: it is larger than the {} MiB that are",
                len >> 20,
                area.start,
                most >> 20
            ));
            continue;
        }
        let taken = |at: u64| {
            search
                .found
                .iter()
                .any(|f| f.ring <= at && at < f.ring + SLOT || f.userd / PAGE == at / PAGE)
        };
        let step = if len <= SMALL || effort == Effort::Thorough {
            USERD_SIZE
        } else {
            PAGE
        };
        let mut at = area.start;
        while at + USERD_SIZE <= area.end {
            if !taken(at) && budget.gpu() && is_userd(memory, at) {
                hits.push((at, gpu));
            }
            at += step;
        }
    }
    if !hits.is_empty() {
        rows(memory, places, &mut hits, &mut budget);
    }
    let mut without = Vec::new();
    for (userd, gpu) in hits {
        let Ok((get, put)) = get_put(memory, userd) else {
            continue;
        };
        let candidate = Candidate {
            userd,
            gpu,
            get,
            put,
        };
        match candidate.ring(memory, places, &search.found, &mut budget) {
            Some(found) => search.found.push(found),
            None => without.push(candidate),
        }
    }
    // A single word that looks like two positions proves nothing; several side by side are channels.
    if without.len() > 1 {
        search.notes.push(format!(
            "{} places look like USERD (the first at {:#x}: GP_GET {}, GP_PUT {}), but no ring fits them: their rings are \
             not mapped into the process, or they are no channels",
            without.len(),
            without[0].userd,
            without[0].get,
            without[0].put
        ));
    }
    if budget.out {
        search.notes.push(cut_short(effort).to_owned());
    }
}

/// Returns the note for a search that has used up its budget.
fn cut_short(effort: Effort) -> &'static str {
    match effort {
        Effort::Thorough => {
            "the search for channels was cut short, though thorough: there is more mapped GPU memory than it reads; attach \
             before the channels are made (nvcap -- COMMAND) to know them all"
        }
        _ => {
            "the search for channels was cut short: there is much mapped GPU memory (--thorough searches more)"
        }
    }
}

/// Tells whether a word holds two possible ring positions that are not both zero; two zeros prove nothing.
fn is_userd(memory: &impl ReadMemory, at: u64) -> bool {
    get_put(memory, at)
        .is_ok_and(|(get, put)| get < MOST_ENTRIES && put < MOST_ENTRIES && (get, put) != (0, 0))
}

/// Searches before and behind each hit, because USERDs come in rows.
fn rows(
    memory: &impl ReadMemory,
    places: &Places<'_>,
    hits: &mut Vec<(u64, u32)>,
    budget: &mut Budget,
) {
    let first = hits.clone();
    for (start, gpu) in first {
        for forward in [true, false] {
            let (mut at, mut misses) = (start, 0);
            while misses < ROW_END {
                let next = if forward {
                    at.checked_add(USERD_SIZE)
                } else {
                    at.checked_sub(USERD_SIZE)
                };
                let Some(next) = next.filter(|n| places.holds(*n, USERD_SIZE)) else {
                    break;
                };
                at = next;
                if hits.iter().any(|h| h.0 == at) {
                    break;
                }
                if budget.gpu() && is_userd(memory, at) {
                    misses = 0;
                    hits.push((at, gpu));
                } else {
                    misses += 1;
                }
            }
        }
    }
    hits.sort_unstable();
}

#[derive(Clone, Copy)]
struct Candidate {
    userd: u64,
    gpu: u32,
    get: u32,
    put: u32,
}

impl Candidate {
    fn ring(
        &self,
        memory: &impl ReadMemory,
        places: &Places<'_>,
        known: &[FoundRing],
        budget: &mut Budget,
    ) -> Option<FoundRing> {
        let mut tried = Vec::new();
        for f in known {
            let apart = f.ring.wrapping_sub(f.userd);
            let ring = self.userd.wrapping_add(apart);
            if !tried.contains(&ring) && tried.len() < 8 {
                tried.push(ring);
                if let Some(found) = self.at(memory, places, ring, Place::Alike) {
                    return Some(found);
                }
            }
        }
        let page = self.userd & !(PAGE - 1);
        for n in 1..=NEAR {
            for ring in [page.checked_sub(n * PAGE), page.checked_add(n * PAGE)] {
                let Some(ring) = ring.filter(|r| places.holds(*r, PAGE)) else {
                    continue;
                };
                if !budget.gpu() {
                    return None;
                }
                if let Some(found) = self.at(memory, places, ring, Place::Sought) {
                    return Some(found);
                }
            }
        }
        for area in places
            .iter()
            .filter(|a| a.device() == Some(Device::Control))
        {
            let mut ring = area.start;
            while ring < area.end {
                let used = known.iter().any(|f| f.ring == ring);
                if !budget.system() {
                    return None;
                }
                if !used && let Some(found) = self.at(memory, places, ring, Place::Sought) {
                    return Some(found);
                }
                ring += PAGE;
            }
        }
        None
    }

    /// Returns the ring that begins at `ring`, if there is one.
    fn at(
        &self,
        memory: &impl ReadMemory,
        places: &Places<'_>,
        ring: u64,
        place: Place,
    ) -> Option<FoundRing> {
        let room = self.room(places, ring)?;
        let least = self.get.max(self.put) + 1;
        if room < least || room < LEAST_ENTRIES {
            return None;
        }
        if self.put == 0 {
            return self.just_round(memory, places, ring, room, place);
        }
        // One read decides most places: that of the newest entry.
        word(memory, ring + 8 * u64::from(self.put - 1)).and_then(Extent::of)?;
        let fits = |_: u32, put: u32| {
            if put == 0 || put >= room {
                return Fit::No;
            }
            check(memory, places, ring, room, put)
        };
        let (get, put, target) = match settled(memory, self.userd, fits)? {
            (get, put, Fit::Yes(target)) => (get, put, target),
            // If another channel's ring has the same distance from its USERD, this is a ring, too.
            (get, put, Fit::Continues(target))
                if place == Place::Alike && begins_here(memory, places, ring) =>
            {
                (get, put, target)
            }
            _ => return None,
        };
        // A single entry that merely points to memory proves little.
        if target == Target::Readable && put < 3 {
            return None;
        }
        let round =
            put + 1 < room && word(memory, ring + 8 * u64::from(put)).is_some_and(|e| e != 0);
        let now = Self { get, put, ..*self };
        let (entries, size) = now.size(memory, ring, room, round);
        Some(now.found(ring, entries, place, size, target))
    }

    /// Finds a ring whose GP_PUT is 0. The newest entry is then the ring's last, whose place must be guessed.
    fn just_round(
        &self,
        memory: &impl ReadMemory,
        places: &Places<'_>,
        ring: u64,
        room: u32,
        place: Place,
    ) -> Option<FoundRing> {
        let mut entries = (self.get + 1).next_power_of_two().max(LEAST_ENTRIES);
        while entries <= room {
            if word(memory, ring).is_some_and(|first| first != 0)
                && let Fit::Yes(target @ (Target::Parses | Target::Elsewhere)) =
                    check(memory, places, ring, entries, 0)
            {
                return Some(self.found(ring, entries, place, Size::Wrapped, target));
            }
            entries *= 2;
        }
        None
    }

    fn found(
        &self,
        ring: u64,
        entries: u32,
        place: Place,
        size: Size,
        target: Target,
    ) -> FoundRing {
        FoundRing {
            gpu: Some(self.gpu),
            ring,
            entries,
            userd: self.userd,
            get: self.get,
            put: self.put,
            used: true,
            proof: Proof {
                place,
                size: if self.userd == ring.wrapping_add(USERD) && entries == 1024 {
                    Size::Habit
                } else {
                    size
                },
                target,
                moved: false,
            },
        }
    }

    /// Returns the number of entries that a ring at `ring` can have, a power of two: it extends up to its USERD or to the mapping's end.
    fn room(&self, places: &Places<'_>, ring: u64) -> Option<u32> {
        let area = places.at(ring)?;
        let end = if ring < self.userd && self.userd < area.end {
            self.userd
        } else {
            area.end
        };
        let entries = ((end - ring) / 8).min(u64::from(MOST_ENTRIES));
        (entries > 0).then(|| 1 << entries.ilog2())
    }

    /// Returns the ring's size. It is proven if the ring has wrapped: its last entry is then followed by its first.
    fn size(&self, memory: &impl ReadMemory, ring: u64, room: u32, round: bool) -> (u32, Size) {
        if !round {
            return (room, Size::Room);
        }
        let first = word(memory, ring).and_then(Extent::of);
        let mut entries = (self.get.max(self.put) + 1)
            .next_power_of_two()
            .max(LEAST_ENTRIES);
        while entries <= room {
            if let Some((last, behind)) = pair(memory, ring, entries - 1, room)
                && let (Some(last), Some(first)) = (Extent::of(last), first)
                && last.is_followed_by(first)
                && !behind
                    .and_then(Extent::of)
                    .is_some_and(|b| last.is_followed_by(b))
            {
                return (entries, Size::Wrapped);
            }
            entries *= 2;
        }
        (room, Size::Room)
    }
}

fn word(memory: &impl ReadMemory, at: u64) -> Option<u64> {
    memory.word(at).ok()
}

/// Returns the entry at `index`, and the entry behind it if the ring has room for one.
fn pair(memory: &impl ReadMemory, ring: u64, index: u32, room: u32) -> Option<(u64, Option<u64>)> {
    let at = ring + 8 * u64::from(index);
    if index + 1 >= room {
        return Some((word(memory, at)?, None));
    }
    let mut b = [0; 16];
    memory.read_bytes(at, &mut b).ok()?;
    let mut both = entry::iter(&b);
    Some((both.next()?, both.next()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_thorough_is_not_told_to_be() {
        assert!(cut_short(Effort::Usual).contains("--thorough"));
        assert!(!cut_short(Effort::Thorough).contains("--thorough"));
    }
}
