//! Hints for a command line that clap refuses: the command that the user may have meant, if one word shows it.

use std::ffi::OsStr;
use std::path::Path;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use nvcap_recording::file::{kind, packed};
use nvcap_show::output::shell;

/// Removes from an error clap's tip to write `-- -1`, because the word after `--` is a command, which would be started.
pub(super) fn without_escape(mut error: clap::Error) -> clap::Error {
    if let Some(ContextValue::StyledStrs(tips)) = error.get(ContextKind::Suggested) {
        let mut left = tips.clone();
        left.retain(|tip| !tip.to_string().contains(" as a value, use "));
        error.remove(ContextKind::Suggested);
        if !left.is_empty() {
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(left));
        }
    }
    error
}

/// Returns the hint for a negative number.
fn negative(error: &clap::Error) -> Option<String> {
    let ContextValue::String(word) = error.get(ContextKind::InvalidArg)? else {
        return None;
    };
    let number = word.strip_prefix('-')?;
    let is_number = number.starts_with(|c: char| c.is_ascii_digit());
    is_number.then(|| format!("{word} is negative, and no option takes what is"))
}

/// Returns a hint of what to type instead. `args` are the arguments of the program, whose command line is `cli`.
pub(super) fn of(error: &clap::Error, args: &[String], mut cli: clap::Command) -> Option<String> {
    if !matches!(
        error.kind(),
        ErrorKind::InvalidSubcommand | ErrorKind::UnknownArgument | ErrorKind::ArgumentConflict
    ) {
        return by_process(error, args);
    }
    cli.build();
    if let Some(meant) = by_process(error, args).or_else(|| negative(error)) {
        return Some(meant);
    }
    if let Some(meant) = beside_a_file(error, args, &cli) {
        return Some(meant);
    }
    if let Some(meant) = live_of_a_reader(error, args) {
        return Some(meant);
    }
    let is_command = |word: &String| cli.find_subcommand(word).is_some();
    // After the name of a command come that command's own arguments, about which nothing is guessed.
    if args.first().is_some_and(is_command) {
        return None;
    }
    if error.kind() == ErrorKind::ArgumentConflict {
        let command = args.iter().find(|word| is_command(word))?;
        let is_traced = args.iter().any(|word| word == "--");
        return (!is_traced)
            .then(|| format!("options stand behind a command: nvcap {command} ..."));
    }
    let word = [ContextKind::InvalidSubcommand, ContextKind::InvalidArg]
        .into_iter()
        .find_map(|of| match error.get(of)? {
            ContextValue::String(word) => Some(word),
            _ => None,
        })?;
    if word.starts_with('-') {
        return None;
    }
    if is_command(word) {
        return Some(format!("options stand behind a command: nvcap {word} ..."));
    }
    let commands = cli.get_subcommands().filter(|c| !c.is_hide_set());
    let mut names = commands.map(clap::Command::get_name);
    if let Some(like) = names.find(|command| is_like(word, command)) {
        return Some(format!(
            "no command `{word}`; did you mean `{like}`? nvcap {like} ..."
        ));
    }
    if word.parse::<u32>().is_ok() {
        return Some(format!("to trace a running process: nvcap -p {word}"));
    }
    let path = Path::new(word);
    // Only regular files are read: bytes read from a pipe here would be missing for the command.
    let file = path.is_file().then(|| packed::open(path).ok()).flatten();
    let typed = shell::quoted(path);
    let is_of_recordings = |of: &OsStr| ["pcapng", "zst", "xz", "gz"].iter().any(|e| of == *e);
    if !path.exists() && path.extension().is_some_and(is_of_recordings) {
        return Some(format!(
            "there is no file {typed}; nvcap decode FILE shows a recording"
        ));
    }
    match file.map(|file| kind::of(file).0) {
        Some(kind::Kind::Recording) => Some(format!("to show a recording: nvcap decode {typed}")),
        Some(kind::Kind::Orc) => Some(format!("to read a capture: nvcap decode {typed}")),
        Some(kind::Kind::Kineto | kind::Kind::Sqlite) => Some(format!(
            "to read another profiler's trace: nvcap time {typed}"
        )),
        Some(kind::Kind::IoctlLog) => {
            Some(format!("to read a log of ioctls: nvcap ioctls {typed}"))
        }
        _ => {
            let options = args.iter().take_while(|a| *a != word);
            let options: String = { options.map(|option| shell::word(option)) }
                .map(|option| option + " ")
                .collect();
            let word = shell::word(word);
            Some(format!(
                "to trace a command, give it after --: nvcap {options}-- {word} ..."
            ))
        }
    }
}

