//! Moves of bytes: those carried in the pushbuffer, done by a copy engine or by a kernel, and the size from which on each way is taken.
//!
//! The stream does not say whether host memory is pinned. What it shows is *staging*: a copy of pageable memory goes piece by piece
//! through buffers of the driver's, so that its addresses on the device follow each other while those on the host are used again and
//! again. Memory that was used so in one copy is staging memory in all. Everything else is called direct: the engine uses the
//! address that it is given.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::output::names::{direction, for_driver};
use nvcap_decode::decode::event::{
    Context, CopyMode, Direction, InlineContent, LaunchKind, Operation, PartOf,
};
use nvcap_decode::record::ChannelId;

/// The most copies between host and device that are kept until the end, to find staging memory.
const MOST_COPIES: usize = 1 << 20;
/// The most different sizes of one row.
const MOST_SIZES: usize = 1 << 12;
/// The most series that are kept apart. Any further one is kept apart, too, before the first move outside of phases; after it, it counts with these
/// moves.
const MOST_SERIES: usize = 1 << 10;

/// The means by which bytes were moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum How {
    /// Carried in the pushbuffer.
    Inline,
    /// Carried in the pushbuffer, as several lines.
    InlineLines,
    /// Read from memory by a macro of the driver, and written inline.
    Fetched,
    /// By a copy engine, from and to the addresses of the data.
    Engine,
    /// By a copy engine, through staging memory.
    Staged,
    /// By a copy engine, as anything but one run of bytes: in lines, rearranged, compressed.
    Mode(&'static str),
    /// By a kernel of the driver's.
    Kernel,
    /// By the driver on its own account, whichever way.
    For(PartOf),
}

impl std::fmt::Display for How {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Inline => f.write_str("inline"),
            Self::InlineLines => f.write_str("inline, several lines"),
            Self::Fetched => f.write_str("inline, fetched"),
            Self::Engine => f.write_str("copy engine"),
            Self::Staged => f.write_str("copy engine, staged"),
            Self::Mode(mode) => write!(f, "copy engine, {mode}"),
            Self::Kernel => f.write_str("kernel"),
            Self::For(part) => f.write_str(for_driver(*part)),
        }
    }
}

/// Word that rows of memsets have in the place of a copy's direction.
pub(super) const MEMSET: &str = "memset";
/// Word for a copy whose direction is not known.
const COPY: &str = "copy";

/// Key of a row: a series of phases, what was moved ([`MEMSET`] or a copy's direction), and the means.
pub(super) type Row = (Option<Arc<str>>, &'static str, How);

/// The moves of one row.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    pub count: u64,
    pub bytes: u64,
    /// Number of moves of each size; of a staged copy the size of the whole.
    pub sizes: BTreeMap<u64, u64>,
    /// Number of moves among `count` whose size is not known.
    pub unknown: u64,
    /// True if not all sizes are in `sizes`.
    pub more_sizes: bool,
    /// The largest piece of the moves that were made in several pieces, bytes.
    pub piece: Option<u64>,
    /// Number of moves that were made in several pieces.
    pub in_pieces: u64,
}

impl Tally {
    fn add(&mut self, bytes: Option<u64>) {
        self.count += 1;
        let Some(bytes) = bytes else {
            self.unknown += 1;
            return;
        };
        self.bytes = self.bytes.saturating_add(bytes);
        if self.sizes.len() >= MOST_SIZES && !self.sizes.contains_key(&bytes) {
            self.more_sizes = true;
            // A size from the middle makes room, so that the least and the largest always stay.
            let inner = self.sizes.keys().nth(MOST_SIZES / 2).copied();
            inner.map(|inner| self.sizes.remove(&inner));
        }
        *self.sizes.entry(bytes).or_default() += 1;
    }

    pub(super) fn least(&self) -> Option<u64> {
        self.sizes.keys().next().copied()
    }

    pub(super) fn most(&self) -> Option<u64> {
        self.sizes.keys().next_back().copied()
    }

