//! Graphs, their nodes, and what is known of their times.

use std::sync::Arc;

use crate::output::gpu_time::Durations;
use nvcap_decode::decode::event::Launch;

/// Key of a node, or of a launch outside of graphs: all with one key are taken to do the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Key {
    pub(super) program: Option<u64>,
    /// Address of the QMD where the program is not known.
    qmd: Option<u64>,
    pub(super) grid: Option<[u32; 3]>,
    pub(super) shared_bytes: Option<u32>,
}

impl Key {
    pub(super) fn of(l: &Launch) -> Self {
        Self {
            program: l.program.map(|p| p.0),
            qmd: match l.program {
                Some(_) => None,
                None => l.qmd.map(|q| q.0),
            },
            grid: l.grid,
            shared_bytes: l.shared_bytes,
        }
    }

    /// Returns the number of blocks; 1 where that is not known.
    pub(super) fn blocks(&self) -> u64 {
        let grid = self.grid.unwrap_or([1; 3]);
        grid.iter()
            .fold(1u64, |all, n| all.saturating_mul((*n).max(1).into()))
    }
}

/// A graph: all replays with the same nodes in the same order, of one process.
#[derive(Clone, Debug, Default)]
pub(super) struct OneGraph {
    pub(super) pid: u32,
    /// Its nodes in the order in which they start each other.
    pub(super) nodes: Arc<[Key]>,
    /// Number of nodes, with those that are not told apart.
    pub(super) count: u32,
    /// Number of nodes whose QMD was not seen.
    pub(super) unresolved: u32,
    /// True if the graph has conditional nodes: how often they run is not known.
    pub(super) conditional: bool,
    pub(super) replays: u64,
    pub(super) durations: Durations,
    /// Division of a replay's time among its nodes, where anything tells it; set at the end of the trace.
    pub(super) split: Option<Split>,
}

/// Launches of one kernel outside of graphs, with the same grid and shared memory.
#[derive(Clone, Debug, Default)]
pub(super) struct Alone {
    pub(super) count: u64,
    pub(super) durations: Durations,
}

/// Way in which the time of a node is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TimeBy {
    /// Samples of program counters divide the replay's time.
    Samples,
    /// Launches of the same program, grid and shared memory outside of graphs.
    Launches,
    /// Another recording.
    Recording,
}

impl TimeBy {
    /// Its name in JSON.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Samples => "samples",
            Self::Launches => "launches",
            Self::Recording => "recording",
        }
    }
}

/// Time of the nodes of a graph that are alike.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct NodeTime {
    pub(super) key: Key,
    /// Number of nodes in the graph.
    pub(super) nodes: u64,
    /// Time of one node, ns, and the most by which it may be wrong.
    pub(super) ns: f64,
    pub(super) error_ns: f64,
    pub(super) by: TimeBy,
    /// Number of samples in all of them together, or of launches.
    pub(super) count: u64,
}

/// Division of a graph's time.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Split {
    /// Nodes, those that take the most time first.
    pub(super) nodes: Vec<NodeTime>,
    /// Number of nodes whose time nothing tells.
    pub(super) untold: u64,
}

impl Split {
    /// Returns the time of all nodes, ns.
    pub(super) fn sum_ns(&self) -> f64 {
        self.nodes.iter().map(|n| n.ns * n.nodes as f64).sum()
    }
}
