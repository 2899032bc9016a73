//! Functions with names, kept in memory as libcuda keeps them: a cubin image, and a record of each function that holds its
//! program's address and a pointer to its name. The distances in a record are not those of any release of the driver: a tracer
//! must learn them.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::Path;

/// How many functions there are.
pub const COUNT: u64 = 12;
/// Program of the first.
const PROGRAM: u64 = 0x7f4f_4f7a_0000;
/// Bytes between programs.
const STRIDE: u64 = 0x1000;
/// Bytes of a record.
const RECORD: usize = 0x600;
/// Offsets in a record: the program's address, the pointer to the name, the registers, the link to the next record.
const ADDRESS_AT: usize = 0x220;
const NAME_AT: usize = 0x2a0;
const REGISTERS_AT: usize = 0x1f4;
const NEXT_AT: usize = 0x240;

/// The mangled name of a function: `void kernel<N>(float*)`.
#[must_use]
pub fn name(number: u64) -> String {
    format!("_Z6kernelILi{number}EEvPf")
}

/// Its program's address.
#[must_use]
pub fn program(number: u64) -> u64 {
    PROGRAM + STRIDE * number
}

/// Registers of its threads.
#[must_use]
pub fn registers(number: u64) -> u32 {
    16 + 8 * (number % 5) as u32
}

/// Puts the image and the records into memory that stays.
pub fn keep() {
    let (image, names) = image();
    let image: &'static [u8] = image.leak();
    let mut records = vec![0u8; RECORD * COUNT as usize];
    let base = records.as_ptr() as u64;
    for (number, name) in names.iter().enumerate() {
        let record = RECORD * number;
        let mut put = |at: usize, word: u64| {
            records[record + at..record + at + 8].copy_from_slice(&word.to_le_bytes());
        };
        put(ADDRESS_AT, program(number as u64));
        put(NAME_AT, image.as_ptr() as u64 + *name as u64);
        put(REGISTERS_AT, u64::from(registers(number as u64)));
        put(
            NEXT_AT,
            base + (RECORD * ((number + 1) % COUNT as usize)) as u64,
        );
    }
    records.leak();
}

/// The code of a function.
#[must_use]
pub fn code(number: u64) -> Vec<u8> {
    let words = (0..256u64).map(|i| number << 32 | i);
    words.flat_map(u64::to_le_bytes).collect()
}

/// A program (ELF for x86-64, without code) with the image in a fat binary, as an LZ4 block. A traced process must not make it: the image
/// would be found in its memory.
#[must_use]
pub fn program_file() -> Vec<u8> {
    let (image, _) = image();
    // A block of literals alone: their number is 15 and what the bytes behind add, up to the first that is not 255.
    let mut block = vec![0xf0];
    block.resize(1 + (image.len() - 15) / 255, 0xff);
    block.push(((image.len() - 15) % 255) as u8);
    block.extend(&image);
    let padded = block.len().next_multiple_of(8);
    let mut fat = Vec::new();
    for word in [
        0x0010_0001_ba55_ed50,
        64 + padded as u64,
        // An image, with a header of 64 bytes; LZ4; sm_90.
        0x40_0101_0002,
        padded as u64,
        block.len() as u64,
        90 << 32 | 0x1_0007,
        0,
        0x2011,
        0,
        image.len() as u64,
    ] {
        fat.extend(u64::to_le_bytes(word));
    }
    fat.extend(&block);
    fat.resize(80 + padded, 0);
    let names = b"\0.shstrtab\0.nv_fatbin\0";
    let mut bytes = vec![0u8; 64];
    bytes[..7].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1, 1]);
    let mut table = vec![0u8; 64];
    for (name, kind, contents) in [(1u32, 3u32, names.as_slice()), (11, 1, &fat)] {
        bytes.resize(bytes.len().next_multiple_of(16), 0);
        table.extend([name.to_le_bytes(), kind.to_le_bytes()].concat());
        table.extend([0; 16]);
        table.extend((bytes.len() as u64).to_le_bytes());
        table.extend((contents.len() as u64).to_le_bytes());
        table.extend([0; 24]);
        bytes.extend(contents);
    }
    let table_at = bytes.len() as u64;
    bytes[40..48].copy_from_slice(&table_at.to_le_bytes());
    bytes[58..64].copy_from_slice(&[64, 0, 3, 0, 1, 0]);
    bytes.extend(table);
    bytes
}

/// Maps a file for as long as the process lives, as the loader maps a program.
///
/// # Errors
/// Those of opening it and mapping it.
pub fn map(path: &Path) -> io::Result<()> {
    let file = File::open(path)?;
    let len = file.metadata()?.len() as usize;
    // SAFETY: a new mapping, which nothing reads.
    let at = unsafe {
        let (read, private) = (libc::PROT_READ, libc::MAP_PRIVATE);
        libc::mmap(
            std::ptr::null_mut(),
            len,
            read,
            private,
            file.as_raw_fd(),
            0,
        )
    };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// A CUDA ELF image with the functions, and the offsets of their names.
fn image() -> (Vec<u8>, Vec<usize>) {
    let mut names = vec![0u8];
    let mut add = |name: &str| {
        let at = names.len();
        names.extend_from_slice(name.as_bytes());
        names.push(0);
        at
    };
    // Name, kind, contents, information.
    let mut sections: Vec<(usize, u32, Vec<u8>, u32)> = vec![(0, 0, Vec::new(), 0)];
    let mut offsets = Vec::new();
    for number in 0..COUNT {
        let at = add(&format!(".text.{}", name(number)));
        offsets.push(at + ".text.".len());
        sections.push((at, 1, code(number), registers(number) << 24 | number as u32));
    }
    let own = add(".shstrtab");
    sections.push((own, 3, names, 0));
    let mut bytes = vec![0u8; 64];
    // ELF, 64 bits, little-endian, version 1, the OS ABI of CUDA; executable; EM_CUDA; sm_90.
    bytes[..9].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1, 1, 0x33, 7]);
    (bytes[16], bytes[18], bytes[20], bytes[48], bytes[52]) = (2, 190, 1, 90, 64);
    let (mut table, mut strings) = (Vec::new(), 0);
    for (name, kind, contents, information) in &sections {
        let at = bytes.len();
        if *kind == 3 {
            strings = at;
        }
        bytes.extend_from_slice(contents);
        bytes.resize(bytes.len().next_multiple_of(16), 0);
        table.extend((*name as u32).to_le_bytes());
        table.extend(kind.to_le_bytes());
        table.extend([0; 16]);
        table.extend((at as u64).to_le_bytes());
        table.extend((contents.len() as u64).to_le_bytes());
        table.extend([0; 4]);
        table.extend(information.to_le_bytes());
        table.extend([0; 16]);
    }
    let table_at = bytes.len() as u64;
    bytes[40..48].copy_from_slice(&table_at.to_le_bytes());
    bytes[58] = 64;
    bytes[60] = sections.len() as u8;
    bytes[62] = sections.len() as u8 - 1;
    bytes.extend(table);
    (bytes, offsets.iter().map(|at| strings + at).collect())
}
