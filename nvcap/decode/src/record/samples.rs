//! Samples of program counters, counted by window.

use super::At;
use crate::samples::Counter;

/// Words of a set of streaming multiprocessors (SMs): a bit for each.
pub const SM_WORDS: usize = 8;

/// Program counters that the GPU sampled of one context in a window of time, counted by program counter.
///
/// The windows of a context follow one another while it is sampled; between its turns nothing is known of it.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Samples {
    /// End of the window, and the process.
    pub at: At,
    /// Begin of the window, ns.
    pub from_ns: u64,
    /// Number N of the GPU's `/dev/nvidiaN`.
    pub gpu: Option<u32>,
    /// The client's handle of the driver.
    pub client: u32,
    /// The handle of the channel group that computes.
    pub group: u32,
    /// Cycles between two samples of an SM, as their logarithm to base 2; `None` where that is not known.
    pub period: Option<u8>,
    /// A bit for each SM that sent a sample.
    pub sms: [u64; SM_WORDS],
    /// Samples by program counter, in the order of addresses.
    pub counters: Vec<(u64, Counter)>,
    /// Samples of program counters for which there was no room.
    pub others: u64,
    /// Readings at which the hardware had dropped samples, for the buffer was full.
    pub overflows: u64,
    /// Bytes of the stream.
    pub bytes: u64,
    /// Part of `bytes`: of samples that are not whole.
    pub cut_bytes: u64,
    /// Part of `bytes`: not understood.
    pub strange_bytes: u64,
    /// True if the context was gone at the end of the window.
    pub ended: bool,
}

impl Samples {
    /// Returns the number of samples.
    #[must_use]
    pub fn samples(&self) -> u64 {
        let counted = self.counters.iter().map(|(_, c)| c.samples);
        counted.fold(self.others, u64::saturating_add)
    }

    /// Returns the length of the window, ns.
    #[must_use]
    pub fn length_ns(&self) -> u64 {
        self.at.time_ns.saturating_sub(self.from_ns)
    }
}
