//! A mapped ELF file: its segments, sections and symbols. Parts are read when they are first needed.

use std::{
    cell::OnceCell,
    collections::HashMap,
    fs::{File, Metadata},
    io::Read as _,
    os::unix::fs::{FileExt as _, MetadataExt as _},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use object::{
    LittleEndian as Le, ReadCache, ReadRef,
    elf::{FileHeader64, PF_X, PT_LOAD},
    read::elf::{FileHeader as _, ProgramHeader as _, SectionHeader as _},
};

use super::{
    dwarf::{Lines, Place},
    guard::guarded,
    left_out::{self, Room},
    modules::{Mapped, MappedFile, not_opened},
};
use crate::procfs::{mem::Memory, open_regular, served::Served};

/// The largest part that is read into memory.
const MOST: u64 = 256 << 20;
/// The most decompressed bytes of one file's debugging information that are read.
const MOST_LINES: u64 = 512 << 20;
/// The most sections of a file. A file with more counts as one without sections. Linked files have some dozen.
const MOST_SECTIONS: usize = 1 << 14;
/// The longest name of a section that is kept, bytes. The sections that are looked for have shorter names.
const MOST_SECTION_NAME: usize = 32;
/// The most program headers. Linux executes no file with more, because its limit for headers is 64 KiB.
const MOST_SEGMENTS: usize = (64 << 10) / 56;
/// The most symbols of a table. The largest libraries have about a million.
const MOST_SYMBOLS: u64 = 1 << 22;
/// Length of a symbol, bytes.
const SYMBOL: usize = 24;
/// The longest name that is read.
const MOST_NAME: usize = 8192;

/// Bytes of a file.
#[derive(Debug)]
enum Data {
    File(File),
    /// Image of the code that the kernel maps into each process (the vdso).
    Memory(Vec<u8>),
}

impl Data {
    /// Reads up to `len` bytes, or fewer at the file's end.
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

/// A segment: a part of the file that is loaded.
#[derive(Clone, Copy, Debug)]
struct Segment {
    address: u64,
    offset: u64,
    len: u64,
    executable: bool,
}

/// A section: a part of the file with a name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Section {
    pub address: u64,
    pub offset: u64,
    pub size: u64,
    /// True for SHF_COMPRESSED.
    compressed: bool,
    /// Index of the section with the names, for symbol tables.
    link: u32,
    index: u32,
    kind: u32,
}

/// A function's symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Symbol {
    address: u64,
    size: u64,
    /// Offset in the file of the symbol's name.
    name: u64,
}

/// A mapped ELF file: its segments, sections and symbols. Addresses are those of the file's own tables.
#[derive(Debug)]
pub(super) struct Elf {
    /// Number that no other opened file has.
    number: u64,
    data: Data,
    segments: Vec<Segment>,
    sections: HashMap<String, Section>,
    symbols: OnceCell<Vec<Symbol>>,
    lines: OnceCell<Option<Lines>>,
}

impl Elf {
    /// Opens the mapped file by the first path that leads to it.
    pub(super) fn of(mapped: &Mapped, pid: u32, room: &Room) -> Option<Self> {
        let Some(file) = &mapped.file else {
            return Self::of_kernel(mapped, pid, room);
        };
        if Served::of(pid).has(&file.device) {
            log::debug!(
                "process {pid}: {} is on FUSE and not opened: its functions have no names",
                mapped.name
            );
            room.leave_out(left_out::ON_FUSE, file);
            return None;
        }
        let mut ways = mapped.paths(pid).into_iter();
        let opened =
            ways.find_map(|(path, check)| open_regular(path, |data| !check || is_file(data, file)));
        let Some(opened) = opened else {
            room.leave_out(not_opened(pid), file);
            log::debug!("process {pid}: {} cannot be opened", mapped.name);
            return None;
        };
        let cache = ReadCache::new(opened.try_clone().ok()?);
        let (segments, sections) = parts(&cache, room)?;
        Some(Self::new(Data::File(opened), segments, sections))
    }

    /// Reads the vdso, which exists only in the process's memory.
    fn of_kernel(mapped: &Mapped, pid: u32, room: &Room) -> Option<Self> {
        if &*mapped.name != "[vdso]" {
            return None;
        }
        let len = usize::try_from(mapped.end - mapped.start).ok()?;
        let mut bytes = vec![0; len.min(1 << 20)];
        Memory::open(pid)
            .ok()?
            .read(mapped.start, &mut bytes)
            .ok()?;
        let (segments, sections) = parts(bytes.as_slice(), room)?;
        Some(Self::new(Data::Memory(bytes), segments, sections))
    }

