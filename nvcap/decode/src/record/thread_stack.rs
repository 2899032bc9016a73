//! Stacks of a thread, as plain data for the outputs.

use super::{Calls, Frame, StackEnd};

/// A frame of a function in the program or in a library.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct NativeFrame {
    /// File from which the code is mapped; empty for code without a file.
    pub module: String,
    /// Function, if its symbol is known.
    pub function: Option<String>,
    /// Distance from the symbol's start to the address that is executed next, bytes.
    pub offset: Option<u64>,
    /// Address that is executed next, in the file's own tables (in the process, if there is no file).
    pub address: u64,
    /// Source file, if debugging information names it.
    pub file: Option<String>,
    /// Line in the source file.
    pub line: Option<u32>,
}

/// The frames of a thread, the innermost first.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct NativeStack {
    /// The frames.
    pub frames: Vec<NativeFrame>,
    /// End of the frames.
    pub end: StackEnd,
}

impl From<&Calls> for NativeStack {
    fn from(calls: &Calls) -> Self {
        let text = |t: &std::sync::Arc<str>| t.as_ref().to_owned();
        let frame = |f: &Frame| NativeFrame {
            module: text(&f.module),
            function: f.symbol.as_ref().map(text),
            offset: f.offset,
            address: f.address,
            file: f.file.as_ref().map(text),
            line: f.line,
        };
        Self {
            frames: calls.frames.iter().map(frame).collect(),
            end: calls.end,
        }
    }
}

/// A frame of a Python function.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct PythonFrame {
    /// Function: its qualified name (`Trainer.step`), or its plain name in CPython 3.10.
    pub function: String,
    /// Source file, under the name with which the code was compiled.
    pub file: String,
    /// Line; `None` if the code has none.
    pub line: Option<u32>,
}

impl PythonFrame {
    /// Makes a frame.
    #[must_use]
    pub fn new(function: String, file: String, line: Option<u32>) -> Self {
        Self {
            function,
            file,
            line,
        }
    }

    /// Tells whether the file belongs to Python itself or to an installed package, by its folder.
    #[must_use]
    pub fn is_of_a_library(&self) -> bool {
        let folders = ["/site-packages/", "/dist-packages/", "/lib/python3."];
        self.file.starts_with("<frozen") || folders.iter().any(|folder| self.file.contains(folder))
    }
}

/// The Python frames of a thread, the newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct PythonStack {
    /// The frames.
    pub frames: Vec<PythonFrame>,
    /// True if newer frames are missing: the thread ran while it was read.
    pub newest_missing: bool,
    /// True if older frames are missing: they could not be read, or there were more than the limit.
    pub oldest_missing: bool,
}

impl PythonStack {
    /// Makes a stack.
    #[must_use]
    pub fn new(frames: Vec<PythonFrame>, newest_missing: bool, oldest_missing: bool) -> Self {
        Self {
            frames,
            newest_missing,
            oldest_missing,
        }
    }

    /// Returns the frame that best shows where the program is: the newest frame that is not a library's, else the newest.
    #[must_use]
    pub fn main_frame(&self) -> Option<&PythonFrame> {
        let own = self.frames.iter().find(|f| !f.is_of_a_library());
        own.or(self.frames.first())
    }
}
