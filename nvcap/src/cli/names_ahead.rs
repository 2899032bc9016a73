//! Names of kernels before the launches that they are the names of.
//!
//! A trace does not wait for names: a recording has them behind the first launches of each kernel. Its file is read twice, at first for
//! names alone, and each comes before the first submission of its process that is not older. Names of what was there before the trace have no time,
//! and come where they were found.

use std::collections::{BTreeMap, HashSet};

use nvcap_decode::record::{Kernel, Record};

/// The most names that are kept ahead, and bytes of theirs. A recording with more has its names where they were found.
const MOST: usize = 1 << 20;
const MOST_BYTES: usize = 256 << 20;

/// Process, time and program: a kernel's place.
type Place = (u32, u64, u64);

fn place(kernel: &Kernel) -> Place {
    (kernel.at.pid, kernel.at.time_ns, kernel.program.0)
}

/// Names that are still to come, of all of a recording. Empty and of no effect by default.
#[derive(Default)]
pub(super) struct NamesAhead {
    left: BTreeMap<Place, Kernel>,
    /// Places of those that have come.
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
            // The later word holds. A part of a rotated recording says again what was said before it.
            left.insert(place(&kernel), kernel);
            if left.len() > most || bytes > most_bytes {
                log::info!("names of kernels come where they were found: there are too many");
                return Self::default();
            }
        }
        let come = HashSet::new();
        Self { left, come }
    }

    /// The next name that comes before a record of the file.
    pub(super) fn before(&mut self, record: &Record) -> Option<Record> {
        let Record::Submission(s) = record else {
            return None;
        };
        let of_process = (s.at.pid, 0, 0)..=(s.at.pid, s.at.time_ns, u64::MAX);
        let (next, _) = self.left.range(of_process).next()?;
        self.give(*next)
    }

    /// All that have not come: those of no submission.
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

    /// Tells whether a record of the file has come already, or will come.
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
        // Nothing but a submission of the process itself.
        assert_eq!(before(&mut ahead, &in_file(1, 9)), [""; 0]);
        assert_eq!(before(&mut ahead, &submission(3, 9)), [""; 0]);
        assert_eq!(before(&mut ahead, &submission(1, 6)), ["first"]);
        assert_eq!(before(&mut ahead, &submission(1, 6)), [""; 0]);
        // In the file it is left out, come or still to come; what was not gathered is not.
        assert!(ahead.has(&in_file(1, 5)) && ahead.has(&in_file(1, 7)));
        assert!(!ahead.has(&in_file(1, 0)) && !ahead.has(&in_file(1, 8)));
        assert!(!ahead.has(&submission(1, 7)));
        assert_eq!(names(ahead.rest()), ["second", "another process's"]);
        assert!(ahead.has(&in_file(2, 1)) && ahead.rest().next().is_none());
    }

    /// Nothing is left out of a file of which not all names are kept.
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
