//! Division of a replay's time among its nodes.
//!
//! Samples count the time of SMs. A kernel of 16 blocks is seen on 16 SMs: its samples are divided by the SMs that its grid fills. Samples of
//! a program that several nodes, or launches outside of the graph, run are theirs by the number of their blocks. Between
//! kernels lies a time in which no SM works, which samples do not see: each node has a share of it ([`GAP_NS`]).

use std::collections::{BTreeMap, HashMap};

use super::kinds::{Alone, Key, NodeTime, OneGraph, Split, TimeBy};
use crate::output::gpu_time::Durations;
use crate::samples::{Gathered, kernel_at};

/// Time of a node in which no SM works, ns, and the most that it may be. On an H200 the times of a server's short kernels were 0.6 us below CUPTI's
/// each.
const GAP_NS: f64 = 600.0;
const MOST_GAP_NS: f64 = 2.0 * GAP_NS;

/// Half of a 95 % interval in standard deviations; and the samples that something may have had of which none was seen.
const DEVIATIONS: f64 = 1.96;
const NONE_SEEN: f64 = 3.0;

/// The largest part of a replay's time that is taken for such gaps.
const MOST_GAPS: f64 = 0.5;

/// A kernel by name, grid and shared memory.
type Shape = (String, Option<[u32; 3]>, Option<u32>);

/// Times of kernels by name, grid and shared memory, that another trace has told.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    times: HashMap<Shape, Known>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Known {
    count: u64,
    ns: f64,
    error_ns: f64,
    /// True if launches tell the time, not samples.
    measured: bool,
}

impl Known {
    /// Makes a time of the mean of durations, with half of the interval in which the mean lies with 95 %, as far as the extremes tell it.
    fn of(durations: &Durations) -> Self {
        let count = durations.count.max(1) as f64;
        let spread = durations.most_ns.saturating_sub(durations.least_ns) as f64;
        Self {
            count: durations.count,
            ns: durations.sum_ns as f64 / count,
            error_ns: spread / (2.0 * count.sqrt()),
            measured: true,
        }
    }
}

impl Evidence {
    /// Tells whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.times.is_empty()
    }

    fn put(&mut self, name: &str, key: &Key, known: Known) {
        let place = (name.to_owned(), key.grid, key.shared_bytes);
        let held = self.times.entry(place).or_default();
        if (known.measured, known.count) > (held.measured, held.count) {
            *held = known;
        }
    }

    pub(super) fn add(&mut self, name: &str, key: &Key, durations: &Durations) {
        self.put(name, key, Known::of(durations));
    }

    pub(super) fn add_sampled(&mut self, name: &str, key: &Key, node: &NodeTime) {
        self.put(
            name,
            key,
            Known {
                count: node.count,
                ns: node.ns,
                error_ns: node.error_ns,
                measured: false,
            },
        );
    }

    fn of(&self, name: &str, key: &Key) -> Option<Known> {
        let place = (name.to_owned(), key.grid, key.shared_bytes);
        self.times.get(&place).copied()
    }
}

/// Samples of a process by program, with the number of its SMs.
#[derive(Debug, Default)]
struct OfProcess {
    programs: HashMap<u64, u64>,
    sms: u64,
}

/// Gathers the samples of each process by program.
fn sampled(samples: &Gathered) -> HashMap<u32, OfProcess> {
    let mut all: HashMap<u32, OfProcess> = HashMap::new();
    for context in samples.contexts() {
        let of = all.entry(context.key.pid).or_default();
        of.sms = of.sms.max(context.sm_count());
        let kernels = samples.kernels(context.key.pid);
        for (pc, counter) in &context.counters {
            if let Some(kernel) = kernel_at(kernels, *pc) {
                *of.programs.entry(kernel.program.0).or_default() += counter.samples;
            }
        }
    }
    all
}

/// Returns the number of blocks of each program that ran in all of the trace.
fn blocks(graphs: &[OneGraph], alone: &HashMap<(u32, Key), Alone>) -> HashMap<(u32, u64), f64> {
    let mut all: HashMap<(u32, u64), f64> = HashMap::new();
    let mut add = |pid, key: &Key, times: u64| {
        if let Some(program) = key.program {
            *all.entry((pid, program)).or_default() += key.blocks() as f64 * times as f64;
        }
    };
    for graph in graphs {
        let nodes = graph.nodes.iter();
        nodes.for_each(|key| add(graph.pid, key, graph.replays));
    }
    for ((pid, key), launches) in alone {
        add(*pid, key, launches.count);
    }
    all
}

/// Divides the time of each graph, as far as anything tells how.
pub(super) fn all<'a>(
    graphs: &[OneGraph],
    alone: &HashMap<(u32, Key), Alone>,
    samples: &Gathered,
    name: &dyn Fn(u32, &Key) -> Option<&'a str>,
    evidence: &Evidence,
) -> Vec<Option<Split>> {
    let sampled = sampled(samples);
    let blocks = blocks(graphs, alone);
    let split = |graph: &OneGraph| {
        let own = sampled.get(&graph.pid);
        let by_samples = own.and_then(|own| by_samples(graph, own, &blocks));
        by_samples.or_else(|| by_launches(graph, alone, name, evidence))
    };
    graphs.iter().map(split).collect()
}

