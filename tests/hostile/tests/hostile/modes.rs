//! Every mode, traced in every way.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use hostile::bed::Bed;
use hostile::mode::Mode;
use hostile::served::NOTE;
use live::needs::need_tracing;
use live::programs::Folder;

use crate::judge::{honest, orderly, read, together, truth, unharmed};
use crate::run::{Ended, Running, nvcap, target};

/// Way in which a mode is traced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Trap,
    TrapAttached,
    Observe,
    ObserveAttached,
    /// The channels are found in memory by their structure.
    ObserveFound,
    ObserveFoundAttached,
}

pub const WAYS: [Way; 6] = [
    Way::Trap,
    Way::TrapAttached,
    Way::Observe,
    Way::ObserveAttached,
    Way::ObserveFound,
    Way::ObserveFoundAttached,
];

impl Way {
    pub fn name(self) -> &'static str {
        match self {
            Way::Trap => "trap",
            Way::TrapAttached => "trap_attached",
            Way::Observe => "observe",
            Way::ObserveAttached => "observe_attached",
            Way::ObserveFound => "observe_found",
            Way::ObserveFoundAttached => "observe_found_attached",
        }
    }

    fn how(self) -> &'static str {
        match self {
            Way::Trap | Way::TrapAttached => "trap",
            _ => "observe",
        }
    }

    /// The channels are found in memory.
    pub fn finds(self) -> bool {
        matches!(self, Way::ObserveFound | Way::ObserveFoundAttached)
    }

    fn attached(self) -> bool {
        matches!(
            self,
            Way::TrapAttached | Way::ObserveAttached | Way::ObserveFoundAttached
        )
    }
}

/// Tells whether the channels of a mode can be found by their structure. They cannot if a ring does not have a CUDA ring's size,
/// if files have the names of devices (which nvcap believes in the tests' environment), or if nothing distinguishes a
/// child's device memory from its parent's (docs/limitations.md).
pub fn is_found(mode: &Mode) -> bool {
    mode.entries == softgpu::layout::ENTRIES
        && !["names::false_devices", "ends::own_rings"].contains(&mode.name)
}

fn command(mode: &Mode, way: Way) -> Command {
    let mut command = Command::new(target());
    command.arg(mode.name);
    if way.finds() {
        command.arg("--files");
    }
    if let Some(note) = server_note(mode) {
        command.env(NOTE, note);
    }
    command
}

/// The file that has the id of the program that answers no read, in modes with one.
fn server_note(mode: &Mode) -> Option<PathBuf> {
    let name = format!("hostile-server.{}", std::process::id());
    let is_served = mode.name.starts_with("served::");
    is_served.then(|| std::env::temp_dir().join(name))
}

/// Ends the program that answers no read, where there is one.
fn end_server(mode: &Mode) -> Result<()> {
    match server_note(mode).filter(|note| note.exists()) {
        Some(note) => end_noted_server(&note),
        None => Ok(()),
    }
}

/// Ends the program that answers no read, whose id a file has; an error where it has ended before: whoever read had not to wait for ever.
pub fn end_noted_server(note: &Path) -> Result<()> {
    let pid: i32 = std::fs::read_to_string(note)?.parse()?;
    std::fs::remove_file(note)?;
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
    ensure!(
        name.is_ok_and(|name| name.starts_with("hostile")),
        "the program that answers no read has ended"
    );
    // SAFETY: a signal to a process that this test's target has made.
    unsafe { libc::kill(pid, libc::SIGKILL) };
    Ok(())
}

/// An untraced run of the mode, made once.
pub fn untraced(mode: &Mode) -> Result<Arc<Ended>> {
    static RUNS: Mutex<BTreeMap<&str, Arc<Ended>>> = Mutex::new(BTreeMap::new());
    let mut runs = RUNS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(run) = runs.get(mode.name) {
        return Ok(run.clone());
    }
    let run = Arc::new(
        Running::start(command(mode, Way::Trap))?
            .end()
            .context("untraced")?,
    );
    end_server(mode)?;
    runs.insert(mode.name, run.clone());
    Ok(run)
}

