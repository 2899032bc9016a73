//! Turns of processes on a GPU's engines: the part of a stretch of time that was a process's, and its next turn.
//!
//! Each slice is kept with the sum of the process's slices before it, so that a stretch of many slices is answered as fast as one of few.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::record::{Instance, Who};
use super::residence::{Of, Residence, Stretch};
use super::told::{Scope, Told};
use crate::record::Switches;

/// The most parts of a GPU's time that are kept: some 13 s at 10,000 switches a second. The time before them becomes unknown.
const MOST_PARTS: usize = 1 << 17;
/// The most engines of a GPU, which has up to seven MIG instances of up to seven compute instances each.
const MOST_ENGINES: usize = 64;

/// A part of a GPU's time.
#[derive(Clone, Copy, Debug)]
struct Part {
    from: u64,
    to: u64,
    /// Sum of the parts before it, ns.
    before: u64,
}

/// Parts of a GPU's time in their order. They do not overlap.
#[derive(Clone, Debug, Default)]
struct Parts(VecDeque<Part>);

impl Parts {
    fn add(&mut self, from: u64, to: u64) {
        let before = self.0.back().map_or(0, |p| p.before + (p.to - p.from));
        self.0.push_back(Part { from, to, before });
    }

    /// Returns the sum of all parts before a time, ns; only differences of such sums have a meaning.
    fn until(&self, time: u64) -> u64 {
        let behind = self.0.partition_point(|part| part.from < time);
        match behind.checked_sub(1).and_then(|last| self.0.get(last)) {
            Some(part) => part.before + (part.to.min(time) - part.from),
            None => self.0.front().map_or(0, |first| first.before),
        }
    }

    fn within(&self, from: u64, to: u64) -> u64 {
        self.until(to) - self.until(from.min(to))
    }

    /// Forgets the parts that ended by a time, and returns their number.
    fn forget(&mut self, time: u64) -> usize {
        let gone = self.0.partition_point(|part| part.to <= time);
        self.0.drain(..gone).count()
    }
}

/// Owner of a stretch of an engine's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Process(u32),
    /// Unknown; possibly any process.
    Unknown,
    /// No process, or none of those that are asked about.
    Another,
}

impl Owner {
    fn of(of: Of, scope: Scope) -> Self {
        match of {
            Of::Held((Who::Process(pid), _)) => Self::Process(pid),
            // To root the driver names every process except one that was gone when it looked.
            Of::Held((Who::Hidden, _)) if scope == Scope::AllUsers => Self::Unknown,
            Of::Unknown => Self::Unknown,
            Of::Held((Who::Hidden | Who::Driver, _)) | Of::Switch | Of::Nobody => Self::Another,
        }
    }
}

/// Parts of an engine's time: each process's, and those about which nothing is known.
#[derive(Clone, Debug)]
struct Engine {
    of: BTreeMap<u32, Parts>,
    unknown: Parts,
    /// Owner of the lasting part, and its beginning.
    now: (Owner, u64),
}

impl Default for Engine {
    fn default() -> Self {
        Self {
            of: BTreeMap::new(),
            unknown: Parts::default(),
            now: (Owner::Unknown, 0),
        }
    }
}

impl Engine {
    /// Returns the length of the lasting part within a stretch of time if `owner` is its owner, ns.
    fn lasting(&self, owner: Owner, from: u64, to: u64) -> u64 {
        let since = (self.now.0 == owner).then_some(self.now.1.max(from));
        since.map_or(0, |since| to.saturating_sub(since))
    }

    fn had(&self, pid: u32, from: u64, to: u64) -> u64 {
        let closed = self.of.get(&pid).map_or(0, |own| own.within(from, to));
        closed.saturating_add(self.lasting(Owner::Process(pid), from, to))
    }

    fn unknown(&self, from: u64, to: u64) -> u64 {
        let lasting = self.lasting(Owner::Unknown, from, to);
        self.unknown.within(from, to).saturating_add(lasting)
    }
}

#[derive(Clone, Debug)]
struct Gpu {
    scope: Scope,
    residence: Residence,
    engines: BTreeMap<Option<Instance>, Engine>,
    parts: usize,
    /// Beginning of the known time, GPU time, ns.
    from: u64,
    to: u64,
    /// End of the windows before the first one with a switch or a loss, GPU time, ns; and whether no such window has come yet.
    undivided_until: u64,
    is_undivided: bool,
    /// Processes that had an engine in the newest window.
    newest: BTreeSet<u32>,
}

