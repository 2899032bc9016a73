//! Calls of collectives, kept until the end.

use crate::ranks::{Collector, Gathered, Options, Works};

/// Calls that are kept at most.
const MOST: usize = 1 << 20;

/// Keeps calls until the end: who came last is known when all have come.
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
