//! Files of one trace (`nvcap record --rotate`), given in any order and read one after another as one.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::progress::{self, Counter, Reading};
use super::usage::bail_usage;
use anyhow::{anyhow, bail};
use nvcap_recording::file::kind::{self, Kind};
use nvcap_recording::file::packed;
use nvcap_recording::recording::Reader;
use nvcap_show::output::message::tell;
use nvcap_show::output::plural::plural;
use nvcap_show::output::shell::quoted;

/// A file and its place in the trace.
struct Part<'a> {
    path: &'a Path,
    /// Number of the trace, which all of its files have.
    trace: u32,
    /// Number of the file, counted from 0.
    number: u32,
}

/// Opens the files of one trace, in their order.
///
/// # Errors
/// When one cannot be opened, is no recording, is of another trace, or has the same place as another.
pub(super) fn open(files: &[&Path]) -> anyhow::Result<(Box<dyn Read>, Reading)> {
    let mut parts = Vec::with_capacity(files.len());
    for path in files {
        parts.push(part(path)?);
    }
    parts.sort_by_key(|p| p.number);
    for pair in parts.windows(2) {
        let [a, b] = pair else { continue };
        if a.trace != b.trace {
            let (a, b) = (quoted(a.path), quoted(b.path));
            bail_usage!(
                "{a} and {b} are of two traces, and only the files of one (nvcap record --rotate) are read as one: read each alone, or compare them (nvcap diff {a} {b})"
            );
        }
        if a.number == b.number {
            bail_usage!(
                "{} and {} both have file {} of the trace: leave one out",
                a.path.display(),
                b.path.display(),
                a.number
            );
        }
    }
    let lacking: u32 = { parts.windows(2) }
        .filter_map(|pair| Some(pair.get(1)?.number - pair.first()?.number - 1))
        .sum();
    if lacking > 0 {
        tell(format_args!(
            "{} between those given {} missing",
            plural(lacking.into(), "file"),
            if lacking == 1 { "is" } else { "are" }
        ));
    }
    let mut left = VecDeque::with_capacity(parts.len());
    let mut bytes = 0;
    for part in parts {
        // All files are opened now: the rights to open them may be given up before the last one is reached.
        let file = File::open(part.path).map_err(|e| unreadable(part.path, &e))?;
        bytes += file.metadata().map_or(0, |m| m.len());
        left.push_back((part.path.to_owned(), file));
    }
    let (reading, counter) = progress::of_files(bytes);
    let parts = Parts {
        left,
        now: None,
        counter,
    };
    Ok((Box::new(parts), reading))
}

/// Makes the error of a file that cannot be read, with what to type next.
pub(super) fn unreadable(path: &Path, e: &io::Error) -> anyhow::Error {
    let next = match e.kind() {
        io::ErrorKind::NotFound => "; nvcap record -o FILE -- COMMAND makes a recording",
        io::ErrorKind::PermissionDenied => "; read it as its owner, or with sudo",
        io::ErrorKind::IsADirectory => "; name the files in it",
        _ => "",
    };
    anyhow!("cannot read the capture {}: {e}{next}", path.display())
}

fn part(path: &Path) -> anyhow::Result<Part<'_>> {
    let name = path.display();
    if path.as_os_str() == "-" {
        bail_usage!(
            "standard input is read alone: join the files of a trace before it (cat FILE... | nvcap ... -)"
        );
    }
    // A pipe's bytes could not be read a second time.
    if !path.metadata().map_err(|e| unreadable(path, &e))?.is_file() {
        bail!("{name} is no file on a disk: it is read alone");
    }
    let (kind, reader) = kind::of(packed::open(path).map_err(|e| unreadable(path, &e))?);
    if kind != Kind::Recording {
        bail!(
            "{name} is no recording of nvcap's, whose files (nvcap record --rotate) alone are read as one: it is {}",
            kind.seems()
        );
    }
    let mut reader = Reader::new(reader);
    let number = reader.trace().map(|info| info.file);
    let (Some(number), Some(trace)) = (number, reader.trace_number()) else {
        bail!(
            "{name} does not begin with the description of its trace, so that its place is not known: read it alone"
        );
    };
    Ok(Part {
        path,
        trace,
        number,
    })
}

/// Files that are still to be read.
struct Parts {
    left: VecDeque<(PathBuf, File)>,
    now: Option<(PathBuf, Box<dyn Read>)>,
    counter: Counter,
}

impl Read for Parts {
    /// Continues in the next file where one ends. A part of a file that cannot be read is reported; its records are missing in the ledger,
    /// by their numbers.
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        loop {
            let Some((path, reader)) = &mut self.now else {
                let Some((path, file)) = self.left.pop_front() else {
                    return Ok(0);
                };
                match packed::unpacked(self.counter.counted(Box::new(file))) {
                    Ok(reader) => self.now = Some((path, reader)),
                    Err(error) => tell(format_args!("{}: {error}", path.display())),
                }
                continue;
            };
            match reader.read(to) {
                Ok(0) if !to.is_empty() => self.now = None,
                Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                    tell(format_args!("{}: {error}", path.display()));
                    self.now = None;
                }
                read => return read,
            }
        }
    }
}
