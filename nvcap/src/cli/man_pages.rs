//! `nvcap man-pages`: a manual page for each command, made from the text of `--help`, for makers of packages.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

/// Arguments of `nvcap man-pages`.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// The folder to fill; it is created
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
}

/// Writes `nvcap.1`, `nvcap-record.1` and so on. `cli` is the whole command line.
pub(super) fn run(args: &Args, cli: clap::Command) -> anyhow::Result<ExitCode> {
    fs::create_dir_all(&args.dir)
        .with_context(|| format!("cannot create {}", args.dir.display()))?;
    let mut cli = cli.disable_help_subcommand(true);
    cli.build();
    write(&cli, "", &args.dir)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the page of one command below `above`, and those of its subcommands.
fn write(command: &clap::Command, above: &str, dir: &Path) -> anyhow::Result<()> {
    let name = format!("{above}{}", command.get_name());
    let path = dir.join(format!("{name}.1"));
    let mut text = Vec::new();
    page(command, &name, above.trim_end_matches('-'), &mut text)
        .and_then(|()| fs::write(&path, &text))
        .with_context(|| format!("cannot write {}", path.display()))?;
    for below in command.get_subcommands().filter(|c| !c.is_hide_set()) {
        write(below, &format!("{name}-"), dir)?;
    }
    Ok(())
}

fn page(command: &clap::Command, name: &str, above: &str, to: &mut Vec<u8>) -> std::io::Result<()> {
    let man = Man::new(command.clone())
        .title(name)
        .source(concat!("nvcap ", env!("CARGO_PKG_VERSION")))
        .manual("User Commands");
    man.render_title(to)?;
    man.render_name_section(to)?;
    man.render_synopsis_section(to)?;
    man.render_description_section(to)?;
    if command.get_arguments().any(|arg| !arg.is_hide_set()) {
        man.render_options_section(to)?;
    }
    if command.get_subcommands().any(|c| !c.is_hide_set()) {
        man.render_subcommands_section(to)?;
    }
    let mut rest = Roff::new();
    let after = command.get_after_long_help().or(command.get_after_help());
    sections(
        &after.map(ToString::to_string).unwrap_or_default(),
        &mut rest,
    );
    rest.control("SH", ["SEE ALSO"]);
    let below = command.get_subcommands().filter(|c| !c.is_hide_set());
    let mut others: Vec<String> = below
        .map(|c| format!("{name}-{}", c.get_name()))
        .chain((!above.is_empty()).then(|| above.to_owned()))
        .collect();
    others.sort();
    for (n, other) in others.iter().enumerate() {
        let comma = if n + 1 < others.len() { "," } else { "" };
        rest.text([bold(other.as_str()), roman(format!("(1){comma}"))]);
    }
    rest.control("PP", []);
    rest.text([roman("The pages for readers are in /usr/share/doc/nvcap.")]);
    rest.to_writer(to)
}

/// Makes sections of the text that follows the options in `--help`. A line at the margin that ends with a colon is a heading; if it has a
/// comma, only the part before it is. Indented lines are kept as they are. Other lines at the margin are sentences.
fn sections(text: &str, to: &mut Roff) {
    let mut is_verbatim = false;
    for line in text.lines() {
        let is_indented = line.starts_with(' ');
        if is_indented && !is_verbatim {
            to.control("nf", []);
        } else if is_verbatim && !is_indented {
            to.control("fi", []);
        }
        is_verbatim = is_indented;
        match line.strip_suffix(':') {
            Some(heading) if !is_indented => {
                let (heading, more) = heading.split_once(", ").unwrap_or((heading, ""));
                let heading = heading.to_uppercase();
                to.control("SH", [heading.as_str()]);
                if !more.is_empty() {
                    to.text([roman(format!("{more}:"))]);
                }
            }
            _ if line.is_empty() => {
                to.control("PP", []);
            }
            _ => {
                to.text([roman(line.strip_prefix("  ").unwrap_or(line))]);
            }
        }
    }
    if is_verbatim {
        to.control("fi", []);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_help_says_at_its_end_is_divided_into_sections() {
        let mut roff = Roff::new();
        sections(
            "Examples, short:\n  nvcap -p 1   one\n\nExit status: 0 done, 1 error.",
            &mut roff,
        );
        let page = roff.to_roff();
        let lines: Vec<&str> = page.lines().filter(|l| !l.is_empty()).collect();
        assert_eq!(
            lines,
            [
                ".SH EXAMPLES",
                "short:",
                ".nf",
                "nvcap \\-p 1   one",
                ".fi",
                ".PP",
                "Exit status: 0 done, 1 error."
            ]
        );
    }
}
