//! The user stack of the thread that rang a doorbell, as frames.

use std::sync::Arc;

use super::{At, named};

/// The stack at a doorbell. The submissions of that doorbell have the same time, process and thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stack {
    /// Time of the doorbell, process and thread.
    pub at: At,
    /// Calls; equal stacks share them.
    pub calls: Arc<Calls>,
}

/// The calls that led to a doorbell.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Calls {
    /// Frames, the innermost first: that of the function that rang.
    pub frames: Vec<Frame>,
    /// Function of CUDA's interface that the program called: the outermost `cuda...` or `cu...` function on the stack.
    pub api: Option<Arc<str>>,
    /// End of the frames.
    pub end: StackEnd,
}

/// A frame of a stack.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Frame {
    /// File from which the code is mapped; empty for code without a file.
    pub module: Arc<str>,
    /// Demangled name of the function, if its symbol is known.
    pub symbol: Option<Arc<str>>,
    /// Distance from the symbol's start to the address that is executed next, bytes.
    pub offset: Option<u64>,
    /// Address that is executed next, in the file's own tables (in the process, if there is no file).
    pub address: u64,
    /// Source file, if the debugging information names it.
    pub file: Option<Arc<str>>,
    /// Line in the source file.
    pub line: Option<u32>,
    /// True for a function of Python. `symbol` is then its name, and there is no module, offset or address.
    pub python: bool,
    /// True if the compiler has inlined the function into that of the next frame: both have one frame in memory.
    pub inlined: bool,
}

named! {
    /// Place at which the frames of a stack end, and the reason.
    #[derive(Default)]
    pub enum StackEnd {
        /// At the thread's first function.
        #[default]
        Whole = "whole",
        /// At the end of the stack bytes that were taken (`--stack-size`).
        Cut = "cut",
        /// At a function whose caller cannot be found: its file has no unwind table for it, or the file could not be read.
        NoTable = "no_table",
        /// At code that is mapped from no file, such as the output of a compiler that runs in the process.
        NoFile = "no_file",
        /// At the limit of frames that are kept.
        Deep = "deep",
    }
}
