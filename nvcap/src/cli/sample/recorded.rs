//! `nvcap sample FILE`: samples of a recording.

use std::path::Path;

use anyhow::bail;
use nvcap_decode::ledger::Ledger;
use nvcap_show::samples::Gathered;

use crate::cli::gather;
use crate::cli::recording::RecordingArgs;

/// Reads the samples of a recording; `output`: where they will be shown.
///
/// # Errors
/// When it cannot be read, or has none.
pub(super) fn read(
    of: &RecordingArgs,
    output: Option<&Path>,
) -> anyhow::Result<(Gathered, Ledger)> {
    let mut gathered = Gathered::default();
    let ledger = gather::records(of, output, |record| gathered.record(record))?;
    if gathered.contexts().is_empty() {
        bail!(
            "{} has no samples of program counters: they are recorded by nvcap sample --record FILE, or beside a trace by nvcap record --sample-pc",
            of.name()
        );
    }
    Ok((gathered, ledger))
}
