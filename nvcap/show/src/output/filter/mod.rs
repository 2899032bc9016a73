//! Filter expressions (`-e`), which choose the events that are shown. docs/filters.md is the users' description.
//!
//! An expression is tested on each event by itself; a comparison of a field that the event does not have is
//! false (and its negation true). The ledger counts everything whatever the filter says.

mod compare;
mod expression;
mod fields;
mod near;
mod parse;
mod unmatched;
mod words;

use nvcap_decode::decode::event::{Body, Event};
use nvcap_decode::glob::like;
use nvcap_decode::record::Record;

use super::{Detail, phases::Phases};
use compare::{compare, test};
use expression::{Node, Wanted};
pub use fields::Field;
use fields::Value;
pub use parse::ParseError;
use unmatched::Unmatched;

/// A parsed expression, with what it needs to know of the trace that it is tested on.
#[derive(Clone, Debug, PartialEq)]
pub struct Filter {
    root: Node,
    /// Time of the trace's first record.
    begin_ns: Option<u64>,
    /// Values of the events that did not match, until one matches.
    unmatched: Option<Unmatched>,
}

impl Filter {
    /// Parses an expression.
    ///
    /// # Errors
    /// With the column and what would be allowed there.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        parse::parse(text).map(|root| Self {
            unmatched: Some(Unmatched::of(&root)),
            root,
            begin_ns: None,
        })
    }

    /// Takes note of a record before its events: the first one with a time is the begin of the trace, as in text.
    pub fn record(&mut self, record: &Record) {
        if self.begin_ns.is_none() {
            self.begin_ns = record.at().time();
        }
    }

    /// Tells whether the event is to be shown, as [`Filter::matches`] does. As long as none was shown, the values of the others are remembered.
    pub fn takes(&mut self, event: &Event<'_>) -> bool {
        let matches = self.matches(event);
        if matches {
            self.unmatched = None;
        } else if let Some(unmatched) = &mut self.unmatched {
            unmatched.take(event, self.begin_ns);
        }
        matches
    }

    /// Describes the comparisons that were true for no event, and the values that there are instead; none if an event was shown.
    #[must_use]
    pub fn unmatched(&self) -> Option<String> {
        self.unmatched.as_ref().and_then(Unmatched::message)
    }

    /// The detail that the decoder must give for this filter to have what it asks for.
    #[must_use]
    pub fn detail(&self) -> Detail {
        fn of(node: &Node) -> Detail {
            match node {
                Node::And(nodes) | Node::Or(nodes) => {
                    nodes.iter().map(of).max().unwrap_or_default()
                }
                Node::Not(node) => of(node),
                Node::Is(field) => field.detail(),
                Node::Compare {
                    field: Field::Type,
                    wanted: Wanted::Words(words),
                    ..
                } => words
                    .iter()
                    .map(|w| match w.as_str() {
                        "method" => Detail::Methods,
                        "entry" => Detail::Words,
                        _ => Detail::Operations,
                    })
                    .max()
                    .unwrap_or_default(),
                Node::Compare { field, .. } => field.detail(),
            }
        }
        of(&self.root)
    }

    /// Tells whether the filter asks for this field.
    #[must_use]
    pub fn asks_for(&self, field: Field) -> bool {
        let mut asks = false;
        each_field(&self.root, &mut |f, _| asks |= f == field);
        asks
    }

    /// The first field of the stack that it asks for.
    #[must_use]
    pub fn of_stack(&self) -> Option<Field> {
        let mut first = None;
        each_field(&self.root, &mut |field, _| {
            first = first.or(Some(field).filter(|f| f.is_of_stack()));
        });
        first
    }

    /// The first field of the process's identity that it asks for.
    #[must_use]
    pub fn of_identity(&self) -> Option<Field> {
        let mut first = None;
        each_field(&self.root, &mut |field, _| {
            first = first.or(Some(field).filter(|f| f.is_of_identity()));
        });
        first
    }

    /// The first field of the GPU's times that it asks for.
    #[must_use]
    pub fn of_gpu_time(&self) -> Option<Field> {
        let mut first = None;
        each_field(&self.root, &mut |field, _| {
            first = first.or(Some(field).filter(|f| f.is_of_gpu_time()));
        });
        first
    }

    /// Tells whether the expression may select some events of a submission and not others, by their kind or content. Otherwise it
    /// selects whole submissions, by fields such as process, channel, phase and time.
    #[must_use]
    pub fn asks_for_kind(&self) -> bool {
        let mut asks = false;
        each_field(&self.root, &mut |field, _| asks |= !field.is_place());
        asks
    }

    /// The first name or pattern of a phase that it compares with and that none of these phases has.
    #[must_use]
    pub fn unknown_phase(&self, phases: &Phases) -> Option<&str> {
        let known = |name: &str| phases.names().any(|p| fields::same_word(name, p));
        let fits = |pattern: &str| {
            phases
                .names()
                .any(|p| like(pattern.as_bytes(), p.as_bytes()))
        };
        let mut unknown = None;
        each_field(&self.root, &mut |field, wanted| {
            let missing = match (field, wanted) {
                (Field::Phase, Some(Wanted::Words(names))) => {
                    names.iter().find(|n| !known(n.as_str()))
                }
                (Field::Phase, Some(Wanted::Pattern(pattern))) => {
                    Some(pattern).filter(|p| !fits(p.as_str()))
                }
                _ => None,
            };
            unknown = unknown.or(missing.map(String::as_str));
        });
        unknown
    }

    /// Tells whether the filter may let events of this `type` through. Events of other types need not be decoded.
    #[must_use]
    pub fn may_match(&self, kind: &str) -> bool {
        can(&self.root, kind).0
    }

    /// Tells whether the event is to be shown. Two kinds are shown whatever the expression says: the stop of decoding, which is a loss; and the
    /// assumption of a chip, on which all that is shown depends.
    #[must_use]
    pub fn matches(&self, event: &Event<'_>) -> bool {
        match &event.body {
            Body::Stop(_) => true,
            Body::Chip(chip) if chip.by.is_assumed() => true,
            _ => test(&self.root, event, self.begin_ns),
        }
    }
}

