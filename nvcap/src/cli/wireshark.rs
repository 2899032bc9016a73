//! `nvcap wireshark`: installation, in the user's own folders, of the files that Wireshark needs for nvcap, and their removal.

use std::fs;
use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, bail};
use clap::Subcommand;

use nvcap_decode::ledger::STATUS_USAGE;
use nvcap_show::output::file;
use nvcap_show::output::message::tell;
use nvcap_show::output::shell::quoted;
use nvcap_show::output::writer::Output;

const EXAMPLES: &str = "\
Examples:
  nvcap wireshark install                              for this user
  nvcap export wireshark run.pcapng -o run.ws.pcapng   a recording with all that nvcap decodes
  wireshark -C nvcap run.ws.pcapng                     with nvcap's columns and colours
  tshark -r run.ws.pcapng -Y 'nvcap.copy.bytes > 1000000'
  nvcap wireshark uninstall

docs/wireshark.md has the fields for filters. Exit status: 0 done, 1 error, 2 a
file in the place of the dissector or the program is not nvcap's, and stays.";

/// Text near the beginning of each file that nvcap writes. Files without it are left alone.
const MARK: &str = "written by `nvcap wireshark install`";

/// Arguments of `nvcap wireshark`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// The command.
    #[command(subcommand)]
    pub to: To,
}

/// Commands.
#[derive(Subcommand, Debug)]
pub(super) enum To {
    /// Write the dissector, the program for live capture, and a profile with columns and colours
    Install(Where),
    /// Remove them
    Uninstall(Where),
}

/// Choice of folders.
#[derive(clap::Args, Debug)]
pub(super) struct Where {
    /// Write below DIR (DIR/plugins, DIR/extcap, DIR/profiles) instead of Wireshark's folders of this user
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

/// Wireshark's folders.
#[derive(Debug, PartialEq, Eq)]
struct Folders {
    plugins: PathBuf,
    extcap: PathBuf,
    profile: PathBuf,
    /// The only folder in which this Wireshark looks for programs that capture, if it is not `extcap`.
    only_extcap: Option<PathBuf>,
}

impl Folders {
    fn below(dir: &Path) -> Self {
        Self {
            plugins: dir.join("plugins"),
            extcap: dir.join("extcap"),
            profile: dir.join("profiles/nvcap"),
            only_extcap: None,
        }
    }

    /// Returns the folders of this user, as reported by tshark; without tshark, Wireshark's default folders.
    fn of_user() -> anyhow::Result<Self> {
        let told = Command::new("tshark").args(["-G", "folders"]).output();
        let told = told.map_or_else(|_| Vec::new(), |out| out.stdout);
        let home = std::env::var_os("HOME").filter(|home| !home.is_empty());
        let config = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from);
        Self::told(
            &String::from_utf8_lossy(&told),
            home.map(PathBuf::from),
            config,
        )
    }

    fn told(text: &str, home: Option<PathBuf>, config: Option<PathBuf>) -> anyhow::Result<Self> {
        let folder = |name: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once(':'));
            let found = lines.find(|(of, _)| *of == name);
            found.map(|(_, path)| PathBuf::from(path.trim()))
        };
        let Some(home) = home else {
            bail!("the environment has no HOME: name the folder with --dir DIR");
        };
        let local = home.join(".local/lib/wireshark");
        let config = config.unwrap_or_else(|| home.join(".config"));
        let personal = folder("Personal configuration").unwrap_or_else(|| config.join("wireshark"));
        let own_extcap = folder("Personal Extcap path");
        Ok(Self {
            plugins: folder("Personal Lua Plugins").unwrap_or_else(|| local.join("plugins")),
            only_extcap: match own_extcap {
                Some(_) => None,
                None => folder("Extcap path"),
            },
            extcap: own_extcap.unwrap_or_else(|| local.join("extcap")),
            profile: personal.join("profiles/nvcap"),
        })
    }

    fn files(&self) -> [(PathBuf, &'static str); 3] {
        [
            (
                self.plugins.join("nvcap.lua"),
                include_str!("../../wireshark/nvcap.lua"),
            ),
            (
                self.profile.join("colorfilters"),
                include_str!("../../wireshark/colorfilters"),
            ),
            (
                self.profile.join("preferences"),
                include_str!("../../wireshark/preferences"),
            ),
        ]
    }

    fn program(&self) -> PathBuf {
        self.extcap.join("nvcap")
    }
}

