//! Executable mappings of files in a process, and the known stores in them.
//!
//! Everything is read from the process's memory, nothing from the file's path: a container's path leads elsewhere, and the file may
//! have been replaced since.

use std::{collections::HashMap, io};

use nvcap_common::CODE;
use nvcap_process::procfs;

use super::{
    file_id::{FileId, MOST_ID},
    store::KnownStore,
};
pub(crate) use nvcap_process::procfs::mem::ReadMemory;

/// Bytes of a file's beginning that are read: the ELF header, which the program headers and notes mostly follow.
const HEAD: usize = 4096;
/// The most bytes of notes that are read.
const MOST_NOTES: u64 = 4096;

/// A piece of a file that is mapped privately.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// First address, and the address behind the last.
    pub start: u64,
    pub end: u64,
    /// Offset of the first byte in the file.
    pub offset: u64,
    /// The file system's device, and the file's inode there.
    pub file: (String, u64),
    /// True if it may be executed.
    pub execute: bool,
}

impl Piece {
    /// Returns the address of a range of the file that lies wholly in this piece.
    fn address(&self, offset: u64, len: u64) -> Option<u64> {
        let within = offset.checked_sub(self.offset)?;
        let end = within.checked_add(len)?;
        (end <= self.end - self.start).then(|| self.start + within)
    }
}

/// Returns the pieces of files that a process has mapped privately and may read. A device's memory is not among them.
///
/// # Errors
/// Those of reading `/proc/PID/maps`.
pub(crate) fn pieces(pid: u32) -> io::Result<Vec<Piece>> {
    let mut all = Vec::new();
    procfs::maps::each_line(pid, &mut || (), &mut |line| {
        if line.inode != 0 && line.read() && !line.shared() && !line.path.starts_with("/dev/") {
            all.push(Piece {
                start: line.start,
                end: line.end,
                offset: line.offset,
                file: (line.device.to_owned(), line.inode),
                execute: line.execute(),
            });
        }
    })?;
    Ok(all)
}

/// Finds the file whose instruction ends at an address, and the offset in it. The bytes before must lie in the same piece.
pub(crate) fn file_of(
    pieces: &[Piece],
    memory: &impl ReadMemory,
    end: u64,
) -> Option<(FileId, u64)> {
    let from = end.checked_sub(CODE as u64)?;
    let mut with = pieces.iter().filter(|p| p.execute);
    let piece = with.find(|p| p.start <= from && end <= p.end)?;
    Some((
        id_of(pieces, memory, piece)?,
        piece.offset + (end - piece.start),
    ))
}

/// Finds known stores in a process, with the address behind each. The bytes must be the store's, and the file must be the same.
pub(crate) fn found_in<'a>(
    known: &'a [KnownStore],
    pieces: &[Piece],
    memory: &impl ReadMemory,
) -> Vec<(u64, &'a KnownStore)> {
    let mut ids = HashMap::new();
    let mut found = Vec::new();
    for piece in pieces.iter().filter(|p| p.execute) {
        for store in known {
            let begin = store.end.checked_sub(CODE as u64);
            let Some(at) = begin.and_then(|begin| piece.address(begin, CODE as u64)) else {
                continue;
            };
            let mut before = [0; CODE];
            if memory.read_bytes(at, &mut before).is_err() || !store.is_at(&before) {
                continue;
            }
            let id = ids.entry(&piece.file);
            let id = id.or_insert_with(|| id_of(pieces, memory, piece));
            if id.as_ref() == Some(&store.file) {
                found.push((at + CODE as u64, store));
            }
        }
    }
    found
}

/// Returns the identity of a piece's file.
fn id_of(pieces: &[Piece], memory: &impl ReadMemory, of: &Piece) -> Option<FileId> {
    let read = |offset: u64, len: usize| {
        let mut same = pieces.iter().filter(|p| p.file == of.file);
        let at = same.find_map(|p| p.address(offset, len as u64))?;
        let mut bytes = vec![0; len];
        memory.read_bytes(at, &mut bytes).ok()?;
        Some(bytes)
    };
    let head = read(0, HEAD)?;
    let notes = notes_of(&head);
    let mut ids = notes.filter_map(|(offset, len)| build_id(&read(offset, len)?));
    Some(ids.next().unwrap_or_else(|| FileId::Head(sum(&head))))
}

fn word<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

/// Returns offsets and lengths of the notes of a 64-bit ELF file.
fn notes_of(head: &[u8]) -> impl Iterator<Item = (u64, usize)> + '_ {
    const IS_NOTE: u32 = 4;
    let is_elf = head.starts_with(b"\x7fELF\x02\x01");
    let first = word(head, 32).map_or(0, u64::from_le_bytes);
    let size = word(head, 54).map_or(0, u16::from_le_bytes);
    let count = word(head, 56).map_or(0, u16::from_le_bytes);
    let headers = (0..u64::from(count))
        .filter(move |_| is_elf)
        .map_while(move |n| {
            let at = first.checked_add(n * u64::from(size))?;
            head.get(usize::try_from(at).ok()?..)
        });
    headers.filter_map(|header| {
        let kind = u32::from_le_bytes(word(header, 0)?);
        let offset = u64::from_le_bytes(word(header, 8)?);
        let len = u64::from_le_bytes(word(header, 32)?);
        (kind == IS_NOTE && len <= MOST_NOTES).then_some((offset, len as usize))
    })
}

