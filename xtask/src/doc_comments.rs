//! Tests of the form of doc comments: each begins with a noun or a verb, and none is cut in two.

use std::fs;

use crate::{build, pages::below, paths};

/// First words of a comment that answers a question, or goes on with a sentence, instead of naming its item.
const REFUSED: [&[&str]; 15] = [
    &["For", "how"],
    &["How"],
    &["Nobody"],
    &["Of"],
    &["See", "the", "module"],
    &["So"],
    &["Until"],
    &["What"],
    &["When"],
    &["Where"],
    &["Whether"],
    &["Which"],
    &["Whoever"],
    &["Whose"],
    &["Why"],
];

/// The doc comments of a source file: the line that each begins in, and its text.
fn doc_comments(source: &str) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let mut open: Option<&str> = None;
    for (n, line) in source.lines().enumerate() {
        let line = line.trim_start();
        let kind = ["///", "//!"]
            .into_iter()
            .find(|kind| line.starts_with(kind));
        let text = kind.and_then(|kind| line.strip_prefix(kind));
        // Four strokes are no documentation.
        let text = text.filter(|text| !text.starts_with('/'));
        let Some(text) = text else {
            open = None;
            continue;
        };
        if open == kind {
            if let Some((_, whole)) = found.last_mut() {
                whole.push('\n');
                whole.push_str(text.trim());
            }
        } else {
            found.push((n + 1, text.trim().to_owned()));
        }
        open = kind;
    }
    found
}

/// Tells what is wrong with a doc comment.
fn fault(text: &str) -> Option<String> {
    let words = || text.split(|c: char| !c.is_alphanumeric());
    let begins = |with: &&&[&str]| words().take(with.len()).eq(with.iter().copied());
    if let Some(first) = REFUSED.iter().find(begins) {
        return Some(format!("begins with \"{}\"", first.join(" ")));
    }
    let ends = |text: &str| text.ends_with(['.', ':', '!', '?', ')', '`', '|', '>', '*', '"']);
    let last = text.lines().last().unwrap_or_default();
    // The target of a link stands alone.
    let is_link = last.starts_with('[') && last.contains("]:");
    if !text.is_empty() && !ends(text.trim_end()) && !is_link {
        return Some("has no end, as if it were cut".to_owned());
    }
    None
}

#[test]
fn doc_comments_begin_with_a_noun_or_a_verb_and_are_whole() {
    // Not those of nvcap itself, whose comments are help texts.
    let crates = build::CRATES.iter().filter(|name| **name != "nvcap");
    let folders = crates
        .map(|name| build::crate_folder(name))
        .chain(["nvcap-common".to_owned()]);
    let sources = folders.flat_map(|f| below(&paths::root().join(f).join("src"), "rs"));
    let mut faults = Vec::new();
    let mut seen = 0;
    for path in sources {
        let source = fs::read_to_string(&path).expect("a source file");
        let comments = doc_comments(&source);
        seen += comments.len();
        for (line, text) in comments {
            if let Some(fault) = fault(&text) {
                faults.push(format!("{}:{line}: it {fault}", path.display()));
            }
        }
    }
    assert!(seen > 5_000, "{seen} doc comments were found");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn faults_are_found() {
    let source = "/// Longest wait, ms.\nconst A: u8 = 0;\n/// What is waited\n//// no doc\n/// for.\nfn f() {}\n//! A module\n//! of tests\n";
    let comments = doc_comments(source);
    let texts: Vec<(usize, &str)> = comments.iter().map(|(n, t)| (*n, t.as_str())).collect();
    assert_eq!(
        texts,
        [
            (1, "Longest wait, ms."),
            (3, "What is waited"),
            (5, "for."),
            (7, "A module\nof tests")
        ]
    );
    assert_eq!(fault("Longest wait, ms."), None);
    assert_eq!(fault("Table:\n\n[`A`]: super::A"), None);
    assert_eq!(fault("Source of waits. See the module."), None);
    assert_eq!(fault("Software that waits."), None);
    for refused in [
        "What is waited for.",
        "So many are waited for.",
        "See the module.",
        "Until all have come.",
        "Whoever waits, waits long.",
        "Nobody waits.",
        "For how long one waits.",
    ] {
        assert!(fault(refused).is_some(), "{refused}");
    }
    assert!(fault("A module\nof tests").is_some());
}
