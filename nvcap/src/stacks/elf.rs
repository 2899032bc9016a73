//! A mapped file: where its parts lie, and its symbols. Parts are read when they are first needed.

use std::{
    cell::OnceCell,
    collections::HashMap,
    fs::{File, Metadata},
    io::Read as _,
    os::unix::fs::{FileExt as _, MetadataExt as _},
    sync::Arc,
};

use object::{
    LittleEndian as Le, ReadCache, ReadRef,
    elf::{FileHeader64, PF_X, PT_LOAD},
    read::elf::{FileHeader as _, ProgramHeader as _, SectionHeader as _},
};

use super::{
    dwarf::{Lines, Place},
    guard::guarded,
    modules::{Mapped, MappedFile},
};
use crate::procfs::{mem::Memory, open_regular, served::Served};

/// The largest part that is read into memory.
const MOST: u64 = 256 << 20;
/// The most bytes of debugging information of one file that are read, decompressed.
const MOST_LINES: u64 = 512 << 20;
/// The longest name that is read.
const MOST_NAME: usize = 8192;

/// Bytes of a file.
#[derive(Debug)]
enum Data {
    File(File),
    /// Of code that the kernel gives to each process.
    Memory(Vec<u8>),
}

impl Data {
    /// Reads up to `len` bytes; fewer at the end.
    fn read(&self, offset: u64, len: usize) -> Option<Vec<u8>> {
        match self {
            Self::Memory(bytes) => {
                let from = usize::try_from(offset).ok()?;
                let rest = bytes.get(from..)?;
                Some(rest.get(..len).unwrap_or(rest).to_vec())
            }
            Self::File(file) => {
                let mut bytes = vec![0; len];
                let mut got = 0;
                while got < len {
                    match file.read_at(&mut bytes[got..], offset.checked_add(got as u64)?) {
                        Ok(0) => break,
                        Ok(n) => got += n,
                        Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                        Err(_) => return None,
                    }
                }
                bytes.truncate(got);
                Some(bytes)
            }
        }
    }
}

/// A part of the file that is loaded.
#[derive(Clone, Copy, Debug)]
struct Segment {
    address: u64,
    offset: u64,
    len: u64,
    executable: bool,
}

/// A part of the file with a name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Section {
    pub address: u64,
    pub offset: u64,
    pub size: u64,
    /// SHF_COMPRESSED.
    compressed: bool,
    /// Section index of its names, of symbol tables.
    link: u32,
    index: u32,
    kind: u32,
}

/// A function's symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Symbol {
    address: u64,
    size: u64,
    /// Offset in the file of its name.
    name: u64,
}

/// See the module. Addresses are those of the file's own tables.
#[derive(Debug)]
pub(super) struct Elf {
    data: Data,
    segments: Vec<Segment>,
    sections: HashMap<String, Section>,
    symbols: OnceCell<Vec<Symbol>>,
    lines: OnceCell<Option<Lines>>,
}

impl Elf {
    /// Opens the file that is mapped, by whatever way leads to it.
    pub(super) fn of(mapped: &Mapped, pid: u32) -> Option<Self> {
        let Some(file) = &mapped.file else {
            return Self::of_kernel(mapped, pid);
        };
        if Served::of(pid).has(&file.device) {
            log::debug!(
                "process {pid}: {} is on FUSE and not opened: its functions have no names",
                mapped.name
            );
            return None;
        }
        let mut ways = mapped.paths(pid).into_iter();
        let opened = ways
            .find_map(|(path, check)| open_regular(path, |data| !check || is_file(data, file)))?;
        let cache = ReadCache::new(opened.try_clone().ok()?);
        let (segments, sections) = parts(&cache)?;
        Some(Self::new(Data::File(opened), segments, sections))
    }

    /// The vdso, which lies in the process's memory alone.
    fn of_kernel(mapped: &Mapped, pid: u32) -> Option<Self> {
        if &*mapped.name != "[vdso]" {
            return None;
        }
        let len = usize::try_from(mapped.end - mapped.start).ok()?;
        let mut bytes = vec![0; len.min(1 << 20)];
        Memory::open(pid)
            .ok()?
            .read(mapped.start, &mut bytes)
            .ok()?;
        let (segments, sections) = parts(bytes.as_slice())?;
        Some(Self::new(Data::Memory(bytes), segments, sections))
    }

    fn new(data: Data, segments: Vec<Segment>, sections: HashMap<String, Section>) -> Self {
        Self {
            data,
            segments,
            sections,
            symbols: OnceCell::new(),
            lines: OnceCell::new(),
        }
    }

    /// That of bytes, whatever they are.
    #[cfg(test)]
    pub(super) fn of_bytes(bytes: Vec<u8>) -> Option<Self> {
        let (segments, sections) = parts(bytes.as_slice())?;
        Some(Self::new(Data::Memory(bytes), segments, sections))
    }