/// Finds the build id among notes.
fn build_id(notes: &[u8]) -> Option<FileId> {
    const IS_BUILD_ID: u32 = 3;
    let mut at = 0;
    loop {
        let note = notes.get(at..)?;
        let name = u32::from_le_bytes(word(note, 0)?) as usize;
        let len = u32::from_le_bytes(word(note, 4)?) as usize;
        let kind = u32::from_le_bytes(word(note, 8)?);
        let begin = 12 + name.checked_next_multiple_of(4)?;
        let content = note.get(begin..)?.get(..len)?;
        let is_gnu = note.get(12..12 + name)? == b"GNU\0";
        if kind == IS_BUILD_ID && is_gnu && (1..=MOST_ID).contains(&len) {
            return Some(FileId::Build(content.to_vec()));
        }
        at += begin + len.checked_next_multiple_of(4)?;
    }
}

/// Computes FNV-1a.
fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    })
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::super::store::tests::known;
    use super::*;

    const BASE: u64 = 0x7f00_0000_0000;

    /// A file that is mapped wholly at an address.
    struct Made(Vec<u8>);

    impl ReadMemory for Made {
        fn read_bytes(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
            self.0[..].read_bytes(at - BASE, to)
        }
    }

    /// An ELF file of two pages: a note, and the store at 0x1100.
    fn library(id: &[u8]) -> Made {
        let mut file = vec![0x90; 0x2000];
        file[..0x400].fill(0);
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        file[32..40].copy_from_slice(&64u64.to_le_bytes());
        file[54..58].copy_from_slice(&[56, 0, 2, 0]);
        let note = 64 + 56;
        file[note] = 4;
        file[note + 8..note + 16].copy_from_slice(&0x200u64.to_le_bytes());
        file[note + 32..note + 40].copy_from_slice(&(16 + id.len() as u64).to_le_bytes());
        file[0x200] = 4;
        file[0x204] = id.len() as u8;
        file[0x208] = 3;
        file[0x20c..0x210].copy_from_slice(b"GNU\0");
        file[0x210..0x210 + id.len()].copy_from_slice(id);
        file[0x10fe..0x1100].copy_from_slice(&[0x89, 0x08]);
        Made(file)
    }

    fn mapped() -> Vec<Piece> {
        let piece = |start: u64, execute| Piece {
            start: BASE + start,
            end: BASE + start + 0x1000,
            offset: start,
            file: ("fd:01".to_owned(), 7),
            execute,
        };
        vec![piece(0, false), piece(0x1000, true)]
    }

    #[test]
    fn a_known_store_is_found_in_the_same_file() {
        let memory = library(&[1, 2, 3, 4]);
        let end = BASE + 0x1100;
        let (file, offset) = file_of(&mapped(), &memory, end).unwrap();
        assert_eq!((file.to_string().as_str(), offset), ("b01020304", 0x1100));
        let stores = [known("b01020304", 0x1100), known("b01020304", 0x1102)];
        let found = found_in(&stores, &mapped(), &memory);
        assert_eq!(found, [(end, &stores[0])]);
    }

    #[test]
    fn another_file_or_other_bytes_are_not_taken() {
        let stores = [known("b01020304", 0x1100)];
        assert!(found_in(&stores, &mapped(), &library(&[1, 2, 3, 5])).is_empty());
        let mut patched = library(&[1, 2, 3, 4]);
        patched.0[0x10ff] = 0x0a;
        assert!(found_in(&stores, &mapped(), &patched).is_empty());
        // Mapped, but not to be executed; and not whole.
        let memory = library(&[1, 2, 3, 4]);
        let mut pieces = mapped();
        pieces[1].execute = false;
        assert!(found_in(&stores, &pieces, &memory).is_empty());
        pieces[1].execute = true;
        pieces[1].end = BASE + 0x10ff;
        assert!(found_in(&stores, &pieces, &memory).is_empty());
        assert!(file_of(&pieces, &memory, BASE + 0x1100).is_none());
    }

    #[test]
    fn a_file_without_a_build_id_has_its_first_page() {
        let mut memory = library(&[1, 2, 3, 4]);
        memory.0[0x208] = 5;
        let (file, _) = file_of(&mapped(), &memory, BASE + 0x1100).unwrap();
        assert!(matches!(file, FileId::Head(_)));
        assert_eq!(FileId::parse(&file.to_string()), Some(file));
        // Nonsense in the place of headers is no file with one.
        memory.0[32..40].fill(0xff);
        assert!(file_of(&mapped(), &memory, BASE + 0x1100).is_some());
        memory.0.truncate(100);
        assert!(file_of(&mapped(), &memory, BASE + 0x1100).is_none());
    }

    #[test]
    fn the_pieces_of_this_process() {
        let pieces = pieces(std::process::id()).unwrap();
        let code = the_pieces_of_this_process as fn() as usize as u64;
        let mut with = pieces.iter().filter(|p| p.execute);
        assert!(with.any(|p| p.start <= code && code < p.end));
    }
}
