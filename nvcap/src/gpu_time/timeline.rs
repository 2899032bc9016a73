//! The entries of one channel in the order of its ring, and the times that follow from what was seen.

use std::collections::VecDeque;

use super::clock::Clock;
use super::rules::{Lag, Rules};
use super::unit::{Place, Unit, Value};
use super::words::Words;
use crate::decode::event::{DurationBy, GpuDuration, GpuMoment, GpuTime, GpuWait};
use crate::wire::GpuVa;

/// The most entries of a channel that wait for their turn; beyond that the oldest have no times.
const MOST: usize = 1 << 18;
/// An entry that was in the ring for this long before its stamp waited for the one before it, ns: one that found the GPU idle is
/// stamped some microseconds after its doorbell. A look at the ring shows that it was there.
const THERE_NS: u64 = 15_000;
/// The same from a trapped doorbell on, which rings after the trap, where the channel has not told better.
const TRAPPED_NS: u64 = 50_000;
/// The same beyond the least time from a doorbell to its stamp that was seen on the channel, ns: how far that time scatters. Where
/// what was seen of the end agrees, less of that is asked for.
const SCATTER_NS: u64 = 30_000;
const SCATTER_AGREED_NS: u64 = 1_500;

/// A time of the host that may be wrong by more is none, ns.
const MOST_ERROR_NS: u64 = 10_000_000;

/// An entry that was noted.
#[derive(Clone, Debug)]
struct Noted {
    position: u64,
    /// Time of its doorbell, or of the look that found it, ns.
    doorbell: u64,
    /// The doorbell was not later than that time, and may have been before.
    observed: bool,
    /// The latest time at which the entry was not there yet, where known, ns.
    absent: Option<u64>,
    unit: Unit,
}

impl Noted {
    /// A time at which the entry was not in the ring, ns.
    fn not_before(&self) -> u64 {
        match self.observed {
            false => self.doorbell,
            true => self.absent.unwrap_or(0),
        }
    }
}

/// What is kept of the entry that was timed last.
#[derive(Clone, Copy, Debug)]
struct Last {
    position: u64,
    /// Its stamp.
    stamp: Option<u64>,
    place: Option<Place>,
    /// Its end, GPU clock.
    end: Option<u64>,
}

/// Between which times the last of an entry's kernels was seen to have ended, by the GPU's clock, and the most by which both may
/// be wrong, ns.
#[derive(Clone, Copy, Debug)]
struct Released {
    from: u64,
    until: u64,
    clock_error: u64,
}

/// What an entry's times are read from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen<'a> {
    pub pid: u32,
    pub words: &'a Words,
    pub clock: &'a Clock,
    pub rules: &'a Rules,
}

impl Seen<'_> {
    /// The stamp that an entry ended with: seen after the entry was there, for another program may have had the same number.
    fn stamp(self, of: &Noted) -> Option<(u64, Place)> {
        let (value, place) = of.unit.stamp?;
        let stamp = self.words.get(self.pid, value)?;
        (stamp.seen_ns >= of.not_before()).then_some((stamp.gpu_ns?, place))
    }

    /// A time of the GPU's clock on both clocks.
    fn moment(self, gpu_ns: u64, gpu_error_ns: u64) -> Option<GpuMoment> {
        let host = self.clock.host(gpu_ns)?;
        if host.error_ns > MOST_ERROR_NS {
            return None;
        }
        Some(GpuMoment {
            host_ns: host.ns,
            host_error_ns: host.error_ns + gpu_error_ns,
            gpu_ns,
            gpu_error_ns,
        })
    }

    /// When the last of an entry's kernels was seen to have ended: the begin of the last read that found it running, and the
    /// end of the first that did not, on the GPU's clock.
    fn released(self, of: &Noted) -> Option<Released> {
        let mut last: Option<Released> = None;
        for value in &of.unit.ends {
            let stamp = self.words.get(self.pid, *value)?;
            if stamp.seen_ns < of.not_before() {
                return None;
            }
            let from = self.clock.gpu(stamp.before_ns)?;
            let until = self.clock.gpu(stamp.seen_ns)?;
            let clock_error = self.clock.host(until)?.error_ns;
            let this = Released {
                from,
                until,
                clock_error,
            };
            last = Some(last.map_or(this, |l| Released {
                from: l.from.max(from),
                until: l.until.max(until),
                clock_error: l.clock_error.max(clock_error),
            }));
        }
        last.filter(|r| r.clock_error <= MOST_ERROR_NS)
    }
}

/// The entries of a channel.
#[derive(Clone, Debug, Default)]
pub(crate) struct Timeline {
    noted: VecDeque<Noted>,
    last: Option<Last>,
    /// Time of the last look that found something, ns.
    looked: Option<u64>,
    learnt: Learnt,
}

