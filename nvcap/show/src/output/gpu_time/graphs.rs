//! Graphs: the number and the time of each one's replays, and the division of a replay's time among its nodes.
//!
//! A replay is one work for the GPU's time stamps: they tell when all of it began and ended. How the time divides, samples of program counters
//! tell ([`split`]); where there are none, launches of the same kernel outside of graphs give an estimate.

use std::collections::HashMap;
use std::sync::Arc;

use super::told;
use super::work::elapsed;
use crate::output::kernels;
use crate::samples::Gathered;
use nvcap_decode::decode::event::{Context, Graph, Launch, LaunchKind, Operation};
use nvcap_decode::record::{Kernel, Record};

mod kinds;
mod shown;
mod split;

use kinds::{Alone, Key, OneGraph, TimeBy};
pub use split::Evidence;

/// The most graphs that are told apart.
const MOST_GRAPHS: usize = 1 << 12;

/// The most nodes that are told apart, of a graph and of all.
const MOST_NODES: usize = 1 << 16;
const MOST_NODES_OF_ALL: usize = 1 << 20;

/// The most replays at once whose end is not known.
const MOST_OPEN: usize = 256;

/// Number of submissions whose times are kept for replays that are told later.
const MOST_RECENT: u64 = 1 << 13;

/// The most different launches outside of graphs that are told apart.
const MOST_ALONE: usize = 1 << 16;

/// Sums up replays.
#[derive(Debug, Default)]
pub(super) struct Graphs {
    graphs: Vec<OneGraph>,
    places: HashMap<(u32, Arc<[Key]>), usize>,
    /// The nodes of replays whose end has not come, by the number of the replay.
    open: HashMap<u64, Vec<Key>>,
    nodes_kept: usize,
    /// Begin and end of the work of submissions, by their serial number.
    recent: HashMap<u64, Option<(u64, u64)>>,
    /// Kernels by process and program, as launches name them.
    names: HashMap<(u32, u64), Arc<Kernel>>,
    alone: HashMap<(u32, Key), Alone>,
    samples: Gathered,
    evidence: Evidence,
    /// Replays of graphs for which there was no room.
    others: u64,
}

impl Graphs {
    /// Takes the times that a recording tells, for nodes whose times this trace does not tell.
    pub(super) fn with_evidence(&mut self, evidence: Evidence) {
        self.evidence = evidence;
    }

    /// Takes the next record: samples, and the kernels that they lie in.
    pub(super) fn record(&mut self, record: &Record) {
        self.samples.record(record);
    }

    pub(super) fn samples(&self) -> &Gathered {
        &self.samples
    }

    /// Takes note of the time of a submission.
    pub(super) fn submission(&mut self, c: &Context) {
        let Some(times) = &c.gpu_time else { return };
        let mut whole: Option<(u64, u64)> = None;
        for time in times.iter().filter(|t| t.works > 0) {
            let own = time.start.zip(elapsed(time));
            let own = own.map(|(start, d)| (start.gpu_ns, start.gpu_ns.saturating_add(d.ns)));
            let Some((begin, end)) = own.filter(|_| time.works == 1) else {
                whole = None;
                break;
            };
            let (first, last) = whole.unwrap_or((begin, end));
            whole = Some((first.min(begin), last.max(end)));
        }
        self.recent.insert(c.serial, whole);
        if self.recent.len() as u64 > 2 * MOST_RECENT {
            let oldest = c.serial.saturating_sub(MOST_RECENT);
            self.recent.retain(|serial, _| *serial >= oldest);
        }
    }

    /// Takes an operation: a node, a launch, or the end of a replay.
    pub(super) fn operation(&mut self, c: &Context, entry: u32, op: &Operation) {
        match op {
            Operation::Launch(l) if l.kind == LaunchKind::Companion => {}
            Operation::Launch(l) => {
                self.name(c.at.pid, l);
                match l.replay {
                    Some(replay) => self.node(replay, l),
                    None => self.launch(c, entry, l),
                }
            }
            Operation::Graph(graph) => self.replay(c, graph),
            _ => {}
        }
    }

    fn name(&mut self, pid: u32, l: &Launch) {
        let Some((kernel, program)) = l.kernel.as_ref().zip(l.program) else {
            return;
        };
        let key = (pid, program.0);
        if self.names.len() < MOST_ALONE && !self.names.contains_key(&key) {
            self.names.insert(key, kernel.clone());
        }
    }

