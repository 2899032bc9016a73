//! Images of CUDA code: one that nvcc made and that was found in a process's memory, made-up ones for what that one
//! does not have, and bytes that are none.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::Path;

use crate::common::files::{capture, xz_fixture};
use nvcap_decode::cubin::compare::{Likeness, compare, masked_equal, without_zeros};
use nvcap_decode::decode::event::{Body, Operation};
use nvcap_decode::decode::{DecodeOptions, Decoder};
use nvcap_decode::record::{Record, Variable};
use nvcap_decode::{
    cubin::{Bank, Cubin, Function as CodeFunction, MOST_READ, Param, beginnings, variables},
    wire::read_memory::ReadMemory,
};
use nvcap_recording::file::orc::Orc;
use nvcap_show::output::kernel_name::short;
use proptest::prelude::*;

/// The image of tests/gpu/meaning/cuda.cu.
fn graphs() -> Option<Vec<u8>> {
    Some(unpacked(&capture("h200-graphs.cubin.xz")?))
}

fn unpacked(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut file = nvcap_recording::file::packed::open(path).expect("it opens");
    file.read_to_end(&mut bytes).expect("it can be read");
    bytes
}

fn param(ordinal: u16, offset: u32, size: u32) -> Param {
    Param {
        ordinal,
        offset,
        size,
    }
}

/// Image as nvcc's `cuobjdump -res-usage` and the source describe that program. `readelf -SW` shows the sections.
#[test]
fn of_nvcc() {
    let Some(bytes) = graphs() else { return };
    let image = Cubin::read(bytes.as_slice(), 0).expect("an image");
    assert_eq!((image.at, image.len), (0, bytes.len() as u64));
    assert_eq!((image.sm, image.relocatable), (90, false));
    let functions: Vec<_> = image
        .functions
        .iter()
        .map(|f| (f.name.as_str(), f.section, f.code.clone(), f.registers))
        .collect();
    assert_eq!(
        functions,
        [
            ("_Z6refillPii", 27, 0x2000..0x2100, Some(8)),
            ("_Z6decideyPi", 28, 0x2100..0x2300, Some(24)),
            ("_Z6secondPf", 29, 0x2300..0x2480, Some(8)),
            ("_Z5firstPf", 30, 0x2480..0x2600, Some(8)),
            ("_Z8togetherPf", 31, 0x2600..0x3100, Some(22)),
            ("_Z12free_clusterPf", 32, 0x3100..0x3380, Some(8)),
            ("_Z13fixed_clusterPf", 33, 0x3380..0x3580, Some(8)),
            ("_Z9with_bothPfi", 34, 0x3580..0x3900, Some(12)),
            ("_Z12with_dynamicPfi", 35, 0x3900..0x3c00, Some(12)),
            ("_Z11with_staticPff", 36, 0x3c00..0x3e00, Some(10)),
            ("_Z3addPfif", 37, 0x3e00..0x4000, Some(8)),
        ]
    );
    let add = image.function("_Z3addPfif").expect("it is there");
    let three = [param(0, 0, 8), param(1, 8, 4), param(2, 12, 4)];
    assert_eq!(add.params, three);
    let bank = Bank {
        offset: 0x210,
        size: 16,
    };
    assert_eq!(add.bank, Some(bank));
    assert!(add.relocations.is_empty());
    assert!(image.function("add").is_none());
}

/// Memory that begins at `at`, is read in pieces, and ends where the image does.
struct At(u64, Vec<u8>);

impl ReadMemory for At {
    fn read_bytes(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
        let at = at.checked_sub(self.0).ok_or(io::ErrorKind::NotFound)?;
        self.1.as_slice().read_bytes(at, to)
    }
}

#[test]
fn at_an_address() {
    let Some(bytes) = graphs() else { return };
    let here = Cubin::read(bytes.as_slice(), 0).expect("an image");
    let there = Cubin::read(&At(0x7f00_0000_1230, bytes), 0x7f00_0000_1230).expect("an image");
    assert_eq!(there.at, 0x7f00_0000_1230);
    assert_eq!((there.len, there.functions), (here.len, here.functions));
}

/// A section: name, type, `sh_info`, bytes.
type Section<'a> = (&'a str, u32, u32, &'a [u8]);

