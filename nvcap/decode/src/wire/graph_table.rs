//! Tables, in GPU memory, of the driver's kernels that continue a CUDA graph: they list the successors of each node.
//!
//! Measured with CUDA 13.0 and driver 580 on Hopper (docs/decoding.md has the evidence). Such a kernel has a single block of 32 threads;
//! its arguments name the table, the kernel's own entry in it, and the list of all entries' successors.

use super::words::{u32_at, u32s, u64_at};

/// Length of a table's entry, bytes.
const ENTRY: u64 = 64;
/// Length of the part of an entry whose meaning is known, bytes.
pub(crate) const KNOWN: usize = 32;
/// Length of a successor in the list, bytes.
const EDGE: u64 = 4;
/// Bit of an entry's first word: a conditional node.
const CONDITIONAL: u32 = 0x100;

/// The place of a kernel in a graph: its first three arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GraphTable {
    /// Index of the kernel's entry in the table.
    pub index: u32,
    /// Address of the table.
    pub table: u64,
    /// Address of the list of all entries' successors: numbers of entries, 4 bytes each.
    pub edges: u64,
}

impl GraphTable {
    /// Tells whether a kernel with this grid and block may have such a table.
    pub(crate) fn may_be_of(grid: [u32; 3], block: [u32; 3]) -> bool {
        grid == [1, 1, 1] && block == [32, 1, 1]
    }

    /// Reads the place from a kernel's grid, block and arguments; `None` for other kernels.
    pub fn of(grid: [u32; 3], block: [u32; 3], arguments: &[u8]) -> Option<Self> {
        if !Self::may_be_of(grid, block) {
            return None;
        }
        Some(Self {
            index: u32_at(arguments, 0)?,
            table: u64_at(arguments, 8)?,
            edges: u64_at(arguments, 16)?,
        })
    }

    /// Returns the offset of an entry from the start of the table.
    pub fn offset(index: u32) -> u64 {
        u64::from(index) * ENTRY
    }

    /// Returns the address of an entry.
    pub(crate) fn entry_at(self, index: u32) -> Option<u64> {
        self.table.checked_add(Self::offset(index))
    }

    /// Returns the address of a successor in the list.
    pub(crate) fn edge_at(self, edge: u32) -> Option<u64> {
        self.edges.checked_add(u64::from(edge) * EDGE)
    }
}

/// An entry of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GraphEntry {
    /// True for a conditional node: the GPU decides whether it runs.
    pub conditional: bool,
    /// Number of successors.
    pub successors: u32,
    /// Index, in the list, of the first successor.
    pub first: u32,
    /// Number of entries that lead to this one: the last of them starts it.
    pub predecessors: u32,
    /// Address of the QMD.
    pub qmd: u64,
}

impl GraphEntry {
    /// Reads an entry from at least `KNOWN` bytes: flags, number of successors, index of the first, the countdown and its initial value, an
    /// unknown word, the QMD's address shifted right by 8, an unknown word.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let mut words = [0; KNOWN / 4];
        let known = bytes.get(..KNOWN)?;
        words
            .iter_mut()
            .zip(u32s(known))
            .for_each(|(to, word)| *to = word);
        let [flags, successors, first, _, predecessors, _, qmd, _] = words;
        Some(Self {
            conditional: flags & CONDITIONAL != 0,
            successors,
            first,
            predecessors: predecessors.max(1),
            qmd: u64::from(qmd) << 8,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::words::bytes_of;
    use super::*;

    #[test]
    fn kernels_and_entries() {
        let arguments = bytes_of(&[3, 0, 0x1000, 2, 0x8000, 2]);
        let table = GraphTable::of([1; 3], [32, 1, 1], &arguments).unwrap();
        assert_eq!(
            (table.index, table.table, table.edges),
            (3, 0x2_0000_1000, 0x2_0000_8000)
        );
        assert_eq!(table.entry_at(3), Some(0x2_0000_10c0));
        assert_eq!(table.edge_at(5), Some(0x2_0000_8014));
        assert_eq!(GraphTable::of([1; 3], [32, 1, 1], &arguments[..23]), None);
        assert_eq!(GraphTable::of([2, 1, 1], [32, 1, 1], &arguments), None);
        assert_eq!(GraphTable::of([1; 3], [64, 1, 1], &arguments), None);
        let words = bytes_of(&[0x100, 2, 7, 1, 0, 0, 0x20_1234, 0]);
        let entry = GraphEntry {
            conditional: true,
            successors: 2,
            first: 7,
            predecessors: 1,
            qmd: 0x2012_3400,
        };
        assert_eq!(GraphEntry::read(&words), Some(entry));
        assert_eq!(GraphEntry::read(&words[..31]), None);
    }
}
