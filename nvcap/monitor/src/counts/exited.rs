//! Sums that stay: of processes that have ended, by key; and by GPU those of keys that had no process for long. Pure.
//!
//! Nothing that was counted goes away: sums that lose their series are in the sums of their GPU.

use std::collections::BTreeMap;
use std::time::Duration;

use super::channel::Sums;
use super::detail::Sampled;
use super::view::{Folded, Key, Owner, View};

/// Times and container of a key.
#[derive(Clone, Debug)]
struct Series {
    /// Time at which its sums were 0, ns since the epoch.
    created_unix_ns: u64,
    /// Time at which it last had a process.
    last: u64,
    /// The id of the container of its newest process; empty where that is in none.
    container_id: String,
}

/// Sums that stay when their processes have ended.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// Submissions of ended processes.
    ended: BTreeMap<Key, Sums>,
    /// Sums of samples, of living processes too.
    sampled: BTreeMap<Key, Sampled>,
    /// Submissions that were pending when their channels were read for the last time.
    left: BTreeMap<Key, u64>,
    folded: BTreeMap<Option<u32>, Folded>,
    series: BTreeMap<Key, Series>,
}

impl Kept {
    /// Adds the submissions of a process that has ended, or executes another program.
    pub(super) fn end(&mut self, key: Key, sums: Sums) {
        self.ended.entry(key).or_default().add(sums);
    }

    /// Adds the samples of a process since the last call.
    pub(super) fn sampled(&mut self, key: Key, sampled: &Sampled) {
        self.sampled.entry(key).or_default().add(sampled);
    }

    /// Adds the number of submissions that were pending when their channel was read for the last time.
    pub(super) fn left(&mut self, key: Key, count: u64) {
        if count > 0 {
            *self.left.entry(key).or_default() += count;
        }
    }

    /// Notes that a key has a process.
    pub(super) fn lives(&mut self, key: Key, container_id: &str, created_unix_ns: u64, now: u64) {
        let series = self.series.entry(key).or_insert_with(|| Series {
            created_unix_ns,
            last: now,
            container_id: String::new(),
        });
        series.last = now;
        if series.container_id != container_id {
            container_id.clone_into(&mut series.container_id);
        }
    }

    /// Folds the sums of keys that have had no process for `keep`, or are more than `most`.
    pub(super) fn fold(&mut self, now: u64, keep: Duration, most: usize) {
        let over = self.series.len().saturating_sub(most);
        let host = |key: &Key| key.process.is_none() && key.owner == Owner::default();
        let mut ended: Vec<(u64, &Key)> = { self.series.iter() }
            .filter(|(key, series)| series.last < now && !host(key))
            .map(|(key, series)| (series.last, key))
            .collect();
        ended.sort_unstable();
        let old = |last: u64| u128::from(now.saturating_sub(last)) > keep.as_nanos();
        let count = ended
            .partition_point(|(last, _)| old(*last))
            .max(over.min(ended.len()));
        let away = ended.into_iter().take(count);
        let away: Vec<Key> = away.map(|(_, key)| key.clone()).collect();
        for key in away {
            self.series.remove(&key);
            let folded = self.folded.entry(key.gpu).or_default();
            folded.sums.add(self.ended.remove(&key).unwrap_or_default());
            folded.left += self.left.remove(&key).unwrap_or_default();
            if let Some(sampled) = self.sampled.remove(&key) {
                folded.sampled.add(&sampled);
            }
        }
    }

    /// Writes the sums into a view.
    pub(super) fn show(&self, view: &mut View) {
        view.folded = self.folded.clone();
        view.sampled = self.sampled.clone();
        view.left = self.left.clone();
        let ids = self
            .series
            .iter()
            .filter(|(_, s)| !s.container_id.is_empty());
        let id = |(key, s): (&Key, &Series)| (key.owner.clone(), s.container_id.clone());
        view.container_ids = ids.map(id).collect();
        for (key, sums) in &self.ended {
            view.sums.entry(key.clone()).or_default().sums.add(*sums);
        }
        let folded = self.folded.values().map(|folded| &folded.sums);
        for sums in self.ended.values().chain(folded) {
            view.ended.get_or_insert_default().add(*sums);
        }
    }

    /// Returns the time at which the sums of a key were 0, ns since the epoch.
    pub(super) fn created(&self, key: &Key) -> Option<u64> {
        self.series.get(key).map(|series| series.created_unix_ns)
    }
}
