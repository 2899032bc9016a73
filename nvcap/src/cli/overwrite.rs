//! A check, before the command does anything, that a command line spoils no file by mistake. Of the files that it names, no output is an
//! input, no two outputs are one file, and each output is empty or absent, unless `--force` is given. If something comes into a file later,
//! the code that writes leaves it as it is (`nvcap_show::output::file`).
//!
//! The contents of recordings are not examined: a new recording gets a name with a number instead (`target::open_recording`).

use std::path::{Path, PathBuf};

use nvcap_show::output::file::{Obstacle, obstacle};
use nvcap_show::output::plural::plural_of;
use nvcap_show::output::shell::quoted;
use nvcap_show::output::which::{WhichFile, is_below};

/// Files that a command line names.
#[derive(Default)]
pub(super) struct Files<'a> {
    force: bool,
    inputs: Vec<&'a Path>,
    outputs: Vec<Written>,
}

/// A file that is written.
struct Written {
    path: PathBuf,
    /// Option that names the file, or its folder.
    option: &'static str,
    kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    File,
    /// A file in the folder that the option names.
    Member,
    /// A folder in which files of any name are made.
    Folder,
    Recording,
    /// Standard output, as opened by the shell.
    Standard,
}

impl<'a> Files<'a> {
    /// Begins without files. `force` means that the contents of an output may be lost.
    pub(super) fn new(force: bool) -> Self {
        Self {
            force,
            ..Self::default()
        }
    }

    /// Adds files that are read; `-` is standard input.
    pub(super) fn reads(mut self, paths: impl IntoIterator<Item = &'a Path>) -> Self {
        self.inputs.extend(paths);
        self
    }

    fn with(mut self, option: &'static str, path: Option<&Path>, kind: Kind) -> Self {
        let standard = path.is_some_and(is_standard_output);
        self.outputs.extend(path.map(|path| Written {
            path: path.to_owned(),
            option,
            kind: if standard { Kind::Standard } else { kind },
        }));
        self
    }

    /// Adds the file of an option; `-` is standard output.
    pub(super) fn writes(self, option: &'static str, path: Option<&Path>) -> Self {
        self.with(option, path, Kind::File)
    }

    /// Adds the file of an option for a recording.
    pub(super) fn records(self, option: &'static str, path: Option<&Path>) -> Self {
        self.with(option, path, Kind::Recording)
    }

    /// Adds standard output, which no option names.
    pub(super) fn shows(self) -> Self {
        self.with("standard output", Some(Path::new("-")), Kind::Standard)
    }

    /// Adds files in the folder of an option.
    pub(super) fn members(
        self,
        option: &'static str,
        paths: impl IntoIterator<Item = PathBuf>,
    ) -> Self {
        { paths.into_iter() }.fold(self, |files, path| {
            files.with(option, Some(&path), Kind::Member)
        })
    }

    /// Adds folders, in the folder of an option, in which files of any name are made.
    pub(super) fn folders(
        self,
        option: &'static str,
        paths: impl IntoIterator<Item = PathBuf>,
    ) -> Self {
        { paths.into_iter() }.fold(self, |files, path| {
            files.with(option, Some(&path), Kind::Folder)
        })
    }

    /// Returns the reason why the command must not begin.
    pub(super) fn refusal(&self) -> Option<String> {
        { self.outputs.iter() }
            .find_map(|output| self.input(output))
            .or_else(|| self.twice())
            .or_else(|| self.obstacles())
    }

    /// Finds an output that is also read.
    fn input(&self, output: &Written) -> Option<String> {
        let path = &output.path;
        let is_read = match output.kind {
            Kind::Folder => self.inputs.iter().any(|input| is_below(input, path)),
            // The shell has emptied the file, or appends to it.
            Kind::Standard => false,
            _ => is_input(path, &self.inputs),
        };
        is_read.then(|| read_too(path, output.option))
    }

