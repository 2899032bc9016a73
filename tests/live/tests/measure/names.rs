//! Share of launches that have their kernels' names when they are shown.

use std::ffi::OsString;

use anyhow::{Context, Result};
use live::measure::Figure;
use live::needs::need_tracing;
use live::programs::{Folder, GUARD, Running, nvcap, softgpu};
use serde_json::Value;

fn traced(program: &[&str]) -> Result<Vec<Value>> {
    need_tracing()?;
    let folder = Folder::new()?;
    let trace = folder.file("trace.json");
    let mut args: Vec<OsString> = ["--json", "-e", "op=launch", "-o"]
        .map(OsString::from)
        .to_vec();
    args.extend([trace.clone().into(), "--channels".into()]);
    args.extend([folder.channels()?.into(), "--".into(), softgpu()?.into()]);
    args.extend(program.iter().map(OsString::from));
    Running::start(&nvcap()?, args)?.end(GUARD)?;
    let text = std::fs::read_to_string(&trace)?;
    let objects = text.lines().map(serde_json::from_str);
    let objects = objects.collect::<Result<Vec<Value>, _>>()?;
    Ok(objects
        .into_iter()
        .filter(|o| o["op"] == "launch")
        .collect())
}

fn share(launches: &[Value], has: impl Fn(&Value) -> bool) -> f64 {
    launches.iter().filter(|l| has(l)).count() as f64 / launches.len() as f64
}

/// Measures names with modules that come one after another.
pub fn modules_that_keep_coming() -> Result<Vec<Figure>> {
    let launches = traced(&[
        "--kernels",
        "--private-mb=64",
        "--module-every=60",
        "--channels=1",
        "--threads=1",
        "--submissions=1000",
        "--sleep-us=2000",
        "--linger-ms=300",
    ])?;
    launches.first().context("no launches")?;
    let named = share(&launches, |l| !l["kernel"].is_null());
    let certain = share(&launches, |l| l["kernel_certain"] == true);
    Ok(vec![
        Figure::new("launches with a name", named, "").beside(1.0),
        Figure::new("launches with a certain name", certain, "").beside(1.0),
    ])
}
