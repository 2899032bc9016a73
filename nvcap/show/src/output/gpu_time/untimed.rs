//! Work whose duration was not seen, in the order of its channel: between which bounds its time lies.
//!
//! The entries of a channel run one after the other. So those between two moments that are known took no longer than the time between
//! these together. How much of that time it was nothing tells: work that is in the ring waits for semaphores, for other channels, for
//! other processes' turns. Which entries are timed depends on how long they take and on when others had the processor: nothing is
//! concluded from the timed ones, not even that none takes longer than the longest of them. They tell what the others took about, within
//! the bounds.

use std::collections::BTreeMap;

use nvcap_decode::decode::event::{GpuMoment, GpuTime};

use super::work::elapsed;

/// Divisor of a time that gives the most by which two clocks drift apart in it.
const DRIFT: u64 = 1_000;

/// A moment on the clocks of GPU and host, ns, and the most by which each may be wrong.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    gpu: Option<(u64, u64)>,
    host: (u64, u64),
}

impl Moment {
    pub(super) fn of(at: GpuMoment) -> Self {
        Self {
            gpu: Some((at.gpu_ns, at.gpu_error_ns)),
            host: (at.host_ns, at.host_error_ns),
        }
    }

    /// Makes a moment of the host's clock alone.
    pub(super) fn of_host(ns: u64) -> Self {
        Self {
            gpu: None,
            host: (ns, 0),
        }
    }

    /// Returns the moment that is `ns` later, off by `error` more.
    fn later(self, ns: u64, error: u64) -> Self {
        let of = |(at, off): (u64, u64)| (at.saturating_add(ns), off.saturating_add(error));
        Self {
            gpu: self.gpu.map(of),
            host: of(self.host),
        }
    }

    /// The time from here until a later moment, at most.
    fn most_until(self, later: Self) -> u64 {
        let between = |a: (u64, u64), b: (u64, u64)| {
            let (ns, error) = (b.0.saturating_sub(a.0), a.1.saturating_add(b.1));
            (ns.saturating_sub(error), ns.saturating_add(error))
        };
        let host = between(self.host, later.host);
        let gpu = self.gpu.zip(later.gpu).map(|(a, b)| between(a, b));
        // The GPU's clock tells it better, unless it has stepped.
        let drift = host.1 / DRIFT;
        gpu.filter(|g| g.0 <= host.1.saturating_add(drift) && g.1.saturating_add(drift) >= host.0)
            .unwrap_or(host)
            .1
    }
}

/// Number of works that are not timed, and bounds of the time that they took together, ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bounds {
    pub count: u64,
    pub least_ns: u64,
    /// Time that they took if they were like those that are timed, kept within the bounds.
    pub about_ns: u64,
    pub most_ns: u64,
}

impl Bounds {
    pub(super) fn add(&mut self, other: Self) {
        self.count += other.count;
        self.least_ns = self.least_ns.saturating_add(other.least_ns);
        self.about_ns = self.about_ns.saturating_add(other.about_ns);
        self.most_ns = self.most_ns.saturating_add(other.most_ns);
    }
}

/// A stretch of work that is not timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// The row of sums to which it belongs.
    pub row: usize,
    pub bounds: Bounds,
    /// Times of the host between which it lies.
    pub span: (u64, u64),
}

/// Number of rows for all kernels and all copies together, which come before the others.
pub(super) const GROUPS: usize = 2;

/// Work as [`Channel::take`] takes it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work<'a> {
    pub row: usize,
    /// Number of the row of its group, less than [`GROUPS`].
    pub group: usize,
    pub time: &'a GpuTime,
    /// The mean of the durations of its row that are known, ns.
    pub mean_ns: u64,
    /// Time at which it was not in the ring yet, where that is known, ns.
    pub absent: Option<u64>,
}

/// Part of a run that belongs to one row.
#[derive(Clone, Copy, Debug, Default)]
struct Part {
    group: usize,
    count: u64,
    /// Least time that these took by their own times, where those are vague.
    least_ns: u64,
    /// Time that these took if they were like those that are timed.
    about_ns: u64,
    /// Longest time of those that have such a bound, and number of those that have none.
    most_ns: u64,
    unknown: u64,
}

