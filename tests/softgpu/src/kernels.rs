//! Functions with names, kept in memory as libcuda keeps them: a cubin image, and a record of each function that holds its
//! program's address and a pointer to its name. The distances in a record are not those of any release of the driver: a tracer
//! must learn them.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use crate::form::ARGUMENTS;
use crate::rng::Rng;

/// Number of functions of a module. Those of the first module have the numbers from 0 on, those of the second come next.
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
/// Links point here.
const LINKED_AT: usize = 0x1b8;

/// The module of the collectives' functions.
const COLLECTIVES: u64 = 1000;
/// Names of its functions, without their arguments: those of NCCL's.
const NCCL: [&str; COUNT as usize] = [
    "AllReduce_Sum_f32_RING_LL",
    "ReduceScatter_Sum_f32_RING_LL",
    "AllGather_RING_LL",
    "AllReduce_Sum_f16_RING_LL",
    "AllReduce_Sum_bf16_RING_LL",
    "AllReduce_Sum_f32_TREE_LL",
    "ReduceScatter_Sum_f16_RING_LL",
    "ReduceScatter_Sum_bf16_RING_LL",
    "Reduce_Sum_f32_RING_LL",
    "Broadcast_RING_LL",
    "SendRecv",
    "Generic_4",
];

/// The function of a collective: an all-reduce, or another kind.
#[must_use]
pub fn collective(other: bool) -> u64 {
    COLLECTIVES * COUNT + u64::from(other)
}

