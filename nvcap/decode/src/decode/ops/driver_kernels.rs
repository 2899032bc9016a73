//! The driver's own kernels, recognised by their form: memsets, copies within the device, and kernels that continue a CUDA graph.
//!
//! Measured with CUDA 13.0 and driver 580 on Hopper against CUPTI (docs/decoding.md has the evidence). A QMD of libcuda's without any
//! shared memory is the driver's, because every kernel that is compiled for Ampere and later has at least the 1 KiB that is reserved for
//! the system. A client without CUDA may leave that out; its kernels are the program's. libcuda's QMDs are recognised by a constant bank
//! that only libcuda uses. Arguments, block and grid together show the effect of a driver's kernel.

use crate::decode::{
    event::{LaunchKind, Moves},
    shadow::{Shadow, Space},
    view::View,
};
use crate::wire::GpuVa;
use crate::wire::{
    graph_table::{self, GraphEntry, GraphTable},
    words::{u32_at, u64_at},
};

/// First compute class whose kernels all have shared memory.
const RESERVES_SHARED: u32 = 0xc6c0;
/// The constant bank with libcuda's own tables (64 KiB). Every QMD of libcuda's that has a program has it, for libcuda's kernels and for
/// the program's.
const LIBCUDA_BANK: u32 = 7;
/// Shared memory of a block that the system reserves since Ampere (CUDA: reservedSharedMemPerBlock), bytes.
const RESERVED: u32 = 1024;

/// Splits SHARED_MEMORY_SIZE into the program's part and the system's.
pub(in crate::decode) fn split_shared(class: u32, size: u32) -> (u32, u32) {
    match size.checked_sub(RESERVED) {
        Some(asked) if class >= RESERVES_SHARED => (asked, RESERVED),
        _ => (size, 0),
    }
}

/// Returns the origin of a kernel (the program or the driver), and the effect of a memset or copy by the driver.
pub(in crate::decode) fn kind(class: u32, view: &View, args: &[u8]) -> (LaunchKind, Option<Moves>) {
    if view.null || view.grid.contains(&0) {
        return (LaunchKind::Companion, None);
    }
    let is_libcudas = { view.constant_banks.iter() }.any(|bank| bank.index == LIBCUDA_BANK);
    if class < RESERVES_SHARED || view.shared_bytes != 0 || !is_libcudas {
        return (LaunchKind::User, None);
    }
    let words = Words(args);
    if let Some(moves) = memset(view.grid, view.block, words) {
        return (LaunchKind::DriverMemset, Some(moves));
    }
    let (grid, block) = (view.grid, view.block);
    let moves = copy(grid, block, words)
        .or_else(|| deep_copy(grid, block, words))
        .or_else(|| array_copy(grid, block, words));
    match moves {
        Some(moves) => (LaunchKind::DriverCopy, Some(moves)),
        None => (LaunchKind::Driver, None),
    }
}

/// Kernel arguments as 64-bit words.
#[derive(Clone, Copy)]
struct Words<'a>(&'a [u8]);

impl Words<'_> {
    fn at(self, i: usize) -> u64 {
        u64_at(self.0, i * 8).unwrap_or(0)
    }

    fn len(self) -> usize {
        self.0.len()
    }
}

fn is_address(a: u64) -> bool {
    (0x1_0000..1 << 57).contains(&a)
}

/// Recognises a memset by its arguments {address, pattern of 32 bits, elements of a row, pitch}. One row has 512 threads of 16 bytes each;
/// several rows have one block each.
fn memset(grid: [u32; 3], block: [u32; 3], args: Words<'_>) -> Option<Moves> {
    let (dst, value, elements, pitch) = (args.at(0), args.at(1), args.at(2), args.at(3));
    // The pattern has 32 bits; the word behind it is left over from other use.
    if args.len() != 32 || !is_address(dst) || elements == 0 {
        return None;
    }
    if block[1..] != [1, 1] || grid[2] != 1 {
        return None;
    }
    let threads = |row: u64| row.div_ceil(16).next_multiple_of(32).min(512);
    // The driver writes the widest element that address, pitch and length allow.
    let size = [4u64, 2, 1].into_iter().find(|size| {
        let row = elements.saturating_mul(*size);
        let aligned = dst.is_multiple_of(*size) && pitch.is_multiple_of(*size);
        let fits = if pitch == 0 {
            let blocks = u64::from(grid[0]) == (row / 8192).max(1) && grid[1] == 1;
            // A single block has one thread for each whole 16 bytes.
            blocks
                && (grid[0] > 1
                    || u64::from(block[0]) == (row / 16).min(512)
                    || u64::from(block[0]) == threads(row))
        } else {
            u64::from(block[0]) == threads(row)
        };
        aligned && fits
    });
    let rows = if pitch == 0 { 1 } else { u64::from(grid[1]) };
    size.map(|size| Moves {
        dst: Some(GpuVa(dst)),
        src: None,
        bytes: elements.checked_mul(size * rows),
        value: Some(value as u32),
    })
}

