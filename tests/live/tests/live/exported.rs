//! A live trace of the software GPU in a GPU's time, exported, for the formats' own libraries to read.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::Result;
use live::harness::not_run;
use live::in_step::Step;
use live::programs::Folder;

use crate::setup::need_tracing;
use crate::time_from_stamps::{Way, run_with};

/// Number of submissions that are exported.
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

/// Exported file, and the truth of what ran.
pub struct Exported {
    pub file: PathBuf,
    truth: String,
    _folder: Folder,
}

impl Exported {
    /// Returns the number of kernels (`kernel`) or copies (`copy`) that ran.
    pub fn ran(&self, what: &str) -> u64 {
        let one = format!("\"type\":\"{what}\"");
        self.truth.matches(&one).count() as u64
    }
}

/// Runs the software GPU under `nvcap export FORMAT`, into a file of this name. It goes on as far as nvcap has read: else nothing would be timed
/// where nvcap gets no processor while it runs.
pub fn export(format: &str, file: &str) -> Result<Exported> {
    need_tracing()?;
    let folder = Folder::new()?;
    let file = folder.file(file);
    let mut args = ["export", format, "-o"].map(OsString::from).to_vec();
    args.push(file.clone().into());
    let gpu = [format!("--submissions={SUBMISSIONS}")];
    run_with(Way::Start, &gpu, (&folder, &Step::new(&folder)?), args)?;
    Ok(Exported {
        file,
        truth: std::fs::read_to_string(folder.file("truth.json"))?,
        _folder: folder,
    })
}
