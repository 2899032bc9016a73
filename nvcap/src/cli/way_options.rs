//! `--how`, and the options that have an effect only with one value of it.

use clap::ValueEnum;
use clap::parser::ValueSource;

/// Values of `--how`.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum HowArg {
    /// trap where this machine allows it, else observe; a line says why
    #[default]
    Auto,
    /// A breakpoint on the doorbell, or an error where it is refused
    Trap,
    /// Reading the rings again and again, without a trap
    Observe,
}

/// An option that has an effect only with one value of `--how`.
#[derive(Debug)]
pub(super) struct WayOption {
    /// Name of the option in clap.
    pub id: &'static str,
    name: &'static str,
    of: HowArg,
}

impl WayOption {
    /// Tells whether only the trap can use the option.
    pub(super) fn is_of_trap(&self) -> bool {
        self.of == HowArg::Trap
    }
}

/// All options that belong to one way of capture.
pub(super) const WAY_OPTIONS: [WayOption; 10] = {
    const fn option(id: &'static str, name: &'static str, of: HowArg) -> WayOption {
        WayOption { id, name, of }
    }
    [
        option("observe_cpu", "--observe-cpu", HowArg::Observe),
        option("observe_threads", "--observe-threads", HowArg::Observe),
        option("discover", "--discover", HowArg::Trap),
        option("buffer", "--buffer", HowArg::Trap),
        option("stacks", "--stacks", HowArg::Trap),
        option("precommit", "--precommit", HowArg::Trap),
        option("batch", "--batch", HowArg::Trap),
        option("count", "--count", HowArg::Trap),
        option("duty", "--duty", HowArg::Trap),
        option("stack_size", "--stack-size", HowArg::Trap),
    ]
};

/// Options of [`WAY_OPTIONS`] that were typed, for any command.
#[derive(Clone, Debug, Default)]
pub(super) struct WaysTyped {
    pub options: Vec<&'static WayOption>,
    /// True if `--how` was typed.
    pub is_how: bool,
}

impl clap::FromArgMatches for WaysTyped {
    fn from_arg_matches(matches: &clap::ArgMatches) -> Result<Self, clap::Error> {
        let is_typed = |id: &str| {
            matches!(matches.try_contains_id(id), Ok(true))
                && matches.value_source(id) == Some(ValueSource::CommandLine)
        };
        Ok(Self {
            options: WAY_OPTIONS.iter().filter(|o| is_typed(o.id)).collect(),
            is_how: is_typed("how"),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &clap::ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

// It has no options of its own; others have them.
impl clap::Args for WaysTyped {
    fn augment_args(command: clap::Command) -> clap::Command {
        command
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        command
    }
}

/// Returns the message that options were given which have no effect with this `--how`. With `--how auto` there is none until the way is
/// chosen.
pub(super) fn useless(how: HowArg, given: &[&WayOption]) -> Option<String> {
    let other = match how {
        HowArg::Auto => return None,
        HowArg::Trap => ("observe", HowArg::Observe),
        HowArg::Observe => ("trap", HowArg::Trap),
    };
    let names = given.iter().filter(|option| option.of == other.1);
    let names: Vec<&str> = names.map(|option| option.name).collect();
    let have = if names.len() == 1 { "has" } else { "have" };
    (!names.is_empty()).then(|| {
        format!(
            "{} {have} no effect here: of use with --how {}",
            names.join(" and "),
            other.0
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_the_other_way_are_told() {
        let all: Vec<&WayOption> = WAY_OPTIONS.iter().collect();
        assert_eq!(useless(HowArg::Auto, &all), None);
        assert_eq!(useless(HowArg::Trap, &all[2..]), None);
        assert_eq!(useless(HowArg::Observe, &all[..2]), None);
        let said = useless(HowArg::Trap, &all).unwrap();
        assert!(
            said.starts_with("--observe-cpu and --observe-threads have no effect"),
            "{said}"
        );
        let said = useless(HowArg::Observe, &all[2..3]).unwrap();
        assert!(
            said.starts_with("--discover has no effect here: of use with --how trap"),
            "{said}"
        );
    }

    /// Test that typing an option of the trap insists on the trap, in every command.
    #[test]
    fn typed_options_are_known_to_each_command() {
        let of = |line: &str| {
            let command = <super::super::trace::Args as clap::Args>::augment_args(
                clap::Command::new("nvcap"),
            );
            let command = clap::Command::new("nvcap").subcommand(command.name("record"));
            let matches = command.try_get_matches_from(line.split(' ')).unwrap();
            let (_, below) = matches.subcommand().unwrap();
            let args = <super::super::trace::Args as clap::FromArgMatches>::from_arg_matches_mut(
                &mut below.clone(),
            );
            args.unwrap().ways
        };
        let ways = of("nvcap record --discover kprobe -p 1");
        let names: Vec<&str> = ways.options.iter().map(|o| o.name).collect();
        assert_eq!((names, ways.is_how), (vec!["--discover"], false));
        let ways = of("nvcap record --how auto -p 1");
        assert!(ways.options.is_empty() && ways.is_how);
    }
}
