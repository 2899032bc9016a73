//! A search of a process's private memory for words: the addresses of programs, and the heads of cubin images.
//!
//! Memory is read with `process_vm_readv`, which pins pages and copies from them directly. It is twice as fast as `/proc/PID/mem`, and
//! reads no device registers, wherever a word may lead. Large searches are split over threads.

use std::{
    fs::File,
    io,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crate::enrich::present;
use nvcap_decode::cubin::HEADS;
use nvcap_decode::wire::words::u64s;
pub(crate) use nvcap_process::procfs::{
    self,
    mem::{Ordinary, ReadMemory},
};
use nvcap_process::{clock, memory::maps};

/// Bytes that are read at once: they stay in a core's cache while they are searched.
const CHUNK: usize = 512 << 10;
/// Number of bytes that a thread takes on at a time.
const PIECE: u64 = 8 << 20;
/// The most threads of one search.
const MOST_THREADS: usize = 12;
/// Least number of bytes of a search that is split.
const SPLIT_FROM: u64 = 32 << 20;
/// Largest area that may hold records. Larger ones are reserved address space, or model weights in host memory.
const MOST_AREA: u64 = 16 << 30;
/// The most bytes that are searched. The smallest areas are searched first.
const MOST_SEARCHED: u64 = 32 << 30;
/// The most places that are kept of one program. (Each node of a graph holds its program's address twice.)
const MOST_PLACES: usize = 1 << 16;
/// The most images.
const MOST_IMAGES: usize = 1 << 16;
/// Distance from a program's address within which words may be other programs' addresses. (libcuda's areas for code lie some GB apart.)
const NEAR: u64 = 4 << 30;
/// The most words near programs' addresses that are noted.
pub(super) const MOST_NEAR: usize = 1 << 17;
/// Alignment that is assumed of all programs, if all known ones have it.
const ALIGNMENT: u64 = 256;

/// A range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Run {
    /// First address.
    pub(crate) start: u64,
    /// Address behind the last.
    pub(crate) end: u64,
}

impl Run {
    pub(super) fn len(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }
}

/// The memory of a process, or a test's substitute.
pub(crate) trait Space: ReadMemory + Sync {
    /// Reads as many bytes from `at` on as can be read; returns their number.
    fn read_some(&self, at: u64, to: &mut [u8]) -> usize;

    /// Reads an 8-byte word at each address; 0 where it cannot be read.
    fn words(&self, at: &[u64]) -> Vec<u64> {
        at.iter().map(|a| self.word(*a).unwrap_or(0)).collect()
    }
}

impl Space for Ordinary {
    fn read_some(&self, at: u64, to: &mut [u8]) -> usize {
        self.read(&[(at, to.len())], to).unwrap_or(0)
    }

    fn words(&self, at: &[u64]) -> Vec<u64> {
        let mut all = Vec::with_capacity(at.len());
        for group in at.chunks(512) {
            let ranges: Vec<_> = group.iter().map(|a| (*a, 8)).collect();
            let mut bytes = vec![0; group.len() * 8];
            match self.read(&ranges, &mut bytes) {
                Ok(n) if n == bytes.len() => all.extend(u64s(&bytes)),
                _ => all.extend(group.iter().map(|a| self.word(*a).unwrap_or(0))),
            }
        }
        all
    }
}

/// The private memory of a process, in which libcuda may have allocated. The smallest areas come first.
///
/// # Errors
/// Those of reading `/proc/PID/maps`.
pub(crate) fn areas(pid: u32) -> io::Result<Vec<Run>> {
    let mut areas = maps::areas(pid)?;
    areas.retain(|a| a.is_own_memory() && a.end - a.start <= MOST_AREA);
    areas.sort_by_key(|a| a.end - a.start);
    let run = |a: &maps::Area| Run {
        start: a.start,
        end: a.end,
    };
    Ok(areas.iter().map(run).collect())
}

/// Returns the parts of these areas that are present.
pub(crate) fn present(pid: u32, areas: &[Run]) -> Vec<Run> {
    let pages = File::open(procfs::of_process(pid, "pagemap")).ok();
    let mut all = Vec::new();
    let mut searched = 0;
    for area in areas {
        for (start, end) in present::pages(pages.as_ref(), area.start, area.end) {
            if searched < MOST_SEARCHED {
                searched += end - start;
                all.push(Run { start, end });
            }
        }
    }
    all
}

/// The private memory of a process that is present.
///
/// # Errors
/// Those of reading `/proc/PID/maps`.
pub(crate) fn runs(pid: u32) -> io::Result<Vec<Run>> {
    Ok(present(pid, &areas(pid)?))
}

