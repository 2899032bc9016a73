//! A live trace of the software GPU in a GPU's time, exported, for the formats' own libraries to read.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::Result;
use live::harness::not_run;
use live::programs::{Folder, Running, nvcap, softgpu};
use softgpu::layout::channels_file;

use crate::setup::{LIMIT, need_tracing};

/// How many submissions there are.
pub const SUBMISSIONS: u64 = 600;

/// Python with a format's libraries, which `cargo xtask test` installs in a folder above this program; `what` they are.
pub fn python(format: &str, what: &str) -> Result<PathBuf> {
    let tests = std::env::current_exe()?;
    let within = |folder: &std::path::Path| folder.join(format).join("venv/bin/python");
    let mut pythons = tests.ancestors().map(within);
    match pythons.find(|python| python.exists()) {
        Some(python) => Ok(python),
        None => not_run(format!(
            "no Python with {what}; cargo xtask test installs it where python3 and pip are there"
        )),
    }
}

/// What was exported, and what truly ran.
pub struct Exported {
    pub file: PathBuf,
    truth: String,
    _folder: Folder,
}

impl Exported {
    /// How many kernels (`kernel`) or copies (`copy`) ran.
    pub fn ran(&self, what: &str) -> u64 {
        let one = format!("\"type\":\"{what}\"");
        self.truth.matches(&one).count() as u64
    }
}

/// Runs the software GPU under `nvcap export FORMAT`, into a file of this name.
pub fn export(format: &str, file: &str) -> Result<Exported> {
    need_tracing()?;
    let folder = Folder::new()?;
    let (file, truth) = (folder.file(file), folder.file("truth.json"));
    let channels = folder.file("channels.txt");
    std::fs::write(&channels, channels_file(1))?;
    let mut args: Vec<OsString> = ["export", format, "--channels"]
        .map(OsString::from)
        .to_vec();
    args.extend([channels.into(), "-o".into(), file.clone().into()]);
    args.extend(["--".into(), softgpu()?.into()]);
    args.extend(
        [
            "--timed",
            "--files",
            "--gpus=1",
            "--threads=1",
            "--linger-ms=300",
        ]
        .map(OsString::from),
    );
    args.push(format!("--submissions={SUBMISSIONS}").into());
    args.push(format!("--timed-truth={}", truth.display()).into());
    Running::start(&nvcap()?, args)?
        .end(LIMIT)?
        .expect_code(0)?;
    Ok(Exported {
        file,
        truth: std::fs::read_to_string(&truth)?,
        _folder: folder,
    })
}