/// An ELF image of these sections, with a first one that is empty and a last one with the names.
fn elf(abi: u8, flags: u32, sections: &[Section<'_>]) -> Vec<u8> {
    let mut out = vec![0u8; 64];
    let mut names = vec![0u8];
    let mut headers = vec![0u8; 64];
    let mut add = |out: &mut Vec<u8>, section: Section<'_>, bytes: &[u8]| {
        let (name, kind, info, _) = section;
        let at = out.len() as u64;
        out.extend(bytes);
        let mut header = [0u8; 64];
        header[..4].copy_from_slice(&(names.len() as u32).to_le_bytes());
        header[4..8].copy_from_slice(&kind.to_le_bytes());
        header[24..32].copy_from_slice(&at.to_le_bytes());
        header[32..40].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
        header[44..48].copy_from_slice(&info.to_le_bytes());
        headers.extend(header);
        names.extend(name.bytes());
        names.push(0);
        names.clone()
    };
    for section in sections {
        add(&mut out, *section, section.3);
    }
    let last = (".shstrtab", 3, 0, [].as_slice());
    // The names, and their own section's name and header with its place.
    let all = {
        let mut before = out.clone();
        add(&mut before, last, &[])
    };
    let at = out.len() as u64;
    let header = headers.len() - 64;
    headers[header + 24..header + 32].copy_from_slice(&at.to_le_bytes());
    headers[header + 32..header + 40].copy_from_slice(&(all.len() as u64).to_le_bytes());
    out.extend(all);
    let table = out.len() as u64;
    out.extend(&headers);
    out[..9].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1, 1, abi, 7]);
    out[16..20].copy_from_slice(&[1, 0, 190, 0]);
    out[40..48].copy_from_slice(&table.to_le_bytes());
    out[48..52].copy_from_slice(&flags.to_le_bytes());
    let count = sections.len() as u8 + 2;
    out[58..64].copy_from_slice(&[64, 0, count, 0, count - 1, 0]);
    out
}

/// Describes variables: name, size, `c` for constants.
fn described(all: &[Variable]) -> Vec<String> {
    let kind = |v: &Variable| if v.constant { " c" } else { "" };
    let one = |v: &Variable| format!("{} {}{}", v.name, v.bytes, kind(v));
    all.iter().map(one).collect()
}

/// What ptxas wrote for variables of each kind (tests/fixtures/README.md).
#[test]
fn variables_have_names_and_sizes() {
    let Some(path) = xz_fixture("ptxas-variables.cubin.xz") else {
        return;
    };
    let bytes = unpacked(&path);
    let all = variables(bytes.as_slice(), 0).expect("an image");
    let wanted = [
        "seven 28",
        "_$_str 4",
        "table 4000",
        "scale 400 c",
        "bias 12 c",
    ];
    assert_eq!(described(&all), wanted);
    // A program without any; an image that is cut; none.
    let Some(without) = graphs() else { return };
    assert_eq!(variables(without.as_slice(), 0), Some(Vec::new()));
    // Behind it are headers that are not read.
    let end_of_sections = 0xcc0 + 17 * 64;
    for len in (0..end_of_sections).step_by(61) {
        let part = bytes.get(..len).expect("a part");
        assert!(variables(part, 0).is_none_or(|all| all.is_empty()), "{len}");
    }
}

/// Symbols that are no variables, and those of ELF32.
#[test]
fn symbols_of_data_alone_are_variables() {
    let names = b"\0.strtab\0table\0scale\0code\0";
    // Name, type, section, size.
    let symbols = [
        (9, 0x11, 1, 40),
        (15, 0x01, 2, 12),
        // A section, a function, an object in code, an undefined one, one of no section.
        (9, 0x03, 1, 40),
        (21, 0x12, 1, 40),
        (21, 0x11, 3, 40),
        (21, 0x11, 0, 40),
        (21, 0x11, 0xfff1, 40),
    ];
    let table = |wide: bool| {
        let one = |&(name, kind, section, size): &(u32, u8, u16, u32)| {
            let mut symbol = name.to_le_bytes().to_vec();
            let of = [&[kind, 0][..], &section.to_le_bytes()].concat();
            match wide {
                true => {
                    symbol.extend(of);
                    symbol.extend([0; 8]);
                    symbol.extend(u64::from(size).to_le_bytes());
                }
                false => {
                    symbol.extend([0; 4]);
                    symbol.extend(size.to_le_bytes());
                    symbol.extend(of);
                }
            }
            symbol
        };
        symbols.iter().flat_map(one).collect::<Vec<u8>>()
    };
    let image = |wide, names: &[u8]| {
        let table = table(wide);
        let sections = [
            (".nv.global", 8, 0, &[][..]),
            (".nv.constant3", 1, 0, &[0; 12]),
            (".text.code", 1, 0, &[0; 16]),
            (".strtab", 3, 0, names),
            (".symtab", 2, 0, &table),
        ];
        elf(0x33, 90, &sections)
    };
    let wanted = ["table 40", "scale 12 c"];
    let wide = image(true, names);
    assert_eq!(described(&variables(wide.as_slice(), 0).unwrap()), wanted);
    let short = narrow(&image(false, names));
    assert_eq!(described(&variables(short.as_slice(), 0).unwrap()), wanted);
    // Names that are not there.
    assert_eq!(variables(image(true, &names[..12]).as_slice(), 0), None);
}

