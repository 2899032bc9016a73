//! Grids that run: the QMDs that a submission names, the QMDs that those start in turn, and the replays of CUDA graphs.
//!
//! A pushbuffer names some QMDs by PCAS. A named QMD that waits neither for another QMD nor for a decrement runs; the others are made
//! ready. When a grid ends, the hardware schedules or decrements its dependents. One replay of a graph therefore runs the QMDs that its
//! submissions start and all QMDs to which these lead, each once. docs/decoding.md, "What runs", has the rules and the measurements behind
//! them.
//!
//! This module follows QMDs in the shadow; it knows no methods and makes no launches.

use std::collections::VecDeque;

use super::{
    event::{Context, Graph, Launch, LaunchHow, LaunchKind},
    ops::{
        driver_kernels::{GraphKernel, Successor},
        launch::Reader,
    },
    pcas::{Effect, PcasAction},
    shadow::{Shadow, Space},
    view::{Dependent, DependentAction, View},
};
use crate::wire::hash::{NumberMap, NumberSet};

/// A QMD that an entry names.
#[derive(Clone, Copy, Debug)]
pub(super) struct Named {
    /// Address of the QMD.
    pub address: u64,
    /// Action on the QMD.
    pub action: PcasAction,
    /// Reader of the QMD's bytes.
    pub reader: Reader,
}

impl Named {
    fn run(&self, how: LaunchHow) -> Run {
        Run {
            address: self.address,
            how,
            action: Some(self.action),
            reader: self.reader,
        }
    }
}

/// A QMD that runs; possibly one whose content is not known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub address: u64,
    pub how: LaunchHow,
    pub action: Option<PcasAction>,
    pub reader: Reader,
}

/// The grids that an entry starts.
#[derive(Default)]
pub(super) struct Started {
    /// QMDs in the order in which they start each other, including unknown ones.
    runs: Vec<Run>,
    /// Views of the first [`MOST_VIEWS`] of `runs`; `None` for a QMD that was not read.
    views: Vec<Option<View>>,
    /// True if the entry is a replay of a graph, or a part of one.
    pub graph: bool,
    uploaded: bool,
    conditional: bool,
    /// Open replay of which the entry is a part, if the entry works on a table of the driver's.
    replay: Option<u64>,
}

impl Started {
    fn push(&mut self, run: Run, view: Option<View>) {
        if self.runs.len() < MOST_VIEWS {
            self.views.push(view);
        }
        self.runs.push(run);
    }

    /// Returns the grids, each with the view of its QMD if that was kept.
    pub(super) fn into_runs(self) -> impl Iterator<Item = (Run, Option<View>)> {
        let views = self
            .views
            .into_iter()
            .chain(std::iter::repeat_with(|| None));
        self.runs.into_iter().zip(views)
    }
}

/// QMDs of a process that one submission decremented, and that wait for further decrements.
type Countdowns = NumberMap<u64, u32>;

/// The most countdowns that are kept. No graph has more; above the limit all are forgotten.
const MOST_COUNTDOWNS: usize = 1 << 16;
/// The most QMDs that are followed from one entry, which bounds an endless chain.
const MOST_RUNS: usize = 1 << 20;
/// The most QMDs whose views are kept as they were read. The others are read again, which costs time instead of memory.
const MOST_VIEWS: usize = 1 << 14;
/// The most replays that may wait for further submissions at the same time.
const MOST_OPEN: usize = 64;

/// A replay that may have further submissions.
struct Open {
    space: Space,
    context: Context,
    graph: Graph,
    tables: Vec<u64>,
    /// QMDs with which the replay's submissions begin.
    first: NumberSet<u64>,
    /// Entries of the driver's tables that only some of their predecessors have reached: the replay has further submissions.
    entries: NumberMap<(u64, u32), u32>,
}

impl Open {
    fn new(space: Space, context: &Context, replay: u64) -> Self {
        Self {
            space,
            context: context.clone(),
            graph: Graph {
                replay,
                nodes: 0,
                kernels: 0,
                memsets: 0,
                copies: 0,
                driver: 0,
                unresolved: 0,
                channels: Vec::new(),
                submissions: Vec::new(),
                bytes: 0,
                uploaded: false,
                conditional: false,
            },
            tables: Vec::new(),
            first: NumberSet::default(),
            entries: NumberMap::default(),
        }
    }
}

