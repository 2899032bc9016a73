//! Knowledge of the processes whose faults are watched for.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use nvcap_decode::record::{ChannelId, CpuVa};
use nvcap_process::procfs::mem::Memory;

/// A channel as the trace knows it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    pub(super) gpu: Option<u32>,
    pub(super) token: Option<u32>,
    /// Its token is known by the driver's calls, or given.
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
    /// Addresses of its notifiers.
    pub(super) notifiers: Vec<u64>,
    /// Notifiers whose errors were told.
    pub(super) told: BTreeSet<u64>,
    /// The newest channel came then.
    pub(super) changed: Option<Instant>,
    /// Searches for notifiers since.
    pub(super) searched: usize,
}
