//! Commands that read a long file, on a terminal: progress is shown there, and nowhere else; Ctrl-C ends the reading with the status that
//! is documented, and what was written is whole or gone.
//!
//! Progress appears after half a second of reading. How long a file takes differs from machine to machine, so the test stops the program
//! at the beginning of its reading for that time.
#![cfg(feature = "parquet")]

use crate::common::training;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::common::cli::{Folder, nvcap, reads, runs, terminal, text};
use crate::common::waiting::{GUARD, guard};

/// Beginning of the line of progress.
const PROGRESS: &str = "nvcap: reading [";
const CTRL_C: &[u8] = b"\x03";

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
        let (own, its) = terminal(120);
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

    /// Stops the program when it has begun to read, until progress is due. False if it has ended before.
    fn is_long(&self) -> bool {
        if !reads(&self.child) {
            return false;
        }
        self.signal(libc::SIGSTOP);
        std::thread::sleep(Duration::from_millis(600));
        self.signal(libc::SIGCONT);
        runs(&self.child)
    }

    /// Waits until it says these words. False if it has ended without them.
    fn until(&mut self, words: &str) -> bool {
        while !self.said.contains(words) {
            match self.from.recv_timeout(GUARD) {
                Ok(part) => self.said.push_str(&String::from_utf8_lossy(&part)),
                Err(RecvTimeoutError::Disconnected) => return false,
                Err(e) => panic!("guard: no {words:?} ({e}) in {:?}", self.said),
            }
        }
        true
    }

    /// Presses Ctrl-C, or without a terminal sends what it would, while the file is read. False if it has ended before.
    fn interrupt(&mut self) -> bool {
        self.signal(libc::SIGSTOP);
        if !runs(&self.child) {
            return false;
        }
        match &mut self.keys {
            Some(keys) => keys.write_all(CTRL_C).unwrap(),
            None => self.signal(libc::SIGINT),
        }
        self.signal(libc::SIGCONT);
        true
    }

    /// Its exit status, and all that it has said.
    fn end(mut self) -> (Option<i32>, String) {
        let status = self.child.wait().unwrap();
        while let Ok(part) = self.from.recv_timeout(GUARD) {
            self.said.push_str(&String::from_utf8_lossy(&part));
        }
        (status.code(), self.said)
    }
}

/// A recording of 42 MB with time stamps, which says that stacks were taken; `times` as long.
fn long(folder: &Folder, times: u32) -> String {
    let file = folder.path(&format!("long-{times}.pcapng"));
    if !Path::new(&file).exists() {
        let (records, _) = training::records(20_000 * times);
        fs::write(&file, training::written(&records, true)).unwrap();
    }
    file
}

/// Runs it with a recording that is long enough. Where the test was kept from the processor for all of the reading, which `run` says with an
/// error, the recording is twice as long, then four times, again and again until the guard.
fn long_enough<T>(folder: &Folder, run: impl Fn(&str) -> Result<T, String>) -> T {
    let begun = Instant::now();
    let mut times = 1;
    loop {
        match run(&long(folder, times)) {
            Ok(done) => return done,
            Err(said) => guard(
                begun,
                &format!("a reading that lasts until it is interrupted: {said}"),
            ),
        }
        times = 4.min(2 * times);
    }
}

/// Removes what a command has written.
fn remove(out: &str) {
    let _ = fs::remove_dir_all(out);
    let _ = fs::remove_file(out);
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
        (vec!["export", "kineto", file, "-o", out], 3),
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
    let out = folder.path("out");
    for i in 0..commands("", &out).len() {
        let stdout = folder.path("stdout");
        let (args, told) = long_enough(&folder, |file| {
            remove(&out);
            let (args, status) = commands(file, &out).swap_remove(i);
            let mut run = Run::on_a_terminal(&args, File::create(&stdout).unwrap().into());
            let in_time = run.is_long() && run.until(PROGRESS) && run.interrupt();
            let (ended, said) = run.end();
            let told = said + &fs::read_to_string(&stdout).unwrap();
            // Interrupted at its end it has nothing left to read, and says nothing of that.
            if !in_time || !told.contains("reading was interrupted") {
                return Err(format!("{args:?}: {told}"));
            }
            assert_eq!(ended, Some(status), "{args:?}: {told}");
            let args: Vec<String> = args.into_iter().map(str::to_owned).collect();
            Ok((args, told))
        });
        match args[1].as_str() {
            // Whole recordings of what was read.
            "pcapng" | "wireshark" => {
                let decoded = nvcap(&["decode", "-s", &out]);
                let shown = text(&decoded.stdout);
                assert_eq!(decoded.status.code(), Some(3));
                assert!(shown.contains("reading was interrupted"), "{shown}");
                assert!(!shown.contains("the recording has no end"), "{shown}");
            }
            "perfetto" | "kineto" | "csv" => {
                let files = match args[1].as_str() {
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
            }
            "partitions" => {
                assert!(told.contains("no table was written of it"), "{told}");
                assert!(told.contains("2 recordings are not exported"), "{told}");
                assert!(below(Path::new(&out)).is_empty());
            }
            _ => {}
        }
    }
}

#[test]
fn without_a_terminal_no_progress_is_shown() {
    let folder = Folder::new("progress-quiet");
    let out = folder.path("out");
    let quiet = |mut run: Run, args: &[&str]| {
        let in_time = run.is_long();
        // Time to show it, if it were to be shown.
        std::thread::sleep(Duration::from_millis(100));
        run.interrupt();
        let (_, said) = run.end();
        assert!(!said.contains(PROGRESS), "{args:?}: {said}");
        if in_time {
            Ok(())
        } else {
            Err(format!("{args:?}: {said}"))
        }
    };
    for i in 0..commands("", &out).len() {
        long_enough(&folder, |file| {
            remove(&out);
            let (args, _) = commands(file, &out).swap_remove(i);
            quiet(Run::in_a_pipe(&args), &args)
        });
    }
    // Who reads the pipe may be a pager on the same terminal.
    long_enough(&folder, |file| {
        let args = ["time", file];
        quiet(Run::on_a_terminal(&args, Stdio::piped()), &args)
    });
    long_enough(&folder, |file| {
        let args = ["export", "pcapng", file, "-o", "-"];
        let null = File::options().write(true).open("/dev/null").unwrap();
        let mut run = Run::on_a_terminal(&args, null.into());
        let shown = run.is_long() && run.until(PROGRESS);
        run.interrupt();
        let (_, said) = run.end();
        if shown { Ok(()) } else { Err(said) }
    });
}
