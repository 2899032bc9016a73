//! The calls that led to a doorbell, as text and JSON.

use std::borrow::Cow;

use nvcap_decode::record::{Calls, Frame, StackEnd};

use super::json;
use super::style::{Formatter, Role};

/// The most frames of a stack that text shows.
const MOST_SHOWN: usize = 48;

/// The last part of a path.
pub(super) fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Appends the frames, one a line, as `strace -k` shows them: ` > libcuda.so.1(cuLaunchKernel+0x4a) [0x2f1b4a]`.
pub(super) fn text(f: &mut Formatter<'_>, calls: &Calls) {
    for frame in calls.frames.iter().take(MOST_SHOWN) {
        f.line("", 0, Some(Role::Dim));
        f.text(format_args!(" > {}", module(frame)));
        if let Some(symbol) = &frame.symbol {
            f.text(format_args!("({symbol}"));
            if let Some(offset) = frame.offset {
                f.text(format_args!("+{offset:#x}"));
            }
            f.text(format_args!(")"));
        }
        if frame.inlined {
            f.text(format_args!(" [inlined]"));
        } else if !frame.python {
            f.text(format_args!(" [{:#x}]", frame.address));
        }
        if let Some(file) = &frame.file {
            f.text(format_args!(" {file}"));
            if let Some(line) = frame.line {
                f.text(format_args!(":{line}"));
            }
        }
        f.end();
    }
    let more = calls.frames.len().saturating_sub(MOST_SHOWN);
    let end = match calls.end {
        _ if more > 0 => format!("{more} more (--json has them)"),
        StackEnd::Whole | StackEnd::NoFile => return,
        StackEnd::Cut => "the stack goes on (--stack-size takes more of it)".to_owned(),
        StackEnd::NoTable => "whose caller is not known: no unwind table covers it".to_owned(),
        StackEnd::Deep => "deeper than what is kept".to_owned(),
    };
    f.line("", 0, Some(Role::Dim));
    f.text(format_args!(" > ... {end}"));
    f.end();
}

fn module(frame: &Frame) -> &str {
    match file_name(&frame.module) {
        "" if frame.python => "python",
        "" => "no file",
        name => name,
    }
}

/// Appends the member that every event of a submission gets.
pub(super) fn api(out: &mut Vec<u8>, calls: &Calls) {
    if let Some(api) = &calls.api {
        json::text(out, "api", api);
    }
}

/// Appends the members that only the first event of a submission gets: `stack_end` and `stack`.
pub(super) fn members(out: &mut Vec<u8>, calls: &Calls) {
    json::text(out, "stack_end", calls.end.name());
    json::key(out, "stack");
    out.push(b'[');
    for (nth, frame) in calls.frames.iter().enumerate() {
        out.extend_from_slice(if nth == 0 { b"{" } else { b",{" });
        out.extend_from_slice(b"\"module\":");
        json::write(out, &*frame.module);
        json::optional_text(out, "symbol", frame.symbol.as_deref());
        if let Some(offset) = frame.offset {
            json::member(out, "offset", offset);
        }
        match frame.python {
            true => json::bool_member(out, "python", true),
            false => json::member(out, "address", frame.address),
        }
        if let Some(file) = &frame.file {
            json::text(out, "file", file);
        }
        if let Some(line) = frame.line {
            json::member(out, "line", u64::from(line));
        }
        if frame.inlined {
            json::bool_member(out, "inlined", true);
        }
        out.push(b'}');
    }
    out.push(b']');
}

/// Returns the name of a frame in sums over stacks: its function, in Python with file and line; the module in brackets if the function is not known.
pub(super) fn word(
    symbol: Option<&str>,
    module: &str,
    python: Option<(&str, Option<u64>)>,
) -> String {
    match (symbol, file_name(module)) {
        (Some(symbol), _) => match python {
            Some((file, Some(line))) => format!("{symbol} ({}:{line})", file_name(file)),
            Some((file, None)) => format!("{symbol} ({})", file_name(file)),
            None => symbol.to_owned(),
        },
        (None, "") => "[no file]".to_owned(),
        (None, name) => format!("[{name}]"),
    }
}

/// The function of a frame as filters compare it: without a place in the source.
pub(super) fn function(frame: &Frame) -> Cow<'_, str> {
    match &frame.symbol {
        Some(symbol) => (&**symbol).into(),
        None => word(None, &frame.module, None).into(),
    }
}

/// The name of a frame in sums over stacks ([`word`]).
pub(crate) fn word_of(frame: &Frame) -> String {
    let file = frame.file.as_deref().unwrap_or("?");
    let python = frame.python.then_some((file, frame.line.map(u64::from)));
    word(frame.symbol.as_deref(), &frame.module, python)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(end: StackEnd, frames: usize) -> Calls {
        let frame = |n: usize| Frame {
            module: "/usr/lib/libcuda.so.1".into(),
            symbol: (n > 0).then(|| "cuLaunchKernel".into()),
            offset: (n > 0).then_some(0x4a),
            address: 0x2f_1b4a,
            file: (n == 2).then(|| "a.cu".into()),
            line: (n == 2).then_some(12),
            python: false,
            inlined: n == 2,
        };
        Calls {
            frames: (0..frames).map(frame).collect(),
            api: Some("cuLaunchKernel".into()),
            end,
        }
    }

    fn shown(calls: &Calls) -> String {
        let mut out = Vec::new();
        text(&mut Formatter::new(&mut out, false), calls);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn lines_as_of_strace() {
        assert_eq!(
            shown(&calls(StackEnd::Cut, 3)),
            " > libcuda.so.1 [0x2f1b4a]\n \
             > libcuda.so.1(cuLaunchKernel+0x4a) [0x2f1b4a]\n \
             > libcuda.so.1(cuLaunchKernel+0x4a) [inlined] a.cu:12\n \
             > ... the stack goes on (--stack-size takes more of it)\n"
        );
    }

    #[test]
    fn a_deep_stack_is_cut_in_text() {
        let shown = shown(&calls(StackEnd::Whole, MOST_SHOWN + 5));
        assert_eq!(shown.lines().count(), MOST_SHOWN + 1);
        assert!(shown.ends_with(" > ... 5 more (--json has them)\n"));
    }

    #[test]
    fn members_are_json() {
        let mut out = b"{\"a\":0".to_vec();
        api(&mut out, &calls(StackEnd::NoTable, 3));
        members(&mut out, &calls(StackEnd::NoTable, 3));
        out.push(b'}');
        let value: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(value["api"], "cuLaunchKernel");
        assert_eq!(value["stack_end"], "no_table");
        let stack = value["stack"].as_array().unwrap();
        assert_eq!(stack.len(), 3);
        assert_eq!(stack[0]["symbol"], serde_json::Value::Null);
        assert_eq!(
            (&stack[1]["offset"], &stack[2]["line"]),
            (&74.into(), &12.into())
        );
    }
}
