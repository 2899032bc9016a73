//! The semaphores of one process that are written once and then keep their value. Each is read until its stamp has come.

use std::collections::VecDeque;

use nvcap_decode::record::{CpuVa, Stamp};
use nvcap_decode::wire::GpuVa;
use nvcap_decode::wire::read_memory::ReadMemory;
use nvcap_decode::wire::words::{u32_at, u64_at};

/// Bytes of a semaphore with a time stamp: number, unused, time.
const STAMPED: usize = 16;
/// The most semaphores that are read together. Beyond it the oldest have no stamp.
const MOST: usize = 256;
/// Longest time for which a stamp is awaited, ns: somewhat longer than any output waits for it. Later the process may have other memory there.
const AWAITED_NS: u64 = 61_000_000_000;
/// Time after which a stamp that has not come is late, ns. Of the late stamps only some are read at a time, in turn.
const SOON_NS: u64 = 2_000_000_000;
/// The most late stamps that are read at a time.
const MOST_LATE: usize = 16;
/// Age beyond which a stamp belongs to an earlier use of its place, ns before the newest stamp.
const LAST_TIME_NS: u64 = 1_000_000_000;

/// A semaphore whose stamp is awaited.
#[derive(Clone, Copy, Debug)]
struct Awaited {
    gpu: GpuVa,
    cpu: CpuVa,
    payload: u32,
    /// Latest time of an old stamp, ns of the GPU's clock: a new stamp is later.
    old_ns: u64,
    /// Time at which the semaphore had no stamp yet, ns: before its doorbell, or at its last read; 0 where none is known.
    absent_ns: u64,
    /// Time at which the semaphore was first read, ns; `None` if it was not read yet.
    first_ns: Option<u64>,
}

/// The semaphores of one process that are written once, until their stamps have come.
#[derive(Debug, Default)]
pub(super) struct Once {
    awaited: VecDeque<Awaited>,
    /// The newest stamp, ns of the GPU's clock.
    newest_ns: u64,
    /// Number of times that all were read, which decides whose turn it is among the late ones.
    times: usize,
}

impl Once {
    /// Tells whether no stamp is awaited.
    pub(super) fn is_empty(&self) -> bool {
        self.awaited.is_empty()
    }

    /// Awaits the stamp with this number in a semaphore, which has an address of its own in the process. `absent_ns`: time at which the stamp was not
    /// written yet, 0 where none is known.
    pub(super) fn add(&mut self, (gpu, cpu): (GpuVa, CpuVa), payload: u32, absent_ns: u64) {
        self.awaited.retain(|a| a.cpu != cpu);
        if self.awaited.len() >= MOST {
            self.awaited.pop_front();
        }
        self.awaited.push_back(Awaited {
            gpu,
            cpu,
            payload,
            old_ns: self.newest_ns.saturating_sub(LAST_TIME_NS),
            absent_ns,
            first_ns: None,
        });
    }