    /// What is to be added to the file's addresses to get those of the mapping.
    pub(super) fn bias(&self, mapped: &Mapped) -> Option<u64> {
        let within = |s: &&Segment| {
            // A mapping begins at a whole page, maybe before the segment.
            let from = s.offset & !0xfff;
            s.executable && (from..s.offset.saturating_add(s.len)).contains(&mapped.offset)
        };
        let segment = self.segments.iter().find(within)?;
        let first = segment
            .address
            .wrapping_add(mapped.offset)
            .wrapping_sub(segment.offset);
        Some(mapped.start.wrapping_sub(first))
    }

    /// The lowest address that is loaded.
    pub(super) fn base(&self) -> u64 {
        let addresses = self.segments.iter().map(|s| s.address & !0xfff);
        addresses.min().unwrap_or(0)
    }

    pub(super) fn section(&self, name: &str) -> Option<Section> {
        self.sections.get(name).copied()
    }

    /// A section's bytes as they lie in the file.
    fn bytes(&self, section: Section) -> Option<Vec<u8>> {
        let len = usize::try_from(section.size.min(MOST + 1)).ok()?;
        (section.size <= MOST).then_some(())?;
        self.data
            .read(section.offset, len)
            .filter(|bytes| bytes.len() == len)
    }

    /// A section's bytes, where they are used as they are.
    pub(super) fn plain(&self, name: &str) -> Option<(Section, Arc<[u8]>)> {
        let section = self.section(name).filter(|s| !s.compressed)?;
        Some((section, self.bytes(section)?.into()))
    }

    /// The name of the function at an address, and the function's first address.
    pub(super) fn symbol(&self, address: u64) -> Option<(String, u64)> {
        let symbols = self.symbols.get_or_init(|| self.read_symbols());
        let symbol = find(symbols, address)?;
        let name = self.data.read(symbol.name, MOST_NAME)?;
        let end = name.iter().position(|b| *b == 0)?;
        let name = String::from_utf8_lossy(&name[..end]);
        (!name.is_empty()).then(|| (name.into_owned(), symbol.address))
    }

    fn read_symbols(&self) -> Vec<Symbol> {
        let mut symbols = Vec::new();
        for table in [".symtab", ".dynsym"] {
            let Some(table) = self.section(table) else {
                continue;
            };
            let names = self.sections.values().find(|s| s.index == table.link);
            if let (Some(names), Some(bytes)) = (names, self.bytes(table)) {
                symbols.extend(bytes.chunks_exact(24).filter_map(|b| symbol_of(b, *names)));
            }
        }
        // Of two at one address the longer one is found.
        symbols.sort_by_key(|s| (s.address, s.size));
        symbols.dedup_by_key(|s| (s.address, s.size));
        symbols
    }

    /// The places in the source of an address, the innermost inlined function first; none without debugging information.
    pub(super) fn places(&self, address: u64) -> Vec<Place> {
        guarded(|| self.lines().map(|lines| lines.at(address)))
            .flatten()
            .unwrap_or_default()
    }

    fn lines(&self) -> Option<&Lines> {
        let read = || {
            self.section(".debug_info")?;
            let mut room = MOST_LINES;
            Lines::of(|name| self.unpacked(self.section(name)?, &mut room))
        };
        let lines = self.lines.get_or_init(|| guarded(read).flatten());
        lines.as_ref()
    }

    /// A section's bytes, decompressed, where there is room for them.
    fn unpacked(&self, section: Section, room: &mut u64) -> Option<Vec<u8>> {
        let bytes = self.bytes(section)?;
        if !section.compressed {
            *room = room.checked_sub(bytes.len() as u64)?;
            return Some(bytes);
        }
        // Elf64_Chdr: type, reserved, size, alignment.
        let kind = crate::wire::words::u32_at(&bytes, 0)?;
        let size = crate::wire::words::u64_at(&bytes, 8)?;
        let packed = bytes.get(24..)?;
        (kind == object::elf::ELFCOMPRESS_ZLIB).then_some(())?;
        *room = room.checked_sub(size)?;
        let mut whole = Vec::new();
        let mut unpacked = flate2::read::ZlibDecoder::new(packed).take(size);
        unpacked.read_to_end(&mut whole).ok()?;
        (whole.len() as u64 == size).then_some(whole)
    }
}

/// Whether it is the file that the mapping names. The device is not compared: of some file systems (btrfs, overlayfs) the
/// two ways to ask for it give different numbers.
fn is_file(opened: &Metadata, file: &MappedFile) -> bool {
    opened.ino() == file.inode
}

