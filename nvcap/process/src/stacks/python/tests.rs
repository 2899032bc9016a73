//! Tests of the frames of running CPythons against what the programs print about themselves. Each version of this machine has a test.
//! Further CPythons are given in `NVCAP_TEST_PYTHONS`, as commands with `;` between them.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use super::threads::ids_inside;
use super::{Python, objects::Location};
use crate::procfs::{budget::Budget, mem::Memory};
use nvcap_waiting::{self, Sleeper};

/// Minor versions that must be readable.
pub(super) const MINORS: std::ops::RangeInclusive<u8> = 10..=14;

macro_rules! each_version {
    ($($name:ident $minor:literal)*) => {
        $(mod $name {
            #[test]
            #[ignore = "needs this CPython, and the right to read its memory: cargo xtask test runs it where they are"]
            fn frames_of_every_thread() {
                super::frames_of_every_thread($minor);
            }

            #[test]
            #[ignore = "needs this CPython, and the right to read its memory: cargo xtask test runs it where they are"]
            fn threads_that_run() {
                super::threads_that_run($minor);
            }
        })*

        #[test]
        fn each_version_has_its_tests() {
            assert!(MINORS.eq([$($minor),*]));
        }
    };
}

each_version! { python_3_10 10 python_3_11 11 python_3_12 12 python_3_13 13 python_3_14 14 }

/// Threads in known frames: a class, a closure, a generator, a name and a file that are not ASCII, deep recursion. Each thread ends in a
/// system call that reads a pipe into which nobody writes. The main thread waits until all others are in that call, prints the frames of
/// every thread as CPython itself reports them, and then reads the pipe, too.
const KNOWN: &str = r#"
import json, os, signal, sys, threading
_get = threading.get_native_id
ready = threading.Semaphore(0)
never, open_end = os.pipe()
def wait():
    ids.append(_get())
    ready.release(); os.read(never, 1)
ids = []
class Größe:
    def method(self):
        def inner(then):
            return then()
        return inner(lambda: wait())
def generator():
    yield 1
    yield wait()
def deep(n):
    if n == 0:
        return wait()
    return deep(
        n - 1
    )
def comprehension():
    return [wait() for _ in range(1)]
源 = {}
exec(compile("def 函数():\n\n    wait()\n", "目录/😀.py", "exec"), {"wait": wait}, 源)
def generated():
    return sum(1 for _ in generator())
starts = [Größe().method, generated, lambda: deep(150), comprehension, 源["函数"]]
for start in starts:
    threading.Thread(target=start, daemon=True).start()
for _ in starts:
    ready.acquire()
for id in ids:
    while True:
        with open(f"/proc/self/task/{id}/syscall") as file:
            # Number and first argument; another call waits for the lock.
            if file.read().split()[1:2] == [hex(never)]:
                break
def tell():
    all = []
    native = {t.ident: t.native_id for t in threading.enumerate()}
    # A forked child's threading module may still have its parent's.
    native[threading.get_ident()] = threading.get_native_id()
    for ident, frame in sys._current_frames().items():
        if ident == threading.get_ident():
            frame = frame.f_back
        frames = []
        while frame:
            code = frame.f_code
            frames.append([getattr(code, "co_qualname", code.co_name), code.co_filename, frame.f_lineno])
            frame = frame.f_back
        all.append([native[ident], frames])
    print(json.dumps(all), flush=True)
def end(child=False):
    if child and os.fork():
        os.read(never, 1)
    signal.alarm(3600)
    tell(); os.read(never, 1)
end("fork" in sys.argv)
"#;

/// A program whose threads never rest, in chains of calls of which only some combinations occur.
const BUSY: &str = r"
import threading
def leaf(): pass
def a(): leaf(); b1(); b2()
def b1(): c()
def b2(): c(); leaf()
def c(): leaf(); leaf()
def spin():
    while True: a()
for _ in range(2): threading.Thread(target=spin, daemon=True).start()
print('ready', flush=True)
threading.Event().wait()
";

/// A CPython, as the words of a command.
pub(super) type Interpreter = Vec<String>;

