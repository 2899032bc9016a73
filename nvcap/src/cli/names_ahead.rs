//! Names of kernels before the launches that they are the names of.
//!
//! A trace does not wait for names: a recording has them behind the first launches of each kernel. Its file is read twice, at first for
//! names alone, and each comes before the first record of its own time.

use std::collections::BTreeMap;

use nvcap_decode::record::{Kernel, Record};

/// The most names that are kept ahead, and bytes of theirs. A recording with more has its names where they were found.
const MOST: usize = 1 << 20;
const MOST_BYTES: usize = 256 << 20;

/// By time, then process and program: a kernel's place.
type Place = (u64, u32, u64);

/// Names that are still to come, of all of a recording. Empty and of no effect by default.
#[derive(Default)]
pub(super) struct NamesAhead {
    left: BTreeMap<Place, Kernel>,
    /// All are here: those in the file are left out.
    has_all: bool,
}

impl NamesAhead {
    /// Gathers the names of a recording.
    pub(super) fn gather(kernels: impl Iterator<Item = Kernel>) -> Self {
        Self::within(kernels, (MOST, MOST_BYTES))
    }

    fn within(kernels: impl Iterator<Item = Kernel>, (most, most_bytes): (usize, usize)) -> Self {
        let (mut left, mut bytes) = (BTreeMap::new(), 0);
        for kernel in kernels {
            bytes += kernel.name.len();
            let place = (kernel.at.time_ns, kernel.at.pid, kernel.program.0);
            // The later word holds. A part of a rotated recording says again what was said before it.
            left.insert(place, kernel);
            if left.len() > most || bytes > most_bytes {
                log::info!("names of kernels come where they were found: there are too many");
                return Self::default();
            }
        }
        Self {
            left,
            has_all: true,
        }
    }

    /// The next name that comes before a record of the file.
    pub(super) fn before(&mut self, record: &Record) -> Option<Record> {
        let (place, _) = self.left.first_key_value()?;
        match place.0 <= record.at().time_ns {
            true => self.next(),
            false => None,
        }
    }

    /// The next name, however late.
    pub(super) fn next(&mut self) -> Option<Record> {
        let (_, kernel) = self.left.pop_first()?;
        Some(Record::Kernel(Box::new(kernel)))
    }

    /// Tells whether a record of the file has come already.
    pub(super) fn has(&self, record: &Record) -> bool {
        self.has_all && matches!(record, Record::Kernel(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvcap_decode::record::{At, Life, Process};

    fn kernel(time_ns: u64, name: &str) -> Kernel {
        Kernel::called(At::of_process(time_ns, 1), 0x1000, name)
    }

    fn at(time_ns: u64) -> Record {
        Record::Process(Process {
            at: At::of_process(time_ns, 1),
            life: Life::Exit { process: false },
        })
    }

    fn names(ahead: &mut NamesAhead, before: &Record) -> Vec<String> {
        let names = std::iter::from_fn(|| ahead.before(before));
        names
            .map(|record| match record {
                Record::Kernel(k) => k.name,
                other => format!("{other:?}"),
            })
            .collect()
    }

    #[test]
    fn a_name_comes_before_the_first_record_of_its_time() {
        let all = [
            kernel(7, "second"),
            kernel(5, "guessed"),
            kernel(0, "before"),
            kernel(5, "first"),
        ];
        let mut ahead = NamesAhead::gather(all.into_iter());
        assert_eq!(names(&mut ahead, &at(4)), ["before"]);
        assert_eq!(names(&mut ahead, &at(6)), ["first"]);
        assert!(ahead.has(&Record::Kernel(Box::new(kernel(7, "second")))));
        assert!(!ahead.has(&at(7)));
        assert_eq!(names(&mut ahead, &at(6)), [""; 0]);
        assert!(matches!(ahead.next(), Some(Record::Kernel(k)) if k.name == "second"));
        assert!(ahead.next().is_none());
    }

    /// Nothing is left out of a file of which not all names are kept.
    #[test]
    fn too_many_come_where_they_were_found() {
        for limits in [(2, 99), (9, 11)] {
            let all = (0..3).map(|n| kernel(n, "name"));
            let mut ahead = NamesAhead::within(all, limits);
            assert!(ahead.next().is_none(), "{limits:?}");
            assert!(!ahead.has(&Record::Kernel(Box::new(kernel(0, "name")))));
        }
    }
}