/// Counts one of the `of` events for which `key` waits. Returns true for the last one, and drops the count.
fn count_down<K: Copy + Eq + std::hash::Hash>(
    waiting: &mut NumberMap<K, u32>,
    key: K,
    of: u32,
) -> bool {
    let left = waiting.entry(key).or_insert(of);
    *left = left.saturating_sub(1);
    let ends = *left == 0;
    if ends {
        waiting.remove(&key);
    }
    ends
}

/// The replays, and their countdowns.
#[derive(Default)]
pub(super) struct Graphs {
    replays: u64,
    open: VecDeque<Open>,
    countdowns: NumberMap<Space, Countdowns>,
}

/// Tells whether a launch of a submission is complete in itself: it runs at once, and leads to nothing except the companion that the driver
/// puts beside it.
pub(super) fn is_alone(
    view: &View,
    reader: Reader,
    written_here: bool,
    shadow: &mut Shadow,
    space: Space,
) -> bool {
    let starts = !view.requires_pcas && view.dependence == 0;
    let companion = |d: &Dependent, shadow: &mut Shadow| {
        let known = reader.needs(d.address.0, shadow, space);
        match d.action {
            DependentAction::Other(_) => true,
            // Nothing is known of a companion that was written before the trace.
            DependentAction::DecrementDependence => known.is_none_or(|v| v.null),
            DependentAction::Schedule => known.is_some_and(|v| v.null),
        }
    };
    written_here
        && (view.null || starts && !view.grid.contains(&0))
        && (view.null || view.dependents.iter().all(|d| companion(d, shadow)))
}

struct Walk<'a> {
    shadow: &'a mut Shadow,
    space: Space,
    context: &'a Context,
    countdowns: &'a mut Countdowns,
    open: &'a mut VecDeque<Open>,
    replays: &'a mut u64,
    /// QMD with which the submission begins.
    first: Option<u64>,
    ready: NumberSet<u64>,
    released: NumberSet<u64>,
    seen: NumberSet<u64>,
    queue: VecDeque<(Run, bool)>,
    started: Started,
}

