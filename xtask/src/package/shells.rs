//! Installed completions, asked by zsh and fish themselves, and manual pages, read by mandoc. bash is asked where the package is installed.

use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::{
    install,
    paths::{self, sorted},
    report::Report,
    shell::Cmd,
};

/// Typed texts, each with the word that it is completed to: a command, a command below a command, an option's value.
const TYPED: [(&str, &str); 3] = [
    ("nvcap dum", "dump"),
    ("nvcap export perf", "perfetto"),
    ("nvcap --how obs", "observe"),
];

/// Checks what lies below `share`, a package's `usr/share`.
pub fn check(report: &mut Report, share: &Path) {
    one(report, "completions in zsh", "zsh", || zsh(share));
    one(report, "completions in fish", "fish", || fish(share));
    one(report, "manual pages, by mandoc", "mandoc", || man(share));
}

/// Installs the program where that may be done, and checks; says so where it is not here.
fn one(report: &mut Report, name: &str, program: &str, checked: impl FnOnce() -> Result<()>) {
    if paths::on_path(program).is_none() && install::apt_allowed() && install::apt_offers(program) {
        let _ = install::apt(&[program], name);
    }
    match paths::on_path(program) {
        Some(_) => report.check(name, checked()),
        None => report.skip(
            name,
            &format!("{program} is not here; type: sudo apt-get install {program}"),
        ),
    }
}

fn read(cmd: &Cmd) -> Result<String> {
    cmd.read()
        .with_context(|| format!("failed: {}", cmd.line()))
}

fn zsh(share: &Path) -> Result<()> {
    let script = paths::root().join("tests/packaging/complete.zsh");
    for (typed, wanted) in TYPED {
        let cmd = Cmd::new("timeout").args(["600", "zsh", "-f"]).arg(&script);
        let line = read(&cmd.arg(share.join("zsh/vendor-completions")).arg(typed))?;
        ensure!(
            line.split_whitespace().next_back() == Some(wanted),
            "`{typed}` is completed to `{line}`, not to {wanted}"
        );
    }
    Ok(())
}

fn fish(share: &Path) -> Result<()> {
    let file = share.join("fish/vendor_completions.d/nvcap.fish");
    // After the option and a space it offers nothing: its script cannot tell a value from a command there.
    let [first, second, (_, value)] = TYPED;
    let how = format!("--how={value}");
    for (typed, wanted) in [first, second, ("nvcap --how=obs", how.as_str())] {
        // In each line what completes the last word, then a tab and what it means.
        let cmd = Cmd::new("fish").args([
            "--no-config",
            "--command",
            "source $argv[1]; complete -C $argv[2]",
        ]);
        let said = read(&cmd.arg(&file).arg(typed))?;
        let words: Vec<&str> = said.lines().filter_map(|l| l.split('\t').next()).collect();
        ensure!(
            words == [wanted],
            "`{typed}` is completed to {words:?}, not to {wanted}"
        );
    }
    Ok(())
}

/// Errors are none, and of warnings those alone that the generator of the pages (clap_mangen) makes in each of them.
fn man(share: &Path) -> Result<()> {
    const OF_THE_GENERATOR: [&str; 2] = [
        "cannot parse date, using it verbatim",
        "skipping paragraph macro: br ",
    ];
    let pages = sorted(&share.join("man/man1"))?;
    ensure!(pages.len() > 20, "there are {} pages", pages.len());
    for page in pages {
        let cmd = Cmd::new("mandoc").args(["-T", "lint", "-W", "error"]);
        let out = cmd.arg(&page).command().output()?;
        let said = String::from_utf8_lossy(&out.stdout).into_owned();
        let faults: Vec<&str> = said
            .lines()
            .filter(|line| !OF_THE_GENERATOR.iter().any(|known| line.contains(known)))
            .collect();
        ensure!(faults.is_empty(), "{}", faults.join("\n"));
    }
    Ok(())
}