/// ABI, flags and the beginning of `.nv.compat` that ptxas 12.9.86, 13.0.88 and 13.5.37 wrote for each target.
#[test]
fn architectures_are_told_apart() {
    let (base, only) = (
        &[2u8, 9, 0, 0, 2, 2, 1, 0][..],
        &[2u8, 9, 1, 0, 2, 2, 1, 0][..],
    );
    // Number 9 within a value, and behind it.
    let behind = &[4u8, 11, 4, 0, 2, 9, 1, 0, 2, 9, 0, 0][..];
    for (abi, flags, compat, target) in [
        (0x33, 0x5a_055a, &[][..], "sm_90"),
        (0x33, 0x5a_0d5a, &[], "sm_90a"),
        (0x41, 0x600_6402, &[2, 2, 1, 0], "sm_100"),
        (0x41, 0x600_640a, &[2, 2, 1, 0], "sm_100a"),
        (0x41, 0x600_670a, &[2, 2, 1, 0], "sm_103a"),
        (0x41, 0x600_790a, &[2, 2, 1, 0], "sm_121a"),
        (0x41, 0x600_5a04, base, "sm_90"),
        (0x41, 0x600_5a04, only, "sm_90a"),
        (0x41, 0x600_6402, base, "sm_100"),
        (0x41, 0x600_6402, only, "sm_100a"),
        (0x41, 0x600_6702, only, "sm_103a"),
        (0x41, 0x600_7902, base, "sm_121"),
        (0x41, 0x600_7902, only, "sm_121a"),
        (0x41, 0x600_7902, behind, "sm_121"),
    ] {
        let bytes = elf(abi, flags, &[(".nv.compat", 0x7000_0086, 0, compat)]);
        let image = Cubin::read(bytes.as_slice(), 0).expect("an image");
        assert_eq!(image.target(), target, "{abi:#x} {flags:#x} {compat:?}");
    }
}

/// The end of `.note.nv.tkinfo` as ptxas 13.5.37 wrote it for each target; nothing else in the images of `sm_100` and `sm_100f` differs.
#[test]
fn a_family_is_told_by_the_assembler_s_command_line() {
    let base = &[2u8, 9, 0, 0, 2, 2, 1, 0][..];
    let only = &[2u8, 9, 1, 0, 2, 2, 1, 0][..];
    for (flags, compat, options, target) in [
        (0x600_6402, base, "-arch sm_100 -m 64 ", "sm_100"),
        (0x600_6402, base, "-arch sm_100f -m 64 ", "sm_100f"),
        (0x600_6402, only, "-arch sm_100a -m 64 ", "sm_100a"),
        (0x600_6702, base, "-arch sm_103f -m 64 ", "sm_103f"),
        (0x600_7902, base, "-arch sm_121f", "sm_121f"),
        // Of another image, a longer word, a name.
        (0x600_6702, base, "-arch sm_100f -m 64 ", "sm_103"),
        (0x600_6402, base, "-arch sm_100fast ", "sm_100"),
        (0x600_6402, base, "sm_100f", "sm_100"),
    ] {
        let note = format!("ptxas\0Cuda compilation tools, release 13.5\0{options}\0");
        let sections = [
            (".nv.compat", 0x7000_0086, 0, compat),
            (".note.nv.tkinfo", 7, 0, note.as_bytes()),
        ];
        let bytes = elf(0x41, flags, &sections);
        let image = Cubin::read(bytes.as_slice(), 0).expect("an image");
        assert_eq!(image.target(), target, "{options}");
    }
}

