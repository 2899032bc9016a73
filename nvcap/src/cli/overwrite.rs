//! The check that a command line has no file replaced by mistake: a file that it names for output must be empty or not there, unless
//! `--force` is given. The check comes before the command does anything.
//!
//! Recordings are not checked here: they get a name with a number instead (`target::open_recording`).

use std::path::{Path, PathBuf};

use nvcap_show::output::file::would_be_replaced;
use nvcap_show::output::plural::plural_of;

use super::target::is_input;

/// Returns the reason why a command that would write to a file must not begin. `-` is standard output. `inputs` are files that the
/// command reads: it refuses these itself.
pub(super) fn refusal(path: Option<&Path>, force: bool, inputs: &[&Path]) -> Option<String> {
    of_option("-o", path, force, inputs)
}

/// Returns what [`refusal`] does, for the file of the option `option`.
pub(super) fn of_option(
    option: &str,
    path: Option<&Path>,
    force: bool,
    inputs: &[&Path],
) -> Option<String> {
    let path = path.filter(|path| path.as_os_str() != "-")?;
    if force || is_input(path, inputs) || !would_be_replaced(path) {
        return None;
    }
    Some(of_files(
        &[path.to_owned()],
        &format!("another file with {option}"),
    ))
}

/// Returns the reason why a command that would write these files into a folder must not begin.
pub(super) fn of_folder(
    files: impl IntoIterator<Item = PathBuf>,
    force: bool,
    inputs: &[&Path],
) -> Option<String> {
    if force {
        return None;
    }
    let is_taken = |path: &PathBuf| !is_input(path, inputs) && would_be_replaced(path);
    let taken: Vec<PathBuf> = files.into_iter().filter(is_taken).collect();
    (!taken.is_empty()).then(|| of_files(&taken, "another folder with -o"))
}

/// Words of a refusal. `another`: what to name instead.
fn of_files(taken: &[PathBuf], another: &str) -> String {
    let first = taken.first().map(|path| path.display().to_string());
    let first = first.unwrap_or_default();
    match taken.len().saturating_sub(1) as u64 {
        0 => format!(
            "cannot write to {first}: there is something in it, which would be lost; name {another}, or add --force to write over it"
        ),
        others => format!(
            "cannot write to {first} and {}: there is something in them, which would be lost; name {another}, or add --force to write \
             over them",
            plural_of(others, "other file", "other files")
        ),
    }
}
