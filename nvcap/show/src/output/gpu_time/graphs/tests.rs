//! Tests of the division of replays, on times that are computed.

use super::*;
use crate::samples::tests::window;
use nvcap_decode::decode::event::{DurationBy, Engine, GpuDuration, GpuMoment, GpuTime, LaunchHow};
use nvcap_decode::record::{At, ChannelId, How, Samples};
use nvcap_decode::wire::GpuVa;

const PID: u32 = 7;
/// The gap that is taken for each node, ns.
const GAP: f64 = 600.0;
const LONG: u64 = 0x1000;
const SHORT: u64 = 0x2000;

fn context(serial: u64, begin: u64, ns: Option<u64>) -> Context {
    let duration = ns.map(|ns| GpuDuration {
        ns,
        error_ns: 1,
        by: DurationBy::NextStamp,
    });
    let time = GpuTime {
        start: Some(GpuMoment {
            host_ns: begin,
            host_error_ns: 0,
            gpu_ns: begin,
            gpu_error_ns: 0,
        }),
        duration,
        works: 1,
        ..GpuTime::default()
    };
    Context {
        absent_ns: None,
        at: At::of_process(begin, PID),
        thread: None,
        gpu: Some(0),
        channel: ChannelId(0),
        token: None,
        class: None,
        engine: Engine::Graphics,
        serial,
        how: How::Trapped,
        late: false,
        phase: None,
        stack: None,
        gpu_time: Some(Arc::from([time])),
        parts: None,
        identity: None,
    }
}

pub(in crate::output::gpu_time) fn launch(
    replay: Option<u64>,
    program: Option<u64>,
    blocks: u32,
) -> Operation {
    let name = |program| Kernel {
        bytes: Some(0x800),
        ..Kernel::called(
            At::of_process(1, PID),
            program,
            &format!("kernel_{program:x}"),
        )
    };
    Operation::Launch(Box::new(Launch {
        kind: match program {
            Some(_) => LaunchKind::User,
            None => LaunchKind::Unresolved,
        },
        how: LaunchHow::Dependent,
        pcas: None,
        replay,
        place: None,
        qmd: Some(GpuVa(0x100)),
        qmd_version: None,
        qmd_from: None,
        grid: program.map(|_| [blocks, 1, 1]),
        block: None,
        cluster: None,
        cooperative: false,
        registers: None,
        shared_bytes: Some(0),
        shared_reserved_bytes: None,
        local_bytes: None,
        barriers: None,
        program: program.map(GpuVa),
        stand_in: None,
        program_bytes: None,
        kernel: program.map(|program| Arc::new(name(program))),
        moves: None,
        args: None,
        arg_memory: Vec::new(),
        constant_banks: Vec::new(),
        releases: Vec::new(),
        dependent: None,
    }))
}

fn end(replay: u64, submissions: &[u64], nodes: u32, unresolved: u32) -> Operation {
    Operation::Graph(Box::new(Graph {
        replay,
        nodes,
        kernels: nodes - unresolved,
        memsets: 0,
        copies: 0,
        driver: 0,
        unresolved,
        channels: Vec::new(),
        submissions: submissions.to_vec(),
        bytes: 0,
        uploaded: false,
        conditional: false,
    }))
}

/// Replays a graph of these nodes, once for each of `times`.
fn replays(graphs: &mut Graphs, times: &[u64], nodes: &[(Option<u64>, u32)]) {
    let unresolved = nodes.iter().filter(|n| n.0.is_none()).count() as u32;
    for (i, ns) in times.iter().enumerate() {
        // Numbers that no other call gives.
        let number = (graphs.graphs.len() as u64) << 32 | i as u64;
        let c = context(number, 1_000 * number, Some(*ns));
        graphs.submission(&c);
        for (program, blocks) in nodes {
            graphs.operation(&c, 0, &launch(Some(number), *program, *blocks));
        }
        let end = end(number, &[number], nodes.len() as u32, unresolved);
        graphs.operation(&c, 0, &end);
    }
}

/// Samples of 132 SMs.
fn samples(counts: &[(u64, u64)]) -> Record {
    let all = [u64::MAX, u64::MAX, 0xf, 0, 0, 0, 0, 0];
    Record::Samples(Box::new(Samples {
        sms: all,
        ..window(PID, (0, 1_000_000_000), counts)
    }))
}

fn nodes(graphs: &Graphs, graph: usize) -> Vec<(u64, u64, f64, f64)> {
    let split = graphs.graphs[graph].split.as_ref();
    let nodes = split.into_iter().flat_map(|s| &s.nodes);
    nodes
        .map(|n| (n.key.program.unwrap_or(0), n.nodes, n.ns, n.error_ns))
        .collect()
}

fn text(graphs: &Graphs) -> String {
    let mut all = String::new();
    graphs.write(&mut |_, line| {
        all += &line.to_string();
        all.push('\n');
    });
    all
}

