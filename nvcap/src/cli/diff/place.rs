//! Parts that all comparisons share: reading a recording to its end, and writing the result.

use std::path::Path;

use anyhow::bail;

use nvcap_decode::ledger::Ledger;
use nvcap_show::output::filter::Filter;
use nvcap_show::output::{Sink, json};
use nvcap_show::pipeline::Pipeline;

use crate::cli::output_args::{OutputArgs, When};
use crate::cli::recording::{INTERRUPTED, Played, Recording};
use crate::cli::target;

/// Files that are compared, and place and form of the result.
pub(super) struct Place<'a> {
    pub(super) inputs: [&'a Path; 2],
    pub(super) output: Option<&'a Path>,
    pub(super) force: bool,
    pub(super) json: bool,
    pub(super) color: When,
}

impl Place<'_> {
    /// Gives the events of a recording to a sink, and returns its ledger.
    pub(super) fn play<'s>(
        &self,
        file: &Path,
        mut recording: Recording<'_>,
        filter: Option<Filter>,
        sink: Box<dyn Sink + 's>,
    ) -> anyhow::Result<Ledger> {
        let shown = OutputArgs {
            filter,
            ..OutputArgs::default()
        };
        let shown = shown.of_recording(recording.trace());
        let options = shown.pipeline_options(false, None)?;
        let mut pipeline = Pipeline::new(options, vec![sink]);
        let recording = recording.quiet_until_the_end(self.output);
        let played = recording.play(&mut pipeline)?;
        let ledger = shown.finish(pipeline)?.ledger;
        match played {
            Played::Interrupted => bail!("{}", not_compared(file)),
            Played::ToTheEnd => Ok(ledger),
        }
    }

    /// Writes the comparison, as JSON or as text.
    pub(super) fn write(
        &self,
        object: impl FnOnce() -> serde_json::Value,
        text: impl FnOnce(&mut Vec<u8>, bool),
    ) -> anyhow::Result<()> {
        let mut out = target::open(self.output, self.force, false, &self.inputs)?;
        if self.json {
            json::write(out.object(), &object());
            out.object().push(b'\n');
        } else {
            let when = OutputArgs {
                color: self.color,
                ..OutputArgs::default()
            };
            let color = when.color().enabled(out.is_terminal());
            text(out.object(), color);
        }
        match target::written(&mut out) {
            // The reader closed the pipe, as in `nvcap diff A B | head`. The exit status is still that of the comparison.
            Err(e) if e.chain().any(is_gone) => Ok(()),
            written => written,
        }
    }
}

/// Returns the message that Ctrl-C ended the reading of a file.
pub(super) fn not_compared(file: &Path) -> String {
    let name = file.display();
    format!("{name}: {INTERRUPTED}, and nothing was compared")
}

/// Tells whether an error means that the reader of the output went away.
fn is_gone(cause: &(dyn std::error::Error + 'static)) -> bool {
    cause
        .downcast_ref::<std::io::Error>()
        .is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}
