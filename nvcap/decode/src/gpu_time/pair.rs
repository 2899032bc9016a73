//! The two stamps that the drivers of Vulkan and OpenGL write around each submission: one when its commands begin, and one after its work,
//! 16 bytes further on.
//!
//! The driver takes a new place for each pair, so a pair stays readable for long: until all of the pairs' memory has been used.

use super::words::Value;
use crate::wire::GpuVa;
use crate::wire::method::{
    COPY_LAUNCH_DMA, COPY_SET_SEMAPHORE_A, SEM_ADDR_LO, SEM_EXECUTE, SET_REPORT_SEMAPHORE_A,
};
use crate::wire::release::{self, HostRelease};
use crate::wire::stream::{Item, Stream};

/// Distance from the first stamp to the second, bytes.
const APART: u64 = 16;
/// SET_REPORT_SEMAPHORE_D. The three methods before it give the address and the number.
const SET_REPORT_SEMAPHORE_D: u16 = SET_REPORT_SEMAPHORE_A + 12;
/// SET_SEMAPHORE_PAYLOAD of the copy classes.
const COPY_SET_SEMAPHORE_PAYLOAD: u16 = COPY_SET_SEMAPHORE_A + 8;

/// The stamps around a submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// Written by the channel before the submission's work.
    pub begin: Value,
    /// Written by the engine after the submission's work.
    pub end: Value,
    /// Index in the submission of the entry with the command that writes `begin`.
    pub first: usize,
    /// Index in the submission of the entry with the command that writes `end`.
    pub last: usize,
}

impl Pair {
    /// Finds the pair in a submission's entries; `None` if there is none. A submission that ends with a stamp of its own is CUDA's, and has
    /// no pair.
    pub fn of<'a>(entries: impl DoubleEndedIterator<Item = &'a [u8]> + Clone) -> Option<Self> {
        let last = entries.clone().next_back()?;
        if release::at_end(last).is_some_and(|r| r.stamped) {
            return None;
        }
        let mut finder = Finder::default();
        entries
            .enumerate()
            .find_map(|(index, bytes)| finder.entry(index, bytes))
    }
}

/// State of the search for the pair of a submission.
#[derive(Clone, Copy, Debug, Default)]
struct Finder {
    /// First stamp, and its entry.
    begin: Option<(Value, usize)>,
    host: [u32; 4],
    report: [u32; 3],
    copy: [u32; 3],
}

impl Finder {
    fn entry(&mut self, index: usize, bytes: &[u8]) -> Option<Pair> {
        let mut stream = Stream::default();
        for item in stream.runs(bytes, bytes.len() as u32, &[]) {
            let run = match item {
                Item::Run(run) => run,
                Item::Stop(..) => break,
                // The subdevice mask, with which these drivers begin.
                _ => continue,
            };
            if run.masked {
                continue;
            }
            for write in run.writes() {
                if let Some(pair) = self.write(index, write.address, write.data) {
                    return Some(pair);
                }
            }
        }
        None
    }

    fn write(&mut self, index: usize, method: u16, data: u32) -> Option<Pair> {
        let place = |first: u16| usize::from(method - first) / 4;
        let slot = match method {
            SEM_ADDR_LO..SEM_EXECUTE => self.host.get_mut(place(SEM_ADDR_LO)),
            SET_REPORT_SEMAPHORE_A..SET_REPORT_SEMAPHORE_D => {
                self.report.get_mut(place(SET_REPORT_SEMAPHORE_A))
            }
            COPY_SET_SEMAPHORE_A..=COPY_SET_SEMAPHORE_PAYLOAD => {
                self.copy.get_mut(place(COPY_SET_SEMAPHORE_A))
            }
            SEM_EXECUTE => {
                let of = HostRelease::of(data).filter(|r| r.stamped && !r.waits);
                // The driver's stamp comes first; later ones are the program's own, such as timestamp queries.
                if of.is_some() && self.begin.is_none() {
                    let [low, high, payload, _] = self.host;
                    self.begin = Some((Value::of(high, low, payload), index));
                }
                return None;
            }
            SET_REPORT_SEMAPHORE_D if release::is_stamping_report(data) => {
                return self.end(index, self.report);
            }
            COPY_LAUNCH_DMA if release::is_stamping_copy(data) => {
                return self.end(index, self.copy);
            }
            _ => return None,
        };
        if let Some(slot) = slot {
            *slot = data;
        }
        None
    }

    /// Handles a stamp of the engine, which is the pair's second one if its place follows the first one's.
    fn end(&self, index: usize, [high, low, payload]: [u32; 3]) -> Option<Pair> {
        let end = Value::of(high, low, payload);
        let (begin, first) = self.begin?;
        (begin.address.0.checked_add(APART) == Some(end.address.0)).then_some(Pair {
            begin,
            end,
            first,
            last: index,
        })
    }
}

