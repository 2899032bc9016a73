//! Names of kernels, given before the launches that need them.
//!
//! A trace does not wait for names, so a recording has them after the first launches of each kernel. Its file is therefore read twice,
//! first for the names alone. Each name is then given before the first submission of its process that is not older. Names of kernels from
//! before the trace have no time, and are given where they were found.

use std::collections::{BTreeMap, HashSet};

use nvcap_decode::record::{Kernel, Record};

/// The most names that are kept ahead, and their most bytes. If a recording has more, names are given where they were found.
const MOST: usize = 1 << 20;
const MOST_BYTES: usize = 256 << 20;

/// Identity of a kernel record: process, time and program.
type Place = (u32, u64, u64);

fn place(kernel: &Kernel) -> Place {
    (kernel.at.pid, kernel.at.time_ns, kernel.program.0)
}

/// Names of a recording that are still to be given. The default is empty and has no effect.
#[derive(Default)]
pub(super) struct NamesAhead {
    left: BTreeMap<Place, Kernel>,
    /// Identities of the names that were already given.
    come: HashSet<Place>,
}

impl NamesAhead {
    /// Gathers the names of a recording.
    pub(super) fn gather(kernels: impl Iterator<Item = Kernel>) -> Self {
        Self::within(kernels, (MOST, MOST_BYTES))
    }

    fn within(kernels: impl Iterator<Item = Kernel>, (most, most_bytes): (usize, usize)) -> Self {
        let (mut left, mut bytes) = (BTreeMap::new(), 0);
        for kernel in kernels.filter(|k| k.at.time_ns > 0) {
            let params = kernel.params.as_ref().map_or(0, |p| 8 * p.len());
            bytes += kernel.name.len() + params;
            // The later name is valid. A part of a rotated recording repeats the names before it.
            left.insert(place(&kernel), kernel);
            if left.len() > most || bytes > most_bytes {
                log::info!("names of kernels come where they were found: there are too many");
                return Self::default();
            }
        }
        let come = HashSet::new();
        Self { left, come }
    }

    /// Returns the next name that precedes a record of the file.
    pub(super) fn before(&mut self, record: &Record) -> Option<Record> {
        let Record::Submission(s) = record else {
            return None;
        };
        let of_process = (s.at.pid, 0, 0)..=(s.at.pid, s.at.time_ns, u64::MAX);
        let (next, _) = self.left.range(of_process).next()?;
        self.give(*next)
    }

    /// Returns all names that were not given: those without a submission.
    pub(super) fn rest(&mut self) -> impl Iterator<Item = Record> {
        std::iter::from_fn(|| {
            let (next, _) = self.left.first_key_value()?;
            self.give(*next)
        })
    }

    fn give(&mut self, place: Place) -> Option<Record> {
        let kernel = self.left.remove(&place)?;
        self.come.insert(place);
        Some(Record::Kernel(Box::new(kernel)))
    }

    /// Tells whether a record of the file was already given, or will be.
    pub(super) fn has(&self, record: &Record) -> bool {
        let Record::Kernel(kernel) = record else {
            return false;
        };
        let place = place(kernel);
        self.come.contains(&place) || self.left.contains_key(&place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvcap_decode::decode::encode::Pushbuffer;
    use nvcap_decode::gpu_time::made_up;
    use nvcap_decode::record::{At, ChannelId, How, Submission};

    fn kernel(pid: u32, time_ns: u64, name: &str) -> Kernel {
        Kernel::called(At::of_process(time_ns, pid), 0x1000, name)
    }

    fn submission(pid: u32, time_ns: u64) -> Record {
        Record::Submission(Submission {
            at: At::of_process(time_ns, pid),
            segments: Vec::new(),
            ..made_up::submission(ChannelId(1), 0, time_ns, How::Trapped, &Pushbuffer::new())
        })
    }

    fn names(records: impl Iterator<Item = Record>) -> Vec<String> {
        records
            .map(|record| match record {
                Record::Kernel(k) => k.name,
                other => format!("{other:?}"),
            })
            .collect()
    }

    fn before(ahead: &mut NamesAhead, record: &Record) -> Vec<String> {
        names(std::iter::from_fn(|| ahead.before(record)))
    }

    fn in_file(pid: u32, time_ns: u64) -> Record {
        Record::Kernel(Box::new(kernel(pid, time_ns, "any")))
    }

    #[test]
    fn a_name_comes_before_the_first_submission_of_its_time() {
        let all = [
            kernel(1, 7, "second"),
            kernel(1, 5, "guessed"),
            kernel(1, 0, "from before the trace"),
            kernel(2, 1, "another process's"),
            kernel(1, 5, "first"),
        ];
        let mut ahead = NamesAhead::gather(all.into_iter());
        assert_eq!(before(&mut ahead, &submission(1, 4)), [""; 0]);
        // Only a submission of the process itself counts.
        assert_eq!(before(&mut ahead, &in_file(1, 9)), [""; 0]);
        assert_eq!(before(&mut ahead, &submission(3, 9)), [""; 0]);
        assert_eq!(before(&mut ahead, &submission(1, 6)), ["first"]);
        assert_eq!(before(&mut ahead, &submission(1, 6)), [""; 0]);
        // In the file such a record is left out, whether its name was given or is still to come. A record that was not gathered is kept.
        assert!(ahead.has(&in_file(1, 5)) && ahead.has(&in_file(1, 7)));
        assert!(!ahead.has(&in_file(1, 0)) && !ahead.has(&in_file(1, 8)));
        assert!(!ahead.has(&submission(1, 7)));
        assert_eq!(names(ahead.rest()), ["second", "another process's"]);
        assert!(ahead.has(&in_file(2, 1)) && ahead.rest().next().is_none());
    }

    /// Test that nothing is left out of a file if not all its names can be kept.
    #[test]
    fn too_many_come_where_they_were_found() {
        for limits in [(2, 99), (9, 11)] {
            let all = (1..4).map(|n| kernel(1, n, "name"));
            let mut ahead = NamesAhead::within(all, limits);
            assert!(ahead.rest().next().is_none(), "{limits:?}");
            assert!(!ahead.has(&in_file(1, 1)));
        }
    }
}
