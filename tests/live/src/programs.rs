//! The programs under test: their paths, start, output and end.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::harness::not_run;

/// Time that anything is waited for at least: a guard against hanging, which says so, and no verdict.
pub const GUARD: Duration = Duration::from_secs(600);

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The nvcap under test: `NVCAP_BIN`, or the newest one built in this workspace.
pub fn nvcap() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("NVCAP_BIN") {
        return Ok(path.into());
    }
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| workspace().join("target"), PathBuf::from);
    let mut found: Vec<(std::time::SystemTime, PathBuf)> = Vec::new();
    for pattern in [target.clone()].into_iter().chain(
        std::fs::read_dir(&target)
            .into_iter()
            .flatten()
            .flatten()
            .map(|e| e.path()),
    ) {
        for profile in ["release", "debug"] {
            let path = pattern.join(profile).join("nvcap");
            if let Ok(time) = path.metadata().and_then(|m| m.modified()) {
                found.push((time, path));
            }
        }
    }
    match found.into_iter().max() {
        Some((_, path)) => Ok(path.canonicalize()?),
        None => not_run(format!(
            "no nvcap binary in {}: run `cargo xtask build`, or set NVCAP_BIN",
            target.display()
        )),
    }
}

/// The software GPU: `SOFTGPU_BIN`, or built now.
pub fn softgpu() -> Result<PathBuf> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    if let Some(path) = std::env::var_os("SOFTGPU_BIN") {
        return Ok(path.into());
    }
    let built = BUILT.get_or_init(|| {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let output = Command::new(cargo)
            .args(["build", "--quiet", "-p", "softgpu", "--message-format=json"])
            .current_dir(workspace())
            .output()
            .map_err(|e| format!("cargo build -p softgpu: {e}"))?;
        if !output.status.success() {
            return Err(format!(
                "cargo build -p softgpu: {}",
                String::from_utf8_lossy(&output.stderr)
            ));
        }
        String::from_utf8_lossy(&output.stdout)
            .lines()
            .filter_map(|l| serde_json::from_str::<serde_json::Value>(l).ok())
            .filter(|v| v["target"]["name"] == "softgpu")
            .find_map(|v| v["executable"].as_str().map(PathBuf::from))
            .ok_or_else(|| "cargo build -p softgpu named no executable".to_owned())
    });
    built.clone().map_err(anyhow::Error::msg)
}

/// A test's own folder, removed at its end. Readable by every user: some tests run as nobody.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// Makes one. A folder of that name that a killed test of another process with this id has left is not taken.
    pub fn new() -> Result<Folder> {
        use std::os::unix::fs::PermissionsExt;
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let path = loop {
            let n = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = format!("nvcap-live-{}-{n}", std::process::id());
            let path = std::env::temp_dir().join(name);
            match std::fs::create_dir(&path) {
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
                made => {
                    made.with_context(|| path.display().to_string())?;
                    break path;
                }
            }
        };
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
        Ok(Folder(path))
    }

    /// A path in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes the channels file of both GPUs into it.
    pub fn channels(&self) -> Result<PathBuf> {
        let path = self.file("channels.txt");
        std::fs::write(&path, softgpu::layout::channels_file(2))?;
        Ok(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if std::env::var_os("NVCAP_LIVE_KEEP").is_none() {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}

/// A file that the software GPU waits for the end of: with --hold it goes on submitting until then, with --stay-while it does not end.
#[derive(Debug)]
pub struct Until(PathBuf);

impl Until {
    /// Makes one of this name.
    pub fn new(folder: &Folder, name: &str) -> Result<Until> {
        let path = folder.file(name);
        std::fs::write(&path, "").with_context(|| path.display().to_string())?;
        Ok(Until(path))
    }

    /// The software GPU's option that submissions are held by.
    pub fn hold(&self) -> String {
        format!("--hold={}", self.0.display())
    }

    /// The software GPU's option that its end is held by.
    pub fn stay(&self) -> String {
        format!("--stay-while={}", self.0.display())
    }

    /// Lets it go.
    pub fn release(self) -> Result<()> {
        std::fs::remove_file(&self.0).with_context(|| self.0.display().to_string())
    }
}

/// Counts how often a text is in the lines of a file that is still being written; 0 where there is no file yet.
pub fn so_far(file: &Path, text: &str) -> usize {
    let said = std::fs::read_to_string(file).unwrap_or_default();
    said.matches(text).count()
}

/// Status and output of a program that ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// Its status.
    pub status: ExitStatus,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Ended {
    /// Exit code; if there is none, an error that names the signal.
    pub fn code(&self) -> Result<i32> {
        self.status.code().with_context(|| {
            format!(
                "ended by signal {:?}\nstderr: {}",
                self.status.signal(),
                self.stderr
            )
        })
    }

    /// An error unless the exit code is `code`.
    pub fn expect_code(&self, code: i32) -> Result<()> {
        let got = self.code()?;
        if got != code {
            bail!(
                "exit status {got} instead of {code}\nstderr: {}\nstdout: {}",
                self.stderr,
                self.stdout
            );
        }
        Ok(())
    }
}

/// The state of a process or thread, as /proc has it; none where it is gone.
pub fn state(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// All threads of a process have been stopped.
fn stands_still(pid: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
    let mut tids = threads.into_iter().flatten().flatten().map(|task| {
        let name = task.file_name();
        name.to_string_lossy().parse::<u32>().ok()
    });
    tids.all(|tid| tid.and_then(state) == Some('T'))
}

/// A running program; killed when dropped.
#[derive(Debug)]
pub struct Running {
    child: Child,
    name: String,
    stdout: Arc<Mutex<String>>,
    stderr: Arc<Mutex<String>>,
    readers: Vec<JoinHandle<()>>,
    /// The pipes that the readers read.
    pipes: Vec<OwnedFd>,
}

/// Bytes that are unread in a pipe, and true where nobody can write to it any more.
fn unread(pipe: &OwnedFd) -> (i32, bool) {
    let mut bytes = 0;
    let mut poll = libc::pollfd {
        fd: pipe.as_raw_fd(),
        events: 0,
        revents: 0,
    };
    // SAFETY: an open pipe; the kernel writes one number and one structure, which outlive the calls.
    unsafe {
        libc::ioctl(poll.fd, libc::FIONREAD, &raw mut bytes);
        libc::poll(&raw mut poll, 1, 0);
    }
    (bytes, poll.revents & libc::POLLHUP != 0)
}

fn collect(from: impl Read + Send + 'static, into: Arc<Mutex<String>>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut reader = BufReader::new(from);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
            let words = String::from_utf8_lossy(&line);
            crate::verify::learn_tokens(words.trim_end());
            if let Ok(mut text) = into.lock() {
                text.push_str(&words);
            }
            line.clear();
        }
    })
}