impl Part {
    fn add(&mut self, other: &Self) {
        self.group = other.group;
        self.count += other.count;
        self.least_ns = self.least_ns.saturating_add(other.least_ns);
        self.about_ns = self.about_ns.saturating_add(other.about_ns);
        self.most_ns = self.most_ns.saturating_add(other.most_ns);
        self.unknown += other.unknown;
    }

    /// Returns the longest time that it can have taken within `most` ns.
    fn most(&self, most: u64) -> u64 {
        match self.unknown {
            0 => self.most_ns.min(most),
            _ => most,
        }
    }

    /// Returns the bounds of this row's part of a run whose parts took at most `most` ns together.
    fn bounds(&self, row: usize, all: &BTreeMap<usize, Self>, most: u64) -> Bounds {
        let others = all.iter().filter(|(r, _)| **r != row).map(|(_, p)| p);
        let sum = |of: &dyn Fn(&Self) -> u64| others.clone().map(of).fold(0, u64::saturating_add);
        let most_ns = self.most(most.saturating_sub(sum(&|p| p.least_ns)));
        let most_ns = most_ns.max(self.least_ns);
        // Each has the part of the time that it would have if they were as those that are timed.
        let about = self.about_ns.saturating_add(sum(&|p| p.about_ns));
        let scale = about.min(most) as f64 / about.max(1) as f64;
        let about_ns = (self.about_ns as f64 * scale) as u64;
        Bounds {
            count: self.count,
            least_ns: self.least_ns,
            about_ns: about_ns.clamp(self.least_ns, most_ns),
            most_ns,
        }
    }
}

/// The entries of a channel, up to the one that was taken last.
#[derive(Clone, Debug, Default)]
pub(super) struct Channel {
    /// The last moment that is known: what comes later has not begun before it.
    last: Option<Moment>,
    /// Work that follows that moment, by row.
    open: BTreeMap<usize, Part>,
}

impl Channel {
    /// Takes the next work. `origin`: the begin of the trace.
    pub(super) fn take(&mut self, work: Work<'_>, origin: Option<u64>, to: &mut Vec<Run>) {
        let time = work.time;
        if let Some(start) = time.start {
            self.close(Moment::of(start), to);
        }
        if let Some(duration) = elapsed(time) {
            let end = |at| Moment::of(at).later(duration.ns, duration.error_ns);
            self.last = time.start.map(end).or(self.last);
            return;
        }
        if self.open.is_empty() {
            // It did not begin before it was there.
            let came = work.absent.or(origin).map(Moment::of_host);
            let is_later = |l: &Moment| came.is_none_or(|c| c.host.0 <= l.host.0);
            self.last = self.last.filter(is_later).or(came);
        }
        let vague = time.duration;
        let most = vague.map(|d| d.ns.saturating_add(d.error_ns));
        self.open.entry(work.row).or_default().add(&Part {
            group: work.group,
            count: 1,
            least_ns: vague.map_or(0, |d| d.ns.saturating_sub(d.error_ns)),
            about_ns: vague.map_or(work.mean_ns, |d| d.ns).max(1),
            most_ns: most.unwrap_or(0),
            unknown: u64::from(most.is_none()),
        });
        if let Some(ended) = time.ended {
            self.close(Moment::of(ended), to);
        }
    }

    /// Ends what is open, at the end of the trace.
    pub(super) fn end(&mut self, at: Option<u64>, to: &mut Vec<Run>) {
        if let Some(at) = at {
            self.close(Moment::of_host(at), to);
        }
    }

