//! Counts at one moment: by process, by channel, and by whose they are. Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::channel::{Age, Doubt, How, State, Sums};
use super::detail::Sampled;
use super::detail::busy::{Moments, Unit};
use super::detail::estimate::Share;
use super::followed::Followed;

/// Time by which a time stamp of the GPU may lie outside the readings between which it was written, ns.
const STAMP_SLACK: u64 = 100_000_000;

/// Owner of a process; empty words where that is not known. Sums of ended processes are kept by it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner {
    /// Kubernetes' namespace.
    pub namespace: String,
    /// Its pod.
    pub pod: String,
    /// The container's name, or its id.
    pub container: String,
}

/// A process that cannot be looked into.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refused {
    /// Its name; empty where that is not known.
    pub name: String,
    /// Its user, by name or number; empty where that is not known.
    pub user: String,
    /// Reason why it cannot be looked into.
    pub why: String,
    /// True if the process is known to use a GPU.
    pub uses_gpu: bool,
}

/// The most processes that a message names as not to be looked into.
pub const NAMED: usize = 8;

/// Returns text on those that cannot be looked into, by name: the ones that use a GPU first.
pub fn named(refused: &BTreeMap<u32, Refused>) -> String {
    let mut all: Vec<(&u32, &Refused)> = refused.iter().collect();
    all.sort_by_key(|(_, r)| !r.uses_gpu);
    let one = |(pid, r): &(&u32, &Refused)| match r.user.as_str() {
        _ if **pid == 0 => r.name.clone(),
        "" => format!("{} {pid}", r.name),
        user => format!("{} {pid} of {user}", r.name),
    };
    let mut text = all
        .iter()
        .take(NAMED)
        .map(one)
        .collect::<Vec<_>>()
        .join(", ");
    if let Some(more @ 1..) = all.len().checked_sub(NAMED) {
        text += &format!(" and {more} more");
    }
    text
}

/// A process that has sums of its own: all that its labels tell of it, so that no two series have the same ones.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Named {
    /// Its id.
    pub pid: u32,
    /// Its name.
    pub name: String,
}

/// Key of sums of processes that belong together.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// Owner of the processes.
    pub owner: Owner,
    /// The one process whose sums these are, where each process has sums of its own.
    pub process: Option<Named>,
    /// GPU by device file minor number.
    pub gpu: Option<u32>,
    /// Its instance in MIG mode, where that is known.
    pub instance: Option<u32>,
}

/// Sums, and the time from which they count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// The sums.
    pub sums: Sums,
    /// Time at which they were 0, ns since the epoch.
    pub created_unix_ns: u64,
}

/// All that was counted for keys that have no series any more.
#[derive(Clone, Debug, Default)]
pub struct Folded {
    /// Submissions.
    pub sums: Sums,
    /// Sums of samples.
    pub sampled: Sampled,
    /// Submissions that were pending when their channels were read for the last time.
    pub left: u64,
}

/// State of a process when it was last read before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LastSeen {
    /// At work.
    Busy,
    /// Not all of its channels may have been found, or not all that they did may have been counted.
    Searched,
    /// All that was known of was done.
    Idle,
}

impl LastSeen {
    /// Its word.
    pub fn word(self) -> &'static str {
        match self {
            LastSeen::Busy => "busy",
            LastSeen::Searched => "search",
            LastSeen::Idle => "idle",
        }
    }
}

/// Counts of a process's channels on one GPU.
#[derive(Clone, Debug, Default)]
pub struct GpuView {
    /// Sums since counting began.
    pub sums: Sums,
    /// Sums since the channels' beginnings, where that is known of all.
    pub in_all: Option<Sums>,
    /// Number of submissions that are not done.
    pub pending: u64,
    /// Number of pending submissions that the GPU has not fetched.
    pub unfetched: u64,
    /// Age of the oldest pending submission.
    pub oldest: Option<Age>,
    /// The last end of a submission, ns since the epoch.
    pub progress_unix_ns: Option<u64>,
    /// Channels by state, in the order of `State::ALL`.
    pub states: [u64; State::ALL.len()],
    /// Numbers of the errors after which the driver has stopped channels.
    pub errors: BTreeSet<u32>,
    /// Number of channels that are counted by GP_GET and GP_PUT.
    pub by_ring: u64,
    /// Reasons why the counts are not exact; none where they are.
    pub doubts: BTreeSet<Doubt>,
}

