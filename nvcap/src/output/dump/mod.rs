//! `nvcap dump`: one look at processes, as text for an incident or as one JSON object. Knows no source.

mod json;
mod text;
mod verdict;

pub use json::json;
pub use text::text;
pub use verdict::{Verdict, verdict};

use super::redact::Redactor;
use crate::hang::{Look, Movement};

/// What to show.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Entries of each channel that are shown, beside those that are not fetched.
    pub last: u32,
    /// What was assumed and what proven; every operation.
    pub verbose: bool,
    /// Colour.
    pub color: bool,
    /// Hide users' data.
    pub redact: Option<Redactor>,
    /// Only these channels' entries, by number or token; all where empty.
    pub channels: Vec<u32>,
}

/// A look and, where there was one before it, what moved since.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a> {
    /// The look.
    pub look: &'a Look,
    /// Since the one before.
    pub moved: Option<&'a Movement>,
}
