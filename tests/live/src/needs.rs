//! Requirements of live tests; a test without them is reported as not run.

use std::ffi::OsString;

use anyhow::Result;

use crate::harness::not_run;
use crate::perf::unavailable;
use crate::programs::{Ended, Folder, GUARD, Running, nvcap, softgpu};

/// Requires working breakpoints, and root.
pub fn need_breakpoints() -> Result<()> {
    // SAFETY: reads an id.
    if unsafe { libc::geteuid() } != 0 {
        return not_run("not root: run the tests with sudo");
    }
    match unavailable() {
        Some(why) => not_run(why),
        None => Ok(()),
    }
}

/// The variable by which the runner tells its tests' processes of the attempt to trace: empty, or why it is not possible.
const TRIED: &str = "NVCAP_LIVE_TRIED";

/// Requires [`need_breakpoints`], and that nvcap can trace on this machine.
pub fn need_tracing() -> Result<()> {
    need_breakpoints()?;
    let tried = std::env::var(TRIED).map_or_else(|_| tried(), Ok)?;
    match tried.is_empty() {
        true => Ok(()),
        false => not_run(tried),
    }
}

/// Finds out once what the processes of all the runner's tests need: variables of their environment.
pub fn environment() -> Vec<(&'static str, OsString)> {
    // What fails here does so in the tests that need it, which say why.
    let mut all = Vec::new();
    all.extend(nvcap().ok().map(|path| ("NVCAP_BIN", path.into())));
    all.extend(softgpu().ok().map(|path| ("SOFTGPU_BIN", path.into())));
    if need_breakpoints().is_ok()
        && let Ok(tried) = tried()
    {
        all.push((TRIED, tried.into()));
    }
    all
}

fn tried() -> Result<String> {
    let nvcap = nvcap()?;
    let try_it = || -> Result<Ended> {
        let folder = Folder::new()?;
        let channels = folder.channels()?;
        let mut args = vec![
            "-q".into(),
            "--how".into(),
            "trap".into(),
            "--channels".into(),
            channels.into_os_string(),
            "--".into(),
        ];
        args.push(softgpu()?.into_os_string());
        args.extend([
            "--submissions=1".into(),
            "--channels=1".into(),
            "--threads=1".into(),
        ]);
        Running::start(&nvcap, args)?.end(GUARD)
    };
    Ok(match try_it() {
        // Only errors that say that it cannot run here: any other error is for the tests to find.
        Ok(e) if e.stderr.contains("built without") => e.stderr.trim().to_owned(),
        Ok(e) if e.stderr.contains("BPF is not allowed") => e.stderr.trim().to_owned(),
        _ => String::new(),
    })
}
