//! Samples of program counters of recordings, and graphs whose time they divide: of a server of which it is known how long its kernels took.

use std::fs;
use std::sync::Arc;

use crate::common::cli::{Folder, nvcap, page_data, refused, text};
use crate::common::job;
use crate::common::replays::{self, GAP_NS, LONG_NS, REPLAY_NS, SHORT_NS};
use crate::common::schema::Schema;
use nvcap_decode::record::{At, Calls, Frame, Record, Stack};
use nvcap_recording::recording::TraceInfo;
use serde_json::Value;

const BOOTED: u64 = 1_700_000_000_000_000_000;

/// Makes a recording of this number of replays, and launches outside of the graph.
fn file(folder: &Folder, name: &str, replays: u64, launches: (u64, u64), sampled: bool) -> String {
    let path = folder.path(name);
    let records = replays::records(replays, launches, sampled);
    fs::write(&path, job::written(&records, 1, true, BOOTED)).unwrap();
    path
}

/// Returns the output of a command, which must find nothing missing.
fn shown(args: &[&str]) -> String {
    let out = nvcap(args);
    let said = text(&out.stderr);
    assert_eq!(out.status.code(), Some(0), "{args:?}: {said}");
    text(&out.stdout)
}

fn object(args: &[&str]) -> Value {
    let out = shown(args);
    let value: Value = serde_json::from_str(out.lines().next().unwrap()).unwrap();
    Schema::of_output().check(&value).unwrap();
    value
}

/// The nodes of a graph by kernel: time and error of one.
fn nodes(graph: &Value) -> Vec<(&str, f64, f64, &str)> {
    let kernels = graph["kernels"].as_array().unwrap();
    let of = |k: &'static str, node: &Value| node[k].as_f64().unwrap();
    kernels
        .iter()
        .map(|node| {
            (
                node["kernel_mangled"].as_str().unwrap(),
                of("node_ns", node),
                of("node_error_ns", node),
                node["by"].as_str().unwrap(),
            )
        })
        .collect()
}

#[test]
fn samples_divide_the_time_of_replays() {
    let folder = Folder::new("samples-time");
    let file = file(&folder, "server.pcapng", 3000, (0, 0), true);
    let all = shown(&["time", &file]);
    let found = object(&["time", "--json", &file]);
    let [graph] = &found["graphs"].as_array().unwrap()[..] else {
        panic!("{}", found["graphs"]);
    };
    assert_eq!(
        (&graph["nodes"], &graph["replays"]),
        (&2.into(), &3000.into())
    );
    let each = graph["mean_ns"].as_f64().unwrap();
    assert!((each - REPLAY_NS as f64).abs() < 500.0, "{graph}");
    for ((name, ns, error, by), (wanted, truth)) in nodes(graph)
        .into_iter()
        .zip([(replays::LONG.1, LONG_NS), (replays::SHORT.1, SHORT_NS)])
    {
        assert_eq!((name, by), (wanted, "samples"));
        let off = (ns - (truth + GAP_NS) as f64).abs();
        assert!(off < error && error < 0.03 * truth as f64, "{graph}");
    }
    assert_eq!(all, TIME);
}

#[test]
fn without_samples_launches_outside_of_graphs_tell_and_another_recording() {
    let folder = Folder::new("samples-launches");
    let with = file(&folder, "launches.pcapng", 500, (200, 390_000), false);
    let found = object(&["time", "--json", &with]);
    let graph = &found["graphs"][0];
    let [(name, ns, _, "launches")] = nodes(graph)[..] else {
        panic!("{graph}");
    };
    assert_eq!(name, replays::LONG.1);
    assert!((ns - 390_000.0).abs() < 2_000.0, "{graph}");
    assert_eq!(graph["untold_nodes"], 1);
    // Nothing tells it: the number of nodes alone.
    let without = file(&folder, "without.pcapng", 500, (0, 0), false);
    let said = shown(&["time", &without]);
    let at = said.find("graph 0: ").unwrap();
    let lines: Vec<&str> = said[at..].lines().take(2).collect();
    assert_eq!(
        lines,
        [
            "graph 0: 2 nodes, 500 replays, 501 us each, p99 501 us (process 4711)",
            "(nothing tells how its time divides: --sample-pc does, or --times-from RECORDING)"
        ]
    );
    // By launches of another recording, and by another's samples.
    let sampled = file(&folder, "sampled.pcapng", 3000, (0, 0), true);
    for (from, told) in [(&with, 1), (&sampled, 2)] {
        let found = object(&["time", "--json", &without, "--times-from", from]);
        let nodes = nodes(&found["graphs"][0]);
        assert_eq!(nodes.len(), told, "{nodes:?}");
        assert!(nodes.iter().all(|n| n.3 == "recording"), "{nodes:?}");
        assert!((nodes[0].1 - LONG_NS as f64).abs() < 12_000.0, "{nodes:?}");
    }
    let said = shown(&["time", &without, "--times-from", &with]);
    assert!(
        said.contains(
            "in the recording of --times-from: 1 of 2 nodes, together 78 % of a replay's time)"
        ),
        "{said}"
    );
}