/// Returns the nodes of a graph that are alike, with their number.
fn alike(graph: &OneGraph) -> BTreeMap<Key, u64> {
    let mut all = BTreeMap::new();
    for key in graph.nodes.iter() {
        *all.entry(*key).or_default() += 1;
    }
    all
}

fn sorted(mut nodes: Vec<NodeTime>, untold: u64) -> Option<Split> {
    let longest = |n: &NodeTime| -n.ns * n.nodes as f64;
    nodes.sort_by(|a, b| longest(a).total_cmp(&longest(b)).then(a.key.cmp(&b.key)));
    (!nodes.is_empty()).then_some(Split { nodes, untold })
}

/// Nodes that are alike, and the samples that tell their time.
struct Weight {
    key: Key,
    nodes: u64,
    /// Part of the elapsed time of one node that a sample stands for.
    unit: f64,
    /// Number of samples of its program.
    samples: u64,
}

impl Weight {
    /// Returns the elapsed time of all these nodes, in the unit of all weights.
    fn all(&self) -> f64 {
        self.unit * self.samples as f64 * self.nodes as f64
    }

    /// Returns the variance of that time: the number of samples is one of chance (Poisson).
    fn variance(&self) -> f64 {
        (self.unit * self.nodes as f64).powi(2) * self.samples as f64
    }
}

/// Divides the mean time of a replay by samples. All nodes must be known: samples of the others would be missing.
fn by_samples(
    graph: &OneGraph,
    own: &OfProcess,
    blocks: &HashMap<(u32, u64), f64>,
) -> Option<Split> {
    let whole = graph.durations.known(graph.durations.mean_ns() as f64)?;
    if graph.unresolved > 0 || graph.nodes.len() != graph.count as usize {
        return None;
    }
    // What a sample counts of the elapsed time of one node, and the samples of its program.
    let weight = |key: &Key| -> Option<(f64, u64)> {
        let program = key.program?;
        let all = own.programs.get(&program).copied().unwrap_or(0);
        let ran = blocks
            .get(&(graph.pid, program))
            .copied()
            .filter(|b| *b > 0.0)?;
        let filled = key.blocks().min(own.sms.max(1)) as f64;
        Some((key.blocks() as f64 / ran / filled, all))
    };
    let alike = alike(graph);
    let mut weights = Vec::new();
    for (key, count) in &alike {
        let (unit, samples) = weight(key)?;
        weights.push(Weight {
            key: *key,
            nodes: *count,
            unit,
            samples,
        });
    }
    let sum: f64 = weights.iter().map(Weight::all).sum();
    if sum <= 0.0 {
        return None;
    }
    let variance: f64 = weights.iter().map(|w| w.variance() / sum.powi(2)).sum();
    let count = graph.nodes.len().max(1) as f64;
    let of_mean = Known::of(&graph.durations).error_ns / whole;
    let time = |weight: f64, gap_ns: f64| {
        let gap = gap_ns.min(MOST_GAPS * whole / count);
        gap + (whole - gap * count) * weight / sum
    };
    let node = |w: Weight| {
        let weight = w.unit * w.samples as f64;
        let ns = time(weight, GAP_NS);
        let (share, own) = (w.all() / sum, w.variance() / sum.powi(2));
        // The share of a part whose size, and that of the rest, are known each with an error of its own.
        let chance = match w.samples {
            0 => NONE_SEEN * w.unit * w.nodes as f64 / sum,
            _ => {
                let rest = (variance - own).max(0.0);
                DEVIATIONS * ((1.0 - share).powi(2) * own + share.powi(2) * rest).sqrt()
            }
        };
        let by_chance = chance * whole / w.nodes as f64;
        let by_gap = [0.0, MOST_GAP_NS].map(|gap| (time(weight, gap) - ns).abs());
        NodeTime {
            key: w.key,
            nodes: w.nodes,
            ns,
            error_ns: by_chance + by_gap[0].max(by_gap[1]) + ns * of_mean,
            by: TimeBy::Samples,
            count: w.samples,
        }
    };
    sorted(weights.into_iter().map(node).collect(), 0)
}

/// Estimates nodes by launches of the same kernel, grid and shared memory: outside of graphs, else in another recording.
fn by_launches<'a>(
    graph: &OneGraph,
    alone: &HashMap<(u32, Key), Alone>,
    name: &dyn Fn(u32, &Key) -> Option<&'a str>,
    evidence: &Evidence,
) -> Option<Split> {
    let mut untold = u64::from(graph.count).saturating_sub(graph.nodes.len() as u64);
    let mut told = Vec::new();
    for (key, nodes) in alike(graph) {
        let own = alone
            .get(&(graph.pid, key))
            .filter(|a| a.durations.count > 0);
        let own = own.filter(|_| key.program.is_some());
        let own = own.map(|own| (Known::of(&own.durations), TimeBy::Launches));
        let other = || {
            let known = evidence.of(name(graph.pid, &key)?, &key)?;
            Some((known, TimeBy::Recording))
        };
        match own.or_else(other) {
            None => untold += nodes,
            Some((known, by)) => told.push(NodeTime {
                key,
                nodes,
                ns: known.ns,
                error_ns: known.error_ns,
                by,
                count: known.count,
            }),
        }
    }
    sorted(told, untold)
}
