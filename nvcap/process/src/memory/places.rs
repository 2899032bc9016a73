//! The mappings of a process, indexed for many lookups.

use super::maps::Area;

/// Mappings that may be read and those that another program serves, indexed for many lookups.
#[derive(Debug)]
pub struct Places<'a> {
    areas: Vec<&'a Area>,
}

impl<'a> Places<'a> {
    /// Indexes the mappings of a process, without doorbell pages.
    #[must_use]
    pub fn new(areas: &'a [Area]) -> Self {
        let mut areas: Vec<&Area> = areas
            .iter()
            .filter(|a| (a.read || a.served) && !a.is_doorbell_shape())
            .collect();
        areas.sort_by_key(|a| a.start);
        Self { areas }
    }

    /// Returns the readable mapping that holds an address.
    #[must_use]
    pub fn at(&self, address: u64) -> Option<&'a Area> {
        self.mapping(address).filter(|a| a.read)
    }

    fn mapping(&self, address: u64) -> Option<&'a Area> {
        let next = self.areas.partition_point(|a| a.start <= address);
        let area = self.areas.get(next.checked_sub(1)?)?;
        (address < area.end).then_some(area)
    }

    /// Tells whether all of a range lies in one readable mapping.
    #[must_use]
    pub fn holds(&self, address: u64, len: u64) -> bool {
        self.at(address).is_some_and(|a| reaches(a, address, len))
    }

    /// Tells whether all of a range lies in one mapping that the process may read, whether nvcap reads it or not. The GPU can fetch what lies
    /// there.
    #[must_use]
    pub fn has(&self, address: u64, len: u64) -> bool {
        self.mapping(address)
            .is_some_and(|a| reaches(a, address, len))
    }

    /// Iterates over the readable mappings, by address.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &'a Area> + '_ {
        self.areas.iter().copied().filter(|a| a.read)
    }
}

/// Tells whether a range that begins in an area ends in it.
fn reaches(area: &Area, address: u64, len: u64) -> bool {
    address.checked_add(len).is_some_and(|end| end <= area.end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_program_serves_is_mapped_and_not_readable() {
        let mut areas = [
            Area::made_up(0x1000, 0x1000, "rw", "/x"),
            Area::made_up(0x3000, 0x1000, "", "/y"),
        ];
        areas[1].served = true;
        let places = Places::new(&areas);
        assert!(places.holds(0x1800, 0x800) && places.has(0x1800, 0x800));
        assert!(!places.holds(0x1800, 0x801) && !places.has(0x1800, 0x801));
        assert!(!places.holds(0x3000, 8) && places.has(0x3000, 8));
        assert!(places.at(0x3000).is_none());
        assert!(!places.has(0x2ff8, 8) && !places.has(0x3ff8, u64::MAX));
        assert_eq!(places.iter().count(), 1);
    }
}
