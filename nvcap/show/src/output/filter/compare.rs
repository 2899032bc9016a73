//! Comparison of an event's fields with an expression.

use nvcap_decode::decode::event::Event;
use nvcap_decode::glob::like;
use nvcap_decode::record::Frame;

use super::expression::{Compare, Node, Wanted};
use super::fields::{self, Value, read};
use crate::output::stack;

/// Tells whether the expression is true for the event. `begin_ns`: the time of the trace's first record.
pub(super) fn test(node: &Node, event: &Event<'_>, begin_ns: Option<u64>) -> bool {
    match node {
        Node::And(nodes) => nodes.iter().all(|n| test(n, event, begin_ns)),
        Node::Or(nodes) => nodes.iter().any(|n| test(n, event, begin_ns)),
        Node::Not(node) => !test(node, event, begin_ns),
        Node::Is(field) => match read(*field, event, begin_ns) {
            Some(Value::Number(n)) => n != 0,
            Some(Value::Word(w)) => !w.is_empty(),
            Some(Value::Words(_) | Value::Names(..) | Value::Either(..)) => true,
            Some(Value::Frames(frames)) => !frames.is_empty(),
            None => false,
        },
        Node::Compare {
            field, op, wanted, ..
        } => match read(*field, event, begin_ns) {
            Some(value) => compare(&value, *op, wanted),
            None => false,
        },
    }
}

pub(super) fn compare(value: &Value<'_>, op: Compare, wanted: &Wanted) -> bool {
    match (value, wanted) {
        (Value::Number(n) | Value::Either(_, n), Wanted::Numbers(wanted)) => {
            let first = wanted.first().copied().unwrap_or(0);
            match op {
                Compare::Equal => wanted.contains(n),
                Compare::NotEqual => !wanted.contains(n),
                Compare::Less => *n < first,
                Compare::LessEqual => *n <= first,
                Compare::Greater => *n > first,
                Compare::GreaterEqual => *n >= first,
                Compare::Like | Compare::NotLike => false,
            }
        }
        // The comparison holds if one of the name's forms fits: full, short, mangled, or one that a trace may show.
        (Value::Names(name, mangled), wanted) => {
            let is = |op| {
                let forms = [&name.full, &name.short, &name.shown].into_iter();
                let mut forms = forms
                    .chain(&name.forms)
                    .map(String::as_str)
                    .chain([&**mangled]);
                forms.any(|form| compare(&Value::Word(form.into()), op, wanted))
            };
            match op {
                Compare::NotEqual => !is(Compare::Equal),
                Compare::NotLike => !is(Compare::Like),
                op => is(op),
            }
        }
        // The comparison holds if one word of the operation fits.
        (Value::Words(words), wanted) => {
            let is = |op| {
                words
                    .each()
                    .any(|w| compare(&Value::Word(w.into()), op, wanted))
            };
            match op {
                Compare::NotEqual => !is(Compare::Equal),
                Compare::NotLike => !is(Compare::Like),
                op => is(op),
            }
        }
        // The comparison holds if one frame fits. A frame is compared by its function name as folded stacks show it.
        (Value::Frames(frames), wanted) => {
            let is = |frame: &Frame| {
                let word = stack::function(frame);
                match wanted {
                    Wanted::Words(words) => words.iter().any(|w| *w == word),
                    Wanted::Pattern(pattern) => like(pattern.as_bytes(), word.as_bytes()),
                    Wanted::Numbers(_) => false,
                }
            };
            let any = frames.iter().any(is);
            match op {
                Compare::NotEqual | Compare::NotLike => !any,
                _ => any,
            }
        }
        (Value::Word(w) | Value::Either(w, _), Wanted::Words(wanted)) => {
            let among = wanted.iter().any(|want| fields::same_word(want, w));
            match op {
                Compare::Equal => among,
                Compare::NotEqual => !among,
                _ => false,
            }
        }
        (Value::Word(w) | Value::Either(w, _), Wanted::Pattern(pattern)) => {
            (op == Compare::Like) == like(pattern.as_bytes(), w.as_bytes())
        }
        (Value::Number(n), Wanted::Pattern(pattern)) => {
            (op == Compare::Like) == like(pattern.as_bytes(), format!("{n:#x}").as_bytes())
        }
        (Value::Number(_), Wanted::Words(_)) | (Value::Word(_), Wanted::Numbers(_)) => false,
    }
}
