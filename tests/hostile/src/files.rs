//! Files and memory that cost whoever reads them much more than their maker: for a tracer that looks up functions, names and variables.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::bed::{Bed, CHANNELS, pause};
use crate::process::map_any;

/// Address of the code of the first such file, and the distance of one from the next.
const CODE: u64 = 0x3_0000_0000;
const APART: u64 = 0x1_0000;
const PAGE: usize = 0x1000;
/// The offset of the code in a file.
const AT: usize = 0x800;

/// Two gibibytes of environment, by PR_SET_MM_MAP: reading it takes as much memory from whoever reads.
pub fn environment(bed: &Bed) -> Result<()> {
    /// `struct prctl_mm_map` of linux/prctl.h.
    #[repr(C)]
    struct Map {
        /// Begin and end of code, of data; begin of the heap, and its end; begin of the stack; begin and end of the arguments, of the environment.
        places: [u64; 11],
        auxv: u64,
        auxv_size: u32,
        exe_fd: i32,
    }
    const PR_SET_MM_MAP: libc::c_ulong = 14;
    const LEN: usize = 2 << 30;
    let both = libc::PROT_READ | libc::PROT_WRITE;
    let start = map_any(LEN, both, libc::MAP_NORESERVE)?;
    let stat = fs::read_to_string("/proc/self/stat")?;
    let (_, fields) = stat.rsplit_once(") ").context("no name")?;
    let fields: Vec<&str> = fields.split(' ').collect();
    // proc(5) counts from 1, and the third is the first behind the name.
    let field = |n: usize| fields.get(n - 3).and_then(|f| f.trim().parse::<u64>().ok());
    let mut places = [0; 11];
    for (place, n) in [0, 1, 2, 3, 4, 6, 7, 8]
        .into_iter()
        .zip([26, 27, 45, 46, 47, 28, 48, 49])
    {
        places[place] = field(n).with_context(|| format!("no field {n}"))?;
    }
    // SAFETY: asks for the end of the heap.
    places[5] = unsafe { libc::sbrk(0) } as u64;
    (places[9], places[10]) = (start, start + LEN as u64);
    let map = Map {
        places,
        auxv: 0,
        auxv_size: 0,
        exe_fd: -1,
    };
    // SAFETY: the kernel reads one structure.
    let set = unsafe { libc::prctl(libc::PR_SET_MM, PR_SET_MM_MAP, &map, size_of::<Map>(), 0) };
    // A kernel without CONFIG_CHECKPOINT_RESTORE does not know it: then the rest is the mode.
    let error = std::io::Error::last_os_error();
    ensure!(
        set == 0 || error.raw_os_error() == Some(libc::EINVAL),
        "PR_SET_MM_MAP: {error}"
    );
    bed.submit_many(200);
    Ok(())
}

/// Files that are mapped and then replaced by FIFOs, to whose opening nobody answers.
pub fn fifos(bed: &Bed) -> Result<()> {
    let folder = folder()?;
    for n in 0..8 {
        let path = folder.join(format!("lib{n}.so"));
        let code = map(&path, &elf(0, &[]), n)?;
        fs::remove_file(&path)?;
        let name = CString::new(path.as_os_str().as_bytes())?;
        // SAFETY: a string that ends with a zero.
        let made = unsafe { libc::mkfifo(name.as_ptr(), 0o666) };
        ensure!(made == 0, "{path:?}: {}", std::io::Error::last_os_error());
        bed.submit_from(n as usize % CHANNELS, code);
        pause();
    }
    Ok(())
}

/// An ELF file that says it has forty million sections, in which the doorbell is rung; it is sparse.
pub fn sections(bed: &Bed) -> Result<()> {
    const SECTIONS: u64 = 40_000_000;
    let folder = folder()?;
    let path = folder.join("sections.so");
    let code = map(&path, &elf(SECTIONS, &[]), 0)?;
    submit_from_each(bed, &[code]);
    Ok(())
}

/// C++ names of less than 200 bytes that are 15 MB each when they are written out.
pub fn long_names(bed: &Bed) -> Result<()> {
    let folder = folder()?;
    let mut codes = Vec::new();
    for n in 0..32 {
        let path = folder.join(format!("names{n}.so"));
        codes.push(map(&path, &elf(0, doubling(n as usize, 18).as_bytes()), n)?);
    }
    submit_from_each(bed, &codes);
    Ok(())
}

fn submit_from_each(bed: &Bed, codes: &[u64]) {
    for n in 0..64 {
        bed.submit_from(n % CHANNELS, codes[n % codes.len()]);
        pause();
    }
}

/// Makes the mangled name of a function whose argument's type has two of the one before it, `levels` times.
fn doubling(n: usize, levels: usize) -> String {
    let digit = |i: usize| {
        char::from_digit(i as u32, 36)
            .unwrap_or('0')
            .to_ascii_uppercase()
    };
    let number = |mut i: usize| {
        let mut text = String::new();
        loop {
            text.insert(0, digit(i % 36));
            i /= 36;
            if i == 0 {
                return text;
            }
        }
    };
    let function = format!("f{n}");
    let mut name = format!("_Z{}{function}PFviiE", function.len());
    for level in 0..levels {
        // Of two substitutions a level, the pointer's.
        let before = format!("S{}_", number(2 * level));
        name += &format!("PFv{before}{before}E");
    }
    name
}