impl Gpu {
    fn new(window: &Switches) -> Self {
        let from = window.from;
        Self {
            scope: window.scope,
            residence: Residence::new(from.gpu_ns),
            engines: BTreeMap::new(),
            parts: 0,
            from: from.gpu_ns,
            to: from.gpu_ns,
            undivided_until: from.gpu_ns,
            is_undivided: true,
            newest: BTreeSet::new(),
        }
    }

    fn window(&mut self, window: &Switches) {
        let follows = self.to == window.from.gpu_ns;
        self.to = self.to.max(window.to.gpu_ns);
        self.newest.clear();
        // No real GPU has so many engines. Nothing is then known about this GPU, since each window would have to look at all of them.
        if self.engines.len() > MOST_ENGINES {
            return;
        }
        // A window in between is missing.
        if !follows {
            self.lost();
        }
        for told in &window.told {
            match told {
                Told::Switch(switch) => {
                    if let Some(stretch) = self.residence.take_stretch(switch) {
                        self.add(stretch);
                    }
                }
                Told::Missing(_) => self.lost(),
                Told::Strange => {}
                Told::Ended { pid, by_ns } => {
                    let mut ended = Vec::new();
                    self.residence
                        .ended_stretches(*pid, *by_ns, |s| ended.push(s));
                    ended.into_iter().for_each(|stretch| self.add(stretch));
                }
            }
        }
        for lasting in self.residence.lasting() {
            let engine = self.engines.entry(lasting.instance).or_default();
            engine.now = (Owner::of(lasting.of, self.scope), lasting.from);
            if let Owner::Process(pid) = engine.now.0 {
                self.newest.insert(pid);
            }
        }
        self.is_undivided &= self.engines.is_empty();
        if self.is_undivided {
            self.undivided_until = self.to;
        }
        if self.parts > MOST_PARTS {
            self.forget_before(self.from.midpoint(self.to));
        }
        if self.parts > MOST_PARTS {
            self.forget_before(self.to);
        }
    }

    fn lost(&mut self) {
        self.residence.lost();
        self.is_undivided = false;
    }

    fn add(&mut self, stretch: Stretch) {
        let owner = Owner::of(stretch.of, self.scope);
        let engine = self.engines.entry(stretch.instance).or_default();
        let parts = match owner {
            Owner::Process(pid) => {
                self.newest.insert(pid);
                engine.of.entry(pid).or_default()
            }
            Owner::Unknown => &mut engine.unknown,
            Owner::Another => return,
        };
        if stretch.from < stretch.to {
            parts.add(stretch.from, stretch.to);
            self.parts += 1;
        }
    }

    fn forget_before(&mut self, time: u64) {
        for engine in self.engines.values_mut() {
            let mut gone = engine.unknown.forget(time);
            engine.of.retain(|_, own| {
                gone += own.forget(time);
                !own.0.is_empty()
            });
            self.parts = self.parts.saturating_sub(gone);
        }
        self.from = time;
    }

    /// Returns the engine that these processes had within a stretch of time; `None` if they had several, or none.
    fn engine(&self, pids: &[u32], from: u64, to: u64) -> Option<(&Engine, u64)> {
        let had = |engine: &Engine| pids.iter().map(|pid| engine.had(*pid, from, to)).sum();
        let engines = self.engines.values().map(|engine| (engine, had(engine)));
        let mut theirs = engines.filter(|(_, had): &(_, u64)| *had > 0);
        theirs.next().filter(|_| theirs.next().is_none())
    }
}

/// Turns on the engines of all GPUs, from the windows.
#[derive(Clone, Debug, Default)]
pub struct Turns {
    gpus: BTreeMap<u32, Gpu>,
}

impl Turns {
    /// Takes the next window of a GPU.
    pub fn window(&mut self, window: &Switches) {
        let gpu = self.gpus.entry(window.gpu);
        gpu.or_insert_with(|| Gpu::new(window)).window(window);
    }

