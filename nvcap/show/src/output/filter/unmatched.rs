//! Values that a trace has instead of those that a filter asked for: for the message at the end when nothing matched.

use std::collections::BTreeSet;

use nvcap_decode::decode::event::Event;

use super::compare::test;
use super::expression::{Node, Wanted};
use super::fields::{Field, Kind, Value, read};
use super::near::near;
use crate::output::stack;
use crate::output::style::Plain;

/// The most values of a field that are remembered.
const MOST: usize = 1 << 12;
/// The longest value that is remembered, in characters.
const LONGEST: usize = 100;
/// The most values that are named.
const NAMED: usize = 8;
/// The most comparisons that are told.
const TOLD: usize = 3;

/// The comparisons of an expression, and the values that they met.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Unmatched(Vec<Term>);

#[derive(Clone, Debug, PartialEq)]
struct Term {
    comparison: Node,
    field: Field,
    was_true: bool,
    there: There,
}

/// Values of a field.
#[derive(Clone, Debug, Default, PartialEq)]
struct There {
    words: BTreeSet<String>,
    numbers: BTreeSet<u64>,
    /// True if there are more than are remembered.
    more: bool,
    /// The least and the greatest number.
    range: Option<(u64, u64)>,
}

impl Unmatched {
    /// Takes the comparisons of an expression, but those that are negated: these ask for no value.
    pub(super) fn of(root: &Node) -> Self {
        let mut terms = Vec::new();
        add(root, &mut terms);
        Self(terms)
    }

    /// Takes an event that did not match.
    pub(super) fn take(&mut self, event: &Event<'_>, begin_ns: Option<u64>) {
        for term in self.0.iter_mut().filter(|t| !t.was_true) {
            if test(&term.comparison, event, begin_ns) {
                term.was_true = true;
                term.there = There::default();
            } else if let Some(value) = read(term.field, event, begin_ns) {
                term.there.take(&value);
            }
        }
    }

    /// The message; none if there is no comparison to speak of.
    pub(super) fn message(&self) -> Option<String> {
        let never: Vec<&Term> = self.0.iter().filter(|t| !t.was_true).collect();
        if never.is_empty() {
            let text = "each comparison was true for some event, all together for none";
            return (self.0.len() > 1).then(|| text.to_owned());
        }
        let told: Vec<String> = never.iter().take(TOLD).map(|t| t.message()).collect();
        Some(told.join("; "))
    }
}

fn add(node: &Node, terms: &mut Vec<Term>) {
    let field = match node {
        Node::And(nodes) | Node::Or(nodes) => return nodes.iter().for_each(|n| add(n, terms)),
        Node::Not(_) => return,
        Node::Is(field) | Node::Compare { field, .. } => *field,
    };
    terms.push(Term {
        comparison: node.clone(),
        field,
        was_true: false,
        there: There::default(),
    });
}

impl Term {
    fn message(&self) -> String {
        let (text, wanted) = match &self.comparison {
            Node::Compare { text, wanted, .. } => (text.as_str(), Some(wanted)),
            _ => (self.field.name(), None),
        };
        let words = self.there.named(self.field);
        let meant = match wanted {
            Some(Wanted::Words(wanted)) => wanted.first(),
            Some(Wanted::Pattern(pattern)) => Some(pattern),
            _ => None,
        };
        let meant = meant.and_then(|w| near(w, words.iter().map(String::as_str)));
        let meant = meant.map_or_else(String::new, |w| format!(" (did you mean {}?)", Plain(w)));
        let text: String = text.chars().take(LONGEST).collect();
        format!(
            "nothing matched {}{meant}; {}",
            Plain(&text),
            self.there.message(self.field, &words)
        )
    }
}

