//! `nvcap export perfetto` of a live trace, checked by Perfetto's own bindings.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use live::harness::not_run;
use live::programs::{Folder, Running, nvcap, softgpu};
use serde_json::Value;
use softgpu::layout::channels_file;

use crate::setup::{LIMIT, need_tracing};

/// Python with the bindings, which `cargo xtask test` installs beside what was built.
fn python() -> Option<PathBuf> {
    let tests = std::env::current_exe().ok()?;
    let python = tests.ancestors().nth(3)?.join("perfetto/venv/bin/python");
    python.exists().then_some(python)
}

/// The software GPU under nvcap, in a GPU's time: every submission has its doorbell and an arrow, every kernel and copy that ran is
/// drawn once, and the trace is one of Perfetto's. How much of it is timed depends on the processors that are free.
pub fn live_trace() -> Result<()> {
    need_tracing()?;
    let Some(python) = python() else {
        return not_run(
            "no Python with Perfetto's bindings; cargo xtask test installs it where python3 and pip are there",
        );
    };
    let folder = Folder::new()?;
    let (trace, truth) = (folder.file("run.pftrace"), folder.file("truth.json"));
    let channels = folder.file("channels.txt");
    std::fs::write(&channels, channels_file(1))?;
    let mut args: Vec<OsString> = ["export", "perfetto", "--channels"]
        .map(OsString::from)
        .to_vec();
    args.extend([channels.into(), "-o".into(), trace.clone().into()]);
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

    let check = Path::new(env!("CARGO_MANIFEST_DIR")).join("../perfetto/check.py");
    let out = Command::new(python)
        .args([&check, &trace])
        .arg("--whole")
        .output()?;
    ensure!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    let sums: Value = serde_json::from_slice(&out.stdout).context("the sums of check.py")?;
    let number = |path: &str| sums.pointer(path).and_then(Value::as_u64).unwrap_or(0);
    let truth = std::fs::read_to_string(&truth)?;
    let ran = |what: &str| truth.matches(&format!("\"type\":\"{what}\"")).count() as u64;
    for (path, count) in [
        ("/ledger/submissions", 600),
        ("/kinds/submission", 600),
        ("/arrows/doorbell", 600),
        ("/kinds/launch", ran("kernel")),
        ("/kinds/copy", ran("copy")),
        ("/clocks", 3),
    ] {
        ensure!(number(path) == count, "{path} is not {count}: {sums:#}");
    }
    ensure!(
        number("/kinds/launch") > 0 && number("/kinds/copy") > 0,
        "{sums:#}"
    );
    Ok(())
}
