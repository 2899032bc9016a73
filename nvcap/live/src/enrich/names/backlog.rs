//! Limit of requests that wait for the searching thread: a program may launch new kernels faster than their names
//! are found.

use std::collections::HashMap;

use super::resolver::Ask;

/// The most bytes of one process's waiting requests. Fewer are allowed where those of all processes reach
/// [`MOST_WAITING`].
const MOST_OF_ONE: usize = 16 << 20;
const LEAST_OF_ONE: usize = 1 << 20;
/// The most bytes of all processes' waiting requests.
pub(super) const MOST_WAITING: usize = 128 << 20;

/// Bytes of waiting requests, by process.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    of: HashMap<u32, usize>,
    all: usize,
}

impl Backlog {
    fn weight(ask: &Ask) -> usize {
        size_of::<Ask>() + ask.code.as_ref().map_or(0, Vec::len)
    }

    /// Counts a request; false where there is no room for it.
    pub(super) fn take(&mut self, ask: &Ask) -> bool {
        let most = match self.all < MOST_WAITING {
            true => MOST_OF_ONE,
            false => LEAST_OF_ONE,
        };
        let of = self.of.entry(ask.at.pid).or_default();
        let weight = Self::weight(ask);
        let has_room = *of + weight <= most;
        if has_room {
            *of += weight;
            self.all += weight;
        }
        has_room
    }

    /// Takes note that the thread has taken a request.
    pub(super) fn give(&mut self, ask: &Ask) {
        let weight = Self::weight(ask);
        self.all = self.all.saturating_sub(weight);
        if let Some(of) = self.of.get_mut(&ask.at.pid) {
            *of = of.saturating_sub(weight);
            if *of == 0 {
                self.of.remove(&ask.at.pid);
            }
        }
    }
}
