//! Cost of doorbells once their tokens are learnt.

use std::ffi::OsString;

use anyhow::Result;
use live::measure::Figure;
use live::programs::{Folder, GUARD, Running, nvcap, softgpu};
use softgpu::layout::{DOORBELL, doorbell_page};

use crate::runs::{Traced, rate};

/// Submissions a second of 16 threads on two GPUs, each with a channel of its own, whose tokens nvcap learns; beside those told.
pub fn racing_threads() -> Result<Vec<Figure>> {
    let (learnt, told) = (race(false)?, race(true)?);
    Ok(vec![
        Figure::new("submissions a second with tokens learnt", learnt, "/s").beside(told),
    ])
}

fn race(told: bool) -> Result<f64> {
    let folder = Folder::new()?;
    let trace = folder.file("trace.json");
    let program = [
        "--files",
        "--channels=16",
        "--threads=16",
        "--submissions=90000",
        "--wait-stdin",
    ];
    let mut gpu = Running::start(&softgpu()?, program)?;
    gpu.wait_for_line("waiting")?;
    let mut args: Vec<OsString> = ["--buffer=256M", "--json", "-e", "type=submission", "-o"]
        .map(OsString::from)
        .to_vec();
    args.push(trace.clone().into());
    if told {
        args.extend(["--channels".into(), folder.channels()?.into()]);
    } else {
        let word = |gpu| format!("--doorbell={:#x}", doorbell_page(gpu, 1) + DOORBELL).into();
        args.extend((0..2).map(word));
    }
    args.extend(["-p".into(), gpu.pid().to_string().into()]);
    let mut nvcap = Running::start(&nvcap()?, args)?;
    nvcap.wait_until("watching", GUARD, |n| n.stderr().contains("attached"))?;
    gpu.write(b"g")?;
    gpu.end(GUARD)?;
    nvcap.end(GUARD)?;
    Ok(rate(Traced::of(&trace)?.times))
}
