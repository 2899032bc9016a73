//! Times at which the doorbells were rung, and numbers of submissions that have run: what the thread that is the GPU and those
//! that submit know of each other.

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
    /// Time at which GP_PUT was written for the next doorbell.
    put: AtomicU64,
    times: Vec<[AtomicU64; 3]>,
    run: AtomicU64,
}

impl Doorbells {
    /// Begins with no doorbell rung; `most` entries of a channel may wait.
    pub fn new(most: u32) -> Doorbells {
        let zeros = |n: u32| (0..n).map(|_| [const { AtomicU64::new(0) }; 3]).collect();
        let of = (0..GPUS * CHANNELS).map(|_| Rung {
            count: AtomicU64::new(0),
            put: AtomicU64::new(0),
            times: zeros(ENTRIES),
            run: AtomicU64::new(0),
        });
        Doorbells {
            of: of.collect(),
            most: most.min(ENTRIES - 1),
        }
    }

    /// GP_PUT of a channel is about to be written. The channel's lock is held.
    pub fn put(&self, channel: Channel, time: u64) {
        self.of[channel.number()].put.store(time, Ordering::Relaxed);
    }

    /// One was rung between two times. The channel's lock is held.
    pub fn rung(&self, channel: Channel, before: u64, after: u64) {
        let rung = &self.of[channel.number()];
        let number = rung.count.load(Ordering::Relaxed);
        let at = (number % u64::from(ENTRIES)) as usize;
        let put = rung.put.load(Ordering::Relaxed);
        for (to, time) in rung.times[at].iter().zip([put, before, after]) {
            to.store(time, Ordering::Relaxed);
        }
        rung.count.store(number + 1, Ordering::Release);
    }

    /// Returns the number of doorbells that were rung for a channel.
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

    /// Times before GP_PUT was written, before and after the doorbell with this number, if it was rung.
    pub fn times(&self, channel: Channel, number: u64) -> Option<[u64; 3]> {
        let rung = &self.of[channel.number()];
        let at = (number % u64::from(ENTRIES)) as usize;
        (number < self.count(channel))
            .then(|| rung.times[at].each_ref().map(|t| t.load(Ordering::Relaxed)))
    }
}
