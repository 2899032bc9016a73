//! Samples of program counters, summed up: by context, kernel and instruction. Live and recorded samples take the same way
//! ([`Samples`]), so that both have the same sums.

mod folded;
mod kernels;
mod rows;

pub use folded::{Folded, Places};
pub use kernels::{Kernels, kernel_at};
pub use rows::{Row, half_interval, rows, share};

use std::collections::{BTreeMap, HashMap};
use std::io;

use nvcap_decode::decode::event::Event;
use nvcap_decode::driver::Model;
use nvcap_decode::ledger::Ledger;
use nvcap_decode::record::{Kernel, Life, Record, SM_WORDS, Samples};
use nvcap_decode::samples::Counter;

use crate::output::{Detail, Sink};

/// The most program counters, of all contexts together, that are kept apart; the samples of others are one sum.
const MOST_COUNTERS: usize = 1 << 20;

/// The most contexts that are kept; samples of others are counted.
const MOST_CONTEXTS: usize = 1 << 12;

/// The most processes whose names are kept.
const MOST_NAMES: usize = 1 << 14;

/// A context of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContextKey {
    /// The process.
    pub pid: u32,
    /// Number N of the GPU's `/dev/nvidiaN`.
    pub gpu: Option<u32>,
    /// Handle of the client, in the driver's calls.
    pub client: u32,
    /// Handle of the channel group that computes.
    pub group: u32,
}

impl ContextKey {
    /// Returns the context of a window.
    #[must_use]
    pub fn of(samples: &Samples) -> Self {
        Self {
            pid: samples.at.pid,
            gpu: samples.gpu,
            client: samples.client,
            group: samples.group,
        }
    }
}

/// Sums of a context.
#[derive(Clone, Debug)]
pub struct ContextSums {
    /// The context.
    pub key: ContextKey,
    /// Time for which it was sampled, ns.
    pub ns: u64,
    /// Logarithm to base 2 of the cycles between two samples of an SM, where known.
    pub period: Option<u8>,
    /// Samples by program counter.
    pub counters: BTreeMap<u64, Counter>,
    /// Number of samples of program counters for which there was no room.
    pub others: u64,
    /// A bit for each SM that sent a sample.
    pub sms: [u64; SM_WORDS],
    /// Number of readings at which the hardware had dropped samples.
    pub overflows: u64,
    /// Number of bytes of the stream.
    pub bytes: u64,
    /// Part of `bytes` that belongs to samples that are not whole.
    pub cut_bytes: u64,
    /// Part of `bytes` that was not understood.
    pub strange_bytes: u64,
    /// True if the context or its process was gone in the end.
    pub ended: bool,
}

impl ContextSums {
    /// Makes sums without any sample.
    #[must_use]
    pub fn new(key: ContextKey) -> Self {
        Self {
            key,
            ns: 0,
            period: None,
            counters: BTreeMap::new(),
            others: 0,
            sms: [0; SM_WORDS],
            overflows: 0,
            bytes: 0,
            cut_bytes: 0,
            strange_bytes: 0,
            ended: false,
        }
    }

    /// Adds a window.
    pub fn add(&mut self, s: &Samples) {
        self.add_within(s, MOST_COUNTERS);
    }

    /// Adds a window, with at most `most` program counters in all.
    fn add_within(&mut self, s: &Samples, most: usize) {
        for (sum, more) in [
            (&mut self.ns, s.length_ns()),
            (&mut self.others, s.others),
            (&mut self.overflows, s.overflows),
            (&mut self.bytes, s.bytes),
            (&mut self.cut_bytes, s.cut_bytes),
            (&mut self.strange_bytes, s.strange_bytes),
        ] {
            *sum = sum.saturating_add(more);
        }
        self.period = s.period.or(self.period);
        self.ended |= s.ended;
        for (to, from) in self.sms.iter_mut().zip(s.sms) {
            *to |= from;
        }
        for (pc, counter) in &s.counters {
            if self.counters.len() >= most && !self.counters.contains_key(pc) {
                self.others = self.others.saturating_add(counter.samples);
                continue;
            }
            self.counters.entry(*pc).or_default().join(counter);
        }
    }

