//! Options of a live target in commands that take a file or a live target. With a file they are refused, not ignored.

use clap::{Command, Id};

/// Returns the command with these options refused together with `file`. Each option must be named: clap accepts an option without the one
/// that it requires, if that one conflicts with a third.
pub(super) fn refusing(
    command: Command,
    file: &'static str,
    live: impl IntoIterator<Item = impl Into<Id>>,
) -> Command {
    // This is set on the options, not on the file: an argument without dashes would otherwise move behind those declared after it.
    { live.into_iter() }.fold(command, |command, id| {
        command.mut_arg(id.into(), |arg| arg.conflicts_with(file))
    })
}

#[cfg(test)]
mod tests {
    use clap::error::ErrorKind;

    use crate::cli::command_line;

    /// Options that have a meaning for a file as well, or that choose the file.
    const OF_FILES: [&str; 48] = [
        "at",
        "by",
        "channel",
        "channels",
        "chip",
        "code",
        "collective",
        "color",
        "arrivals",
        "driver",
        "exec_time",
        "explain_streams",
        "file",
        "files",
        "filter",
        "force",
        "from",
        "folded",
        "full_names",
        "full_stacks",
        "history",
        "image",
        "json",
        "last",
        "leaf",
        "lines",
        "merge",
        "more",
        "no_names",
        "output",
        "part_rows",
        "partition",
        "phases",
        "quiet",
        "rank",
        "ranks",
        "redact",
        "sm",
        "stats",
        "strict",
        "tables",
        "time",
        "times_from",
        "token",
        "top",
        "verbose",
        "what",
        "world_size",
    ];

    #[test]
    fn every_option_of_a_live_target_is_refused_beside_a_file() {
        let mut cli = command_line();
        cli.build();
        let below = cli
            .get_subcommands()
            .flat_map(|command| [command].into_iter().chain(command.get_subcommands()));
        let mut seen = Vec::new();
        for command in below {
            let has = |id: &str| command.get_arguments().any(|arg| arg.get_id() == id);
            let files = ["file", "files"].into_iter().find(|id| has(id));
            let (Some(file), true) = (files, has("pid")) else {
                continue;
            };
            seen.push(command.get_name());
            for arg in command.get_arguments() {
                let id = arg.get_id().as_str();
                let conflict = |a: &str, b: &str| {
                    let of = command.get_arguments().find(|arg| arg.get_id() == a);
                    let all = command.get_arg_conflicts_with(of.unwrap());
                    all.iter().any(|other| other.get_id() == b)
                };
                let is_refused = conflict(id, file) || conflict(file, id);
                assert!(
                    is_refused || OF_FILES.contains(&id) || ["help", "version"].contains(&id),
                    "nvcap {} FILE --{id}",
                    command.get_name()
                );
            }
        }
        let expected = [
            "channels", "code", "csv", "dump", "ioctls", "kineto", "maps", "perfetto", "ranks",
            "sample", "stacks", "time", "top",
        ];
        for name in expected {
            assert!(seen.contains(&name), "{name}: {seen:?}");
        }
    }

    #[test]
    fn a_line_with_a_file_and_an_option_of_a_live_target_is_refused() {
        for line in [
            "time FILE --duration 1",
            "ranks FILE FILE --how trap",
            "ranks --record r.pcapng FILE",
            "time FILE --comm x",
            "stacks FILE --observe-cpu 5%",
            "export perfetto FILE --duration 1",
            "export csv FILE --rotate 1M",
            "export kineto FILE --user root",
            "ioctls FILE --duration 1",
            "top FILE --interval 2s",
            "top FILE --comm x",
            "dump FILE --times 2",
            "dump FILE --no-stacks",
            "dump FILE --pod x",
            "dump --merge FILE --comm x",
            "dump -p 7 --at 2s",
            "maps -p 7 --driver 580.1",
        ] {
            let args = ["nvcap"].into_iter().chain(line.split_whitespace());
            let refused = command_line().try_get_matches_from(args).unwrap_err();
            assert_eq!(
                refused.kind(),
                ErrorKind::ArgumentConflict,
                "{line}: {refused}"
            );
        }
    }

    /// Test that the file that an option writes is not taken for a recording to be read.
    #[test]
    fn a_look_that_is_watched_is_recorded() {
        let line = "nvcap dump -p 7 --watch 1 --record r.pcapng";
        command_line()
            .try_get_matches_from(line.split_whitespace())
            .unwrap();
    }

    #[test]
    fn channels_of_an_export_are_of_a_file_too() {
        for line in [
            "export perfetto FILE --channels c -o x",
            "time FILE --by process",
            "ranks FILE FILE",
            "top FILE --last 3s",
            "dump FILE --last 3 --at 2s",
        ] {
            let args = ["nvcap"].into_iter().chain(line.split_whitespace());
            let parsed = command_line().try_get_matches_from(args);
            assert!(parsed.is_ok(), "{line}: {parsed:?}");
        }
    }
}
