//! `--record`: samples written into a recording.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use nvcap_decode::record::{At, Life, Process, Record};
use nvcap_process::memory::chip;
use nvcap_process::{clock, procfs};
use nvcap_show::output::file::Place;
use nvcap_show::pipeline::{Pipeline, PipelineOptions};

use crate::cli::recorder::{self, RecordingOptions, Traced};
use crate::cli::target;

/// Word by which a recording says that it contains only samples.
const HOW: &str = "sample";

/// A recording that is written.
pub(super) struct Recording {
    pipeline: Pipeline<'static>,
    place: Option<Place>,
    /// Processes that have already been described.
    described: Vec<u32>,
}

impl Recording {
    /// Opens the recording. `output` is the file that is written as well, and `command` the command that is sampled.
    pub(super) fn begin(
        path: &Path,
        force: bool,
        output: Option<&Path>,
        command: &[OsString],
    ) -> anyhow::Result<Self> {
        let options = RecordingOptions {
            tells: true,
            ..RecordingOptions::default()
        };
        let (files, place) = recorder::open(path, &options, force, &[output])?;
        let traced = Traced {
            how: HOW,
            observes: Arc::default(),
            gpu_time: false,
            stacks: false,
            redacted: false,
            is_moment: false,
            command,
        };
        let recorder = recorder::of_trace(files, &traced)
            .with_context(|| format!("cannot write to {}", path.display()))?;
        let options = PipelineOptions {
            driver_version: target::running_driver(),
            ..PipelineOptions::default()
        };
        Ok(Self {
            pipeline: Pipeline::new(options, vec![Box::new(recorder)]),
            place,
            described: Vec::new(),
        })
    }

    /// Writes a record, preceded by one of its process.
    pub(super) fn record(&mut self, record: Record) -> anyhow::Result<()> {
        let pid = record.at().pid;
        if self.described.is_empty() {
            for gpu in chip::records() {
                self.pipeline.record(gpu)?;
            }
        }
        if !self.described.contains(&pid) {
            self.described.push(pid);
            if let Some(name) = procfs::name(pid, None) {
                self.pipeline.record(Record::Process(Process {
                    at: At::of_process(clock::now(), pid),
                    life: Life::Present { name },
                }))?;
            }
        }
        self.pipeline.record(record)?;
        Ok(self.pipeline.flush()?)
    }

    /// Ends the recording.
    pub(super) fn end(self) -> anyhow::Result<()> {
        let ledger = self.pipeline.finish()?;
        if ledger.unshown() > 0 {
            bail!("the recording could not be written as a whole: is the disk full?");
        }
        self.place.as_ref().map_or(Ok(()), recorder::check)
    }
}