/// Returns the parts of `now` that are not in `before`. Both are without overlaps.
pub(crate) fn without(now: &[Run], before: &[Run]) -> Vec<Run> {
    let mut before = before.to_vec();
    before.sort_unstable();
    let mut all = Vec::new();
    for run in now {
        let mut at = run.start;
        let first = before.partition_point(|b| b.end <= run.start);
        for b in before.iter().skip(first).take_while(|b| b.start < run.end) {
            if b.start > at {
                all.push(Run {
                    start: at,
                    end: b.start,
                });
            }
            at = at.max(b.end);
        }
        if at < run.end {
            all.push(Run {
                start: at,
                end: run.end,
            });
        }
    }
    all
}

/// Returns the parts of `runs` that are in `areas`. Both are without overlaps.
pub(crate) fn within(runs: &[Run], areas: &[Run]) -> Vec<Run> {
    let mut areas = areas.to_vec();
    areas.sort_unstable();
    let mut all = Vec::new();
    for run in runs {
        let first = areas.partition_point(|a| a.end <= run.start);
        let meet = areas.iter().skip(first).take_while(|a| a.start < run.end);
        all.extend(meet.map(|a| Run {
            start: run.start.max(a.start),
            end: run.end.min(a.end),
        }));
    }
    all
}

/// The memory within `reach` bytes of each of these places, which ascend.
pub(crate) fn windows(places: impl Iterator<Item = u64>, reach: u64) -> Vec<Run> {
    let mut all: Vec<Run> = Vec::new();
    for at in places {
        let (start, end) = (at.saturating_sub(reach) & !7, at.saturating_add(reach) & !7);
        match all.last_mut() {
            Some(last) if start <= last.end => last.end = last.end.max(end),
            _ => all.push(Run { start, end }),
        }
    }
    all
}

/// Takes the first `bytes` bytes.
pub(crate) fn take(runs: &mut Vec<Run>, bytes: u64) -> Vec<Run> {
    let (mut taken, mut left) = (Vec::new(), bytes);
    let mut whole = 0;
    for run in runs.iter_mut() {
        if left == 0 {
            break;
        }
        let end = run.end.min(run.start.saturating_add(left));
        let part = Run {
            start: run.start,
            end,
        };
        left -= part.len();
        taken.push(part);
        run.start = end;
        whole += usize::from(run.len() == 0);
    }
    runs.drain(..whole);
    taken
}

/// Results of a search.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ScanResults {
    /// Programs' addresses, each with a place that holds it; in order of the places.
    pub(crate) places: Vec<(u64, u64)>,
    /// Words that may be the addresses of other programs, each with its place; in order.
    pub(crate) near: Vec<(u64, u64)>,
    /// Addresses of images' heads, in order.
    pub(crate) images: Vec<u64>,
    /// Bytes that were searched.
    pub(crate) bytes: u64,
    /// Processor time of the helping threads.
    pub(crate) helpers: Duration,
}

/// The words that are looked for.
struct Needles {
    sorted: Vec<u64>,
    /// Least word that is looked at, and the span from it to the greatest. Most words lie outside.
    first: u64,
    span: u64,
    /// Bits that are 0 in all programs' addresses.
    low: u64,
}

impl Needles {
    fn of(programs: &[u64]) -> Self {
        let mut sorted = programs.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        let (first, span, low) = match (sorted.first(), sorted.last()) {
            (Some(least), Some(greatest)) => {
                // Zeros are everywhere.
                let first = least.saturating_sub(NEAR).max(1);
                let span = greatest.saturating_add(NEAR).saturating_sub(first);
                let bits = sorted.iter().fold(ALIGNMENT, |bits, p| bits | p);
                (first, span, (1 << bits.trailing_zeros()) - 1)
            }
            _ => (u64::MAX, 0, 0),
        };
        Self {
            sorted,
            first,
            span,
            low,
        }
    }

    /// Tells whether a word may be a program's address, or the head of an image. It has no branch, so that many words are tested
    /// together.
    #[inline(always)]
    fn may_be(&self, word: u64) -> bool {
        ((word.wrapping_sub(self.first) <= self.span) & (word & self.low == 0))
            | (word == HEADS[0])
            | (word == HEADS[1])
    }

    /// Returns the distance of a word from the nearest program, B.
    fn distance(&self, word: u64) -> u64 {
        let (before, behind) = self
            .sorted
            .split_at(self.sorted.partition_point(|p| *p <= word));
        let nearest = [before.last(), behind.first()];
        let distances = nearest.into_iter().flatten().map(|p| p.abs_diff(word));
        distances.min().unwrap_or(u64::MAX)
    }

