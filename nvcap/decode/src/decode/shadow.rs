//! The shadow: writes to GPU memory that were seen in the stream, from which memory at an address can be read later (a QMD, a constant
//! bank, a program).
//!
//! The shadow is kept per address space (one for each process), in pages of 4 KiB, up to a limit. Beyond it the least recently used page is
//! dropped. A page also keeps the last writes that began in it, because only the end of a write separates a kernel's arguments from older
//! bytes behind them.

use crate::wire::GpuVa;
use crate::wire::hash::NumberMap;

/// Length of a page, bytes.
pub const PAGE: usize = 4096;
/// Memory taken by one page including bookkeeping, bytes (rounded up).
pub const PAGE_COST: usize = PAGE + PAGE / 8 + EXTENTS * 24 + 64;
/// Number of writes whose extents are kept for a page.
const EXTENTS: usize = 64;

/// One address space: a process id in a live trace.
pub type Space = u32;

const NONE: u32 = u32::MAX;

struct Page {
    key: (Space, u64),
    data: [u8; PAGE],
    /// One bit for each byte, set if the byte was written.
    valid: [u64; PAGE / 64],
    /// Offsets in the page at which the kept writes began, parallel to those writes.
    offsets: Vec<u16>,
    extents: Vec<Extent>,
}

/// Neighbours of a page in the list by use. They are kept apart from the pages, because the list is walked without them.
#[derive(Clone, Copy)]
struct Link {
    newer: u32,
    older: u32,
}

/// A write whose extent is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Length of the write, bytes.
    pub len: u32,
    /// Place in the order of all writes: a later write has a higher number.
    pub order: u64,
}

/// Known contents of GPU memory, up to a limit.
pub struct Shadow {
    pages: Vec<Box<Page>>,
    links: Vec<Link>,
    free: Vec<u32>,
    map: NumberMap<(Space, u64), u32>,
    newest: u32,
    oldest: u32,
    max_pages: usize,
    evicted: u64,
    order: u64,
}

impl Shadow {
    /// Makes a shadow of at most `bytes` of memory including bookkeeping (one page at least).
    pub fn new(bytes: usize) -> Self {
        Self {
            pages: Vec::new(),
            links: Vec::new(),
            free: Vec::new(),
            map: NumberMap::default(),
            newest: NONE,
            oldest: NONE,
            max_pages: (bytes / PAGE_COST).clamp(1, NONE as usize - 1),
            evicted: 0,
            order: 0,
        }
    }

    /// Returns the number of pages held now.
    pub fn pages(&self) -> usize {
        self.map.len()
    }

    /// Returns the number of pages that were dropped because of the limit.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Records `bytes` at `address`.
    pub fn write(&mut self, space: Space, address: GpuVa, bytes: &[u8]) {
        self.write_part(space, address.0, bytes, true);
    }

    /// Records bytes as [`Shadow::write`] does. With `begins` false, they continue an earlier write and are no extent of their own.
    pub(crate) fn write_part(&mut self, space: Space, address: u64, bytes: &[u8], begins: bool) {
        let mut address = address;
        let mut rest = bytes;
        let mut extent = begins.then_some(bytes.len());
        while !rest.is_empty() {
            let offset = address as usize % PAGE;
            let (now, later) = rest.split_at(rest.len().min(PAGE - offset));
            let index = self.page_for(space, address / PAGE as u64);
            let Some(page) = self.pages.get_mut(index as usize) else {
                return;
            };
            if let Some(slot) = page.data.get_mut(offset..offset + now.len()) {
                slot.copy_from_slice(now);
            }
            set_bits(&mut page.valid, offset, now.len());
            if let Some(len) = extent.take() {
                self.order += 1;
                let len = u32::try_from(len).unwrap_or(u32::MAX);
                let order = self.order;
                page.remember(offset as u16, Extent { len, order });
            }
            let Some(next) = address.checked_add(now.len() as u64) else {
                return;
            };
            address = next;
            rest = later;
        }
    }