    /// Returns the number of samples.
    #[must_use]
    pub fn samples(&self) -> u64 {
        let counted = self.counters.values().map(|c| c.samples);
        counted.fold(self.others, u64::saturating_add)
    }

    /// Returns the number of SMs that sent a sample.
    #[must_use]
    pub fn sm_count(&self) -> u64 {
        self.sms.iter().map(|sms| u64::from(sms.count_ones())).sum()
    }

    /// Tells whether samples are missing.
    #[must_use]
    pub fn lost(&self) -> bool {
        self.overflows > 0 || self.cut_bytes > 0
    }
}

/// Samples of a recording, with the kernels and names of processes beside them.
#[derive(Debug)]
pub struct Gathered {
    contexts: Vec<ContextSums>,
    places: HashMap<ContextKey, usize>,
    kernels: Kernels,
    names: HashMap<u32, String>,
    /// Number of program counters of all contexts, and the most that are kept.
    counters: usize,
    most: usize,
    /// Samples of contexts for which there was no room.
    left_out: u64,
}

impl Default for Gathered {
    fn default() -> Self {
        Self {
            contexts: Vec::new(),
            places: HashMap::new(),
            kernels: Kernels::default(),
            names: HashMap::new(),
            counters: 0,
            most: MOST_COUNTERS,
            left_out: 0,
        }
    }
}

impl Gathered {
    /// Takes the next record.
    pub fn record(&mut self, record: &Record) {
        match record {
            Record::Samples(s) => self.samples(s),
            Record::Kernel(k) => self.kernels.add(k),
            Record::Process(p) => match &p.life {
                Life::Present { name } | Life::Exec { name }
                    if (p.at.tid == 0 || p.at.tid == p.at.pid) && self.names.len() < MOST_NAMES =>
                {
                    self.names.insert(p.at.pid, name.clone());
                }
                // Of one that is sampled the samples may come later than its end.
                Life::Exit { process: true } if !self.is_sampled(p.at.pid) => {
                    self.kernels.forget(p.at.pid);
                    self.names.remove(&p.at.pid);
                }
                _ => {}
            },
            _ => {}
        }
    }

    fn is_sampled(&self, pid: u32) -> bool {
        self.contexts.iter().any(|sums| sums.key.pid == pid)
    }

    fn samples(&mut self, s: &Samples) {
        let key = ContextKey::of(s);
        let next = self.contexts.len();
        let place = match self.places.get(&key) {
            Some(place) => *place,
            None if next >= MOST_CONTEXTS => {
                self.left_out = self.left_out.saturating_add(s.samples());
                return;
            }
            None => {
                self.places.insert(key, next);
                self.contexts.push(ContextSums::new(key));
                next
            }
        };
        if let Some(context) = self.contexts.get_mut(place) {
            let own = context.counters.len();
            let others = self.counters.saturating_sub(own);
            context.add_within(s, self.most.saturating_sub(others));
            self.counters = others + context.counters.len();
        }
    }

    /// The contexts, in the order in which they came.
    #[must_use]
    pub fn contexts(&self) -> &[ContextSums] {
        &self.contexts
    }

    /// The kernels of a process that are known, in the order of addresses.
    #[must_use]
    pub fn kernels(&self, pid: u32) -> &[Kernel] {
        self.kernels.of(pid)
    }

    /// The name of a process, where known.
    #[must_use]
    pub fn name(&self, pid: u32) -> Option<&str> {
        self.names.get(&pid).map(String::as_str)
    }

    /// Returns the number of samples of contexts for which there was no room.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.left_out
    }
}

