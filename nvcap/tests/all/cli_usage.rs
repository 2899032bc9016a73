//! Command lines that are not understood: status 2, whoever finds it.

use crate::common::cli::{nvcap, text};

#[test]
fn a_command_that_was_mistyped_is_told() {
    for (line, meant) in [
        (&["tiem"][..], "time"),
        (&["tiem", "x.pcapng"], "time"),
        (&["rank", "x.pcapng"], "ranks"),
        (&["sttas", "x.pcapng", "--json"], "stats"),
        (&["decdoe"], "decode"),
    ] {
        let out = nvcap(line);
        let said = text(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{line:?}: {said}");
        let words = format!("no command `{}`; did you mean `{meant}`?", line[0]);
        assert!(said.contains(&words), "{line:?}: {said}");
    }
}
