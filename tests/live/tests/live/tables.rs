//! `nvcap export parquet` of a live trace, read by DuckDB.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};

use crate::exported::{SUBMISSIONS, export, python};

/// The software GPU under nvcap, in a GPU's time: every submission, kernel and copy that ran has its row, and there are times.
pub fn live_trace() -> Result<()> {
    let python = python("tables", "DuckDB")?;
    let exported = export("parquet", "run.tables")?;
    let check = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tables/check.py");
    let counts = [SUBMISSIONS, exported.ran("kernel"), exported.ran("copy")];
    let out = Command::new(python)
        .args([
            check.as_os_str(),
            "live".as_ref(),
            exported.file.as_os_str(),
        ])
        .args(counts.map(|count| count.to_string()))
        .output()?;
    ensure!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    Ok(())
}
