//! Commands that read a long file, on a terminal: progress is shown there, and nowhere else; Ctrl-C ends the reading with the status that
//! is documented, and what was written is whole or gone.
//!
//! Progress appears after half a second of reading. How long a file takes differs from machine to machine, so the test stops the program
//! at the beginning of its reading for that time.
#![cfg(all(
    target_os = "linux",
    feature = "cli",
    feature = "trap",
    feature = "parquet"
))]

mod common;
#[path = "tables/training.rs"]
mod training;

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use common::cli::{Folder, nvcap, text};

/// What progress begins with.
const PROGRESS: &str = "nvcap: reading [";
/// The program takes no longer to show something, or the test fails.
const LONGEST: Duration = Duration::from_secs(120);
const CTRL_C: &[u8] = b"\x03";

/// A terminal, of which the test has the other end.
struct Terminal {
    own: File,
    its: OwnedFd,
}

impl Terminal {
    fn open() -> Self {
        let (mut own, mut its) = (-1, -1);
        let size = libc::winsize {
            ws_row: 24,
            ws_col: 120,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        // SAFETY: writes two descriptors, and reads the size.
        let made = unsafe {
            libc::openpty(
                &mut own,
                &mut its,
                std::ptr::null_mut(),
                std::ptr::null(),
                &size,
            )
        };
        assert_eq!(made, 0, "{}", std::io::Error::last_os_error());
        // SAFETY: both were opened just now, and nobody else has them.
        let (own, its) = unsafe { (File::from_raw_fd(own), OwnedFd::from_raw_fd(its)) };
        Self { own, its }
    }
}

/// A program that was started with standard error on a terminal, or in a pipe.
struct Run {
    child: Child,
    /// To press keys.
    keys: Option<File>,
    from: Receiver<Vec<u8>>,
    said: String,
}

impl Run {
    /// As from a shell in a terminal, where Ctrl-C is a signal.
    fn on_a_terminal(args: &[&str], stdout: Stdio) -> Self {
        let Terminal { own, its } = Terminal::open();
        let mut command = Command::new(env!("CARGO_BIN_EXE_nvcap"));
        command
            .args(args)
            .env("TERM", "xterm")
            .env_remove("NO_COLOR")
            .stdin(its.try_clone().unwrap())
            .stdout(stdout)
            .stderr(its);
        // SAFETY: two calls that may be made between fork and exec.
        unsafe {
            command.pre_exec(|| {
                if libc::setsid() < 0 || libc::ioctl(0, libc::TIOCSCTTY, 0) < 0 {
                    return Err(std::io::Error::last_os_error());
                }
                Ok(())
            });
        }
        let child = command.spawn().unwrap();
        // The test's copies of the terminal are closed, so that its end is seen.
        drop(command);
        let keys = own.try_clone().unwrap();
        Self::of(child, Some(keys), own)
    }

    fn in_a_pipe(args: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_nvcap"))
            .args(args)
            .env("TERM", "xterm")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let said = child.stderr.take().unwrap();
        Self::of(child, None, File::from(OwnedFd::from(said)))
    }

    fn of(child: Child, keys: Option<File>, mut said: File) -> Self {
        let (to, from) = channel();
        std::thread::spawn(move || {
            let mut part = [0; 4096];
            // The end of the last one who has a terminal open is an error here.
            while let Ok(n @ 1..) = said.read(&mut part) {
                let _ = to.send(part[..n].to_vec());
            }
        });
        Self {
            child,
            keys,
            from,
            said: String::new(),
        }
    }

    fn signal(&self, signal: i32) {
        // SAFETY: a signal to a child that was not waited for.
        unsafe { libc::kill(self.child.id() as libc::pid_t, signal) };
    }