impl There {
    fn take(&mut self, value: &Value<'_>) {
        match value {
            Value::Number(n) => self.number(*n),
            Value::Word(word) | Value::Either(word, _) => self.word(word),
            Value::Words(words) => words.each().for_each(|w| self.word(w)),
            Value::Names(name, _) => self.word(&name.shown),
            Value::Frames(frames) => {
                for frame in *frames {
                    self.word(&stack::function(frame));
                }
            }
        }
    }

    fn number(&mut self, n: u64) {
        let (least, most) = self.range.unwrap_or((n, n));
        self.range = Some((least.min(n), most.max(n)));
        if self.numbers.len() < MOST {
            self.numbers.insert(n);
        } else {
            self.more |= !self.numbers.contains(&n);
        }
    }

    fn word(&mut self, word: &str) {
        if word.is_empty() || self.words.contains(word) {
            return;
        }
        let word: String = word.chars().take(LONGEST).collect();
        if self.words.len() < MOST {
            self.words.insert(word);
        } else {
            self.more |= !self.words.contains(&word);
        }
    }

    /// The values as text shows them.
    fn named(&self, field: Field) -> Vec<String> {
        let numbers = self.numbers.iter().map(|n| shown(field, *n));
        numbers.chain(self.words.iter().cloned()).collect()
    }

    fn message(&self, field: Field, words: &[String]) -> String {
        let name = field.name();
        match (self.range, words) {
            _ if field.kind() == Kind::Flag => format!("{name} is false for all events"),
            (_, []) => format!("no event has {name}"),
            (Some((least, most)), [_, _, ..]) if !is_label(field) => format!(
                "{name} is from {} to {}",
                shown(field, least),
                shown(field, most)
            ),
            (_, [one]) => format!("there is 1 {}: {}", noun(field).0, Plain(one)),
            (_, words) => {
                let more = if self.more { "more than " } else { "" };
                let among = match words.len() > NAMED {
                    true => ", among them",
                    false => "",
                };
                let named: Vec<String> = words
                    .iter()
                    .take(NAMED)
                    .map(|w| Plain(w).to_string())
                    .collect();
                format!(
                    "there are {more}{} {}{among}: {}",
                    words.len(),
                    noun(field).1,
                    named.join(", ")
                )
            }
        }
    }
}

/// A number as it is shown, and may be written in an expression.
fn shown(field: Field, n: u64) -> String {
    match field {
        Field::Since => format!("{}.{:06}s", n / 1_000_000_000, n / 1000 % 1_000_000),
        Field::Token => format!("{n:#07x}"),
        Field::Class | Field::Src | Field::Dst | Field::Address | Field::Program | Field::Qmd => {
            format!("{n:#x}")
        }
        _ if field.kind() == Kind::Time => format!("{n}ns"),
        _ => format!("{}{n}", field.prefix()),
    }
}

/// Tells whether a field's numbers are names, and not amounts.
fn is_label(field: Field) -> bool {
    matches!(
        field,
        Field::Channel
            | Field::Gpu
            | Field::Pid
            | Field::Tid
            | Field::Token
            | Field::Class
            | Field::Subchannel
            | Field::Program
    )
}

/// Returns the noun for one and for several of a field's values.
fn noun(field: Field) -> (String, String) {
    let (one, many) = match field {
        Field::Op => ("word of operations", "words of operations"),
        Field::Pid => ("process", "processes"),
        Field::Tid => ("thread", "threads"),
        Field::Thread => ("thread name", "thread names"),
        Field::Gpu => ("GPU", "GPUs"),
        Field::Class => ("class", "classes"),
        Field::Api | Field::Frame => ("function", "functions"),
        Field::Kernel
        | Field::Channel
        | Field::Token
        | Field::Engine
        | Field::Method
        | Field::User
        | Field::Container
        | Field::Pod
        | Field::Namespace
        | Field::Phase
        | Field::Program
        | Field::Mode => return (field.name().to_owned(), format!("{}s", field.name())),
        _ => {
            let name = field.name();
            return (format!("value of {name}"), format!("values of {name}"));
        }
    };
    (one.to_owned(), many.to_owned())
}
