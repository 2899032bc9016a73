//! `nvcap share FILE`: who had the GPUs of a recording.

use std::path::Path;

use anyhow::bail;
use nvcap_show::shares::Shares;

use crate::cli::gather;
use crate::cli::recording::RecordingArgs;

/// Reads the context switches of a recording; `output`: where they will be shown.
///
/// # Errors
/// When it cannot be read, or has none.
pub(super) fn read(of: &RecordingArgs, output: Option<&Path>) -> anyhow::Result<Shares> {
    let mut shares = Shares::default();
    gather::records(of, output, |record| shares.record(record))?;
    if shares.is_empty() {
        bail!(
            "{} does not say who had the GPUs: that is recorded beside a trace by nvcap record --shares",
            of.name()
        );
    }
    Ok(shares)
}
