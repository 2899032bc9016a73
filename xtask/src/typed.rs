//! Tests of the commands that the documents tell to type: each exists, and takes the arguments that stand there.

use std::fs;

use clap::error::ErrorKind;

use crate::{build, cli, paths};

/// The documents whose commands are checked.
const PAGES: [&str; 3] = ["CONTRIBUTING.md", "README.md", "docs/building.md"];

/// The programs that the commands begin with.
const BEGINNINGS: [&str; 3] = ["cargo xtask", "cargo test", "bash "];

/// The commands of every day, by which CONTRIBUTING.md begins.
const DAILY: [&str; 3] = ["cargo xtask check", "cargo test -p", "cargo xtask run"];

/// Code in a line that is indented as an example, without its comment.
fn example(line: &str) -> Option<&str> {
    line.strip_prefix("    ")?.split(" #").next()
}

/// Code of a Markdown text: its indented examples, and what stands between backquotes.
fn code(text: &str) -> Vec<String> {
    let prose: Vec<&str> = text.lines().filter(|l| example(l).is_none()).collect();
    let prose = prose.join(" ");
    let quoted = prose.split('`').skip(1).step_by(2);
    let examples = text.lines().filter_map(example);
    examples.chain(quoted).map(str::to_owned).collect()
}

/// The commands in code, as words; one line may have several.
fn commands(code: &str) -> Vec<String> {
    code.split(" && ")
        .map(|command| command.trim().trim_start_matches("sudo "))
        .filter(|command| BEGINNINGS.iter().any(|b| command.starts_with(b)))
        .map(str::to_owned)
        .collect()
}

/// Tells what is wrong with a command.
fn fault(command: &str) -> Option<String> {
    let words: Vec<&str> = command.split_whitespace().collect();
    match words.as_slice() {
        ["cargo", "xtask", ..] => fault_of_xtask(&words),
        ["cargo", "test", options @ ..] => fault_of_test(options),
        ["bash", file, ..] if !paths::root().join(file).is_file() => {
            Some(format!("{file} is not there"))
        }
        _ => None,
    }
}

fn fault_of_xtask(words: &[&str]) -> Option<String> {
    // `cargo xtask` is one word: the program's name.
    let refused = cli::command().try_get_matches_from(&words[1..]).err()?;
    // Prose names groups of commands: `cargo xtask bench`.
    let is_group = ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    let shows_help = [ErrorKind::DisplayHelp, is_group].contains(&refused.kind());
    (!shows_help).then(|| refused.to_string())
}

fn fault_of_test(options: &[&str]) -> Option<String> {
    let is_package = |name: &str| {
        let tests = paths::package(&format!("tests/{name}"));
        build::CRATES.contains(&name) || name == "xtask" || tests.is_some_and(|n| n == name)
    };
    options.windows(2).find_map(|pair| match pair {
        ["-p", name] if !is_package(name) => Some(format!("there is no package {name}")),
        ["--test", name] if *name != "all" && !is_package(name) => {
            Some(format!("there are no tests {name}"))
        }
        _ => None,
    })
}

/// The first example of a Markdown text: its lines up to the next prose.
fn first_example(text: &str) -> Vec<&str> {
    let lines = text.lines().skip_while(|line| example(line).is_none());
    lines.map_while(example).collect()
}

#[test]
fn the_commands_of_the_documents_exist() {
    for page in PAGES {
        let text = fs::read_to_string(paths::root().join(page)).expect("a page is text");
        let commands: Vec<String> = code(&text).iter().flat_map(|c| commands(c)).collect();
        assert!(!commands.is_empty(), "{page} names no command");
        for command in commands {
            if let Some(fault) = fault(&command) {
                panic!("{page}: `{command}`: {fault}");
            }
        }
    }
}

#[test]
fn contributing_begins_with_the_commands_of_every_day() {
    let text = fs::read_to_string(paths::root().join(PAGES[0])).expect("a page is text");
    let first = first_example(&text);
    assert_eq!(first.len(), DAILY.len(), "{first:?}");
    for (command, wanted) in first.iter().zip(DAILY) {
        assert!(command.starts_with(wanted), "{command} is not {wanted}");
    }
}

#[test]
fn commands_are_read_from_markdown() {
    let text = "# X\n\n    sudo -v && cargo xtask bench live    # measures\n    cd x\n\nSee `cargo xtask\ntest --no-vm`, `xtask` and cargo xtask.\n";
    let found: Vec<String> = code(text).iter().flat_map(|c| commands(c)).collect();
    assert_eq!(
        found,
        ["cargo xtask bench live", "cargo xtask test --no-vm"]
    );
    assert_eq!(
        first_example("a\n\n    x    # y\n    z\nb\n    c\n").len(),
        2
    );
}

#[test]
fn faults_of_commands_are_found() {
    for good in [
        "cargo xtask",
        "cargo xtask help test",
        "cargo xtask gpu-bundle DIR",
        "cargo xtask run -- -p 4711",
        "cargo test -p nvcap --test all layering::",
        "bash .ci/run --nightly",
    ] {
        assert_eq!(fault(good), None, "{good}");
    }
    for bad in [
        "cargo xtask chek",
        "cargo xtask test --fast",
        "cargo xtask test trap::",
        "cargo xtask gpu-bundle",
        "cargo test -p nvcap-trap trap::",
        "cargo test --workspace --test alive",
        "bash .ci/walk",
    ] {
        assert!(fault(bad).is_some(), "{bad}");
    }
}