/// A kernel that fills all SMs for 400 us, and one of 16 blocks for 100 us, with a gap each. Samples count the time of SMs.
#[test]
fn samples_divide_the_time_of_a_replay() {
    let mut graphs = Graphs::default();
    replays(
        &mut graphs,
        &[501_200; 50],
        &[(Some(LONG), 264), (Some(SHORT), 16)],
    );
    graphs.record(&samples(&[
        (LONG + 16, 40_000 * 132 / 16),
        (LONG + 32, 360_000 * 132 / 16),
        (SHORT + 64, 100_000),
    ]));
    graphs.finish();
    let found = nodes(&graphs, 0);
    let [(LONG, 1, long, error), (SHORT, 1, short, _)] = found[..] else {
        panic!("{found:?}");
    };
    assert!((long - 400_000.0 - GAP).abs() < 1.0, "{long}");
    assert!((short - 100_000.0 - GAP).abs() < 1.0, "{short}");
    assert!((long + short - 501_200.0).abs() < 1.0);
    // The gap may be none, or twice as long.
    assert!(error > 300.0 && error < 2_000.0, "{error}");
    assert_eq!(
        text(&graphs),
        "
graph 0: 2 nodes, 50 replays, 501 us each, p99 501 us (process 7)
  time%      each       +-  nodes  kernel
  ~79.9   ~401 us   865 ns      1  kernel_1000
  ~20.1   ~101 us   865 ns      1  kernel_2000
(~: the time of a replay divided by 3400000 samples)
"
    );
}

/// Samples of a program are its nodes' and its launches' by their blocks.
#[test]
fn a_program_of_several_grids_has_its_samples_by_blocks() {
    let mut graphs = Graphs::default();
    let both = [
        (Some(LONG), 264),
        (Some(LONG), 132),
        (Some(SHORT), 132),
        (Some(SHORT), 132),
    ];
    replays(&mut graphs, &[401_200 + 1_200; 10], &both);
    // As often outside of the graph as within.
    for serial in 0..10 {
        let c = context(1_000_000 + serial, 0, None);
        graphs.operation(&c, 0, &launch(None, Some(SHORT), 264));
    }
    // Within: 200, 100, 50 and 50 us of all SMs; outside: 100 us.
    graphs.record(&samples(&[(LONG, 300_000), (SHORT, 200_000)]));
    graphs.finish();
    let found = nodes(&graphs, 0);
    let [(LONG, 1, a, _), (SHORT, 2, b, _), (LONG, 1, c, _)] = found[..] else {
        panic!("{found:?}");
    };
    for (ns, truth) in [(a, 200_000.0), (b, 50_000.0), (c, 100_000.0)] {
        assert!((ns - truth - GAP).abs() < 1.0, "{found:?}");
    }
}

#[test]
fn few_samples_have_wide_intervals() {
    let errors = [100, 10_000, 1_000_000].map(|all| {
        let mut graphs = Graphs::default();
        replays(
            &mut graphs,
            &[500_000; 3],
            &[(Some(LONG), 264), (Some(SHORT), 264)],
        );
        graphs.record(&samples(&[(LONG, all / 2), (SHORT, all / 2)]));
        graphs.finish();
        nodes(&graphs, 0)[0].3
    });
    // 1.96 x 0.5 / sqrt(n) of 500 us.
    for (error, wanted) in errors.iter().zip([49_000.0, 4_900.0, 490.0]) {
        assert!((error - wanted).abs() < 1.0, "{errors:?}");
    }
}

/// A node without a sample has no time but the gap, and may have had three samples.
#[test]
fn a_node_that_no_sample_saw_is_not_zero() {
    let mut graphs = Graphs::default();
    replays(
        &mut graphs,
        &[500_000; 3],
        &[(Some(LONG), 264), (Some(SHORT), 264)],
    );
    graphs.record(&samples(&[(LONG, 1_000)]));
    graphs.finish();
    let (program, _, ns, error) = nodes(&graphs, 0)[1];
    assert_eq!((program, ns), (SHORT, GAP));
    // 3 / 1000 of 500 us, and the gap.
    assert!((error - 1_500.0 - GAP).abs() < 1.0, "{error}");
}

