//! Arrivals of ranks at each call: the last ones, the time by which they were late, and the others' waits.

use std::collections::BTreeMap;

use super::job::Job;
use super::kinds;
use super::matching::Communicator;

/// Arrival of all ranks at one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Arrival {
    /// Place of the call in its communicator.
    pub(super) call: usize,
    pub(super) kind: u32,
    /// Time from the first to the last, ns, and the error of it.
    pub(super) skew: u64,
    pub(super) error: u64,
    /// Time from the median of the others to the last one, ns.
    pub(super) late: u64,
    /// Time from the last but one to the last, ns.
    pub(super) gap: u64,
    /// Time from the last one's begin to the first end, ns, where ends are known.
    pub(super) tail: Option<u64>,
    /// Members that came last: several where their order is within the error; none where all are.
    pub(super) last: Vec<usize>,
    /// Time that each member waited for the last one, ns.
    pub(super) waits: Vec<u64>,
    /// Error of the sum of these waits, ns.
    pub(super) waits_error: u64,
}

/// The arrivals at all calls that all ranks made, and whose begins are known in all.
pub(super) fn of(job: &Job, of: &Communicator) -> Vec<Arrival> {
    if of.members.len() < 2 {
        return Vec::new();
    }
    let whole = of.calls.iter().enumerate().filter(|(_, c)| c.is_whole());
    whole.filter_map(|(n, _)| arrival(job, of, n)).collect()
}

fn arrival(job: &Job, of: &Communicator, n: usize) -> Option<Arrival> {
    let call = &of.calls[n];
    let calls: Option<Vec<_>> = { call.of.iter().zip(&of.members) }
        .map(|(call, member)| {
            let call = &job.ranks[member.rank].calls[(*call)?];
            Some((call.begin?, call.error, call.end))
        })
        .collect();
    let calls = calls?;
    let &(last, last_error, _) = calls.iter().max_by_key(|c| c.0)?;
    let &(first, first_error, _) = calls.iter().min_by_key(|c| c.0)?;
    let (skew, error) = (last - first, last_error.saturating_add(first_error));
    let is_last = |(begin, its, _): &&(u64, u64, Option<u64>)| {
        *begin == last || begin.saturating_add(*its).saturating_add(last_error) >= last
    };
    let mut latest: Vec<usize> = Vec::new();
    if skew > error {
        let those = calls.iter().enumerate().filter(|(_, c)| is_last(c));
        latest.extend(those.map(|(member, _)| member));
        if latest.len() == calls.len() {
            latest.clear();
        }
    }
    let mut begins: Vec<u64> = calls.iter().map(|c| c.0).collect();
    begins.sort_unstable();
    begins.pop();
    let gap = last - begins.last().copied().unwrap_or(last).min(last);
    let ends: Option<Vec<u64>> = calls.iter().map(|c| c.2).collect();
    let tail = ends
        .and_then(|e| e.into_iter().min())
        .map(|end| end.saturating_sub(last));
    let late = last - begins[begins.len() / 2].min(last);
    let wait = |(begin, _, end): &(u64, u64, Option<u64>)| {
        // A sender of a broadcast may end before the last one has come.
        let until = match kinds::waits_for_all(job.names.text(call.kind)) {
            true => last,
            false => end.unwrap_or(last).min(last),
        };
        until.saturating_sub(*begin)
    };
    let waiting = calls.iter().filter(|c| c.0 < last);
    let waits_error = waiting.map(|c| c.1.saturating_add(last_error)).sum();
    Some(Arrival {
        call: n,
        kind: call.kind,
        skew,
        error,
        late,
        gap,
        tail,
        last: latest,
        waits: calls.iter().map(wait).collect(),
        waits_error,
    })
}

/// Tells whether calls show that the members are of one communicator, not of several in step: one rank came last by far, and all others had waited
/// for it. With fewer than four ranks there is no doubt: they cannot be two communicators of two ranks or more.
pub(super) fn are_one(members: usize, arrivals: &[Arrival]) -> bool {
    /// Number of such calls that is enough.
    const ENOUGH: usize = 3;
    if members < 4 {
        return true;
    }
    let mut tails: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    for arrival in arrivals {
        tails.entry(arrival.kind).or_default().extend(arrival.tail);
    }
    for tails in tails.values_mut() {
        tails.sort_unstable();
    }
    // Ranks that do not wait for the last one would have ended before it came.
    let shows = |a: &&Arrival| {
        let tail = tails.get(&a.kind).map_or(0, |t| quantile(t, 0.5));
        a.tail.is_some_and(|t| t > 0) && a.gap > a.error.saturating_add(2 * tail)
    };
    arrivals.iter().filter(shows).count() >= ENOUGH
}

/// A quantile of numbers that are sorted.
pub(super) fn quantile(sorted: &[u64], share: f64) -> u64 {
    let at = (share * sorted.len() as f64).ceil() as usize;
    let at = at.clamp(1, sorted.len().max(1)) - 1;
    sorted.get(at).copied().unwrap_or(0)
}
