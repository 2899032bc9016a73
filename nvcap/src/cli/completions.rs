//! `nvcap completions`: the script by which a shell completes nvcap's command line.

use std::process::ExitCode;

use clap::builder::Resettable::Reset;
use clap::{Arg, Command, ValueHint};
use clap_complete::Shell;

use nvcap_show::output::writer::Output;

const EXAMPLES: &str = "\
Examples:
  nvcap completions bash > ~/.local/share/bash-completion/completions/nvcap
  nvcap completions zsh > ~/.zfunc/_nvcap      a folder of $fpath, before compinit
  nvcap completions fish > ~/.config/fish/completions/nvcap.fish

The packages (deb, rpm) put these files where the shells look for them.";

/// Choice of the shell.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// The shell
    #[arg(value_name = "SHELL", value_enum)]
    pub shell: Shell,
}

/// Writes the script of one shell to standard output. `cli` is the whole command line.
pub(super) fn run(args: &Args, cli: &Command) -> anyhow::Result<ExitCode> {
    let mut out = Output::stdout();
    clap_complete::generate(
        args.shell,
        &mut shown(cli, args.shell),
        "nvcap",
        out.object(),
    );
    out.answer()?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the part of the command line that is completed: everything except what `--help` hides, which clap_complete would offer.
///
/// zsh's script takes the first word for an argument of a command that has both arguments and commands below it, and then completes none of
/// these. For zsh the command therefore has no arguments: what follows `--` is completed by zsh itself, or not at all.
fn shown(command: &Command, shell: Shell) -> Command {
    // Names are static in clap. There are only some thirty, and the program ends when the script is written.
    let name: &'static str = command.get_name().to_owned().leak();
    let misled = shell == Shell::Zsh && command.has_subcommands();
    let arguments = command
        .get_arguments()
        .filter(|arg| !(arg.is_hide_set() || misled && arg.is_positional()));
    let below = command.get_subcommands().filter(|c| !c.is_hide_set());
    let mut shown = Command::new(name)
        .args(arguments.map(|arg| hinted(arg.clone())))
        .subcommands(below.map(|command| shown(command, shell)));
    if let Some(about) = command.get_about() {
        shown = shown.about(about.clone());
    }
    if command.get_version().is_some() {
        shown = shown.version(env!("CARGO_PKG_VERSION"));
    }
    shown
}

/// Returns an argument with the hints that clap cannot derive from its type: after `--` comes a command, and `--user` takes a user of this
/// machine.
fn hinted(arg: Arg) -> Arg {
    // References to other arguments are removed: those arguments may be hidden, and are then not part of this command.
    let arg = arg.conflicts_with(Reset).requires(Reset).group(Reset);
    match arg.get_id().as_str() {
        "command" => arg.value_hint(ValueHint::CommandWithArguments),
        "user" => arg.value_hint(ValueHint::Username),
        _ => arg,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_help_hides_is_not_offered() {
        let cli = Command::new("nvcap")
            .arg(Arg::new("a").long("aa").conflicts_with("b"))
            .arg(Arg::new("b").long("bb").hide(true))
            .arg(Arg::new("command").last(true).num_args(1..))
            .subcommand(Command::new("seen"))
            .subcommand(Command::new("unseen").hide(true));
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut shown(&cli, shell), "nvcap", &mut script);
            let script = String::from_utf8(script).unwrap();
            assert!(script.contains("aa") && script.contains("seen"), "{shell}");
            // The subcommand is the first word.
            assert!(!script.contains("$line[2]"), "{shell}: {script}");
            assert!(
                !script.contains("bb") && !script.contains("unseen"),
                "{shell}"
            );
        }
    }
}
