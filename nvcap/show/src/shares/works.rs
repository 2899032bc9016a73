//! Work of processes in their turns on a GPU: the time for which they worked, and the time for which submitted work waited for a turn.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use nvcap_decode::decode::event::{Body, Event, GpuTime, StartBy};
use nvcap_decode::record::{Record, Switches};
use nvcap_decode::switches::{Turns, Who};

use crate::output::gpu_time::work::elapsed;

/// The most works of all processes that wait for their window; nothing is known of further ones.
const MOST_PENDING: usize = 1 << 18;
/// The most processes whose work is kept, on all GPUs; nothing is told of others.
const MOST_PROCESSES: usize = 1 << 16;

/// Work of a process on a GPU, in the times for which both its turns and its work are known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Time for which it had the GPU since its first work, ns.
    pub resident_ns: u64,
    /// Part of `resident_ns` in which a kernel or a copy of its own was under way, ns.
    pub worked_ns: u64,
    /// Number of works whose times are not known: it may have worked for longer.
    pub untimed: u64,
    /// The longest time for which others had the GPU while a kernel of its own was ready, ns; `None` where that is known of no kernel.
    pub longest_wait_ns: Option<u64>,
}

impl Work {
    /// Returns the part of its turns in which it did nothing, 0 to 1; the most that it can be where some works have no times.
    #[must_use]
    pub fn idle(&self) -> Option<f64> {
        let idle = self.resident_ns.saturating_sub(self.worked_ns);
        (self.resident_ns > 0).then(|| idle as f64 / self.resident_ns as f64)
    }
}

/// A work that has ended, by the GPU's clock, ns. Works are sorted by their ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Ended {
    end: u64,
    start: u64,
    /// Time from which on it waited for nothing but a turn.
    ready: Option<u64>,
}

#[derive(Clone, Debug, Default)]
struct Process {
    /// Begins and ends of works that begin behind what is summed up, by their begins.
    coming: BinaryHeap<Reverse<(u64, u64)>>,
    /// The latest end of the works that are not in `coming` any more.
    until_end: u64,
    /// Works that end behind what is summed up, by their ends.
    pending: BinaryHeap<Reverse<Ended>>,
    /// Time up to which all is summed up.
    until: Option<u64>,
    work: Work,
}

/// Returns the time from which on a kernel was in the ring, and next in its channel.
fn ready(time: &GpuTime) -> Option<u64> {
    let start = time.start?.gpu_ns;
    let (least, _) = time.queued?;
    let there = start.saturating_sub(least);
    (time.start_by == Some(StartBy::OwnStamp)).then(|| there.max(time.ready_gpu_ns.unwrap_or(0)))
}

impl Process {
    /// Takes an entry's work. Returns false where there is nothing to wait for.
    fn take(&mut self, time: &GpuTime, has_room: bool) -> bool {
        let known = time.start.zip(elapsed(time));
        let Some((start, duration)) = known.filter(|_| has_room) else {
            self.work.untimed += 1;
            return false;
        };
        let start = start.gpu_ns;
        let end = start.saturating_add(duration.ns);
        self.coming.push(Reverse((start, end)));
        self.pending.push(Reverse(Ended {
            end,
            start,
            ready: ready(time),
        }));
        true
    }