/// One channel.
#[derive(Clone, Debug)]
pub struct ChannelView {
    /// The GPU.
    pub gpu: Option<u32>,
    /// Address of its ring.
    pub ring: u64,
    /// Counts of the channel.
    pub view: GpuView,
}

/// A process.
#[derive(Clone, Debug, Default)]
pub struct ProcessView {
    /// Its id.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// Owner of the process.
    pub owner: Owner,
    /// Time at which it began, ns since the epoch.
    pub began_unix_ns: u64,
    /// Time at which counting began, ns since the epoch.
    pub since_unix_ns: u64,
    /// The other process that counts these channels, where both have the same in their memory.
    pub shares: Option<u32>,
    /// Counts by GPU.
    pub gpus: BTreeMap<Option<u32>, GpuView>,
    /// True if the process has sums of its own.
    pub has_series: bool,
}

/// Times of contexts on the GPUs, as the driver records them; they only grow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shares {
    /// Time for which contexts were resident, by whose they are, ns.
    pub resident_ns: BTreeMap<Key, u64>,
    /// Times that are nobody's, by GPU and MIG instance.
    pub engines: BTreeMap<Key, EngineShares>,
}

/// Times of a GPU, or of a MIG instance, that are nobody's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineShares {
    /// Number of switches.
    pub switches: u64,
    /// Time in them, ns.
    pub switch_ns: u64,
    /// Time of which it is not known who had the GPU, ns.
    pub unknown_ns: u64,
    /// Records that the driver has lost.
    pub missing: u64,
}

/// The counts of all processes at one reading.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// Time of the reading, ns since the epoch.
    pub unix_ns: u64,
    /// The processes.
    pub processes: Vec<ProcessView>,
    /// Processes that cannot be looked into, and that use a GPU or may use one.
    pub refused: BTreeMap<u32, Refused>,
    /// The sums by key, of living and of ended processes.
    pub sums: BTreeMap<Key, Counted>,
    /// The ids of containers.
    pub container_ids: BTreeMap<Owner, String>,
    /// Estimates from samples, by key.
    pub sampled: BTreeMap<Key, Sampled>,
    /// Share of the last minute in which each engine of a GPU had work.
    pub busy: BTreeMap<Unit, Share>,
    /// Moments that were looked at, and those with work.
    pub moments: Moments,
    /// The state of living processes, by key.
    pub live: BTreeMap<Key, Vec<GpuView>>,
    /// The sums of all processes that have ended.
    pub ended: Option<Sums>,
    /// Number of processes that have ended, by how they were last seen: what each did after that is not in the sums.
    pub ended_unseen: BTreeMap<LastSeen, u64>,
    /// Counts of ended processes that have no key of their own any more, by GPU.
    pub folded: BTreeMap<Option<u32>, Folded>,
    /// Submissions that were pending when their channels were read for the last time, by key: nobody saw whether they were done.
    pub left: BTreeMap<Key, u64>,
    /// Time in which submissions may have passed unseen, by reason, ns.
    pub blind_ns: BTreeMap<&'static str, u64>,
    /// Holders of the GPUs, where the driver is asked for them.
    pub shares: Option<Shares>,
    /// CPU time of nvcap, ns.
    pub cpu_ns: u64,
    /// Number of refused processes whose memory did not answer in time, and is not waited for any more.
    pub given_up: usize,
    /// Number of readings that were delayed to keep the budget.
    pub stretched: u64,
}

/// A moment, on two clocks.
pub(super) struct Clocks {
    pub now: u64,
    pub unix_ns: u64,
}

