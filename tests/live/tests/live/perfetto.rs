//! `nvcap export perfetto` of a live trace, checked by Perfetto's own bindings.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::exported::{SUBMISSIONS, export, python};

/// The software GPU under nvcap, in a GPU's time: every submission has its doorbell and an arrow, every kernel and copy that ran is
/// drawn once, and the trace is one of Perfetto's.
pub fn live_trace() -> Result<()> {
    let python = python("perfetto", "Perfetto's bindings")?;
    let exported = export("perfetto", "run.pftrace")?;
    let check = Path::new(env!("CARGO_MANIFEST_DIR")).join("../perfetto/check.py");
    let out = Command::new(python)
        .args([&check, &exported.file])
        .arg("--whole")
        .output()?;
    ensure!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    let sums: Value = serde_json::from_slice(&out.stdout).context("the sums of check.py")?;
    let number = |path: &str| sums.pointer(path).and_then(Value::as_u64).unwrap_or(0);
    for (path, count) in [
        ("/ledger/submissions", SUBMISSIONS),
        ("/kinds/submission", SUBMISSIONS),
        ("/arrows/doorbell", SUBMISSIONS),
        ("/kinds/launch", exported.ran("kernel")),
        ("/kinds/copy", exported.ran("copy")),
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
