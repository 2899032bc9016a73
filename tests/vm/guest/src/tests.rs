//! The tests, by name. Those whose names begin with `bed-` prove the bed itself and need no nvcap.

mod bed;
mod target;

use anyhow::{Result, bail};

use crate::job::Job;

/// How a test ended that did not fail.
#[derive(Debug)]
pub enum Outcome {
    /// It ran and everything held.
    Passed,
    /// It could not run here, and why.
    NotRun(String),
}

/// Runs the test with this name.
pub fn run(name: &str, job: &Job) -> Result<Outcome> {
    match name {
        "bed-life" => bed::life(job),
        "bed-maps" => bed::maps(job),
        "bed-revoke" => bed::revoke(job),
        "bed-kprobe" => bed::kprobe(job),
        "bed-hung" => bed::hung(job),
        "bed-reload" => bed::reload(job),
        "bed-none" => bed::none(job),
        _ => bail!("there is no test {name:?}"),
    }
}
