//! Tests that the documents show what the program prints: each block with `$ nvcap ...` is typed as it stands, in a folder that looks like a clone;
//! and that the commands that docs/from-nsys.md names are commands.
#![cfg(all(feature = "parquet", feature = "xz"))]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::common::cli::{Folder, nvcap, text, with_one_block_less};
use crate::common::job;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// A folder in which the repository's tests lie, and the files that examples speak of.
fn clone(name: &str) -> Folder {
    let folder = Folder::new(name);
    let tests = repository().join("tests").canonicalize().unwrap();
    std::os::unix::fs::symlink(tests, folder.path("tests")).unwrap();
    for recording in ["run.pcapng", "a.pcapng", "b.pcapng"] {
        let fixture = repository().join("tests/fixtures/training.pcapng");
        fs::copy(fixture, folder.path(recording)).unwrap();
    }
    // docs/ranks.md
    let job = job::run(80, &[4, 9, 4]);
    let node = job::written(job.records.iter().flatten(), 1, true, 0);
    fs::write(folder.path("node.pcapng"), node).unwrap();
    let capture = repository().join("tests/captures/h200-mixed.orc.xz");
    let changed = with_one_block_less(&capture);
    fs::write(folder.path("changed.orc"), changed).unwrap();
    folder
}

/// The words of a line for a shell: nothing but blanks and single quotes means anything.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (n, part) in line.split('\'').enumerate() {
        match n % 2 {
            0 => words.extend(part.split_whitespace().map(str::to_owned)),
            _ => words.push(part.to_owned()),
        }
    }
    words
}

fn run(folder: &Folder, words: &[String]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nvcap"))
        .args(words)
        .current_dir(folder.path(""))
        .output()
        .unwrap()
}

/// The pages with a block of commands and what they print, each with its blocks' lines.
fn pages() -> Vec<(String, Vec<Vec<String>>)> {
    let mut pages = Vec::new();
    let mut files: Vec<PathBuf> = fs::read_dir(repository().join("docs"))
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.extension().is_some_and(|e| e == "md"))
        .collect();
    files.push(repository().join("README.md"));
    files.sort();
    for file in files {
        let page = fs::read_to_string(&file).unwrap();
        let blocks = page.split("```").skip(1).step_by(2);
        let blocks: Vec<Vec<String>> = blocks
            // The first line of a block names its language.
            .map(|b| b.lines().skip(1).map(str::to_owned).collect())
            .filter(|b: &Vec<String>| b.iter().any(|l| l.starts_with("$ nvcap ")))
            .collect();
        if !blocks.is_empty() {
            let name = file.file_name().unwrap().to_string_lossy().into_owned();
            pages.push((name, blocks));
        }
    }
    pages
}

/// A command and what stands below it, up to the next command.
fn commands(block: &[String]) -> Vec<(&str, &[String])> {
    let is_command = |line: &String| line.starts_with("$ ");
    let at: Vec<usize> = (0..block.len())
        .filter(|n| is_command(&block[*n]))
        .collect();
    assert_eq!(at.first(), Some(&0), "{block:#?}");
    let ends = at.iter().skip(1).copied().chain([block.len()]);
    { at.iter().zip(ends) }
        .map(|(begin, end)| (&block[*begin][2..], &block[begin + 1..end]))
        .collect()
}

/// `...` stands for any lines. All others are there, in this order, and no others.
fn is_shown(shown: &[String], printed: &[String]) -> Result<(), String> {
    let Some(first) = shown.first() else {
        return match printed.first() {
            None => Ok(()),
            Some(line) => Err(format!("is printed, too: {line}")),
        };
    };
    if first == "..." {
        let rests = (0..=printed.len()).map(|at| is_shown(&shown[1..], &printed[at..]));
        let all: Vec<Result<(), String>> = rests.collect();
        let why = format!("not behind `...`: {:?}", shown.get(1));
        return all.into_iter().find(Result::is_ok).unwrap_or(Err(why));
    }
    match printed.first() {
        Some(line) if line == first => is_shown(&shown[1..], &printed[1..]),
        other => Err(format!("shown: {first}\nprinted: {other:?}")),
    }
}