/// Returns what to type for rows of each process, if a command has no `--by process`.
fn by_process(error: &clap::Error, args: &[String]) -> Option<String> {
    let named = |of| match error.get(of)? {
        ContextValue::String(text) => Some(text.as_str()),
        _ => None,
    };
    let is_by = named(ContextKind::InvalidArg)?.starts_with("--by");
    let has_process = { args.iter().zip(args.iter().skip(1)) }
        .any(|(option, value)| option == "--by" && value == "process")
        || args.iter().any(|arg| arg == "--by=process");
    if !is_by || !has_process {
        return None;
    }
    let command = args.first()?;
    Some(match command.as_str() {
        "counts" | "share" | "top" | "dump" | "watch" => {
            format!("nvcap {command} tells of each process by itself: leave --by process out")
        }
        "ranks" => "nvcap ranks has a row for each rank, which is a process: leave --by process out".to_owned(),
        "stats" => "nvcap stats has no rows of processes: of one, nvcap stats FILE -e pid=PID; times of each, nvcap time FILE --by process".to_owned(),
        _ => format!("nvcap {command} has no rows of processes: of one, -e pid=PID; times of each, nvcap time --by process"),
    })
}

/// Returns what to type to trace a process, if one was given to a command that only reads recordings.
fn live_of_a_reader(error: &clap::Error, args: &[String]) -> Option<String> {
    let command = args.first()?;
    let live = match command.as_str() {
        "stats" => "nvcap -s -p PID",
        "decode" => "nvcap -p PID",
        "report" | "diff" => "nvcap record -p PID",
        _ => return None,
    };
    let word = match error.get(ContextKind::InvalidArg)? {
        ContextValue::String(word) => word,
        _ => return None,
    };
    ["-p", "--pid", "-a", "--all"]
        .contains(&word.as_str())
        .then(|| format!("nvcap {command} reads recordings; of a running process: {live}"))
}

/// Returns what to type if an option of a running process was given together with a file.
fn beside_a_file(error: &clap::Error, args: &[String], cli: &clap::Command) -> Option<String> {
    let named = |kind| match error.get(kind)? {
        ContextValue::String(arg) => Some(vec![arg.as_str()]),
        ContextValue::Strings(args) => Some(args.iter().map(String::as_str).collect()),
        _ => None,
    };
    let kinds = [ContextKind::InvalidArg, ContextKind::PriorArg];
    let named: Vec<&str> = kinds.into_iter().filter_map(named).flatten().collect();
    // The FILE of an option is not a recording that is read.
    let is_file = |arg: &&str| !arg.starts_with('-') && arg.contains("FILE");
    if !named.iter().any(is_file) {
        return None;
    }
    let option = named.iter().find(|arg| arg.starts_with('-'))?;
    let mut command = cli;
    let mut typed = "nvcap".to_owned();
    for word in args {
        let Some(below) = command.find_subcommand(word) else {
            break;
        };
        command = below;
        typed = format!("{typed} {word}");
    }
    let mut options = command.get_arguments();
    if !options.any(|arg| arg.get_id() == "pid") {
        return None;
    }
    let name = option.split_whitespace().next().unwrap_or_default();
    let live = match ["--pid", "--all"].contains(&name) {
        true => format!("{typed} {option}"),
        false => format!("{typed} {option} -p PID"),
    };
    Some(format!(
        "{name} is for running processes, FILE is a recording: type {typed} FILE, or {live}"
    ))
}

/// Returns the hint for a number that was given as a file and names none: it may be meant as a process. `given` belongs to `command`.
pub(super) fn number_for_a_file(
    command: &clap::Command,
    path: &str,
    given: &clap::ArgMatches,
) -> Option<String> {
    let mut options = command.get_arguments();
    if !options.any(|arg| arg.get_id() == "pid") {
        return None;
    }
    let files = ["file", "files"].into_iter();
    let mut files = files.filter_map(|id| given.try_get_raw(id).ok().flatten());
    let file = files.find_map(|mut values| values.next())?.to_str()?;
    let is_number = file.parse::<u32>().is_ok() && !Path::new(file).exists();
    is_number.then(|| {
        format!("there is no file {file} here; for the running process: nvcap {path} -p {file}")
    })
}

/// Tells whether a word differs from a command's name by one letter (added, missing or replaced), or by two that changed places.
fn is_like(word: &str, command: &str) -> bool {
    let (word, command) = (word.as_bytes(), command.as_bytes());
    let same = word.iter().zip(command).take_while(|(a, b)| a == b).count();
    let rests = (&word[same..], &command[same..]);
    match rests {
        ([_, word @ ..], [_, command @ ..]) if word == command => true,
        ([a, b, word @ ..], [c, d, command @ ..]) if (a, b, word) == (d, c, command) => true,
        ([_, word @ ..], command) if word == command => true,
        (word, [_, command @ ..]) => word == command,
        _ => false,
    }
}