impl Sink for Gathered {
    fn detail(&self) -> Option<Detail> {
        None
    }

    fn event(&mut self, _: &Event<'_>) -> io::Result<()> {
        Ok(())
    }

    fn record(&mut self, record: &Record, _: &Model) -> io::Result<()> {
        Self::record(self, record);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn finish(&mut self, _: &Ledger, _: &Model) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use nvcap_decode::record::{At, Process};

    /// A window of a context: samples by program counter.
    pub(crate) fn window(pid: u32, (from_ns, to_ns): (u64, u64), counts: &[(u64, u64)]) -> Samples {
        let counter = |samples| Counter {
            samples,
            not_issued: samples / 2,
            ..Counter::default()
        };
        Samples {
            at: At::of_process(to_ns, pid),
            from_ns,
            gpu: Some(0),
            client: 0xc1d0_0000 + pid,
            group: 0x5c00_0001,
            period: Some(19),
            sms: [0xf, 0, 0, 0, 0, 0, 0, 0],
            counters: counts.iter().map(|(pc, n)| (*pc, counter(*n))).collect(),
            ..Samples::default()
        }
    }

    fn kernel(pid: u32, program: u64, name: &str) -> Kernel {
        Kernel {
            bytes: Some(0x100),
            ..Kernel::called(At::of_process(1, pid), program, name)
        }
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut all = Gathered {
            most: 100,
            ..Gathered::default()
        };
        for pid in 1..=3 {
            let many: Vec<_> = (0..60).map(|i| (16 * i, 2)).collect();
            all.record(&Record::Samples(Box::new(window(pid, (0, 1), &many))));
        }
        let kept: Vec<_> = { all.contexts().iter() }
            .map(|sums| (sums.counters.len(), sums.others, sums.samples()))
            .collect();
        assert_eq!(kept, [(60, 0, 120), (40, 40, 120), (0, 120, 120)]);
        // Kernels of processes that were not sampled go with them.
        for pid in [3, 4] {
            all.record(&Record::Kernel(Box::new(kernel(pid, 0x1000, "k"))));
            let life = Life::Exit { process: true };
            let at = At::of_process(2, pid);
            all.record(&Record::Process(Process { at, life }));
        }
        assert_eq!((all.kernels(3).len(), all.kernels(4).len()), (1, 0));
    }

    #[test]
    fn windows_of_a_context_are_summed_up() {
        let mut all = Gathered::default();
        let mut last = window(1, (500, 900), &[(0x1010, 5), (0x2000, 7)]);
        last.ended = true;
        last.sms[0] = 0x30;
        for record in [
            Record::Samples(Box::new(window(1, (0, 500), &[(0x1000, 10), (0x1010, 20)]))),
            Record::Kernel(Box::new(kernel(1, 0x1000, "first"))),
            // Of another process, at the same address.
            Record::Kernel(Box::new(kernel(2, 0x1000, "other"))),
            Record::Samples(Box::new(last)),
            Record::Samples(Box::new(window(2, (900, 1000), &[(0x1000, 1)]))),
        ] {
            all.record(&record);
        }
        let [one, two] = all.contexts() else {
            panic!("{:?}", all.contexts());
        };
        assert_eq!(
            (one.ns, one.samples(), one.sm_count(), one.ended),
            (900, 42, 6, true)
        );
        assert_eq!((two.ns, two.samples(), two.ended), (100, 1, false));
        let (known, unknown) = rows(&one.counters, all.kernels(1));
        let known: Vec<_> = { known.iter() }
            .map(|row| {
                (
                    row.kernel.name.as_str(),
                    row.all.samples,
                    row.instructions.len(),
                )
            })
            .collect();
        assert_eq!(known, [("first", 35, 2)]);
        assert_eq!(unknown.len(), 1);
        let (known, _) = rows(&two.counters, all.kernels(2));
        assert_eq!(known[0].kernel.name, "other");
    }
}