/// What a channel's own entries have told.
#[derive(Clone, Debug, Default)]
struct Learnt {
    lag: Lag,
    /// The least time from a doorbell to its stamp, ns.
    least: Option<u64>,
}

impl Learnt {
    /// Takes a stamp's time on the host's clock.
    fn stamped(&mut self, own: &Noted, host_ns: u64) {
        let took = host_ns.checked_sub(own.doorbell).filter(|_| !own.observed);
        self.least = match (self.least, took) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
    }

    /// From how long on after its doorbell a stamp shows that an entry waited, ns.
    fn waited_ns(&self, of: &Noted, scatter_ns: u64) -> u64 {
        match self.least {
            _ if of.observed => THERE_NS,
            None => TRAPPED_NS,
            Some(least) => least + scatter_ns,
        }
    }
}

impl Timeline {
    /// Notes an entry, as it comes from the source.
    pub(crate) fn note(&mut self, position: u64, doorbell: u64, observed: bool, unit: Unit) {
        let absent = self.looked.filter(|l| observed && *l < doorbell);
        if self.looked.is_none_or(|l| l < doorbell) {
            self.looked = Some(doorbell);
        }
        if self.noted.len() >= MOST {
            self.noted.pop_front();
        }
        self.noted.push_back(Noted {
            position,
            doorbell,
            observed,
            absent,
            unit,
        });
    }

    /// The entries before this position are needed no more.
    pub(crate) fn forget(&mut self, position: u64) {
        while self.noted.front().is_some_and(|n| n.position < position) {
            self.noted.pop_front();
        }
    }

    /// How many entries wait for their turn.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.noted.len()
    }

    /// The times of an entry, whose turn it is. Entries before it are forgotten.
    pub(crate) fn time(&mut self, position: u64, seen: Seen<'_>) -> GpuTime {
        self.forget(position);
        let Some(own) = self.noted.front().filter(|n| n.position == position) else {
            self.last = None;
            return GpuTime::default();
        };
        let own = own.clone();
        let next = self.noted.get(1).filter(|n| n.position == position + 1);
        let before = self.last.filter(|l| l.position + 1 == position);
        let stamp = seen.stamp(&own);
        let time = match stamp {
            None => GpuTime::default(),
            Some((stamp, Place::FrontEnd)) => {
                front_end(&own, stamp, next, before, &mut self.learnt, seen)
            }
            Some((stamp, Place::Behind)) => behind(&own, stamp, before, seen),
        };
        self.last = Some(Last {
            position,
            stamp: stamp.map(|s| s.0),
            place: stamp.map(|s| s.1),
            end: time.end_gpu_ns(),
        });
        time
    }
}

/// An entry whose stamp is written when its kernels begin.
fn front_end(
    own: &Noted,
    stamp: u64,
    next: Option<&Noted>,
    before: Option<Last>,
    learnt: &mut Learnt,
    seen: Seen<'_>,
) -> GpuTime {
    let rules = seen.rules;
    let start_gpu = stamp + rules.start_ns;
    let Some(start) = seen.moment(start_gpu, rules.start_error_ns) else {
        return GpuTime::default();
    };
    let released = seen.released(own);
    learnt.stamped(own, start.host_ns.saturating_sub(rules.start_ns));
    let by_next = next.and_then(|n| end_by_next(n, start, released, learnt, seen));
    if let (Some(end), Some(r)) = (by_next, released) {
        learnt.lag.learn(end, r.from, r.until);
    }
    let duration = match (by_next, released) {
        _ if !own.unit.works => None,
        (Some(end), _) => Some(GpuDuration {
            ns: end.saturating_sub(start_gpu),
            error_ns: rules.end_error_ns + rules.start_error_ns,
            by: DurationBy::NextStamp,
        }),
        (None, Some(r)) => {
            let (end, error_ns) = learnt.lag.end(r.from, r.until);
            Some(GpuDuration {
                ns: end.saturating_sub(start_gpu),
                error_ns: error_ns + r.clock_error + rules.start_error_ns,
                by: DurationBy::Release,
            })
        }
        (None, None) => None,
    };
    let ready = before.and_then(|l| match l.place {
        Some(Place::FrontEnd) => l.end,
        _ => l.stamp,
    });
    let waited = waited(own, seen);
    GpuTime {
        start: Some(start),
        duration,
        queued: queued(own, start),
        ready_gpu_ns: ready.max(waited.map(|w| w.0)),
        wait: wait(own, ready, waited, seen),
    }
}