    /// The largest size below this one.
    pub(super) fn below(&self, size: u64) -> Option<u64> {
        self.sizes.range(..size).next_back().map(|(size, _)| *size)
    }
}

/// A copy between host and device by a copy engine.
#[derive(Clone, Copy, Debug)]
struct HostCopy {
    /// Its series, by its place in `Moves::series`.
    series: u32,
    channel: ChannelId,
    pid: u32,
    what: &'static str,
    device: u64,
    host: u64,
    bytes: u64,
}

impl HostCopy {
    /// Tells whether `next` goes on where this one ended on the device.
    fn goes_on_in(&self, next: &Self) -> bool {
        self.channel == next.channel
            && self.series == next.series
            && self.what == next.what
            && self.pid == next.pid
            && self.device.checked_add(self.bytes) == Some(next.device)
    }
}

/// All moves of a trace.
#[derive(Debug, Default)]
pub(super) struct Moves {
    rows: BTreeMap<Row, Tally>,
    copies: Vec<HostCopy>,
    /// Number of copies that were not kept for the search for staging memory, because there were too many.
    unsorted: u64,
    series: Vec<Option<Arc<str>>>,
}

/// The name of a phase without the number at its end: `h2d_pinned_4096` and `h2d_pinned_8192` are a series.
fn series_of(phase: &str) -> &str {
    let name = phase.trim_end_matches(|c: char| c.is_ascii_digit());
    let short = name.strip_suffix(['_', '-', '.', '=', ':']).unwrap_or("");
    if short.is_empty() || name.len() == phase.len() {
        phase
    } else {
        short
    }
}

impl Moves {
    pub(super) fn add(&mut self, c: &Context, entry: u32, op: &Operation) {
        if let Some(part) = c.part_of(entry) {
            return self.part(c, part, op);
        }
        match op {
            Operation::Copy(copy) if copy.dst.is_some() && copy.bytes > 0 => match copy.src {
                None => self.row(c, MEMSET, How::Engine).add(Some(copy.bytes)),
                Some(src) => {
                    let what = copy.direction.map_or(COPY, direction);
                    if copy.mode != CopyMode::Linear {
                        let how = How::Mode(copy.mode.name());
                        return self.row(c, what, how).add(Some(copy.bytes));
                    }
                    let dst = copy.dst.unwrap_or_default();
                    let (host, device) = match copy.direction {
                        Some(Direction::HostToDevice) => (src, dst),
                        Some(Direction::DeviceToHost) => (dst, src),
                        _ => return self.row(c, what, How::Engine).add(Some(copy.bytes)),
                    };
                    if self.copies.len() >= MOST_COPIES {
                        self.unsorted += 1;
                        return self.row(c, what, How::Engine).add(Some(copy.bytes));
                    }
                    let series = self.number(c);
                    self.copies.push(HostCopy {
                        series,
                        channel: c.channel,
                        pid: c.at.pid,
                        what,
                        device: device.0,
                        host: host.0,
                        bytes: copy.bytes,
                    });
                }
            },
            Operation::Inline(i) if i.content == Some(InlineContent::Data) => {
                let what = match i.fill {
                    Some(_) => MEMSET,
                    None => direction(i.direction),
                };
                let how = match (i.src, i.lines) {
                    (Some(_), _) => How::Fetched,
                    (None, 0 | 1) => How::Inline,
                    (None, _) => How::InlineLines,
                };
                self.row(c, what, how).add(Some(i.bytes));
            }
            Operation::Launch(l) => {
                let what = match l.kind {
                    LaunchKind::DriverMemset => MEMSET,
                    LaunchKind::DriverCopy => direction(l.copy_direction()),
                    _ => return,
                };
                let bytes = l.moves.and_then(|m| m.bytes);
                self.row(c, what, How::Kernel).add(bytes);
            }
            _ => {}
        }
    }

