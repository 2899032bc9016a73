//! Headers and sections of a CUDA ELF image: little-endian, of 64 bits, or of 32 bits as toolkits before CUDA 9 made them for `-m32`.

use std::ops::Range;

use crate::wire::read_memory::ReadMemory;
use crate::wire::words::{u32_at, u64_at};

/// The most bytes that are read of one image.
pub const MOST_READ: u64 = 64 << 20;
/// Section type: no bytes in the image.
pub(super) const NOBITS: u32 = 8;
/// Length of the longer ELF header.
const HEADER: usize = 64;
/// The most sections. A function has about four; cuBLAS and PyTorch have images with some thousand functions.
const MOST_SECTIONS: u64 = 1 << 18;
/// The most bytes of a section's name. Templates of PyTorch reach some thousand.
const MOST_NAME: usize = 1 << 16;
/// Limit of an image's length: every image is shorter.
const MOST_LEN: u64 = 4 << 30;
/// Value of `e_machine` for CUDA.
const EM_CUDA: u16 = 190;
/// Bytes read at once.
const WINDOW: u64 = 64 << 10;

/// Places of members in the headers of one ELF class (32 or 64 bits).
struct Form {
    /// Length of the ELF header.
    header: usize,
    /// Members of the ELF header: the offsets of the program and section headers, the flags, and the first half-word of the headers'
    /// sizes and numbers.
    programs: usize,
    table: usize,
    flags: usize,
    counts: usize,
    /// Length of a section header, and the places of its members.
    section: usize,
    offset: usize,
    size: usize,
    link: usize,
    info: usize,
    /// True for a file of 64 bits.
    wide: bool,
}

const WIDE: Form = Form {
    header: 64,
    programs: 32,
    table: 40,
    flags: 48,
    counts: 54,
    section: 64,
    offset: 24,
    size: 32,
    link: 40,
    info: 44,
    wide: true,
};

const NARROW: Form = Form {
    header: 52,
    programs: 28,
    table: 32,
    flags: 36,
    counts: 42,
    section: 40,
    offset: 16,
    size: 20,
    link: 24,
    info: 28,
    wide: false,
};

impl Form {
    /// An address or offset.
    fn word(&self, bytes: &[u8], at: usize) -> Option<u64> {
        match self.wide {
            true => u64_at(bytes, at),
            false => u32_at(bytes, at).map(u64::from),
        }
    }

    /// Returns a section's offset and size; `None` if they cannot be those of bytes in an image.
    fn place(&self, header: &[u8]) -> Option<(u64, u64)> {
        let offset = self.word(header, self.offset)?;
        let size = self.word(header, self.size)?;
        let end = offset.checked_add(size)?;
        (end <= MOST_LEN && u32_at(header, 4)? != NOBITS).then_some((offset, size))
    }
}

/// GPU architecture that a CUDA ELF header names.
struct Target {
    /// The number behind `sm_`.
    sm: u32,
    /// True if the flags say that the image is for this architecture alone (`sm_100a`).
    accelerated: bool,
}

/// A section.
pub(super) struct Section {
    pub(super) name: String,
    pub(super) kind: u32,
    pub(super) offset: u64,
    pub(super) size: u64,
    pub(super) info: u32,
}

impl Section {
    /// Returns the range of the section's bytes in the image.
    pub(super) fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.size
    }
}

/// An image that is being read.
pub(super) struct Elf<'m, M: ?Sized> {
    memory: &'m M,
    at: u64,
    /// Number of bytes that may still be read.
    left: u64,
    window: (u64, Vec<u8>),
    pub(super) sections: Vec<Section>,
    pub(super) sm: u32,
    pub(super) accelerated: bool,
    /// True for a file of 64 bits. In files of 32 bits, relocations and symbols have words of 32 bits.
    pub(super) wide: bool,
    pub(super) relocatable: bool,
    /// End of the image's header and tables.
    tables_end: u64,
}

/// Returns a half-word of a header.
fn u16_at(bytes: &[u8], at: usize) -> u16 {
    let word = bytes.get(at..).and_then(|b| b.first_chunk::<2>());
    word.map_or(0, |w| u16::from_le_bytes(*w))
}