/// Returns an image with the headers and relocations of 32-bit ELF in the place of its own.
fn narrow(wide: &[u8]) -> Vec<u8> {
    let word = |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let half = |bytes: &[u8], at: usize| u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap());
    let (table, count) = (word(wide, 40) as usize, usize::from(half(wide, 60)));
    let mut out = vec![0u8; 64];
    let mut headers = Vec::new();
    for header in wide[table..table + count * 64].chunks(64) {
        let (at, size) = (word(header, 24) as usize, word(header, 32) as usize);
        let kind = u32::from_le_bytes(header[4..8].try_into().unwrap());
        let bytes = &wide[at..at + size];
        let bytes: Vec<u8> = match kind {
            // Relocations: each word is half as long.
            4 | 9 => { bytes.chunks(8) }
                .flat_map(|w| w[..4].iter().copied())
                .collect(),
            _ => bytes.to_vec(),
        };
        let mut narrow = [0u8; 40];
        narrow[..8].copy_from_slice(&header[..8]);
        narrow[16..20].copy_from_slice(&(out.len() as u32).to_le_bytes());
        narrow[20..24].copy_from_slice(&(bytes.len() as u32).to_le_bytes());
        narrow[28..32].copy_from_slice(&header[44..48]);
        headers.extend(narrow);
        out.extend(bytes);
        out.resize(out.len().next_multiple_of(4), 0);
    }
    out[..16].copy_from_slice(&wide[..16]);
    out[4] = 1;
    out[16..20].copy_from_slice(&wide[16..20]);
    let table = out.len() as u32;
    out[32..36].copy_from_slice(&table.to_le_bytes());
    out[36..40].copy_from_slice(&wide[48..52]);
    out[46..48].copy_from_slice(&40u16.to_le_bytes());
    out[48..52].copy_from_slice(&wide[60..64]);
    out.extend(headers);
    out
}

/// Toolkits before CUDA 9 wrote 32-bit images for 32-bit programs.
#[test]
fn an_image_of_32_bits_is_read_as_one_of_64() {
    let mut wide = older();
    wide[16] = 2;
    let wide_image = Cubin::read(wide.as_slice(), 0).expect("an image");
    let bytes = narrow(&wide);
    let image = Cubin::read(bytes.as_slice(), 0).expect("an image");
    assert_eq!(image.len, bytes.len() as u64);
    assert_eq!((image.sm, image.relocatable), (wide_image.sm, false));
    assert_eq!(image.functions.len(), wide_image.functions.len());
    assert!(!image.functions.is_empty());
    for (narrow, wide_function) in image.functions.iter().zip(&wide_image.functions) {
        let code = |bytes: &[u8], f: &CodeFunction| {
            bytes[f.code.start as usize..f.code.end as usize].to_vec()
        };
        assert_eq!(code(&bytes, narrow), code(&wide, wide_function));
        assert_eq!(narrow.name, wide_function.name);
        assert_eq!(narrow.params, wide_function.params);
        assert_eq!(narrow.relocations, wide_function.relocations);
    }
    assert!({ image.functions.iter() }.any(|f| !f.relocations.is_empty()));
    assert_eq!(beginnings(&bytes).next(), Some(0));
    // Cut anywhere, it is read or refused.
    for len in 0..bytes.len() {
        let _ = Cubin::read(&bytes[..len], 0);
    }
}

fn rela(offset: u64) -> Vec<u8> {
    let mut bytes = offset.to_le_bytes().to_vec();
    bytes.extend([0; 16]);
    bytes
}

/// The image of an older toolkit: the flags' low byte, registers beside the section, relocations of both forms, and
/// parameters of more than 4 KiB. The attribute's words are those that nvcc 12.9 wrote for a parameter of 0x1520 bytes.
fn older() -> Vec<u8> {
    let large = [
        [4, 0x45, 12, 0, 0, 0, 0, 0, 1, 0, 0x20, 0x15, 8, 0, 0, 5].as_slice(),
        &[3, 0x19, 0x28, 0x15],
        &[4, 0x45, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x20, 0x15, 0, 0],
        &[4, 0x0a, 8, 0, 2, 0, 0, 0, 0x60, 1, 0x28, 0x15],
    ];
    let (first, second) = ([rela(0x10), rela(0x48)].concat(), [rela(0x10)].concat());
    elf(
        0x33,
        0x0055_0555,
        &[
            (".text.large", 1, 0x1800_0003, &[0xaa; 0x40]),
            (".text.$_ZN1a1bEv", 1, 0x0000_0004, &[0xbb; 0x20]),
            (".nv.info.large", 0x7000_0000, 1, &large.concat()),
            (".rela.text.large", 4, 1, &first),
            (".rel.text.$_ZN1a1bEv", 9, 2, &second[..16]),
            (
                ".nv.info",
                0x7000_0000,
                0,
                &[4, 0x2f, 8, 0, 4, 0, 0, 0, 40, 0, 0, 0],
            ),
        ],
    )
}