/// nvcap, writing everything it sees to `trace`.
pub fn tracer(mode: &Mode, way: Way, folder: &Folder, trace: &Path) -> Result<Command> {
    let mut command = nvcap()?;
    command
        .args([
            "--how",
            way.how(),
            "--json",
            "-vv",
            "-e",
            "type=submission,entry",
            "--force",
            "-o",
        ])
        .arg(trace);
    if way.how() == "trap" && mode.name.starts_with("files::") {
        // Their functions are looked for in the files.
        command.arg("--stacks");
    }
    if let Some(note) = server_note(mode) {
        // The file system's program lives on.
        command.arg("--no-follow").env(NOTE, note);
    }
    if way.finds() {
        command.env("NVCAP_DEVICES_BY_NAME", "1");
    } else {
        let channels = folder.file("channels.txt");
        std::fs::write(&channels, Bed::describe(mode.entries))?;
        command.arg("--channels").arg(channels);
    }
    Ok(command)
}

/// The status of the command, as nvcap reports it.
fn told(nvcap: &Ended, untraced: ExitStatus) -> Result<ExitStatus> {
    let ended = format!("the command ended with {untraced}");
    let says = nvcap.err.contains("the command ended with");
    ensure!(
        nvcap.err.contains(&ended) || (untraced.success() && !says),
        "no {ended:?} in {}",
        nvcap.err
    );
    Ok(untraced)
}

/// Starts a waiting target, and nvcap, which attaches to it.
pub fn watched(
    mode: &Mode,
    way: Way,
    mut tracer: Command,
    start: impl Fn(Command) -> Result<Running>,
) -> Result<(Running, Running)> {
    let mut program = command(mode, way);
    program.arg("--wait");
    let mut program = Running::start(program)?;
    program.wait_until("ready", |r| r.out().contains("ready\n"))?;
    tracer.args(["-p", &program.pid().to_string()]);
    let mut nvcap = start(tracer)?;
    // A refusal is a valid answer too.
    let answered = |r: &Running| r.err().contains("attached") || r.has_ended();
    nvcap.wait_until("attached", answered)?;
    Ok((nvcap, program))
}

/// Attaches to a waiting target, which continues once nvcap follows it. Returns the ends of nvcap and the target.
pub fn attached(mode: &Mode, way: Way, tracer: Command) -> Result<(Ended, Ended)> {
    attached_by(mode, way, tracer, Running::start)
}

/// Attaches to a waiting target as [`attached`] does; `start` starts nvcap.
pub fn attached_by(
    mode: &Mode,
    way: Way,
    tracer: Command,
    start: impl Fn(Command) -> Result<Running>,
) -> Result<(Ended, Ended)> {
    let (nvcap, mut program) = watched(mode, way, tracer, start)?;
    program.go()?;
    let program = program.end().context("the target")?;
    Ok((nvcap.end().context("nvcap")?, program))
}

/// Runs one mode in one way, with additional options for nvcap.
pub fn one(mode: &'static Mode, way: Way, flags: &[&str]) -> Result<()> {
    if way.how() == "trap" {
        need_tracing()?;
    }
    let alone = untraced(mode)?;
    let folder = Folder::new()?;
    let trace = folder.file("trace.json");
    let mut tracer = tracer(mode, way, &folder, &trace)?;
    tracer.args(flags);
    let (nvcap, out) = if way.attached() {
        let (nvcap, program) = attached(mode, way, tracer)?;
        unharmed(&alone, &program.out, program.status)?;
        (nvcap, program.out)
    } else {
        let program = command(mode, way);
        tracer
            .arg("--")
            .arg(program.get_program())
            .args(program.get_args());
        let nvcap = Running::start(tracer)?.end().context("nvcap")?;
        let status = told(&nvcap, alone.status)?;
        unharmed(&alone, &nvcap.out, status)?;
        let out = nvcap.out.clone();
        (nvcap, out)
    };
    end_server(mode)?;
    let code = orderly(&nvcap)?;
    ensure!(code != 1, "refused: {}", nvcap.err);
    if std::env::var_os("HOSTILE_SHOW").is_some() {
        let peak = nvcap.peak >> 20;
        println!(
            "    status {code}, {peak} MiB: {}",
            nvcap.err.trim().replace('\n', " | ")
        );
    }
    let mut truth = truth(&out)?;
    let mut got = read(&trace).with_context(|| nvcap.err.clone())?;
    if way.finds() {
        (truth, got.counts) = (together(&truth), together(&got.counts));
    }
    honest(code, &got, mode.exact.then_some(&truth)).with_context(|| nvcap.err.clone())
}
