//! `--how`, and the options that have an effect only with one value of it.

use clap::ValueEnum;

/// `--how`.
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
    /// Name by which clap knows it.
    pub id: &'static str,
    name: &'static str,
    of: HowArg,
}

impl WayOption {
    /// Tells whether the trap alone has a use for it.
    pub(super) fn is_of_trap(&self) -> bool {
        self.of == HowArg::Trap
    }
}

/// All of them.
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

/// The message that options were given which have no effect with this `--how`. With `--how auto` there is none until the way is chosen.
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
}