    fn node(&mut self, replay: u64, l: &Launch) {
        if self.open.len() >= MOST_OPEN && !self.open.contains_key(&replay) {
            // The oldest are those whose ends a filter has passed over.
            let oldest = replay.saturating_sub(MOST_OPEN as u64 / 2);
            self.open.retain(|number, _| *number >= oldest);
        }
        let nodes = self.open.entry(replay).or_default();
        if nodes.len() < MOST_NODES {
            nodes.push(Key::of(l));
        }
    }

    fn launch(&mut self, c: &Context, entry: u32, l: &Launch) {
        let key = (c.at.pid, Key::of(l));
        if self.alone.len() >= MOST_ALONE && !self.alone.contains_key(&key) {
            return;
        }
        let alone = self.alone.entry(key).or_default();
        alone.count += 1;
        let time = c.gpu_time_of(entry).filter(|time| time.works <= 1);
        if let Some(duration) = time.and_then(told) {
            alone.durations.add(duration.ns);
        }
    }

    fn replay(&mut self, c: &Context, of: &Graph) {
        let nodes: Arc<[Key]> = self.open.remove(&of.replay).unwrap_or_default().into();
        let key = (c.at.pid, nodes.clone());
        let next = self.graphs.len();
        let place = match self.places.get(&key) {
            Some(place) => *place,
            None if next >= MOST_GRAPHS || self.nodes_kept + nodes.len() > MOST_NODES_OF_ALL => {
                self.others += 1;
                return;
            }
            None => {
                self.nodes_kept += nodes.len();
                self.places.insert(key, next);
                self.graphs.push(OneGraph {
                    pid: c.at.pid,
                    nodes,
                    count: of.nodes,
                    unresolved: of.unresolved,
                    ..OneGraph::default()
                });
                next
            }
        };
        // From the first submission's begin to the end of the last: all must be known.
        let mut whole: Option<(u64, u64)> = None;
        for serial in &of.submissions {
            let Some(Some((begin, end))) = self.recent.get(serial) else {
                whole = None;
                break;
            };
            let (first, last) = whole.unwrap_or((*begin, *end));
            whole = Some((first.min(*begin), last.max(*end)));
        }
        if let Some(graph) = self.graphs.get_mut(place) {
            graph.replays += 1;
            graph.conditional |= of.conditional;
            if let Some((begin, end)) = whole {
                graph.durations.add(end.saturating_sub(begin));
            }
        }
    }

    /// Divides the replays' time among their nodes, as no more will come.
    pub(super) fn finish(&mut self) {
        for (key, kernel) in &self.names {
            // One that names an address of another process's is no name of this one's.
            if kernel.at.pid == key.0 {
                self.samples
                    .record(&Record::Kernel(Box::new(Kernel::clone(kernel))));
            }
        }
        let splits = split::all(
            &self.graphs,
            &self.alone,
            &self.samples,
            &|pid, key| self.mangled(pid, key),
            &self.evidence,
        );
        for (graph, split) in self.graphs.iter_mut().zip(splits) {
            graph.split = split;
        }
    }

    /// The name of a kernel as the compiler wrote it.
    fn mangled(&self, pid: u32, key: &Key) -> Option<&str> {
        let kernel = self.names.get(&(pid, key.program?))?;
        kernel.is_known().then_some(kernel.name.as_str())
    }

    /// A kernel's name as people read it.
    fn text(&self, pid: u32, key: &Key) -> String {
        let Some(program) = key.program else {
            return "kernel of an unknown program".to_owned();
        };
        match self.names.get(&(pid, program)) {
            Some(kernel) => kernels::text(kernel, true),
            None => format!("program {program:#x}"),
        }
    }

    /// Returns the times by kernel, grid and shared memory that this trace tells, for nodes of another trace's graphs.
    pub(super) fn evidence(&self) -> Evidence {
        let mut evidence = Evidence::default();
        for ((pid, key), alone) in &self.alone {
            if let (Some(name), 1..) = (self.mangled(*pid, key), alone.durations.count) {
                evidence.add(name, key, &alone.durations);
            }
        }
        for graph in &self.graphs {
            let nodes = graph.split.iter().flat_map(|split| &split.nodes);
            for node in nodes.filter(|node| node.by == TimeBy::Samples) {
                if let Some(name) = self.mangled(graph.pid, &node.key) {
                    evidence.add_sampled(name, &node.key, node);
                }
            }
        }
        evidence
    }
}

#[cfg(test)]
pub(super) mod tests;