    /// Searches bytes that lie at `at`.
    #[inline(always)]
    fn search(&self, at: u64, bytes: &[u8], to: &mut ScanResults) {
        const BLOCK: usize = 256;
        for (i, block) in bytes.chunks(BLOCK).enumerate() {
            let mut any = false;
            for word in u64s(block) {
                any |= self.may_be(word);
            }
            if !any {
                continue;
            }
            for (j, word) in u64s(block).enumerate() {
                if !self.may_be(word) {
                    continue;
                }
                let place = at + (i * BLOCK + j * 8) as u64;
                if HEADS.contains(&word) {
                    to.images.push(place);
                    continue;
                }
                match self.distance(word) {
                    0 => to.places.push((word, place)),
                    d if d <= NEAR && to.near.len() < MOST_NEAR => to.near.push((word, place)),
                    _ => {}
                }
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn search_wide(&self, at: u64, bytes: &[u8], to: &mut ScanResults) {
        self.search(at, bytes, to);
    }

    fn run(&self, space: &dyn Space, run: Run, buffer: &mut [u8], to: &mut ScanResults) {
        #[cfg(target_arch = "x86_64")]
        let wide = std::arch::is_x86_feature_detected!("avx2");
        let mut at = run.start;
        while at < run.end {
            let len = usize::try_from(run.end - at)
                .unwrap_or(usize::MAX)
                .min(buffer.len());
            let Some(part) = buffer.get_mut(..len) else {
                return;
            };
            let n = space.read_some(at, part) & !7;
            if n == 0 {
                // A page that went away.
                at += 4096;
                continue;
            }
            let part = part.get(..n).unwrap_or_default();
            #[cfg(target_arch = "x86_64")]
            if wide {
                // SAFETY: the processor has AVX2.
                unsafe { self.search_wide(at, part, to) };
                at += n as u64;
                to.bytes += n as u64;
                continue;
            }
            self.search(at, part, to);
            at += n as u64;
            to.bytes += n as u64;
        }
    }
}

/// Searches runs of memory for the addresses of `programs` and for images.
pub(crate) fn search(space: &dyn Space, runs: &[Run], programs: &[u64]) -> ScanResults {
    let needles = Needles::of(programs);
    let mut pieces = Vec::new();
    for run in runs {
        let mut start = run.start & !7;
        while start < run.end {
            let end = run.end.min(start + PIECE);
            pieces.push(Run { start, end });
            start = end;
        }
    }
    let total: u64 = runs.iter().map(Run::len).sum();
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let threads = if total < SPLIT_FROM {
        1
    } else {
        (cores * 3 / 4).clamp(1, MOST_THREADS)
    };
    let next = AtomicUsize::new(0);
    let whole = Mutex::new(ScanResults::default());
    let work = |helps: bool| {
        let began = thread_cpu();
        let mut buffer = vec![0; CHUNK];
        let mut found = ScanResults::default();
        while let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
            needles.run(space, *piece, &mut buffer, &mut found);
        }
        if let Ok(mut whole) = whole.lock() {
            whole.places.append(&mut found.places);
            whole.near.append(&mut found.near);
            whole.images.append(&mut found.images);
            whole.bytes += found.bytes;
            if helps {
                whole.helpers += thread_cpu().saturating_sub(began);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            // Threads inherit the niceness of the one that makes them.
            let _ = thread::Builder::new()
                .name("nvcap-names".into())
                .spawn_scoped(scope, || work(true));
        }
        work(false);
    });
    let mut found = whole.into_inner().unwrap_or_default();
    found
        .places
        .sort_unstable_by_key(|(program, place)| (*program, *place));
    bound(&mut found.places);
    if found.near.len() > MOST_NEAR {
        let distance = |(word, _): &(u64, u64)| needles.distance(*word);
        found
            .near
            .select_nth_unstable_by_key(MOST_NEAR - 1, distance);
        found.near.truncate(MOST_NEAR);
    }
    found.near.sort_unstable();
    found.images.sort_unstable();
    found.images.truncate(MOST_IMAGES);
    found
}

/// The clocks by which searches are bounded. Tests have their own.
#[derive(Clone, Copy)]
pub(super) struct Clocks {
    pub(super) now: fn() -> Instant,
    /// Processor time of this thread.
    pub(super) cpu: fn() -> Duration,
}

impl Clocks {
    pub(super) const MACHINE: Self = Self {
        now: Instant::now,
        cpu: thread_cpu,
    };
}

/// A stopwatch of this thread's processor time.
pub(super) struct Cpu {
    began: Duration,
    clock: fn() -> Duration,
}

impl Cpu {
    pub(super) fn by(clock: fn() -> Duration) -> Self {
        Self {
            began: clock(),
            clock,
        }
    }

    pub(super) fn elapsed(&self) -> Duration {
        (self.clock)().saturating_sub(self.began)
    }

    pub(super) fn restart(&mut self) {
        *self = Self::by(self.clock);
    }
}

/// Processor time of this thread.
pub(super) fn thread_cpu() -> Duration {
    Duration::from_nanos(clock::thread_cpu())
}

/// Keeps at most [`MOST_PLACES`] of each program.
fn bound(places: &mut Vec<(u64, u64)>) {
    let (mut last, mut count) = (None, 0);
    places.retain(|(program, _)| {
        count = if last == Some(*program) { count + 1 } else { 1 };
        last = Some(*program);
        count <= MOST_PLACES
    });
}

#[cfg(test)]
mod tests {
    use super::super::tests::Fake;
    use super::*;

    fn run(start: u64, end: u64) -> Run {
        Run { start, end }
    }

    #[test]
    fn what_is_new() {
        let before = [run(10, 20), run(30, 40)];
        assert_eq!(
            without(&[run(0, 50)], &before),
            [run(0, 10), run(20, 30), run(40, 50)]
        );
        assert_eq!(without(&[run(12, 18), run(30, 40)], &before), []);
        assert_eq!(without(&[run(15, 35)], &before), [run(20, 30)]);
        assert_eq!(without(&[run(5, 6)], &[]), [run(5, 6)]);
    }

    #[test]
    fn parts_of_memory() {
        let areas = [run(100, 200), run(300, 400)];
        assert_eq!(
            within(&[run(0, 150), run(350, 500)], &areas),
            [run(100, 150), run(350, 400)]
        );
        assert_eq!(within(&[run(0, 1000)], &areas), areas);
        assert_eq!(within(&[run(200, 300)], &areas), []);
        assert_eq!(
            windows([8, 96, 400].into_iter(), 64),
            [run(0, 160), run(336, 464)]
        );
        let mut rest = vec![run(0, 100), run(200, 250), run(300, 400)];
        assert_eq!(take(&mut rest, 120), [run(0, 100), run(200, 220)]);
        assert_eq!(rest, [run(220, 250), run(300, 400)]);
        assert_eq!(take(&mut rest, 1000), [run(220, 250), run(300, 400)]);
        assert_eq!(rest, []);
        assert_eq!(take(&mut rest, 8), []);
    }

    #[test]
    fn words_are_found_over_the_borders_of_pieces() {
        let mut fake = Fake::new(0x10_0000, (PIECE as usize) * 2 + 4096);
        let program = 0x7f00_0012_3400;
        let places = [
            0x10_0000,
            0x10_0000 + PIECE - 8,
            0x10_0000 + PIECE,
            0x10_0000 + 2 * PIECE + 4088,
        ];
        for place in places {
            fake.put(place, program);
        }
        // Near, but none of them.
        fake.put(0x10_0100, program + 0x100);
        fake.put(0x10_0200, program + 8);
        fake.put(0x10_0040, HEADS[1]);
        let found = search(&fake, &[fake.run()], &[program, program + 0x4000]);
        assert_eq!(found.images, [0x10_0040]);
        assert_eq!(found.places, places.map(|p| (program, p)));
        // Aligned as the programs are.
        assert_eq!(found.near, [(program + 0x100, 0x10_0100)]);
        assert_eq!(found.bytes, 2 * PIECE + 4096);
        let found = search(&fake, &[fake.run()], &[program - NEAR + 0x100]);
        assert_eq!(
            (found.places, found.near),
            (vec![], {
                let mut near = places.map(|p| (program, p)).to_vec();
                near.push((program + 0x100, 0x10_0100));
                near
            })
        );
        let found = search(&fake, &[fake.run()], &[program - NEAR - 0x100]);
        assert_eq!(found.near, []);
        let found = search(&fake, &[fake.run()], &[]);
        assert_eq!((found.places, found.near), (vec![], vec![]));
        assert_eq!(found.images, [0x10_0040]);
    }

    #[test]
    fn a_page_that_is_gone_hides_nothing_else() {
        let mut fake = Fake::new(0x10_0000, 3 * 4096);
        fake.put(0x10_2ff8, 77 << 40);
        fake.hole = Some(run(0x10_1000, 0x10_2000));
        let found = search(&fake, &[fake.run()], &[77 << 40]);
        assert_eq!(found.places, [(77 << 40, 0x10_2ff8)]);
    }
}