    /// Reads all semaphores once, and some of the late ones. Stamps that have come go to `to`. A semaphore that cannot be read is given up: it is
    /// unmapped, or the process is gone.
    ///
    /// Reads through `/proc/PID/mem`, because the driver maps these pages so that `process_vm_readv` refuses them.
    pub(super) fn read(
        &mut self,
        memory: &impl ReadMemory,
        now: &impl Fn() -> u64,
        to: &mut Vec<Stamp>,
    ) {
        let newest_ns = &mut self.newest_ns;
        let is_late = |first: u64, now: u64| now > first.saturating_add(SOON_NS);
        let start = now();
        let late = { self.awaited.iter() }
            .filter(|a| a.first_ns.is_some_and(|first| is_late(first, start)))
            .count();
        let turns = late.div_ceil(MOST_LATE).max(1);
        self.times = self.times.wrapping_add(1);
        let (turn, mut place) = (self.times % turns, 0);
        self.awaited.retain_mut(|awaited| {
            let mut bytes = [0; STAMPED];
            let begun = now();
            let first = *awaited.first_ns.get_or_insert(begun);
            if begun > first.saturating_add(AWAITED_NS) {
                return false;
            }
            if is_late(first, start) {
                place += 1;
                if place % turns != turn {
                    return true;
                }
            }
            if memory.read_bytes(awaited.cpu.0, &mut bytes).is_err() {
                return false;
            }
            let (payload, gpu_ns) = (u32_at(&bytes, 0), u64_at(&bytes, 8));
            let is_new = |ns: &u64| payload == Some(awaited.payload) && *ns > awaited.old_ns;
            let Some(gpu_ns) = gpu_ns.filter(is_new) else {
                awaited.absent_ns = begun;
                return true;
            };
            *newest_ns = gpu_ns.max(*newest_ns);
            to.push(Stamp {
                address: awaited.gpu,
                payload: awaited.payload,
                gpu_ns: Some(gpu_ns),
                before_ns: awaited.absent_ns,
                seen_ns: now(),
            });
            false
        });
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::io;

    use super::*;

    /// Semaphores by their address in the process: number and time.
    struct Fake(Vec<(u64, u32, u64)>);

    impl ReadMemory for Fake {
        fn read_bytes(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
            let found = self.0.iter().find(|(a, ..)| *a == at);
            let (_, payload, ns) = found.ok_or_else(|| io::Error::from_raw_os_error(libc::EIO))?;
            to[..4].copy_from_slice(&payload.to_le_bytes());
            to[8..].copy_from_slice(&ns.to_le_bytes());
            Ok(())
        }
    }

    fn read(once: &mut Once, memory: &Fake, time: u64) -> Vec<(u64, Option<u64>, u64)> {
        let clock = Cell::new(time);
        let now = || clock.replace(clock.get());
        let mut to = Vec::new();
        once.read(memory, &now, &mut to);
        to.iter()
            .map(|s| (s.address.0, s.gpu_ns, s.before_ns))
            .collect()
    }

    #[test]
    fn each_is_read_until_its_stamp_has_come() {
        let mut once = Once::default();
        let mut memory = Fake(vec![(0x7000, 0, 0), (0x7010, 1, 5_000)]);
        once.add((GpuVa(0x100), CpuVa(0x7000)), 1, 0);
        once.add((GpuVa(0x110), CpuVa(0x7010)), 1, 7);
        assert_eq!(read(&mut once, &memory, 10), [(0x110, Some(5_000), 7)]);
        assert_eq!(read(&mut once, &memory, 20), []);
        memory.0[0] = (0x7000, 1, 6_000);
        assert_eq!(read(&mut once, &memory, 30), [(0x100, Some(6_000), 20)]);
        assert!(once.is_empty());
    }

    #[test]
    fn a_stamp_that_does_not_come_is_given_up() {
        let mut once = Once::default();
        let memory = Fake(vec![(0x7000, 0, 0)]);
        once.add((GpuVa(0x100), CpuVa(0x7000)), 1, 0);
        for (time, is_empty) in [(5, false), (5 + AWAITED_NS, false), (6 + AWAITED_NS, true)] {
            assert_eq!(read(&mut once, &memory, time), []);
            assert_eq!(once.is_empty(), is_empty, "{time}");
        }
    }

    /// A process that leaves its stamps unwritten costs little while they are awaited.
    #[test]
    fn stamps_that_are_late_are_read_in_turn() {
        struct Counted(Cell<usize>, Cell<Option<u64>>);
        impl ReadMemory for Counted {
            fn read_bytes(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
                self.0.set(self.0.get() + 1);
                if self.1.get() == Some(at) {
                    to[0] = 1;
                    to[8..].copy_from_slice(&7_000_u64.to_le_bytes());
                }
                Ok(())
            }
        }
        let (mut once, memory) = (Once::default(), Counted(Cell::default(), Cell::default()));
        for n in 0..MOST as u64 {
            once.add((GpuVa(n), CpuVa(0x7000 + n * 16)), 1, 0);
        }
        let reads = |once: &mut Once, time: u64| {
            memory.0.set(0);
            let mut to = Vec::new();
            once.read(&memory, &|| time, &mut to);
            (memory.0.get(), to)
        };
        assert_eq!(reads(&mut once, 5).0, MOST);
        assert_eq!(reads(&mut once, 5 + SOON_NS).0, MOST);
        for n in 0..1000 {
            let (count, _) = reads(&mut once, 6 + SOON_NS + n);
            assert!((1..=MOST_LATE).contains(&count), "{count}");
        }
        // Each has its turn: the one that comes is seen.
        memory.1.set(Some(0x7000 + 77 * 16));
        let seen = (0..MOST / MOST_LATE).find_map(|n| {
            let (_, stamps) = reads(&mut once, 2000 + SOON_NS + n as u64);
            stamps.first().map(|s| s.address.0)
        });
        assert_eq!((seen, once.awaited.len()), (Some(77), MOST - 1));
        // One that is new is read each time.
        once.add((GpuVa(9), CpuVa(0x9000)), 2, 0);
        assert!(reads(&mut once, 3000 + SOON_NS).0 <= MOST_LATE + 1);
        assert_eq!(
            once.awaited.back().and_then(|a| a.first_ns),
            Some(3000 + SOON_NS)
        );
    }

    #[test]
    fn what_stood_there_from_the_last_time_is_no_stamp() {
        let (mut once, now) = (Once::default(), 9 * LAST_TIME_NS);
        let mut memory = Fake(vec![(0x7000, 1, now), (0x7020, 1, now - 2 * LAST_TIME_NS)]);
        once.add((GpuVa(0x100), CpuVa(0x7000)), 1, 0);
        assert_eq!(read(&mut once, &memory, 10), [(0x100, Some(now), 0)]);
        once.add((GpuVa(0x120), CpuVa(0x7020)), 1, 0);
        assert_eq!(read(&mut once, &memory, 20), []);
        memory.0[1] = (0x7020, 1, now + 7);
        assert_eq!(read(&mut once, &memory, 30), [(0x120, Some(now + 7), 20)]);
    }

    #[test]
    fn what_cannot_be_read_is_given_up_and_the_number_is_bounded() {
        let mut once = Once::default();
        let memory = Fake(vec![(0x7000, 0, 0), (0x7020, 1, 5_000)]);
        for (gpu, cpu) in [(0x100, 0x7000), (0x110, 0x7010), (0x120, 0x7020)] {
            once.add((GpuVa(gpu), CpuVa(cpu)), 1, 0);
        }
        assert_eq!(read(&mut once, &memory, 10), [(0x120, Some(5_000), 0)]);
        assert_eq!(once.awaited.len(), 1);
        for n in 0..2 * MOST as u64 {
            once.add((GpuVa(n * 16), CpuVa(0x9000 + n * 16)), 1, 0);
        }
        assert_eq!(once.awaited.len(), MOST);
        assert_eq!(once.awaited.back().map(|a| a.gpu.0), Some(511 * 16));
    }
}
