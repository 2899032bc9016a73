//! `nvcap top` by its screen, in tmux.

use std::ffi::OsStr;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use live::harness::not_run;
use live::programs::{Folder, Running, Until, nvcap};

use super::dump::{plan, start};
use super::watch::faulting;

const LIMIT: Duration = live::programs::GUARD;
/// Columns and lines of the terminal: enough for the processes of the tests beside this one, too.
const SIZE: (u32, u32) = (200, 90);

/// A terminal; it ends when dropped.
pub(super) struct Terminal {
    socket: String,
}

impl Terminal {
    /// Starts a shell that runs `nvcap top` with these arguments, says its status and stays.
    fn start(name: &str, args: &[&str]) -> Result<Self> {
        Self::with(name, &[&["top"], args].concat(), SIZE)
    }

    /// Starts a shell that runs nvcap with these arguments on a terminal of this size, says its status and stays.
    pub(super) fn with(name: &str, args: &[&str], size: (u32, u32)) -> Result<Self> {
        if Command::new("tmux").arg("-V").output().is_err() {
            return not_run("tmux is missing (apt-get install tmux)");
        }
        // Another one each time: the server of the one before may still be ending.
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let terminal = Self {
            socket: format!("nvcap-top-{name}-{}-{number}", std::process::id()),
        };
        let line = format!(
            "echo before; '{}' {}; echo status $?; stty -a; exec sleep 900",
            nvcap()?.display(),
            args.join(" ")
        );
        let (columns, lines) = (size.0.to_string(), size.1.to_string());
        let size = ["-x", &columns, "-y", &lines];
        let session = [&["new-session", "-d", "-s", "top"], &size[..], &[&line]].concat();
        terminal.tmux(&session)?;
        Ok(terminal)
    }

    fn tmux<S: AsRef<OsStr>>(&self, args: &[S]) -> Result<String> {
        let mut command = Command::new("tmux");
        command
            .args(["-L", &self.socket, "-f", "/dev/null"])
            .args(args)
            .env("NVCAP_DEVICES_BY_NAME", "1")
            .env("TERM", "screen-256color")
            .env("LC_ALL", "C.UTF-8")
            .env_remove("NO_COLOR")
            .env_remove("TMUX");
        let ended = command.output().context("cannot start tmux")?;
        let said = String::from_utf8_lossy(&ended.stderr);
        ensure!(ended.status.success(), "tmux: {said}");
        Ok(String::from_utf8_lossy(&ended.stdout).into_owned())
    }

    pub(super) fn screen(&self) -> Result<String> {
        self.tmux(&["capture-pane", "-p", "-t", "top"])
    }

    pub(super) fn keys(&self, keys: &[&str]) -> Result<()> {
        let all = [&["send-keys", "-t", "top"], keys].concat();
        self.tmux(&all).map(|_| ())
    }

