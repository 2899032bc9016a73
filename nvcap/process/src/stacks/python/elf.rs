//! Addresses of exported symbols, looked up in an ELF image in a process's memory, by the tables that the dynamic linker itself uses. No
//! file is read, so it does not matter in which container the process runs, or whether the file was replaced or removed.

use crate::procfs::mem::ReadMemory;

/// The most program headers of an image.
const MOST_HEADERS: u16 = 64;
/// The most bytes of a dynamic section.
const MOST_DYNAMIC: u64 = 1 << 16;
/// The most symbols in a chain of a hash table.
const MOST_CHAIN: u32 = 1 << 12;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const DT_HASH: u64 = 4;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_GNU_HASH: u64 = 0x6fff_fef5;
/// Length of a symbol, bytes.
const SYMBOL: u64 = 24;

/// A mapped image.
pub(super) struct MappedElf<'a, M: ?Sized> {
    memory: &'a M,
    /// Bias: number to add to the image's own addresses.
    bias: u64,
    symbols: u64,
    strings: u64,
    hash: Hash,
}

/// Address of the hash table.
enum Hash {
    Gnu(u64),
    SystemV(u64),
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

fn read<M: ReadMemory + ?Sized>(memory: &M, at: u64, len: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; len];
    memory.read_bytes(at, &mut bytes).ok()?;
    Some(bytes)
}

impl<'a, M: ReadMemory + ?Sized> MappedElf<'a, M> {
    /// Returns the 64-bit image whose header is at `start`; `None` if there is none, or if it exports nothing.
    pub(super) fn at(memory: &'a M, start: u64) -> Option<Self> {
        let header = read(memory, start, 64)?;
        // 64 bits, little endian.
        if header.get(..6)? != b"\x7fELF\x02\x01" {
            return None;
        }
        let (table, size, count) = (
            u64_at(&header, 32)?,
            usize::from(u16_at(&header, 54)?),
            u16_at(&header, 56)?.min(MOST_HEADERS),
        );
        if size < 56 {
            return None;
        }
        let headers = read(memory, start.checked_add(table)?, size * usize::from(count))?;
        let (mut first, mut dynamic) = (None, None);
        for header in headers.chunks_exact(size) {
            let (offset, address) = (u64_at(header, 8)?, u64_at(header, 16)?);
            match u32_at(header, 0)? {
                PT_LOAD if offset == 0 => first = first.or(Some(address)),
                PT_DYNAMIC => dynamic = Some((address, u64_at(header, 40)?)),
                _ => {}
            }
        }
        let bias = start.wrapping_sub(first?);
        let (at, len) = dynamic?;
        let entries = read(
            memory,
            bias.wrapping_add(at),
            len.min(MOST_DYNAMIC) as usize,
        )?;
        let entry = |tag: u64| {
            let mut all = entries.chunks_exact(16);
            let value = u64_at(all.find(|e| u64_at(e, 0) == Some(tag))?, 8)?;
            // glibc has turned the value into an address; musl leaves the image's own.
            Some(if value < start {
                bias.wrapping_add(value)
            } else {
                value
            })
        };
        Some(Self {
            memory,
            bias,
            symbols: entry(DT_SYMTAB)?,
            strings: entry(DT_STRTAB)?,
            hash: entry(DT_GNU_HASH)
                .map(Hash::Gnu)
                .or(entry(DT_HASH).map(Hash::SystemV))?,
        })
    }

    /// Returns the address of a symbol that the image defines.
    pub(super) fn symbol(&self, name: &str) -> Option<u64> {
        match self.hash {
            Hash::Gnu(table) => self.by_gnu_hash(table, name),
            Hash::SystemV(table) => self.by_hash(table, name),
        }
    }

    fn word32(&self, at: u64) -> Option<u32> {
        u32_at(&read(self.memory, at, 4)?, 0)
    }

    /// Returns symbol number `index`, if it is defined here and has this name.
    fn named(&self, index: u32, name: &str) -> Option<u64> {
        let at = self.symbols.checked_add(u64::from(index) * SYMBOL)?;
        let symbol = read(self.memory, at, SYMBOL as usize)?;
        let own = self
            .strings
            .checked_add(u64::from(u32_at(&symbol, 0)?))
            .and_then(|at| read(self.memory, at, name.len() + 1))?;
        let defined = u16_at(&symbol, 6)? != 0;
        let same = own.split_last() == Some((&0, name.as_bytes()));
        (defined && same).then_some(self.bias.wrapping_add(u64_at(&symbol, 8)?))
    }

    fn by_gnu_hash(&self, table: u64, name: &str) -> Option<u64> {
        let hash = name.bytes().fold(5381_u32, |hash, byte| {
            hash.wrapping_mul(33).wrapping_add(u32::from(byte))
        });
        let head = read(self.memory, table, 16)?;
        let (buckets, first, bloom) = (u32_at(&head, 0)?, u32_at(&head, 4)?, u32_at(&head, 8)?);
        let bucket_table = table.checked_add(16 + 8 * u64::from(bloom))?;
        let chain_table = bucket_table.checked_add(4 * u64::from(buckets))?;
        let bucket = u64::from(hash.checked_rem(buckets)?);
        let mut index = self.word32(bucket_table.checked_add(4 * bucket)?)?;
        for _ in 0..MOST_CHAIN {
            let link = chain_table.checked_add(4 * u64::from(index.checked_sub(first)?))?;
            let link = self.word32(link)?;
            if link | 1 == hash | 1
                && let Some(address) = self.named(index, name)
            {
                return Some(address);
            }
            // The lowest bit marks the end of a chain.
            if link & 1 == 1 {
                return None;
            }
            index = index.checked_add(1)?;
        }
        None
    }

    fn by_hash(&self, table: u64, name: &str) -> Option<u64> {
        let hash = name.bytes().fold(0_u32, |hash, byte| {
            let hash = (hash << 4).wrapping_add(u32::from(byte));
            let high = hash & 0xf000_0000;
            (hash ^ (high >> 24)) & !high
        });
        let buckets = self.word32(table)?;
        let bucket = u64::from(hash.checked_rem(buckets)?);
        let mut index = self.word32(table.checked_add(8 + 4 * bucket)?)?;
        for _ in 0..MOST_CHAIN {
            if index == 0 {
                return None;
            }
            if let Some(address) = self.named(index, name) {
                return Some(address);
            }
            let link = 8 + 4 * (u64::from(buckets) + u64::from(index));
            index = self.word32(table.checked_add(link)?)?;
        }
        None
    }
}
