//! Programs with fat binaries, made here and mapped by this process.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::super::resolver::{Ask, Listing, Resolver};
use super::super::tests::{Fake, Function as Made, function, image};
use super::*;
use nvcap_decode::record::{At, NamedBy};
use nvcap_decode::wire::GpuVa;

#[allow(
    dead_code,
    unreachable_pub,
    reason = "the tests from outside use it, and all of it"
)]
#[path = "../../../../../tests/all/common/fat.rs"]
mod fat;
use fat::{ELF, How, PTX, entry, program};

/// Lock that lets tests run one after the other: they share the mappings of this process.
static ONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A file that this process has mapped.
struct Mapped {
    at: *mut libc::c_void,
    len: usize,
    _file: File,
}

impl Mapped {
    fn new(bytes: &[u8]) -> Self {
        // SAFETY: a name that ends with 0; a new descriptor; a new mapping, which nothing reads.
        unsafe {
            let descriptor = libc::memfd_create(c"program".as_ptr(), libc::MFD_CLOEXEC);
            assert!(descriptor >= 0);
            let mut file = File::from_raw_fd(descriptor);
            file.write_all(bytes).expect("memory");
            let (at, len) = (std::ptr::null_mut(), bytes.len());
            let (read, private) = (libc::PROT_READ, libc::MAP_PRIVATE);
            let at = libc::mmap(at, len, read, private, file.as_raw_fd(), 0);
            assert_ne!(at, libc::MAP_FAILED);
            Self {
                at,
                len,
                _file: file,
            }
        }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping is its own.
        unsafe { libc::munmap(self.at, self.len) };
    }
}

fn named(name: &str) -> Made {
    function(name, 24)
}

/// An entry with an image of functions.
fn images(sm: u32, how: How, functions: &[Made]) -> Vec<u8> {
    entry(ELF, sm, how, &image(functions).0)
}

fn ask(number: u64, registers: u32, code: &[u8]) -> Ask {
    Ask {
        at: At {
            time_ns: 7,
            pid: std::process::id(),
            tid: 0,
        },
        program: GpuVa(0x7f00_0000_0000 + number * 0x1000),
        registers: Some(registers),
        code: Some(code.to_vec()),
    }
}

/// Returns the names that a process with empty private memory finds for these programs, each with whether it is certain.
fn found(asks: &[Ask]) -> Vec<Option<(String, bool)>> {
    let nothing = Fake::new(0x10_0000, 4096);
    let none = Listing {
        areas: |_| Ok(Vec::new()),
        present: |_, _| Vec::new(),
    };
    let mut resolver = Resolver::of(std::process::id(), Box::new(nothing), none);
    assert_eq!(resolver.resolve(asks), []);
    let mut files = Files::default();
    let mut kernels = Vec::new();
    while resolver.wants_files().is_some() {
        assert!(files.may_work());
        kernels.extend(resolver.in_files(&mut files));
    }
    assert!(files.is_whole(), "{}", files.cost());
    assert!(kernels.iter().all(|k| k.by == NamedBy::File && !k.driver));
    let of = |ask: &Ask| kernels.iter().find(|k| k.program == ask.program);
    asks.iter()
        .map(|ask| of(ask).map(|k| (k.name.clone(), k.certain)))
        .collect()
}

fn certain(name: &str) -> Option<(String, bool)> {
    Some((name.to_owned(), true))
}

#[test]
fn compressed_in_both_ways() {
    let _alone = alone();
    let [a, b, c, d] = ["_Z5alphaPf", "_Z4betaPf", "_Z5gammaPf", "_Z5deltaPf"].map(named);
    let all = [
        fat::fat(&[
            entry(PTX, 90, How::Lz4, b".version 8.0"),
            images(90, How::Lz4, &[a.clone(), b.clone()]),
            entry(ELF, 90, How::Zstd, b"no image"),
        ]),
        // The linker's padding.
        vec![0; 8],
        fat::fat(&[
            images(80, How::Not, std::slice::from_ref(&d)),
            images(90, How::Zstd, std::slice::from_ref(&c)),
        ]),
    ];
    let _mapped = Mapped::new(&program(&all.concat()));
    let uploaded = |f: &Made| [f.code.as_slice(), &[0; 128]].concat();
    let mut other = uploaded(&b);
    other[16] ^= 1;
    let asks = [
        ask(0, 24, &uploaded(&a)),
        ask(1, 32, &b.code),
        ask(2, 24, &uploaded(&c)),
        ask(3, 24, &uploaded(&d)),
        // Too few registers; other code; the beginning alone.
        ask(4, 16, &uploaded(&a)),
        ask(5, 24, &other),
        ask(6, 24, &a.code[..128]),
    ];
    let [a, b, c, d] = [&a, &b, &c, &d].map(|f| certain(&f.name));
    assert_eq!(found(&asks), [a, b, c, d, None, None, None]);
}

#[test]
fn code_of_two_functions_is_not_certain() {
    let _alone = alone();
    let one = named("_Z3onePi");
    let other = Made {
        name: "_Z5otherPi".to_owned(),
        ..one.clone()
    };
    // The same function in two files is one name.
    let twice = named("_Z5twicePi");
    let first = program(&fat::fat(&[images(90, How::Lz4, &[twice.clone(), other])]));
    let second = program(&fat::fat(&[images(
        90,
        How::Zstd,
        &[one.clone(), twice.clone()],
    )]));
    let _mapped = [Mapped::new(&first), Mapped::new(&second)];
    let asks = [ask(0, 24, &one.code), ask(1, 24, &twice.code)];
    let not_certain = Some((one.name, false));
    assert_eq!(found(&asks), [not_certain, certain(&twice.name)]);
}