/// A child that ends with the test.
pub(super) struct Running(pub(super) Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn command(interpreter: &Interpreter) -> Command {
    let mut command = Command::new(&interpreter[0]);
    command.args(&interpreter[1..]);
    command
}

/// Returns the CPythons 3.`minor` of this machine by version; the version has a `t` if the CPython has no lock.
pub(super) fn interpreters(minor: u8) -> BTreeMap<String, Interpreter> {
    let mut found: Vec<Interpreter> = Vec::new();
    let given = std::env::var("NVCAP_TEST_PYTHONS").unwrap_or_default();
    for command in given.split(';').filter(|c| !c.trim().is_empty()) {
        found.push(command.split_whitespace().map(str::to_owned).collect());
    }
    let mut folders: Vec<PathBuf> = Vec::new();
    let home = std::env::var_os("HOME")
        .map(PathBuf::from)
        .unwrap_or_default();
    for versions in [
        home.join(".pyenv/versions"),
        home.join(".local/share/uv/python"),
    ] {
        let all = std::fs::read_dir(versions).into_iter().flatten().flatten();
        folders.extend(all.map(|v| v.path().join("bin")));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    folders.extend(std::env::split_paths(&path));
    for folder in folders {
        for name in [format!("python3.{minor}"), format!("python3.{minor}t")] {
            // Scripts that start another Python are left out.
            let file = folder.join(name);
            let head = std::fs::File::open(&file).and_then(|mut f| {
                let mut head = [0; 4];
                std::io::Read::read_exact(&mut f, &mut head)?;
                Ok(head)
            });
            if head.is_ok_and(|h| &h == b"\x7fELF") {
                found.push(vec![file.to_string_lossy().into_owned()]);
            }
        }
    }
    let tell = "import sys, sysconfig; print('%d.%d.%d%s %d' % (*sys.version_info[:3], \
                't' if sysconfig.get_config_var('Py_GIL_DISABLED') else '', sysconfig.get_config_var('Py_ENABLE_SHARED') or 0))";
    let mut all = BTreeMap::new();
    for interpreter in found {
        let told = command(&interpreter)
            .args(["-c", tell])
            .stderr(Stdio::null())
            .output();
        let told = told.map(|o| String::from_utf8_lossy(&o.stdout).trim().to_owned());
        if let Ok(told) = told
            && told.starts_with(&format!("3.{minor}."))
        {
            all.entry(told).or_insert(interpreter);
        }
    }
    if all.is_empty() {
        println!("NOT RUN frames of CPython 3.{minor}: this machine has none");
    }
    all
}

/// Starts a program. Returns it with the first line that it prints.
pub(super) fn start(interpreter: &Interpreter, program: &str, args: &[&str]) -> (Running, String) {
    let mut child = command(interpreter)
        .args(["-c", program])
        .args(args)
        .env("PYTHONIOENCODING", "utf-8")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let out = child.stdout.take().unwrap();
    BufReader::new(out).read_line(&mut line).unwrap();
    (Running(child), line)
}

pub(super) fn open(pid: u32) -> Option<Memory> {
    let memory = Memory::open(pid);
    if let Err(e) = &memory {
        println!("NOT RUN frames of a running CPython: no right to read a child's memory: {e}");
    }
    memory.ok()
}

/// The frames of each thread.
type Known = BTreeMap<u32, Vec<Line>>;

/// Function, file and line.
type Line = (String, String, u32);

fn frames_of(pid: u32, memory: &Memory) -> Known {
    let python = Python::find(pid, memory).unwrap().expect("a CPython");
    let mut all = BTreeMap::new();
    for thread in python.threads(memory, &ids_inside(pid)) {
        let frames = python.frames(memory, thread.address);
        assert!(
            !frames.newest_missing && !frames.oldest_missing,
            "{frames:?}"
        );
        let frames = frames.frames.iter().map(|f| {
            let Location {
                function,
                file,
                line,
            } = python
                .resolve(memory, f.code, f.instruction, &Budget::of(1 << 30))
                .expect("a code object");
            (function, file, line.expect("a line"))
        });
        let frames = frames.collect();
        let old = all.insert(thread.tid.expect("its thread"), frames);
        assert_eq!(old, None, "two states of one thread");
    }
    all
}

fn frames_of_every_thread(minor: u8) {
    for (version, interpreter) in interpreters(minor) {
        for args in [&[][..], &["fork"]] {
            let (child, line) = start(&interpreter, KNOWN, args);
            let pid = if args.is_empty() {
                child.0.id()
            } else {
                crate::procfs::children(child.0.id(), &mut || ())[0]
            };
            let Some(memory) = open(pid) else { return };
            // The program has printed, and reads the pipe.
            nvcap_waiting::sits_in(pid, pid, libc::SYS_read);
            let expected: Vec<(u32, Vec<Line>)> =
                serde_json::from_str(&line).unwrap_or_else(|e| panic!("{version}: {line:?}: {e}"));
            let expected: Known = expected.into_iter().collect();
            assert_eq!(expected.len(), if args.is_empty() { 6 } else { 1 });
            assert_eq!(frames_of(pid, &memory), expected, "CPython {version}");
            let python = Python::find(pid, &memory).unwrap().expect("a CPython");
            let told = version.split(' ').next().unwrap_or_default();
            let (told, free_threaded) = told.strip_suffix('t').map_or((told, false), |v| (v, true));
            assert!(told.starts_with(python.version.to_string().trim_end_matches('t')));
            assert_eq!(python.version.free_threaded, free_threaded);
            println!("CPython {version}: {} threads", expected.len());
            if !args.is_empty() {
                // SAFETY: a process that this test has made, and that still sleeps.
                unsafe { libc::kill(pid as i32, libc::SIGKILL) };
            }
        }
    }
}

/// Test of threads that run: the frames that are read form a chain of calls that the program has, with lines of its functions. A thread
/// that makes millions of calls a second is sometimes read as a mixture of two moments, even if walks agree (seen: none in 1,000,000 walks,
/// and once or twice on a busy machine); without the requirement of agreement most walks would be mixtures. The test goes on until enough
/// walks were complete, and each function was seen.
fn threads_that_run(minor: u8) {
    const ENOUGH: u32 = 500;
    let calls = [
        ("leaf", "a"),
        ("leaf", "b2"),
        ("leaf", "c"),
        ("a", "spin"),
        ("b1", "a"),
        ("b2", "a"),
        ("c", "b1"),
        ("c", "b2"),
        ("spin", "run"),
    ];
    let lines = BTreeMap::from([
        ("leaf", 3..=3),
        ("a", 4..=4),
        ("b1", 5..=5),
        ("b2", 6..=6),
        ("c", 7..=7),
        ("spin", 8..=9),
    ]);
    for (version, interpreter) in interpreters(minor) {
        let (child, _) = start(&interpreter, BUSY, &[]);
        let pid = child.0.id();
        let Some(memory) = open(pid) else { return };
        let python = Python::find(pid, &memory).unwrap().expect("a CPython");
        let ids = ids_inside(pid);
        let (mut walks, mut whole, mut without_line, mut mixed) = (0, 0, 0, 0);
        let mut seen = BTreeSet::new();
        let begun = Instant::now();
        while whole < ENOUGH || seen.len() < lines.len() {
            let got = format!("{ENOUGH} whole walks of all functions; {whole} of {seen:?}");
            nvcap_waiting::guard(begun, &got);
            let threads = python.threads(&memory, &ids);
            assert_eq!(threads.len(), 3, "CPython {version}");
            for thread in threads.iter().filter(|t| t.tid != Some(pid)) {
                let frames = python.frames(&memory, thread.address);
                walks += 1;
                whole += u32::from(!frames.newest_missing && !frames.oldest_missing);
                let resolved = frames
                    .frames
                    .iter()
                    .map(|f| python.resolve(&memory, f.code, f.instruction, &Budget::of(1 << 30)));
                let Some(resolved) = resolved.collect::<Option<Vec<Location>>>() else {
                    println!("CPython {version}: no code: {frames:?}");
                    mixed += 1;
                    continue;
                };
                let name =
                    |l: &Location| l.function.rsplit('.').next().unwrap_or_default().to_owned();
                let is_call = |pair: &[Location]| {
                    let (callee, caller) = (name(&pair[0]), name(&pair[1]));
                    !lines.contains_key(callee.as_str())
                        || calls.contains(&(callee.as_str(), caller.as_str()))
                };
                if !resolved.windows(2).all(is_call) {
                    println!("CPython {version}: not a chain of calls: {resolved:?}");
                    mixed += 1;
                }
                for location in &resolved {
                    if let Some(lines) = lines.get(name(location).as_str()) {
                        match location.line {
                            Some(line) if lines.contains(&line) => {
                                seen.insert(name(location));
                            }
                            Some(_) => {
                                println!("CPython {version}: not its line: {location:?}");
                                mixed += 1;
                            }
                            None => without_line += 1,
                        }
                    }
                }
            }
        }
        println!(
            "CPython {version}: {walks} walks, {whole} whole, {mixed} mixed, {without_line} frames without a line"
        );
        assert!(mixed * 20 <= walks, "{mixed} of {walks}");
    }
}

#[test]
#[ignore = "needs the right to read a child's memory: cargo xtask test runs it as root"]
fn a_process_without_python() {
    let mut child = Sleeper::start();
    let pid = child.id();
    let Some(memory) = open(pid) else { return };
    assert_eq!(Python::find(pid, &memory).unwrap(), None);
    child.end();
    assert!(Python::find(pid, &memory).is_err(), "it has ended");
}
