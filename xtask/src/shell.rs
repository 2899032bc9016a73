//! Runs other programs: prints the command, and repeats it in an error, ready to type again.
//!
//! Knows nothing of the programs' purposes.

use std::{
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
};

use anyhow::{Context, Result, bail};

/// A command line that can be shown exactly as one would type it.
#[derive(Clone)]
pub struct Cmd {
    program: OsString,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    env_remove: Vec<&'static str>,
    dir: Option<PathBuf>,
}

/// Variables that `cargo run` sets for xtask itself, and that must not reach a compiler of another toolchain.
const OF_THE_OUTER_CARGO: &[&str] = &[
    "CARGO",
    "CARGO_ENCODED_RUSTFLAGS",
    "CARGO_MANIFEST_DIR",
    "CARGO_MANIFEST_PATH",
    "LD_LIBRARY_PATH",
    "RUSTC",
    "RUSTC_BOOTSTRAP",
    "RUSTC_WORKSPACE_WRAPPER",
    "RUSTFLAGS",
    "RUSTUP_TOOLCHAIN",
    "RUST_RECURSION_COUNT",
];

/// Variables in which `cargo run` describes xtask's own package. A build script that reads them (ring's) would run again, and all
/// that depends on it be compiled again, whenever a plain `cargo` is followed by `cargo xtask`.
const OF_THE_OUTER_PACKAGE: &[&str] = &[
    "CARGO_MANIFEST_DIR",
    "CARGO_MANIFEST_LINKS",
    "CARGO_MANIFEST_PATH",
    "CARGO_PKG_NAME",
    "CARGO_PKG_VERSION_MAJOR",
    "CARGO_PKG_VERSION_MINOR",
    "CARGO_PKG_VERSION_PATCH",
    "CARGO_PKG_VERSION_PRE",
    "OUT_DIR",
];

impl Cmd {
    /// The program `program`, without arguments.
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        Self {
            program: program.as_ref().to_owned(),
            args: Vec::new(),
            env: Vec::new(),
            env_remove: Vec::new(),
            dir: None,
        }
    }

    /// Adds one argument.
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    /// Adds arguments.
    pub fn args<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(mut self, args: I) -> Self {
        self.args
            .extend(args.into_iter().map(|a| a.as_ref().to_owned()));
        self
    }

    /// Sets an environment variable; it is shown with the command.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        let name = name.as_ref();
        self.env.retain(|(earlier, _)| earlier != name);
        self.env.push((name.to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Removes the outer cargo's variables, for a command that chooses its toolchain itself.
    pub fn other_toolchain(mut self) -> Self {
        self.env_remove.extend(OF_THE_OUTER_CARGO);
        self
    }

    /// Removes what describes xtask's package, for a cargo that builds others.
    pub fn other_package(mut self) -> Self {
        self.env_remove.extend(OF_THE_OUTER_PACKAGE);
        self
    }

    /// The folder to run in.
    pub fn dir(mut self, dir: impl AsRef<Path>) -> Self {
        self.dir = Some(dir.as_ref().to_path_buf());
        self
    }

    /// As one would type it.
    pub fn line(&self) -> String {
        let mut words = Vec::new();
        if let Some(dir) = &self.dir {
            words.push(format!("cd {} &&", quote(dir.as_os_str())));
        }
        for (name, value) in self.env.iter().filter(|(name, _)| name != "PATH") {
            words.push(format!("{}={}", name.to_string_lossy(), quote(value)));
        }
        words.push(quote(&self.program));
        words.extend(self.args.iter().map(|arg| quote(arg)));
        words.join(" ")
    }

    /// Returns the command as a `std::process::Command`, for a caller that needs the streams.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.args);
        for name in &self.env_remove {
            command.env_remove(name);
        }
        command.envs(self.env.iter().map(|(n, v)| (n, v)));
        if let Some(dir) = &self.dir {
            command.current_dir(dir);
        }
        command
    }

    /// Shows the command, runs it on the terminal, and returns its status.
    pub fn status(&self) -> Result<ExitStatus> {
        eprintln!("+ {}", self.line());
        self.command().status().with_context(|| {
            format!(
                "{} could not be started; is it installed and on PATH?",
                self.program.to_string_lossy()
            )
        })
    }

    /// Shows the command and runs it; an unsuccessful one is an error that repeats the command.
    pub fn run(&self) -> Result<()> {
        let status = self.status()?;
        if !status.success() {
            bail!("{status} from: {}", self.line());
        }
        Ok(())
    }

    /// Runs it silently and returns its standard output; none if it failed or does not exist.
    pub fn read(&self) -> Option<String> {
        let out = self
            .command()
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output()
            .ok()?;
        out.status
            .success()
            .then(|| String::from_utf8_lossy(&out.stdout).trim().to_owned())
    }
}

/// Quotes a word for a POSIX shell.
fn quote(word: &OsStr) -> String {
    let word = word.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.into_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_shown_as_it_is_typed() {
        let cmd = Cmd::new("cargo")
            .arg("build")
            .env("RUSTFLAGS", "-C debuginfo=2")
            .dir("a b");
        assert_eq!(
            cmd.line(),
            "cd 'a b' && RUSTFLAGS='-C debuginfo=2' cargo build"
        );
        assert_eq!(
            Cmd::new("echo").arg("it's").arg("").line(),
            r"echo 'it'\''s' ''"
        );
    }

    #[test]
    fn a_failed_command_repeats_itself_in_the_error() {
        let error = Cmd::new("false").arg("x").run().expect_err("false fails");
        assert!(format!("{error:#}").contains("from: false x"), "{error:#}");
        let error = Cmd::new("nvcap-no-such-program")
            .run()
            .expect_err("it does not exist");
        assert!(
            format!("{error:#}").contains("nvcap-no-such-program"),
            "{error:#}"
        );
    }
}
