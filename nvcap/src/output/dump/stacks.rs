//! Threads' stacks as text.

use crate::hang::{PythonFrame, Thread};
use crate::output::plural::plural_of;
use crate::output::style::{Formatter, Plain, Role};

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

/// The stacks of a thread, below its line.
pub(super) fn of_thread(f: &mut Formatter<'_>, thread: &Thread, full: bool) {
    let Some(stack) = &thread.python else { return };
    let mut prefix = "          python  ";
    let mut line = |text: std::fmt::Arguments<'_>, role: Option<Role>| {
        f.line(prefix, 0, role);
        f.text(text);
        f.end();
        prefix = "                  ";
    };
    if stack.newest_missing {
        line(
            format_args!("(newer frames are missing: it ran while it was read)"),
            Some(Role::Dim),
        );
    }
    let shown = if full { usize::MAX } else { FRAMES };
    for frame in stack.frames.iter().take(shown) {
        line(format_args!("{}", python_frame(frame)), None);
    }
    let more = stack.frames.len().saturating_sub(shown) as u64;
    if more > 0 {
        let older = plural_of(more, "older frame", "older frames");
        line(format_args!("({older}: --full-stacks)"), Some(Role::Dim));
    } else if stack.oldest_missing {
        line(
            format_args!("(older frames could not be read)"),
            Some(Role::Dim),
        );
    }
}