    /// Tells whether no window was taken.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.gpus.is_empty()
    }

    /// Returns the time of a GPU up to which its turns are known, ns; `None` for a GPU without windows.
    #[must_use]
    pub fn known_until(&self, gpu: u32) -> Option<u64> {
        self.gpus.get(&gpu).map(|gpu| gpu.to)
    }

    /// Returns the time of a GPU before which neither a switch nor a loss was reported, ns. Up to then, each process may have had the GPU
    /// all the time.
    #[must_use]
    pub fn undivided_until(&self, gpu: u32) -> Option<u64> {
        self.gpus.get(&gpu).map(|gpu| gpu.undivided_until)
    }

    /// Returns the processes that had an engine of a GPU in its newest window.
    pub fn newest(&self, gpu: u32) -> impl Iterator<Item = u32> {
        let newest = self.gpus.get(&gpu).map(|gpu| &gpu.newest);
        newest.into_iter().flatten().copied()
    }

    /// Returns the time for which these processes had a GPU's engine within a stretch in which one of them worked, by the GPU's clock, ns.
    /// `None` if it is not known: records are missing, there are none of that time, or they contradict that one of these processes worked.
    #[must_use]
    pub fn had(&self, gpu: u32, pids: &[u32], from: u64, to: u64) -> Option<u64> {
        let gpu = self.gpus.get(&gpu)?;
        let is_covered = gpu.from <= from && from <= to && to <= gpu.to;
        if !is_covered || gpu.engines.len() > MOST_ENGINES {
            return None;
        }
        // Without any switch nobody else had the engine.
        if to <= gpu.undivided_until || from == to {
            return Some(to - from);
        }
        let (engine, had) = gpu.engine(pids, from, to)?;
        (engine.unknown(from, to) == 0).then_some(had.min(to - from))
    }
}

#[cfg(test)]
mod tests {
    use super::super::made_up::{self, slice, told as switch};
    use super::super::record::{Switch, Tag};
    use super::*;

    /// Makes a window of GPU 3.
    fn window(from: u64, to: u64, told: Vec<Told>) -> Switches {
        made_up::window(3, (from, to), told)
    }

    fn turns(windows: &[Switches]) -> Turns {
        let mut turns = Turns::default();
        windows.iter().for_each(|w| turns.window(w));
        turns
    }

    #[test]
    fn a_time_is_a_process_s_as_far_as_its_slices_go() {
        let told = [
            vec![switch(Tag::END, 1, 1_400)],
            slice(2, 1_500, 1_900).to_vec(),
            slice(1, 2_000, 2_600).to_vec(),
            slice(2, 2_700, 2_800).to_vec(),
            vec![switch(Tag::BEGIN, 1, 2_900)],
        ];
        let turns = turns(&[window(1_000, 3_000, told.concat())]);
        let had = |from, to| turns.had(3, &[1], from, to);
        // Within a slice, across one end, across several, from the first record's time, and in the lasting part.
        assert_eq!(had(2_100, 2_500), Some(400));
        assert_eq!(had(1_300, 1_450), Some(100));
        assert_eq!(had(1_300, 2_950), Some(100 + 600 + 50));
        assert_eq!(had(1_000, 3_000), Some(400 + 600 + 100));
        assert_eq!(turns.had(3, &[2], 1_000, 3_000), Some(500));
        assert_eq!(turns.had(3, &[1, 2], 1_000, 3_000), Some(1_600));
        assert_eq!(had(2_000, 2_000), Some(0));
        // A process that had no engine did not work. Times beyond the windows, other GPUs and other processes are unknown.
        assert_eq!(had(1_500, 1_900), None);
        assert_eq!(had(900, 1_300), None);
        assert_eq!(had(2_000, 3_001), None);
        assert_eq!(turns.had(0, &[1], 2_100, 2_500), None);
        assert_eq!(turns.had(3, &[9], 1_000, 3_000), None);
        assert_eq!(turns.known_until(3), Some(3_000));
        assert_eq!(turns.known_until(0), None);
    }

    #[test]
    fn what_lasts_goes_on_in_the_next_window() {
        let next = window(3_000, 5_000, vec![switch(Tag::END, 1, 4_000)]);
        let first = window(1_000, 3_000, vec![switch(Tag::BEGIN, 1, 1_200)]);
        let turns = turns(&[first, next]);
        assert_eq!(turns.had(3, &[1], 1_500, 4_500), Some(2_500));
        assert_eq!(turns.had(3, &[1], 4_100, 4_500), None);
    }

    #[test]
    fn where_records_are_missing_nothing_is_known() {
        let told = [
            slice(1, 1_100, 1_500).to_vec(),
            vec![Told::Missing(4)],
            slice(1, 2_000, 2_500).to_vec(),
            slice(2, 2_600, 2_700).to_vec(),
        ];
        let mut turns = turns(&[window(1_000, 3_000, told.concat())]);
        let had = |turns: &Turns, from, to| turns.had(3, &[1], from, to);
        assert_eq!(had(&turns, 1_100, 1_500), Some(400));
        assert_eq!(had(&turns, 1_100, 1_501), None);
        assert_eq!(had(&turns, 1_900, 2_100), None);
        assert_eq!(had(&turns, 2_000, 2_900), Some(500));
        // A window is missing; then one in which the end of its slice is reported as nobody's.
        turns.window(&window(4_000, 5_000, slice(1, 4_100, 4_200).to_vec()));
        assert_eq!(had(&turns, 2_400, 4_150), None);
        assert_eq!(had(&turns, 4_100, 4_150), Some(50));
        let hidden = switch(Tag::BEGIN, 0, 5_100);
        let told = vec![switch(Tag::BEGIN, 1, 5_050), hidden];
        turns.window(&window(5_000, 6_000, told));
        assert_eq!(had(&turns, 5_050, 5_200), None);
    }