fn parts<'d>(data: impl ReadRef<'d>) -> Option<(Vec<Segment>, HashMap<String, Section>)> {
    let header = FileHeader64::<Le>::parse(data).ok()?;
    let segments = header.program_headers(Le, data).ok()?.iter();
    let segments = segments
        .filter(|s| s.p_type(Le) == PT_LOAD)
        .map(|s| Segment {
            address: s.p_vaddr(Le),
            offset: s.p_offset(Le),
            len: s.p_filesz(Le),
            executable: s.p_flags(Le) & PF_X != 0,
        })
        .collect();
    let mut named = HashMap::new();
    // A file without sections still has segments.
    if let Ok(sections) = header.sections(Le, data) {
        for (index, section) in sections.enumerate() {
            let Ok(name) = sections.section_name(Le, section) else {
                continue;
            };
            let part = Section {
                address: section.sh_addr(Le),
                offset: section.sh_offset(Le),
                size: section.sh_size(Le),
                compressed: section.sh_flags(Le) & u64::from(object::elf::SHF_COMPRESSED) != 0,
                link: section.sh_link(Le),
                index: index.0 as u32,
                kind: section.sh_type(Le),
            };
            // Without contents in this file, as in one that holds debugging information alone.
            if part.kind != object::elf::SHT_NOBITS {
                named
                    .entry(String::from_utf8_lossy(name).into_owned())
                    .or_insert(part);
            }
        }
    }
    Some((segments, named))
}

/// A function's symbol, from its 24 bytes.
fn symbol_of(bytes: &[u8], names: Section) -> Option<Symbol> {
    let u64_at = |at: usize| crate::wire::words::u64_at(bytes, at);
    let name = crate::wire::words::u32_at(bytes, 0)?;
    let kind = bytes.get(4)? & 0xf;
    let section = u16::from_le_bytes([*bytes.get(6)?, *bytes.get(7)?]);
    // STT_NOTYPE (of assembly), STT_FUNC, STT_GNU_IFUNC; defined in this file.
    let is_code = matches!(kind, 0 | 2 | 10) && section != 0;
    (is_code && u64::from(name) < names.size).then_some(())?;
    Some(Symbol {
        address: u64_at(8)?,
        size: u64_at(16)?,
        name: names.offset.checked_add(u64::from(name))?,
    })
}

/// The symbol whose function an address lies in. One without a size reaches up to the next.
fn find(symbols: &[Symbol], address: u64) -> Option<Symbol> {
    let behind = symbols.partition_point(|s| s.address <= address);
    let before = symbols[..behind].iter().rev();
    // Functions within functions: a few before the nearest may still hold the address.
    let mut near = before.take(8);
    let with_size = near.clone().find(|s| address - s.address < s.size);
    with_size
        .or_else(|| near.next().filter(|s| s.size == 0))
        .copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stacks::modules::{at, of_process};

    #[inline(never)]
    fn known_function() -> u64 {
        std::hint::black_box(known_function as *const () as u64)
    }

    #[test]
    fn a_function_of_this_program() {
        let pid = std::process::id();
        let mapped = of_process(pid);
        let address = known_function();
        let mapped = at(&mapped, address).unwrap();
        let elf = Elf::of(mapped, pid).expect("the program's own file is read");
        let svma = address.wrapping_sub(elf.bias(mapped).unwrap());
        let (name, first) = elf.symbol(svma + 1).unwrap();
        assert!(name.contains("known_function"), "{name}");
        assert_eq!(first, svma);
        assert!(elf.plain(".eh_frame").is_some());
    }

    #[test]
    fn the_vdso_is_read_from_memory() {
        let pid = std::process::id();
        let mapped = of_process(pid);
        let vdso = mapped.iter().find(|m| &*m.name == "[vdso]").unwrap();
        let elf = Elf::of(vdso, pid).unwrap();
        assert!(elf.plain(".eh_frame").is_some());
        assert_eq!(elf.bias(vdso), Some(vdso.start));
    }

    #[test]
    fn another_file_of_the_same_name_is_none() {
        let mapped = Mapped {
            start: 0x1000,
            end: 0x2000,
            offset: 0,
            file: Some(MappedFile {
                device: "00:00".into(),
                inode: 1,
            }),
            name: "/proc/self/exe".into(),
        };
        assert!(Elf::of(&mapped, std::process::id()).is_none());
    }

    #[test]
    fn the_nearest_symbol_that_holds_the_address() {
        let symbol = |address, size| Symbol {
            address,
            size,
            name: 0,
        };
        let all = [symbol(10, 20), symbol(12, 2), symbol(40, 0), symbol(50, 4)];
        let found = |address| find(&all, address).map(|s| s.address);
        assert_eq!(
            [5, 10, 13, 14, 29, 30, 45, 53, 54].map(found),
            [
                None,
                Some(10),
                Some(12),
                Some(10),
                Some(10),
                None,
                Some(40),
                Some(50),
                None
            ]
        );
    }

    #[test]
    fn bytes_that_are_no_file_of_this_kind() {
        let mut own = std::fs::read("/proc/self/exe").unwrap();
        own.truncate(4096);
        for n in 0..own.len() {
            let mut bytes = own.clone();
            bytes.truncate(n);
            let _ = parts(bytes.as_slice());
            let mut bytes = own.clone();
            bytes[n] ^= 0xff;
            let _ = parts(bytes.as_slice());
        }
        assert!(parts(&b"#!/bin/sh"[..]).is_none());
    }
}