    /// Corrects the length of the write that began at `address`, if its data came in several runs.
    pub(crate) fn set_extent(&mut self, space: Space, address: u64, len: u32) {
        if let Some(&index) = self.map.get(&(space, address / PAGE as u64))
            && let Some(page) = self.pages.get_mut(index as usize)
        {
            self.order += 1;
            let order = self.order;
            page.remember((address % PAGE as u64) as u16, Extent { len, order });
        }
    }

    /// Returns the number of bytes from `address` on that are known, up to `max`.
    pub fn known(&self, space: Space, address: GpuVa, max: usize) -> usize {
        let mut total = 0;
        let mut address = address.0;
        while total < max {
            let offset = address as usize % PAGE;
            let Some(page) = self.find(space, address / PAGE as u64) else {
                break;
            };
            let run = ones_from(&page.valid, offset);
            total += run;
            if offset + run < PAGE {
                break;
            }
            let Some(next) = address.checked_add(run as u64) else {
                break;
            };
            address = next;
        }
        total.min(max)
    }

    /// Reads `out.len()` bytes at `address`, which counts as a use. Returns false, with arbitrary contents of `out`, unless all bytes are
    /// known.
    pub fn read(&mut self, space: Space, address: GpuVa, out: &mut [u8]) -> bool {
        let mut address = address.0;
        let mut rest = out;
        while !rest.is_empty() {
            let offset = address as usize % PAGE;
            let take = rest.len().min(PAGE - offset);
            let (now, later) = rest.split_at_mut(take);
            let Some(&index) = self.map.get(&(space, address / PAGE as u64)) else {
                return false;
            };
            let Some(page) = self.pages.get(index as usize) else {
                return false;
            };
            if ones_from(&page.valid, offset) < take {
                return false;
            }
            match page.data.get(offset..offset + take) {
                Some(bytes) => now.copy_from_slice(bytes),
                None => return false,
            }
            self.touch(index);
            address = match address.checked_add(take as u64) {
                Some(next) => next,
                None => return later.is_empty(),
            };
            rest = later;
        }
        true
    }

    /// Returns the last write that began exactly at `address`.
    pub fn extent(&self, space: Space, address: GpuVa) -> Option<Extent> {
        let page = self.find(space, address.0 / PAGE as u64)?;
        let offset = (address.0 % PAGE as u64) as u16;
        let at = page.offsets.iter().position(|o| *o == offset)?;
        page.extents.get(at).copied()
    }

    /// Forgets `len` bytes at `address`, because something unknown was written there.
    pub(crate) fn forget_range(&mut self, space: Space, address: u64, len: u64) {
        let Some(last) = len.checked_sub(1) else {
            return;
        };
        let last = address.saturating_add(last);
        let (first_page, last_page) = (address / PAGE as u64, last / PAGE as u64);
        // For a big range over a small shadow, the shadow is iterated, not the range.
        let touched: Vec<(u64, u32)> = if last_page - first_page >= self.map.len() as u64 {
            let inside = |k: &(Space, u64)| k.0 == space && (first_page..=last_page).contains(&k.1);
            self.map
                .iter()
                .filter(|(k, _)| inside(k))
                .map(|(k, &i)| (k.1, i))
                .collect()
        } else {
            (first_page..=last_page)
                .filter_map(|n| Some((n, *self.map.get(&(space, n))?)))
                .collect()
        };
        for (number, index) in touched {
            let from = if number == first_page {
                address as usize % PAGE
            } else {
                0
            };
            let to = if number == last_page {
                last as usize % PAGE
            } else {
                PAGE - 1
            };
            if from == 0 && to == PAGE - 1 {
                self.remove(index);
            } else if let Some(page) = self.pages.get_mut(index as usize) {
                page.forget(from, to);
            }
        }
    }

    /// Forgets a whole address space, because its process has ended or executed another program.
    pub fn forget(&mut self, space: Space) {
        let gone: Vec<u32> = self
            .map
            .iter()
            .filter(|(k, _)| k.0 == space)
            .map(|(_, &i)| i)
            .collect();
        for index in gone {
            self.remove(index);
        }
    }