/// An ELF file with one page of code, a symbol of this name for it unless the name is empty, and `sections` in its header if that is not 0.
fn elf(sections: u64, name: &[u8]) -> (Vec<u8>, u64) {
    /// The offset of the section headers.
    const SECTION_HEADERS: usize = 0x180;
    const STRINGS: usize = 0x400;
    const SYMBOLS: usize = 0x300;
    let mut file = vec![0; PAGE];
    let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"\x7fELF\x02\x01\x01");
    // A shared object for x86-64, version 1.
    put(16, &[3, 0, 62, 0, 1]);
    put(32, &0x100u64.to_le_bytes());
    put(40, &(SECTION_HEADERS as u64).to_le_bytes());
    let count = if sections > 0 { 0 } else { 4u16 };
    let small = [64, 56, 1, 64, count, if sections > 0 { 0 } else { 3 }];
    for (i, value) in small.into_iter().enumerate() {
        put(52 + 2 * i, &value.to_le_bytes());
    }
    // PT_LOAD, readable and executable: the page, at 0.
    put(0x100, &[1, 0, 0, 0, 5]);
    for at in [0x120, 0x128] {
        put(at, &(PAGE as u64).to_le_bytes());
    }
    let mut section = |n: usize, kind: u32, values: [u64; 4], link: u32, entry: u64| {
        let at = SECTION_HEADERS + 64 * n;
        put(at + 4, &kind.to_le_bytes());
        for (i, value) in values.into_iter().enumerate() {
            put(at + 8 + 8 * i, &value.to_le_bytes());
        }
        put(at + 40, &link.to_le_bytes());
        put(at + 56, &entry.to_le_bytes());
    };
    if sections > 0 {
        // Where there are too many for the header, the first section's size is their number.
        section(0, 0, [0, 0, 0, sections], 0, 0);
        put(AT, CODE_BYTES);
        return (file, SECTION_HEADERS as u64 + 64 * sections);
    }
    // PROGBITS, ALLOC and EXECINSTR; SYMTAB; STRTAB.
    section(
        1,
        1,
        [6, AT as u64, AT as u64, CODE_BYTES.len() as u64],
        0,
        0,
    );
    section(2, 2, [0, 0, SYMBOLS as u64, 48], 3, 24);
    section(3, 3, [0, 0, STRINGS as u64, name.len() as u64 + 2], 0, 0);
    // The name at 1; a global function in section 1.
    put(SYMBOLS + 24, &[1, 0, 0, 0, 0x12, 0, 1, 0]);
    put(SYMBOLS + 32, &(AT as u64).to_le_bytes());
    put(SYMBOLS + 40, &(CODE_BYTES.len() as u64).to_le_bytes());
    put(STRINGS + 1, name);
    put(AT, CODE_BYTES);
    (file, PAGE as u64)
}

/// `mov %ecx,(%rax); ret`.
const CODE_BYTES: &[u8] = &[0x89, 0x08, 0xc3];

/// Writes a file and maps its page; gives where its code is.
fn map(path: &Path, (bytes, len): &(Vec<u8>, u64), n: u64) -> Result<u64> {
    let mut options = OpenOptions::new();
    let file: File = options.read(true).write(true).create_new(true).open(path)?;
    file.write_all_at(bytes, 0)?;
    file.set_len(*len)?;
    let at = CODE + n * APART;
    let flags = libc::MAP_PRIVATE | libc::MAP_FIXED_NOREPLACE;
    let prot = libc::PROT_READ | libc::PROT_EXEC;
    let address = at as *mut libc::c_void;
    // SAFETY: no address that is in use is taken; nothing is dereferenced here.
    let got = unsafe { libc::mmap(address, PAGE, prot, flags, file.as_raw_fd(), 0) };
    ensure!(got == address, "cannot map {}", path.display());
    Ok(at + AT as u64)
}

/// A new folder for one run, whose files stay until the next one: they are opened when this has ended, too.
fn folder() -> Result<PathBuf> {
    const NAME: &str = "hostile-files.";
    let all = std::env::temp_dir();
    for old in fs::read_dir(&all)?.flatten() {
        let name = old.file_name();
        let of = name
            .to_str()
            .and_then(|n| n.strip_prefix(NAME)?.parse::<u32>().ok());
        if of.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            // Another run may be removing it too.
            let _ = fs::remove_dir_all(old.path());
        }
    }
    let folder = all.join(format!("{NAME}{}", std::process::id()));
    fs::create_dir(&folder).with_context(|| folder.display().to_string())?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_and_what_they_stand_for_is_long() {
        assert_eq!(doubling(1, 0), "_Z2f1PFviiE");
        assert_eq!(doubling(1, 2), "_Z2f1PFviiEPFvS0_S0_EPFvS2_S2_E");
        assert!(doubling(31, 18).len() < 250);
    }

    #[test]
    fn headers_lie_where_they_say() {
        let (bytes, len) = elf(0, b"_Z1fv");
        assert_eq!((bytes.len() as u64, &bytes[AT..AT + 3]), (len, CODE_BYTES));
        assert_eq!(&bytes[0x401..0x407], b"_Z1fv\0");
        let (bytes, len) = elf(7, b"");
        assert_eq!(&bytes[0x180 + 32..0x180 + 40], &7u64.to_le_bytes());
        assert_eq!(len, 0x180 + 7 * 64);
    }
}
