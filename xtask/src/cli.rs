//! The words of the command line: each command, its arguments and its help.

use std::{ffi::OsString, path::PathBuf};

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::{arch, bench, ci, help, vm};

#[derive(Parser)]
#[command(bin_name = "cargo xtask", about = "Builds, runs and tests nvcap")]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

/// The command line's grammar, with the list of commands as its help.
pub fn command() -> clap::Command {
    let command = Cli::command();
    let list = help::list(&command);
    command.override_help(list)
}

/// The command that was typed; none where there is no argument. Ends the program where the words are none of a command's.
pub fn typed() -> Option<Command> {
    let matches = command().get_matches();
    Cli::from_arg_matches(&matches)
        .unwrap_or_else(|error| error.exit())
        .command
}

#[derive(Subcommand)]
pub enum Command {
    /// Install the BPF compiler and linker if lacking
    Setup {
        /// Only look: status 1 if something is lacking
        #[arg(long)]
        check: bool,
    },
    /// Compile the BPF programs, which are committed
    ///
    /// The objects are in nvcap-ebpf/prebuilt/.
    #[command(
        after_help = "Needed after a change of nvcap-ebpf or nvcap-common alone; all else builds with what is there.
Installs the BPF toolchain where it is lacking (docs/building.md)."
    )]
    Bpf {
        /// Only compare: status 1 where the committed objects are not what the sources give, byte for byte
        #[arg(long)]
        check: bool,
    },
    /// Build nvcap
    #[command(after_help = "Examples:
  cargo xtask build             development build: target/debug/nvcap
  cargo xtask build --release   one static file for any distribution; its path is printed last
  cargo xtask build --release --target aarch64   the same for Grace, Jetson and other Arm machines")]
    Build {
        /// Optimised and, unless --dynamic is given, static
        #[arg(long)]
        release: bool,
        /// Without shared libraries, in any profile
        #[arg(long = "static", conflicts_with = "dynamic")]
        fixed: bool,
        /// Linked with this machine's glibc, in any profile
        #[arg(long)]
        dynamic: bool,
        /// For machines with this processor
        #[arg(long, value_name = "ARCH", value_enum, default_value_t = arch::Arch::HOST)]
        target: arch::Arch,
    },
    /// Build what a trace needs, become root, and trace
    #[command(
        after_help = "Without arguments a process that uses a GPU is traced for 10 seconds; where there is \
none, the software GPU is, to its end. With arguments, they are nvcap's own. The exit status is nvcap's.

Examples:
  cargo xtask run
  cargo xtask run -- -p 4711 --json
  cargo xtask run -- -- python3 train.py
  cargo xtask run --tour               five commands on a recording, for those without a GPU"
    )]
    Run {
        /// Show five commands on a recording of the repository, each with what it is for
        #[arg(long, conflicts_with = "args")]
        tour: bool,
        /// Arguments for nvcap, after `--`
        #[arg(last = true)]
        args: Vec<OsString>,
    },
    /// Check what needs no kernel, no GPU and no root
    ///
    /// The cheapest first: the tree, format, documents, clippy, unit tests.
    #[command(
        after_help = "Says within minutes whether a change is worth the tests. What it touches is tested first."
    )]
    Check {
        /// Leave the unit tests of what did not change to `cargo xtask test`, which is run next
        #[arg(long)]
        before_tests: bool,
    },
    /// Run every test that this machine can run
    ///
    /// Those that it cannot run are named at the end.
    #[command(after_help = "Examples:
  cargo xtask test
  cargo xtask test --no-live --no-vm   without root and without virtual machines

