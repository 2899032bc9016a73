//! Work of the last rank between two calls, compared with that of the others: kernels that it had more of or that took longer, and time in which it
//! had nothing to do.

use std::collections::BTreeMap;

use super::arrivals::Arrival;
use super::job::{Class, Job, Rank};
use super::matching::Communicator;

/// Number of times that each work is looked at, on average: windows between calls do not overlap where a rank calls one after the other. Beyond that,
/// later calls have no causes.
const LOOKS: usize = 8;
/// Number of looks that are made in any case.
const MOST_LOOKS_MORE: usize = 1 << 16;

/// Part of a rank's time that belongs to one work: where several run at once, to the one that began first.
#[derive(Clone, Copy, Debug)]
struct Slice {
    begin: u64,
    end: u64,
    name: u32,
    there: Option<u64>,
}

/// A rank's time in the order of its work.
#[derive(Debug)]
pub(super) struct Timeline(Vec<Slice>);

impl Timeline {
    pub(super) fn of(rank: &Rank) -> Self {
        let mut works: Vec<_> = rank.works.iter().collect();
        works.sort_by_key(|w| (w.begin, w.class == Class::Collective, w.end));
        let mut until = 0;
        let slices = works.into_iter().map(|w| {
            let begin = w.begin.max(until);
            until = w.end.max(begin);
            Slice {
                begin,
                end: until,
                name: w.name,
                there: w.there,
            }
        });
        Self(slices.collect())
    }

    /// Sums up a rank's work from one time to another. `looks` is the number of works that may still be looked at, and is reduced by those that are.
    fn did(&self, from: u64, to: u64, looks: &mut usize) -> Did {
        let mut did = Did::default();
        let first = self.0.partition_point(|s| s.end <= from);
        let mut until = from;
        for slice in &self.0[first..] {
            *looks = looks.saturating_sub(1);
            if *looks == 0 {
                break;
            }
            // The gap before it, of which the part counts as the host's in which it was not submitted.
            let gap = slice.begin.min(to).saturating_sub(until);
            if gap > 0 {
                did.idle += gap;
                match slice.there {
                    Some(there) => did.nothing += there.clamp(until, until + gap) - until,
                    None => did.unknown += gap,
                }
            }
            if slice.begin >= to {
                break;
            }
            let begin = slice.begin.max(from);
            let row = did.by_name.entry(slice.name).or_default();
            row.0 += u64::from(slice.begin >= from);
            row.1 += slice.end.min(to).saturating_sub(begin);
            until = until.max(slice.end.min(to));
        }
        did
    }
}

/// Count and time of works by name, and time without work, ns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Did {
    by_name: BTreeMap<u32, (u64, u64)>,
    idle: u64,
    /// Part of `idle` in which the next work was not submitted; and the part of which that is not known.
    nothing: u64,
    unknown: u64,
}

/// Work that the last rank had more of than the median of the others, in sum; negative where it had less.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct More {
    pub(super) count: i64,
    pub(super) ns: i64,
    /// Time of this work in the last one, ns.
    pub(super) own_ns: u64,
}

/// Work and idle time of a rank that came late, beyond those of the others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Causes {
    /// Number of calls to which it came last and alone, and for which both ends of the time before are known.
    pub(super) calls: u64,
    /// Sum of its lateness at these calls, ns.
    pub(super) late: u64,
    /// Surplus by name of the work.
    pub(super) works: BTreeMap<u32, More>,
    /// Surplus of time without work, ns; the part in which nothing was submitted; and the part of which that is not known.
    pub(super) idle: i64,
    pub(super) nothing: i64,
    pub(super) unknown: i64,
}

fn median(mut all: Vec<u64>) -> u64 {
    all.sort_unstable();
    all.get(all.len() / 2).copied().unwrap_or(0)
}

/// Returns the causes by member and kind, for calls to which one member came last alone.
pub(super) fn of(
    job: &Job,
    of: &Communicator,
    arrivals: &[Arrival],
    timelines: &[Timeline],
) -> BTreeMap<(usize, u32), Causes> {
    let mut all: BTreeMap<(usize, u32), Causes> = BTreeMap::new();
    let works: usize = { of.members.iter() }
        .map(|m| timelines[m.rank].0.len())
        .sum();
    let mut looks = works.saturating_mul(LOOKS).saturating_add(MOST_LOOKS_MORE);
    for arrival in arrivals {
        let [last] = arrival.last[..] else { continue };
        let Some(before) = arrival.call.checked_sub(1) else {
            continue;
        };
        let window = |member: usize| {
            let rank = of.members[member].rank;
            let call = |n: usize| Some(&job.ranks[rank].calls[of.calls[n].of[member]?]);
            Some((call(before)?.end?, call(arrival.call)?.begin?))
        };
        let did: Option<Vec<Did>> = (0..of.members.len())
            .map(|member| {
                let (from, to) = window(member)?;
                Some(timelines[of.members[member].rank].did(from, to, &mut looks))
            })
            .collect();
        if looks == 0 {
            break;
        }
        let Some(did) = did else { continue };
        let causes = all.entry((last, arrival.kind)).or_default();
        causes.calls += 1;
        causes.late += arrival.late;
        let others = |value: &dyn Fn(&Did) -> u64| {
            let others = did.iter().enumerate().filter(|(m, _)| *m != last);
            median(others.map(|(_, d)| value(d)).collect())
        };
        let own = &did[last];
        let more = |value: &dyn Fn(&Did) -> u64| value(own) as i64 - others(value) as i64;
        let mut names: Vec<u32> = did.iter().flat_map(|d| d.by_name.keys().copied()).collect();
        names.sort_unstable();
        names.dedup();
        for name in names {
            let of = |d: &Did| d.by_name.get(&name).copied().unwrap_or_default();
            let work = causes.works.entry(name).or_default();
            work.count += more(&|d| of(d).0);
            work.ns += more(&|d| of(d).1);
            work.own_ns += of(own).1;
        }
        causes.idle += more(&|d| d.idle);
        causes.nothing += more(&|d| d.nothing);
        causes.unknown += more(&|d| d.unknown);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Works in windows that overlap are looked at a bounded number of times.
    #[test]
    fn looks_have_a_bound() {
        let slice = |n: u64| Slice {
            begin: n * 10,
            end: n * 10 + 5,
            name: 0,
            there: None,
        };
        let timeline = Timeline((0..100).map(slice).collect());
        let mut looks = 150;
        assert_eq!(timeline.did(0, 1_000, &mut looks).by_name[&0], (100, 500));
        assert_eq!(looks, 50);
        timeline.did(0, 1_000, &mut looks);
        assert_eq!(looks, 0);
        assert_eq!(timeline.did(0, 1_000, &mut looks), Did::default());
    }
}