/// Reads the images of the requested generation, each once, small files first. Names are not certain while images are unread.
#[test]
fn images_are_read_once() {
    let _alone = alone();
    let of = |sm, name: &str| images(sm, How::Zstd, &[named(name)]);
    let large = [
        of(80, "_Z2l1v"),
        of(89, "_Z2l2v"),
        of(90, "_Z2l3v"),
        of(86, "_Z2l4v"),
    ];
    let large = Mapped::new(&program(&fat::fat(&large)));
    let small = Mapped::new(&program(&fat::fat(&[of(86, "_Z2s1v")])));
    let mut files = Files::default();
    let mut of = OfProcess::default();
    for _ in 0..2 {
        files.add(std::process::id(), &[86].into(), &mut of);
        assert_eq!((files.files.len(), files.waiting.len()), (2, 4));
    }
    files.step(Duration::ZERO);
    assert_eq!(files.count, 1);
    let mut is = |files: &mut Files, name: &str| {
        let code = named(name).code;
        files.with_code(&mut of, None, &code).len() == 1
    };
    assert!(is(&mut files, "_Z2s1v") && !is(&mut files, "_Z2l1v"));
    assert!(!files.is_done() && !files.is_whole());
    files.step(Duration::MAX);
    assert!(files.is_done() && files.is_whole());
    assert!(
        ["_Z2l1v", "_Z2l2v", "_Z2l4v"]
            .into_iter()
            .all(|l| is(&mut files, l))
    );
    assert!(!is(&mut files, "_Z2l3v"));
    // Of another process, that has none of the files.
    let code = named("_Z2s1v").code;
    assert!(
        files
            .with_code(&mut OfProcess::default(), None, &code)
            .is_empty()
    );
    // All of them.
    files.add(std::process::id(), &BTreeSet::new(), &mut of);
    assert_eq!(files.waiting.len(), 1);
    files.cpu = FREE * 100;
    assert!(!files.may_work() && Files::without_limit().may_work());
    drop((large, small));
}

#[test]
fn what_the_loader_changes_is_not_hashed() {
    let code: Vec<u8> = (0..64 * INSTRUCTION).map(|i| (i / 7) as u8).collect();
    let (first, last) = (4 * INSTRUCTION, 60 * INSTRUCTION);
    let which = unchanged(code.len(), &[3, first as u64 + 15, last as u64 + 8]);
    assert_eq!(which, !(1 | 1 << 1 | 1 << 15));
    let mut loaded = code.clone();
    for at in [0, first, last + 8] {
        loaded[at] ^= 0xff;
    }
    assert_eq!(sample(&loaded, which), sample(&code, which));
    assert_ne!(sample(&loaded, u16::MAX), sample(&code, u16::MAX));
    loaded[8 * INSTRUCTION + 9] ^= 1;
    assert_ne!(sample(&loaded, which), sample(&code, which));
    assert_eq!(
        looked_at(40).map(|(_, at)| at).collect::<Vec<_>>(),
        [0, 16, 32]
    );
    assert_eq!(unchanged(0, &[]), 0);
}

#[test]
fn sections_of_programs() {
    let _alone = alone();
    let bytes = program(&fat::fat(&[]));
    let sections = |bytes: &[u8]| {
        let mapped = Mapped::new(bytes);
        fat_sections(&Opened(mapped._file.try_clone().expect("a descriptor")))
    };
    let found = sections(&bytes).expect("a program");
    assert_eq!((found.len(), found.first()), (1, Some(&(96..112))));
    assert_eq!(sections(&bytes[..bytes.len() - 1]), None);
    assert_eq!(sections(&bytes[..40]), None);
    for at in [0, 4, 5, 40, 58, 61, 63] {
        let mut bytes = bytes.clone();
        bytes[at] ^= 0x55;
        assert_eq!(sections(&bytes).unwrap_or_default(), [], "byte {at}");
    }
}

/// A file of some hundred KB whose images of zeros claim 320 MiB.
#[test]
fn no_more_is_unpacked_than_fits_the_file() {
    let _alone = alone();
    let long = entry(ELF, 90, How::Lz4, &vec![0; 32 << 20]);
    let good = images(90, How::Lz4, &[named("_Z4goodv")]);
    // The last one is read first.
    let bytes = program(&fat::fat(&[vec![long; 10], vec![good]].concat()));
    assert!(bytes.len() < 2 << 20, "{}", bytes.len());
    let _mapped = Mapped::new(&bytes);
    let (mut files, mut of) = (Files::default(), OfProcess::default());
    files.add(std::process::id(), &[90].into(), &mut of);
    assert_eq!(files.waiting.len(), 11);
    files.step(Duration::MAX);
    let unpacked = files.files.first().map(|f| f.room.unpacked);
    let most = (64 << 20) + 32 * bytes.len() as u64;
    assert!(
        unpacked.is_some_and(|u| (64 << 20..=most).contains(&u)),
        "{unpacked:?}"
    );
    assert!(files.is_done() && !files.is_whole());
    let code = named("_Z4goodv").code;
    assert_eq!(files.with_code(&mut of, None, &code).len(), 1);
    // Nor is it unpacked again and again.
    of.compared = MOST_COMPARED_BYTES;
    assert!(files.with_code(&mut of, None, &code).is_empty());
}
