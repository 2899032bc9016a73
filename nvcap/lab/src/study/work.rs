//! The program that calls CUDA: its command, and its report.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;
use serde::de::DeserializeOwned;

use nvcap_decode::ledger::{STATUS_LOST, STATUS_NOT_UNDERSTOOD};

/// The program files, written beside their results.
pub const PROGRAMS: [(&str, &str); 2] = [
    ("work.py", include_str!("work.py")),
    ("sharing.py", include_str!("sharing.py")),
];

/// Kind of work that the program has CUDA do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Copies.
    Dma,
    /// Graphs.
    Graph,
    /// Streams and processes.
    Sharing,
}

impl What {
    /// Returns the name of the kind: the argument of the program, and a part of its files' names.
    pub fn name(self) -> &'static str {
        match self {
            Self::Dma => "dma",
            Self::Graph => "graph",
            Self::Sharing => "sharing",
        }
    }

    fn program(self) -> &'static str {
        match self {
            Self::Dma | Self::Graph => "work.py",
            Self::Sharing => "sharing.py",
        }
    }
}

/// Task of the program.
#[derive(Clone, Debug)]
pub struct Work {
    /// Kind of work.
    pub what: What,
    /// The GPU's minor number.
    pub gpu: u32,
    /// Number of times that each thing is done.
    pub runs: u32,
    /// Sizes in bytes, or numbers of nodes or streams.
    pub numbers: Vec<u64>,
    /// The Python that runs the program.
    pub python: String,
    /// Folder of the program and of all files that it writes.
    pub folder: PathBuf,
}

/// Times that the program reports.
#[derive(Clone, Debug, Deserialize)]
pub struct Said<Row> {
    /// CUDA's version in the form of `cuDriverGetVersion`: 13000 for 13.0.
    pub cuda: u32,
    /// Cost of a call that does nothing, ns.
    pub empty_call_ns: f64,
    /// Rows by kind and size, or by shape and number of nodes.
    pub rows: Vec<Row>,
}

/// Reason why the program has not run.
#[derive(Debug)]
pub struct Failed(pub String);

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failed {}

impl Work {
    /// Path of a file in the folder, such as `dma.phases`.
    pub fn file(&self, ending: &str) -> PathBuf {
        self.folder.join(format!("{}.{ending}", self.what.name()))
    }

    /// Makes the command. `name` becomes a part of the names of its files.
    fn command(&self, name: &str) -> Vec<std::ffi::OsString> {
        let numbers: Vec<String> = self.numbers.iter().map(u64::to_string).collect();
        vec![
            self.python.clone().into(),
            self.folder.join(self.what.program()).into(),
            self.what.name().into(),
            self.gpu.to_string().into(),
            self.runs.to_string().into(),
            numbers.join(",").into(),
            self.file(&format!("{name}.json")).into(),
            self.file(&format!("{name}.phases")).into(),
        ]
    }

    /// Runs the program undisturbed, and returns the times that it reports.
    ///
    /// # Errors
    /// When the program cannot run, or fails.
    pub fn alone<Said: DeserializeOwned>(&self) -> Result<Said, Failed> {
        run(&self.command("alone"), &self.python)?;
        self.said("alone")
    }

    /// Reads the program's report of the run of this name.
    ///
    /// # Errors
    /// When the report cannot be read.
    pub fn said<Said: DeserializeOwned>(&self, name: &str) -> Result<Said, Failed> {
        let file = self.file(&format!("{name}.json"));
        let text = std::fs::read_to_string(&file);
        let text = text.map_err(|e| Failed(format!("{}: {e}", file.display())))?;
        serde_json::from_str(&text).map_err(|e| Failed(format!("{}: {e}", file.display())))
    }

    /// Runs the program in a trace by this nvcap. Returns the paths of the recording and of the phases.
    ///
    /// # Errors
    /// When the program cannot run, or fails. An incomplete trace is no error: its recording shows it.
    pub fn traced(&self, nvcap: &Path) -> Result<(PathBuf, PathBuf), Failed> {
        let recording = self.file("pcapng");
        let mut command = vec![
            nvcap.into(),
            "record".into(),
            "-q".into(),
            "-o".into(),
            recording.clone().into(),
            "--".into(),
        ];
        command.extend(self.command("traced"));
        run(&command, &nvcap.display().to_string())?;
        Ok((recording, self.file("traced.phases")))
    }
}

/// Tells whether a trace that ends with this status has a recording. With this status something is missing, or
/// was not understood.
fn is_of_ledger(status: i32) -> bool {
    [STATUS_LOST, STATUS_NOT_UNDERSTOOD]
        .map(i32::from)
        .contains(&status)
}

fn run(command: &[std::ffi::OsString], name: &str) -> Result<(), Failed> {
    let [program, args @ ..] = command else {
        return Ok(());
    };
    // What it prints is no part of the tables.
    let status = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status();
    let words: Vec<_> = command.iter().map(|w| w.to_string_lossy()).collect();
    let line = words.join(" ");
    match status {
        Ok(status) if status.success() || status.code().is_some_and(is_of_ledger) => Ok(()),
        Ok(status) => Err(Failed(format!(
            "{line}\nended with {status}; what it said is above"
        ))),
        Err(e) => Err(Failed(format!(
            "{name} cannot be run: {e}; --python names another Python 3"
        ))),
    }
}
