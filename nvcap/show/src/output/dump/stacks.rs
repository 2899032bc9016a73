//! Threads' stacks as text.

use std::fmt::Write as _;

use crate::output::plural::plural_of;
use crate::output::style::{Formatter, Plain, Role};
use nvcap_decode::hang::{NativeFrame, PythonFrame, Thread};
use nvcap_decode::record::StackEnd;

/// Frames of a stack that are shown where not all are asked for.
const FRAMES: usize = 12;

/// `step (train.py:12)`.
pub(super) fn python_frame(frame: &PythonFrame) -> String {
    let at = frame.line.map(|line| format!(":{line}"));
    format!(
        "{} ({}{})",
        Plain(&frame.function),
        Plain(&frame.file),
        at.unwrap_or_default()
    )
}

/// `cuLaunchKernel+0x4a (libcuda.so.1)`, with the source line where it is known.
fn native_frame(frame: &NativeFrame) -> String {
    let module = frame.module.rsplit('/').next().filter(|m| !m.is_empty());
    let module = module.unwrap_or("no file");
    let mut text = match (&frame.function, frame.offset) {
        (Some(function), Some(offset)) => format!("{}+{offset:#x}", Plain(function)),
        (Some(function), None) => Plain(function).to_string(),
        (None, _) => format!("{:#x}", frame.address),
    };
    let _ = write!(text, " ({})", Plain(module));
    if let Some(file) = &frame.file {
        let _ = write!(text, " {}", Plain(file));
        if let Some(line) = frame.line {
            let _ = write!(text, ":{line}");
        }
    }
    text
}

/// The stacks of a thread, below its line.
pub(super) fn of_thread(f: &mut Formatter<'_>, thread: &Thread, full: bool) {
    if let Some(stack) = &thread.native {
        let end = match stack.end {
            StackEnd::Whole | StackEnd::NoFile => None,
            StackEnd::Cut => Some("(the stack goes on behind what was read)"),
            StackEnd::NoTable => Some("(its caller is not known)"),
            StackEnd::Deep => Some("(and deeper)"),
        };
        let frames = stack.frames.iter().map(native_frame);
        frames_of(f, "native", None, frames.collect(), end, full);
    }
    if let Some(stack) = &thread.python {
        let newer = "(newer frames are missing: it ran while it was read)";
        let older = "(older frames could not be read)";
        let frames = stack.frames.iter().map(python_frame);
        frames_of(
            f,
            "python",
            stack.newest_missing.then_some(newer),
            frames.collect(),
            stack.oldest_missing.then_some(older),
            full,
        );
    }
}

/// A stack's frames, one a line; `word` is put before the first line. `before` and `behind` are remarks above and below the frames.
fn frames_of(
    f: &mut Formatter<'_>,
    word: &str,
    before: Option<&str>,
    frames: Vec<String>,
    behind: Option<&str>,
    full: bool,
) {
    let mut word = Some(word);
    let mut line = |text: &str, role: Option<Role>| {
        let prefix = format!("          {:<6}  ", word.take().unwrap_or_default());
        f.line(&prefix, 0, role);
        f.text(format_args!("{text}"));
        f.end();
    };
    if let Some(before) = before {
        line(before, Some(Role::Dim));
    }
    let shown = if full { usize::MAX } else { FRAMES };
    for frame in frames.iter().take(shown) {
        line(frame, None);
    }
    let more = frames.len().saturating_sub(shown) as u64;
    if more > 0 {
        let older = plural_of(more, "older frame", "older frames");
        line(&format!("({older}: --full-stacks)"), Some(Role::Dim));
    } else if let Some(behind) = behind {
        line(behind, Some(Role::Dim));
    }
}
