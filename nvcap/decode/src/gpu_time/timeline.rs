//! Entries of one channel in the order of its ring, and the times that follow from what was seen.

use std::collections::VecDeque;

use super::clock::Clock;
use super::end::End;
use super::pair::Pair;
use super::rules::{Between, Lag, Rules};
use super::unit::{Place, Unit};
use super::words::{Value, Words};
use crate::decode::event::{DurationBy, GpuExec, GpuMoment, GpuTime, GpuWait, StartBy};
use crate::wire::GpuVa;

mod asked;
mod awaited;
mod noted;
mod own;

use asked::Asked;
pub(crate) use awaited::Seen;
use noted::Noted;
use own::Own;

/// The most entries of a channel that wait for their turn. Beyond that, the oldest get no times.
const MOST: usize = 1 << 18;
/// Time in the ring before its stamp after which an entry certainly waited for the previous one, ns. An entry that finds the GPU idle is
/// stamped some microseconds after its doorbell, or some tens of microseconds after a pause.
const THERE_NS: i64 = 30_000;
/// The same limit if the release that was seen agrees with the end, ns: the entry was rung before that end, or so soon after it that the
/// error is negligible.
const THERE_AGREED_NS: i64 = 10_000;
/// Time without work after which a channel starts its next kernel somewhat later, ns.
const IDLE_NS: u64 = 1_000_000;
/// Greatest time between a word's release and its being seen, in addition to the time between two reads, ns.
const WORD_ERROR_NS: u64 = 1_500;
/// Error of the difference of two stamps: the GPU's clock counts in steps of 32 ns.
const STAMPS_ERROR_NS: u64 = 64;

/// Greatest error of a time of the host that is still used, ns.
const MOST_ERROR_NS: u64 = 10_000_000;
/// Greatest distance from a kernel's end to the next stamp at which the next entry is taken to have waited for it, ns.
const CLOSE_BEHIND_NS: u64 = 3_000;

/// Facts kept of the entry that was timed last.
#[derive(Clone, Copy, Debug)]
struct Last {
    position: u64,
    /// Time of the entry's stamp.
    stamp: Option<u64>,
    place: Option<Place>,
    /// Time of the entry's end, on the GPU's clock.
    end: Option<u64>,
}

/// Sources of an entry's times.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimeSources<'a> {
    pub pid: u32,
    pub words: &'a Words,
    pub clock: &'a Clock,
    pub rules: &'a Rules,
    /// True if other channels of the process launch kernels, too.
    pub shared: bool,
    /// Time of the host up to which semaphores were read, ns.
    pub read_ns: u64,
}

impl TimeSources<'_> {
    /// Returns the time from an entry's stamp to the first instruction of its kernel, and the error of this time, ns.
    fn launch(self, of: &Noted, Told { stamp, before, .. }: Told) -> (u64, u64) {
        let rules = self.rules;
        // The previous kernel has just ended.
        let behind = before.and_then(|l| {
            let (end, begin) = (l.end?, l.stamp?);
            let is_close = stamp.saturating_sub(end) <= CLOSE_BEHIND_NS;
            is_close.then(|| rules.behind(end.saturating_sub(begin)))
        });
        let behind = behind.unwrap_or(0);
        let last = before.and_then(|l| l.end.max(l.stamp));
        let idle = last.is_some_and(|l| stamp.saturating_sub(l) >= IDLE_NS);
        match (of.unit.replays, self.shared) {
            (false, false) if idle => (rules.idle_start_ns, rules.idle_start_error_ns),
            (true, _) => {
                let stamped = self.clock.host(stamp);
                let waited = stamped.map_or(0, |s| s.ns.wrapping_sub(of.doorbell).cast_signed());
                let start = match waited >= THERE_NS {
                    true => rules.queued_replay_start_ns,
                    false => rules.replay_start_ns,
                };
                (start, rules.replay_start_error_ns)
            }
            (false, false) => (rules.start_ns, rules.start_error_ns + behind),
            (false, true) => (rules.shared_start_ns, rules.shared_start_error_ns),
        }
    }

    /// Returns the stamp with which an entry ended. It counts only if it was seen after the entry was in the ring, because another program
    /// may have written the same number.
    fn stamp(self, of: &Noted) -> Option<(u64, Place)> {
        let (value, place) = of.unit.stamp?;
        let stamp = self.words.get(self.pid, value)?;
        (stamp.seen_ns >= of.not_before()).then_some((stamp.gpu_ns?, place))
    }

    /// Returns the interval in which an entry's stamp was seen, on the GPU's clock; `None` for the first stamp of its semaphore.
    fn stamp_seen(self, of: &Noted) -> Option<Between> {
        let stamp = self.words.get(self.pid, of.unit.stamp?.0)?;
        match stamp.before_ns {
            0 => None,
            before_ns => self.between(before_ns, stamp.seen_ns),
        }
    }

    /// Converts two times of the host to the GPU's clock.
    fn between(self, from_ns: u64, until_ns: u64) -> Option<Between> {
        let (from, until) = (self.clock.gpu(from_ns)?, self.clock.gpu(until_ns)?);
        let error = |gpu_ns| Some(self.clock.host(gpu_ns)?.error_ns);
        Some(Between {
            from,
            until,
            clock_error: error(from)?.max(error(until)?),
        })
    }

    /// Returns a time of the GPU's clock on both clocks.
    fn moment(self, gpu_ns: u64, gpu_error_ns: u64) -> Option<GpuMoment> {
        let host = self.clock.host(gpu_ns)?;
        if host.error_ns > MOST_ERROR_NS {
            return None;
        }
        Some(GpuMoment {
            host_ns: host.ns,
            host_error_ns: host.error_ns.saturating_add(gpu_error_ns),
            gpu_ns,
            gpu_error_ns,
        })
    }

    /// Returns the interval in which the last of an entry's kernels was seen to have ended.
    fn released(self, of: &Noted) -> Option<Between> {
        let mut last: Option<Between> = None;
        for value in &of.unit.ends {
            let stamp = self.words.get(self.pid, *value)?;
            if stamp.seen_ns < of.not_before() {
                return None;
            }
            let this = self.between(stamp.before_ns, stamp.seen_ns)?;
            last = Some(last.map_or(this, |l| Between {
                from: l.from.max(this.from),
                until: l.until.max(this.until),
                clock_error: l.clock_error.max(this.clock_error),
            }));
        }
        last.filter(|r| r.clock_error <= MOST_ERROR_NS)
    }
}

