//! The words that text shows as words of filters, on recordings of real machines.

use std::path::Path;

use nvcap_show::output::filter::Field;

use crate::common::cli::{argument, nvcap, text};

fn fixture(name: &str) -> String {
    argument(
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../tests/fixtures")
            .join(name),
    )
}

/// The lines of operations that a filter lets through, and what is told beside them.
fn shown(file: &str, expression: &str) -> (Vec<String>, String) {
    let out = nvcap(&["decode", file, "-e", expression]);
    let told = text(&out.stderr);
    assert!(out.status.success(), "{expression}: {told}");
    let lines = text(&out.stdout);
    let lines = lines.lines().filter(|l| l.get(13..15) == Some("ch"));
    (lines.map(str::to_owned).collect(), told)
}

/// The word that begins the operation of a line: it is behind time, channel and engine.
fn word(line: &str) -> &str {
    line.split_whitespace().nth(3).unwrap_or_default()
}

#[test]
fn each_word_that_text_shows_finds_the_lines_that_show_it() {
    let file = fixture("h100-modules.pcapng.xz");
    let (all, _) = shown(&file, "type=operation");
    assert!(all.len() > 100, "{} lines", all.len());
    let mut words: Vec<&str> = all.iter().map(|l| word(l)).collect();
    words.sort_unstable();
    words.dedup();
    assert!(
        words.contains(&"fill") && words.contains(&"memset"),
        "{words:?}"
    );
    for of in words {
        assert!(Field::Op.choices().contains(&of), "{of}");
        let (lines, _) = shown(&file, &format!("op={of}"));
        let expected: Vec<&String> = all.iter().filter(|l| word(l) == of).collect();
        // These have wider meanings, too: all of them are in what is found.
        let is_wider = ["copy", "launch", "inline", "semaphore"].contains(&of);
        assert!(expected.iter().all(|l| lines.contains(l)), "op={of}");
        assert!(is_wider || lines.len() == expected.len(), "op={of}");
    }
}

#[test]
fn channel_and_time_are_written_as_they_are_shown() {
    let file = fixture("h100-modules.pcapng.xz");
    let (all, _) = shown(&file, "type=operation");
    let (named, _) = shown(&file, "type=operation && channel=ch8");
    let of_8: Vec<&String> = all
        .iter()
        .filter(|l| l.split_whitespace().nth(1) == Some("ch8"))
        .collect();
    assert!(!of_8.is_empty() && named.iter().collect::<Vec<_>>() == of_8);
    assert_eq!(named, shown(&file, "type=operation && channel=8").0);
    let (late, _) = shown(&file, "type=operation && time>0.254254");
    let time = |line: &str| -> f64 { line[..11].trim().parse().unwrap() };
    let expected: Vec<&String> = all.iter().filter(|l| time(l) > 0.254_254).collect();
    assert!(!expected.is_empty() && late.iter().collect::<Vec<_>>() == expected);
    assert_eq!(late, shown(&file, "type=operation && time>254254us").0);
}

#[test]
fn what_there_is_is_told() {
    let file = fixture("h100-modules.pcapng.xz");
    let (lines, told) = shown(&file, "kernel=f4");
    assert!(lines.is_empty());
    let expected = "nothing matched kernel=f4 (did you mean f3?); there is 1 kernel: f3";
    assert!(told.contains(expected), "{told}");
    let (_, told) = shown(&file, "channel=ch99 && op=launch");
    assert!(told.contains("nothing matched channel=ch99"), "{told}");
    assert!(
        told.contains("there are 20 channels, among them: ch0, ch1, ch2"),
        "{told}"
    );
}
