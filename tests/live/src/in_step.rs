//! Runs in step: the software GPU goes on only so far as nvcap has read, so that whoever is slow is waited for and the whole of a plan can be
//! asserted (`nvcap_process::in_step`, `softgpu::in_step`).

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Result};
use nvcap_process::in_step::{FILE, Table};

use crate::harness::not_run;
use crate::programs::{Folder, Running, nvcap};

/// The table of one run, in its folder.
#[derive(Clone, Debug)]
pub struct Step(PathBuf);

impl Step {
    /// Makes the table, empty. Not run where nvcap was built without the feature.
    pub fn new(folder: &Folder) -> Result<Step> {
        need_in_step()?;
        let file = folder.file("in-step");
        Table::create(&file).with_context(|| file.display().to_string())?;
        Ok(Step(file))
    }

    /// The software GPU's options, traced from its start or from where it waits.
    pub fn args(&self) -> Vec<String> {
        vec!["--in-step".to_owned(), self.0.display().to_string()]
    }

    /// Returns the software GPU's options with these before them.
    pub fn with(&self, args: &[&str]) -> Vec<String> {
        let before = args.iter().map(|a| (*a).to_owned());
        before.chain(self.args()).collect()
    }

    /// The software GPU's options behind these, where somebody attaches while it runs.
    pub fn following(&self, args: &[&str]) -> Vec<String> {
        let mut all = self.with(args);
        all.push("--in-step-follow".to_owned());
        all
    }

    /// `NAME=VALUE` of the variable by which nvcap finds the table.
    pub fn variable(&self) -> OsString {
        let mut variable = OsString::from(FILE);
        variable.push("=");
        variable.push(&self.0);
        variable
    }

    /// Starts nvcap with these arguments, in step.
    pub fn nvcap<S: AsRef<std::ffi::OsStr>>(
        &self,
        args: impl IntoIterator<Item = S>,
    ) -> Result<Running> {
        self.start(&nvcap()?, args, None)
    }

    /// Starts this nvcap, as another user if given.
    pub fn start<S: AsRef<std::ffi::OsStr>>(
        &self,
        program: &Path,
        args: impl IntoIterator<Item = S>,
        user: Option<u32>,
    ) -> Result<Running> {
        Running::start_prepared(program, args, user, self.prepare())
    }

    /// Tells a command where the table is.
    pub fn prepare(&self) -> impl FnOnce(&mut Command) + use<> {
        let file = self.0.clone();
        |command| {
            command.env(FILE, file);
        }
    }
}

/// Ends the test as not run where nvcap tells nothing: it would be waited for in vain.
fn need_in_step() -> Result<()> {
    static TELLS: OnceLock<bool> = OnceLock::new();
    let path = nvcap()?;
    let tells = TELLS.get_or_init(|| {
        let name = FILE.as_bytes();
        let bytes = std::fs::read(&path).unwrap_or_default();
        let (all, its) = ((bytes.as_ptr(), bytes.len()), (name.as_ptr(), name.len()));
        // SAFETY: reads both slices, by their lengths.
        !unsafe { libc::memmem(all.0.cast(), all.1, its.0.cast(), its.1) }.is_null()
    });
    match tells {
        true => Ok(()),
        false => not_run("nvcap was built without the feature in-step"),
    }
}