    /// The screen, once it is so.
    pub(super) fn until(&self, what: &str, is_so: impl Fn(&str) -> bool) -> Result<String> {
        let begun = Instant::now();
        loop {
            let screen = self.screen()?;
            if is_so(&screen) {
                return Ok(screen);
            }
            ensure!(begun.elapsed() < LIMIT, "guard: never {what}:\n{screen}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// The program has ended, and the terminal is what it was.
    fn given_back(&self) -> Result<()> {
        let screen = self.until("ended", |s| s.contains("status 0"))?;
        ensure!(screen.starts_with("before"), "{screen}");
        let screen = self.until("stty", |s| s.contains("icanon"))?;
        let modes: Vec<&str> = screen.split([' ', '\n', ';']).collect();
        let is_on = |mode: &str| modes.contains(&mode);
        ensure!(
            is_on("icanon") && is_on("echo") && is_on("isig"),
            "{screen}"
        );
        let shows = self.tmux(&[
            "display-message",
            "-p",
            "-t",
            "top",
            "#{alternate_on} #{cursor_flag}",
        ])?;
        ensure!(
            shows.trim() == "0 1",
            "alternate screen and cursor: {shows}"
        );
        Ok(())
    }

    /// The process of nvcap in it.
    fn nvcap_pid(&self) -> Result<i32> {
        let shell = self.tmux(&["display-message", "-p", "-t", "top", "#{pane_pid}"])?;
        let shell = shell.trim();
        let children = std::fs::read_to_string(format!("/proc/{shell}/task/{shell}/children"))?;
        let child = children.split_whitespace().next();
        Ok(child.context("the shell has no child")?.parse()?)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.tmux(&["kill-server"]);
    }
}

/// The line with these words.
fn line<'a>(screen: &'a str, words: &[&str]) -> Option<&'a str> {
    let has =
        |line: &&str| { words.iter() }.all(|word| line.split_whitespace().any(|w| w == *word));
    screen.lines().find(has)
}

/// The software GPU after its work, which lies there.
fn idle(seed: u64, channels: usize, args: &[&str]) -> Result<Running> {
    let all = [&["--linger-ms=900000"], args].concat();
    let gpu = start(&plan(seed, channels, 4000), &all)?;
    Ok(gpu)
}

/// Processes, their channels, filters, and the end.
pub fn processes_and_channels() -> Result<()> {
    let mut gpu = start(
        &plan(91, 6, 3000),
        &["--wait-stdin", "--before-wait=3", "--linger-ms=900000"],
    )?;
    gpu.wait_for_line("waiting")?;
    let pid = gpu.pid().to_string();
    let top = Terminal::start("live", &["-a", "--interval=0.2"])?;
    let screen = top.until("found", |s| {
        line(s, &[&pid, "softgpu", "idle", "18"]).is_some()
    })?;
    ensure!(screen.starts_with("nvcap top"), "{screen}");
    gpu.write(b"g")?;
    // All that it submits, by the numbers that the GPU keeps.
    top.until("counted", |s| line(s, &[&pid, "3000", "2982"]).is_some())?;
    top.keys(&["/"])?;
    top.keys(&["-l", "no such process"])?;
    top.until("filtered", |s| s.contains("no row has this text"))?;
    top.keys(&["Escape"])?;
    top.until("shown again", |s| line(s, &[&pid, "softgpu"]).is_some())?;
    // To this process among others that there may be.
    top.keys(&["/"])?;
    top.keys(&["-l", &pid])?;
    top.keys(&["Enter"])?;
    top.keys(&["Enter"])?;
    let about = format!("channels of process {pid} softgpu");
    // What is read of a terminal may be half of what is drawn.
    let ring = |l: &&str| l.trim_start().starts_with("0x");
    top.until("its six channels", |s| {
        s.contains(&about) && s.lines().filter(ring).count() == 6
    })?;
    top.keys(&["?"])?;
    top.until("help", |s| s.contains("sort by another column"))?;
    top.keys(&["x"])?;
    top.keys(&["Space"])?;
    top.until("paused", |s| s.contains("[PAUSED]"))?;
    top.keys(&["Space"])?;
    top.keys(&["Escape"])?;
    top.keys(&["q"])?;
    top.given_back()
}

/// A channel that hangs is marked.
pub fn suspects() -> Result<()> {
    let mut gpu = idle(92, 8, &["--hang=spin"])?;
    gpu.wait_until("hung", LIMIT, |r| r.stdout().contains("hung"))?;
    let pid = gpu.pid().to_string();
    let top = Terminal::start("hang", &["-p", &pid, "--interval=0.2", "--hang=1s"])?;
    top.until("marked", |s| {
        line(s, &["!", &pid]).is_some() && s.contains("may hang")
    })?;
    let coloured = top.tmux(&["capture-pane", "-p", "-e", "-t", "top"])?;
    // The first of the terminal's colours, as it has them.
    let red = ["[31m", ";31m", "38;5;1m"];
    ensure!(
        red.iter().any(|red| coloured.contains(red)),
        "no red: {coloured:?}"
    );
    top.keys(&["C-c"])?;
    top.given_back()
}

/// A fault that happens while it runs has a line, with the process and the kernel; one from before has none.
pub fn faults() -> Result<()> {
    let folder = Folder::new()?;
    let stay = Until::new(&folder, "stay")?;
    let mut gpu = faulting(&stay)?;
    let pid = gpu.pid().to_string();
    let top = Terminal::start("fault", &["-p", &pid, "--interval=0.2"])?;
    let of_it = format!("process {pid} softgpu: Xid 31");
    let screen = top.until("found", |s| line(s, &[&pid, "softgpu"]).is_some())?;
    ensure!(!screen.contains(&of_it), "{screen}");
    gpu.write(b"g")?;
    let screen = top.until("the fault", |s| s.contains(&of_it))?;
    let shown = screen
        .lines()
        .find(|l| l.contains(&of_it))
        .context("no line")?;
    let time = shown.split("  ").next().unwrap_or_default();
    ensure!(time.split(':').count() == 3, "no time of day: {shown}");
    ensure!(shown.contains(" in void kernel<"), "no kernel: {shown}");
    top.keys(&["q"])?;
    top.given_back()?;
    let late = Terminal::start("late", &["-p", &pid, "--interval=0.2"])?;
    let is_stopped = |l: &str| l.contains(&pid) && l.contains("Xid 31");
    let screen = late.until("stopped", |s| s.lines().any(is_stopped))?;
    ensure!(!screen.contains(&of_it), "{screen}");
    late.keys(&["q"])?;
    late.given_back()?;
    stay.release()?;
    gpu.end(LIMIT)?.expect_code(0)?;
    Ok(())
}

/// The kernels of a process, while it is observed.
pub fn kernels() -> Result<()> {
    // It is at work for longer than any look at it.
    let mut gpu = start(
        &plan(93, 2, 100_000),
        &[
            "--timed",
            "--threads=1",
            "--wait-stdin",
            "--before-wait=3",
            "--sleep-us=2000",
        ],
    )?;
    gpu.wait_for_line("waiting")?;
    let pid = gpu.pid().to_string();
    let top = Terminal::start("kernels", &["-p", &pid, "--observe-cpu=50%"])?;
    top.until("found", |s| line(s, &[&pid, "softgpu"]).is_some())?;
    top.keys(&["k"])?;
    let said = format!("kernels of process {pid}");
    top.until("observed", |s| {
        s.contains(&said) && s.contains("(observed for")
    })?;
    gpu.write(b"g")?;
    let has_row = |s: &str| {
        let mut rows = s.lines().skip(3);
        rows.any(|l| l.contains(" program 0x") || l.contains(" kernel") && l.contains(&pid))
    };
    top.until("with kernels", |s| s.contains("KERNEL") && has_row(s))?;
    top.keys(&["m"])?;
    top.until("with copies", |s| {
        s.contains("copies of process")
            && s.lines()
                .skip(3)
                .any(|l| l.contains("copy ") || l.contains(" fill"))
    })?;
    top.keys(&["p"])?;
    top.until("back", |s| {
        line(s, &[&pid, "softgpu"]).is_some() && !s.contains("observing")
    })?;
    top.keys(&["q"])?;
    top.given_back()
}

/// A recording, to and fro.
pub fn a_recording() -> Result<()> {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/training.pcapng");
    let top = Terminal::start("file", &[file])?;
    let all = ["training.pcapng:", "[paused]", "SUBMITTED"];
    top.until("shown", |s| all.iter().all(|word| s.contains(word)))?;
    top.keys(&["k"])?;
    let whole = top.until("kernels", |s| s.contains("kernels of process"))?;
    ensure!(
        whole.lines().nth(3).is_some_and(|l| !l.trim().is_empty()),
        "{whole}"
    );
    top.keys(&["m"])?;
    top.until("copies", |s| s.contains("GB/s"))?;
    top.keys(&["["])?;
    top.until("before", |s| s.contains(": 0.0 s of"))?;
    top.keys(&["q"])?;
    top.given_back()
}

/// A signal gives the terminal back.
pub fn terminated() -> Result<()> {
    let gpu = idle(94, 4, &[])?;
    let pid = gpu.pid().to_string();
    for signal in [libc::SIGTERM, libc::SIGHUP] {
        let top = Terminal::start("signal", &["-a", "--interval=0.2"])?;
        top.until("found", |s| line(s, &[&pid, "softgpu"]).is_some())?;
        // SAFETY: signals the process that was started here.
        unsafe { libc::kill(top.nvcap_pid()?, signal) };
        top.given_back()?;
    }
    Ok(())
}

/// A terminal that goes away ends it.
pub fn terminal_gone() -> Result<()> {
    let gpu = idle(95, 4, &[])?;
    let pid = gpu.pid().to_string();
    let top = Terminal::start("gone", &["-a", "--interval=0.2"])?;
    top.until("found", |s| line(s, &[&pid, "softgpu"]).is_some())?;
    let nvcap = top.nvcap_pid()?;
    drop(top);
    let begun = Instant::now();
    while begun.elapsed() < LIMIT {
        if !std::path::Path::new(&format!("/proc/{nvcap}")).exists() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    // SAFETY: ends the process that was started here.
    unsafe { libc::kill(nvcap, libc::SIGKILL) };
    anyhow::bail!("guard: nvcap goes on without a terminal")
}

/// Without a terminal it says what to use instead.
pub fn no_terminal() -> Result<()> {
    let ended = Running::start(&nvcap()?, ["top"])?.end(LIMIT)?;
    ended.expect_code(1)?;
    ensure!(ended.stderr.contains("nvcap counts -a"), "{}", ended.stderr);
    Ok(())
}
