//! Slices: the single stretches of time for which a context had an engine.

use std::collections::{BTreeMap, BTreeSet};

use super::record::{Instance, Switch, Who};
use super::told::Told;
use crate::record::Switches;

/// A time on both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SliceTime {
    /// Time of the host, `CLOCK_MONOTONIC`, ns.
    pub host_ns: u64,
    /// Time of the GPU (PTIMER), ns.
    pub gpu_ns: u64,
}

/// A stretch of time for which a context had an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Number N of the GPU's `/dev/nvidiaN`.
    pub gpu: u32,
    /// MIG instance, if the GPU is in that mode.
    pub instance: Option<Instance>,
    /// Holder of the context.
    pub who: Who,
    /// Handle of the context.
    pub context: u32,
    /// Beginning; `None` if it was not recorded.
    pub begin: Option<SliceTime>,
    /// End; `None` if it was not recorded, or had not come when the recording ended.
    pub end: Option<SliceTime>,
}

/// A slice that has begun: holder, context and time.
type Open = (Who, u32, SliceTime);

/// Maker of slices from windows.
#[derive(Clone, Debug, Default)]
pub struct Slices {
    /// Slices that have not ended, one for each engine.
    open: BTreeMap<(u32, Option<Instance>), Open>,
    /// Slices of processes that have not ended, by GPU, process and instance.
    of: BTreeSet<(u32, u32, Option<Instance>)>,
    /// End of each GPU's last window, ns of the GPU's time.
    until: BTreeMap<u32, u64>,
}

impl Slices {
    /// Takes in the next window of a GPU, and gives the slices that end in it to `each`, in the order of their ends.
    pub fn window(&mut self, window: &Switches, mut each: impl FnMut(Slice)) {
        let before = self.until.insert(window.gpu, window.to.gpu_ns);
        // A window in between is missing.
        if before.is_some_and(|until| until != window.from.gpu_ns) {
            self.lost(window.gpu, &mut each);
        }
        for told in &window.told {
            match told {
                Told::Switch(switch) => self.switch(window, switch, &mut each),
                Told::Missing(_) => self.lost(window.gpu, &mut each),
                Told::Strange => {}
                Told::Ended { pid, by_ns } => self.ended(window, *pid, *by_ns, &mut each),
            }
        }
    }

    /// Gives the slices that have not ended.
    pub fn finish(self, mut each: impl FnMut(Slice)) {
        for ((gpu, instance), open) in self.open {
            each(slice(gpu, instance, open, None));
        }
    }

    fn switch(&mut self, window: &Switches, switch: &Switch, each: &mut impl FnMut(Slice)) {
        let (begins, ends) = (switch.tag.begins(), switch.tag.ends());
        if !begins && !ends {
            return;
        }
        let (gpu, instance) = (window.gpu, switch.instance);
        let now = time(window, switch.time_ns);
        let who = (switch.who(), switch.context);
        match self.close((gpu, instance)) {
            Some(open) if ends && switch.may_end((open.0, open.1)) => {
                each(slice(gpu, instance, open, Some(now)));
            }
            open => {
                if let Some(open) = open {
                    each(slice(gpu, instance, open, None));
                }
                if ends {
                    each(ended_slice(gpu, instance, who, now));
                }
            }
        }
        if begins {
            self.open.insert((gpu, instance), (who.0, who.1, now));
            if let Who::Process(pid) = who.0 {
                self.of.insert((gpu, pid, instance));
            }
        }
    }

    /// Takes out the slice of an engine.
    fn close(&mut self, engine: (u32, Option<Instance>)) -> Option<Open> {
        let open = self.open.remove(&engine)?;
        if let Who::Process(pid) = open.0 {
            self.of.remove(&(engine.0, pid, engine.1));
        }
        Some(open)
    }

    /// Handles missing records of a GPU: its slices may have ended.
    fn lost(&mut self, gpu: u32, each: &mut impl FnMut(Slice)) {
        let next = |open: &BTreeMap<_, _>| open.range((gpu, None)..).next().map(|of| *of.0);
        while let Some(engine) = next(&self.open).filter(|engine| engine.0 == gpu) {
            if let Some(open) = self.close(engine) {
                each(slice(gpu, engine.1, open, None));
            }
        }
    }

    fn ended(&mut self, window: &Switches, pid: u32, by: u64, each: &mut impl FnMut(Slice)) {
        let gpu = window.gpu;
        let next = |of: &BTreeSet<_>| of.range((gpu, pid, None)..).next().copied();
        while let Some((_, _, instance)) = next(&self.of).filter(|of| (of.0, of.1) == (gpu, pid)) {
            if let Some(open) = self.close((gpu, instance)) {
                each(slice(gpu, instance, open, Some(time(window, by))));
            }
        }
    }
}

fn time(window: &Switches, gpu_ns: u64) -> SliceTime {
    SliceTime {
        host_ns: window.host_ns(gpu_ns),
        gpu_ns,
    }
}

fn slice(gpu: u32, instance: Option<Instance>, open: Open, end: Option<SliceTime>) -> Slice {
    let (who, context, begin) = open;
    Slice {
        gpu,
        instance,
        who,
        context,
        begin: Some(begin),
        end,
    }
}

/// Makes a slice whose beginning was not recorded.
fn ended_slice(
    gpu: u32,
    instance: Option<Instance>,
    (who, context): (Who, u32),
    end: SliceTime,
) -> Slice {
    Slice {
        gpu,
        instance,
        who,
        context,
        begin: None,
        end: Some(end),
    }
}

