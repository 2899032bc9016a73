//! Whole screens, as a terminal of 80 and of 200 columns has them, with colours and without: files of `tests/screens`, in which `\u{241b}`
//! stands for the escape character. `NVCAP_WRITE_FIXTURES=1 cargo test -p nvcap --test all screens::` writes them anew.

use std::fs;
use std::path::Path;

use crate::common::cli::{argument, on_a_terminal};
use crate::common::files::fixture;

/// The escape character, for eyes.
const SHOWN: &str = "\u{241b}";

/// A text without colours.
fn plain(text: &str) -> String {
    let mut parts = text.split('\x1b');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (code, rest) = part.split_once('m').expect("a colour ends with m");
        assert!(code.starts_with('['), "{part:?}");
        plain += rest;
    }
    plain
}

/// The lines that differ, in their order: those that were expected, and those that are there.
fn difference(expected: &str, shown: &str) -> String {
    let (old, new): (Vec<_>, Vec<_>) = (expected.lines().collect(), shown.lines().collect());
    let begin = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
    let (old, new) = (&old[begin..], &new[begin..]);
    let ends = old.iter().rev().zip(new.iter().rev());
    let end = ends.take_while(|(a, b)| a == b).count();
    let side = |mark: &str, lines: &[&str]| {
        let lines = lines[..lines.len() - end].iter();
        lines.map(|l| format!("{mark} {l}\n")).collect::<String>()
    };
    format!(
        "from line {} on:\n{}{}",
        begin + 1,
        side("-", old),
        side("+", new)
    )
}

fn screen(name: &str, status: i32, args: &[&str]) {
    for columns in [80, 200] {
        let (coloured, ended) = on_a_terminal(columns, true, args);
        assert_eq!(ended, Some(status), "{args:?}: {coloured}");
        let (without, _) = on_a_terminal(columns, false, args);
        assert_eq!(plain(&coloured), without, "{args:?} with NO_COLOR");
        let shown = coloured.replace('\x1b', SHOWN);
        let path = format!(
            "{}/tests/screens/{name}-{columns}.txt",
            env!("CARGO_MANIFEST_DIR")
        );
        let path = Path::new(&path);
        if std::env::var_os("NVCAP_WRITE_FIXTURES").is_some() {
            fs::write(path, shown).unwrap();
            continue;
        }
        let expected = fs::read_to_string(path).unwrap_or_default();
        assert!(
            shown == expected,
            "nvcap {args:?} on {columns} columns is not as in {}, {}",
            path.display(),
            difference(&expected, &shown)
        );
    }
}

fn training() -> String {
    argument(fixture("training.pcapng"))
}

#[test]
fn the_short_help() {
    screen("help", 0, &["-h"]);
}

/// The first lines, the sums and the ledger.
#[test]
fn lines_of_a_recording() {
    screen("decode", 3, &["decode", &training()]);
}

#[test]
fn the_ledger() {
    screen("ledger", 3, &["decode", "-q", &training()]);
}

#[test]
fn the_time() {
    screen("time", 3, &["time", &training()]);
}

#[test]
fn the_sums() {
    screen("stats", 3, &["stats", &training()]);
}

#[test]
fn the_hang() {
    screen("dump", 3, &["dump", &training()]);
}

#[test]
fn the_verdicts() {
    screen("verdicts", 0, &["explain", "verdict"]);
}

#[test]
fn a_difference_has_the_lines_that_differ() {
    let told = difference("a\nb\nc\nd\n", "a\nx\ny\nd\n");
    assert_eq!(told, "from line 2 on:\n- b\n- c\n+ x\n+ y\n");
    assert_eq!(plain("\x1b[1mbold\x1b[0m, not"), "bold, not");
}
