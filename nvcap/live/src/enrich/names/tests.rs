//! Made-up processes: memory with images and records as libcuda keeps them, at any distances.

use std::cell::Cell;
use std::io;
use std::sync::{
    Arc, LazyLock,
    atomic::{AtomicUsize, Ordering},
};
use std::time::{Duration, Instant};

mod changing;
mod order;

use super::one_of;
use super::resolver::{Ask, Listing, Resolver};
use super::scan::{Clocks, Run, Space};
use nvcap_decode::record::{At, Kernel, NamedBy, Variable};
use nvcap_decode::wire::GpuVa;
use nvcap_process::procfs::mem::ReadMemory;

/// Made-up memory.
#[derive(Clone)]
pub(super) struct Fake {
    base: u64,
    bytes: Vec<u8>,
    pub(super) hole: Option<Run>,
}

impl Fake {
    pub(super) fn new(base: u64, len: usize) -> Self {
        Self {
            base,
            bytes: vec![0; len],
            hole: None,
        }
    }

    pub(super) fn run(&self) -> Run {
        Run {
            start: self.base,
            end: self.base + self.bytes.len() as u64,
        }
    }

    pub(super) fn put(&mut self, at: u64, word: u64) {
        self.write(at, &word.to_le_bytes());
    }

    fn write(&mut self, at: u64, bytes: &[u8]) {
        let at = (at - self.base) as usize;
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

impl ReadMemory for Fake {
    fn read_bytes(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
        match self.read_some(at, to) == to.len() {
            true => Ok(()),
            false => Err(io::Error::from_raw_os_error(libc::EFAULT)),
        }
    }
}

impl Space for Fake {
    fn read_some(&self, at: u64, to: &mut [u8]) -> usize {
        let end = self
            .hole
            .filter(|h| h.end > at)
            .map_or(self.run().end, |h| h.start);
        let n = (end.saturating_sub(at) as usize).min(to.len());
        match at.checked_sub(self.base) {
            Some(from) if n > 0 => {
                let from = from as usize;
                to[..n].copy_from_slice(&self.bytes[from..from + n]);
                n
            }
            _ => 0,
        }
    }
}

/// A function of a made-up module.
#[derive(Clone, Debug)]
pub(super) struct Function {
    pub(super) name: String,
    pub(super) registers: u32,
    pub(super) code: Vec<u8>,
}

/// An ELF image with functions: names in the section of section names, registers in `.nv.info`, code.
/// Returns the bytes, and the offset of each function's name.
pub(super) fn image(functions: &[Function]) -> (Vec<u8>, Vec<u64>) {
    image_with(functions, &[])
}

/// An image as [`image`], with variables of these names and sizes in global memory.
pub(super) fn image_with(functions: &[Function], variables: &[(&str, u64)]) -> (Vec<u8>, Vec<u64>) {
    let mut names = vec![0u8];
    let mut add = |name: &str| {
        let at = names.len() as u32;
        names.extend_from_slice(name.as_bytes());
        names.push(0);
        at
    };
    let mut sections: Vec<(u32, u32, Vec<u8>, u32)> = vec![(0, 0, Vec::new(), 0)];
    let mut at = Vec::new();
    for (i, f) in functions.iter().enumerate() {
        let name = add(&format!(".text.{}", f.name));
        at.push(u64::from(name) + 6);
        // SHT_PROGBITS; the registers are in the upper byte of sh_info.
        sections.push((name, 1, f.code.clone(), f.registers << 24 | i as u32));
    }
    if !variables.is_empty() {
        // SHT_NOBITS, SHT_STRTAB, SHT_SYMTAB with symbols of 24 B.
        let global = sections.len() as u16;
        let (mut strings, mut symbols) = (vec![0u8], Vec::new());
        for (name, bytes) in variables {
            symbols.extend((strings.len() as u32).to_le_bytes());
            symbols.extend([0x11, 0]);
            symbols.extend(global.to_le_bytes());
            symbols.extend([0; 8]);
            symbols.extend(bytes.to_le_bytes());
            strings.extend(name.bytes());
            strings.push(0);
        }
        sections.push((add(".nv.global"), 8, Vec::new(), 0));
        sections.push((add(".strtab"), 3, strings, 0));
        sections.push((add(".symtab"), 2, symbols, 0));
    }
    let own = add(".shstrtab");
    sections.push((own, 3, names.clone(), 0));
    let mut bytes = vec![0u8; 64];
    bytes[..16].copy_from_slice(&[
        0x7f, b'E', b'L', b'F', 2, 1, 1, 0x33, 7, 0, 0, 0, 0, 0, 0, 0,
    ]);
    bytes[16] = 2;
    bytes[18] = 190;
    bytes[20] = 1;
    bytes[48] = 90;
    bytes[52] = 64;
    let mut table = Vec::new();
    let mut strings = 0;
    for (name, kind, data, info) in &sections {
        let offset = bytes.len() as u64;
        if *kind == 3 {
            strings = offset;
        }
        bytes.extend_from_slice(data);
        bytes.resize(bytes.len().next_multiple_of(16), 0);
        table.extend(name.to_le_bytes());
        table.extend(kind.to_le_bytes());
        table.extend([0; 16]);
        table.extend(offset.to_le_bytes());
        table.extend((data.len() as u64).to_le_bytes());
        table.extend(0u32.to_le_bytes());
        table.extend(info.to_le_bytes());
        table.extend([0; 16]);
    }
    let shoff = bytes.len() as u64;
    bytes[40..48].copy_from_slice(&shoff.to_le_bytes());
    bytes[58] = 64;
    bytes[60..62].copy_from_slice(&(sections.len() as u16).to_le_bytes());
    bytes[62..64].copy_from_slice(&((sections.len() - 1) as u16).to_le_bytes());
    bytes.extend(table);
    (bytes, at.iter().map(|n| n + strings).collect())
}

pub(super) fn function(name: &str, registers: u32) -> Function {
    let code = name.bytes().cycle().take(256 + name.len() * 16).collect();
    Function {
        name: name.to_owned(),
        registers,
        code,
    }
}

const BASE: u64 = 0x5500_0000_0000;
const PROGRAM: u64 = 0x7f00_0040_0000;
const PID: u32 = 4711;

/// Distances from the program's address in a record: to the name's pointer, the registers, and the link to the next record.
#[derive(Clone, Copy)]
struct Distances {
    name: i64,
    registers: i64,
    next: i64,
}

/// Distances of driver 580.
const HOPPER: Distances = Distances {
    name: -96,
    registers: 288,
    next: 1048,
};

/// Makes a process with one module of these functions. The functions before `loaded` are loaded.
fn process(functions: &[Function], d: Distances, loaded: usize) -> Fake {
    let mut fake = Fake::new(BASE, 8 << 20);
    let (bytes, names) = image(functions);
    let at = BASE + 0x1000;
    fake.write(at, &bytes);
    for (i, f) in functions.iter().enumerate() {
        let record = record(i);
        if i < loaded {
            fake.put(record, PROGRAM + i as u64 * 0x1000);
            // Elsewhere too, as in tables of graphs.
            fake.put(
                BASE + 0x40_0000 + i as u64 * 0x100,
                PROGRAM + i as u64 * 0x1000,
            );
        }
        fake.put(record.wrapping_add_signed(d.name), at + names[i]);
        fake.write(
            record.wrapping_add_signed(d.registers),
            &f.registers.to_le_bytes(),
        );
        let next = record_of_link((i + 1) % functions.len());
        fake.put(record.wrapping_add_signed(d.next), next);
    }
    fake
}

fn record(i: usize) -> u64 {
    BASE + 0x20_0000 + i as u64 * 0x8680
}

/// Links lead to the beginning of a record.
fn record_of_link(i: usize) -> u64 {
    record(i) - 0x68
}

/// All memory of a made-up process, all of it present.
const WHOLE: Listing = Listing {
    areas: |_| {
        Ok(vec![Run {
            start: BASE,
            end: BASE + (8 << 20),
        }])
    },
    present: |_, areas| areas.to_vec(),
};

fn ask(i: usize, f: &Function) -> Ask {
    Ask {
        at: At {
            time_ns: 5,
            pid: PID,
            tid: 0,
        },
        program: GpuVa(PROGRAM + i as u64 * 0x1000),
        registers: Some(f.registers),
        code: None,
    }
}

fn many(count: usize) -> Vec<Function> {
    (0..count)
        .map(|i| function(&format!("_Z6kernelILi{i}EEvPf"), 16 + (i as u32 % 5) * 8))
        .collect()
}

fn resolver(fake: &Fake) -> Resolver {
    Resolver::of(PID, Box::new(fake.clone()), WHOLE).by(CLOCKS)
}

/// Clocks that stand still unless the test lets them go on.
pub(super) const CLOCKS: Clocks = Clocks {
    now: || *BEGUN + PASSED.get(),
    cpu: || {
        CPU.set(CPU.get() + TICK.get());
        CPU.get()
    },
};

static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);

thread_local! {
    static PASSED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    static CPU: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    /// Time by which the clock of processor time goes on at each reading.
    static TICK: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

fn names(kernels: &[Kernel]) -> Vec<(u64, &str, bool)> {
    let mut all: Vec<_> = kernels
        .iter()
        .map(|k| (k.program.0, k.name.as_str(), k.certain))
        .collect();
    all.sort_unstable();
    all
}

#[test]
fn the_distances_are_learnt() {
    let functions = many(12);
    for d in [
        HOPPER,
        Distances {
            name: 136,
            registers: -44,
            next: 24,
        },
    ] {
        let fake = process(&functions, d, 8);
        let asks: Vec<Ask> = (0..8).map(|i| ask(i, &functions[i])).collect();
        let mut resolver = resolver(&fake);
        let found = resolver.resolve(&asks);
        let wanted: Vec<_> = (0..8)
            .map(|i| {
                (
                    PROGRAM + i as u64 * 0x1000,
                    functions[i].name.as_str(),
                    true,
                )
            })
            .collect();
        assert_eq!(names(&found), wanted, "{}", resolver.learnt());
        assert!(found.iter().all(|k| k.by == NamedBy::Record && !k.driver));
        let learnt = resolver.learnt();
        assert!(
            learnt.starts_with(&format!("name pointer at {:+} bytes", d.name)),
            "{learnt}"
        );
        assert!(learnt.contains("12 records"), "{learnt}");
    }
}

#[test]
fn variables_are_told_with_one_function_of_their_image() {
    let functions = many(3);
    let mut fake = process(&functions, HOPPER, 3);
    let at = BASE + 0x1000;
    let (bytes, names) = image_with(&functions, &[("table", 4000), ("seven", 28)]);
    fake.write(at, &bytes);
    for (i, name) in names.iter().enumerate() {
        fake.put(record(i).wrapping_add_signed(HOPPER.name), at + name);
    }
    let mut resolver = resolver(&fake);
    let mut told = |i: usize| {
        let found = resolver.resolve(&[ask(i, &functions[i])]);
        let [kernel] = &found[..] else {
            panic!("{found:?}")
        };
        assert!(kernel.certain);
        let one = |v: &Variable| (v.name.clone(), v.bytes, v.constant);
        kernel.variables.iter().map(one).collect::<Vec<_>>()
    };
    let both = [("table".into(), 4000, false), ("seven".into(), 28, false)];
    assert_eq!(told(1), both);
    assert_eq!(told(0), []);
    // Its module is loaded again.
    assert_eq!(told(1), both);
}

#[test]
fn one_program_alone_has_its_name() {
    let functions = many(3);
    let fake = process(&functions, HOPPER, 1);
    let found = resolver(&fake).resolve(&[ask(0, &functions[0])]);
    assert_eq!(names(&found), [(PROGRAM, functions[0].name.as_str(), true)]);
    assert_eq!(found[0].bytes, Some(functions[0].code.len() as u64));
    assert_eq!(found[0].at.time_ns, 5);
}

#[test]
fn a_program_that_is_fetched_and_named_is_one() {
    let functions = many(3);
    let fake = process(&functions, HOPPER, 3);
    let named: Vec<Ask> = (0..3).map(|i| ask(i, &functions[i])).collect();
    let fetched = named.iter().cloned().map(|a| Ask {
        registers: None,
        ..a
    });
    let fetched: Vec<Ask> = fetched.collect();
    let certain: Vec<_> = { functions.iter().enumerate() }
        .map(|(i, f)| (PROGRAM + i as u64 * 0x1000, f.name.as_str(), true))
        .collect();
    for asks in [[&fetched[..], &named], [&named[..], &fetched]] {
        let found = resolver(&fake).resolve(&asks.concat());
        assert_eq!(names(&found), certain);
    }
}

#[test]
fn a_launch_without_a_program_is_not_looked_for() {
    let functions = many(4);
    let fake = process(&functions, HOPPER, 4);
    let mut asks: Vec<Ask> = (0..4).map(|i| ask(i, &functions[i])).collect();
    asks[0].program = GpuVa(0);
    let mut resolver = resolver(&fake);
    assert_eq!(resolver.resolve(&asks).len(), 3);
    assert!(!resolver.has_left(), "zeros are everywhere");
}

#[test]
fn a_launch_with_other_registers_is_another_kernel() {
    let functions = many(8);
    let fake = process(&functions, HOPPER, 8);
    let mut asks: Vec<Ask> = (0..8).map(|i| ask(i, &functions[i])).collect();
    asks[3].registers = Some(255);
    let found = resolver(&fake).resolve(&asks);
    assert_eq!(found.len(), 7);
    assert!(found.iter().all(|k| k.program != asks[3].program));
}

#[test]
fn the_image_of_a_program_s_function_is_told() {
    let functions = many(6);
    let fake = process(&functions, HOPPER, 5);
    // As of a user who knows the address alone, beside others of which the launches were seen.
    let mut asks: Vec<Ask> = (0..3).map(|i| ask(i, &functions[i])).collect();
    asks.push(Ask {
        registers: None,
        ..ask(4, &functions[4])
    });
    for asks in [&asks[..], &asks[3..]] {
        let of = |program| one_of(&mut resolver(&fake), program, asks);
        let (kernel, image) = of(asks.last().unwrap().program).expect("a function");
        assert_eq!(kernel.name, functions[4].name);
        assert_eq!(image, Some(BASE + 0x1000));
        assert!(of(GpuVa(PROGRAM + 0x7000)).is_none());
    }
}

#[test]
fn words_that_lead_nowhere_are_no_names() {
    // Programs' addresses, but no records; an image, but nothing that leads to it.
    let functions = many(8);
    let mut fake = process(&functions, HOPPER, 8);
    for i in 0..functions.len() {
        fake.put(record(i) - 96, 0x7fff_0000_0000 + i as u64);
    }
    let asks: Vec<Ask> = (0..8).map(|i| ask(i, &functions[i])).collect();
    assert_eq!(resolver(&fake).resolve(&asks), []);
}

#[test]
fn code_alone_gives_a_name_and_contradicts_a_wrong_one() {
    let functions = many(8);
    let mut fake = process(&functions, HOPPER, 8);
    // No record of the first; the second one's is that of the third.
    fake.put(record(0), 0);
    fake.put(BASE + 0x40_0000, 0);
    let mut asks: Vec<Ask> = (0..8).map(|i| ask(i, &functions[i])).collect();
    // As it is uploaded: with zeros behind it.
    asks[0].code = Some([functions[0].code.as_slice(), &[0; 128]].concat());
    asks[1].code = Some(functions[7].code.clone());
    asks[2].code = Some(functions[2].code.clone());
    let found = resolver(&fake).resolve(&asks);
    let of = |i: usize| {
        found
            .iter()
            .find(|k| k.program == asks[i].program)
            .map(|k| (k.name.as_str(), k.by, k.certain))
    };
    assert_eq!(
        of(0),
        Some((functions[0].name.as_str(), NamedBy::Code, true))
    );
    assert_eq!(
        of(1),
        Some((functions[1].name.as_str(), NamedBy::Record, false))
    );
    assert_eq!(
        of(2),
        Some((functions[2].name.as_str(), NamedBy::RecordAndCode, true))
    );
}

/// A record is left over from a module that is gone, and its function is nearly the same as the loaded one.
#[test]
fn nearly_the_same_code_is_the_neighbour_s() {
    let mut functions = many(8);
    let code: Vec<u8> = (0..640).map(|i| i as u8).collect();
    let code_of = |i: u8| [&[i; 16], &code[16..]].concat();
    for (i, f) in functions.iter_mut().enumerate() {
        f.code = code_of(i as u8);
    }
    let fake = process(&functions, HOPPER, 8);
    let mut asks: Vec<Ask> = (0..8).map(|i| ask(i, &functions[i])).collect();
    asks[2].code = Some(functions[3].code.clone());
    // The loader changed an instruction of this one: no other has its code.
    asks[5].code = Some(code_of(77));
    let found = resolver(&fake).resolve(&asks);
    let of = |i: usize| {
        let its = found.iter().find(|k| k.program == asks[i].program);
        its.map(|k| (k.name.as_str(), k.certain))
    };
    assert_eq!(of(2), Some((functions[3].name.as_str(), true)));
    assert_eq!(of(5), Some((functions[5].name.as_str(), true)));
}

/// A module is loaded again, and unloaded before memory is read. Its code was seen before.
#[test]
fn code_that_was_named_before_has_its_name_with_a_question_mark() {
    let functions = many(8);
    let fake = process(&functions, HOPPER, 8);
    let mut asks: Vec<Ask> = (0..8).map(|i| ask(i, &functions[i])).collect();
    for (ask, f) in asks.iter_mut().zip(&functions) {
        ask.code = Some(f.code.clone());
    }
    let mut resolver = resolver(&fake);
    assert!(resolver.resolve(&asks).iter().all(|k| k.certain));
    // Elsewhere, with zeros behind it; nothing in memory tells of it, nor of another code.
    let code = [functions[3].code.as_slice(), &[0; 64]].concat();
    let again = |i: u64, code: Vec<u8>| Ask {
        program: GpuVa(PROGRAM + 0x100_0000 + i * 0x1000),
        code: Some(code),
        ..ask(3, &functions[3])
    };
    resolver.forget_images();
    let found = resolver.resolve(&[again(0, code), again(1, vec![0x77; 640])]);
    let expected = (PROGRAM + 0x100_0000, functions[3].name.as_str(), false);
    assert_eq!(names(&found), [expected]);
    assert!(found.iter().all(|k| k.by == NamedBy::Code));
}

#[test]
fn the_driver_s_own_kernels_are_known_by_their_neighbours() {
    let own = ["memset8", "memset32"].map(|n| function(n, 16));
    let fake = process(&own, HOPPER, 2);
    let asks: Vec<Ask> = (0..2).map(|i| ask(i, &own[i])).collect();
    assert!(resolver(&fake).resolve(&asks).iter().all(|k| k.driver));
    let mixed = ["memset8", "_Z3addPf", "_Z3subPf"].map(|n| function(n, 16));
    let fake = process(&mixed, HOPPER, 3);
    let asks: Vec<Ask> = (0..3).map(|i| ask(i, &mixed[i])).collect();
    let found = resolver(&fake).resolve(&asks);
    assert_eq!(found.len(), 3);
    assert!(found.iter().all(|k| !k.driver));
}
