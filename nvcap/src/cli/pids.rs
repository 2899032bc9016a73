//! `-p` of the commands that take several processes, by id or by name.

use std::ops::Deref;

use clap::error::ErrorKind;
use clap::{Args, FromArgMatches};
use nvcap_process::{host, procfs};
use nvcap_show::output::message::tell;

use super::values::parse_pid;

/// Words of the command line.
#[derive(Args, Debug)]
#[group(skip)]
struct Words {
    /// Take the running process PID, or those called NAME; also PID,PID, and several times
    ///
    /// The id of a thread stands for its process.
    #[arg(
        id = "pid",
        short,
        long = "pid",
        value_name = "PID|NAME",
        value_parser = parse_named,
        value_delimiter = ','
    )]
    named: Vec<Named>,
}

/// Processes that `-p` names, each once.
#[derive(Clone, Debug, Default)]
pub(super) struct Pids(pub Vec<u32>);

impl Deref for Pids {
    type Target = Vec<u32>;

    fn deref(&self) -> &Vec<u32> {
        &self.0
    }
}

/// Parses `-p`. Names are looked up when the command line is read, so whoever has the processes has all of them.
impl FromArgMatches for Pids {
    fn from_arg_matches(given: &clap::ArgMatches) -> Result<Self, clap::Error> {
        let words = Words::from_arg_matches(given)?;
        let found = processes(&words.named);
        found.map_err(|why| clap::Error::raw(ErrorKind::ValueValidation, why))
    }

    fn update_from_arg_matches(&mut self, given: &clap::ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(given)?;
        Ok(())
    }
}

impl Args for Pids {
    fn augment_args(command: clap::Command) -> clap::Command {
        Words::augment_args(command)
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Words::augment_args_for_update(command)
    }
}

/// Finds the process or processes of a word that `-p` is given.
///
/// # Errors
/// A word that is no id, or a name that no process has, with what to type.
pub(super) fn of_word(word: &str) -> Result<Pids, String> {
    processes(&[parse_named(word)?])
}

/// Kinds of words that `-p` takes.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Named {
    Pid(u32),
    /// Each process of this name ([`nvcap_process::host::called`]).
    Name(String),
}

/// Parses `-p` of a command that takes several processes.
fn parse_named(text: &str) -> Result<Named, String> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return parse_pid(text).map(Named::Pid);
    }
    Ok(Named::Name(text.to_owned()))
}

/// Returns the processes of these ids and names, each once. An id may be a thread's; its process is then taken, which is reported.
///
/// # Errors
/// A name that no process has, with what to type.
fn processes(named: &[Named]) -> Result<Pids, String> {
    let (mut ids, mut all) = (Vec::new(), Vec::new());
    for named in named {
        match named {
            Named::Pid(id) => ids.push(*id),
            Named::Name(name) => match &host::called(name)[..] {
                [] => {
                    return Err(format!(
                        "no process is called '{name}', and no script of that name uses a GPU: type nvcap to see those that do, or give an id"
                    ));
                }
                called => ids.extend_from_slice(called),
            },
        }
    }
    for id in &ids {
        // The id of a process that is gone stays in the list; the code that looks at the process reports it.
        let process = procfs::process_of(*id).unwrap_or(*id);
        if process != *id {
            tell(format_args!(
                "{id} is a thread of process {process} ({}): all of the process is taken",
                procfs::name(process, None).unwrap_or_default()
            ));
        }
        if !all.contains(&process) {
            all.push(process);
        }
    }
    Ok(Pids(all))
}