/// The entries of a channel.
#[derive(Clone, Debug, Default)]
pub(crate) struct Timeline {
    noted: VecDeque<Noted>,
    /// Times of entries before those in `noted`, by position, that were settled before their turn.
    timed: VecDeque<(u64, GpuTime)>,
    asked: Option<Asked>,
    last: Option<Last>,
    /// Time of the last look that found something, and of the one before it, ns.
    looked: Option<u64>,
    looked_before: Option<u64>,
    /// True if the source tells the times at which entries were not in the ring yet.
    tells_absence: bool,
    lag: Lag,
    own: Own,
}

impl Timeline {
    /// Notes an entry as it comes from the source. `absent` is the latest time at which the entry was not in the ring yet, ns, if the
    /// source tells it.
    pub(crate) fn note(
        &mut self,
        position: u64,
        (doorbell, observed): (u64, bool),
        absent: Option<u64>,
        unit: Unit,
        steps: u64,
    ) {
        // One look finds several entries, which all have the look's time.
        if self.looked.is_none_or(|l| l < doorbell) {
            self.looked_before = self.looked.replace(doorbell);
        }
        let is_newest = self.looked == Some(doorbell);
        self.tells_absence |= absent.is_some();
        // For sources that do not tell it, it is the previous look that found something.
        let looked_before = self
            .looked_before
            .filter(|_| !self.tells_absence && is_newest);
        let absent = { absent.filter(|at| *at <= doorbell) }
            .or(looked_before)
            .filter(|_| observed);
        if self.noted.len() >= MOST {
            self.noted.pop_front();
        }
        self.noted.push_back(Noted {
            position,
            doorbell,
            observed,
            absent,
            unit,
            steps,
        });
    }

    /// Forgets the entries before this position, which are no longer needed.
    pub(crate) fn forget(&mut self, position: u64) {
        while self.noted.front().is_some_and(|n| n.position < position) {
            self.noted.pop_front();
        }
    }