impl Walk<'_> {
    /// Queues the QMDs that run at once, and records those that are made ready. Returns the releases whose QMDs are unknown; each of them
    /// may release any QMD that is ready.
    fn begin(&mut self, named: &[Named]) -> Vec<Run> {
        let mut blind_releases = Vec::new();
        for n in named {
            let needs = n.reader.needs(n.address, self.shadow, self.space);
            match (n.action.effect(), needs) {
                (Effect::None, _) => {}
                (Effect::Schedules, Some(v)) if v.requires_pcas || v.dependence > 0 || v.null => {
                    self.ready.insert(n.address);
                }
                (Effect::Schedules, _) => {
                    self.queue.push_back((n.run(LaunchHow::Scheduled), true));
                }
                (Effect::Releases, Some(_)) => {
                    self.released.insert(n.address);
                    self.countdowns.remove(&n.address);
                    self.queue.push_back((n.run(LaunchHow::Released), true));
                }
                (Effect::Releases, None) => blind_releases.push(n.run(LaunchHow::Released)),
            }
            self.started.uploaded |= n.action == PcasAction::InvalidateCopySchedule;
        }
        blind_releases
    }

    /// Runs the queue to its end, including the QMDs that running ones add to it. `written` are the QMDs that the entry wrote.
    fn follow_all(&mut self, written: &NumberSet<u64>) {
        while let Some((run, by_grid)) = self.queue.pop_front() {
            if !self.seen.insert(run.address) || self.started.runs.len() >= MOST_RUNS {
                continue;
            }
            self.first = self.first.or(Some(run.address));
            let here = written.contains(&run.address);
            self.started.uploaded |= here;
            let Some(view) = run.reader.view(run.address, self.shadow, self.space) else {
                self.started.graph = true;
                self.started.push(run, None);
                continue;
            };
            self.follow(run, &view);
            if !view.null {
                let of_grid = run.how == LaunchHow::Dependent && by_grid;
                self.started.graph |= !here || of_grid || view.grid.contains(&0);
                self.started.push(run, Some(view));
            }
        }
    }

    /// Assigns to each release of an unknown QMD one of the QMDs that are ready and were written here. This happens with programmatic
    /// dependent launches of an attached process, whose companion was not seen. Releases that are left over are parts of a graph.
    fn release_blindly(
        &mut self,
        named: &[Named],
        written: &NumberSet<u64>,
        mut blind_releases: Vec<Run>,
    ) {
        for n in named {
            let ready = self.ready.contains(&n.address) && written.contains(&n.address);
            if ready && !blind_releases.is_empty() && self.seen.insert(n.address) {
                blind_releases.pop();
                self.started.push(n.run(LaunchHow::Released), None);
            }
        }
        self.started.graph |= !blind_releases.is_empty();
        for run in blind_releases {
            self.started.push(run, None);
        }
    }

    /// Follows the effect of a running QMD on others.
    fn follow(&mut self, run: Run, view: &View) {
        // These go before the waiting ones, in their own order: a chain is followed to its end first.
        let mut next = Vec::new();
        for d in &view.dependents {
            let known = run.reader.needs(d.address.0, self.shadow, self.space);
            let null = known.as_ref().is_some_and(|v| v.null);
            match d.action {
                DependentAction::Other(_) => {}
                // A companion schedules the slot of the launch after it, whatever that slot holds now.
                DependentAction::Schedule if view.null && !self.ready.contains(&d.address.0) => {}
                DependentAction::Schedule => next.push(d.address.0),
                // The pushbuffer releases this QMD as well, and the release is counted there.
                DependentAction::DecrementDependence if self.released.contains(&d.address.0) => {}
                DependentAction::DecrementDependence if null => {}
                // It is unknown whether the decrement makes the QMD run. If it is a node of a graph, the pushbuffer names it as well.
                DependentAction::DecrementDependence if known.is_none() => {}
                DependentAction::DecrementDependence => {
                    let of = known.map_or(1, |v| v.dependence.max(1));
                    if count_down(self.countdowns, d.address.0, of) {
                        next.push(d.address.0);
                    }
                }
            }
        }
        let args = GraphKernel::may_be(view)
            .then(|| run.reader.arguments(view, self.shadow, self.space))
            .flatten();
        let kernel = args
            .and_then(|args| GraphKernel::of(run.address, view, &args, self.shadow, self.space));
        if let Some(kernel) = kernel {
            self.started.graph = true;
            let at = self.replay_with(kernel.0.table);
            for successor in kernel.successors(self.shadow, self.space) {
                match successor {
                    Successor::Conditional => self.started.conditional = true,
                    Successor::Qmd { entry, address, of } => {
                        let open = self.open.get_mut(at);
                        if open.is_some_and(|o| {
                            count_down(&mut o.entries, (kernel.0.table, entry), of)
                        }) {
                            next.push(address);
                        }
                    }
                }
            }
        }
        for address in next.into_iter().rev() {
            let how = LaunchHow::Dependent;
            let dependent = Run {
                address,
                how,
                action: None,
                reader: run.reader,
            };
            self.queue.push_front((dependent, !view.null));
        }
    }

    /// Returns the open replay to which this submission belongs, if it works on a table of the driver's: the oldest replay with the same
    /// table that does not begin with the same QMD (a replay that does is the previous one). Several replays may be open, because observed
    /// submissions come channel by channel.
    fn replay_with(&mut self, table: u64) -> usize {
        let own = self.started.replay;
        let fits = |o: &Open| match own {
            Some(replay) => o.graph.replay == replay,
            None => {
                let begins = self.first.is_some_and(|f| o.first.contains(&f));
                o.space == self.space && o.tables.contains(&table) && !begins
            }
        };
        let at = match self.open.iter().position(fits) {
            Some(at) => at,
            None => {
                let replay = *self.replays;
                *self.replays += 1;
                let open = Open::new(self.space, self.context, replay);
                self.open.push_back(open);
                self.open.len() - 1
            }
        };
        if let Some(open) = self.open.get_mut(at) {
            self.started.replay = Some(open.graph.replay);
            open.first.extend(self.first);
            if !open.tables.contains(&table) {
                open.tables.push(table);
            }
        }
        at
    }
}

