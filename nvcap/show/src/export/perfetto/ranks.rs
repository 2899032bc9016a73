//! Calls of collectives, kept until the end.

use crate::ranks::{Collector, Gathered, Options, Works};

/// The most calls that are kept.
const MOST: usize = 1 << 20;

/// Calls that are kept until the end: the rank that came last is known when all have come.
pub(super) struct Collectives {
    pub(super) gathered: Gathered,
    pub(super) collector: Collector,
}

impl Default for Collectives {
    fn default() -> Self {
        let gathered = Gathered::new(Options {
            most: MOST,
            works: Works::None,
            ..Options::default()
        });
        Self {
            collector: gathered.collector(),
            gathered,
        }
    }
}