#[test]
fn a_recording_s_samples_are_shown() {
    let folder = Folder::new("samples-shown");
    let file = file(&folder, "server.pcapng", 3000, (0, 0), true);
    assert_eq!(shown(&["sample", &file, "--top", "3"]), SAMPLES);
    let found: Value = serde_json::from_str(&shown(&["sample", &file, "--json"])).unwrap();
    assert_eq!(
        (
            &found["samples"],
            &found["sms"],
            &found["comm"],
            &found["complete"]
        ),
        (&616_328.into(), &132.into(), &"server".into(), &true.into())
    );
    // In the trace's account, the table, and the trace for Perfetto.
    let ledger = shown(&["decode", "-q", "--json", &file]);
    let ledger: Value = serde_json::from_str(ledger.lines().last().unwrap()).unwrap();
    Schema::of_output().check(&ledger).unwrap();
    assert_eq!(ledger["samples"]["samples"], 616_328);
    let table = shown(&["export", "csv", &file, "--table", "samples"]);
    let mut lines = table.lines();
    let head: Vec<&str> = lines.next().unwrap().split(',').collect();
    let place = |name| head.iter().position(|n| *n == name).unwrap();
    // Names of kernels have commas, too.
    let behind = head.len() - 1 - place("samples");
    let samples = |line: &str| line.rsplit(',').nth(behind).unwrap().parse::<u64>();
    let sum: u64 = lines.map(|line| samples(line).unwrap()).sum();
    assert_eq!(sum, 616_328);
    assert!(table.contains(",304,"), "the offset 0x130");
    let trace = folder.path("server.pftrace");
    shown(&["export", "perfetto", &file, "-o", &trace]);
    let trace = fs::read(&trace).unwrap();
    for name in [
        "samples: attention(float const*, float*, int)",
        "% of samples",
    ] {
        let has = trace.windows(name.len()).any(|w| w == name.as_bytes());
        assert!(has, "{name}");
    }
    let page = folder.path("server.html");
    shown(&["report", &file, "-o", &page]);
    let page = fs::read_to_string(&page).unwrap();
    let data = page_data(&page);
    let context = &data["samples"]["contexts"][0];
    assert_eq!(context["samples"], 616_328);
    assert_eq!(context["instructions"][0]["offset"], 0x130);
    assert_eq!(
        context["instructions"][0]["stall"]["name"],
        "long_scoreboard"
    );
}

#[test]
fn what_has_no_samples_is_refused() {
    let folder = Folder::new("samples-none");
    let file = file(&folder, "none.pcapng", 3, (0, 0), false);
    refused(
        &["sample"],
        &[
            (vec![&*file], 1, "has no samples of program counters"),
            (vec![&*file, "-p", "1"], 2, "cannot be used with"),
            (vec![&*file, "--record", "x"], 2, "cannot be used with"),
            (vec![&*file, "-o", &*file], 2, "would"),
            (vec![], 2, "nothing to sample"),
        ],
    );
}

/// `nvcap time`.
const TIME: &str = "\
GPU 0: GPU-bound by graph replays; work ran in 99.8 % of 1.51 s; replays of graphs took 100.0 % of the work; in 0 % of the rest nothing was submitted, in 0 % work waited for a semaphore

time%    total      +-   count    mean  median   least    most  kernel
100.0   1.50 s 8.70 ms    3000  501 us  501 us  501 us  501 us  graph replay (all its kernels)

graph 0: 2 nodes, 3000 replays, 501 us each, p99 501 us (process 4711)
  time%      each       +-  nodes  kernel
  ~79.9   ~401 us  1.55 us      1  attention(float const*, float*, int)
  ~20.1   ~101 us  1.54 us      1  sample(float const*, int*)
(~: the time of a replay divided by 616328 samples)

worked% waited%  empty%  depth  queued           of
   99.8     0.0       0                          GPU 0
   99.8     0.0       0 1202.8  603 ms           channel 0 (gr), process 4711