    /// Stops the program when it has begun to read (it catches signals then), until progress is due.
    fn is_long(&self) {
        let status_of = format!("/proc/{}/status", self.child.id());
        let catches = || {
            let status = fs::read_to_string(&status_of).unwrap();
            let line = status.lines().find(|l| l.starts_with("SigCgt:")).unwrap();
            let mask = u64::from_str_radix(line.split_whitespace().nth(1).unwrap(), 16).unwrap();
            mask & (1 << (libc::SIGINT - 1)) != 0
        };
        while !catches() {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.signal(libc::SIGSTOP);
        std::thread::sleep(Duration::from_millis(600));
        self.signal(libc::SIGCONT);
    }

    fn until(&mut self, words: &str) {
        while !self.said.contains(words) {
            let part = self.from.recv_timeout(LONGEST);
            let part = part.unwrap_or_else(|e| panic!("no {words:?} ({e}) in {:?}", self.said));
            self.said.push_str(&String::from_utf8_lossy(&part));
        }
    }

    /// Presses Ctrl-C, or without a terminal sends what it would, while the file is read.
    fn interrupt(&mut self) {
        self.signal(libc::SIGSTOP);
        match &mut self.keys {
            Some(keys) => keys.write_all(CTRL_C).unwrap(),
            None => self.signal(libc::SIGINT),
        }
        self.signal(libc::SIGCONT);
    }

    /// Its exit status, and all that it has said.
    fn end(mut self) -> (Option<i32>, String) {
        let status = self.child.wait().unwrap();
        while let Ok(part) = self.from.recv_timeout(LONGEST) {
            self.said.push_str(&String::from_utf8_lossy(&part));
        }
        (status.code(), self.said)
    }
}

/// A recording of 42 MB with time stamps, which says that stacks were taken.
fn long(folder: &Folder) -> String {
    let file = folder.path("long.pcapng");
    let (records, _) = training::records(20_000);
    fs::write(&file, training::written(&records, true)).unwrap();
    file
}

/// All files below a folder.
fn below(folder: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.path() {
            path if path.is_dir() => all.extend(below(&path)),
            path => all.push(path),
        }
    }
    all
}

/// The command lines, where each writes (standard output, where it has no other place), and the status behind Ctrl-C.
fn commands<'a>(file: &'a str, out: &'a str) -> Vec<(Vec<&'a str>, i32)> {
    vec![
        (vec!["export", "pcapng", file, "-o", out], 3),
        (vec!["export", "wireshark", file, "-o", out], 3),
        (vec!["export", "perfetto", file, "-o", out], 3),
        (vec!["export", "csv", file, "-o", out], 3),
        (vec!["export", "partitions", file, file, "-o", out], 1),
        (vec!["report", file, "-o", out], 3),
        (vec!["stats", file], 3),
        (vec!["time", file], 3),
        (vec!["stacks", file], 3),
        (vec!["diff", file, file], 2),
        (vec!["channels", file], 3),
        (vec!["maps", file], 3),
        (vec!["ioctls", file, "-o", out], 3),
    ]
}

#[test]
fn progress_is_shown_on_a_terminal_and_ctrl_c_ends_the_reading() {
    let folder = Folder::new("progress");
    let file = long(&folder);
    let out = folder.path("out");
    for (args, status) in commands(&file, &out) {
        let stdout = folder.path("stdout");
        let mut run = Run::on_a_terminal(&args, File::create(&stdout).unwrap().into());
        run.is_long();
        run.until(PROGRESS);
        run.interrupt();
        let (ended, said) = run.end();
        assert_eq!(ended, Some(status), "{args:?}: {said}");
        let shown = fs::read_to_string(&stdout).unwrap();
        let told = said + &shown;
        assert!(told.contains("reading was interrupted"), "{args:?}: {told}");
        match args[1] {
            // Whole recordings of what was read.
            "pcapng" | "wireshark" => {
                let decoded = nvcap(&["decode", "-s", &out]);
                let shown = text(&decoded.stdout);
                assert_eq!(decoded.status.code(), Some(3));
                assert!(shown.contains("reading was interrupted"), "{shown}");
                assert!(!shown.contains("the recording has no end"), "{shown}");
                fs::remove_file(&out).unwrap();
            }
            "perfetto" | "csv" => {
                let files = match args[1] {
                    "csv" => below(Path::new(&out)),
                    _ => vec![PathBuf::from(&out)],
                };
                assert!(!files.is_empty());
                for file in files {
                    let bytes = fs::read(&file).unwrap();
                    assert!(args[1] != "csv" || bytes.ends_with(b"\n"));
                    let ledger = b"reading was interrupted";
                    let says = bytes.windows(ledger.len()).any(|w| w == ledger);
                    let is_ledger = args[1] != "csv" || file.ends_with("ledger.csv");
                    assert!(says || !is_ledger, "{}", file.display());
                }
                let _ = fs::remove_dir_all(&out);
                let _ = fs::remove_file(&out);
            }
            "partitions" => {
                assert!(told.contains("no table was written of it"), "{told}");
                assert!(told.contains("2 recordings are not exported"), "{told}");
                assert!(below(Path::new(&out)).is_empty());
                let _ = fs::remove_dir_all(&out);
            }
            _ => {
                let _ = fs::remove_file(&out);
            }
        }
    }
}

#[test]
fn without_a_terminal_no_progress_is_shown() {
    let folder = Folder::new("progress-quiet");
    let file = long(&folder);
    let out = folder.path("out");
    let quiet = |mut run: Run, args: &[&str]| {
        run.is_long();
        // Time to show it, if it were to be shown.
        std::thread::sleep(Duration::from_millis(100));
        run.interrupt();
        let (_, said) = run.end();
        assert!(!said.contains(PROGRESS), "{args:?}: {said}");
    };
    for (args, _) in commands(&file, &out) {
        quiet(Run::in_a_pipe(&args), &args);
        let _ = fs::remove_dir_all(&out);
        let _ = fs::remove_file(&out);
    }
    // Who reads the pipe may be a pager on the same terminal.
    let args = ["time", &*file];
    quiet(Run::on_a_terminal(&args, Stdio::piped()), &args);
    let args = ["export", "pcapng", &file, "-o", "-"];
    let null = File::options().write(true).open("/dev/null").unwrap();
    let mut run = Run::on_a_terminal(&args, null.into());
    run.is_long();
    run.until(PROGRESS);
    run.interrupt();
    run.end();
}