/// Installs or removes.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let (To::Install(place) | To::Uninstall(place)) = &args.to;
    let folders = match &place.dir {
        Some(dir) => Folders::below(&std::path::absolute(dir)?),
        None => Folders::of_user()?,
    };
    let mut out = Output::stdout();
    match &args.to {
        To::Install(_) => return install(&folders, &mut out, place.dir.is_none()),
        To::Uninstall(_) => uninstall(&folders, &mut out)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Tells whether a file is nvcap's own; `None` if there is none.
fn is_own(path: &Path) -> anyhow::Result<Option<bool>> {
    match fs::metadata(path) {
        // Something that is no file cannot be read to its end.
        Ok(about) if !about.is_file() => Ok(Some(false)),
        Ok(_) => {
            let file = fs::File::open(path);
            let file = file.with_context(|| format!("cannot read {}", path.display()))?;
            Ok(Some(has_mark(file)))
        }
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// Tells whether a file has the mark in its first line, or in the line after that of its interpreter.
fn has_mark(file: fs::File) -> bool {
    let mut head = Vec::new();
    let read = file.take(400).read_to_end(&mut head);
    let head = String::from_utf8_lossy(&head);
    let mut lines = head.lines().filter(|line| !line.starts_with("#!"));
    read.is_ok() && lines.next().is_some_and(|line| line.contains(MARK))
}

/// Writes a file anew, unless there is one that is not nvcap's.
fn put(path: &Path, text: &str, mode: u32) -> anyhow::Result<bool> {
    let stays = || {
        tell(format_args!(
            "{} is not nvcap's, or was changed by Wireshark: it stays as it is (move it away and type nvcap wireshark install again)",
            path.display()
        ));
        Ok(false)
    };
    if is_own(path)? == Some(false) {
        return stays();
    }
    let cannot = || format!("cannot write {}", path.display());
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(cannot)?;
    }
    // A new file is written beside it and takes its place, so that a program that runs from it is not disturbed.
    match file::replace(path, text.as_bytes(), mode, &has_mark) {
        Err(e) if e.kind() == ErrorKind::AlreadyExists => stays(),
        written => written.with_context(cannot).map(|()| true),
    }
}

fn install(folders: &Folders, out: &mut Output, is_of_user: bool) -> anyhow::Result<ExitCode> {
    if is_of_user && std::env::var_os("SUDO_USER").is_some() {
        tell("these are root's folders: type nvcap wireshark install without sudo for your own");
    }
    let this = std::env::current_exe().context("cannot tell where nvcap itself lies")?;
    let script = format!(
        "#!/bin/sh\n# {MARK}: Wireshark calls it to capture live.\nexec {} extcap \"$@\"\n",
        quoted(&this)
    );
    let mut text = String::new();
    let program = folders.program();
    let files = folders
        .files()
        .map(|(path, content)| (path, content, 0o644));
    let mut is_refused = false;
    for (path, content, mode) in files
        .into_iter()
        .chain([(program.clone(), &*script, 0o755)])
    {
        match put(&path, content, mode)? {
            true => text += &format!("wrote {}\n", path.display()),
            // Wireshark itself rewrites the files of the profile when they are changed.
            false => is_refused |= path.parent() != Some(&folders.profile),
        }
    }
    if let Some(only) = &folders.only_extcap {
        text += &format!(
            "This Wireshark looks for programs that capture in {only} alone. To capture live, type once:\n  \
             sudo ln -s {program} {typed}/nvcap\n",
            only = only.display(),
            program = quoted(&program),
            typed = quoted(only),
        );
    }
    text += "Open a file of nvcap export wireshark with: wireshark -C nvcap FILE\n";
    out.object().extend_from_slice(text.as_bytes());
    out.answer()?;
    Ok(match is_refused {
        true => ExitCode::from(STATUS_USAGE),
        false => ExitCode::SUCCESS,
    })
}

fn uninstall(folders: &Folders, out: &mut Output) -> anyhow::Result<()> {
    let mut text = String::new();
    let files = folders.files().map(|(path, _)| path);
    for path in files.into_iter().chain([folders.program()]) {
        match is_own(&path)? {
            None => {}
            Some(true) => {
                fs::remove_file(&path)
                    .with_context(|| format!("cannot remove {}", path.display()))?;
                text += &format!("removed {}\n", path.display());
            }
            Some(false) => tell(format_args!(
                "{} is not nvcap's, or was changed by Wireshark: it stays",
                path.display()
            )),
        }
    }
    // Only if it is empty.
    let _ = fs::remove_dir(&folders.profile);
    if text.is_empty() {
        text += "nothing of nvcap's is there\n";
    }
    out.object().extend_from_slice(text.as_bytes());
    Ok(out.answer()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_those_that_tshark_tells() {
        let home = || Some(PathBuf::from("/h"));
        let told = "Personal configuration:\t/h/c\nPersonal Lua Plugins:\t/h/p\nExtcap path:         \t/usr/e\n";
        let old = Folders::told(told, home(), None).unwrap();
        let wanted = Folders {
            plugins: "/h/p".into(),
            extcap: "/h/.local/lib/wireshark/extcap".into(),
            profile: "/h/c/profiles/nvcap".into(),
            only_extcap: Some("/usr/e".into()),
        };
        assert_eq!(old, wanted);
        let told = told.to_owned() + "Personal Extcap path:\t/h/e\n";
        let new = Folders::told(&told, home(), None).unwrap();
        assert_eq!((new.extcap, new.only_extcap), ("/h/e".into(), None));
        let none = Folders::told("", home(), Some("/x".into())).unwrap();
        assert_eq!(none.profile, Path::new("/x/wireshark/profiles/nvcap"));
        assert_eq!(none.plugins, Path::new("/h/.local/lib/wireshark/plugins"));
        assert!(Folders::told("", None, None).is_err());
    }

    #[test]
    fn every_file_has_the_mark() {
        for (path, text) in Folders::below(Path::new("x")).files() {
            let head: String = text.chars().take(400).collect();
            assert!(head.contains(MARK), "{}", path.display());
        }
    }
}