    fn find(&self, space: Space, number: u64) -> Option<&Page> {
        let &index = self.map.get(&(space, number))?;
        self.pages.get(index as usize).map(|p| &**p)
    }

    fn page_for(&mut self, space: Space, number: u64) -> u32 {
        if let Some(&index) = self.map.get(&(space, number)) {
            self.touch(index);
            return index;
        }
        if self.map.len() >= self.max_pages {
            self.remove(self.oldest);
            self.evicted += 1;
        }
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                self.pages.push(Box::new(Page {
                    key: (0, 0),
                    data: [0; PAGE],
                    valid: [0; PAGE / 64],
                    offsets: Vec::new(),
                    extents: Vec::new(),
                }));
                self.links.push(Link {
                    newer: NONE,
                    older: NONE,
                });
                (self.pages.len() - 1) as u32
            }
        };
        if let Some(page) = self.pages.get_mut(index as usize) {
            page.key = (space, number);
            page.valid = [0; PAGE / 64];
            page.offsets.clear();
            page.extents.clear();
        }
        self.map.insert((space, number), index);
        self.link(index);
        index
    }

    fn touch(&mut self, index: u32) {
        if self.newest != index {
            self.unlink(index);
            self.link(index);
        }
    }

    fn link(&mut self, index: u32) {
        let old = self.newest;
        if let Some(link) = self.links.get_mut(index as usize) {
            *link = Link {
                newer: NONE,
                older: old,
            };
        }
        match self.links.get_mut(old as usize) {
            Some(link) => link.newer = index,
            None => self.oldest = index,
        }
        self.newest = index;
    }

    fn unlink(&mut self, index: u32) {
        let Some(&Link { newer, older }) = self.links.get(index as usize) else {
            return;
        };
        match self.links.get_mut(newer as usize) {
            Some(link) => link.older = older,
            None => self.newest = older,
        }
        match self.links.get_mut(older as usize) {
            Some(link) => link.newer = newer,
            None => self.oldest = newer,
        }
    }

    fn remove(&mut self, index: u32) {
        self.unlink(index);
        if let Some(page) = self.pages.get(index as usize) {
            self.map.remove(&page.key);
            self.free.push(index);
        }
    }
}

impl Page {
    fn remember(&mut self, offset: u16, extent: Extent) {
        let known = self.offsets.iter().position(|o| *o == offset);
        let at = match known {
            Some(at) => at,
            None if self.offsets.len() < EXTENTS => {
                self.offsets.push(offset);
                self.extents.push(extent);
                return;
            }
            // The oldest extent is dropped.
            None => {
                let oldest = self.extents.iter().enumerate().min_by_key(|(_, e)| e.order);
                oldest.map_or(0, |(at, _)| at)
            }
        };
        if let (Some(o), Some(e)) = (self.offsets.get_mut(at), self.extents.get_mut(at)) {
            (*o, *e) = (offset, extent);
        }
    }

    /// Forgets the bytes `from..=to` and the writes that began there.
    fn forget(&mut self, from: usize, to: usize) {
        for at in from..=to {
            if let Some(word) = self.valid.get_mut(at / 64) {
                *word &= !(1 << (at % 64));
            }
        }
        let mut at = 0;
        while let Some(&offset) = self.offsets.get(at) {
            if (from..=to).contains(&usize::from(offset)) {
                self.offsets.swap_remove(at);
                self.extents.swap_remove(at);
            } else {
                at += 1;
            }
        }
    }
}

fn set_bits(words: &mut [u64; PAGE / 64], from: usize, len: usize) {
    let mut at = from;
    let end = (from + len).min(PAGE);
    while at < end {
        let bit = at % 64;
        let n = (64 - bit).min(end - at);
        let mask = if n == 64 {
            u64::MAX
        } else {
            ((1 << n) - 1) << bit
        };
        if let Some(word) = words.get_mut(at / 64) {
            *word |= mask;
        }
        at += n;
    }
}