    /// Sums up the time before `to`, up to which all turns and all begins are known. `had` gives the time for which the process had the GPU between
    /// two times.
    fn settle(&mut self, to: u64, had: impl Fn(u64, u64) -> Option<u64>) {
        let first = self.coming.peek().map(|Reverse((start, _))| *start);
        let Some(begin) = self.until.or(first).filter(|begin| *begin < to) else {
            return;
        };
        let mut worked = Some(0);
        let mut last = begin;
        let mut count = |from: u64, end: u64| {
            let (from, end) = (from.max(last), end.min(to));
            if from < end {
                worked = worked
                    .zip(had(from, end))
                    .map(|(sum, ns): (u64, u64)| sum + ns);
                last = end;
            }
        };
        count(begin, self.until_end);
        while let Some(Reverse((start, end))) = self.coming.peek().copied()
            && start < to
        {
            self.coming.pop();
            count(start, end);
            self.until_end = self.until_end.max(end);
        }
        // What is not known of a window is left out of both sums.
        if let Some((resident, worked)) = had(begin, to).zip(worked) {
            let sums = &mut self.work;
            sums.resident_ns = sums.resident_ns.saturating_add(resident);
            sums.worked_ns = sums.worked_ns.saturating_add(worked.min(resident));
        }
        let waited = |work: Ended| {
            let ready = work.ready?.min(work.start);
            let others = |from: u64| Some((work.end - from).saturating_sub(had(from, work.end)?));
            Some(others(ready)?.saturating_sub(others(work.start)?))
        };
        while let Some(Reverse(work)) = self.pending.peek().copied()
            && work.end <= to
        {
            self.pending.pop();
            self.work.longest_wait_ns = self.work.longest_wait_ns.max(waited(work));
        }
        self.until = Some(to);
    }

    /// Sums up the time before the end of a window. Windows in which the process had nothing, and which were passed over, are taken in here.
    fn settle_window(&mut self, (gpu, pid): (u32, u32), turns: &Turns, (from, to): (u64, u64)) {
        let undivided = turns.undivided_until(gpu).map(|until| until.min(to));
        for to in [undivided.unwrap_or(0), from, to] {
            self.settle(to, |from, to| turns.had(gpu, &[pid], from, to));
        }
    }
}

/// Works of a trace beside the turns that were recorded.
#[derive(Clone, Debug, Default)]
pub struct Works {
    turns: Turns,
    of: BTreeMap<(u32, u32), Process>,
    /// Processes of which works came since their last window.
    fresh: BTreeSet<(u32, u32)>,
    /// Works that wait for their window.
    pending: usize,
    /// Number of processes that windows looked at.
    #[cfg(test)]
    looks: usize,
}

impl Works {
    /// Takes the next event.
    pub fn event(&mut self, event: &Event<'_>) {
        let c = event.context;
        let (Body::Submission(_), Some(gpu), Some(times)) = (&event.body, c.gpu, &c.gpu_time)
        else {
            return;
        };
        for time in times.iter().filter(|time| time.works > 0) {
            self.take((gpu, c.at.pid), time);
        }
    }

    fn take(&mut self, of: (u32, u32), time: &GpuTime) {
        if self.of.len() >= MOST_PROCESSES && !self.of.contains_key(&of) {
            return;
        }
        let process = self.of.entry(of).or_default();
        if process.take(time, self.pending < MOST_PENDING) {
            self.pending += 1;
            self.fresh.insert(of);
        }
    }

    /// Takes the next record, in the order of their times: all that was submitted before a window's end came before the window.
    pub fn record(&mut self, record: &Record) {
        if let Record::Switches(window) = record {
            self.window(window);
        }
    }

    /// Looks at the processes that had the GPU in a window, and at those that worked since their last one.
    fn window(&mut self, window: &Switches) {
        self.turns.window(window);
        let all = (window.gpu, 0)..=(window.gpu, u32::MAX);
        let mut concerned: BTreeSet<_> = self.fresh.range(all).copied().collect();
        concerned.extend(self.turns.newest(window.gpu).map(|pid| (window.gpu, pid)));
        let times = (window.from.gpu_ns, window.to.gpu_ns);
        for of in concerned {
            self.fresh.remove(&of);
            let Some(process) = self.of.get_mut(&of) else {
                continue;
            };
            let before = process.pending.len();
            process.settle_window(of, &self.turns, times);
            self.pending -= before - process.pending.len();
            #[cfg(test)]
            (self.looks += 1);
        }
    }

    /// Returns what is known of the work of a holder on a GPU.
    #[must_use]
    pub fn of_holder(&self, gpu: u32, who: Who) -> Option<Work> {
        match who {
            Who::Process(pid) => self.of(gpu, pid),
            Who::Hidden | Who::Driver => None,
        }
    }

