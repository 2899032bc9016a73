//! The stacks of a thread, as plain data for the outputs.

/// A frame of a Python function.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct PythonFrame {
    /// The function: its qualified name (`Trainer.step`), its own name in CPython 3.10.
    pub function: String,
    /// The file, as the program was compiled from it.
    pub file: String,
    /// The line; `None` where the code has none.
    pub line: Option<u32>,
}

impl PythonFrame {
    /// Makes one.
    #[must_use]
    pub fn new(function: String, file: String, line: Option<u32>) -> Self {
        Self {
            function,
            file,
            line,
        }
    }

    /// Whether the file is one of Python's own or of an installed package, by its folder.
    #[must_use]
    pub fn is_of_a_library(&self) -> bool {
        let folders = ["/site-packages/", "/dist-packages/", "/lib/python3."];
        self.file.starts_with("<frozen") || folders.iter().any(|folder| self.file.contains(folder))
    }
}

/// The Python frames of a thread, the newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct PythonStack {
    /// The frames.
    pub frames: Vec<PythonFrame>,
    /// Newer frames are missing: the thread ran while it was read.
    pub newest_missing: bool,
    /// Older frames are missing: they could not be read, or there were more than are read.
    pub oldest_missing: bool,
}

impl PythonStack {
    /// Makes one.
    #[must_use]
    pub fn new(frames: Vec<PythonFrame>, newest_missing: bool, oldest_missing: bool) -> Self {
        Self {
            frames,
            newest_missing,
            oldest_missing,
        }
    }

    /// The frame that tells most of where the program is: the newest that is not a library's, else the newest.
    #[must_use]
    pub fn main_frame(&self) -> Option<&PythonFrame> {
        let own = self.frames.iter().find(|f| !f.is_of_a_library());
        own.or(self.frames.first())
    }
}