impl<'m, M: ReadMemory + ?Sized> Elf<'m, M> {
    pub(super) fn read(memory: &'m M, at: u64) -> Option<Self> {
        let mut header = [0; HEADER];
        memory
            .read_bytes(at, header.get_mut(..NARROW.header)?)
            .ok()?;
        let form = match header[4] {
            1 => &NARROW,
            2 => &WIDE,
            _ => return None,
        };
        memory.read_bytes(at, header.get_mut(..form.header)?).ok()?;
        let target = target(&header, form)?;
        let relocatable = match u16_at(&header, 16) {
            1 => true,
            2 => false,
            _ => return None,
        };
        let programs = form.word(&header, form.programs)?;
        let table = form.word(&header, form.table)?;
        // Size and number of program headers, size and number of section headers, and the section with their names.
        let count = |n: usize| u16_at(&header, form.counts + 2 * n);
        let program_bytes = u64::from(count(0)) * u64::from(count(1));
        if usize::from(count(2)) != form.section || table < form.header as u64 {
            return None;
        }
        let mut elf = Self {
            memory,
            at,
            left: MOST_READ,
            window: (0, Vec::new()),
            sections: Vec::new(),
            sm: target.sm,
            accelerated: target.accelerated,
            wide: form.wide,
            relocatable,
            tables_end: 0,
        };
        let first = elf.piece(table, form.section as u64)?;
        let (mut names, mut count) = (u32::from(count(4)), u64::from(count(3)));
        // More than 65,279 sections: the numbers are in the first one.
        if count == 0 {
            count = form.word(&first, form.size)?;
        }
        if names == 0xffff {
            names = u32_at(&first, form.link)?;
        }
        if count > MOST_SECTIONS {
            return None;
        }
        let headers = elf.piece(table, count * form.section as u64)?;
        let headers = || headers.chunks_exact(form.section);
        let (offset, size) = form.place(headers().nth(names as usize)?)?;
        let names = elf.piece(offset, size)?;
        for header in headers() {
            let name = u32_at(header, 0)? as usize;
            let name = names.get(name..).unwrap_or_default();
            let name = name.get(..MOST_NAME).unwrap_or(name);
            let end = name.iter().position(|b| *b == 0).unwrap_or(name.len());
            elf.left = elf.left.checked_sub(end as u64)?;
            let name = String::from_utf8_lossy(name.get(..end).unwrap_or_default()).into_owned();
            let kind = u32_at(header, 4)?;
            let (offset, size) = match form.place(header) {
                Some(place) => place,
                None if kind == NOBITS => (0, form.word(header, form.size)?),
                None => (0, 0),
            };
            elf.sections.push(Section {
                name,
                kind,
                offset,
                size,
                info: u32_at(header, form.info)?,
            });
        }
        let end = table + count * form.section as u64;
        let programs_end = programs.checked_add(program_bytes);
        let programs_end = programs_end.filter(|end| *end <= MOST_LEN && program_bytes > 0);
        elf.tables_end = end.max(programs_end.unwrap_or(0));
        Some(elf)
    }

    /// Returns the image's length: the end of the part that comes last.
    pub(super) fn len(&self, sections: &[Section]) -> u64 {
        let ends = sections
            .iter()
            .filter(|s| s.kind != NOBITS)
            .map(|s| s.offset + s.size);
        ends.fold(self.tables_end, u64::max)
    }

    /// Returns a section's bytes, or no bytes if they cannot be read.
    pub(super) fn bytes(&mut self, section: &Section) -> Vec<u8> {
        if section.kind == NOBITS {
            return Vec::new();
        }
        self.piece(section.offset, section.size).unwrap_or_default()
    }

    /// Returns bytes of the image. A small piece is cut out of a window that is read around it and kept for the next pieces.
    fn piece(&mut self, offset: u64, len: u64) -> Option<Vec<u8>> {
        self.left = self.left.checked_sub(len)?;
        let size = usize::try_from(len).ok()?;
        let cut = |window: &(u64, Vec<u8>)| -> Option<Vec<u8>> {
            let from = usize::try_from(offset.checked_sub(window.0)?).ok()?;
            Some(window.1.get(from..from.checked_add(size)?)?.to_vec())
        };
        if let Some(piece) = cut(&self.window) {
            return Some(piece);
        }
        let place = self.at.checked_add(offset)?;
        if len < WINDOW {
            self.left = self.left.checked_sub(WINDOW)?;
            let mut window = vec![0; WINDOW as usize];
            if self.memory.read_bytes(place, &mut window).is_ok() {
                self.window = (offset, window);
                return cut(&self.window);
            }
        }
        // The piece is long, or lies near the end of what can be read.
        self.memory
            .read_bytes(place.checked_add(len.saturating_sub(1))?, &mut [0])
            .ok()?;
        let mut piece = vec![0; size];
        self.memory.read_bytes(place, &mut piece).ok()?;
        Some(piece)
    }
}

/// Reads the architecture from the flags of a CUDA ELF header; `None` if the header is not CUDA's. Two layouts exist. Toolkits before 12.8,
/// and later ones for architectures older than sm_100, put the architecture's number into the low byte; bit 11 marks code for that
/// architecture alone. The newer layout has another ABI number; it puts the architecture's number into the second byte, and bit 3 marks
/// code for that architecture alone. From CUDA 13 on bit 3 is clear, and an attribute of the image takes its place
/// ([`super::info::is_accelerated`]).
fn target(header: &[u8; HEADER], form: &Form) -> Option<Target> {
    // ELF, little-endian, version 1, and the ABI number.
    let [0x7f, b'E', b'L', b'F', _, 1, 1, abi, ..] = *header else {
        return None;
    };
    if u16_at(header, 18) != EM_CUDA {
        return None;
    }
    let flags = u32_at(header, form.flags)?;
    let (sm, bit) = match abi {
        0x33 => (flags & 0xff, 1 << 11),
        0x41 => (flags >> 8 & 0xff, 1 << 3),
        _ => return None,
    };
    Some(Target {
        sm,
        accelerated: flags & bit != 0,
    })
}