    fn new(data: Data, segments: Vec<Segment>, sections: HashMap<String, Section>) -> Self {
        Self {
            number: next_number(),
            data,
            segments,
            sections,
            symbols: OnceCell::new(),
            lines: OnceCell::new(),
        }
    }

    /// Reads a file from any bytes.
    #[cfg(test)]
    pub(super) fn of_bytes(bytes: Vec<u8>) -> Option<Self> {
        let (segments, sections) = parts(bytes.as_slice(), &Room::default())?;
        Some(Self::new(Data::Memory(bytes), segments, sections))
    }

    /// Returns the bias: the difference between the mapping's addresses and the file's.
    pub(super) fn bias(&self, mapped: &Mapped) -> Option<u64> {
        let within = |s: &&Segment| {
            // A mapping begins at a whole page, possibly before the segment.
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

    /// Returns the lowest address that is loaded.
    pub(super) fn base(&self) -> u64 {
        let addresses = self.segments.iter().map(|s| s.address & !0xfff);
        addresses.min().unwrap_or(0)
    }

    pub(super) fn section(&self, name: &str) -> Option<Section> {
        self.sections.get(name).copied()
    }

    /// Returns a section's bytes as they lie in the file, if the budget suffices.
    fn bytes(&self, section: Section, room: &Room) -> Option<Vec<u8>> {
        if section.size > MOST {
            room.leave_out(left_out::LARGE_TABLES, (self.number, section.index));
            return None;
        }
        room.take(section.size, (self.number, section.index))?;
        self.read(section)
    }

    fn read(&self, section: Section) -> Option<Vec<u8>> {
        (section.size <= MOST).then_some(())?;
        let len = usize::try_from(section.size).ok()?;
        self.data
            .read(section.offset, len)
            .filter(|bytes| bytes.len() == len)
    }

    /// Returns a section's bytes if they are not compressed.
    pub(super) fn plain(&self, name: &str, room: &Room) -> Option<(Section, Arc<[u8]>)> {
        let section = self.section(name).filter(|s| !s.compressed)?;
        Some((section, self.bytes(section, room)?.into()))
    }

    /// Returns the name of the function at an address, and the function's first address.
    pub(super) fn symbol(&self, address: u64, room: &Room) -> Option<(String, u64)> {
        let symbols = match self.symbols.get() {
            Some(symbols) => symbols,
            // Another process may have budget for them.
            None => {
                let symbols = self.read_symbols(room)?;
                self.symbols.get_or_init(|| symbols)
            }
        };
        let symbol = find(symbols, address)?;
        let name = self.data.read(symbol.name, MOST_NAME)?;
        let end = name.iter().position(|b| *b == 0);
        if end.is_none() && name.len() == MOST_NAME {
            room.leave_out(left_out::LONG_SYMBOLS, (self.number, symbol.address));
        }
        let end = end?;
        let name = String::from_utf8_lossy(&name[..end]);
        (!name.is_empty()).then(|| (name.into_owned(), symbol.address))
    }

    /// Reads the symbols; `None` if the budget does not suffice.
    fn read_symbols(&self, room: &Room) -> Option<Vec<Symbol>> {
        let mut symbols = Vec::new();
        for table in [".symtab", ".dynsym"] {
            let Some(table) = self.section(table) else {
                continue;
            };
            if table.size / SYMBOL as u64 > MOST_SYMBOLS {
                room.leave_out(left_out::SYMBOLS, (self.number, table.index));
                continue;
            }
            // They count twice: as they lie in the file, and as they are kept.
            room.take(2 * table.size, (self.number, table.index))?;
            let names = self.sections.values().find(|s| s.index == table.link);
            if let (Some(names), Some(bytes)) = (names, self.read(table)) {
                let all = bytes.chunks_exact(SYMBOL);
                symbols.extend(all.filter_map(|b| symbol_of(b, *names)));
            }
        }
        // Of two symbols at one address, the longer one is found.
        symbols.sort_by_key(|s| (s.address, s.size));
        symbols.dedup_by_key(|s| (s.address, s.size));
        symbols.shrink_to_fit();
        Some(symbols)
    }

    /// Returns the source places of an address, the innermost inlined function first; empty without debugging information.
    pub(super) fn places(&self, address: u64, room: &Room) -> Vec<Place> {
        guarded(|| self.lines(room).map(|lines| lines.at(address)))
            .flatten()
            .unwrap_or_default()
    }

    fn lines(&self, room: &Room) -> Option<&Lines> {
        if let Some(lines) = self.lines.get() {
            return lines.as_ref();
        }
        let mut most = MOST_LINES;
        let mut is_short = false;
        let read = || {
            self.section(".debug_info")?;
            Lines::of(|name| {
                let section = self.section(name)?;
                let bytes = self.unpacked(section, &mut most, room);
                is_short |= bytes.is_none() && room.is_spent();
                bytes
            })
        };
        let lines = guarded(read).flatten();
        // Another process may have budget for them.
        (!is_short)
            .then(|| self.lines.get_or_init(|| lines))?
            .as_ref()
    }

    /// Returns a section's bytes, decompressed, if the budget suffices.
    fn unpacked(&self, section: Section, most: &mut u64, room: &Room) -> Option<Vec<u8>> {
        let bytes = self.bytes(section, room)?;
        let mut fits = |bytes: u64| {
            let left = most.checked_sub(bytes);
            match left {
                Some(left) => *most = left,
                None => room.leave_out(left_out::LARGE_TABLES, (self.number, section.index)),
            }
            left.map(|_| ())
        };
        if !section.compressed {
            fits(bytes.len() as u64)?;
            return Some(bytes);
        }
        // Elf64_Chdr: type, reserved, size, alignment.
        let kind = nvcap_decode::wire::words::u32_at(&bytes, 0)?;
        let size = nvcap_decode::wire::words::u64_at(&bytes, 8)?;
        let packed = bytes.get(24..)?;
        (kind == object::elf::ELFCOMPRESS_ZLIB).then_some(())?;
        fits(size)?;
        room.take(size, (self.number, section.index))?;
        let mut whole = Vec::new();
        let mut unpacked = flate2::read::ZlibDecoder::new(packed).take(size);
        unpacked.read_to_end(&mut whole).ok()?;
        (whole.len() as u64 == size).then_some(whole)
    }
}

/// Returns a number that no other file has.
fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Tells whether an opened file is the one that the mapping names. The device is not compared, because on some file systems (btrfs,
/// overlayfs) the two ways to read it give different numbers.
fn is_file(opened: &Metadata, file: &MappedFile) -> bool {
    opened.ino() == file.inode
}

fn parts<'d>(
    data: impl ReadRef<'d>,
    room: &Room,
) -> Option<(Vec<Segment>, HashMap<String, Section>)> {
    let header = FileHeader64::<Le>::parse(data).ok()?;
    (header.phnum(Le, data).ok()? <= MOST_SEGMENTS).then_some(())?;
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
    let count = header.shnum(Le, data).unwrap_or(0);
    if count > MOST_SECTIONS {
        room.leave_out(left_out::SECTIONS, next_number());
    }
    // A file without sections still has segments.
    if count <= MOST_SECTIONS
        && let Ok(sections) = header.sections(Le, data)
    {
        for (index, section) in sections.enumerate() {
            let name = sections.section_name(Le, section).ok();
            let Some(name) = name.filter(|name| name.len() <= MOST_SECTION_NAME) else {
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
            // Such a section has no contents in this file, as in one that holds only debugging information.
            if part.kind != object::elf::SHT_NOBITS {
                named
                    .entry(String::from_utf8_lossy(name).into_owned())
                    .or_insert(part);
            }
        }
    }
    Some((segments, named))
}

/// Parses a function's symbol from its 24 bytes.
fn symbol_of(bytes: &[u8], names: Section) -> Option<Symbol> {
    let u64_at = |at: usize| nvcap_decode::wire::words::u64_at(bytes, at);
    let name = nvcap_decode::wire::words::u32_at(bytes, 0)?;
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

/// Returns the symbol of the function that contains an address. A symbol without a size extends up to the next.
fn find(symbols: &[Symbol], address: u64) -> Option<Symbol> {
    let behind = symbols.partition_point(|s| s.address <= address);
    let before = symbols[..behind].iter().rev();
    // Functions may lie within functions: a few symbols before the nearest may still contain the address.
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
        let elf = Elf::of(mapped, pid, &Room::default()).expect("the program's own file is read");
        let svma = address.wrapping_sub(elf.bias(mapped).unwrap());
        let (name, first) = elf.symbol(svma + 1, &Room::default()).unwrap();
        assert!(name.contains("known_function"), "{name}");
        assert_eq!(first, svma);
        assert!(elf.plain(".eh_frame", &Room::default()).is_some());
    }

    #[test]
    fn the_vdso_is_read_from_memory() {
        let pid = std::process::id();
        let mapped = of_process(pid);
        let vdso = mapped.iter().find(|m| &*m.name == "[vdso]").unwrap();
        let elf = Elf::of(vdso, pid, &Room::default()).unwrap();
        assert!(elf.plain(".eh_frame", &Room::default()).is_some());
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
        assert!(Elf::of(&mapped, std::process::id(), &Room::default()).is_none());
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
            let _ = parts(bytes.as_slice(), &Room::default());
            let mut bytes = own.clone();
            bytes[n] ^= 0xff;
            let _ = parts(bytes.as_slice(), &Room::default());
        }
        assert!(parts(&b"#!/bin/sh"[..], &Room::default()).is_none());
    }

    /// Makes a file of 64-bit words, with a table of sections and one of symbols at its end.
    fn file_of(sections: &[(u32, u64, u64, u32)], count: Option<u64>) -> Vec<u8> {
        let names = b"\0.shstrtab\0.symtab\0";
        let mut bytes = vec![0; 64];
        bytes[..7].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1, 1]);
        bytes[16..24].copy_from_slice(&[3, 0, 62, 0, 1, 0, 0, 0]);
        bytes.extend(names);
        bytes.resize(96, 0);
        let mut headers = vec![0; 64];
        let all = [&[(1, 64, names.len() as u64, 3)][..], sections].concat();
        for (name, at, size, kind) in &all {
            headers.extend([name.to_le_bytes(), kind.to_le_bytes()].concat());
            headers.extend([0; 16]);
            headers.extend([at.to_le_bytes(), size.to_le_bytes()].concat());
            headers.extend([1u64.to_le_bytes(), 0u64.to_le_bytes(), 24u64.to_le_bytes()].concat());
        }
        let own = all.len() as u16 + 1;
        bytes[40..48].copy_from_slice(&96u64.to_le_bytes());
        bytes[52..64].copy_from_slice(&[64, 0, 56, 0, 0, 0, 64, 0, own as u8, 0, 1, 0]);
        if let Some(count) = count {
            // The number is in the first section's header.
            bytes[60] = 0;
            headers[32..40].copy_from_slice(&count.to_le_bytes());
        }
        bytes.extend(headers);
        bytes
    }

