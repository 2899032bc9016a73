//! Graphs as text and JSON.

use std::cmp::Reverse;
use std::fmt::Arguments;

use serde_json::{Value, json};

use super::Graphs;
use super::kinds::{NodeTime, OneGraph, Split, TimeBy};
use crate::output::names::{known_pid, pid_name};
use crate::output::plural::{plural, plural_of};
use crate::output::style::{Plain, Role};
use crate::output::units::Nanoseconds;

/// The most graphs in text, and the most rows of each.
const SHOWN: usize = 8;
const ROWS: usize = 12;

fn ns(ns: f64) -> Nanoseconds {
    Nanoseconds(ns.round().max(0.0) as u64)
}

impl OneGraph {
    /// Returns the time of all its replays, ns. Replays that are not timed are taken to be as long as the others.
    fn total_ns(&self) -> u64 {
        self.durations.mean_ns().saturating_mul(self.replays)
    }

    /// The first line of a graph: `2 nodes, 6003 replays, 508 us each, p99 512 us`.
    fn head(&self) -> String {
        let mut text = format!(
            "{}, {}",
            plural(self.count.into(), "node"),
            plural(self.replays, "replay")
        );
        let d = &self.durations;
        text += &match d.count {
            0 => ", of a time that is not known".to_owned(),
            timed => {
                let untimed = match timed == self.replays {
                    true => String::new(),
                    false => format!(" ({timed} timed)"),
                };
                format!(
                    ", {} each{untimed}, p99 {}",
                    Nanoseconds(d.mean_ns()),
                    Nanoseconds(d.quantile_ns(0.99))
                )
            }
        };
        if self.conditional {
            text += ", with conditional nodes";
        }
        text
    }
}

/// Returns words on the source of the nodes' times.
fn said(split: &Split, whole_ns: u64) -> String {
    let by: Vec<TimeBy> = split.nodes.iter().map(|n| n.by).collect();
    if by.contains(&TimeBy::Samples) {
        let samples: u64 = split.nodes.iter().map(|n| n.count).sum();
        return format!(
            "(~: the time of a replay divided by {})",
            plural_of(samples, "sample", "samples")
        );
    }
    let from = match (
        by.contains(&TimeBy::Launches),
        by.contains(&TimeBy::Recording),
    ) {
        (true, true) => "outside of graphs, or in the recording of --times-from",
        (false, true) => "in the recording of --times-from",
        _ => "outside of graphs",
    };
    let told: u64 = split.nodes.iter().map(|n| n.nodes).sum();
    let mut text = format!(
        "(~: as long as the same kernel with the same grid and shared memory {from}: {told} of {}",
        plural(told + split.untold, "node")
    );
    if whole_ns > 0 {
        let share = 100.0 * split.sum_ns() / whole_ns as f64;
        text += &format!(", together {share:.0} % of a replay's time");
    }
    text + ")"
}

impl Graphs {
    /// The graphs, those that took the most time first, with their numbers.
    fn sorted(&self) -> Vec<(usize, &OneGraph)> {
        let mut all: Vec<_> = self.graphs.iter().enumerate().collect();
        all.sort_by_key(|(number, g)| (Reverse(g.total_ns()), Reverse(g.replays), *number));
        all
    }

    /// Writes the graphs.
    pub(in crate::output::gpu_time) fn write(
        &self,
        line: &mut impl FnMut(Option<Role>, Arguments<'_>),
    ) {
        let all = self.sorted();
        for (number, graph) in all.iter().take(SHOWN) {
            line(None, format_args!(""));
            line(
                Some(Role::Operation),
                format_args!(
                    "graph {number}: {} (process {})",
                    graph.head(),
                    pid_name(graph.pid)
                ),
            );
            match &graph.split {
                Some(split) => self.rows(graph, split, line),
                None if graph.unresolved > 0 => line(
                    Some(Role::Dim),
                    format_args!(
                        "({} not seen: how its time divides is not known)",
                        plural_of(graph.unresolved.into(), "node was", "nodes were")
                    ),
                ),
                None => line(
                    Some(Role::Dim),
                    format_args!(
                        "(nothing tells how its time divides: --sample-pc does, or --times-from RECORDING)"
                    ),
                ),
            }
        }
        let more = all.len().saturating_sub(SHOWN);
        if more > 0 {
            let graphs = plural(more as u64, "more graph");
            line(None, format_args!("{graphs} (--json has all)"));
        }
        if self.others > 0 {
            let replays = plural(self.others, "replay");
            line(
                Some(Role::Alarm),
                format_args!("{replays} of more graphs than are told apart"),
            );
        }
    }

    fn rows(
        &self,
        graph: &OneGraph,
        split: &Split,
        line: &mut impl FnMut(Option<Role>, Arguments<'_>),
    ) {
        let whole = match graph.durations.count {
            0 => split.sum_ns(),
            _ => graph.durations.mean_ns() as f64,
        };
        line(
            None,
            format_args!(
                "{:>7} {:>9} {:>8} {:>6}  kernel",
                "time%", "each", "+-", "nodes"
            ),
        );
        for node in split.nodes.iter().take(ROWS) {
            let share = 100.0 * node.ns * node.nodes as f64 / whole.max(1.0);
            line(
                None,
                format_args!(
                    "{:>7} {:>9} {:>8} {:>6}  {}",
                    format!("~{share:.1}"),
                    format!("~{}", ns(node.ns)),
                    ns(node.error_ns).to_string(),
                    node.nodes,
                    Plain(&self.text(graph.pid, &node.key))
                ),
            );
        }
        if let Some(more) = split.nodes.len().checked_sub(ROWS).filter(|n| *n > 0) {
            line(None, format_args!("{:>7} {more} more (--json has all)", ""));
        }
        line(
            Some(Role::Dim),
            format_args!("{}", said(split, graph.durations.mean_ns())),
        );
    }

    /// The graphs as JSON, those that took the most time first.
    pub(in crate::output::gpu_time) fn json(&self) -> Vec<Value> {
        let node = |graph: &OneGraph, n: &NodeTime| {
            let whole = graph.durations.known(graph.durations.mean_ns() as f64);
            json!({
                "kernel": self.text(graph.pid, &n.key), "kernel_mangled": self.mangled(graph.pid, &n.key), "program": n.key.program,
                "grid": n.key.grid, "shared_bytes": n.key.shared_bytes, "nodes": n.nodes, "node_ns": n.ns.round() as u64,
                "node_error_ns": n.error_ns.round() as u64, "share": whole.map(|whole| n.ns * n.nodes as f64 / whole.max(1.0)),
                "by": n.by.name(), "by_count": n.count,
            })
        };
        let all = self.sorted().into_iter().map(|(number, g)| {
            let d = &g.durations;
            let nodes = g.split.as_ref().map(|split| {
                let nodes = split.nodes.iter().map(|n| node(g, n));
                nodes.collect::<Vec<_>>()
            });
            json!({
                "graph": number, "pid": known_pid(g.pid), "nodes": g.count, "unresolved": g.unresolved, "conditional": g.conditional,
                "replays": g.replays, "timed": d.count, "timed_ns": d.sum_ns, "mean_ns": d.known(d.mean_ns()), "least_ns": d.known(d.least_ns),
                "most_ns": d.known(d.most_ns), "p50_ns": d.known(d.quantile_ns(0.5)), "p99_ns": d.known(d.quantile_ns(0.99)),
                "kernels": nodes, "untold_nodes": g.split.as_ref().map(|split| split.untold),
            })
        });
        all.collect()
    }
}