/// Returns the number of consecutive set bits from `from` on, to the end of the page at most.
fn ones_from(words: &[u64; PAGE / 64], from: usize) -> usize {
    let mut at = from;
    while at < PAGE {
        let word = words.get(at / 64).copied().unwrap_or(0) >> (at % 64);
        let ones = word.trailing_ones() as usize;
        at += ones;
        // The shift brings in zeros from above: only a run that reaches the end of the word continues.
        if ones == 0 || !at.is_multiple_of(64) {
            break;
        }
    }
    at.min(PAGE) - from
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_read_back_across_page_borders() {
        let mut shadow = Shadow::new(1 << 20);
        let bytes: Vec<u8> = (0..10_000).map(|i| i as u8).collect();
        let at = 0x7fff_f000_0ff1;
        shadow.write(7, GpuVa(at), &bytes);
        let mut out = vec![0; bytes.len()];
        assert!(shadow.read(7, GpuVa(at), &mut out));
        assert_eq!(out, bytes);
        assert_eq!(shadow.known(7, GpuVa(at), usize::MAX), 10_000);
        assert_eq!(shadow.known(7, GpuVa(at + 9_999), 64), 1);
        assert_eq!(shadow.known(7, GpuVa(at - 1), 64), 0);
        assert!(!shadow.read(7, GpuVa(at - 1), &mut out));
        assert!(
            !shadow.read(8, GpuVa(at), &mut out),
            "another process's memory"
        );
        assert_eq!(shadow.extent(7, GpuVa(at)).map(|e| e.len), Some(10_000));
        assert_eq!(shadow.extent(7, GpuVa(at + 1)), None);
    }

    #[test]
    fn the_bound_holds_and_the_least_recently_used_goes() {
        let mut shadow = Shadow::new(PAGE_COST * 3);
        for page in 0..3u64 {
            shadow.write(1, GpuVa(page * PAGE as u64), b"abcd");
        }
        let mut out = [0; 4];
        assert!(shadow.read(1, GpuVa(0), &mut out));
        shadow.write(1, GpuVa(3 * PAGE as u64), b"abcd");
        assert_eq!((shadow.pages(), shadow.evicted()), (3, 1));
        assert!(shadow.read(1, GpuVa(0), &mut out), "used just now");
        assert!(
            !shadow.read(1, GpuVa(PAGE as u64), &mut out),
            "used longest ago"
        );
        for page in 0..1000u64 {
            shadow.write(1, GpuVa(page * PAGE as u64), b"abcd");
        }
        assert_eq!(shadow.pages(), 3);
        assert!(shadow.pages.len() <= 3);
        shadow.forget(1);
        assert_eq!(shadow.pages(), 0);
    }

    #[test]
    fn a_range_is_forgotten() {
        for spread in [1u64, 100] {
            let mut shadow = Shadow::new(1 << 22);
            for page in 0..4 * spread {
                shadow.write(1, GpuVa(page * PAGE as u64), &[7; PAGE]);
            }
            shadow.forget_range(1, 100, 2 * PAGE as u64);
            assert_eq!(shadow.known(1, GpuVa(0), PAGE), 100);
            assert_eq!(shadow.known(1, GpuVa(PAGE as u64), PAGE), 0);
            assert_eq!(shadow.known(1, GpuVa(2 * PAGE as u64), PAGE), 0);
            assert_eq!(
                shadow.known(1, GpuVa(2 * PAGE as u64 + 100), 2 * PAGE - 100),
                2 * PAGE - 100
            );
            shadow.forget_range(1, 0, u64::MAX);
            assert_eq!(shadow.known(1, GpuVa(3 * PAGE as u64), PAGE), 0);
        }
    }

    #[test]
    fn the_end_of_the_address_space_is_no_panic() {
        let mut shadow = Shadow::new(1 << 20);
        shadow.write(0, GpuVa(u64::MAX - 2), b"abcdefgh");
        assert_eq!(shadow.known(0, GpuVa(u64::MAX - 2), 8), 3);
        assert!(!shadow.read(0, GpuVa(u64::MAX - 2), &mut [0; 8]));
    }
}
