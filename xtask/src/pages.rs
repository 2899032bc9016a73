//! Tests of the documents: every link has a target, every named file exists, and the index lists every page.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use crate::{build, paths};

/// The targets of a Markdown text's links to files, without their fragments.
fn links(text: &str) -> Vec<&str> {
    text.split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next())
        .filter(|link| !link.contains("://") && !link.starts_with('#') && !link.contains(' '))
        .filter_map(|link| link.split('#').next())
        .collect()
}

/// The headings of a Markdown text, in the form of link fragments.
fn fragments(text: &str) -> Vec<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    headings
        .map(|line| {
            let words = line.trim_start_matches('#').trim().to_lowercase();
            let kept = words.chars().filter_map(|c| match c {
                ' ' => Some('-'),
                c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c),
                _ => None,
            });
            kept.collect()
        })
        .collect()
}

/// Words of a text without surrounding punctuation.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let around = |c: char| "`'\"()[]{}<>,;:!?|*".contains(c);
    text.split(move |c: char| c.is_whitespace() || around(c))
        .map(|word| word.trim_end_matches('.').trim_end_matches("'s"))
}

/// The files and folders of this tree that a text names: words that begin with one of its folders.
fn named<'a>(text: &'a str, folders: &[String]) -> Vec<&'a str> {
    words(text)
        .filter_map(|word| word.split('#').next())
        .filter(|word| {
            word.split_once('/')
                .is_some_and(|(first, _)| folders.iter().any(|f| f == first))
        })
        .collect()
}

/// Statements about links in a text: `PAGE links the WORD`.
fn said_to_link(text: &str) -> Vec<(&str, &str)> {
    let words: Vec<&str> = words(text).filter(|w| !w.is_empty()).collect();
    words
        .windows(4)
        .filter(|w| w[0].ends_with(".md") && w[1] == "links")
        .map(|w| (w[0], if w[2] == "the" { w[3] } else { w[2] }))
        .collect()
}

/// The tests that a text names in the last column of tables, below headings that speak of tests: `module::test`, or `module::*` for all of a
/// module.
fn named_tests(text: &str) -> Vec<&str> {
    let (mut below, mut all) = (false, Vec::new());
    for line in text.lines() {
        if line.starts_with("## ") {
            below = line.contains("its test") || line.contains("is tested by");
        }
        let last = line
            .strip_suffix('|')
            .and_then(|row| row.rsplit('|').next());
        let quoted = last.filter(|_| below).into_iter();
        let quoted = quoted.flat_map(|cell| cell.split('`').skip(1).step_by(2));
        all.extend(quoted.filter(|name| {
            let of_names = |c: char| c.is_ascii_alphanumeric() || "_:*".contains(c);
            name.contains(['_', ':']) && name.chars().all(of_names)
        }));
    }
    all
}

/// Files below a folder with this ending.
pub fn below(dir: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() && entry.file_name() != "target" {
            found.extend(below(&path, ending));
        } else if path.extension().is_some_and(|e| e == ending) {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// The pages for readers, in the tree's own folders.
fn documents() -> Vec<PathBuf> {
    let root = paths::root();
    let mut all = pages(&root);
    all.extend(pages(&root.join("docs")));
    all
}

/// The folders of the tree.
fn folders() -> Vec<String> {
    let entries = fs::read_dir(paths::root()).expect("the root is a folder");
    entries
        .flatten()
        .filter(|e| e.path().is_dir() && e.file_name() != "target")
        .filter_map(|e| e.file_name().into_string().ok())
        .collect()
}

fn pages(dir: &Path) -> Vec<PathBuf> {
    let mut pages: Vec<PathBuf> = fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|e| e == "md"))
        .collect();
    pages.sort();
    pages
}

#[test]
fn links_are_read_from_markdown() {
    assert_eq!(
        links("see [a](docs/a.md#x), [b](https://b/) and [c](#c), x](y z)"),
        ["docs/a.md"]
    );
}

#[test]
fn every_link_of_the_documents_leads_somewhere() {
    let mut seen = 0;
    for page in documents() {
        let text = fs::read_to_string(&page).expect("a page is text");
        for link in links(&text) {
            let target = page.parent().expect("a page is in a folder").join(link);
            assert!(
                target.exists(),
                "{}: the link {link} leads nowhere",
                page.display()
            );
            seen += 1;
        }
    }
    assert!(seen > 0, "no link was found at all");
}

#[test]
fn fragments_are_of_headings() {
    assert_eq!(
        fragments("# A job hangs: `nvcap dump`\ntext\n## --explain-streams\n"),
        ["a-job-hangs-nvcap-dump", "--explain-streams"]
    );
    for page in documents() {
        let text = fs::read_to_string(&page).expect("a page is text");
        for link in text.split("](").skip(1).filter_map(|r| r.split(')').next()) {
            let Some((target, fragment)) = link.split_once('#') else {
                continue;
            };
            let target = match target {
                "" => page.clone(),
                _ => page.with_file_name("").join(target),
            };
            if link.contains("://") || target.extension().is_none_or(|e| e != "md") {
                continue;
            }
            let there = fs::read_to_string(&target).unwrap_or_default();
            assert!(
                fragments(&there).iter().any(|f| f == fragment),
                "{}: {link}: there is no such heading",
                page.display()
            );
        }
    }
}

