//! The user stack of the thread that rang a doorbell, as frames.

use std::sync::Arc;

use super::{At, named};

/// The stack at a doorbell. The submissions of the same doorbell have the same time, process and thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stack {
    /// Time of the doorbell, process and thread.
    pub at: At,
    /// The calls; equal stacks share them.
    pub calls: Arc<Calls>,
}

/// The calls that led to a doorbell.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Calls {
    /// The frames, the innermost first: that of the function that rang.
    pub frames: Vec<Frame>,
    /// The function of CUDA's interface that the program called: the outermost of `cuda...` and `cu...` on the stack.
    pub api: Option<Arc<str>>,
    /// End of the frames.
    pub end: StackEnd,
}

/// A frame of a stack.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Frame {
    /// The file that the code is mapped from; empty for code without a file.
    pub module: Arc<str>,
    /// The function, demangled, where its symbol is known.
    pub symbol: Option<Arc<str>>,
    /// Bytes from the symbol's start to the address that is executed next.
    pub offset: Option<u64>,
    /// Address that is executed next, as the file's own tables count (the address in the process where there is no file).
    pub address: u64,
    /// Source file, where the debugging information tells it.
    pub file: Option<Arc<str>>,
    /// Line in it.
    pub line: Option<u32>,
    /// True for a function of Python: `symbol` is its name there, and there is no module, offset or address.
    pub python: bool,
    /// True if the compiler has put the function into the one of the next frame: both have one frame in memory.
    pub inlined: bool,
}

named! {
    /// Place at which the frames of a stack end, and the reason.
    #[derive(Default)]
    pub enum StackEnd {
        /// At the thread's first function.
        #[default]
        Whole = "whole",
        /// At the end of the bytes that were taken of the stack (`--stack-size`).
        Cut = "cut",
        /// At a function whose caller cannot be found: its file has no unwind table for it, or it could not be read.
        NoTable = "no_table",
        /// At code that is mapped from no file, such as that of a compiler that runs in the process.
        NoFile = "no_file",
        /// At the most frames that are kept.
        Deep = "deep",
    }
}
