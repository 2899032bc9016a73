//! Samples of program counters, counted by window.

use super::At;
use crate::samples::Counter;

/// Number of words of a set of streaming multiprocessors (SMs), which has a bit for each.
pub const SM_WORDS: usize = 8;

/// Program counters that the GPU sampled of one context in a window of time, with the number of samples of each.
///
/// The windows of a context follow one another while it is sampled. Nothing is known about a context between the turns in which it is
/// sampled.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Samples {
    /// End of the window, and the process.
    pub at: At,
    /// Beginning of the window, ns.
    pub from_ns: u64,
    /// Number N of the GPU's `/dev/nvidiaN`.
    pub gpu: Option<u32>,
    /// The driver's handle of the client.
    pub client: u32,
    /// Handle of the channel group that computes.
    pub group: u32,
    /// Cycles between two samples of an SM, as their logarithm to base 2; `None` if not known.
    pub period: Option<u8>,
    /// Set of the SMs that sent a sample, one bit for each.
    pub sms: [u64; SM_WORDS],
    /// Samples by program counter, in the order of addresses.
    pub counters: Vec<(u64, Counter)>,
    /// Number of samples of program counters for which there was no room.
    pub others: u64,
    /// Number of readings at which the hardware had dropped samples, because the buffer was full.
    pub overflows: u64,
    /// Number of bytes of the stream.
    pub bytes: u64,
    /// Part of `bytes`: bytes of incomplete samples.
    pub cut_bytes: u64,
    /// Part of `bytes`: bytes that are not understood.
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
