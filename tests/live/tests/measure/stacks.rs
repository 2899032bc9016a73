//! Cost that a stack adds to a trap.

use std::ffi::OsString;

use anyhow::{Context, Result};
use live::measure::Figure;
use live::needs::need_tracing;
use live::programs::{Folder, GUARD, Running, nvcap, softgpu};

/// Nanoseconds a launch, the best of three passes, beside a launch that is traced without stacks.
pub fn cost() -> Result<Vec<Figure>> {
    need_tracing()?;
    let folder = Folder::new()?;
    let best = |options: &[&str]| -> Result<f64> {
        let mut args: Vec<OsString> = options.iter().map(OsString::from).collect();
        args.extend(["-q".into(), "--channels".into(), folder.channels()?.into()]);
        args.extend(["--".into(), softgpu()?.into()]);
        args.extend(["--bench=20000", "--call-depth=20"].map(OsString::from));
        let ended = Running::start(&nvcap()?, args)?.end(GUARD)?;
        let passes = ended.stdout.lines();
        let passes = passes.filter_map(|l| l.rsplit_once("ns_per_launch=")?.1.parse::<f64>().ok());
        passes.reduce(f64::min).context("no passes")
    };
    let without = best(&[])?;
    let ways: [(&str, &[&str]); 3] = [
        ("a launch with a stack of 16 KiB", &["--stacks"]),
        (
            "a launch with a stack of 4 KiB",
            &["--stacks", "--stack-size=4K"],
        ),
        (
            "a launch with a stack in one of 10 doorbells",
            &["--stacks=10"],
        ),
    ];
    let figure = |(what, options): (&str, &[&str])| {
        Ok(Figure::new(what, best(options)?, "ns").beside(without))
    };
    ways.into_iter().map(figure).collect()
}