    /// Returns what is known of the work of a process on a GPU.
    #[must_use]
    pub fn of(&self, gpu: u32, pid: u32) -> Option<Work> {
        let process = self.of.get(&(gpu, pid))?;
        // Windows without any switch looked at it when it worked, and no more.
        let until = self.turns.undivided_until(gpu).unwrap_or(0);
        let work = match process.until.is_none_or(|own| own < until) {
            true => {
                let mut process = process.clone();
                process.settle_window((gpu, pid), &self.turns, (until, until));
                process.work
            }
            false => process.work,
        };
        (work.resident_ns > 0).then_some(work)
    }
}

#[cfg(test)]
mod tests {
    use nvcap_decode::decode::event::{DurationBy, GpuDuration, GpuMoment};
    use nvcap_decode::switches::Tag;

    use super::super::tests::{switch, window};
    use super::*;

    fn works(times: &[GpuTime]) -> Works {
        let mut works = Works::default();
        for time in times {
            works.take((3, 1), time);
        }
        works
    }

    /// Makes a kernel of `ns`, which was in the ring for `queued` before.
    fn kernel(start: u64, ns: u64, queued: u64) -> GpuTime {
        GpuTime {
            start: Some(GpuMoment {
                host_ns: start + 1_000_000_000,
                host_error_ns: 0,
                gpu_ns: start,
                gpu_error_ns: 0,
            }),
            start_by: Some(StartBy::OwnStamp),
            duration: Some(GpuDuration {
                ns,
                error_ns: 0,
                by: DurationBy::NextStamp,
            }),
            queued: Some((queued, queued + 50)),
            works: 1,
            ..GpuTime::default()
        }
    }

    /// Slices of process 1 from 1,000 to 2,000 and from 3,000 to 4,000, of process 2 between them.
    fn turns() -> Record {
        let told = vec![
            switch(Tag::BEGIN, 1, 1_000),
            switch(Tag::END, 1, 2_000),
            switch(Tag::BEGIN, 2, 2_050),
            switch(Tag::END, 2, 2_950),
            switch(Tag::BEGIN, 1, 3_000),
            switch(Tag::END, 1, 4_000),
        ];
        window(3, (500, 5_000), told)
    }

    #[test]
    fn works_are_counted_once_and_within_slices() {
        // Two that overlap, one that is preempted from 2,000 to 3,000, and one of which nothing is known.
        let unknown = GpuTime {
            works: 1,
            ..GpuTime::default()
        };
        let mut works = works(&[
            kernel(1_000, 200, 0),
            kernel(1_100, 300, 0),
            kernel(1_900, 1_200, 0),
            unknown,
        ]);
        assert_eq!(works.of(3, 1), None);
        works.record(&turns());
        let work = works.of(3, 1).expect("it worked");
        assert_eq!((work.worked_ns, work.resident_ns), (400 + 100 + 100, 2_000));
        assert_eq!((work.idle(), work.untimed), (Some(0.7), 1));
        assert_eq!((works.of(3, 2), works.of(0, 1)), (None, None));
    }

    #[test]
    fn what_is_ready_waits_for_a_turn() {
        // The first finds its process's slice; the second was in the ring since 1,800; the third waited behind it.
        let behind = GpuTime {
            ready_gpu_ns: Some(3_150),
            ..kernel(3_160, 100, 1_400)
        };
        let mut works = works(&[kernel(1_100, 100, 80), kernel(3_050, 100, 1_250), behind]);
        works.record(&turns());
        let work = works.of(3, 1).expect("it worked");
        assert_eq!(work.longest_wait_ns, Some(1_000));
        let mut short = self::works(&[kernel(1_100, 100, 80), behind]);
        short.record(&turns());
        assert_eq!(short.of(3, 1).unwrap().longest_wait_ns, Some(0));
    }