    /// Bytes that the driver moves on its own account.
    fn part(&mut self, c: &Context, part: PartOf, op: &Operation) {
        let (what, bytes) = match op {
            Operation::Copy(copy) if copy.dst.is_some() && copy.bytes > 0 => match copy.src {
                None => (MEMSET, copy.bytes),
                Some(_) => (copy.direction.map_or(COPY, direction), copy.bytes),
            },
            Operation::Inline(i) => match i.fill {
                Some(_) => (MEMSET, i.bytes),
                None => (direction(i.direction), i.bytes),
            },
            _ => return,
        };
        self.row(c, what, How::For(part)).add(Some(bytes));
    }

    fn row(&mut self, c: &Context, what: &'static str, how: How) -> &mut Tally {
        let series = self.number(c);
        self.row_of(series, what, how)
    }

    fn row_of(&mut self, series: u32, what: &'static str, how: How) -> &mut Tally {
        let series = self.series.get(series as usize).cloned().flatten();
        self.rows.entry((series, what, how)).or_default()
    }

    /// Returns the number of the series that the event's phase belongs to. Events of one series come one after the other, so the newest series is
    /// tried first.
    fn number(&mut self, c: &Context) -> u32 {
        let name = c.phase.as_deref().map(series_of);
        let known = self.series.iter().rposition(|s| s.as_deref() == name);
        let number = known.unwrap_or_else(|| {
            let unnamed = self.series.iter().position(Option::is_none);
            if let (true, Some(unnamed)) = (self.series.len() >= MOST_SERIES, unnamed) {
                return unnamed;
            }
            self.series.push(name.map(Arc::from));
            self.series.len() - 1
        });
        number as u32
    }

    /// Counts the kept copies between host and device as staged or direct, and gives all rows. It may be called again.
    pub(super) fn finish(&mut self) -> &BTreeMap<Row, Tally> {
        let mut copies = std::mem::take(&mut self.copies);
        // Stable: the copies of a channel stay in their order.
        copies.sort_by_key(|c| c.channel);
        let staging = staging_of(&copies);
        let is_staged = |c: &HostCopy| {
            let before = staging.range(..=(c.pid, c.host)).next_back();
            before.is_some_and(|((pid, from), bytes)| *pid == c.pid && c.host - from < *bytes)
        };
        for run in copies.chunk_by(HostCopy::goes_on_in) {
            for part in run.chunk_by(|a, b| is_staged(a) && is_staged(b)) {
                let Some(first) = part.first() else { continue };
                let how = match is_staged(first) {
                    true => How::Staged,
                    false => How::Engine,
                };
                let row = self.row_of(first.series, first.what, how);
                row.add(Some(part.iter().map(|c| c.bytes).sum()));
                if part.len() > 1 {
                    row.in_pieces += 1;
                    row.piece = row.piece.max(part.iter().map(|c| c.bytes).max());
                }
            }
        }
        &self.rows
    }

    /// Copies between host and device that are counted as direct because there were too many to look at.
    pub(super) fn unsorted(&self) -> u64 {
        self.unsorted
    }
}

