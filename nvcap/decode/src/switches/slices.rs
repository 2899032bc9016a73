//! Slices: the times for which a context had an engine, one by one.

use std::collections::BTreeMap;

use super::record::{Instance, Switch, Who};
use super::told::Told;
use crate::record::Switches;

/// A time at both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SliceTime {
    /// Time of the host, `CLOCK_MONOTONIC`, ns.
    pub host_ns: u64,
    /// Time of the GPU (PTIMER), ns.
    pub gpu_ns: u64,
}

/// Time for which a context had an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Number N of the GPU's `/dev/nvidiaN`.
    pub gpu: u32,
    /// The MIG instance, where the GPU is in that mode.
    pub instance: Option<Instance>,
    /// Holder of the context.
    pub who: Who,
    /// The context.
    pub context: u32,
    /// Its begin; `None` where it was not recorded.
    pub begin: Option<SliceTime>,
    /// Its end; `None` where it was not recorded, or had not come when the recording ended.
    pub end: Option<SliceTime>,
}

/// A slice that has begun: who, and when.
type Open = (Who, u32, SliceTime);

/// State of an engine.
#[derive(Clone, Copy, Debug)]
enum State {
    /// Nothing was told since the recording began, or since records were lost.
    Unknown,
    /// A context has it.
    Held(Open),
    /// Nobody has it.
    Free,
}

/// Makes slices of windows.
#[derive(Clone, Debug, Default)]
pub struct Slices {
    engines: BTreeMap<(u32, Option<Instance>), State>,
    /// End of each GPU's last window, ns of the GPU's time.
    until: BTreeMap<u32, u64>,
}

impl Slices {
    /// Takes the next window of a GPU, and gives the slices that end in it, in the order of their ends.
    pub fn window(&mut self, window: &Switches, mut each: impl FnMut(Slice)) {
        let before = self.until.insert(window.gpu, window.to.gpu_ns);
        // A window between them is not there.
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
        for ((gpu, instance), state) in self.engines {
            if let State::Held(open) = state {
                each(slice(gpu, instance, open, None));
            }
        }
    }

    fn switch(&mut self, window: &Switches, switch: &Switch, each: &mut impl FnMut(Slice)) {
        let (begins, ends) = (switch.tag.begins(), switch.tag.ends());
        if !begins && !ends {
            return;
        }
        let (gpu, instance) = (window.gpu, switch.instance);
        let state = self.engines.entry((gpu, instance));
        let state = state.or_insert(State::Unknown);
        let now = time(window, switch.time_ns);
        let who = (switch.who(), switch.context);
        match (*state, begins) {
            (State::Held(open), false) if (open.0, open.1) == who || who.0 == Who::Hidden => {
                each(slice(gpu, instance, open, Some(now)));
            }
            (State::Held(open), _) => {
                each(slice(gpu, instance, open, None));
                if ends {
                    each(ended_slice(gpu, instance, who, now));
                }
            }
            (State::Unknown | State::Free, false) => each(ended_slice(gpu, instance, who, now)),
            (State::Unknown | State::Free, true) => {}
        }
        *state = match begins {
            true => State::Held((who.0, who.1, now)),
            false => State::Free,
        };
    }

    /// Records of a GPU are missing: slices may have ended.
    fn lost(&mut self, gpu: u32, each: &mut impl FnMut(Slice)) {
        for ((of, instance), state) in &mut self.engines {
            if *of != gpu {
                continue;
            }
            if let State::Held(open) = *state {
                each(slice(gpu, *instance, open, None));
            }
            *state = State::Unknown;
        }
    }

    fn ended(&mut self, window: &Switches, pid: u32, by: u64, each: &mut impl FnMut(Slice)) {
        for ((of, instance), state) in &mut self.engines {
            match *state {
                State::Held(open) if *of == window.gpu && open.0 == Who::Process(pid) => {
                    let end = time(window, by);
                    each(slice(window.gpu, *instance, open, Some(end)));
                    *state = State::Free;
                }
                _ => {}
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

/// A slice whose begin was not recorded.
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
    use super::super::record::Tag;
    use super::super::told::{Reading, Scope};
    use super::*;
    use crate::record::At;

    fn switch(tag: Tag, pid: u32, time_ns: u64) -> Told {
        Told::Switch(Switch {
            tag,
            pid,
            context: pid * 10,
            time_ns,
            ..Switch::default()
        })
    }

    /// A window of GPU 3 whose clocks differ by 1,000,000 ns.
    fn window(told: Vec<Told>) -> Switches {
        let reading = |gpu_ns| Reading {
            host_ns: gpu_ns + 1_000_000,
            gpu_ns,
            error_ns: 2,
        };
        Switches {
            at: At::default(),
            gpu: 3,
            scope: Scope::AllUsers,
            from: reading(1_000),
            to: reading(9_000),
            told,
            processes: Vec::new(),
        }
    }

    /// Process, begin and end by the GPU's clock.
    fn slices(windows: &[Switches]) -> Vec<(u32, Option<u64>, Option<u64>)> {
        let (mut slices, mut all) = (Slices::default(), Vec::new());
        let mut each = |s: Slice| {
            let Who::Process(pid) = s.who else {
                panic!("{s:?}")
            };
            for time in [s.begin, s.end].into_iter().flatten() {
                assert_eq!(time.host_ns, time.gpu_ns + 1_000_000);
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
        // Of a window that is not there nothing is known.
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
            // An end without a begin, and a begin without an end.
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

    #[test]
    fn a_process_that_has_ended_has_nothing_any_more() {
        let ended = |pid| Told::Ended { pid, by_ns: 5_000 };
        let told = vec![switch(Tag::BEGIN, 1, 1_100), ended(2), ended(1)];
        assert_eq!(slices(&[window(told)]), [(1, Some(1_100), Some(5_000))]);
    }
}