    #[test]
    fn a_work_over_two_windows_is_summed_up_in_both() {
        let mut works = works(&[kernel(3_500, 2_000, 0)]);
        works.record(&turns());
        let first = works.of(3, 1).unwrap();
        assert_eq!((first.worked_ns, first.resident_ns), (500, 500));
        let told = vec![switch(Tag::BEGIN, 1, 5_200), switch(Tag::END, 1, 6_000)];
        works.record(&window(3, (5_000, 7_000), told));
        let work = works.of(3, 1).unwrap();
        assert_eq!((work.worked_ns, work.resident_ns), (500 + 300, 500 + 800));
        // In the next one it has the GPU, and nothing to do.
        let told = vec![switch(Tag::BEGIN, 1, 7_100), switch(Tag::END, 1, 7_500)];
        works.record(&window(3, (7_000, 9_000), told));
        let work = works.of(3, 1).unwrap();
        assert_eq!((work.worked_ns, work.resident_ns), (800, 1_300 + 400));
    }

    #[test]
    fn of_a_window_with_a_loss_nothing_is_known() {
        let mut works = works(&[kernel(3_500, 100, 0), kernel(5_500, 100, 0)]);
        works.record(&turns());
        let told = vec![
            nvcap_decode::switches::Told::Missing(3),
            switch(Tag::BEGIN, 1, 5_200),
            switch(Tag::END, 1, 6_000),
        ];
        works.record(&window(3, (5_000, 7_000), told));
        let work = works.of(3, 1).unwrap();
        assert_eq!((work.worked_ns, work.resident_ns), (100, 500));
    }

    #[test]
    fn windows_look_at_what_they_concern_alone() {
        const PROCESSES: u32 = 1_000;
        const WINDOWS: u32 = 1_000;
        let mut works = Works::default();
        for pid in 1..=PROCESSES {
            // Each has a work that does not end.
            works.take((3, pid), &kernel(10, 1 << 40, 0));
        }
        for n in 0..WINDOWS {
            let from = u64::from(n) * 1_000;
            let told = vec![
                switch(Tag::BEGIN, n + 1, from + 100),
                switch(Tag::END, n + 1, from + 900),
            ];
            works.record(&window(3, (from, from + 1_000), told));
        }
        let most = PROCESSES + WINDOWS;
        assert!(works.looks <= most as usize, "{}", works.looks);
        for pid in 1..=PROCESSES {
            let work = works.of(3, pid).expect("it worked");
            assert_eq!((work.worked_ns, work.resident_ns), (800, 800), "{pid}");
        }
    }

    #[test]
    fn a_gpu_of_which_no_switch_is_told_is_a_process_s_all_the_time() {
        let mut works = works(&[kernel(1_500, 300, 0)]);
        works.take((3, 5), &kernel(4_500, 100, 0));
        let mut quiet = |from| works.record(&window(3, (from, from + 1_000), Vec::new()));
        (1_000..11_000).step_by(1_000).for_each(&mut quiet);
        assert_eq!(works.looks, 2);
        let work = works.of(3, 1).unwrap();
        assert_eq!((work.worked_ns, work.resident_ns), (300, 9_500));
        let work = works.of(3, 5).unwrap();
        assert_eq!((work.worked_ns, work.resident_ns), (100, 6_500));
        // Then another one comes.
        let told = vec![switch(Tag::END, 1, 11_200), switch(Tag::BEGIN, 2, 11_300)];
        works.record(&window(3, (11_000, 12_000), told));
        works.record(&window(3, (12_000, 13_000), Vec::new()));
        let work = works.of(3, 1).unwrap();
        assert_eq!((work.worked_ns, work.resident_ns), (300, 9_500 + 200));
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut works = Works::default();
        for pid in 0..2 * MOST_PROCESSES as u32 {
            works.take((3, pid), &kernel(10, 100, 0));
        }
        assert_eq!(
            (works.of.len(), works.pending),
            (MOST_PROCESSES, MOST_PROCESSES)
        );
        for _ in 0..2 * MOST_PENDING {
            works.take((3, 1), &kernel(10, 100, 0));
        }
        assert_eq!(works.pending, MOST_PENDING);
        works.record(&window(3, (0, 1_000), Vec::new()));
        assert_eq!((works.pending, works.fresh.len()), (0, 0));
        let untimed = works.of(3, 1).expect("it worked").untimed;
        assert_eq!(untimed as usize, MOST_PENDING + MOST_PROCESSES);
    }
}