#[test]
fn older_toolkits_and_large_parameters() {
    let bytes = older();
    let image = Cubin::read(bytes.as_slice(), 0).expect("an image");
    assert_eq!((image.sm, image.relocatable), (0x55, true));
    assert_eq!(image.len, bytes.len() as u64);
    let [large, device] = image.functions.as_slice() else {
        panic!("{image:?}");
    };
    assert_eq!((large.registers, device.registers), (Some(24), Some(40)));
    assert_eq!(large.params, [param(0, 0, 0x1520), param(1, 0x1520, 8)]);
    let bank = Bank {
        offset: 0x160,
        size: 0x1528,
    };
    assert_eq!(large.bank, Some(bank));
    // The second one lies outside of the code.
    assert_eq!(large.relocations, [0x10]);
    assert_eq!(device.relocations, [0x10]);
    assert_eq!(device.name, "$_ZN1a1bEv");
    let code = |f: &CodeFunction| bytes[f.code.start as usize..f.code.end as usize].to_vec();
    assert_eq!(code(large), [0xaa; 0x40]);
    assert_eq!(code(device), [0xbb; 0x20]);
}

#[test]
fn other_elf_files_are_none() {
    let good = older();
    for (at, byte) in [
        (3, b'f'),
        (4, 1),
        (5, 2),
        (7, 0),
        (16, 3),
        (18, 62),
        (58, 40),
    ] {
        let mut bytes = good.clone();
        bytes[at] = byte;
        assert!(Cubin::read(bytes.as_slice(), 0).is_none(), "byte {at}");
    }
    assert!(Cubin::read(&good[..good.len() - 1], 0).is_none());
    assert!(Cubin::read([].as_slice(), 0).is_none());
    assert!(Cubin::read(good.as_slice(), u64::MAX).is_none());
}

/// Images may begin in a file at multiples of 8.
#[test]
fn beginnings_in_a_file() {
    let image = older();
    let file = [vec![0; 24], image.clone(), vec![0; 8]].concat();
    assert_eq!(beginnings(&file).collect::<Vec<_>>(), [24]);
    let image = Cubin::read(file.as_slice(), 24).expect("it is one");
    assert_eq!((image.at, image.functions.len()), (24, 2));
    assert_eq!(beginnings(&file[1..]).count(), 0);
}

/// Sections that all point to the same bytes do not make it read without end.
#[test]
fn what_is_read_is_bounded() {
    let Some(mut bytes) = graphs() else { return };
    let table = u64::from_le_bytes(bytes[40..48].try_into().unwrap()) as usize;
    let end = bytes.len() + (32 << 20);
    bytes.resize(end, 0);
    for section in 9..20 {
        let header = table + section * 64;
        bytes[header + 24..header + 32].copy_from_slice(&64u64.to_le_bytes());
        bytes[header + 32..header + 40].copy_from_slice(&(32u64 << 20).to_le_bytes());
    }
    struct Counted(Vec<u8>, std::cell::Cell<u64>);
    impl ReadMemory for Counted {
        fn read_bytes(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
            self.1.set(self.1.get() + to.len() as u64);
            self.0.as_slice().read_bytes(at, to)
        }
    }
    let memory = Counted(bytes, 0.into());
    let image = Cubin::read(&memory, 0).expect("an image");
    assert_eq!(image.functions.len(), 11);
    assert!(memory.1.get() <= MOST_READ + 100);
}