impl Value {
    /// Makes a value of a number and an address in two words.
    fn of(high: u32, low: u32, payload: u32) -> Self {
        Self {
            address: GpuVa(u64::from(high & 0x1ff_ffff) << 32 | u64::from(low & !3)),
            payload,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::encode::Pushbuffer;
    use crate::gpu_time::made_up::CLASS;

    const BEGIN: u64 = 0x427_8020;
    const RELEASE: u32 = 1;
    const TIMESTAMP: u32 = 1 << 25;
    const WFI: u32 = 1 << 20;

    fn host(p: &mut Pushbuffer, address: u64, execute: u32) {
        p.named(
            0,
            0xc56f,
            "SEM_ADDR_LO",
            &[address as u32, 0, 1, 0, execute],
        )
        .expect("methods");
    }

    fn report(p: &mut Pushbuffer, address: u64, payload: u32, data: u32) {
        let words = [0, address as u32, payload, data];
        p.named(1, CLASS, "SET_REPORT_SEMAPHORE_A", &words)
            .expect("methods");
    }

    fn of(entries: &[Pushbuffer]) -> Option<Pair> {
        let all: Vec<_> = entries.iter().map(Pushbuffer::bytes).collect();
        for cut in 0..all[0].len() {
            let _ = Pair::of([&all[0][..cut]].into_iter());
        }
        Pair::of(all.iter().map(|b| &b[..]))
    }

    fn value(address: u64) -> Value {
        Value {
            address: GpuVa(address),
            payload: 1,
        }
    }

    /// Test of submissions as Vulkan of driver 580 makes them (an H200): the stamps are in different entries, between other releases.
    #[test]
    fn a_pair_may_enclose_several_entries() {
        let (mut first, mut last) = (Pushbuffer::new(), Pushbuffer::new());
        host(&mut first, BEGIN, RELEASE | TIMESTAMP);
        // A timestamp query of the program.
        host(&mut first, 0x4ea_0080, RELEASE | TIMESTAMP);
        report(&mut first, 0x4ea_0090, 1, 0xf010);
        host(&mut last, 0x41d_0b90, RELEASE | TIMESTAMP | WFI);
        report(&mut last, 0x41c_0bb0, 4, 0x1000_f010);
        report(&mut last, BEGIN + 16, 1, 0xf010);
        report(&mut last, 0x41c_0c30, 3, 0x1000_f010);
        let pair = Pair {
            begin: value(BEGIN),
            end: value(BEGIN + 16),
            first: 1,
            last: 2,
        };
        assert_eq!(of(&[Pushbuffer::new(), first, last]), Some(pair));
    }

    #[test]
    fn a_copy_engine_s_stamp_ends_a_pair_too() {
        let mut p = Pushbuffer::new();
        host(&mut p, BEGIN, RELEASE | TIMESTAMP);
        p.named(4, 0xc8b5, "SET_SEMAPHORE_A", &[0, BEGIN as u32 + 16, 1])
            .expect("methods");
        p.named(4, 0xc8b5, "LAUNCH_DMA", &[0x14]).expect("a method");
        assert_eq!(of(&[p]), None, "the stamp at the end is CUDA's way");
        let mut p = Pushbuffer::new();
        host(&mut p, BEGIN, RELEASE | TIMESTAMP);
        p.named(4, 0xc8b5, "SET_SEMAPHORE_A", &[0, BEGIN as u32 + 16, 1])
            .expect("methods");
        p.named(4, 0xc8b5, "LAUNCH_DMA", &[0x14]).expect("a method");
        p.named(4, 0xc8b5, "LAUNCH_DMA", &[0x0c]).expect("a method");
        assert_eq!(of(&[p]).map(|p| p.end), Some(value(BEGIN + 16)));
    }

    #[test]
    fn other_releases_are_no_pair() {
        for (execute, end, data) in [
            (RELEASE | TIMESTAMP | WFI, BEGIN + 16, 0xf010),
            (RELEASE, BEGIN + 16, 0xf010),
            (RELEASE | TIMESTAMP, BEGIN + 32, 0xf010),
            (RELEASE | TIMESTAMP, BEGIN + 16, 0x1000_f010),
        ] {
            let mut p = Pushbuffer::new();
            host(&mut p, BEGIN, execute);
            report(&mut p, end, 1, data);
            report(&mut p, 0x41c_0c30, 3, 0x1000_f010);
            assert_eq!(of(&[p]), None, "{execute:#x} {end:#x} {data:#x}");
        }
        assert_eq!(of(&[Pushbuffer::new()]), None);
    }
}