    /// Ends everything that is open, at a moment by which it had ended.
    fn close(&mut self, at: Moment, to: &mut Vec<Run>) {
        let open = std::mem::take(&mut self.open);
        let from = self.last.replace(at);
        let (Some(from), false) = (from, open.is_empty()) else {
            return;
        };
        let most = from.most_until(at);
        let span = (from.host.0, at.host.0);
        let mut groups = BTreeMap::<usize, Part>::new();
        for part in open.values() {
            groups.entry(part.group).or_default().add(part);
        }
        for all in [&open, &groups] {
            to.extend(all.iter().map(|(row, part)| Run {
                row: *row,
                bounds: part.bounds(*row, all, most),
                span,
            }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvcap_decode::decode::event::{DurationBy, GpuDuration};

    const OFFSET: u64 = 1_000_000;

    fn moment(gpu_ns: u64) -> GpuMoment {
        GpuMoment {
            host_ns: gpu_ns + OFFSET,
            host_error_ns: 1_000,
            gpu_ns,
            gpu_error_ns: 0,
        }
    }

    fn time(start: Option<u64>, duration: Option<(u64, u64)>, ended: Option<u64>) -> GpuTime {
        GpuTime {
            start: start.map(moment),
            duration: duration.map(|(ns, error_ns)| GpuDuration {
                ns,
                error_ns,
                by: DurationBy::Release,
            }),
            ended: ended.map(moment),
            ..GpuTime::default()
        }
    }

    /// The stretches of works, each of a row of its group, with the mean of its row.
    fn runs(of: &[(usize, GpuTime)], absent: Option<u64>) -> Vec<Run> {
        let (mut channel, mut all) = (Channel::default(), Vec::new());
        for (row, time) in of {
            let work = Work {
                row: *row,
                group: 0,
                time,
                mean_ns: 1_000 * *row as u64,
                absent,
            };
            channel.take(work, Some(OFFSET), &mut all);
        }
        channel.end(Some(90_000 + OFFSET), &mut all);
        all
    }

    fn bounds(of: &[Run], row: usize) -> Vec<(u64, u64, u64, u64)> {
        let of = of.iter().filter(|r| r.row == row).map(|r| r.bounds);
        of.map(|b| (b.count, b.least_ns, b.about_ns, b.most_ns))
            .collect()
    }

    #[test]
    fn what_lies_between_two_moments_took_no_longer() {
        let all = runs(
            &[
                (2, time(Some(10_000), Some((5_000, 100)), None)),
                // From 15,000, which may be 100 too late, to 27,000.
                (2, time(None, None, None)),
                (4, time(None, None, None)),
                (2, time(Some(27_000), Some((1_000, 0)), None)),
                // Its begin is known, its end is not: until the next one begins.
                (2, time(Some(30_000), None, None)),
                (2, time(Some(36_000), Some((1_000, 0)), None)),
                // Its end is.
                (4, time(None, None, Some(40_000))),
                // Until the trace ends.
                (4, time(Some(50_000), None, None)),
            ],
            None,
        );
        assert_eq!(
            bounds(&all, 2),
            [(1, 0, 2_000, 12_100), (1, 0, 2_000, 6_000)]
        );
        let of_host = 41_000;
        assert_eq!(
            bounds(&all, 4),
            [
                (1, 0, 4_000, 12_100),
                (1, 0, 3_000, 3_000),
                (1, 0, 4_000, of_host)
            ]
        );
        // Of both rows together: no longer than that either.
        assert_eq!(bounds(&all, 0)[0], (2, 0, 6_000, 12_100));
        // Where they would take longer if they were as the timed ones, each has its part of what is possible.
        let short = [
            (2, time(Some(10_000), None, None)),
            (4, time(None, None, None)),
            (2, time(Some(13_000), Some((500, 0)), None)),
        ];
        let all = runs(&short, None);
        assert_eq!(bounds(&all, 2), [(1, 0, 1_000, 3_000)]);
        assert_eq!(bounds(&all, 4), [(1, 0, 2_000, 3_000)]);
    }

    #[test]
    fn nothing_begins_before_its_doorbell_nor_takes_other_times_than_its_own() {
        // The first of a channel: from the trace's begin, or its doorbell.
        let first = [
            (2, time(None, None, None)),
            (2, time(Some(70_000), Some((1_000, 0)), None)),
        ];
        assert_eq!(bounds(&runs(&first, None), 2), [(1, 0, 2_000, 71_000)]);
        let all = runs(&first, Some(40_000 + OFFSET));
        assert_eq!(bounds(&all, 2), [(1, 0, 2_000, 31_000)]);
        // An end that is vague tells more than the next one's begin.
        let vague = time(Some(300_000), Some((500_000, 200_000)), None);
        let all = runs(
            &[
                (2, vague),
                (2, time(Some(5_000_000), Some((1_000, 0)), None)),
            ],
            None,
        );
        assert_eq!(bounds(&all, 2), [(1, 300_000, 500_000, 700_000)]);
    }

    #[test]
    fn a_clock_that_steps_tells_no_length() {
        let a = Moment::of(moment(10_000));
        let stepped = GpuMoment {
            gpu_ns: 90_000_000,
            ..moment(30_000)
        };
        assert_eq!(a.most_until(Moment::of(moment(30_000))), 20_000);
        assert_eq!(a.most_until(Moment::of(stepped)), 22_000);
    }
}
