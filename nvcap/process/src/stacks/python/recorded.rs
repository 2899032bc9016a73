//! Frames in recorded memory: the bytes that were read from a CPython of each version, so that each version is tested on every machine.
//!
//! The files (`tests/fixtures/python/`) are made by `NVCAP_RECORD_PYTHON=DIR cargo test -p nvcap --lib stacks::python::recorded::record --
//! --ignored` on a machine that has these versions. A file contains `image ADDRESS`, the address at which the interpreter's file begins;
//! `threads ID ...`; then `ADDRESS HEX`, the bytes that were read.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

use super::Python;
use super::find::candidates;
use super::frames::Frame;
use super::objects::Location;
use super::tests::{MINORS, interpreters, open, start};
use super::threads::ids_inside;
use crate::procfs::{
    budget::Budget,
    mem::{Memory, ReadMemory},
};

/// A program with two threads in `leaf`.
const PROGRAM: &str = r#"
import _thread, time
def leaf(): time.sleep(60)
def worker():
    leaf()
class A:
    def größe(self):
        worker()
_thread.start_new_thread(worker, ())
time.sleep(0.2); print("ready", flush=True)
A().größe()
"#;

/// Memory of a process, which records the bytes that are read from it.
struct Recorder {
    memory: Memory,
    read: RefCell<BTreeMap<u64, u8>>,
}

impl ReadMemory for Recorder {
    fn read_bytes(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
        self.memory.read_bytes(at, to)?;
        self.read
            .borrow_mut()
            .extend((at..).zip(to.iter().copied()));
        Ok(())
    }
}

/// Recorded memory.
struct Recorded(BTreeMap<u64, u8>);

impl ReadMemory for Recorded {
    fn read_bytes(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
        for (at, byte) in (at..).zip(to) {
            *byte = *self.0.get(&at).ok_or(io::ErrorKind::NotFound)?;
        }
        Ok(())
    }
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/python")
}

/// Checks that a budget that is too small for a frame gives no line, that an empty one gives no name, and that no more than the budget is
/// taken.
fn bounded<M: ReadMemory>(python: &Python, memory: &M, f: &Frame, whole: &Location, needs: u64) {
    let with = |bytes| {
        let budget = Budget::of(bytes);
        let found = python.resolve(memory, f.code, f.instruction, &budget);
        assert_eq!(budget.is_spent(), bytes < needs);
        found
    };
    let without_line = Location {
        line: None,
        ..whole.clone()
    };
    assert_eq!(with(needs).as_ref(), Some(whole));
    assert_eq!(with(needs - 1), Some(without_line));
    assert_eq!(with(0), None);
}

/// Returns function and line of each frame, by thread.
fn frames<M: ReadMemory>(
    python: &Python,
    memory: &M,
    ids: &BTreeMap<u32, u32>,
) -> Vec<Vec<(String, u32)>> {
    let mut threads = python.threads(memory, ids);
    threads.sort_by_key(|t| t.tid);
    let of = |state| {
        let frames = python.frames(memory, state);
        assert!(!frames.newest_missing && !frames.oldest_missing);
        let frames = frames.frames.iter().map(|f| {
            let budget = Budget::of(1 << 20);
            let found = python
                .resolve(memory, f.code, f.instruction, &budget)
                .unwrap();
            assert!(!budget.is_spent());
            bounded(python, memory, f, &found, (1 << 20) - budget.left());
            assert_eq!(found.file, "<string>");
            (found.function, found.line.unwrap())
        });
        frames.collect()
    };
    threads.iter().map(|t| of(t.address)).collect()
}

#[test]
#[ignore = "no test: records what the tests read"]
fn record() {
    let Some(to) = std::env::var_os("NVCAP_RECORD_PYTHON") else {
        println!(
            "NOT RUN record: it records what the tests read, into the folder NVCAP_RECORD_PYTHON"
        );
        return;
    };
    for (version, interpreter) in MINORS.flat_map(interpreters) {
        let (child, _) = start(&interpreter, PROGRAM, &[]);
        let pid = child.0.id();
        // The program has said that it is ready, and calls `leaf` afterwards.
        std::thread::sleep(std::time::Duration::from_millis(100));
        let recorder = Recorder {
            memory: open(pid).unwrap(),
            read: RefCell::default(),
        };
        let found = candidates(pid).unwrap().into_iter().find_map(|image| {
            recorder.read.borrow_mut().clear();
            Some((image, Python::at(&recorder, image).unwrap()?))
        });
        let (image, python) = found.unwrap();
        let ids = ids_inside(pid);
        frames(&python, &recorder, &ids);
        let ids: Vec<String> = ids.keys().map(u32::to_string).collect();
        let mut text = format!("image {image:x}\nthreads {}", ids.join(" "));
        let mut next = None;
        for (at, byte) in recorder.read.take() {
            if next != Some(at) {
                let _ = write!(text, "\n{at:x} ");
            }
            let _ = write!(text, "{byte:02x}");
            next = Some(at + 1);
        }
        let name = version.split(' ').next().unwrap_or_default();
        std::fs::write(Path::new(&to).join(format!("{name}.txt")), text + "\n").unwrap();
    }
}

#[test]
fn frames_in_recorded_memory() {
    let mut minors = Vec::new();
    for file in std::fs::read_dir(fixtures()).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_none_or(|e| e != "txt") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let mut lines = text.lines();
        let image = lines.next().unwrap().strip_prefix("image ").unwrap();
        let image = u64::from_str_radix(image, 16).unwrap();
        let ids = lines.next().unwrap().strip_prefix("threads ").unwrap();
        let ids = ids.split(' ').map(|id| id.parse().unwrap());
        let ids: BTreeMap<u32, u32> = ids.map(|id: u32| (id, id)).collect();
        let mut memory = Recorded(BTreeMap::new());
        for line in lines {
            let (at, bytes) = line.split_once(' ').unwrap();
            let at = u64::from_str_radix(at, 16).unwrap();
            let byte = |n: usize| u8::from_str_radix(&bytes[n..n + 2], 16).unwrap();
            memory
                .0
                .extend((at..).zip((0..bytes.len()).step_by(2).map(byte)));
        }
        let python = Python::at(&memory, image).unwrap().unwrap();
        let method = if python.version.minor == 10 {
            "größe"
        } else {
            "A.größe"
        };
        let named = |all: &[(&str, u32)]| -> Vec<(String, u32)> {
            all.iter()
                .map(|(name, line)| ((*name).to_owned(), *line))
                .collect()
        };
        assert_eq!(
            frames(&python, &memory, &ids),
            [
                named(&[("leaf", 3), ("worker", 5), (method, 8), ("<module>", 11)]),
                named(&[("leaf", 3), ("worker", 5)]),
            ],
            "{}",
            path.display()
        );
        minors.push(python.version.minor);
        // Whichever byte is wrong, nothing panics, and no walk is endless.
        let addresses: Vec<u64> = memory.0.keys().copied().collect();
        for at in addresses.iter().step_by(37) {
            let old = memory.0.insert(*at, 0xff).unwrap_or(0);
            if let Ok(Some(python)) = Python::at(&memory, image) {
                for state in python.threads(&memory, &ids) {
                    for f in python.frames(&memory, state.address).frames {
                        let budget = Budget::of(1 << 20);
                        let _ = python.resolve(&memory, f.code, f.instruction, &budget);
                    }
                }
            }
            memory.0.insert(*at, old);
        }
    }
    minors.sort_unstable();
    minors.dedup();
    assert_eq!(minors, [10, 11, 12, 13, 14]);
}
