//! A look as records, for a recording: what was read of the processes, and nothing that was concluded from it.

use super::{Look, OfProcess, Taken};
use crate::hang::Values;
use crate::record::{At, Image, Record, Stamp, Stamps};
use crate::source::memory::chip;
use crate::wire::GpuVa;

impl Look {
    /// The GPUs; the names of kernels; of each process the memory images that `images` gives for its id, its mappings, channels and
    /// submissions, and the semaphores that were read.
    pub(crate) fn records(&self, images: fn(u32) -> Vec<Image>) -> impl Iterator<Item = Record> {
        let Taken {
            processes,
            kernels,
            semaphores,
            read_ns,
        } = &self.taken;
        let kernels = kernels.iter().cloned();
        chip::records()
            .chain(kernels.map(|k| Record::Kernel(Box::new(k))))
            .chain(processes.iter().flat_map(move |of| {
                let stamps = stamps(of.snapshot.pid, semaphores, *read_ns);
                of.images(images)
                    .into_iter()
                    .map(|i| Record::Image(Box::new(i)))
                    .chain(of.snapshot.records())
                    .chain(stamps.map(|s| Record::Stamps(Box::new(s))))
            }))
    }
}

impl OfProcess {
    /// A later decoder may need those that this look did not.
    fn images(&self, images: fn(u32) -> Vec<Image>) -> Vec<Image> {
        let needed = self.images.clone();
        needed.unwrap_or_else(|| images(self.snapshot.pid))
    }
}

/// The semaphores of a process, each as the two words that were read.
fn stamps(pid: u32, semaphores: &Values, read_ns: u64) -> Option<Stamps> {
    let word = |address: u64, payload: u64| Stamp {
        address: GpuVa(address),
        payload: payload as u32,
        gpu_ns: None,
        before_ns: 0,
        seen_ns: read_ns,
    };
    let stamps: Vec<Stamp> = semaphores
        .of(pid)
        .flat_map(|(at, value)| [word(at.0, value), word(at.0 + 4, value >> 32)])
        .collect();
    (!stamps.is_empty()).then_some(Stamps {
        at: At {
            time_ns: read_ns,
            pid,
            tid: 0,
        },
        from_ns: read_ns,
        reads: 1,
        stamps,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn semaphores_are_two_words_each() {
        let mut values = Values::default();
        values.set(7, GpuVa(0x1000), 0x1_0000_0002);
        values.set(7, GpuVa(0x2000), 3);
        values.set(8, GpuVa(0x1000), 4);
        let seen = stamps(7, &values, 55).unwrap();
        let words: Vec<_> = { seen.stamps.iter() }
            .map(|s| (s.address.0, s.payload, s.gpu_ns, s.seen_ns))
            .collect();
        let expected = [(0x1000, 2), (0x1004, 1), (0x2000, 3), (0x2004, 0)];
        assert_eq!(words, expected.map(|(at, word)| (at, word, None, 55)));
        assert_eq!((seen.at.pid, seen.at.time_ns, seen.reads), (7, 55, 1));
        assert_eq!(stamps(9, &values, 55), None);
    }
}
