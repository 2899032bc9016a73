//! Words near programs' addresses that were seen in a search of memory, with their places. They may be the addresses of programs that
//! are launched later; such a program is looked for at these places before memory is searched again. After the search for a process's
//! first launch, these words include all its other programs.

use std::collections::BTreeSet;

use crate::enrich::names::scan::MOST_NEAR;

/// The most places of one program that are looked at.
const MOST_PLACES: usize = 1 << 10;

/// Words near programs' addresses that a search of memory has seen, with their places.
#[derive(Default)]
pub(super) struct Noted(BTreeSet<(u64, u64)>);

impl Noted {
    /// Keeps words with their places, up to the limit.
    pub(super) fn add(&mut self, seen: &[(u64, u64)]) {
        let room = MOST_NEAR.saturating_sub(self.0.len());
        self.0.extend(seen.iter().take(room));
    }

    /// Takes the places of a word.
    pub(super) fn take(&mut self, word: u64) -> Vec<(u64, u64)> {
        let of_word = self.0.range((word, 0)..=(word, u64::MAX));
        let places: Vec<_> = of_word.copied().take(MOST_PLACES).collect();
        for place in &places {
            self.0.remove(place);
        }
        places
    }
}