    /// Test that endless tables are left out and reported. Files may be sparse: a table of gigabytes costs its maker nothing.
    #[test]
    fn tables_without_end_are_left_out_and_said() {
        let few = file_of(&[], None);
        let room = Room::default();
        let (_, named) = parts(few.as_slice(), &room).unwrap();
        assert!(named.contains_key(".shstrtab") && room.left_out().is_empty());
        let count = MOST_SECTIONS as u64 + 1;
        let mut many = file_of(&[], Some(count));
        many.resize(96 + 64 * count as usize, 0);
        let (_, named) = parts(many.as_slice(), &room).unwrap();
        assert!(named.is_empty() && room.left_out().len() == 1);
        // Symbols: the file claims to have more than are examined.
        let table = |size| {
            let bytes = file_of(&[(11, 64, size, 2)], None);
            Elf::of_bytes(bytes).unwrap()
        };
        let room = Room::default();
        let left = || room.left();
        let (size, all) = (24 * (MOST_SYMBOLS + 1), left());
        assert_eq!(table(size).symbol(64, &room), None);
        assert_eq!(
            (left(), room.left_out()),
            (all, vec![(left_out::SYMBOLS, 1)])
        );
        // Parts for which one address space has no budget may fit that of another.
        let elf = table(24);
        let (none, some) = (Room::of(47), Room::of(48));
        assert_eq!(elf.symbol(64, &none), None);
        // If it is asked for again, it is counted once; in another file, it is counted again.
        assert_eq!(elf.symbol(64, &none), None);
        assert_eq!(none.left_out(), [(left_out::TABLES, 1)]);
        assert_eq!(table(24).symbol(64, &none), None);
        assert!(elf.symbols.get().is_none() && none.left_out() == [(left_out::TABLES, 2)]);
        assert_eq!(elf.symbol(64, &some), None);
        assert!(elf.symbols.get().is_some() && some.left_out().is_empty());
    }
}
