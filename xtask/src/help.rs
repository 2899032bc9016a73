//! List of what a developer can type: `cargo xtask` without an argument.
//!
//! Knows the groups and the times; the commands themselves and their purposes are those of the command line.

/// A command and the time that it takes on two processors: at first, and after a change.
type Timed = (&'static str, &'static str);

/// The commands in the order of the list.
const GROUPS: [(&str, &[Timed]); 4] = [
    (
        "Every day",
        &[
            ("check", "5 min, then less"),
            ("run", "2 min, then 30 s"),
            ("test", "15 to 20 min"),
        ],
    ),
    (
        "After a change of their sources",
        &[
            ("bpf", "4 min, then less"),
            ("facts", "1 s"),
            ("api", "1 min"),
        ],
    ),
    (
        "Programs to carry away",
        &[
            ("build", "2 min, then 30 s"),
            ("package", "5 min"),
            ("gpu-bundle", "5 min"),
        ],
    ),
    (
        "Now and then",
        &[
            ("vm", "8 to 13 min"),
            ("bench", "5 min and more"),
            ("setup", "2 min, then 1 s"),
        ],
    ),
];

/// The whole list, in one screen.
pub fn list(command: &clap::Command) -> String {
    let mut lines = vec![format!("{:63}on two processors", "cargo xtask COMMAND")];
    for (title, commands) in GROUPS {
        lines.push(format!("{title}:"));
        for (name, time) in commands {
            let purpose = purpose(command, name).unwrap_or_default();
            lines.push(format!("  {name:11} {purpose:48} {time}"));
        }
    }
    lines.push(String::new());
    lines.push("cargo xtask help COMMAND tells its arguments, with examples.".to_owned());
    lines.push("One test: cargo test -p CRATE NAME".to_owned());
    lines.push("One live test: sudo cargo test --workspace --test live -- NAME".to_owned());
    lines.join("\n")
}

/// The first line of a command's help; none where it is hidden, has none or does not exist.
fn purpose(command: &clap::Command, name: &str) -> Option<String> {
    let command = command.find_subcommand(name)?;
    let shown = !command.is_hide_set();
    let about = command.get_about().filter(|_| shown)?;
    Some(about.to_string())
}

/// Differences between the list and the commands of the command line.
#[cfg(test)]
pub fn faults(command: &clap::Command) -> Vec<String> {
    let listed: Vec<&str> = GROUPS
        .iter()
        .flat_map(|(_, commands)| commands.iter().map(|(name, _)| *name))
        .collect();
    let shown: Vec<&clap::Command> = command
        .get_subcommands()
        .filter(|command| !command.is_hide_set())
        .collect();
    let mut faults = Vec::new();
    for command in &shown {
        let name = command.get_name();
        match listed.iter().filter(|listed| **listed == name).count() {
            0 => faults.push(format!("{name} is not in the list")),
            1 if command.get_about().is_none() => faults.push(format!("{name} has no purpose")),
            1 => {}
            _ => faults.push(format!("{name} is in the list twice")),
        }
    }
    let gone = listed
        .into_iter()
        .filter(|name| shown.iter().all(|command| command.get_name() != *name));
    faults.extend(gone.map(|name| format!("{name} is in the list, and no command")));
    faults
}