fn copy(grid: [u32; 3], block: [u32; 3], args: Words<'_>) -> Option<Moves> {
    let (dst, src) = (args.at(0), args.at(1));
    if !is_address(dst) || !is_address(src) {
        return None;
    }
    let one_row = block == [256, 1, 1] && grid[1..] == [1, 1];
    let blocks = u64::from(grid[0]);
    let bytes = match args.len() {
        // Each block copies 4 KiB. More than 65,535 blocks are arranged in two or more rows (256 MiB on an H200: 32768x2).
        16 if block == [256, 1, 1] && grid[2] == 1 => Some(blocks * u64::from(grid[1]) * 4096),
        // One thread for each element: 4 bytes if everything is aligned to 4, else single bytes. For small copies, nothing in the launch
        // distinguishes a few aligned elements from the same number of bytes.
        24 if one_row && blocks == args.at(2).div_ceil(256) => {
            let elements = args.at(2);
            if !(dst | src).is_multiple_of(4) {
                Some(elements)
            } else if elements.is_multiple_of(4) {
                elements.checked_mul(4)
            } else {
                None
            }
        }
        // Words of 4 bytes, then single bytes.
        40 if one_row => {
            let (words, rest) = (args.at(3), args.at(4));
            let threads = words.saturating_add(rest);
            (blocks == threads.div_ceil(256)).then_some(())?;
            words.checked_mul(4).and_then(|n| n.checked_add(rest))
        }
        // Arguments of a copy by rows: bytes of a row, number of rows, pitches.
        56 if block[1..] == [1, 1] => args.at(2).checked_mul(args.at(3)),
        _ => return None,
    };
    Some(Moves {
        dst: Some(GpuVa(dst)),
        src: Some(GpuVa(src)),
        bytes,
        value: None,
    })
}

/// Recognises a copy between three-dimensional linear memory by its arguments: {dst, pitch, height}, {src, pitch, height}, bytes of a row.
/// Each row of the grid is one row of the copy.
fn deep_copy(grid: [u32; 3], block: [u32; 3], args: Words<'_>) -> Option<Moves> {
    let word = |i: usize| u32_at(args.0, i * 4).map(u64::from);
    let (dst, src) = (args.at(0), args.at(3));
    let (dst_pitch, src_pitch) = (args.at(1), args.at(4));
    let (dst_height, src_height, width) = (word(4)?, word(10)?, word(11)?);
    let [across, rows, layers] = grid.map(u64::from);
    let fits = args.len() == 48
        && is_address(dst)
        && is_address(src)
        && block[1..] == [1, 1]
        && (1..=dst_pitch.min(src_pitch)).contains(&width)
        && (1..=dst_height.min(src_height)).contains(&rows)
        && (across * u64::from(block[0])).saturating_mul(16) >= width;
    fits.then(|| Moves {
        dst: Some(GpuVa(dst)),
        src: Some(GpuVa(src)),
        bytes: (width * rows).checked_mul(layers),
        value: None,
    })
}

/// Recognises a copy from an array, to an array or between two. Threads are in squares of eight, one for each element of 4, 2 or 1 bytes.
/// The arguments are {surface, -, address, x, bytes of a row, pitch, -, y, rows} in both directions, or {surface, -, surface, -, bytes of a
/// row, rows, ...}.
fn array_copy(grid: [u32; 3], block: [u32; 3], args: Words<'_>) -> Option<Moves> {
    let word = |i: usize| u32_at(args.0, i * 4);
    if args.len() != 40 || block != [8, 8, 1] || grid[2] != 1 || word(1)? != 0 {
        return None;
    }
    let covers = |width: u32, rows: u32| {
        let mut elements = [4, 2, 1].into_iter().filter(|e| width.is_multiple_of(*e));
        rows > 0
            && grid[1] == rows.div_ceil(8)
            && elements.any(|e| width > 0 && grid[0] == (width / e).div_ceil(8))
    };
    let linear = covers(word(5)?, word(9)?) && is_address(args.at(1)) && word(6)? >= word(5)?;
    let (width, rows) = match linear {
        true => (word(5)?, word(9)?),
        false if word(3)? == 0 && covers(word(4)?, word(5)?) => (word(4)?, word(5)?),
        false => return None,
    };
    Some(Moves {
        dst: None,
        src: None,
        bytes: Some(u64::from(width) * u64::from(rows)),
        value: None,
    })
}

/// A kernel of the driver that continues a graph. It works on a table of the graph's parts in GPU memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::decode) struct GraphKernel(pub(in crate::decode) GraphTable);

/// A successor that an entry of the driver's graph table starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::decode) enum Successor {
    /// A QMD, and the number of entries that lead to it: the last of them starts it.
    Qmd { entry: u32, address: u64, of: u32 },
    /// A conditional node: the GPU decides what runs.
    Conditional,
}

/// The most successors of an entry that are followed.
const MOST_SUCCESSORS: u32 = 4096;

impl GraphKernel {
    /// Tells whether a QMD may describe a kernel that continues a graph, at less cost than reading the kernel's arguments.
    pub(in crate::decode) fn may_be(view: &View) -> bool {
        GraphTable::may_be_of(view.grid, view.block)
    }

