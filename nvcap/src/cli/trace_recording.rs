//! Recording of a live trace: its place, and its description of the trace.

use std::io;
use std::path::Path;
use std::sync::Arc;

use super::overwrite::{Files, is_standard_output};
use super::recorder::{self, Traced};
use super::trace::Args;
use nvcap_show::output::{file::Place, standard};

impl Args {
    /// Opens the file of `--record`, if the option was given.
    ///
    /// # Errors
    /// When the file cannot be written, or the trace also reads or writes it otherwise.
    pub(super) fn recording_files(
        &self,
    ) -> anyhow::Result<Option<(nvcap_show::output::recorder::Files, Option<Place>)>> {
        let Some(path) = &self.record else {
            return Ok(None);
        };
        let others = [&self.channels, &self.output.phases, &self.output.output];
        let others: Vec<Option<&Path>> = others.into_iter().map(|p| p.as_deref()).collect();
        recorder::open(path, &self.recording, self.output.force, &others).map(Some)
    }

    /// Returns the reason why a command that would write its output (`-o`) must not begin. `file` is a recording that it reads.
    pub(super) fn refusal(&self, file: Option<&Path>) -> Option<String> {
        let standard = self.output.output.is_none() && self.command.is_empty();
        match standard && self.record.is_some() && !self.records_to_standard_output() {
            true => self.files(file).shows().refusal(),
            false => self.files(file).refusal(),
        }
    }

    /// Returns the reason as [`Args::refusal`] does, for an output that is for a program: without `-o` it goes to standard output.
    pub(super) fn refusal_of_program(&self, file: Option<&Path>) -> Option<String> {
        match self.output.output {
            None => self.files(file).shows().refusal(),
            Some(_) => self.files(file).refusal(),
        }
    }

    /// Returns the files that the command line names. `file` is a recording that is read.
    fn files<'a>(&'a self, file: Option<&'a Path>) -> Files<'a> {
        self.files_beside(file)
            .writes("-o", self.output.output.as_deref())
    }

    /// Returns the files that the command line names, except that of `-o`.
    pub(super) fn files_beside<'a>(&'a self, file: Option<&'a Path>) -> Files<'a> {
        let inputs = [
            file,
            self.channels.as_deref(),
            self.output.phases.as_deref(),
        ];
        let record = self.record.as_deref();
        let files = Files::new(self.output.force).reads(inputs.into_iter().flatten());
        // Numbered files take the first unused names, one by one.
        match self.recording.rotate {
            Some(_) => files,
            None => files.records("--record", record),
        }
    }

    /// Tells whether the recording goes to standard output.
    fn records_to_standard_output(&self) -> bool {
        self.record.as_deref().is_some_and(is_standard_output)
    }

    /// Tells whether standard output is not available for nvcap's text, because it is the command's or the recording's.
    pub(super) fn leaves_standard_output(&self) -> bool {
        !self.command.is_empty() || self.records_to_standard_output()
    }

    /// Keeps standard output for a recording or an export. The command's standard output then goes to standard error, among the messages.
    ///
    /// # Errors
    /// When there are no more descriptors.
    pub(super) fn keep_standard_output(&self) -> io::Result<()> {
        let exported = || {
            self.output
                .output
                .as_deref()
                .is_some_and(is_standard_output)
        };
        let is_kept = self.records_to_standard_output() || self.exports && exported();
        match is_kept && !self.command.is_empty() {
            true => standard::keep_output(),
            false => Ok(()),
        }
    }

    /// Returns the description of the trace for a recording.
    pub(super) fn recorded(&self, how: &'static str) -> Traced<'_> {
        Traced {
            how,
            observes: Arc::default(),
            gpu_time: self.gpu_time,
            stacks: self.stacks.is_some(),
            redacted: self.output.redact,
            is_moment: false,
            command: &self.command,
        }
    }
}
