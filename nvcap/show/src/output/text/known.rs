//! The GPUs and channels that are known when the first line is shown.

use std::collections::BTreeMap;
use std::fmt;

use nvcap_decode::record::{ChannelId, Record};

use crate::output::plural::plural_of;

/// The channels that are known when the first line is shown, and their GPUs.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// The GPU of each channel, where it is known.
    channels: BTreeMap<ChannelId, Option<u32>>,
}

impl Known {
    /// Keeps what a record tells of a channel.
    pub(super) fn note(&mut self, record: &Record) {
        if let Record::Channel(c) = record {
            let gpu = self.channels.entry(c.id).or_default();
            *gpu = c.gpu.or(*gpu);
        }
    }

    /// Tells whether no channel is known.
    pub(super) fn is_empty(&self) -> bool {
        self.channels.is_empty()
    }
}

/// Text such as `GPU 0: 14 channels so far`.
impl fmt::Display for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut gpus: BTreeMap<Option<u32>, u64> = BTreeMap::new();
        for gpu in self.channels.values() {
            *gpus.entry(*gpu).or_default() += 1;
        }
        for (at, (gpu, channels)) in gpus.into_iter().enumerate() {
            if at > 0 {
                f.write_str(", ")?;
            }
            if let Some(gpu) = gpu {
                write!(f, "GPU {gpu}: ")?;
            }
            f.write_str(&plural_of(channels, "channel", "channels"))?;
        }
        f.write_str(" so far")
    }
}
