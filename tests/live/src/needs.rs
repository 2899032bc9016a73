//! Requirements of live tests; a test without them is reported as not run.

use std::sync::OnceLock;
use std::time::Duration;

use anyhow::Result;

use crate::harness::not_run;
use crate::perf::unavailable;
use crate::programs::{Ended, Folder, Running, nvcap, softgpu};

/// The longest time that the attempt may take.
const LIMIT: Duration = Duration::from_secs(60);

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

/// Requires [`need_breakpoints`], and that nvcap can trace on this machine.
pub fn need_tracing() -> Result<()> {
    static TRIED: OnceLock<Option<String>> = OnceLock::new();
    need_breakpoints()?;
    let nvcap = nvcap()?;
    let why = TRIED.get_or_init(|| {
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
            Running::start(&nvcap, args)?.end(LIMIT)
        };
        match try_it() {
            // Only errors that say that it cannot run here: any other error is for the tests to find.
            Ok(e) if e.stderr.contains("built without") => Some(e.stderr.trim().to_owned()),
            Ok(e) if e.stderr.contains("BPF is not allowed") => Some(e.stderr.trim().to_owned()),
            _ => None,
        }
    });
    match why {
        Some(why) => not_run(why.clone()),
        None => Ok(()),
    }
}
