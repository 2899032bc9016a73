//! The table of known stores of a trace.

use super::{
    super::cached_put::Place,
    cache::Cache,
    file_id::FileId,
    store::{KnownStore, merge},
};

/// The stores that are known.
#[derive(Debug, Default)]
pub(crate) struct KnownStores {
    all: Vec<KnownStore>,
    cache: Option<Cache>,
    /// Count of additions.
    pub(crate) added: u64,
    /// True if something is not in the file yet.
    unsaved: bool,
}

impl KnownStores {
    /// Begins with the stores of a file, if one is given.
    pub(crate) fn new(cache: Option<Cache>) -> Self {
        let all = cache.as_ref().map(Cache::read).unwrap_or_default();
        if !all.is_empty() {
            log::debug!("known stores of earlier traces: {}", all.len());
        }
        Self {
            added: all.len() as u64,
            all,
            cache,
            unsaved: false,
        }
    }

    /// Returns all stores.
    pub(crate) fn all(&self) -> &[KnownStore] {
        &self.all
    }

    /// Adds a store that was learnt from a process. False if it was known.
    pub(crate) fn add(&mut self, new: KnownStore) -> bool {
        let is_new = merge(&mut self.all, new);
        self.added += u64::from(is_new);
        self.unsaved |= is_new;
        is_new
    }

    /// Adds the place of the copy of GP_PUT that was learnt from a process.
    pub(crate) fn add_copy(&mut self, file: &FileId, end: u64, copy: Option<Place>) {
        let of = |k: &&mut KnownStore| k.file == *file && k.end == end;
        if let Some(known) = self.all.iter_mut().find(of)
            && known.copy != copy
        {
            known.copy = copy;
            self.unsaved = true;
        }
    }

    /// Writes additions to the file.
    pub(crate) fn save(&mut self) {
        if std::mem::take(&mut self.unsaved)
            && let Some(cache) = &self.cache
        {
            cache.write(&self.all);
        }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::{
        super::store::{MOST, tests::known},
        *,
    };

    #[test]
    fn a_store_is_taught_once_and_the_oldest_goes() {
        let mut all = KnownStores::default();
        assert!(all.add(known("b01", 1)) && !all.add(known("b01", 1)));
        assert!(all.add(known("b01", 2)) && all.add(known("b02", 1)));
        let place = Some(Place {
            register: 14,
            word: 34,
        });
        all.add_copy(&FileId::parse("b02").unwrap(), 1, place);
        assert_eq!((all.all()[2].copy, all.all()[0].copy), (place, None));
        for end in 10..10 + MOST as u64 {
            all.add(known("b03", end));
        }
        assert_eq!((all.all().len(), all.all()[0].end), (MOST, 10));
        assert_eq!(all.added, 3 + MOST as u64);
    }
}