#[test]
fn launches_outside_of_graphs_are_an_estimate_and_said_as_such() {
    let nodes_of = [(Some(LONG), 264), (Some(SHORT), 16), (Some(SHORT), 16)];
    let mut graphs = Graphs::default();
    replays(&mut graphs, &[400_000, 420_000], &nodes_of);
    for (serial, ns) in [(1_000, 290_000), (1_001, 310_000)] {
        let c = context(serial, 0, Some(ns));
        graphs.submission(&c);
        graphs.operation(&c, 0, &launch(None, Some(LONG), 264));
        // Another grid: it tells nothing.
        graphs.operation(&c, 0, &launch(None, Some(SHORT), 17));
    }
    graphs.finish();
    assert_eq!(
        text(&graphs),
        "
graph 0: 3 nodes, 2 replays, 410 us each, p99 420 us (process 7)
  time%      each       +-  nodes  kernel
  ~73.2   ~300 us  7.07 us      1  kernel_1000
(~: as long as the same kernel with the same grid and shared memory outside of graphs: 1 of 3 nodes, together 73 % of a replay's time)
"
    );
    // Another trace takes its times by name, grid and shared memory.
    let evidence = graphs.evidence();
    let mut other = Graphs::default();
    replays(&mut other, &[410_000], &nodes_of);
    other.with_evidence(evidence);
    other.finish();
    let said = text(&other);
    assert!(
        said.contains("in the recording of --times-from: 1 of 3 nodes"),
        "{said}"
    );
    let json = &other.json()[0];
    assert_eq!(json["kernels"][0]["by"], "recording");
    assert_eq!(
        (&json["untold_nodes"], &json["kernels"][0]["node_ns"]),
        (&2.into(), &300_000.into())
    );
    // So does one with samples.
    let mut sampled = Graphs::default();
    replays(&mut sampled, &[410_000], &nodes_of);
    sampled.record(&samples(&[(LONG, 300_000), (SHORT, 12_000)]));
    sampled.finish();
    let mut third = Graphs::default();
    replays(&mut third, &[410_000], &nodes_of);
    third.with_evidence(sampled.evidence());
    third.finish();
    assert_eq!(nodes(&third, 0).len(), 2);
    assert_eq!(nodes(&third, 0)[0].2, nodes(&sampled, 0)[0].2);
}

#[test]
fn where_nothing_tells_the_nodes_times_their_number_is_shown_alone() {
    let mut graphs = Graphs::default();
    replays(
        &mut graphs,
        &[100_000; 4],
        &[(Some(LONG), 1), (Some(SHORT), 1)],
    );
    replays(&mut graphs, &[50_000; 2], &[(Some(LONG), 1), (None, 1)]);
    // Samples of kernels tell nothing of a graph whose nodes were not seen.
    graphs.record(&samples(&[(0x9000, 100)]));
    graphs.finish();
    assert_eq!(
        text(&graphs),
        "
graph 0: 2 nodes, 4 replays, 100 us each, p99 100 us (process 7)
(nothing tells how its time divides: --sample-pc does, or --times-from RECORDING)

graph 1: 2 nodes, 2 replays, 50.0 us each, p99 50.0 us (process 7)
(1 node was not seen: how its time divides is not known)
"
    );
    assert!(graphs.json()[0]["kernels"].is_null());
    assert_eq!(graphs.json()[1]["unresolved"], 1);
}

/// A replay of several submissions takes from the begin of the first to the end of the last; one whose times are not all known is not timed.
#[test]
fn a_replay_takes_from_its_first_submission_to_its_last() {
    let mut graphs = Graphs::default();
    for (serial, begin, ns) in [
        (1, 1_000, Some(100)),
        (2, 1_050, Some(500)),
        (3, 2_000, None),
    ] {
        graphs.submission(&context(serial, begin, ns));
    }
    for (replay, submissions) in [(0, &[1, 2][..]), (1, &[2, 3]), (2, &[4])] {
        let c = context(submissions[0], 0, Some(1));
        graphs.operation(&c, 0, &launch(Some(replay), Some(LONG), 1));
        graphs.operation(&c, 0, &end(replay, submissions, 1, 0));
    }
    graphs.finish();
    let graph = &graphs.graphs[0];
    assert_eq!((graphs.graphs.len(), graph.replays), (1, 3));
    assert_eq!((graph.durations.count, graph.durations.sum_ns), (1, 550));
    assert!(text(&graphs).contains("1 node, 3 replays, 550 ns each (1 timed), p99 550 ns"));
}

#[test]
fn graphs_and_open_replays_are_bounded() {
    let mut graphs = Graphs::default();
    let c = context(0, 0, Some(1));
    for number in 0..2 * MOST_OPEN as u64 {
        graphs.operation(&c, 0, &launch(Some(number), Some(LONG), 1));
    }
    assert!(graphs.open.len() <= MOST_OPEN);
    for number in 0..MOST_GRAPHS as u64 + 5 {
        let replay = 10_000 + number;
        graphs.operation(&c, 0, &launch(Some(replay), Some(LONG), 1 + number as u32));
        graphs.operation(&c, 0, &end(replay, &[0], 1, 0));
    }
    assert_eq!((graphs.graphs.len(), graphs.others), (MOST_GRAPHS, 5));
    assert!(text(&graphs).contains("5 replays of more graphs than are told apart"));
    for serial in 0..5 * MOST_RECENT {
        graphs.submission(&context(serial, 0, Some(1)));
    }
    assert!(graphs.recent.len() as u64 <= 2 * MOST_RECENT + 1);
}
