//! `nvcap export parquet` of a live trace, read by DuckDB.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};
use live::harness::not_run;
use live::programs::{Folder, Running, nvcap, softgpu};
use softgpu::layout::channels_file;

use crate::setup::{LIMIT, need_tracing};

/// Python with DuckDB, which `cargo xtask test` installs beside what was built.
fn python() -> Option<PathBuf> {
    let tests = std::env::current_exe().ok()?;
    let python = tests.ancestors().nth(3)?.join("tables/venv/bin/python");
    python.exists().then_some(python)
}

/// The software GPU under nvcap, in a GPU's time: every submission, kernel and copy that ran has its row. How much of it is timed depends
/// on the processors that are free.
pub fn live_trace() -> Result<()> {
    need_tracing()?;
    let Some(python) = python() else {
        return not_run(
            "no Python with DuckDB; cargo xtask test installs it where python3 and pip are there",
        );
    };
    let folder = Folder::new()?;
    let (tables, truth) = (folder.file("run.tables"), folder.file("truth.json"));
    let channels = folder.file("channels.txt");
    std::fs::write(&channels, channels_file(1))?;
    let mut args: Vec<OsString> = ["export", "parquet", "--channels"]
        .map(OsString::from)
        .to_vec();
    args.extend([channels.into(), "-o".into(), tables.clone().into()]);
    args.extend(["--".into(), softgpu()?.into()]);
    args.extend(
        [
            "--timed",
            "--files",
            "--gpus=1",
            "--threads=1",
            "--linger-ms=300",
            "--submissions=600",
        ]
        .map(OsString::from),
    );
    args.push(format!("--timed-truth={}", truth.display()).into());
    Running::start(&nvcap()?, args)?
        .end(LIMIT)?
        .expect_code(0)?;

    let truth = std::fs::read_to_string(&truth)?;
    let ran = |what: &str| {
        let found = truth.matches(&format!("\"type\":\"{what}\"")).count();
        found.to_string()
    };
    let check = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tables/check.py");
    let out = Command::new(python)
        .args([check.as_os_str(), "live".as_ref(), tables.as_os_str()])
        .args(["600", &ran("kernel"), &ran("copy")])
        .output()?;
    ensure!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    Ok(())
}