    #[test]
    fn nobody_else_had_a_gpu_of_which_no_switch_was_told() {
        let mut turns = turns(&[window(1_000, 3_000, Vec::new())]);
        assert_eq!(turns.had(3, &[1], 1_500, 2_500), Some(1_000));
        assert_eq!(turns.had(3, &[1], 1_500, 3_500), None);
        assert_eq!(turns.undivided_until(3), Some(3_000));
        let lost = window(3_000, 5_000, vec![Told::Missing(1)]);
        turns.window(&lost);
        turns.window(&window(5_000, 6_000, Vec::new()));
        assert_eq!(turns.had(3, &[1], 1_500, 2_500), Some(1_000));
        assert_eq!(turns.had(3, &[1], 3_500, 4_000), None);
        assert_eq!(turns.had(3, &[1], 5_500, 6_000), None);
    }

    #[test]
    fn what_was_before_the_first_switch_stays_known() {
        let told = [
            vec![switch(Tag::END, 1, 3_400)],
            slice(2, 3_500, 3_600).to_vec(),
        ]
        .concat();
        let windows = [window(1_000, 3_000, Vec::new()), window(3_000, 5_000, told)];
        let mut turns = turns(&windows);
        assert_eq!(turns.had(3, &[1], 1_500, 2_500), Some(1_000));
        assert_eq!(turns.had(3, &[1], 1_500, 4_000), Some(1_900));
        assert_eq!(turns.undivided_until(3), Some(3_000));
        let newest = |turns: &Turns| turns.newest(3).collect::<Vec<_>>();
        assert_eq!(newest(&turns), [1, 2]);
        // The lasting part belongs to the newest window, too.
        turns.window(&window(5_000, 6_000, vec![switch(Tag::BEGIN, 7, 5_500)]));
        turns.window(&window(6_000, 7_000, Vec::new()));
        assert_eq!(newest(&turns), [7]);
    }

    #[test]
    fn another_user_s_slices_are_others_to_a_client_that_sees_its_own_alone() {
        let told = [slice(1, 1_100, 1_500), slice(1, 2_000, 2_500)].concat();
        let mut own = window(1_000, 3_000, told);
        own.scope = Scope::OwnUser;
        let hidden = [switch(Tag::BEGIN, 0, 1_600), switch(Tag::END, 0, 1_900)];
        own.told.splice(2..2, hidden);
        assert_eq!(turns(&[own]).had(3, &[1], 1_100, 2_500), Some(900));
    }

    #[test]
    fn a_process_that_had_two_instances_may_have_worked_on_either() {
        let on = |gpu, told: [Told; 2]| {
            told.map(|told| match told {
                Told::Switch(switch) => Told::Switch(Switch {
                    instance: Some(Instance { gpu, compute: None }),
                    ..switch
                }),
                told => told,
            })
        };
        let mut both = window(1_000, 3_000, on(1, slice(1, 1_100, 2_000)).to_vec());
        assert_eq!(turns(&[both.clone()]).had(3, &[1], 1_100, 1_900), Some(800));
        both.told.extend(on(2, slice(1, 1_200, 1_300)));
        assert_eq!(turns(&[both]).had(3, &[1], 1_100, 1_900), None);
    }

    #[test]
    fn old_turns_are_forgotten_and_not_known_then() {
        let mut turns = Turns::default();
        let slices = 100 + MOST_PARTS as u64;
        for n in 0..slices {
            let from = 1_000 + n * 100;
            turns.window(&window(
                from,
                from + 100,
                slice(1, from, from + 50).to_vec(),
            ));
        }
        assert!(turns.gpus[&3].parts <= MOST_PARTS);
        assert_eq!(turns.had(3, &[1], 1_000, 1_050), None);
        let end = 1_000 + slices * 100;
        assert_eq!(turns.had(3, &[1], end - 1_000, end), Some(500));
    }
}
