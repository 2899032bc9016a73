//! Merge of Python frames into a stack, in the place of the frames of the interpreter that runs them.
//!
//! Each call of the interpreter (`_PyEval_EvalFrameDefault`) runs a number of Python functions, which call each other without a C frame.
//! The calls of the interpreter on the C stack have the same order as these runs of Python frames.

use std::sync::Arc;

use nvcap_common::{PYTHON_ENTRY, PythonFrame};

use nvcap_decode::record::{Frame, StackEnd};

/// Cuts Python frames, newest first, into runs: one for each call of the interpreter. In 3.10 (`each`) every function has its own call of
/// the interpreter.
pub(super) fn runs(frames: &[PythonFrame], each: bool) -> Vec<Vec<PythonFrame>> {
    let mut runs = vec![Vec::new()];
    for frame in frames {
        let (code, entry) = (frame.code & !PYTHON_ENTRY, frame.code & PYTHON_ENTRY != 0);
        if code != 0
            && let Some(run) = runs.last_mut()
        {
            run.push(PythonFrame { code, ..*frame });
        }
        if code == 0 || entry || each {
            runs.push(Vec::new());
        }
    }
    runs.retain(|run| !run.is_empty());
    runs
}

/// Tells whether a frame is a call of the interpreter. Compilers split functions, and append suffixes to the names of the
/// parts.
fn is_interpreter(frame: &Frame) -> bool {
    let symbol = frame.symbol.as_deref().unwrap_or("");
    !frame.inlined && symbol.starts_with("_PyEval_EvalFrameDefault")
}

/// Puts the runs of Python frames, newest first, in the place of the interpreter's calls. The interpreter's other frames, which say nothing
/// about the program, are left out. A run whose call is not on the C stack is put behind the oldest call that is; if the C stack was not
/// found to its end, the run is put behind the whole stack.
pub(super) fn merged(native: Vec<Frame>, runs: Vec<Vec<Frame>>, end: StackEnd) -> Vec<Frame> {
    if runs.is_empty() {
        return native;
    }
    let mut calls = native.iter().filter(|f| is_interpreter(f)).count();
    let interpreter = native.iter().find(|f| is_interpreter(f));
    let library = interpreter.map(|f| Arc::clone(&f.module));
    let mut runs = runs.into_iter();
    let mut merged = Vec::new();
    for frame in native {
        if is_interpreter(&frame) {
            calls -= 1;
            match runs.next() {
                Some(run) => merged.extend(run),
                None => merged.push(frame),
            }
            if calls == 0 && end == StackEnd::Whole {
                merged.extend(runs.by_ref().flatten());
            }
        } else if library.as_ref() != Some(&frame.module) {
            merged.push(frame);
        }
    }
    merged.extend(runs.flatten());
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(module: &str, symbol: &str) -> Frame {
        Frame {
            module: module.into(),
            symbol: Some(symbol.into()),
            ..Frame::default()
        }
    }

    fn python(name: &str) -> Frame {
        Frame {
            python: true,
            ..frame("", name)
        }
    }

    fn words(frames: &[Frame]) -> Vec<&str> {
        frames.iter().filter_map(|f| f.symbol.as_deref()).collect()
    }

    fn native() -> Vec<Frame> {
        vec![
            frame("libcuda.so", "cuLaunchKernel"),
            frame("torch.so", "relu"),
            frame("libpython.so", "cfunction_call"),
            frame("libpython.so", "_PyEval_EvalFrameDefault"),
            frame("libpython.so", "_PyEval_Vector"),
            frame("torch.so", "apply"),
            frame("libpython.so", "_PyEval_EvalFrameDefault.cold"),
            frame("libpython.so", "Py_RunMain"),
            frame("python3", "main"),
        ]
    }

    #[test]
    fn runs_take_the_interpreter_s_place() {
        let runs = vec![
            vec![python("step"), python("train")],
            vec![python("module")],
        ];
        assert_eq!(
            words(&merged(native(), runs, StackEnd::Whole)),
            [
                "cuLaunchKernel",
                "relu",
                "step",
                "train",
                "apply",
                "module",
                "main"
            ]
        );
    }

    #[test]
    fn runs_that_have_no_place_come_last() {
        let runs = || vec![vec![python("a")], vec![python("b")], vec![python("c")]];
        assert_eq!(
            words(&merged(native(), runs(), StackEnd::Whole)),
            ["cuLaunchKernel", "relu", "a", "apply", "b", "c", "main"]
        );
        let cut = native()[..2].to_vec();
        assert_eq!(
            words(&merged(cut, runs(), StackEnd::NoTable)),
            ["cuLaunchKernel", "relu", "a", "b", "c"]
        );
        assert_eq!(merged(native(), Vec::new(), StackEnd::Whole), native());
    }

    #[test]
    fn a_call_without_a_run_stays() {
        let shown = merged(native(), vec![vec![python("a")]], StackEnd::Whole);
        assert_eq!(
            words(&shown)[2..],
            ["a", "apply", "_PyEval_EvalFrameDefault.cold", "main"]
        );
    }

    #[test]
    fn where_runs_end() {
        let code = |code| PythonFrame {
            code,
            instruction: 0,
        };
        let lengths = |frames: &[PythonFrame], each| {
            runs(frames, each).iter().map(Vec::len).collect::<Vec<_>>()
        };
        // 3.12: the interpreter's own frames are in between.
        assert_eq!(
            lengths(&[code(8), code(16), code(0), code(8), code(0)], false),
            [2, 1]
        );
        // 3.11: the first frame of a call is marked.
        let marked = [code(8), code(16 | PYTHON_ENTRY), code(8 | PYTHON_ENTRY)];
        assert_eq!(lengths(&marked, false), [2, 1]);
        assert_eq!(runs(&marked, false)[1], [code(8)]);
        // 3.10: one call each.
        assert_eq!(lengths(&[code(8), code(16)], true), [1, 1]);
        assert_eq!(lengths(&[], true), [0; 0]);
    }
}
