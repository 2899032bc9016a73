//! The behaviour of the init when it is started under another name.
//!
//! `true` and `env` are the usual commands. `nvcap-here` stands between the end-to-end tests and nvcap: those tests name
//! the software GPU's channels in a file, and here nvcap must learn them from the driver, by the way under test and no
//! other flag. `contained` runs its arguments in a PID and mount namespace of their own; `lives` runs its arguments once
//! for each line that its parent writes.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use crate::machine;

/// Runs as the name under which this was started, if it is one of those.
pub fn run() -> Option<ExitCode> {
    let mut args = std::env::args();
    let name = args.next()?;
    match name.rsplit('/').next()? {
        "true" => Some(ExitCode::SUCCESS),
        "nvcap-here" => {
            let way = std::env::var("VM_WAY").unwrap_or_default();
            let mut command = Command::new("/bin/nvcap");
            command.args(translate(args.collect(), &way));
            let error = match std::env::var_os("VM_USER") {
                Some(_) => machine::as_user(&mut command)
                    .err()
                    .unwrap_or_else(|| command.exec()),
                None => command.exec(),
            };
            eprintln!("nvcap-here: /bin/nvcap: {error}");
            Some(ExitCode::from(127))
        }
        "contained" => match machine::contained(args.collect()) {
            Ok(code) => Some(code),
            Err(e) => {
                eprintln!("contained: {e:#}");
                Some(ExitCode::from(127))
            }
        },
        "lives" => Some(lives(args.collect())),
        "env" => Some(env(args.collect())),
        _ => None,
    }
}

/// `NAME=VALUE... COMMAND`: runs the command with these in its environment.
fn env(words: Vec<String>) -> ExitCode {
    let set = words.iter().map_while(|w| w.split_once('='));
    let mut rest = words.iter().skip(set.clone().count());
    let error = match rest.next() {
        Some(program) => Command::new(program).args(rest).envs(set).exec(),
        None => std::io::Error::other("no command"),
    };
    eprintln!("env: {error}");
    ExitCode::from(127)
}

/// Runs a command once for each line on standard input, and prints `lived` after each.
fn lives(words: Vec<String>) -> ExitCode {
    let mut failed = false;
    for line in std::io::stdin().lines() {
        if line.is_err() {
            break;
        }
        let status = words
            .split_first()
            .map(|(program, args)| Command::new(program).args(args).status());
        failed |= !matches!(status, Some(Ok(s)) if s.success());
        println!("lived");
    }
    if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

/// Replaces the tests' own channels file by `--discover WAY`; a file that is meant to be refused stays.
fn translate(args: Vec<String>, way: &str) -> Vec<String> {
    let mut out = Vec::new();
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        if arg == "--" {
            out.push(arg);
            out.extend(args);
            break;
        }
        if arg == "--channels" {
            let file = args.next().unwrap_or_default();
            if file.ends_with("/channels.txt") && !file.starts_with("/nonexistent") {
                out.extend(["--discover".into(), way.into()]);
            } else {
                out.extend([arg, file]);
            }
            continue;
        }
        out.push(arg);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(String::from).collect()
    }

    #[test]
    fn only_the_usual_channels_file_is_translated() {
        assert_eq!(
            translate(
                words("--json --channels /tmp/x/channels.txt -- softgpu --channels 3"),
                "kprobe"
            ),
            words("--json --discover kprobe -- softgpu --channels 3")
        );
        let bad = words("--channels /tmp/x/bad.txt -- true");
        assert_eq!(translate(bad.clone(), "kprobe"), bad);
        let missing = words("--channels /nonexistent/channels.txt -p 1");
        assert_eq!(translate(missing.clone(), "kprobe"), missing);
    }
}