    /// Recognises a kernel that continues a graph by `args`. The proof is the table's entry, which names this QMD.
    pub(in crate::decode) fn of(
        qmd: u64,
        view: &View,
        args: &[u8],
        shadow: &mut Shadow,
        space: Space,
    ) -> Option<Self> {
        let kernel = Self(GraphTable::of(view.grid, view.block, args)?);
        let entry = kernel.entry(kernel.0.index, shadow, space)?;
        (entry.qmd == qmd).then_some(kernel)
    }

    /// Returns the successors of the kernel's entry.
    pub(in crate::decode) fn successors(self, shadow: &mut Shadow, space: Space) -> Vec<Successor> {
        let Some(own) = self.entry(self.0.index, shadow, space) else {
            return Vec::new();
        };
        let edge = |i: u32, shadow: &mut Shadow| {
            let at = self.0.edge_at(own.first.checked_add(i)?)?;
            let mut word = [0; 4];
            shadow
                .read(space, GpuVa(at), &mut word)
                .then(|| u32_at(&word, 0))?
        };
        let mut all = Vec::new();
        for i in 0..own.successors.min(MOST_SUCCESSORS) {
            let Some(next) = edge(i, shadow) else { break };
            let Some(entry) = self.entry(next, shadow, space) else {
                break;
            };
            all.push(if entry.conditional {
                Successor::Conditional
            } else {
                Successor::Qmd {
                    entry: next,
                    address: entry.qmd,
                    of: entry.predecessors,
                }
            });
        }
        all
    }

    fn entry(self, index: u32, shadow: &mut Shadow, space: Space) -> Option<GraphEntry> {
        let at = self.0.entry_at(index)?;
        let mut bytes = [0; graph_table::KNOWN];
        shadow
            .read(space, GpuVa(at), &mut bytes)
            .then(|| GraphEntry::read(&bytes))?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text
            .bytes()
            .filter_map(|b| char::from(b).to_digit(16))
            .map(|d| d as u8)
            .collect();
        digits.chunks(2).map(|d| d[0] << 4 | d[1]).collect()
    }

    /// Test of copies of `tests/gpu/meaning/features.cu` on an H200, driver 580: 64 rows of 1,024 bytes to an array, 32 of 512 from one
    /// (from byte 64 of row 3 on), 100 of 2,048 between two; ten layers of 20 rows of 500 bytes.
    #[test]
    fn copies_of_arrays_and_of_three_dimensions() {
        let to =
            "0300000000000000 00008050dc7f0000 0000000000040000 0008000000000000 0000000040000000";
        let from =
            "0400000000000000 00008050dc7f0000 4000000000020000 0008000000000000 0300000020000000";
        let between =
            "0400000000000000 0300000000000000 0008000064000000 0000000000000000 0000000000000000";
        let deep = "00000030dc7f0000 0008000000000000 2000000000000000 00008050dc7f0000 0004000000000000 40000000f4010000";
        let bytes =
            |of: fn([u32; 3], [u32; 3], Words<'_>) -> Option<Moves>, grid, block, args: &str| {
                of(grid, block, Words(&hex(args))).and_then(|m| m.bytes)
            };
        let array = |grid, block, args: &str| bytes(array_copy, grid, block, args);
        let square = [8, 8, 1];
        assert_eq!(array([32, 8, 1], square, to), Some(65_536));
        assert_eq!(array([16, 4, 1], square, from), Some(16_384));
        assert_eq!(array([64, 13, 1], square, between), Some(204_800));
        // A grid that does not fit the copy, another block, other arguments.
        for (grid, block, args) in [
            ([33, 8, 1], square, to),
            ([32, 9, 1], square, to),
            ([32, 8, 2], square, to),
            ([32, 8, 1], [64, 1, 1], to),
            ([32, 8, 1], square, from),
            ([32, 8, 1], square, &to[..80]),
            (
                [64, 13, 1],
                square,
                &between
                    .replace('3', "5")
                    .replacen("0500000000000000", "0500000001000000", 1),
            ),
        ] {
            assert_eq!(array(grid, block, args), None, "{grid:?} {block:?}");
        }
        let rows = |grid, block, args: &str| bytes(deep_copy, grid, block, args);
        assert_eq!(rows([1, 20, 10], [125, 1, 1], deep), Some(100_000));
        for (grid, block, args) in [
            ([1, 33, 10], [125, 1, 1], deep.to_owned()),
            ([1, 20, 10], [16, 1, 1], deep.to_owned()),
            ([1, 20, 10], [125, 2, 1], deep.to_owned()),
            (
                [1, 20, 10],
                [125, 1, 1],
                deep.replace("f4010000", "f4090000"),
            ),
            (
                [1, 20, 10],
                [125, 1, 1],
                deep.replace("f4010000", "00000000"),
            ),
        ] {
            assert_eq!(rows(grid, block, &args), None, "{grid:?} {block:?}");
        }
        assert!(array_copy([0; 3], [8, 8, 1], Words(&[])).is_none());
        assert!(deep_copy([u32::MAX; 3], [u32::MAX, 1, 1], Words(&[0xff; 48])).is_none());
    }
}