#[test]
fn names_are_read_from_text() {
    let folders = ["docs".to_owned(), "tests".to_owned()];
    assert_eq!(
        named("(docs/a.md#x), `tests/vm`: and/or docs/b.md's.", &folders),
        ["docs/a.md", "tests/vm", "docs/b.md"]
    );
    assert_eq!(
        said_to_link("it (docs/a.md links the design): `b.md` links c"),
        [("docs/a.md", "design")]
    );
}

#[test]
fn pages_link_where_other_pages_say_they_do() {
    let root = paths::root();
    for page in documents() {
        let text = fs::read_to_string(&page).expect("a page is text");
        for (other, what) in said_to_link(&text) {
            let there = fs::read_to_string(root.join(other)).unwrap_or_default();
            assert!(
                links(&there).iter().any(|link| link.contains(what)),
                "{}: {other} links no {what}",
                page.display()
            );
        }
    }
}

#[test]
fn every_file_that_is_named_exists() {
    let (root, folders) = (paths::root(), folders());
    let made = fs::read_to_string(root.join(".gitignore")).unwrap_or_default();
    let is_made = |name: &str| {
        let mut made = made.lines().filter_map(|line| line.strip_prefix('/'));
        made.any(|made| name.starts_with(made))
    };
    let mut seen = 0;
    let crates = build::CRATES.map(build::crate_folder);
    let others = ["xtask", "nvcap-ebpf", "nvcap-common"].map(str::to_owned);
    let sources = (crates.iter().chain(&others))
        .flat_map(|folder| below(&root.join(folder).join("src"), "rs"));
    for page in documents().into_iter().chain(sources) {
        // The names in this file's own examples are invented.
        if page.ends_with("xtask/src/pages.rs") {
            continue;
        }
        let text = fs::read_to_string(&page).expect("it is text");
        for name in named(&text, &folders) {
            // In sources only names of documents are checked: the compiler checks the rest.
            if page.extension().is_some_and(|e| e == "rs") && !name.starts_with("docs/") {
                continue;
            }
            // The fragment is checked by the test of links.
            let name = name.split_once('#').map_or(name, |(file, _)| file);
            // Up to the part that stands for any name: `fuzz/seeds/TARGET`.
            let stands =
                |part: &&str| part.contains('*') || part.chars().all(|c| c.is_ascii_uppercase());
            let fixed: PathBuf = name
                .split('/')
                .take_while(|p| p.is_empty() || !stands(p))
                .collect();
            assert!(
                root.join(&fixed).exists() || is_made(name),
                "{}: {name} is not there",
                page.display()
            );
            seen += 1;
        }
    }
    assert!(seen > 0, "no file was named at all");
}

#[test]
fn tests_are_read_from_tables() {
    let text = "## A\n| `a::b` |\n## What must hold, and its test\n| what | test |\n| `c::d` | live: `e::f_g`; `h::*` `x y` |\n## B\n| `i::j` |\n";
    assert_eq!(named_tests(text), ["e::f_g", "h::*"]);
}

#[test]
fn every_test_that_is_named_exists() {
    let root = paths::root();
    let (mut functions, mut modules) = (BTreeSet::new(), BTreeSet::new());
    for file in ["nvcap", "tests", "xtask"].map(|folder| below(&root.join(folder), "rs")) {
        for file in file {
            modules.extend(file.iter().map(|part| part.display().to_string()));
            modules.extend(file.file_stem().map(|name| name.display().to_string()));
            let text = fs::read_to_string(&file).expect("it is text");
            let names = text.split("fn ").skip(1);
            functions
                .extend(names.filter_map(|rest| Some(rest.split_once(['(', '<'])?.0.to_owned())));
        }
    }
    let mut seen = 0;
    for page in ["tests/hostile/README.md", "docs/verification.md"] {
        let text = fs::read_to_string(root.join(page)).expect("a page is text");
        for name in named_tests(&text) {
            let mut parts = name.rsplit("::");
            let last = parts.next().unwrap_or_default();
            let is = match last {
                "*" => parts.next().is_some_and(|module| modules.contains(module)),
                _ => functions.contains(last) || modules.contains(last),
            };
            assert!(is, "{page}: there is no test {name}");
            seen += 1;
        }
    }
    assert!(seen > 100, "{seen} tests were named");
}

#[test]
fn the_index_and_the_book_name_every_page() {
    let docs = paths::root().join("docs");
    let index = fs::read_to_string(docs.join("README.md")).expect("docs/README.md is the index");
    let summary = fs::read_to_string(docs.join("SUMMARY.md")).expect("the book has a summary");
    let (named, in_book) = (links(&index), links(&summary));
    for page in pages(&docs) {
        let name = page
            .file_name()
            .expect("a page has a name")
            .to_string_lossy()
            .into_owned();
        assert!(
            ["README.md", "SUMMARY.md"].contains(&&*name) || named.contains(&name.as_str()),
            "docs/README.md does not link {name}"
        );
        assert!(
            name == "SUMMARY.md" || in_book.iter().filter(|page| **page == name).count() == 1,
            "docs/SUMMARY.md links {name} never or twice: the book has each page once"
        );
    }
}