impl Running {
    /// Starts `program` with `args`. Standard input is a pipe that stays open.
    pub fn start<S: AsRef<std::ffi::OsStr>>(
        program: &Path,
        args: impl IntoIterator<Item = S>,
    ) -> Result<Running> {
        Running::start_as(program, args, None)
    }

    /// As [`Running::start`], as another user (and group) if given.
    pub fn start_as<S: AsRef<std::ffi::OsStr>>(
        program: &Path,
        args: impl IntoIterator<Item = S>,
        user: Option<u32>,
    ) -> Result<Running> {
        Running::start_prepared(program, args, user, |_| {})
    }

    /// As [`Running::start_as`]; `prepare` modifies the command before the start.
    pub fn start_prepared<S: AsRef<std::ffi::OsStr>>(
        program: &Path,
        args: impl IntoIterator<Item = S>,
        user: Option<u32>,
        prepare: impl FnOnce(&mut Command),
    ) -> Result<Running> {
        let mut command = Command::new(program);
        command
            .args(args)
            // By their names alone the software GPU's files count as the driver's.
            .env("NVCAP_DEVICES_BY_NAME", "1")
            // No test knows what another one taught, and the machine's own file stays as it is.
            .env("NVCAP_STORE_CACHE", "")
            // With sudo's variable, nvcap would run commands as the user behind sudo.
            .env_remove("SUDO_UID")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if let Some(id) = user {
            command.uid(id).gid(id).current_dir("/");
        }
        prepare(&mut command);
        let mut child = command
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let (stdout, stderr) = (Arc::default(), Arc::default());
        let (mut readers, mut pipes) = (Vec::new(), Vec::new());
        if let Some(out) = child.stdout.take() {
            pipes.push(out.as_fd().try_clone_to_owned()?);
            readers.push(collect(out, Arc::clone(&stdout)));
        }
        if let Some(err) = child.stderr.take() {
            pipes.push(err.as_fd().try_clone_to_owned()?);
            readers.push(collect(err, Arc::clone(&stderr)));
        }
        Ok(Running {
            child,
            name: program.display().to_string(),
            stdout,
            stderr,
            readers,
            pipes,
        })
    }