impl Graphs {
    /// Returns the grids that an entry starts by naming these QMDs. `written` are the QMDs that the entry itself wrote.
    pub(super) fn start(
        &mut self,
        named: &[Named],
        written: &NumberSet<u64>,
        shadow: &mut Shadow,
        space: Space,
        context: &Context,
    ) -> Started {
        let countdowns = self.countdowns.entry(space).or_default();
        if countdowns.len() > MOST_COUNTDOWNS {
            countdowns.clear();
        }
        let mut walk = Walk {
            shadow,
            space,
            context,
            countdowns,
            open: &mut self.open,
            replays: &mut self.replays,
            first: None,
            ready: NumberSet::default(),
            released: NumberSet::default(),
            seen: NumberSet::default(),
            queue: VecDeque::new(),
            started: Started::default(),
        };
        let blind_releases = walk.begin(named);
        walk.follow_all(written);
        walk.release_blindly(named, written, blind_releases);
        walk.started
    }

    /// Assigns the part of a graph that an entry started to its replay, or to a new one if none was found. Returns the number of the
    /// replay, and the number of its nodes so far.
    pub(super) fn join(
        &mut self,
        started: &Started,
        context: &Context,
        space: Space,
        bytes: u64,
    ) -> (u64, u32) {
        let replay = started.replay.unwrap_or_else(|| {
            let replay = self.replays;
            self.replays += 1;
            self.open.push_back(Open::new(space, context, replay));
            replay
        });
        let open = self.open.iter_mut().rev();
        let Some(graph) = open.map(|o| &mut o.graph).find(|g| g.replay == replay) else {
            return (replay, 0);
        };
        if !graph.channels.contains(&context.channel) {
            graph.channels.push(context.channel);
        }
        if graph.submissions.last() != Some(&context.serial) {
            graph.submissions.push(context.serial);
        }
        graph.bytes += bytes;
        graph.uploaded |= started.uploaded;
        graph.conditional |= started.conditional;
        (replay, graph.nodes)
    }

    /// Counts a node of an open replay.
    pub(super) fn count(&mut self, replay: u64, launch: &Launch) {
        let open = self.open.iter_mut().rev();
        let Some(graph) = open.map(|o| &mut o.graph).find(|g| g.replay == replay) else {
            return;
        };
        let of_kind = match launch.kind {
            LaunchKind::Companion => return,
            LaunchKind::User => &mut graph.kernels,
            LaunchKind::DriverMemset => &mut graph.memsets,
            LaunchKind::DriverCopy => &mut graph.copies,
            LaunchKind::DriverGraph | LaunchKind::Driver => &mut graph.driver,
            LaunchKind::Unresolved => &mut graph.unresolved,
        };
        *of_kind += 1;
        graph.nodes += 1;
    }

    /// Takes out the replays that are complete because their channel continued, with a part of `replay` or with something else. Replays
    /// that certainly have further submissions stay.
    pub(super) fn complete(
        &mut self,
        context: &Context,
        space: Space,
        replay: Option<u64>,
    ) -> Vec<(Context, Graph)> {
        let too_many = self.open.len().saturating_sub(MOST_OPEN);
        let mut index = 0;
        self.take(|o| {
            index += 1;
            let goes_on = o.space == space && o.graph.channels.contains(&context.channel);
            let ends = goes_on && Some(o.graph.replay) != replay && o.entries.is_empty();
            index <= too_many || ends
        })
    }

    /// Takes out the open replays of one process or of all. At the end, it also takes out those that certainly have further submissions.
    pub(super) fn end(&mut self, space: Option<Space>, is_end: bool) -> Vec<(Context, Graph)> {
        self.take(|o| space.is_none_or(|s| s == o.space) && (is_end || o.entries.is_empty()))
    }

    /// Drops the countdowns of a process.
    pub(super) fn forget(&mut self, space: Space) {
        self.open.retain(|o| o.space != space);
        self.countdowns.remove(&space);
    }

    fn take(&mut self, mut ends: impl FnMut(&Open) -> bool) -> Vec<(Context, Graph)> {
        if self.open.is_empty() {
            return Vec::new();
        }
        let (ended, open) = self.open.drain(..).partition(|o| ends(o));
        self.open = open;
        let ended: VecDeque<Open> = ended;
        ended.into_iter().map(|o| (o.context, o.graph)).collect()
    }
}

#[cfg(test)]
mod tests;
