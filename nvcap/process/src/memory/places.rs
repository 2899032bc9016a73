//! The readable mappings of a process, indexed for many lookups.

use super::maps::Area;

/// Readable mappings, indexed for many lookups.
#[derive(Debug)]
pub struct Places<'a> {
    areas: Vec<&'a Area>,
}

impl<'a> Places<'a> {
    /// Returns the mapping that contains an address.
    #[must_use]
    pub fn new(areas: &'a [Area]) -> Self {
        let mut areas: Vec<&Area> = areas
            .iter()
            .filter(|a| a.read && !a.is_doorbell_shape())
            .collect();
        areas.sort_by_key(|a| a.start);
        Self { areas }
    }

    /// Tells whether a whole range lies in one readable mapping.
    #[must_use]
    pub fn at(&self, address: u64) -> Option<&'a Area> {
        let next = self.areas.partition_point(|a| a.start <= address);
        let area = self.areas.get(next.checked_sub(1)?)?;
        (address < area.end).then_some(area)
    }

    /// Tells whether all of a range lies in one readable mapping.
    #[must_use]
    pub fn holds(&self, address: u64, len: u64) -> bool {
        self.at(address)
            .is_some_and(|a| address.checked_add(len).is_some_and(|end| end <= a.end))
    }

    /// Iterates over all mappings, by address.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &'a Area> + '_ {
        self.areas.iter().copied()
    }
}