#[test]
fn examples_print_what_is_shown() {
    let folder = clone("documents");
    let mut checked = Vec::new();
    for (page, blocks) in pages() {
        for block in blocks {
            for (command, shown) in commands(&block) {
                let words = words(command);
                assert_eq!(words[0], "nvcap", "{page}: {command}");
                let out = run(&folder, &words[1..]);
                // What a terminal shows.
                let printed = text(&out.stdout) + &text(&out.stderr);
                let printed: Vec<String> = printed.lines().map(str::to_owned).collect();
                if let Err(why) = is_shown(shown, &printed) {
                    panic!("docs/{page}: {command}: {why}\n{printed:#?}");
                }
                assert!(matches!(out.status.code(), Some(0 | 1 | 3)), "{command}");
                // Dots alone show nothing.
                let lines = shown.iter().filter(|l| *l != "...").count();
                assert!(lines > 0, "{page}: {command}");
                checked.push((page.clone(), words[1].clone()));
            }
        }
    }
    let of = |page: &str| -> Vec<&str> {
        let of_page = checked.iter().filter(|(p, _)| p == page);
        of_page.map(|(_, command)| command.as_str()).collect()
    };
    assert_eq!(of("diff.md"), ["diff", "diff"]);
    assert_eq!(of("stats.md"), ["stats"]);
    assert_eq!(of("ranks.md"), ["ranks"]);
    assert_eq!(of("from-kineto.md"), ["export", "diff", "time"]);
    let nsys = [
        "export", "time", "time", "decode", "stats", "decode", "diff", "dump", "report",
    ];
    assert_eq!(of("from-nsys.md"), nsys);
}

#[test]
fn what_is_shown_is_compared_line_by_line() {
    let lines = |text: &str| -> Vec<String> { text.split(' ').map(str::to_owned).collect() };
    for (shown, is) in [
        ("a b c", true),
        ("a ...", true),
        ("... c", true),
        ("a ... c", true),
        ("... b ...", true),
        ("a b", false),
        ("a c", false),
        ("... b", false),
        ("... c b ...", false),
        ("a ... d", false),
    ] {
        let found = is_shown(&lines(shown), &lines("a b c"));
        assert_eq!(found.is_ok(), is, "{shown}: {found:?}");
    }
}

/// Runs the contents of the column for nvcap: commands, with or without the program's name, and options of the command before.
#[test]
fn the_page_for_users_of_nsys_names_commands_that_there_are() {
    let folder = clone("documents-nsys");
    let page = fs::read_to_string(repository().join("docs/from-nsys.md")).unwrap();
    let (questions, _) = page.split_once("\n## ").unwrap();
    let mut spans: Vec<String> = Vec::new();
    for line in questions.lines() {
        if line.starts_with("| ") {
            let columns: Vec<&str> = line.split('|').collect();
            spans.extend(columns[3].split('`').skip(1).step_by(2).map(str::to_owned));
        } else if let Some(command) = line.strip_prefix("    ") {
            spans.push(command.split('#').next().unwrap().trim().to_owned());
        }
    }
    assert!(spans.len() > 30, "{spans:#?}");
    let (mut read, mut before) = (0, Vec::new());
    for span in &spans {
        let mut words = words(span);
        if words[0] == "sudo" {
            words.remove(0);
        }
        if words[0] == "nvcap" {
            words.remove(0);
        } else if words[0].starts_with('-') {
            words.splice(..0, std::mem::take(&mut before));
        }
        // An option goes with the command, not with its file.
        let subcommands = words.iter().take_while(|w| !w.contains(['.', '-']));
        before = subcommands.cloned().collect();
        let is_of_file = words.iter().any(|w| w.ends_with(".pcapng"));
        if is_of_file && words[0] != "record" {
            let out = run(&folder, &words);
            let said = text(&out.stderr);
            // The recording has no stacks.
            let is_refused = words[0] == "stacks" && said.contains("recorded with --stacks");
            let is_well = matches!(out.status.code(), Some(0 | 3)) || is_refused;
            assert!(is_well, "{span}: {said}");
            read += 1;
            continue;
        }
        // Words before `--help` are checked, and nothing is done.
        let pid = |w: &String| w.replace("PID", "1");
        let words: Vec<String> = words.iter().map(pid).chain(["--help".into()]).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let out = nvcap(&words);
        assert_eq!(out.status.code(), Some(0), "{span}: {}", text(&out.stderr));
    }
    assert!(read > 10, "{read}");
    // What is no command or option is found.
    for wrong in [vec!["record", "--no-such"], vec!["export", "cvs"]] {
        let out = nvcap(&[&wrong[..], &["--help"]].concat());
        assert_eq!(out.status.code(), Some(2), "{wrong:?}");
    }
}
