//! Runs programs with a time limit, and keeps their output, status and peak memory.

use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Longest time that one program may run: a guard against hanging, no verdict.
pub const LIMIT: Duration = live::programs::GUARD;

/// The hostile target: `HOSTILE_BIN`, or cargo's.
pub fn target() -> PathBuf {
    std::env::var_os("HOSTILE_BIN").map_or_else(|| env!("CARGO_BIN_EXE_hostile").into(), Into::into)
}

/// The nvcap under test.
pub fn nvcap() -> Result<Command> {
    let mut command = Command::new(live::programs::nvcap()?);
    // With sudo's variable, nvcap would run commands as the user behind sudo.
    command.env_remove("SUDO_UID").env("NVCAP_STORE_CACHE", "");
    Ok(command)
}

/// Status, output and memory of a program that ended.
#[derive(Debug)]
pub struct Ended {
    pub status: ExitStatus,
    pub out: Vec<u8>,
    pub err: String,
    /// The most memory that it had at once, bytes.
    pub peak: u64,
}

/// A running program, killed when dropped.
pub struct Running {
    child: Child,
    ended: bool,
    out: Arc<Mutex<Vec<u8>>>,
    err: Arc<Mutex<Vec<u8>>>,
    readers: Vec<JoinHandle<()>>,
}

fn collect(mut from: impl Read + Send + 'static, into: Arc<Mutex<Vec<u8>>>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut piece = [0; 4096];
        while let Ok(n @ 1..) = from.read(&mut piece) {
            let mut all = into.lock().unwrap_or_else(PoisonError::into_inner);
            all.extend_from_slice(&piece[..n]);
        }
    })
}

fn said(from: &Mutex<Vec<u8>>) -> Vec<u8> {
    from.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

impl Running {
    /// Starts it with pipes for all of its output, in a process group of its own.
    pub fn start(mut command: Command) -> Result<Running> {
        command.stdout(Stdio::piped());
        Running::start_with_output(command)
    }

    /// Starts it in a process group of its own, with the command's own standard output and a pipe for the rest.
    pub fn start_with_output(mut command: Command) -> Result<Running> {
        command
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot start {:?}", command.get_program()))?;
        let (out, err) = (Arc::default(), Arc::default());
        let mut readers = Vec::new();
        if let Some(from) = child.stdout.take() {
            readers.push(collect(from, Arc::clone(&out)));
        }
        if let Some(from) = child.stderr.take() {
            readers.push(collect(from, Arc::clone(&err)));
        }
        Ok(Running {
            child,
            ended: false,
            out,
            err,
            readers,
        })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn out(&self) -> String {
        String::from_utf8_lossy(&said(&self.out)).into_owned()
    }

    pub fn err(&self) -> String {
        String::from_utf8_lossy(&said(&self.err)).into_owned()
    }

    /// Continues a target that waits for a byte.
    pub fn go(&mut self) -> Result<()> {
        let stdin = self.child.stdin.as_mut().context("no standard input")?;
        Ok(stdin.write_all(b"g")?)
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: a child that was not reaped yet, so that its id is its own.
        unsafe { libc::kill(self.pid() as i32, signal) };
    }

    /// Waits until `done`, or until it has ended.
    pub fn wait_until(&mut self, what: &str, done: impl Fn(&Running) -> bool) -> Result<()> {
        let start = Instant::now();
        while !done(self) {
            if start.elapsed() > LIMIT || self.has_ended() {
                bail!(
                    "{what}: not so after {:?} (guard: {LIMIT:?}): {}\n{}",
                    start.elapsed(),
                    self.err(),
                    self.out()
                );
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Tells whether the program has ended; its status is left for `end`.
    pub fn has_ended(&self) -> bool {
        // SAFETY: a zeroed structure, which the kernel fills.
        unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
            libc::waitid(libc::P_PID, self.pid(), &mut info, flags) == 0 && info.si_pid() != 0
        }
    }

    fn reap(&mut self) -> (ExitStatus, u64) {
        let mut status = 0;
        // SAFETY: a zeroed structure, which the kernel fills; a child that was not reaped yet.
        let usage = unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            libc::wait4(self.pid() as i32, &mut status, 0, &mut usage);
            usage
        };
        self.ended = true;
        (ExitStatus::from_raw(status), (usage.ru_maxrss as u64) << 10)
    }

    /// Waits for its end, and for the end of its output, which a grandchild may continue. An error if that takes too long.
    pub fn end(mut self) -> Result<Ended> {
        let start = Instant::now();
        while !self.has_ended() {
            if start.elapsed() > LIMIT {
                bail!(
                    "guard: it did not end within {LIMIT:?}: {}\n{}",
                    self.err(),
                    self.out()
                );
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let (status, peak) = self.reap();
        let readers = std::mem::take(&mut self.readers);
        while readers.iter().any(|r| !r.is_finished()) && start.elapsed() < LIMIT {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(Ended {
            status,
            out: said(&self.out),
            err: self.err(),
            peak,
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.ended {
            // SAFETY: the process group of a child that was not reaped yet, which this test has made.
            unsafe { libc::kill(-(self.pid() as i32), libc::SIGKILL) };
            self.reap();
        }
    }
}
