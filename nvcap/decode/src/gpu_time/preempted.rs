//! Part of an entry's time in which others had the GPU.

use crate::decode::event::{GpuTime, Preempted, StartBy};
use crate::switches::Turns;

/// Returns the part of an entry's time on a GPU in which its process did not have its turn.
pub(super) fn of(time: &GpuTime, gpu: Option<u32>, pid: u32, turns: &Turns) -> Preempted {
    // Only work that begins with its own stamp is the graphics and compute engine's. Other engines' work waits for no turn.
    let is_of_engine = time.start_by == Some(StartBy::OwnStamp);
    if turns.is_empty() || time.works == 0 || !is_of_engine {
        return Preempted::NotRecorded;
    }
    let had = || {
        let (begin, end) = (time.start?.gpu_ns, time.end_gpu_ns()?);
        let had = turns.had(gpu?, &[pid], begin, end)?;
        Some((end - begin).saturating_sub(had))
    };
    had().map_or(Preempted::Unknown, Preempted::Ns)
}

#[cfg(test)]
mod tests {
    use super::super::GpuTimes;
    use super::super::made_up::{KERNELS, PID, records};
    use crate::decode::event::{GpuTime, Preempted};
    use crate::record::{How, Record, Stamp, Submission};
    use crate::switches::made_up::{self as switches, told as switch};
    use crate::switches::{Tag, Told};

    const KERNELS_IN_ALL: u32 = 40;
    const GPU: u32 = 0;

    fn window(times: (u64, u64), told: Vec<Told>) -> Record {
        Record::Switches(Box::new(switches::window(GPU, times, told)))
    }

    /// Returns the times of all kernels, with these windows of context switches beside them.
    fn times(windows: &[Record]) -> Vec<GpuTime> {
        let all = records(KERNELS_IN_ALL, How::Trapped);
        let mut times = GpuTimes::default();
        all.iter().chain(windows).for_each(|r| times.note(r));
        let submissions = all.iter().filter_map(|record| match record {
            Record::Submission(s) if s.channel == KERNELS => Some(s),
            _ => None,
        });
        submissions.flat_map(|s| times.take(s)).collect()
    }

    /// Returns the beginning and the end of a kernel.
    fn interval(time: &GpuTime) -> (u64, u64) {
        (time.start.unwrap().gpu_ns, time.end_gpu_ns().unwrap())
    }

    #[test]
    fn what_was_another_s_turn_is_no_work_of_a_kernel() {
        let without = times(&[]);
        let known = without.iter().filter(|t| t.duration.is_some());
        assert!(known.count() > 30, "{without:?}");
        assert!(
            without
                .iter()
                .all(|t| t.preempted == Preempted::NotRecorded)
        );
        // In the middle of the tenth kernel another process has the GPU for 3 us, with a microsecond of switches around it.
        let (begin, end) = interval(&without[10]);
        let middle = begin.midpoint(end);
        let told = vec![
            switch(Tag::BEGIN, PID, 1),
            switch(Tag::END, PID, middle - 2_000),
            switch(Tag::BEGIN, 9, middle - 1_500),
            switch(Tag::END, 9, middle + 1_500),
            switch(Tag::BEGIN, PID, middle + 2_000),
        ];
        let whole = window((0, u64::MAX / 4), told);
        let with = times(&[whole]);
        for (n, (with, without)) in with.iter().zip(&without).enumerate() {
            let expected = match (without.duration, n) {
                (None, _) => Preempted::Unknown,
                (_, 10) => Preempted::Ns(4_000),
                _ => Preempted::Ns(0),
            };
            assert_eq!(with.preempted, expected, "kernel {n}");
            let less = u64::from(n == 10) * 4_000;
            let work = |t: &GpuTime| Some((t.worked()?.ns, t.executed()?.ns));
            let all = without.duration.zip(without.exec.and_then(|e| e.duration));
            let all = all.map(|(all, exec)| (all.ns - less, exec.ns - less));
            assert_eq!((work(with), with.duration), (all, without.duration));
        }
    }

    #[test]
    fn nothing_is_subtracted_where_it_is_not_known() {
        let without = times(&[]);
        let (begin, end) = interval(&without[10]);
        let lost = vec![
            switch(Tag::BEGIN, PID, 1),
            switch(Tag::END, PID, begin + 1_000),
            Told::Missing(1),
            switch(Tag::BEGIN, PID, end - 1_000),
        ];
        let whole = (0, u64::MAX / 4);
        let short = (0, end - 1);
        let other = vec![switch(Tag::BEGIN, 9, 1)];
        let begun = vec![switch(Tag::BEGIN, PID, 1)];
        for (window, told) in [(whole, lost), (short, begun), (whole, other)] {
            let with = times(&[self::window(window, told)]);
            assert_eq!(with[10].preempted, Preempted::Unknown);
            assert_eq!(with[10].worked(), without[10].duration);
        }
    }

    #[test]
    fn a_submission_waits_until_it_is_known_who_had_the_gpu() {
        let all = records(KERNELS_IN_ALL, How::Trapped);
        let mut times = GpuTimes::default();
        all.iter().for_each(|record| times.note(record));
        let first = all.iter().find_map(|record| match record {
            Record::Submission(s) if s.channel == KERNELS => Some(s),
            _ => None,
        });
        let first = first.expect("a submission");
        assert!(
            !times.awaits(first),
            "it has ended, and nothing else is recorded"
        );
        times.note(&window((0, 1), vec![switch(Tag::BEGIN, PID, 1)]));
        assert!(times.awaits(first));
        times.note(&window((1, u64::MAX / 4), Vec::new()));
        assert!(!times.awaits(first));
    }

    /// Tells whether the first kernel is still awaited once a window covers the GPU's time up to `gpu_ns` and the host's up to `host_ns`,
    /// and returns what is known of its turns. `seen` selects the stamps that were read.
    fn awaited(gpu_ns: u64, host_ns: u64, seen: impl Fn(&Stamp) -> bool) -> (bool, Preempted) {
        let mut all = records(KERNELS_IN_ALL, How::Trapped);
        for record in &mut all {
            if let Record::Stamps(s) = record {
                s.stamps.retain(&seen);
            }
        }
        let mut window = switches::window(GPU, (0, gpu_ns), vec![switch(Tag::BEGIN, PID, 1)]);
        window.to.host_ns = host_ns;
        let mut times = GpuTimes::default();
        all.iter().for_each(|record| times.note(record));
        times.note(&Record::Switches(Box::new(window)));
        let is_first = |s: &&Submission| s.channel == KERNELS;
        let submissions = all.iter().filter_map(|record| match record {
            Record::Submission(s) => Some(s),
            _ => None,
        });
        let first = submissions.clone().find(is_first).expect("a submission");
        let is_awaited = times.awaits(first);
        (is_awaited, times.take(first)[0].preempted)
    }

    #[test]
    fn it_is_the_gpu_s_time_that_is_waited_for() {
        let (_, end) = interval(&times(&[])[0]);
        let (before, behind) = (end - 2_000, end + 20_000);
        let (early, late) = (1, u64::MAX / 4);
        // The host's time was read long after the GPU's, or before it, because the processor was busy.
        assert_eq!(awaited(before, late, |_| true), (true, Preempted::Unknown));
        assert_eq!(awaited(behind, early, |_| true), (false, Preempted::Ns(0)));
        // Only the next kernel's beginning shows this end.
        let next = |s: &Stamp| s.gpu_ns.is_some();
        assert!(awaited(before, late, next).0);
        assert!(!awaited(behind + 100_000, early, next).0);
    }
}
