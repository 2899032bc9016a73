//! Lines that come too fast to be read: what stands in their place on this terminal.

use nvcap_show::output::text::Fast;

/// Form of the output. `all`: every line is asked for; `command`: a command is traced, which may write to the same terminal.
pub(super) fn form(all: bool, command: bool) -> Fast {
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    match (all, command || is_dumb) {
        (true, _) => Fast::Lines,
        (false, true) => Fast::Appended,
        (false, false) => Fast::Anew,
    }
}