/// The mangled name of a function: `void kernel<N>(float*)`, or one of NCCL's.
#[must_use]
pub fn name(number: u64) -> String {
    match number.checked_sub(COLLECTIVES * COUNT) {
        Some(at) if at < COUNT => {
            let name = format!("ncclDevKernel_{}", NCCL[at as usize]);
            format!("_Z{}{name}24ncclDevKernelArgsStorageILm4096EE", name.len())
        }
        _ => format!("_Z6kernelILi{number}EEvPf"),
    }
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

/// Modules in memory.
static KEPT: Mutex<Kept> = Mutex::new(Kept {
    modules: 0,
    memory: None,
});

struct Kept {
    modules: u64,
    /// Memory of the process that was touched before, for later modules: address and bytes.
    memory: Option<(u64, u64)>,
}

/// Bytes between the places of one module and the next in memory that was touched before.
const APART: u64 = 192 << 10;
/// Number of modules for each that lies far from the others.
const FAR_ONE_IN: u64 = 8;
/// Distance from a module's records to its image.
const IMAGE_BEHIND: u64 = 64 << 10;

/// Touches this number of bytes of private memory. Modules that are kept from now on lie in it: each a little behind the one before, one in
/// [`FAR_ONE_IN`] anywhere.
///
/// # Errors
/// Those of mapping memory.
pub fn touch(bytes: u64) -> io::Result<()> {
    // SAFETY: a new mapping of its own.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the mapping has so many bytes, and nothing else knows it.
    unsafe { std::ptr::write_bytes(at.cast::<u8>(), 0x5a, bytes as usize) };
    kept().memory = Some((at as u64, bytes));
    Ok(())
}

fn kept() -> std::sync::MutexGuard<'static, Kept> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Puts the images and the records of the first `modules` modules into memory that stays, unless they are there.
pub fn keep(modules: u64) {
    let mut kept = kept();
    while kept.modules < modules {
        keep_module(kept.modules, kept.memory);
        kept.modules += 1;
    }
}

/// Puts the image and the records of the collectives' functions into memory that stays. To be called once.
pub fn keep_collectives() {
    keep_module(COLLECTIVES, None);
}

/// Returns the address in `memory` at which a module's records are kept.
fn place(module: u64, (at, bytes): (u64, u64)) -> u64 {
    let room = bytes.saturating_sub(2 * IMAGE_BEHIND);
    let near = bytes / 2 + module * APART;
    let far = (module.wrapping_mul(0x9e37_79b9_7f4a_7c15) % room.max(1)) & !63;
    let offset = match (module + 1).is_multiple_of(FAR_ONE_IN) || near > room {
        true => far,
        false => near,
    };
    at + offset
}

fn keep_module(module: u64, memory: Option<(u64, u64)>) {
    let (image, names) = image(module);
    let mut records = vec![0u8; RECORD * COUNT as usize];
    let (base, image_at) = match memory {
        Some(memory) => {
            let at = place(module, memory);
            put_at(at + IMAGE_BEHIND, &image);
            (at, at + IMAGE_BEHIND)
        }
        None => (records.as_ptr() as u64, image.leak().as_ptr() as u64),
    };
    for (i, name) in names.iter().enumerate() {
        let (record, number) = (RECORD * i, module * COUNT + i as u64);
        let mut put = |at: usize, word: u64| {
            records[record + at..record + at + 8].copy_from_slice(&word.to_le_bytes());
        };
        put(ADDRESS_AT, program(number));
        put(NAME_AT, image_at + *name as u64);
        put(REGISTERS_AT, u64::from(registers(number)));
        put(
            NEXT_AT,
            base + (RECORD * ((i + 1) % COUNT as usize) + LINKED_AT) as u64,
        );
    }
    if memory.is_some() {
        put_at(base, &records);
    } else {
        records.leak();
    }
}

/// Writes bytes to the memory of [`touch`].
fn put_at(at: u64, bytes: &[u8]) {
    // SAFETY: the places of modules lie in that memory, which stays and of which nothing has a reference.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len()) };
}

/// Returns the number of modules whose functions the submission of a channel with this number may launch, if there is one more after
/// every so many submissions.
#[must_use]
pub fn modules(every: u64, number: u64) -> u64 {
    1 + number.checked_div(every).unwrap_or(0)
}

/// Picks a function of `modules` modules to launch; every other time one of the newest.
pub(crate) fn pick(rng: &mut Rng, modules: u64) -> u64 {
    let module = match modules {
        1 => 0,
        _ if rng.one_in(2) => modules - 1,
        _ => rng.below(modules),
    };
    module * COUNT + rng.below(COUNT)
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
    let (image, _) = image(0);
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

/// Type of the sections `.nv.info`: that of processors, the first.
const NV_INFO: u32 = 0x7000_0000;

/// Attributes of a function of this symbol that has one parameter, a pointer: its place in constant bank 0, and the parameter.
fn pointer(symbol: u32) -> Vec<u8> {
    const BYTES: u32 = 8;
    let words = [
        0x0008_0a04,
        symbol,
        BYTES << 16 | ARGUMENTS as u32,
        0x000c_1704,
        0,
        0,
        BYTES << 18 | 0x1_f000,
    ];
    words.into_iter().flat_map(u32::to_le_bytes).collect()
}

/// A CUDA ELF image with a module's functions, and the offsets of their names.
fn image(module: u64) -> (Vec<u8>, Vec<usize>) {
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
    for number in module * COUNT..(module + 1) * COUNT {
        let at = add(&format!(".text.{}", name(number)));
        offsets.push(at + ".text.".len());
        let index = sections.len() as u32;
        sections.push((at, 1, code(number), registers(number) << 24 | number as u32));
        // Of NCCL's functions nothing is said: their one parameter is larger than what launches have here.
        if module < COLLECTIVES {
            let at = add(&format!(".nv.info.{}", name(number)));
            sections.push((at, NV_INFO, pointer(number as u32), index));
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use nvcap_decode::cubin::{Bank, Cubin, Param};

    #[test]
    fn images_tell_the_parameters_of_their_functions() {
        let parameters = |module| {
            let (bytes, _) = image(module);
            let image = Cubin::read(bytes.as_slice(), 0).unwrap();
            let of = |n| {
                let function = image.function(&name(module * COUNT + n)).unwrap();
                (function.params.clone(), function.bank)
            };
            assert_eq!(of(0), of(COUNT - 1));
            of(0)
        };
        let pointer = Param {
            ordinal: 0,
            offset: 0,
            size: 8,
        };
        let bank = Bank {
            offset: ARGUMENTS as u32,
            size: 8,
        };
        assert_eq!(parameters(1), (vec![pointer], Some(bank)));
        assert_eq!(parameters(COLLECTIVES), (Vec::new(), None));
    }
}