    /// Finds two outputs that are one file.
    fn twice(&self) -> Option<String> {
        let which: Vec<WhichFile> = { self.outputs.iter() }
            .map(|output| WhichFile::of(&output.path))
            .collect();
        for (n, one) in self.outputs.iter().enumerate() {
            for (m, other) in self.outputs.iter().enumerate().skip(n + 1) {
                let both = |kind| one.kind == kind && other.kind == kind;
                let is_one = match (one.kind, other.kind) {
                    // One option does not name a file twice.
                    _ if one.option == other.option => false,
                    (Kind::Folder, _) => is_below(&other.path, &one.path),
                    (_, Kind::Folder) => is_below(&one.path, &other.path),
                    _ => both(Kind::Standard) || which[n].is(&which[m]),
                };
                if is_one {
                    return Some(format!(
                        "cannot write to {}: {} and {} would be one file, and each would spoil the other; name another file with {}",
                        other.path.display(),
                        one.option,
                        other.option,
                        match other.kind {
                            Kind::Standard => one.option,
                            _ => other.option,
                        }
                    ));
                }
            }
        }
        None
    }

    /// Finds outputs that would replace existing contents.
    fn obstacles(&self) -> Option<String> {
        let mut taken: Vec<(&Written, &'static str)> = Vec::new();
        for output in &self.outputs {
            let path = &output.path;
            let is_recording = output.kind == Kind::Recording;
            if matches!(output.kind, Kind::Folder | Kind::Standard) {
                continue;
            }
            match obstacle(path, self.force || is_recording) {
                None => {}
                // The recording gets a name with a number.
                Some(Obstacle::Writer) if is_recording && !self.force => {}
                Some(Obstacle::Writer) => return Some(another_writes(path, output.option)),
                Some(Obstacle::Names(names)) => {
                    return Some(format!(
                        "cannot write to {}: it is one of {names} names of the same file, whose content all of them would lose; name \
                         another file with {}, or remove this name first: rm {}",
                        path.display(),
                        output.option,
                        quoted(path)
                    ));
                }
                Some(Obstacle::Content) => taken.push((output, output.option)),
            }
        }
        let (first, option) = *taken.first()?;
        let what = match first.kind {
            Kind::Member => "folder",
            _ => "file",
        };
        taken.retain(|(_, of)| *of == option);
        let paths: Vec<&Path> = taken.iter().map(|(one, _)| one.path.as_path()).collect();
        Some(of_files(&paths, &format!("another {what} with {option}")))
    }
}

/// Returns the reason why a command that would write to a file must not begin. `-` is standard output. `inputs` are files that the
/// command reads.
pub(super) fn refusal(path: Option<&Path>, force: bool, inputs: &[&Path]) -> Option<String> {
    let files = Files::new(force).reads(inputs.iter().copied());
    files.writes("-o", path).refusal()
}

/// Tells whether a file is one of those that are read; `-` is standard input.
pub(super) fn is_input(path: &Path, inputs: &[&Path]) -> bool {
    let which = WhichFile::of(path);
    // Data from a device or a pipe cannot be read twice.
    let is_regular = path.is_file();
    is_regular && { inputs.iter() }.any(|input| WhichFile::read_by(input).is(&which))
}

/// Returns the words that refuse an output that is also read.
pub(super) fn read_too(path: &Path, option: &str) -> String {
    format!(
        "cannot write to {}: it is read, too, and would be lost; name another file with {option}",
        path.display()
    )
}

/// Returns the words that refuse an output that another program writes.
pub(super) fn another_writes(path: &Path, option: &str) -> String {
    format!(
        "cannot write to {}: another program writes to it; end that, or name another file with {option}",
        path.display()
    )
}

/// Tells whether an output goes to standard output.
pub(super) fn is_standard_output(path: &Path) -> bool {
    ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"]
        .iter()
        .any(|name| path == Path::new(name))
}

/// Returns the words of a refusal. `another` says what to name instead.
fn of_files(taken: &[&Path], another: &str) -> String {
    let first = taken.first().map(|path| path.display().to_string());
    let first = first.unwrap_or_default();
    match taken.len().saturating_sub(1) as u64 {
        0 => format!(
            "cannot write to {first}: there is something in it, which would be lost; name {another}, or add --force to write over it"
        ),
        others => format!(
            "cannot write to {first} and {}: there is something in them, which would be lost; name {another}, or add --force to write \
             over them",
            plural_of(others, "other file", "other files")
        ),
    }
}
