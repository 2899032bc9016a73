//! A parsed expression, as a tree.

use super::fields::Field;

/// An expression: what it asks of an event.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Node {
    And(Vec<Node>),
    Or(Vec<Node>),
    Not(Box<Node>),
    Compare {
        field: Field,
        op: Compare,
        wanted: Wanted,
        /// The comparison as it was written.
        text: String,
    },
    /// A field without a comparison, which is true if its value is, or is not zero.
    Is(Field),
}

/// The operator of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compare {
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    Like,
    NotLike,
}

/// The right side of a comparison.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Wanted {
    /// Any of these numbers.
    Numbers(Vec<u64>),
    /// Any of these words.
    Words(Vec<String>),
    /// A pattern with `*` and `?`.
    Pattern(String),
}
