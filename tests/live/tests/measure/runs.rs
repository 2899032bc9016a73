//! Runs of nvcap on the software GPU at full speed, for the measurements.

use std::ffi::OsString;
use std::time::Instant;

use anyhow::{Context, Result};
use live::programs::{Folder, GUARD, Running, nvcap, softgpu};
use serde_json::Value;

/// Facts that a trace tells of itself.
pub struct Traced {
    /// Its ledger.
    pub ledger: Value,
    /// Nanoseconds of its submissions.
    pub times: Vec<u64>,
}

impl Traced {
    /// A number of the ledger, by its path; 0 where there is none.
    pub fn number(&self, path: &[&str]) -> f64 {
        let at = path.iter().fold(&self.ledger, |value, name| &value[*name]);
        at.as_f64().unwrap_or(0.0)
    }

    /// Reads one.
    pub fn of(trace: &std::path::Path) -> Result<Self> {
        let (mut ledger, mut times) = (None, Vec::new());
        for line in std::fs::read_to_string(trace)?.lines() {
            let line: Value = serde_json::from_str(line)?;
            match line["type"].as_str() {
                Some("ledger") => ledger = Some(line),
                Some("submission") => times.extend(line["time_ns"].as_u64()),
                _ => {}
            }
        }
        let ledger = ledger.context("a trace without a ledger")?;
        Ok(Self { ledger, times })
    }
}

/// The software GPU under nvcap with these options, from its start.
pub fn traced(options: &[&str], program: &[&str]) -> Result<Traced> {
    let folder = Folder::new()?;
    let trace = folder.file("trace.json");
    let mut args: Vec<OsString> = ["--json", "-e", "type=submission", "-o"]
        .map(OsString::from)
        .to_vec();
    args.push(trace.clone().into());
    args.extend(["--channels".into(), folder.channels()?.into()]);
    args.extend(options.iter().map(OsString::from));
    args.extend(["--".into(), softgpu()?.into()]);
    args.extend(program.iter().map(OsString::from));
    Running::start(&nvcap()?, args)?.end(GUARD)?;
    Traced::of(&trace)
}

/// Seconds that the program takes untraced.
pub fn untraced(program: &[&str]) -> Result<f64> {
    let begun = Instant::now();
    Running::start(&softgpu()?, program)?
        .end(GUARD)?
        .expect_code(0)?;
    Ok(begun.elapsed().as_secs_f64())
}

/// Submissions a second in the second half of a trace.
pub fn rate(mut times: Vec<u64>) -> f64 {
    times.sort_unstable();
    let second = &times[times.len() / 2..];
    match (second.first(), second.last()) {
        (Some(first), Some(last)) => second.len() as f64 / (last - first).max(1) as f64 * 1e9,
        _ => 0.0,
    }
}