impl Clocks {
    /// A channel, without its sums.
    pub(super) fn channel(&self, channel: &Followed) -> GpuView {
        let count = &channel.count;
        let mut states = [0; State::ALL.len()];
        let state = match channel.stopped {
            Some(_) => State::Stopped,
            None => count.state(),
        };
        if let Some(state) = states.get_mut(state as usize) {
            *state = 1;
        }
        GpuView {
            sums: Sums::default(),
            in_all: count.in_all(),
            pending: count.pending(),
            unfetched: count.unfetched(),
            oldest: count.oldest(self.now),
            progress_unix_ns: self.progress(channel),
            states,
            errors: channel.stopped.into_iter().collect(),
            by_ring: u64::from(matches!(count.how(), How::Ring(_))),
            doubts: channel.doubts().collect(),
        }
    }

    /// Returns the time at which a channel's last submission was done, ns since the epoch. The GPU's clock is close to that of the machine.
    /// A time stamp that contradicts the readings is not used: then it is the time of the reading that saw the progress.
    fn progress(&self, channel: &Followed) -> Option<u64> {
        let unix = |ns: u64| (self.unix_ns + ns).saturating_sub(self.now);
        let seen = channel.count.progress();
        let (from, to) = match seen {
            Some((after, at)) => (unix(after).saturating_sub(STAMP_SLACK), unix(at)),
            None => (1, self.unix_ns),
        };
        let fits = |ns: &u64| (from..=to.saturating_add(STAMP_SLACK)).contains(ns);
        let stamp = channel.stamp_ns.filter(fits);
        stamp
            .map(|ns| ns.min(self.unix_ns))
            .or(seen.map(|(_, at)| unix(at)))
    }
}

impl ProcessView {
    /// The counts of all its GPUs together.
    pub fn whole(&self) -> GpuView {
        let mut whole = GpuView::default();
        for (n, of) in self.gpus.values().enumerate() {
            whole.join(of, n == 0);
        }
        whole
    }
}

impl GpuView {
    /// Adds another's counts. `first`: nothing was added to this one before, so it takes over what the other knows.
    pub(crate) fn join(&mut self, other: &Self, first: bool) {
        self.sums.add(other.sums);
        self.in_all = match (self.in_all, other.in_all) {
            (None, Some(other)) if first => Some(other),
            (Some(mut mine), Some(other)) => {
                mine.add(other);
                Some(mine)
            }
            _ => None,
        };
        self.pending += other.pending;
        self.unfetched += other.unfetched;
        self.oldest = match (self.oldest, other.oldest) {
            (Some(mine), Some(other)) if mine.least_ns >= other.least_ns => Some(mine),
            (mine, other) => other.or(mine),
        };
        self.progress_unix_ns = self.progress_unix_ns.max(other.progress_unix_ns);
        for (mine, other) in self.states.iter_mut().zip(other.states) {
            *mine += other;
        }
        self.errors.extend(&other.errors);
        self.by_ring += other.by_ring;
        self.doubts.extend(&other.doubts);
    }

    /// Returns the number of channels.
    pub fn channels(&self) -> u64 {
        self.states.iter().sum()
    }

    /// Returns the state of all channels together.
    pub fn state(&self) -> State {
        // If one channel works and another waits, the whole works: something makes progress.
        const ORDER: [State; 3] = [State::Stopped, State::Working, State::Waiting];
        let has = |state: &State| self.states.get(*state as usize).is_some_and(|n| *n > 0);
        ORDER.into_iter().find(has).unwrap_or(State::Idle)
    }

    /// Returns the state in words: of stopped channels the errors, as the driver numbers them.
    pub fn words(&self) -> String {
        match (self.state(), self.errors.is_empty()) {
            (State::Stopped, false) => {
                let all: Vec<String> = self.errors.iter().map(u32::to_string).collect();
                format!("Xid {}", all.join(", "))
            }
            (state, _) => state.word().to_owned(),
        }
    }
}
