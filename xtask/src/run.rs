//! `cargo xtask run`: build what a trace needs and nothing else, become root, trace.
//!
//! Knows which commands of nvcap need root, how to recognise a GPU process, and the bundled software GPU.

use std::{
    ffi::{OsStr, OsString},
    path::Path,
    process::ExitCode,
};

use anyhow::{Result, bail};

use crate::{
    build,
    install::{self, Root},
    paths,
    shell::Cmd,
};

/// Time for which a process is traced that the user did not name, s.
const LOOK_SECONDS: &str = "10";

/// Commands of nvcap that read files or describe nvcap; all others inspect processes.
const WITHOUT_ROOT: &[&str] = &[
    "decode",
    "explain",
    "help",
    "--help",
    "-h",
    "--version",
    "-V",
];

/// Commands that read a log unless a process or a command is named.
const WITH_LOGS: &[&str] = &["ioctls", "channels", "maps"];

/// Builds, then runs `nvcap ARGS`, or traces a process of its choice. Returns nvcap's status.
pub fn run(args: &[OsString]) -> Result<ExitCode> {
    if args.is_empty() {
        return look_around();
    }
    let dir = build::to_trace()?;
    start(&nvcap(&dir, args)?)
}

/// No arguments: traces a process that uses a GPU now, else the software GPU.
fn look_around() -> Result<ExitCode> {
    let dir = build::to_trace()?;
    if let Some(pid) = gpu_process() {
        eprintln!(
            "process {pid} uses a GPU: tracing it for {LOOK_SECONDS} s. Another: cargo xtask run -- -p PID"
        );
        let args = ["-p", &pid, "--duration", LOOK_SECONDS].map(OsString::from);
        return start(&nvcap(&dir, &args)?);
    }
    let softgpu = dir.join("softgpu");
    if !softgpu.is_file() {
        bail!(
            "no process uses a GPU here, and the software GPU (tests/softgpu) is not in this checkout. Name a command \
             or a process:\n  cargo xtask run -- -- CMD\n  cargo xtask run -- -p PID"
        );
    }
    eprintln!(
        "no process uses a GPU here: tracing the software GPU. Your own: cargo xtask run -- -- CMD"
    );
    start(&software_gpu(&dir, &[])?)
}

/// nvcap on the software GPU, with additional arguments `extra` for nvcap.
pub fn software_gpu(dir: &Path, extra: &[&str]) -> Result<Cmd> {
    let softgpu = dir.join("softgpu");
    let channels = paths::target().join("softgpu.channels");
    Cmd::new(&softgpu).arg("--describe").arg(&channels).run()?;
    let mut args: Vec<OsString> = extra.iter().map(OsString::from).collect();
    args.extend(
        [
            OsStr::new("--channels"),
            channels.as_os_str(),
            OsStr::new("--"),
            softgpu.as_os_str(),
        ]
        .map(OsString::from),
    );
    nvcap(dir, &args)
}

/// The built nvcap with `args`, as root if they need it.
fn nvcap(dir: &Path, args: &[OsString]) -> Result<Cmd> {
    let program = dir.join("nvcap");
    if !needs_root(args) {
        return Ok(Cmd::new(program).args(args));
    }
    if install::root() == Root::No {
        bail!(
            "tracing needs root, and there is no sudo here. Type as root:\n  {}",
            Cmd::new(program).args(args).line()
        );
    }
    Ok(install::as_root(program).args(args))
}

/// Tells whether nvcap inspects another process with these arguments.
fn needs_root(args: &[OsString]) -> bool {
    let own = args.iter().take_while(|arg| *arg != "--");
    let command = args.iter().any(|arg| arg == "--");
    let process = |arg: &OsString| {
        let arg = arg.to_string_lossy();
        arg.starts_with("-p") || arg.starts_with("--pid")
    };
    let first = args
        .first()
        .and_then(|arg| arg.to_str())
        .unwrap_or_default();
    let reads_a_log = WITH_LOGS.contains(&first) && !command && !own.clone().any(process);
    !WITHOUT_ROOT.contains(&first)
        && !reads_a_log
        && !own
            .into_iter()
            .any(|arg| arg == "--from" || arg == "--help" || arg == "-h")
}

fn start(cmd: &Cmd) -> Result<ExitCode> {
    let status = cmd.status()?;
    // Ended by a signal: the status that a shell would report.
    let code = status.code().unwrap_or_else(|| {
        use std::os::unix::process::ExitStatusExt;
        128 + status.signal().unwrap_or(0)
    });
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

/// A process that has a GPU's memory mapped.
fn gpu_process() -> Option<String> {
    if !Path::new("/dev/nvidia0").exists() && !Path::new("/dev/nvidiactl").exists() {
        return None;
    }
    // Only root may read the maps of other users' processes. Processes end meanwhile: grep's own status means nothing.
    let list = install::as_root("sh")
        .args(["-c", "grep -lsE '/dev/nvidia[0-9]' /proc/[0-9]*/maps; true"])
        .read()?;
    newest(&list)
}

/// The process with the highest id among `/proc/PID/maps` lines.
fn newest(list: &str) -> Option<String> {
    let pid = |line: &str| line.split('/').nth(2)?.parse::<u32>().ok();
    list.lines()
        .filter_map(pid)
        .max()
        .map(|pid| pid.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_gpu_process_is_taken() {
        assert_eq!(
            newest("/proc/812/maps\n/proc/4711/maps\n/proc/99/maps\n").as_deref(),
            Some("4711")
        );
        assert_eq!(newest(""), None);
    }

    #[test]
    fn only_looking_into_processes_needs_root() {
        let args = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        assert!(needs_root(&args("-p 4711")));
        assert!(needs_root(&args("-- ./app --from x")));
        assert!(needs_root(&args("channels -p 4711")));
        assert!(needs_root(&args("channels -p4711 --json")));
        assert!(needs_root(&args("ioctls -- ./app")));
        assert!(!needs_root(&args("decode x.orc.xz")));
        assert!(!needs_root(&args("channels x.gz --json")));
        assert!(!needs_root(&args("ioctls --help")));
    }
}