#[test]
fn code_against_code() {
    let own: Vec<u8> = (0..=255).collect();
    let mut other = own.clone();
    assert!(masked_equal(&own, &[], &other));
    other[0x35] = 0;
    assert!(!masked_equal(&own, &[], &other));
    assert!(masked_equal(&own, &[0x30], &other));
    assert!(masked_equal(&own, &[0x10, 0x11, 0x3f], &other));
    assert!(!masked_equal(&own, &[0x2f, 0x40], &other));
    let likeness = compare(&own, &[0x10, 0x11, 0x90], &other);
    let expected = Likeness {
        equal: 13,
        different: 1,
        masked: 2,
    };
    assert_eq!(likeness, expected);
    assert!((likeness.ratio() - 13.0 / 14.0).abs() < 1e-9);
    // Zeros behind it, as at its upload; anything else; less; all masked; nothing at all.
    let upload = [own.as_slice(), &[0; 128]].concat();
    assert!(masked_equal(&own, &[], &upload));
    assert_eq!(without_zeros(&upload), own);
    assert!(without_zeros(&[0; 32]).is_empty());
    assert_eq!(without_zeros(&[0, 1]), [0, 1]);
    assert!(!masked_equal(&own, &[], &[own.as_slice(), &[1]].concat()));
    assert!(!masked_equal(&own, &[], &own[..240]));
    assert!(!masked_equal(&own[..16], &[0], &own[..16]));
    assert!(!masked_equal(&[], &[], &[]));
}

/// The code of each kernel that a capture shows being uploaded is that of one function of the program's image: they are
/// told apart by their code alone. (The capture is of another run of the program.)
#[test]
fn uploads_of_a_capture() {
    let (Some(bytes), Some(path)) = (graphs(), capture("h200-graphs.orc.xz")) else {
        return;
    };
    let image = Cubin::read(bytes.as_slice(), 0).expect("an image");
    let mut decoder = Decoder::new(DecodeOptions::default());
    let mut programs = BTreeMap::new();
    for record in Orc::open(&path).expect("it opens") {
        let Ok(Record::Submission(s)) = record else {
            continue;
        };
        let context = decoder.context(&s, 0);
        let mut seen = Vec::new();
        decoder.submission(&s, &context, &(), &mut |event| {
            if let Body::Operation(Operation::Launch(l)) = event.body {
                seen.extend(l.program.zip(l.program_bytes));
            }
        });
        for (program, len) in seen {
            let mut code = vec![0; len as usize];
            if decoder.shadow().read(s.at.pid, program, &mut code) {
                programs.entry(program).or_insert(code);
            }
        }
    }
    let mut found = BTreeMap::new();
    for (program, code) in &programs {
        let own = |f: &CodeFunction| &bytes[f.code.start as usize..f.code.end as usize];
        let equal = |f: &&CodeFunction| masked_equal(own(f), &f.relocations, code);
        let names: Vec<_> = image.functions.iter().filter(equal).collect();
        let names = names.iter().map(|f| short(&f.name)).collect::<Vec<_>>();
        if !names.is_empty() {
            found.insert(program.0 & 0xff_ffff, names.join(" "));
        }
    }
    let expected = [
        (0x7a_0000, "add"),
        (0x7a_0b00, "first"),
        (0x7a_1500, "second"),
        (0x7a_1f00, "free_cluster"),
        (0x7a_2a00, "refill"),
        (0x7a_3f00, "with_static"),
        (0x7a_4a00, "with_dynamic"),
        (0x7a_5600, "with_both"),
        (0x7a_6200, "fixed_cluster"),
        (0x7a_6d00, "together"),
    ];
    let expected = expected.map(|(program, name)| (program, name.to_owned()));
    assert_eq!(found, BTreeMap::from(expected));
    // The others are the driver's own.
    assert!(programs.len() > found.len());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = Cubin::read(bytes.as_slice(), 0);
        let mut image = older();
        for (from, to) in bytes.iter().zip(&mut image[64..]) {
            *to = *from;
        }
        let _ = Cubin::read(image.as_slice(), 0);
    }

    /// Any bytes of an image changed: what is found lies where images may.
    #[test]
    fn changed_images(changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
        let mut image = older();
        for (at, byte) in changes {
            let at = at.index(image.len());
            image[at] = byte;
        }
        if let Some(found) = Cubin::read(image.as_slice(), 0) {
            for f in found.functions {
                prop_assert!(f.code.start <= f.code.end);
                prop_assert!(f.relocations.iter().all(|r| *r < f.code.end - f.code.start));
                prop_assert!(f.params.is_sorted_by(|a, b| a.ordinal < b.ordinal));
            }
        }
    }
}
