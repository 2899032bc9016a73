//! Numbers of the addresses of two recordings, and pairs of addresses that stand for each other.

use std::collections::HashMap;

use super::collect::{Line, RecordingLines};
use super::line::{Address, Kind};

/// Numbers of addresses of one recording, by kind in the order of first use, from 1.
#[derive(Debug, Default)]
pub(super) struct Numbers(HashMap<Address, u32>);

impl Numbers {
    pub(super) fn of(recording: &RecordingLines) -> Self {
        let mut lines: Vec<&Line> = recording.channels.iter().flat_map(|c| &c.lines).collect();
        lines.sort_unstable_by_key(|line| line.place);
        let mut last: HashMap<Kind, u32> = HashMap::new();
        let mut numbers = HashMap::new();
        for address in lines.into_iter().flat_map(|line| recording.of(line)) {
            numbers.entry(*address).or_insert_with(|| {
                let last = last.entry(address.kind).or_default();
                *last += 1;
                *last
            });
        }
        Self(numbers)
    }

    /// Name of an address, such as `data#3`.
    pub(super) fn name(&self, address: &Address) -> String {
        let number = self.0.get(address).copied().unwrap_or(0);
        format!("{}#{number}", address.kind.name())
    }
}

/// Addresses of A and of B that stand for each other: those that were aligned last.
#[derive(Debug, Default)]
pub(super) struct Renamed {
    to_b: HashMap<Address, Address>,
    to_a: HashMap<Address, Address>,
}

impl Renamed {
    /// Takes note that these stand for each other; returns `false` if one of them stood for another before.
    pub(super) fn pair(&mut self, a: Address, b: Address) -> bool {
        let before = (self.to_b.insert(a, b), self.to_a.insert(b, a));
        // What another stood for is free again.
        if let Some(other) = before.0.filter(|other| *other != b) {
            self.to_a.remove(&other);
        }
        if let Some(other) = before.1.filter(|other| *other != a) {
            self.to_b.remove(&other);
        }
        before.0.is_none_or(|other| other == b) && before.1.is_none_or(|other| other == a)
    }

    /// Pairs them as [`Renamed::pair`] does, where neither stands for another.
    pub(super) fn pair_if_new(&mut self, a: Address, b: Address) {
        if !self.to_b.contains_key(&a) && !self.to_a.contains_key(&b) {
            self.pair(a, b);
        }
    }

    pub(super) fn a_of(&self, b: &Address) -> Option<Address> {
        self.to_a.get(b).copied()
    }
}
