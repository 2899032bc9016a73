//! Knowledge of the processes whose faults are watched for.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use nvcap_decode::record::{ChannelId, CpuVa};
use nvcap_process::memory::notifier::Notifier;
use nvcap_process::procfs::mem::Memory;

/// The most errors in notifiers that are reported of one look, and of a process, because a process can write any number of them. One error of
/// a channel shows in all notifiers of its group, which has eight channels.
const MOST_OF_LOOK: usize = 256;
const MOST_OF_PROCESS: usize = 1 << 10;

/// Longest time between a look at a process that stands at its end and the news that it has ended.
const END: Duration = Duration::from_secs(1);

/// A channel as the trace knows it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    pub(super) gpu: Option<u32>,
    pub(super) token: Option<u32>,
    /// True if the driver's calls or the user told the channel's token.
    pub(super) is_certain: bool,
    pub(super) ring: Option<CpuVa>,
    pub(super) userd: Option<CpuVa>,
    pub(super) submits: bool,
}

/// A process whose notifiers are read.
#[derive(Debug, Default)]
pub(super) struct Watched {
    pub(super) channels: BTreeMap<ChannelId, Known>,
    pub(super) memory: Option<Memory>,
    /// Addresses of the process's notifiers.
    pub(super) notifiers: Vec<u64>,
    /// Notifiers whose errors were reported.
    pub(super) told: BTreeSet<u64>,
    /// Number of errors that were reported.
    pub(super) errors: usize,
    /// Time at which the newest channel came.
    pub(super) changed: Option<Instant>,
    /// Number of searches for notifiers since then.
    pub(super) searched: usize,
    /// Time of the last look that read all notifiers while some process stood at its end.
    pub(super) at_end: Option<Instant>,
}

impl Watched {
    /// Tells whether this process, which has ended, may have had a fault that no look has seen.
    pub(super) fn is_unread(&self, now: Instant) -> bool {
        let has_some = self.memory.is_none() || !self.notifiers.is_empty();
        has_some && self.at_end.is_none_or(|at| now >= at + END)
    }

    /// Returns the notifiers whose errors must be reported now, of those with an error. They count as reported.
    pub(super) fn untold(&mut self, pid: u32, with_error: &[Notifier]) -> Vec<Notifier> {
        let room = MOST_OF_PROCESS
            .saturating_sub(self.errors)
            .min(MOST_OF_LOOK);
        let new = with_error
            .iter()
            .filter(|n| !self.told.contains(&n.address));
        let new: Vec<Notifier> = new.take(room).copied().collect();
        self.errors += new.len();
        if !new.is_empty() && self.errors >= MOST_OF_PROCESS {
            log::info!(
                "process {pid}: it has written {MOST_OF_PROCESS} errors into its notifiers; further ones are not told"
            );
        }
        self.told.extend(new.iter().map(|n| n.address));
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvcap_decode::record::Notification;

    /// The errors of a process that writes them into its notifiers again and again are reported a bounded number of times.
    #[test]
    fn errors_of_a_process_are_bounded() {
        let mut process = Watched::default();
        let all = |from: u64| -> Vec<Notifier> {
            let one = |n| Notifier {
                address: 0x1000 * n,
                token: 1,
                error: Some(n as u32),
                notification: Notification::default(),
            };
            (from..from + 10_000).map(one).collect()
        };
        let first = process.untold(7, &all(1));
        assert_eq!(first.len(), MOST_OF_LOOK);
        let second = process.untold(7, &all(1));
        assert_eq!(second[0].address, first[MOST_OF_LOOK - 1].address + 0x1000);
        assert!(process.untold(7, &first).is_empty());
        // It maps them anew.
        let more = (0..100).map(|n| {
            process.told.clear();
            process.untold(7, &all(1 + n)).len()
        });
        assert_eq!(more.sum::<usize>(), MOST_OF_PROCESS - 2 * MOST_OF_LOOK);
    }
}