#[cfg(test)]
mod tests {
    use super::super::made_up::{self, OFFSET, told as switch};
    use super::super::record::Tag;
    use super::*;

    /// Makes a window of GPU 3.
    fn window(told: Vec<Told>) -> Switches {
        made_up::window(3, (1_000, 9_000), told)
    }

    /// Returns process, beginning and end of each slice, by the GPU's clock.
    fn slices(windows: &[Switches]) -> Vec<(u32, Option<u64>, Option<u64>)> {
        let (mut slices, mut all) = (Slices::default(), Vec::new());
        let mut each = |s: Slice| {
            let Who::Process(pid) = s.who else {
                panic!("{s:?}")
            };
            for time in [s.begin, s.end].into_iter().flatten() {
                assert_eq!(time.host_ns, time.gpu_ns + OFFSET);
            }
            all.push((pid, s.begin.map(|t| t.gpu_ns), s.end.map(|t| t.gpu_ns)));
        };
        for window in windows {
            slices.window(window, &mut each);
        }
        slices.finish(&mut each);
        all
    }

    #[test]
    fn slices_go_over_windows() {
        let first = vec![
            switch(Tag::END, 1, 1_100),
            switch(Tag::BEGIN, 2, 1_200),
            switch(Tag::END, 2, 2_000),
            switch(Tag::BEGIN, 1, 2_100),
        ];
        let second = vec![switch(Tag::END, 1, 9_500), switch(Tag::BEGIN, 2, 9_600)];
        let expected = [
            (1, None, Some(1_100)),
            (2, Some(1_200), Some(2_000)),
            (1, Some(2_100), Some(9_500)),
            (2, Some(9_600), None),
        ];
        let next = |told| Switches {
            from: window(Vec::new()).to,
            ..window(told)
        };
        assert_eq!(slices(&[window(first), next(second)]), expected);
        // Nothing is known about a missing window.
        let apart = [
            window(vec![switch(Tag::BEGIN, 1, 1_100)]),
            window(vec![switch(Tag::END, 1, 1_900)]),
        ];
        let expected = [(1, Some(1_100), None), (1, None, Some(1_900))];
        assert_eq!(slices(&apart), expected);
    }

    #[test]
    fn what_is_lost_has_no_end_and_no_begin() {
        let told = vec![
            switch(Tag::BEGIN, 1, 1_100),
            Told::Missing(4),
            switch(Tag::END, 2, 2_000),
            Told::Strange,
            // An end without a beginning, and a beginning without an end.
            switch(Tag::END, 1, 3_000),
            switch(Tag::BEGIN, 1, 3_100),
            switch(Tag::BEGIN, 2, 3_200),
            switch(Tag::END, 1, 3_300),
            switch(Tag(0x55), 1, 3_400),
        ];
        let expected = [
            (1, Some(1_100), None),
            (2, None, Some(2_000)),
            (1, None, Some(3_000)),
            (1, Some(3_100), None),
            (2, Some(3_200), None),
            (1, None, Some(3_300)),
        ];
        assert_eq!(slices(&[window(told)]), expected);
    }

    /// Test of as many MIG instances as a file can name, each lost and ended again and again.
    #[test]
    fn losses_and_ends_do_not_look_at_all_engines() {
        let begin = |number: u16| {
            Told::Switch(Switch {
                tag: Tag::BEGIN,
                pid: 7,
                instance: Some(Instance {
                    gpu: number as u8,
                    compute: Some((number >> 8) as u8),
                }),
                time_ns: 1_100,
                ..Switch::default()
            })
        };
        let mut slices = Slices::default();
        let none = |slice: Slice| panic!("{slice:?}");
        slices.window(&window((0..=u16::MAX).map(begin).collect()), none);
        let next = |told| Switches {
            from: window(Vec::new()).to,
            ..window(told)
        };
        let ended = |pid| Told::Ended { pid, by_ns: 5_000 };
        slices.window(
            &next((0..1 << 18).map(|i| ended(1_000 + i)).collect()),
            none,
        );
        let again = Switches {
            from: next(Vec::new()).to,
            ..next(vec![Told::Missing(1); 1 << 18])
        };
        let mut cut = 0;
        slices.window(&again, |slice| cut += usize::from(slice.end.is_none()));
        assert_eq!(cut, 1 << 16);
        slices.finish(none);
    }

    #[test]
    fn the_end_of_a_context_of_another_user_ends_no_slice_of_a_process() {
        let end = |context| {
            Told::Switch(Switch {
                tag: Tag::END,
                context,
                time_ns: 2_000,
                ..Switch::default()
            })
        };
        let slices = |context| {
            let (mut slices, mut all) = (Slices::default(), Vec::new());
            let told = vec![switch(Tag::BEGIN, 1, 1_100), end(context)];
            slices.window(&window(told), |s| {
                all.push((s.who, s.begin.is_some(), s.end.is_some()))
            });
            all
        };
        // For a context that is gone, neither process nor context is reported.
        assert_eq!(slices(0), [(Who::Process(1), true, true)]);
        let apart = [(Who::Process(1), true, false), (Who::Hidden, false, true)];
        assert_eq!(slices(0x77), apart);
    }

    #[test]
    fn a_process_that_has_ended_has_nothing_any_more() {
        let ended = |pid| Told::Ended { pid, by_ns: 5_000 };
        let told = vec![switch(Tag::BEGIN, 1, 1_100), ended(2), ended(1)];
        assert_eq!(slices(&[window(told)]), [(1, Some(1_100), Some(5_000))]);
    }
}
