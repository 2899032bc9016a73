//! Cost of observing a process with many mappings.

use std::ffi::OsString;

use anyhow::{Context, Result};
use live::harness::not_run;
use live::measure::Figure;
use live::programs::{Folder, GUARD, Running, nvcap};

/// The share of a processor that is allowed.
const SHARE: f64 = 0.02;

/// The program of tests/hostile with 60,000 mappings, for five seconds (HOSTILE_BIN, or beside nvcap).
pub fn many() -> Result<Vec<Figure>> {
    let nvcap = nvcap()?;
    let named = std::env::var_os("HOSTILE_BIN").map(Into::into);
    let hostile = named.unwrap_or_else(|| nvcap.with_file_name("hostile"));
    if !hostile.exists() {
        return not_run("the program of tests/hostile is not built");
    }
    let folder = Folder::new()?;
    let trace = folder.file("trace.json");
    let mut args: Vec<OsString> = ["--how=observe", "--json", "-q", "--observe-cpu=2%", "-o"]
        .map(OsString::from)
        .to_vec();
    args.extend([trace.clone().into(), "--".into(), hostile.into()]);
    args.push("mappings::many".into());
    Running::start_prepared(&nvcap, args, None, |command| {
        command.env("HOSTILE_STAY_MS", "5000");
    })?
    .end(GUARD)?;
    let text = std::fs::read_to_string(&trace)?;
    let ledger: serde_json::Value =
        serde_json::from_str(text.lines().last().context("an empty trace")?)?;
    let ns = |name: &str| {
        let value = ledger["observed"][name].as_f64();
        value.with_context(|| format!("no {name}: {ledger}"))
    };
    let used = ns("cpu_ns")? / ns("wall_ns")?;
    let figure = Figure::new("processor time of a process with 60,000 mappings", used, "");
    Ok(vec![figure.beside(SHARE)])
}