/// The staging buffers: their bytes, by process and host address. A copy was staged if its pieces follow each other on the device and use
/// a host address more than once.
fn staging_of(copies: &[HostCopy]) -> BTreeMap<(u32, u64), u64> {
    let mut staging = BTreeMap::new();
    for run in copies.chunk_by(HostCopy::goes_on_in) {
        let mut used: BTreeMap<u64, (u64, u32)> = BTreeMap::new();
        for c in run {
            let (bytes, times) = used.entry(c.host).or_default();
            *bytes = c.bytes.max(*bytes);
            *times += 1;
        }
        // Buffers are used in turn: if one was used twice, all host memory of this run is staging memory.
        if let Some(first) = run.first()
            && used.values().any(|(_, times)| *times > 1)
        {
            for (host, (bytes, _)) in used {
                let known: &mut u64 = staging.entry((first.pid, host)).or_default();
                *known = bytes.max(*known);
            }
        }
    }
    staging
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_is_a_phase_without_its_number() {
        for (phase, series) in [
            ("h2d_pinned_4096", "h2d_pinned"),
            ("h2d-8", "h2d"),
            ("empty_x100", "empty_x100"),
            ("memcpy2d", "memcpy2d"),
            ("vadd_4096x256", "vadd_4096x256"),
            ("n=12", "n"),
            ("12", "12"),
            ("_12", "_12"),
            ("", ""),
        ] {
            assert_eq!(series_of(phase), series, "{phase}");
        }
    }

    fn copy(device: u64, host: u64, bytes: u64) -> HostCopy {
        HostCopy {
            series: 0,
            channel: ChannelId(3),
            pid: 7,
            what: "h2d",
            device,
            host,
            bytes,
        }
    }

    /// Way of the moves, sizes with the count of each, and the largest piece.
    type Row = (How, Vec<(u64, u64)>, Option<u64>);

    fn rows_of(copies: Vec<HostCopy>) -> Vec<Row> {
        let mut moves = Moves {
            copies,
            series: vec![None],
            ..Moves::default()
        };
        let rows = moves.finish().iter();
        rows.map(|(row, t)| {
            (
                row.2,
                t.sizes.iter().map(|(s, n)| (*s, *n)).collect(),
                t.piece,
            )
        })
        .collect()
    }

    #[test]
    fn buffers_that_are_used_in_turn_are_staging_memory_in_every_copy() {
        let rows = rows_of(vec![
            // Small ones through the same buffer, before and after.
            copy(0x9000, 0x100, 0x20),
            // Four pieces of one copy.
            copy(0x1000, 0x100, 0x100),
            copy(0x1100, 0x800, 0x100),
            copy(0x1200, 0x100, 0x100),
            copy(0x1300, 0x800, 0x80),
            // Two pieces: no buffer is used again here, but both are known.
            copy(0x5000, 0x100, 0x100),
            copy(0x5100, 0x800, 0x100),
            copy(0x9000, 0x840, 0x20),
            // Elsewhere, and just behind a buffer.
            copy(0x9000, 0x4000, 0x4000),
            copy(0x9000, 0x900, 0x10),
        ]);
        assert_eq!(
            rows,
            [
                (How::Engine, vec![(0x10, 1), (0x4000, 1)], None),
                (
                    How::Staged,
                    vec![(0x20, 2), (0x200, 1), (0x380, 1)],
                    Some(0x100)
                ),
            ]
        );
    }

    #[test]
    fn staging_buffers_may_lie_one_behind_the_other() {
        let rows = rows_of(vec![
            copy(0x1000, 0x100, 0x100),
            copy(0x1100, 0x200, 0x100),
            copy(0x1200, 0x100, 0x100),
            copy(0x1300, 0x200, 0x100),
        ]);
        assert_eq!(rows, [(How::Staged, vec![(0x400, 1)], Some(0x100))]);
    }

    #[test]
    fn copies_that_follow_each_other_are_no_staging_by_that() {
        // Host and device both go on: one array in pieces of the program's own. And two buffers, each used once.
        let rows = rows_of(vec![
            copy(0x1000, 0x100, 0x100),
            copy(0x1100, 0x200, 0x100),
            copy(0x5000, 0x8000, 0x100),
            copy(0x5100, 0x9000, 0x100),
        ]);
        assert_eq!(rows, [(How::Engine, vec![(0x100, 4)], None)]);
        // Equal addresses of another process are other memory.
        let mut other = copy(0x1000, 0x100, 8);
        other.pid = 8;
        let rows = rows_of(vec![
            copy(0x1000, 0x100, 0x100),
            copy(0x1100, 0x100, 0x100),
            other,
        ]);
        assert_eq!(rows[0], (How::Engine, vec![(8, 1)], None));
        assert_eq!(rows[1].0, How::Staged);
    }

    #[test]
    fn of_too_many_sizes_the_extremes_stay() {
        let mut tally = Tally::default();
        for n in 0..3 * MOST_SIZES as u64 {
            tally.add(Some(1_000_000 - n));
        }
        tally.add(Some(5));
        tally.add(None);
        assert!(tally.sizes.len() <= MOST_SIZES && tally.more_sizes);
        assert_eq!((tally.least(), tally.most()), (Some(5), Some(1_000_000)));
        assert_eq!((tally.unknown, tally.below(5)), (1, None));
    }
}