The output of each step is kept in target/xtask-test/.")]
    Test {
        /// Leave the live tests out (they need root)
        #[arg(long)]
        no_live: bool,
        /// Leave the virtual machines out (they need Debian's packages: apt-get and a network)
        #[arg(long)]
        no_vm: bool,
    },
    /// Test on other kernels, in virtual machines
    ///
    /// With a stand-in for nvidia.ko.
    Vm(vm::Args),
    /// Fill a folder for a GPU machine without Rust
    ///
    /// With all that it needs to run the GPU tests.
    #[command(after_help = "Example:
  cargo xtask gpu-bundle /tmp/bundle && scp -r /tmp/bundle gpu: && ssh gpu sudo bash bundle/run.sh")]
    GpuBundle {
        /// The folder to fill; it is created
        dir: PathBuf,
    },
    /// Build a release and pack it: deb, rpm, tarball
    #[command(after_help = "Example:
  cargo xtask package    the files are in target/package/, their paths are printed

A format whose tool is not here (dpkg-deb, rpmbuild) is left out, and it is said why.")]
    Package,
    /// Write nvcap/decode/facts/ from facts/
    Facts {
        /// Only compare: status 1 where a committed table is not what the facts give
        #[arg(long)]
        check: bool,
    },
    /// Write api.txt of the crates that others link
    ///
    /// The lists of public interfaces of nvcap-decode and nvcap-recording.
    Api {
        /// Only compare: status 1 where the committed list is not what rustdoc shows
        #[arg(long)]
        check: bool,
    },
    /// Measure costs of tracing, or decoding's speed
    Bench {
        #[command(subcommand)]
        what: bench::What,
    },
    /// Parts of the gate, as .ci/run calls them
    #[command(hide = true)]
    CiHelpers {
        #[command(subcommand)]
        part: ci::Part,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The error for a command line.
    fn refusal(words: &str) -> String {
        let words = ["cargo xtask"].into_iter().chain(words.split(' '));
        let refused = command().try_get_matches_from(words);
        refused.expect_err("it is no command").to_string()
    }

    #[test]
    fn the_nearest_command_is_suggested() {
        for (typed, meant) in [
            ("chek", "check"),
            ("tests", "test"),
            ("biuld", "build"),
            ("gpubundle", "gpu-bundle"),
            ("benchmark", "bench"),
        ] {
            let refusal = refusal(typed);
            assert!(refusal.contains(&format!("'{meant}'")), "{refusal}");
        }
        let refusal = refusal("chek --verbose");
        assert!(refusal.contains("'check'"), "{refusal}");
    }

    #[test]
    fn no_argument_is_no_error_and_help_shows_the_list() {
        let none = command().try_get_matches_from(["cargo xtask"]);
        let none = Cli::from_arg_matches(&none.expect("no argument is allowed"));
        assert!(none.is_ok_and(|cli| cli.command.is_none()));
        let list = help::list(&Cli::command());
        for words in ["--help", "-h", "help"] {
            assert_eq!(refusal(words).trim(), list.trim(), "{words}");
        }
        assert!(refusal("help test").contains("--no-vm"));
        assert!(refusal("help ci-helpers").contains("lint"));
    }

    #[test]
    fn the_list_has_each_command_that_is_not_hidden() {
        assert_eq!(help::faults(&Cli::command()), Vec::<String>::new());
        let new = clap::Command::new("new").about("New");
        let faults = help::faults(&Cli::command().subcommand(new));
        assert_eq!(faults, ["new is not in the list"]);
        let hidden = clap::Command::new("new").about("New").hide(true);
        assert!(help::faults(&Cli::command().subcommand(hidden)).is_empty());
        let gone = Cli::command().mut_subcommand("check", |check| check.hide(true));
        assert_eq!(
            help::faults(&gone),
            ["check is in the list, and no command"]
        );
        let mute = Cli::command().mut_subcommand("check", |check| check.about(None));
        assert_eq!(help::faults(&mute), ["check has no purpose"]);
    }

    #[test]
    fn the_list_fits_one_screen() {
        let list = help::list(&Cli::command());
        assert!(list.lines().count() <= 24, "{list}");
        for line in list.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }
}