(parts of each line's own time, which begins with its first work; worked:
 something ran; waited: work was there and waited for a semaphore;
 empty: nothing was submitted; the rest: work was on its way; depth: mean
 number of entries that wait or run; queued: median from doorbell to start)

        at s      gap  waited%   empty%  longest gaps of GPU 0
    0.002205  1.19 us        0        0
    0.002708  1.19 us        0        0
    0.003210  1.19 us        0        0
    0.003713  1.19 us        0        0
    0.004215  1.19 us        0        0
    0.004717  1.19 us        0        0
    0.005220  1.19 us        0        0
    0.005722  1.19 us        0        0
    0.006225  1.19 us        0        0
    0.006727  1.19 us        0        0

start known of 100.0 %, duration of 100.0 % of 3000 entries with work
time stamps: read 1370250 times in 1.51 s, 3002 seen

channel  process      token    engine  submissions  entries   bytes
      0  server/4711  0x0000a  gr             3002     3002  133736
  total                                       3002     3002  133736
130.6 KiB in 300 ms, from the first submission to the last: 10003 submissions/s, 435.2 KiB/s
launched 6000 kernels; 6000 of all in 3000 graph replays
616328 samples of program counters in 1.51 s
complete: 3002 submissions on 1 channel, 3002 entries, 130.6 KiB, nothing missing
";

/// `nvcap sample`.
/// Lines for flame graphs have each sample of the tables; of a recording with stacks the kernel stands behind its callers, but for what only graphs
/// launch.
#[test]
fn samples_are_folded_behind_the_calls_that_launch_the_kernel() {
    let folder = Folder::new("samples-folded");
    let plain = file(&folder, "plain.pcapng", 3000, (0, 0), true);
    let lines = shown(&["sample", "--folded", &plain]);
    assert_eq!(
        lines,
        "\
server;attention(float const*, float*, int);+0x130;long_scoreboard 448653
server;attention(float const*, float*, int);+0x40;wait 149551
server;sample(float const*, int*);+0x130;long_scoreboard 13595
server;sample(float const*, int*);+0x40;wait 4529
"
    );
    let frame = |symbol: &str| Frame {
        module: "/usr/bin/server".into(),
        symbol: Some(symbol.into()),
        ..Frame::default()
    };
    // Two launches from two places, in one thread's stack each, at their doorbells.
    let mut records = replays::records(3000, (2, 400_000), true);
    let doorbells: Vec<At> = { records.iter() }
        .filter_map(|record| match record {
            Record::Submission(s) => Some(s.at),
            _ => None,
        })
        .collect();
    for (at, place) in { doorbells.iter().rev() }.zip(["check", "decode", "prefill"]) {
        let calls = Calls {
            frames: vec![frame("cuLaunchKernel"), frame(place), frame("main")],
            ..Calls::default()
        };
        let calls = Arc::new(calls);
        records.push(Record::Stack(Stack { at: *at, calls }));
    }
    records.sort_by_key(|record| match record {
        Record::Submission(s) => s.at.time_ns,
        Record::Stack(s) => s.at.time_ns - 1,
        _ => 0,
    });
    let info = TraceInfo {
        stacks: true,
        monotonic_ns: replays::BEGIN,
        realtime_ns: BOOTED + replays::BEGIN,
        how: "trap".to_owned(),
        ..TraceInfo::default()
    };
    let path = folder.path("stacks.pcapng");
    fs::write(&path, job::recorded(&records, 1, info)).unwrap();
    let lines = shown(&["sample", "--folded", &path]);
    let starts: Vec<&str> = { lines.lines() }
        .map(|line| line.split(";+").next().unwrap())
        .collect();
    let launched = "server;main;[several places];attention(float const*, float*, int)";
    let replayed = "server;sample(float const*, int*)";
    assert_eq!(starts, [launched, launched, replayed, replayed], "{lines}");
    let other = nvcap(&["sample", "--folded", "--json", &path]);
    assert_eq!(other.status.code(), Some(2));
    let said = text(&other.stderr);
    assert!(said.contains("cannot be used with"), "{said}");
}

const SAMPLES: &str = "\
process 4711 (server) on GPU 0: 1.51 s, 616328 samples of 132 SMs, one of each SM in 2^19 cycles
             SHARE     SAMPLES  NO ISSUE  KERNEL
   97.06 % ± 0.04      598204    10.0 %  attention(float const*, float*, int)
    2.94 % ± 0.04       18124    10.0 %  sample(float const*, int*)
the hottest instructions
     SHARE    OF KERNEL  NO ISSUE    OFFSET  STALL                    KERNEL
   72.79 %      75.00 %    10.0 %    +0x130  long_scoreboard 100 %    attention(float const*, float*, int)
   24.26 %      25.00 %    10.0 %     +0x40  wait 100 %               attention(float const*, float*, int)
    2.21 %      75.01 %    10.0 %    +0x130  long_scoreboard 100 %    sample(float const*, int*)
complete: all 5546952 bytes of the stream are understood, none was lost
";