    /// Waits until all that it said is read. It has ended; a program that it started and that outlives it may hold the pipes: what that one
    /// says later is not waited for.
    fn read_all(&self) {
        let begun = Instant::now();
        let mut quiet = Instant::now();
        while begun.elapsed() < GUARD && self.readers.iter().any(|r| !r.is_finished()) {
            // Where nobody can write any more, the readers come to the end.
            if self
                .pipes
                .iter()
                .map(unread)
                .any(|(bytes, closed)| bytes > 0 || closed)
            {
                quiet = Instant::now();
            }
            if quiet.elapsed() > Duration::from_secs(1) {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its standard output so far.
    pub fn stdout(&self) -> String {
        self.stdout.lock().map(|t| t.clone()).unwrap_or_default()
    }

    /// Its standard error so far.
    pub fn stderr(&self) -> String {
        self.stderr.lock().map(|t| t.clone()).unwrap_or_default()
    }

    /// Writes to its standard input.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let stdin = self.child.stdin.as_mut().context("no standard input")?;
        stdin.write_all(bytes)?;
        stdin.flush()?;
        Ok(())
    }

    /// Its peak memory, bytes; `None` if it has ended.
    pub fn peak_memory(&self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).ok()?;
        let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
        let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
        Some(kib << 10)
    }

    /// Counts the perf events that it has open.
    pub fn perf_events(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid()))
            .into_iter()
            .flatten()
            .flatten()
            .filter(|fd| {
                std::fs::read_link(fd.path())
                    .is_ok_and(|to| to.as_os_str() == "anon_inode:[perf_event]")
            })
            .count()
    }

    /// Counts the perf events that an observing nvcap has open in processes: but for those of every processor, by which the kernel tells of births.
    pub fn perf_events_of_processes(&self) -> usize {
        // SAFETY: asks for a number.
        let processors = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
        let all = self.perf_events();
        all.saturating_sub(usize::try_from(processors).unwrap_or(0))
    }

    /// Sends a signal.
    pub fn signal(&self, signal: i32) -> Result<()> {
        // SAFETY: the process is our child and not reaped yet, so its id is still its own.
        if unsafe { libc::kill(self.pid() as libc::pid_t, signal) } != 0 {
            bail!("kill {}: {}", self.name, std::io::Error::last_os_error());
        }
        Ok(())
    }

    /// Stops the program until SIGCONT, and returns when it stands still.
    pub fn stop(&mut self) -> Result<()> {
        self.signal(libc::SIGSTOP)?;
        self.wait_until("standing still", GUARD, |r| stands_still(r.pid()))
    }

    /// True while it runs.
    pub fn runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits until `done` returns true, while it runs. `limit`, and never less than [`GUARD`], is a guard.
    pub fn wait_until(
        &mut self,
        what: &str,
        limit: Duration,
        mut done: impl FnMut(&Running) -> bool,
    ) -> Result<()> {
        let (start, limit) = (Instant::now(), limit.max(GUARD));
        loop {
            if done(self) {
                return Ok(());
            }
            if !self.runs() {
                self.read_all();
                if done(self) {
                    return Ok(());
                }
                bail!(
                    "{} ended before {what}\nstderr: {}\nstdout: {}",
                    self.name,
                    self.stderr(),
                    self.stdout()
                );
            }
            if start.elapsed() > limit {
                bail!(
                    "guard: {}: not {what} after {limit:?}\nstderr: {}\nstdout: {}",
                    self.name,
                    self.stderr(),
                    self.stdout()
                );
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until this text is on standard output, from it or a program that it started, whether or not it still runs. The limit is a guard, as
    /// that of [`Running::wait_until`].
    pub fn wait_until_said(&mut self, text: &str, limit: Duration) -> Result<()> {
        let (start, limit) = (Instant::now(), limit.max(GUARD));
        while !self.stdout().contains(text) {
            if start.elapsed() > limit {
                bail!(
                    "guard: nobody said {text:?} within {limit:?}\nstdout: {}",
                    self.stdout()
                );
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Waits for a line on standard output.
    pub fn wait_for_line(&mut self, line: &str) -> Result<()> {
        self.wait_until(&format!("saying {line:?}"), GUARD, |r| {
            r.stdout().lines().any(|l| l == line)
        })
    }

    /// Waits for its end. After `limit`, a guard as that of [`Running::wait_until`], it is killed, which is an error.
    pub fn end(mut self, limit: Duration) -> Result<Ended> {
        drop(self.child.stdin.take());
        let (start, limit) = (Instant::now(), limit.max(GUARD));
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            if start.elapsed() > limit {
                let _ = self.child.kill();
                let _ = self.child.wait();
                bail!(
                    "guard: {} did not end within {limit:?}\nstderr: {}\nstdout: {}",
                    self.name,
                    self.stderr(),
                    self.stdout()
                );
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        self.read_all();
        Ok(Ended {
            status,
            stdout: self.stdout(),
            stderr: self.stderr(),
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.runs() {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}