    /// Returns the number of launches and copies of an entry.
    pub(crate) fn works(&self, position: u64) -> u32 {
        let settled = self.timed.partition_point(|(at, _)| *at < position);
        if let Some((at, time)) = self.timed.get(settled)
            && *at == position
        {
            return time.works;
        }
        let first = self.noted.partition_point(|n| n.position < position);
        let own = self.noted.get(first).filter(|n| n.position == position);
        own.map_or(0, |n| n.unit.count)
    }

    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.noted.len()
    }

    /// Returns the times of an entry when its turn has come, and forgets the entries before it.
    pub(crate) fn time(&mut self, position: u64, sources: TimeSources<'_>) -> GpuTime {
        let settled = self.settled(position);
        settled.unwrap_or_else(|| self.time_now(position, sources))
    }

    fn time_now(&mut self, position: u64, sources: TimeSources<'_>) -> GpuTime {
        self.forget(position);
        let Some(own) = self.noted.front().filter(|n| n.position == position) else {
            self.last = None;
            return GpuTime::default();
        };
        let own = own.clone();
        if own.has_stepped(sources.clock.steps(), sources.read_ns) {
            self.own.add(&own.unit);
            self.last = None;
            return GpuTime::default();
        }
        let waited = waited(&own, &self.own, sources);
        self.own.add(&own.unit);
        let next = self
            .noted
            .get(1)
            .filter(|n| Some(n.position) == position.checked_add(1));
        let before = self
            .last
            .filter(|l| l.position.checked_add(1) == Some(position));
        if let Some(pair) = own.unit.pair {
            let time = paired(&own, pair, sources);
            self.last = Some(Last {
                position,
                stamp: time.end_gpu_ns(),
                place: Some(Place::Behind),
                end: time.end_gpu_ns(),
            });
            return time;
        }
        let stamp = sources.stamp(&own);
        let told = |stamp| Told {
            stamp,
            before,
            waited,
        };
        let time = match stamp {
            None => GpuTime::default(),
            Some((stamp, Place::FrontEnd)) => {
                let next = (next, &self.own);
                front_end(&own, told(stamp), next, &mut self.lag, sources)
            }
            Some((stamp, Place::Behind)) => behind(&own, told(stamp), sources),
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

/// The last semaphore, of those that others release, for which an entry waits, and the time of its release on the GPU's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Waited {
    at: u64,
    semaphore: GpuVa,
    /// The most by which the release may have been earlier, ns.
    error_ns: u64,
}

/// Facts known about an entry when its turn has come.
#[derive(Clone, Copy, Debug)]
struct Told {
    stamp: u64,
    /// The previous entry.
    before: Option<Last>,
    waited: Option<Waited>,
}

/// Returns the times of an entry whose stamp is written when its kernels begin.
fn front_end(
    own: &Noted,
    told: Told,
    next: (Option<&Noted>, &Own),
    lag: &mut Lag,
    sources: TimeSources<'_>,
) -> GpuTime {
    let (launch_ns, launch_error_ns) = sources.launch(own, told);
    let start = sources.moment(told.stamp, 0);
    let exec = sources.moment(told.stamp.saturating_add(launch_ns), launch_error_ns);
    let Some((start, exec)) = start.zip(exec) else {
        return GpuTime::default();
    };
    if let Some(between) = sources.stamp_seen(own) {
        lag.stamped(told.stamp, between);
    }
    let released = sources.released(own);
    let by_next = next
        .0
        .and_then(|n| end_by_next((n, next.1), exec, released, lag, sources));
    if let (Some((end, true)), Some(r)) = (by_next, released) {
        lag.learn(end.at, r);
    }
    let by_release = || {
        let r = released?;
        let (at, error_ns) = lag.end(r);
        Some(End {
            at,
            error_ns: error_ns.saturating_add(r.clock_error),
            by: DurationBy::Release,
        })
    };
    let end = by_next.map(|(end, _)| end).or_else(by_release);
    let end = end.filter(|_| own.unit.works);
    // The end is not before the kernel's first instruction.
    let least = launch_ns.saturating_sub(launch_error_ns);
    let duration = end.map(|end| end.behind(start.gpu_ns, least));
    let executed = end.map(|end| {
        let error_ns = end.error_ns.saturating_add(launch_error_ns);
        End { error_ns, ..end }.behind(exec.gpu_ns, 0)
    });
    let ready = told.before.and_then(|l| match l.place {
        Some(Place::FrontEnd) => l.end,
        _ => l.stamp,
    });
    // The stamp comes after the waits: every release for which the entry waited was made by then.
    let waited = told.waited.map(|w| match w.at <= told.stamp {
        true if w.error_ns <= MOST_ERROR_NS => w,
        _ => Waited {
            at: told.stamp,
            error_ns: 0,
            ..w
        },
    });
    GpuTime {
        start: Some(start),
        start_by: Some(StartBy::OwnStamp),
        duration,
        exec: Some(GpuExec {
            start: exec,
            duration: executed,
        }),
        queued: queued(own, start, sources.rules),
        queued_by: own.queued_by(),
        ready_gpu_ns: ready.max(waited.map(|w| w.at)),
        wait: wait(own, ready, waited, sources),
        ..GpuTime::default()
    }
}

/// Returns the end that follows from the next entry's stamp, if that entry waited for nothing else, and whether it was in the ring long
/// before. (An entry rung just before the end may be stamped a little later.) `exec` is the time of the kernel's first instruction.
fn end_by_next(
    (next, releases): (&Noted, &Own),
    exec: GpuMoment,
    released: Option<Between>,
    lag: &Lag,
    sources: TimeSources<'_>,
) -> Option<(End, bool)> {
    // The next entry's stamp comes after its waits. They must be for this channel's entries, or have been released before.
    let was_there = |value: &Value| {
        let reached = sources.words.reached(sources.pid, *value);
        reached.is_some_and(|r| r.seen_ns <= exec.host_ns)
    };
    let other = |value: &Value| !releases.releases(*value) && !was_there(value);
    if next.unit.waits.iter().any(other) {
        return None;
    }
    let (stamp, Place::FrontEnd) = sources.stamp(next)? else {
        return None;
    };
    let rules = sources.rules;
    let end_ns = match (next.unit.replays, sources.shared) {
        (true, _) => rules.replay_end_ns,
        (false, false) => rules.end_ns,
        (false, true) => rules.shared_end_ns,
    };
    let end = |at, error_ns| End {
        at,
        error_ns,
        by: DurationBy::NextStamp,
    };
    let at = stamp.checked_sub(end_ns)?;
    if at < exec.gpu_ns {
        // The kernel is shorter than can be resolved: it ended between its first instruction and that stamp.
        let first = exec.gpu_ns.saturating_sub(exec.gpu_error_ns).min(stamp);
        let half = (stamp - first).div_ceil(2);
        return (next.doorbell <= exec.host_ns).then_some((end(first + half, half), false));
    }
    let stamped = sources.clock.host(stamp)?;
    let waited = stamped.ns.wrapping_sub(next.doorbell).cast_signed();
    // The end cannot be later than it was seen, nor long before.
    let in_time = released.is_none_or(|r| {
        at <= r.until.saturating_add(r.clock_error)
            && at.saturating_add(rules.lag_most_ns.saturating_add(r.clock_error)) >= r.from
            && lag.agrees(at, r)
    });
    let least = match released {
        Some(_) => THERE_AGREED_NS,
        None => THERE_NS,
    };
    // The waiting time counts only as far as the clocks are certain.
    let waited = waited.saturating_sub_unsigned(stamped.error_ns);
    let error_ns = rules.end_error_ns + rules.drain(at - exec.gpu_ns);
    (in_time && waited >= least).then_some((end(at, error_ns), waited >= THERE_NS))
}

/// Returns the times of an entry whose stamp is written after its work.
fn behind(own: &Noted, told: Told, sources: TimeSources<'_>) -> GpuTime {
    let rules = sources.rules;
    let Told { stamp, waited, .. } = told;
    let free = told.before.and_then(|l| l.stamp);
    let ready = free.max(waited.map(|w| w.at));
    let released = waited.filter(|w| Some(w.at) == ready);
    let next_error = released
        .map_or(0, |w| w.error_ns)
        .saturating_add(rules.next_error_ns);
    let ready_by = match released {
        Some(_) => StartBy::Release,
        None => StartBy::PreviousStamp,
    };
    // The work began when the channel was free for it and the entry was in the ring; both are needed.
    let rang = (!own.observed)
        .then(|| {
            sources
                .clock
                .gpu(own.doorbell.saturating_add(rules.fetch_ns))
        })
        .flatten();
    let clock_error = |at| sources.clock.host(at).map_or(u64::MAX / 2, |h| h.error_ns);
    let by_doorbell = |rang| rules.fetch_error_ns.saturating_add(clock_error(rang));
    let (start, error, by) = match (ready, rang) {
        // Either of the two may have been the later one: the doorbell's error covers both.
        (Some(ready), Some(rang)) if rang.saturating_add(by_doorbell(rang)) > ready => {
            let by = if rang > ready {
                StartBy::Doorbell
            } else {
                ready_by
            };
            (Some(rang.max(ready)), by_doorbell(rang), by)
        }
        (Some(ready), Some(_)) => (Some(ready), next_error, ready_by),
        // The entry was seen before the previous one had ended, so it followed at once.
        (Some(ready), None) => {
            let found = own.doorbell.saturating_add(rules.look_ns);
            let there = sources.clock.gpu(found).is_some_and(|d| d <= ready);
            (there.then_some(ready), next_error, ready_by)
        }
        // The ring's first entry had nothing before it.
        (None, Some(rang)) if own.position == 0 => {
            (Some(rang), by_doorbell(rang), StartBy::Doorbell)
        }
        (None, _) => (None, 0, StartBy::Doorbell),
    };
    let start = start.filter(|s| *s <= stamp && error <= MOST_ERROR_NS);
    let start = start.and_then(|s| sources.moment(s, error));
    let end = |s: GpuMoment| End {
        at: stamp,
        error_ns: s.gpu_error_ns.saturating_add(rules.next_error_ns),
        by: DurationBy::OwnStamp,
    };
    let duration = start.filter(|_| own.unit.works);
    let duration = duration.map(|s| end(s).behind(s.gpu_ns, 0));
    GpuTime {
        start,
        start_by: start.map(|_| by),
        duration,
        ended: sources.moment(stamp, 0),
        queued: start.and_then(|s| queued(own, s, rules)),
        queued_by: start.and(own.queued_by()),
        ready_gpu_ns: ready,
        wait: wait(own, free, waited, sources),
        ..GpuTime::default()
    }
}

/// Returns the times of an entry whose submission has stamps around it: from the time at which the channel begins its commands to the end
/// of all its work.
fn paired(own: &Noted, pair: Pair, sources: TimeSources<'_>) -> GpuTime {
    let gpu_ns = |value| sources.words.get(sources.pid, value)?.gpu_ns;
    // The stamp of an earlier submission may still be there.
    let is_own = |s: &GpuMoment| s.host_ns.saturating_add(s.host_error_ns) >= own.not_before();
    let start = gpu_ns(pair.begin).and_then(|at| sources.moment(at, 0));
    let Some(start) = start.filter(is_own) else {
        return GpuTime::default();
    };
    let end = gpu_ns(pair.end).filter(|end| *end >= start.gpu_ns);
    let end = end.map(|at| End {
        at,
        error_ns: STAMPS_ERROR_NS,
        by: DurationBy::OwnStamp,
    });
    GpuTime {
        start: Some(start),
        start_by: Some(StartBy::OwnStamp),
        duration: end.map(|end| end.behind(start.gpu_ns, 0)),
        queued: queued(own, start, sources.rules),
        queued_by: own.queued_by(),
        ..GpuTime::default()
    }
}

/// Returns the last semaphore, of those that others release, for which an entry waits, if its release was seen.
fn waited(own: &Noted, releases: &Own, sources: TimeSources<'_>) -> Option<Waited> {
    let of = |value: &Value| {
        let stamp = sources.words.reached(sources.pid, *value)?;
        let (at, error_ns) = match stamp.gpu_ns {
            Some(gpu_ns) => (gpu_ns, 0),
            // The semaphore is a kernel's end, released between two reads. The entry that waited for it began some time later.
            None => {
                let between = stamp.seen_ns.saturating_sub(stamp.before_ns);
                (
                    sources.clock.gpu(stamp.seen_ns)?,
                    between.saturating_add(WORD_ERROR_NS),
                )
            }
        };
        // The number itself was overwritten before it was read. It was released some time before the number that was read.
        let exact = stamp.payload == value.payload;
        Some(Waited {
            at,
            semaphore: value.address,
            error_ns: if exact { error_ns } else { u64::MAX / 4 },
        })
    };
    let others = own.unit.waits.iter().filter(|v| !releases.releases(**v));
    others.filter_map(of).max()
}

/// Returns the wait for a semaphore that was released after the entry was in the ring and the previous one had ended; `None` if that end is
/// not known.
fn wait(
    own: &Noted,
    free: Option<u64>,
    waited: Option<Waited>,
    sources: TimeSources<'_>,
) -> Option<GpuWait> {
    let known = waited.filter(|w| w.error_ns <= MOST_ERROR_NS);
    let Waited { at, semaphore, .. } = known?;
    let there = sources.clock.gpu(own.doorbell)?;
    let free = free.or_else(|| (own.position == 0).then_some(0))?;
    let ns = at.checked_sub(there.max(free))?;
    Some(GpuWait { semaphore, ns })
}

/// Returns the time in the ring before the GPU began the entry, ns: lower and upper bound.
fn queued(own: &Noted, start: GpuMoment, rules: &Rules) -> Option<(u64, u64)> {
    let (there, from) = match own.observed {
        // The doorbell was rung before its trap.
        false => (own.doorbell, own.doorbell.saturating_sub(rules.trap_ns)),
        // The entry was there when the look had read the ring, and absent at the previous look that found something.
        true => (own.doorbell.saturating_add(rules.look_ns), own.absent?),
    };
    let least = start
        .host_ns
        .saturating_sub(there.saturating_add(start.host_error_ns));
    let most = (start.host_ns)
        .saturating_add(start.host_error_ns)
        .saturating_sub(from);
    Some((least, most))
}
