//! Command lines that are not understood: status 2, whoever finds it.

use std::fs;

use crate::common::cli::{Folder, nvcap, text};

#[test]
fn a_file_with_nothing_in_it_is_the_same_to_all() {
    let folder = Folder::new("usage-empty");
    let empty = folder.path("empty.pcapng");
    fs::write(&empty, "").unwrap();
    let page = folder.path("page.html");
    for (command, more) in [
        (&["decode"][..], &[][..]),
        (&["stats"], &[]),
        (&["time"], &[]),
        (&["ranks"], &[]),
        (&["stacks"], &[]),
        (&["sample"], &[]),
        (&["dump"], &[]),
        (&["report"], &["-o", &page]),
        (&["export", "perfetto"], &["-o", &page]),
        (&["export", "pcapng"], &["-o", &page]),
    ] {
        let out = nvcap(&[command, &[&*empty], more].concat());
        let said = text(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{command:?}: {said}");
        let expected = format!("nvcap: {empty} is no capture: it is empty\n");
        assert_eq!(said, expected, "{command:?}");
    }
    let out = nvcap(&["diff", &empty, &empty]);
    assert_eq!(out.status.code(), Some(2));
    assert!(text(&out.stderr).contains("it is empty"));
}

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