/// Calls `visit` with each field of the expression and what it is compared with, in order.
fn each_field<'a>(node: &'a Node, visit: &mut impl FnMut(Field, Option<&'a Wanted>)) {
    match node {
        Node::And(nodes) | Node::Or(nodes) => {
            for node in nodes {
                each_field(node, visit);
            }
        }
        Node::Not(node) => each_field(node, visit),
        Node::Is(field) => visit(*field, None),
        Node::Compare { field, wanted, .. } => visit(*field, Some(wanted)),
    }
}

/// Tells whether the expression can be true, and whether it can be false, for events of this type.
fn can(node: &Node, kind: &str) -> (bool, bool) {
    let each =
        |nodes: &[Node]| -> Vec<(bool, bool)> { nodes.iter().map(|n| can(n, kind)).collect() };
    match node {
        Node::And(nodes) => {
            let each = each(nodes);
            (each.iter().all(|n| n.0), each.iter().any(|n| n.1))
        }
        Node::Or(nodes) => {
            let each = each(nodes);
            (each.iter().any(|n| n.0), each.iter().all(|n| n.1))
        }
        Node::Not(node) => {
            let (is, is_not) = can(node, kind);
            (is_not, is)
        }
        Node::Compare {
            field: Field::Type,
            op,
            wanted,
            ..
        } => {
            let is = compare(&Value::Word(kind.into()), *op, wanted);
            (is, !is)
        }
        Node::Is(_) | Node::Compare { .. } => (true, true),
    }
}

#[cfg(test)]
mod tests {
    use super::{Field, Filter};
    use crate::output::phases::Phases;

    #[test]
    fn phases_that_are_not_there_are_found() {
        let phases = Phases::parse("PHASE warm_up 1 2\nPHASE vadd 3 4\n").unwrap();
        for (text, unknown) in [
            ("phase=vadd", None),
            ("phase=VADD,warm_up", None),
            ("phase~warm*", None),
            ("op=launch && !(phase=vadd || phase!=vad)", Some("vad")),
            ("phase=vadd,cold", Some("cold")),
            ("phase~cold*", Some("cold*")),
            ("phase~warm", None),
            ("phase~arm?up", Some("arm?up")),
            ("phase~add", None),
            ("thread=cold", None),
        ] {
            let filter = Filter::parse(text).unwrap();
            assert_eq!(filter.unknown_phase(&phases), unknown, "{text}");
            assert_eq!(
                filter.asks_for(Field::Phase),
                text.contains("phase"),
                "{text}"
            );
        }
    }

    #[test]
    fn each_way_that_a_submission_is_seen_can_be_asked_for() {
        for how in nvcap_decode::record::How::NAMES {
            let text = format!("how={how}");
            assert!(Filter::parse(&text).is_ok(), "{text}");
        }
        assert!(Filter::parse("how=guessed").is_err());
    }

    #[test]
    fn a_filter_by_place_asks_for_no_kind() {
        for (text, asks) in [
            ("pid=7 && !(channel=3 || token=0x10012)", false),
            ("gpu=1 && engine=copy && thread~py* && tid!=9", false),
            ("phase=vadd && time_ns>5 && late && how=trapped", false),
            ("op=launch", true),
            ("channel=3 && bytes>1M", true),
            ("serial=7", true),
            ("channel=3 && !(op=launch)", true),
        ] {
            let filter = Filter::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(filter.asks_for_kind(), asks, "{text}");
        }
    }

    #[test]
    fn what_a_filter_never_shows_is_known() {
        for (text, method, operation, entry) in [
            ("type=submission,entry", false, false, true),
            ("type!=method", false, true, true),
            ("!(type=method)", false, true, true),
            ("type=method && class=0xcbc0", true, false, false),
            ("type=entry || pid=7", true, true, true),
            ("type=entry && pid=7", false, false, true),
            ("!(type=entry && pid=7)", true, true, true),
            ("type~\"*o*\"", true, true, false),
            ("bytes>100", true, true, true),
        ] {
            let filter = Filter::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
            let may = ["method", "operation", "entry"].map(|kind| filter.may_match(kind));
            assert_eq!(may, [method, operation, entry], "{text}");
        }
    }
}
