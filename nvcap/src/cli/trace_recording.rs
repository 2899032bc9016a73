//! The recording of a live trace: where it goes, and what it says of the trace.

use std::path::Path;

use super::recorder::{self, Traced};
use super::trace::Args;
use nvcap_show::output::{file::Place, recorder::Files};

impl Args {
    /// Opens the file of `--record`, if the option was given.
    ///
    /// # Errors
    /// When the file cannot be written, or the trace also reads or writes it otherwise.
    pub(super) fn recording_files(&self) -> anyhow::Result<Option<(Files, Option<Place>)>> {
        let Some(path) = &self.record else {
            return Ok(None);
        };
        let others = [&self.channels, &self.output.phases, &self.output.output];
        let others: Vec<Option<&Path>> = others.into_iter().map(|p| p.as_deref()).collect();
        recorder::open(path, &self.recording, self.output.force, &others).map(Some)
    }

    /// Returns the reason why a command that would write its output (`-o`) must not begin; `file` is a recording that it reads.
    pub(super) fn refusal(&self, file: Option<&Path>) -> Option<String> {
        let inputs: Vec<&Path> = [file, self.channels.as_deref()]
            .into_iter()
            .flatten()
            .collect();
        self.output.refusal(&inputs)
    }

    /// Returns the description of the trace for a recording.
    pub(super) fn recorded(&self, how: &'static str) -> Traced<'_> {
        Traced {
            how,
            gpu_time: self.gpu_time,
            stacks: self.stacks.is_some(),
            redacted: self.output.redact,
            is_moment: false,
            command: &self.command,
        }
    }
}
