//! Threads' stacks as text.

use std::fmt::Write as _;

use crate::output::plural::plural_of;
use crate::output::style::{Formatter, Plain, Role};
use nvcap_decode::hang::{NativeFrame, PythonFrame, Thread};
use nvcap_decode::record::StackEnd;

/// Number of frames of a stack that are shown where not all are asked for.
const FRAMES: usize = 12;

/// Returns a Python frame as text: `step (train.py:12)`.
pub(super) fn python_frame(frame: &PythonFrame) -> String {
    let at = frame.line.map(|line| format!(":{line}"));
    format!(
        "{} ({}{})",
        Plain(&frame.function),
        Plain(&frame.file),
        at.unwrap_or_default()
    )
}

/// Returns a native frame as text: `cuLaunchKernel+0x4a (libcuda.so.1)`, with the source line where it is known.
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

/// Fewest frames in a row, of one file and without a function's name, that become one line.
const NAMELESS: usize = 3;

/// A line, and the number of frames that it stands for.
type Frames = (String, usize);

/// Returns the frames, a line each; with `full` also those whose functions have no names.
fn native_frames(frames: &[NativeFrame], full: bool) -> Vec<Frames> {
    let alike = |a: &NativeFrame, b: &NativeFrame| {
        let nameless = |frame: &NativeFrame| frame.function.is_none() && frame.file.is_none();
        nameless(a) && nameless(b) && a.module == b.module && !a.module.is_empty()
    };
    let runs = frames.chunk_by(alike);
    let lines = runs.flat_map(|run| match run {
        [first, ..] if run.len() >= NAMELESS && !full => {
            let module = first.module.rsplit('/').next().unwrap_or_default();
            let line = format!("({} frames in {})", run.len(), Plain(module));
            vec![(line, run.len())]
        }
        run => run.iter().map(|frame| (native_frame(frame), 1)).collect(),
    });
    lines.collect()
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
        frames_of(
            f,
            "native",
            None,
            native_frames(&stack.frames, full),
            end,
            full,
        );
    }
    if let Some(stack) = &thread.python {
        let newer = "(newer frames are missing: it ran while it was read)";
        let older = "(older frames could not be read)";
        let frames = stack.frames.iter().map(|frame| (python_frame(frame), 1));
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
    frames: Vec<Frames>,
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
    for (frame, _) in frames.iter().take(shown) {
        line(frame, None);
    }
    let more: usize = frames.iter().skip(shown).map(|(_, count)| count).sum();
    if more > 0 {
        let older = plural_of(more as u64, "older frame", "older frames");
        line(&format!("({older}: --full-stacks)"), Some(Role::Dim));
    } else if let Some(behind) = behind {
        line(behind, Some(Role::Dim));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(function: Option<&str>, module: &str) -> NativeFrame {
        NativeFrame {
            address: 0x10,
            module: module.into(),
            offset: function.map(|_| 1),
            function: function.map(Into::into),
            file: None,
            line: None,
        }
    }

    #[test]
    fn nameless_frames_of_a_file_are_one_line() {
        let cuda = "/lib/libcuda.so.1";
        let frames = [
            frame(None, cuda),
            frame(None, cuda),
            frame(None, cuda),
            frame(Some("cuLaunchKernel"), cuda),
            frame(None, cuda),
            frame(None, cuda),
            frame(None, ""),
            frame(None, ""),
            frame(None, ""),
        ];
        let lines = native_frames(&frames, false);
        let counts: Vec<usize> = lines.iter().map(|(_, count)| *count).collect();
        assert_eq!(counts, [3, 1, 1, 1, 1, 1, 1]);
        assert_eq!(lines[0].0, "(3 frames in libcuda.so.1)");
        assert_eq!(lines[1].0, "cuLaunchKernel+0x1 (libcuda.so.1)");
        assert_eq!(native_frames(&frames, true).len(), frames.len());
    }
}