/// The end that the next entry's stamp tells, where that one waited for nothing else.
fn end_by_next(
    next: &Noted,
    start: GpuMoment,
    released: Option<Released>,
    learnt: &Learnt,
    seen: Seen<'_>,
) -> Option<u64> {
    if !next.unit.waits.is_empty() {
        // Its stamp comes behind what it waits for.
        return None;
    }
    let (stamp, Place::FrontEnd) = seen.stamp(next)? else {
        return None;
    };
    let end = stamp.checked_sub(seen.rules.end_ns)?;
    if end < start.gpu_ns {
        // Shorter than can be told.
        return (next.doorbell <= start.host_ns).then_some(start.gpu_ns);
    }
    let rang = next.doorbell;
    let stamped = seen.clock.host(stamp)?;
    let waited = stamped.ns.saturating_sub(rang);
    // The end cannot be behind what was seen of it, nor long before.
    let in_time = released.is_none_or(|r| {
        end <= r.until + r.clock_error
            && end + seen.rules.lag_most_ns + r.clock_error >= r.from
            && learnt.lag.agrees(end, r.from, r.until, r.clock_error)
    });
    let scatter = match released {
        Some(_) => SCATTER_AGREED_NS,
        None => SCATTER_NS,
    };
    (in_time && waited >= learnt.waited_ns(next, scatter)).then_some(end)
}

/// An entry whose stamp is written behind its work.
fn behind(own: &Noted, stamp: u64, before: Option<Last>, seen: Seen<'_>) -> GpuTime {
    let rules = seen.rules;
    let waited = waited(own, seen);
    let free = before.and_then(|l| l.stamp);
    let ready = free.max(waited.map(|w| w.0));
    // It began when the channel was free for it and it was there; both are needed.
    let rang = (!own.observed)
        .then(|| seen.clock.gpu(own.doorbell + rules.fetch_ns))
        .flatten();
    let clock_error = |at| seen.clock.host(at).map_or(u64::MAX / 2, |h| h.error_ns);
    let by_doorbell = |rang| rules.fetch_error_ns.saturating_add(clock_error(rang));
    let (start, error) = match (ready, rang) {
        (Some(ready), Some(rang)) if rang + rules.fetch_error_ns > ready => {
            (Some(rang.max(ready)), by_doorbell(rang))
        }
        (Some(ready), Some(_)) => (Some(ready), rules.next_error_ns),
        // It was seen before the one before it had ended: it followed at once.
        (Some(ready), None) => {
            let there = seen.clock.gpu(own.doorbell).is_some_and(|d| d <= ready);
            (there.then_some(ready), rules.next_error_ns)
        }
        // The ring's first entry had nothing before it.
        (None, Some(rang)) if own.position == 0 => (Some(rang), by_doorbell(rang)),
        (None, _) => (None, 0),
    };
    let start = start.filter(|s| *s <= stamp && error <= MOST_ERROR_NS);
    let start = start.and_then(|s| seen.moment(s, error));
    let duration = start.filter(|_| own.unit.works).map(|s| GpuDuration {
        ns: stamp.saturating_sub(s.gpu_ns),
        error_ns: s.gpu_error_ns + rules.next_error_ns,
        by: DurationBy::OwnStamp,
    });
    GpuTime {
        start,
        duration,
        queued: start.and_then(|s| queued(own, s)),
        ready_gpu_ns: ready,
        wait: wait(own, free, waited, seen),
    }
}

/// When the last semaphore that an entry waits for was released, where its stamp was seen.
fn waited(own: &Noted, seen: Seen<'_>) -> Option<(u64, GpuVa)> {
    let of = |value: &Value| {
        let stamp = seen.words.reached(seen.pid, *value)?;
        Some((stamp.gpu_ns?, value.address))
    };
    own.unit.waits.iter().filter_map(of).max()
}

/// The wait for a semaphore that was released after the entry was there and the one before it had ended.
fn wait(
    own: &Noted,
    free: Option<u64>,
    waited: Option<(u64, GpuVa)>,
    seen: Seen<'_>,
) -> Option<GpuWait> {
    let (released, semaphore) = waited?;
    let there = seen.clock.gpu(own.doorbell)?;
    let ns = released.checked_sub(there.max(free.unwrap_or(0)))?;
    Some(GpuWait { semaphore, ns })
}

/// How long it was in the ring before the GPU began it.
fn queued(own: &Noted, start: GpuMoment) -> Option<(u64, u64)> {
    let least = start
        .host_ns
        .saturating_sub(own.doorbell + start.host_error_ns);
    if !own.observed {
        let most = (start.host_ns + start.host_error_ns).saturating_sub(own.doorbell);
        return Some((least, most));
    }
    // It was there at the look, and not at the one before that found something.
    let most = (start.host_ns + start.host_error_ns).saturating_sub(own.absent?);
    Some((least, most))
}
