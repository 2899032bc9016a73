//! Replacement, on this terminal, of lines that come too fast to be read.

use nvcap_show::output::text::Fast;

/// Returns the form of the output. `all` means that every line is asked for; `command`, that a command is traced, which may write to the
/// same terminal.
pub(super) fn form(all: bool, command: bool) -> Fast {
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    match (all, command || is_dumb) {
        (true, _) => Fast::Lines,
        (false, true) => Fast::Appended,
        (false, false) => Fast::Anew,
    }
}
