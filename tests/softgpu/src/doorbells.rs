//! When the doorbells were rung, and how many submissions have run: what the thread that is the GPU and those that submit know
//! of each other.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::layout::{CHANNELS, Channel, ENTRIES, GPUS};

/// The doorbells of all channels. Of each channel the last [`ENTRIES`] are kept: no more are ever waiting.
#[derive(Debug)]
pub struct Doorbells {
    of: Vec<Rung>,
    /// Entries of a channel that may wait at most.
    pub most: u32,
}

#[derive(Debug)]
struct Rung {
    count: AtomicU64,
    times: Vec<[AtomicU64; 2]>,
    run: AtomicU64,
}

impl Doorbells {
    /// None are rung yet; `most` entries of a channel may wait.
    pub fn new(most: u32) -> Doorbells {
        let zeros = |n: u32| {
            (0..n)
                .map(|_| [AtomicU64::new(0), AtomicU64::new(0)])
                .collect()
        };
        let of = (0..GPUS * CHANNELS).map(|_| Rung {
            count: AtomicU64::new(0),
            times: zeros(ENTRIES),
            run: AtomicU64::new(0),
        });
        Doorbells {
            of: of.collect(),
            most: most.min(ENTRIES - 1),
        }
    }

    /// One was rung between two times. The channel's lock is held.
    pub fn rung(&self, channel: Channel, before: u64, after: u64) {
        let rung = &self.of[channel.number()];
        let number = rung.count.load(Ordering::Relaxed);
        let at = (number % u64::from(ENTRIES)) as usize;
        rung.times[at][0].store(before, Ordering::Relaxed);
        rung.times[at][1].store(after, Ordering::Relaxed);
        rung.count.store(number + 1, Ordering::Release);
    }

    /// How many were rung for a channel.
    pub fn count(&self, channel: Channel) -> u64 {
        self.of[channel.number()].count.load(Ordering::Acquire)
    }

    /// The GPU has run one more.
    pub fn ran(&self, channel: Channel) {
        self.of[channel.number()]
            .run
            .fetch_add(1, Ordering::Release);
    }

    /// Everything that was submitted to a channel has run.
    pub fn is_idle(&self, channel: Channel) -> bool {
        self.of[channel.number()].run.load(Ordering::Acquire) == self.count(channel)
    }

    /// Times before and after the doorbell with this number, if it was rung.
    pub fn times(&self, channel: Channel, number: u64) -> Option<[u64; 2]> {
        let rung = &self.of[channel.number()];
        let at = (number % u64::from(ENTRIES)) as usize;
        (number < self.count(channel))
            .then(|| [0, 1].map(|i: usize| rung.times[at][i].load(Ordering::Relaxed)))
    }
}
