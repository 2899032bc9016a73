//! A process that is counted: what is known of it, and what is read of its memory.

use std::collections::BTreeMap;

use super::super::channel::{Doubt, From};
use super::super::detail::Detail;
use super::super::exited::Kept;
use super::super::process::Channels;
use super::super::source::Lends;
use super::super::view::{Clocks, GpuView, Key, LastSeen, Named, Owner};

/// A process that is counted.
pub(super) struct Watched<M> {
    pub memory: M,
    pub name: String,
    pub owner: Owner,
    pub container_id: String,
    /// Instance in MIG mode that it uses, by GPU.
    pub instances: BTreeMap<u32, u32>,
    pub named: Option<Named>,
    pub image: Vec<u8>,
    pub detail: Option<Detail>,
    pub from: From,
    pub began_unix_ns: u64,
    pub since_unix_ns: u64,
    pub channels: Channels,
    /// The other process that counts these channels, where both have the same in their memory.
    pub shares: Option<u32>,
    pub pages: u64,
    pub opened: u64,
    pub first_found: Option<u64>,
    pub searched: u64,
    pub search_cost: u64,
    /// The mappings of GPUs' memory at the last search.
    pub of_gpus: Vec<(u64, u64)>,
    pub glanced: u64,
    pub glance_cost: u64,
    /// Number of searches in a row that may have missed a channel.
    pub doubtful: u32,
    /// True if there may be other channels than those that are known.
    pub wants_search: bool,
    /// True if its size has changed since the last search: it may have other mappings.
    pub has_grown: bool,
    /// True if known channels are gone, or are not what they were.
    pub is_lost: bool,
    /// True if it may have its channels from a process that has ended: what it had submitted itself before it was found is not counted.
    pub may_inherit: bool,
    /// True if a reading was given up, and its channels with it.
    pub is_given_up: bool,
    pub read_ns: u64,
}

impl<M: Lends> Watched<M> {
    /// Does work that reads its memory. None where the work is given up, or was before: of the channels only the sums are left.
    pub(super) fn lend<T, W>(&mut self, work: W) -> Option<T>
    where
        T: Send + 'static,
        W: FnOnce(&M::Lent, &mut Channels, Option<&mut Detail>) -> T + Send + 'static,
    {
        if self.is_given_up {
            return None;
        }
        let left = self.channels.sums_alone();
        let mut channels = std::mem::take(&mut self.channels);
        let mut detail = self.detail.take();
        let lent = self.memory.lend(move |memory| {
            let done = work(memory, &mut channels, detail.as_mut());
            (channels, detail, done)
        });
        match lent {
            Ok((channels, detail, done)) => {
                (self.channels, self.detail) = (channels, detail);
                Some(done)
            }
            Err(_) => {
                self.channels = left;
                (self.is_given_up, self.wants_search) = (true, true);
                None
            }
        }
    }
}

impl<M> Watched<M> {
    /// The key under which its submissions to a GPU are summed up.
    pub(super) fn key(&self, gpu: Option<u32>) -> Key {
        Key {
            owner: self.owner.clone(),
            process: self.named.clone(),
            gpu,
            instance: gpu.and_then(|gpu| self.instances.get(&gpu).copied()),
        }
    }

    /// Keeps what samples told since the last call.
    pub(super) fn keep_samples(&mut self, kept: &mut Kept) {
        let new = self.detail.as_mut().map(Detail::take);
        for (gpu, sampled) in new.unwrap_or_default() {
            kept.sampled(self.key(gpu), &sampled);
        }
    }

    pub(super) fn gpus(&self, clocks: &Clocks) -> BTreeMap<Option<u32>, GpuView> {
        let mut gpus: BTreeMap<Option<u32>, GpuView> = BTreeMap::new();
        for (gpu, sums) in self.channels.sums() {
            gpus.entry(gpu).or_default().sums = sums;
        }
        for channel in self.channels.iter() {
            let of = gpus.entry(channel.gpu).or_default();
            let first = of.channels() == 0;
            of.join(&clocks.channel(channel), first);
        }
        for (gpu, why) in self.channels.doubts() {
            gpus.entry(*gpu).or_default().doubts.extend(why);
        }
        if self.may_inherit {
            for of in gpus.values_mut() {
                of.doubts.insert(Doubt::Beginning);
            }
        }
        if self.may_have_others() {
            // Of which GPU they are is not known.
            for of in gpus.values_mut() {
                of.doubts.insert(Doubt::Search);
            }
        }
        gpus
    }

    /// Tells whether there may be channels that were not looked for yet.
    pub(super) fn may_have_others(&self) -> bool {
        self.wants_search || self.has_grown
    }

    /// The state in which it is seen for the last time, a time before its end. It was idle where it rested for as long as it was not seen then: on a
    /// busy machine it may have got no processor between two readings.
    pub(super) fn last_seen(&self, unseen_ns: u64) -> LastSeen {
        let rests_since = self.channels.rests_since();
        let rested = |since: u64| self.read_ns.saturating_sub(since) >= unseen_ns;
        // It may have had none yet.
        let none_yet = self.channels.is_empty() && !rested(self.opened);
        let may_lack = none_yet || self.may_have_others() || self.lacks_some();
        match () {
            () if rests_since.is_none_or(|since| since == self.read_ns) => LastSeen::Busy,
            () if may_lack => LastSeen::Searched,
            () if rests_since.is_some_and(|since| !rested(since)) => LastSeen::Busy,
            () => LastSeen::Idle,
        }
    }

    /// Tells whether its sums may lack some of what its channels had done at its last reading. (Of a channel that is gone or that could not be read,
    /// as at the process's end, only the last moment was not seen.)
    fn lacks_some(&self) -> bool {
        let of_channels = self.channels.iter().flat_map(|channel| channel.doubts());
        let before = self.channels.doubts().values().flatten().copied();
        of_channels
            .chain(before)
            .any(|doubt| !matches!(doubt, Doubt::Gone | Doubt::Unread))
            || self.may_inherit
    }
}
