//! The frames of running CPythons, against what they say of themselves: every version that this machine has. Others are given
//! in `NVCAP_TEST_PYTHONS`, as commands with `;` between them.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::threads::ids_inside;
use super::{Python, objects::Location};
use crate::procfs::mem::Memory;

/// Versions that must be read.
const MINORS: std::ops::RangeInclusive<u8> = 10..=14;

/// Threads in known frames: a class, a closure, a generator, a name and a file that are not ASCII, deep recursion. The last
/// line of each thread waits. The main thread prints, for every thread, the frames as CPython itself gives them.
const KNOWN: &str = r#"
import json, os, sys, threading, time
_get = threading.get_native_id
ready = threading.Semaphore(0)
never = threading.Event()
def wait():
    ids.append(_get())
    ready.release(); never.wait()
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
time.sleep(0.2)
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
        time.sleep(60)
    tell(); time.sleep(60)
end("fork" in sys.argv)
"#;

/// Threads that never rest, in chains of calls that only go together in some ways.
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
threading.Event().wait(60)
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

/// The CPythons of this machine, of each version that is to be read: by the version, with `t` where it has no lock.
pub(super) fn interpreters() -> BTreeMap<String, Interpreter> {
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
        for minor in MINORS {
            for name in [format!("python3.{minor}"), format!("python3.{minor}t")] {
                // Scripts that look for another Python are left out.
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
            && !told.is_empty()
        {
            all.entry(told).or_insert(interpreter);
        }
    }
    for minor in MINORS {
        if !all.keys().any(|v| v.starts_with(&format!("3.{minor}."))) {
            println!("NOT RUN frames of CPython 3.{minor}: this machine has none");
        }
    }
    all
}

/// Starts a program and gives it back with the first line that it prints.
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
                .resolve(memory, f.code, f.instruction)
                .expect("a code object");
            (function, file, line.expect("a line"))
        });
        let frames = frames.collect();
        let old = all.insert(thread.tid.expect("its thread"), frames);
        assert_eq!(old, None, "two states of one thread");
    }
    all
}

/// Waits until all threads sleep, in two looks.
fn all_sleep(pid: u32) {
    let sleeps = |tid: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/stat")).unwrap();
        // The name before it may have any characters.
        let (_, after) = stat.rsplit_once(')').unwrap();
        after.trim_start().starts_with('S')
    };
    let (begin, mut looks) = (Instant::now(), 0);
    while looks < 2 {
        assert!(begin.elapsed() < Duration::from_secs(60), "it never sleeps");
        std::thread::sleep(Duration::from_millis(50));
        let threads = crate::procfs::threads(pid).unwrap();
        looks = if threads.into_iter().all(sleeps) {
            looks + 1
        } else {
            0
        };
    }
}

#[test]
fn frames_of_every_thread() {
    for (version, interpreter) in interpreters() {
        for args in [&[][..], &["fork"]] {
            let (child, line) = start(&interpreter, KNOWN, args);
            let pid = if args.is_empty() {
                child.0.id()
            } else {
                crate::procfs::children(child.0.id(), &mut || ())[0]
            };
            let Some(memory) = open(pid) else { return };
            // It printed, and goes to sleep.
            all_sleep(pid);
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

/// Threads that run: what is read is a chain of calls that there is in the program, with lines of its functions. Frames that
/// are read while a thread makes millions of calls a second are a mixture of two moments now and then, whatever agrees: one
/// in 2,000 walks may be (seen: none in 1,000,000, and once or twice on a machine that was busy).
#[test]
fn threads_that_run() {
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
    for (version, interpreter) in interpreters() {
        let (child, _) = start(&interpreter, BUSY, &[]);
        let pid = child.0.id();
        let Some(memory) = open(pid) else { return };
        let python = Python::find(pid, &memory).unwrap().expect("a CPython");
        let ids = ids_inside(pid);
        let (mut walks, mut whole, mut without_line, mut mixed) = (0, 0, 0, 0);
        let mut seen = BTreeSet::new();
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(1500) {
            let threads = python.threads(&memory, &ids);
            assert_eq!(threads.len(), 3, "CPython {version}");
            for thread in threads.iter().filter(|t| t.tid != Some(pid)) {
                let frames = python.frames(&memory, thread.address);
                walks += 1;
                whole += u32::from(!frames.newest_missing && !frames.oldest_missing);
                let resolved = frames
                    .frames
                    .iter()
                    .map(|f| python.resolve(&memory, f.code, f.instruction));
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
                            Some(line) if lines.contains(&line) => {}
                            Some(_) => {
                                println!("CPython {version}: not its line: {location:?}");
                                mixed += 1;
                            }
                            None => without_line += 1,
                        }
                        seen.insert(name(location));
                    }
                }
            }
        }
        println!(
            "CPython {version}: {walks} walks, {whole} whole, {mixed} mixed, {without_line} frames without a line"
        );
        assert!(mixed * 2000 <= walks.max(4000), "{mixed} of {walks}");
        assert!(walks > 100 && whole * 20 > walks, "{whole} of {walks}");
        assert!(without_line * 20 < walks, "{without_line} of {walks}");
        assert!(seen.len() >= 5, "{seen:?}");
    }
}

#[test]
fn a_process_without_python() {
    let mut child = Running(Command::new("sleep").arg("20").spawn().unwrap());
    let pid = child.0.id();
    let start = Instant::now();
    while crate::procfs::name(pid, None).as_deref() != Some("sleep")
        && start.elapsed().as_secs() < 10
    {
        std::thread::sleep(Duration::from_millis(1));
    }
    let Some(memory) = open(pid) else { return };
    assert_eq!(Python::find(pid, &memory).unwrap(), None);
    child.0.kill().unwrap();
    child.0.wait().unwrap();
    assert!(Python::find(pid, &memory).is_err(), "it has ended");
}
