//! Files as their readers get them.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::sync::Arc;

mod files;

use serde_json::{Value, json};

use super::*;
use crate::export::made::{self, Place, context, give};
use nvcap_decode::decode::event::{
    Context, Copy, CopyEngine, CopyMode, Direction, GpuTime, Graph, LaunchKind, Moves, Operation,
};
use nvcap_decode::record::{At, Calls, Gpu, How, Life, Process};
use nvcap_decode::wire::GpuVa;

/// The files of a trace: the first one's place, and those of further processes.
#[derive(Clone, Default)]
struct Files {
    first: Place,
    further: Rc<RefCell<BTreeMap<u32, Place>>>,
    made: Rc<RefCell<Made>>,
}

impl Files {
    /// Makes a sink for which `rank_of` tells ranks. `has_more`: further processes have files.
    fn sink(&self, packed: bool, has_more: bool) -> Kineto {
        let further = self.further.clone();
        let options = KinetoOptions {
            base_ns: Some(1_700_000_000_000_000_000),
            driver: Some("580.159.04".to_owned()),
            packed,
            rank_of: Box::new(|pid| {
                (pid == 7).then_some(Rank {
                    rank: 3,
                    world_size: Some(8),
                })
            }),
            more: Box::new(move |pid| {
                let place = Place::default();
                further.borrow_mut().insert(pid, place.clone());
                Ok(has_more.then(|| Output::to(Box::new(place))))
            }),
            made: self.made.clone(),
        };
        Kineto::new(Output::to(Box::new(self.first.clone())), options)
    }
}

fn text(place: &Place) -> String {
    String::from_utf8(place.bytes.lock().unwrap().clone()).unwrap()
}

fn json(place: &Place) -> Value {
    serde_json::from_str(&text(place)).unwrap()
}

fn model() -> Model {
    Model::new(nvcap_decode::driver::ModelOptions::default())
}

fn finish(mut sink: Kineto) {
    sink.finish(&Ledger::new(), &model()).unwrap();
}

fn present(sink: &mut Kineto, pid: u32, tid: u32, name: &str) {
    let process = Process {
        at: At {
            time_ns: 1,
            pid,
            tid,
        },
        life: Life::Present {
            name: name.to_owned(),
        },
    };
    sink.record(&Record::Process(process), &model()).unwrap();
}

fn timed(channel: u32, serial: u64, doorbell: u64, begin: u64, ns: u64) -> Context {
    made::timed(context(channel, serial, doorbell), begin, ns)
}

fn launch() -> Operation {
    Operation::Launch(Box::new(made::launch()))
}

fn copy(src: Option<u64>, direction: Option<Direction>, bytes: u64) -> Operation {
    Operation::Copy(Box::new(Copy {
        bytes,
        src: src.map(GpuVa),
        dst: Some(GpuVa(0x2000)),
        physical: (false, false),
        mode: CopyMode::Linear,
        engine: CopyEngine::Copy(Some(2)),
        direction,
        direction_from: None,
        line_bytes: bytes as u32,
        lines: 1,
        pitch: None,
        pattern: None,
        semaphore: None,
        launch_dma: 0,
        src_memory: None,
        dst_memory: None,
    }))
}

fn graph() -> Operation {
    Operation::Graph(Box::new(Graph {
        replay: 0,
        nodes: 5,
        kernels: 3,
        memsets: 1,
        copies: 1,
        driver: 0,
        unresolved: 0,
        channels: Vec::new(),
        submissions: Vec::new(),
        bytes: 0,
        uploaded: false,
        conditional: false,
    }))
}

fn moves(kind: LaunchKind, src: Option<u64>) -> Operation {
    Operation::Launch(Box::new(nvcap_decode::decode::event::Launch {
        kind,
        moves: Some(Moves {
            dst: Some(GpuVa(0x9000)),
            src: src.map(GpuVa),
            bytes: Some(512),
            value: None,
        }),
        ..made::launch()
    }))
}

/// The slices of works, without what is the same for all.
fn works(file: &Value) -> Vec<&Value> {
    let events = file["traceEvents"].as_array().unwrap().iter();
    events.filter(|e| e["ph"] == "X" && e["pid"] != 7).collect()
}

/// The file of [`a_file_has_the_members_that_its_readers_know`], but for what nvcap says of it.
const WHOLE: &str = r#"{
    "schemaVersion": 1,
    "deviceProperties": [{"id": 0, "name": "GH100"}],
    "distributedInfo": {"rank": 3, "world_size": 8},
    "nvidia_driver_version": "580.159.04",
    "displayTimeUnit": "ms",
    "baseTimeNanoseconds": 1700000000000000000,
    "traceEvents": [
        {"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "args": {"name": "train \"a\""}},
        {"ph": "M", "name": "process_labels", "pid": 7, "tid": 0, "args": {"labels": "CPU"}},
        {"ph": "M", "name": "process_sort_index", "pid": 7, "tid": 0, "args": {"sort_index": 7}},
        {"ph": "M", "name": "process_name", "pid": 0, "tid": 0, "args": {"name": "train \"a\""}},
        {"ph": "M", "name": "process_labels", "pid": 0, "tid": 0, "args": {"labels": "GPU 0"}},
        {"ph": "M", "name": "process_sort_index", "pid": 0, "tid": 0, "args": {"sort_index": 5000000}},
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": 4, "args": {"name": "stream 4 (channel 3, gr)"}},
        {"ph": "M", "name": "thread_sort_index", "pid": 0, "tid": 4, "args": {"sort_index": 4}},
        {"ph": "M", "name": "thread_name", "pid": 7, "tid": 8, "args": {"name": "thread 8 (worker)"}},
        {"ph": "M", "name": "thread_sort_index", "pid": 7, "tid": 8, "args": {"sort_index": 8}},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 7, "tid": 8, "ts": 1000.1, "dur": 0,
         "args": {"correlation": 1, "submission": 0}},
        {"ph": "s", "id": 1, "pid": 7, "tid": 8, "ts": 1000.1, "cat": "ac2g", "name": "ac2g"},
        {"ph": "X", "cat": "kernel", "name": "program 0x7f00", "pid": 0, "tid": 4, "ts": 1002.0, "dur": 50.5, "args": {
            "device": 0, "stream": 4, "correlation": 1, "registers per thread": 24, "grid": [7, 5, 3], "block": [64, 1, 1],
            "channel": 3, "engine": "gr", "submission": 0, "begin_error_ns": 5, "duration_error_ns": 3}},
        {"ph": "f", "id": 1, "pid": 0, "tid": 4, "ts": 1002.0, "cat": "ac2g", "name": "ac2g", "bp": "e"},
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": 5, "args": {"name": "stream 5 (channel 4, gr)"}},
        {"ph": "M", "name": "thread_sort_index", "pid": 0, "tid": 5, "args": {"sort_index": 5}},
        {"ph": "X", "cat": "doorbell", "name": "doorbell", "pid": 7, "tid": 8, "ts": 1100.0, "dur": 0,
         "args": {"correlation": 2, "submission": 1}},
        {"ph": "s", "id": 2, "pid": 7, "tid": 8, "ts": 1100.0, "cat": "ac2g", "name": "ac2g"},
        {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD (Unknown -> Device)", "pid": 0, "tid": 5, "ts": 1200.0, "dur": 2.0,
         "args": {"device": 0, "stream": 5, "correlation": 2, "bytes": 4096, "memory bandwidth (GB/s)": 2.048, "channel": 4,
            "engine": "gr", "submission": 1, "begin_error_ns": 5, "duration_error_ns": 3}},
        {"ph": "f", "id": 2, "pid": 0, "tid": 5, "ts": 1200.0, "cat": "ac2g", "name": "ac2g", "bp": "e"},
        {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": 1202.0}
    ]
}"#;

#[test]
fn a_file_has_the_members_that_its_readers_know() {
    let files = Files::default();
    let mut sink = files.sink(false, true);
    let gpu = Gpu {
        at: At::default(),
        minor: 0,
        pci_device: 0x2335,
    };
    sink.record(&Record::Gpu(gpu), &model()).unwrap();
    present(&mut sink, 7, 7, "train \"a\"");
    let mut called = timed(3, 0, 1_000_100, 1_002_000, 50_500);
    called.stack = Some(Arc::new(Calls {
        api: Some("cudaLaunchKernel".into()),
        ..Calls::default()
    }));
    give(&mut sink, &called, &launch());
    give(
        &mut sink,
        &timed(4, 1, 1_100_000, 1_200_000, 2_000),
        &copy(Some(0x1000), Some(Direction::HostToDevice), 4096),
    );
    // A work of which the time is not known.
    give(&mut sink, &context(3, 2, 1_300_000), &launch());
    finish(sink);
    assert!(text(&files.first).contains("\"rank\": 3"), "with a space");
    let mut file = json(&files.first);
    let own = file.as_object_mut().unwrap().remove("nvcap");
    assert_eq!(file, serde_json::from_str::<Value>(WHOLE).unwrap());
    let empty = Ledger::new();
    let expected = json!({
        "version": env!("CARGO_PKG_VERSION"), "verdict": verdict(&empty), "exit_status": empty.exit_status(),
        "kernels": 1, "graph_replays": 0, "copies": 1, "memsets": 0, "calls": 2, "untimed": 1,
    });
    assert_eq!(own, Some(expected));
    let made = files.made.borrow();
    assert_eq!(made.elsewhere, 0);
    let [file] = &made.files[..] else {
        panic!("{made:?}")
    };
    assert_eq!((file.pid, &*file.process), (7, "train \"a\""));
    assert_eq!(file.counts.works(), 2);
}

#[test]
fn names_are_those_that_readers_sort_by() {
    let files = Files::default();
    let mut sink = files.sink(false, true);
    let all = [
        (copy(None, None, 64), "gpu_memset", "Memset (Device)", 64),
        (
            copy(Some(1), Some(Direction::DeviceToHost), 65),
            "gpu_memcpy",
            "Memcpy DtoH (Device -> Unknown)",
            65,
        ),
        (
            copy(Some(1), None, 66),
            "gpu_memcpy",
            "Memcpy Unknown (Unknown -> Unknown)",
            66,
        ),
        (
            moves(LaunchKind::DriverMemset, None),
            "gpu_memset",
            "Memset (Device)",
            512,
        ),
        (
            moves(LaunchKind::DriverCopy, Some(1)),
            "gpu_memcpy",
            "Memcpy DtoD (Device -> Device)",
            512,
        ),
    ];
    for (n, (op, ..)) in (0..).zip(&all) {
        let at = 10_000 * (n + 1);
        give(&mut sink, &timed(3, n, at, at + 10, 100), op);
    }
    // A replay of a graph is one kernel that says what it ran.
    give(&mut sink, &timed(3, 8, 80_000, 80_010, 100), &graph());
    finish(sink);
    let file = json(&files.first);
    let works = works(&file);
    assert_eq!(works.len(), all.len() + 1);
    for (work, (_, category, name, bytes)) in works.iter().zip(&all) {
        assert_eq!(
            (&work["cat"], &work["name"]),
            (&json!(category), &json!(name))
        );
        assert_eq!(work["args"]["bytes"], *bytes);
        assert_eq!(work["args"].get("grid"), None);
    }
    let replay = works[all.len()];
    assert_eq!(replay["cat"], "kernel");
    assert_eq!(replay["name"], "graph replay (all its kernels)");
    assert_eq!(replay["args"]["graph nodes"], 5);
    assert_eq!(file["nvcap"]["memsets"], 2);
    assert_eq!(file["nvcap"]["graph_replays"], 1);
}

/// Works that share an entry have one time, and so one slice.
#[test]
fn works_of_one_entry_are_one_slice() {
    let files = Files::default();
    let mut sink = files.sink(false, true);
    let several = |channel, serial, at, works| {
        let c = timed(channel, serial, at, at + 10, 100);
        let time = c.gpu_time.as_deref().unwrap()[0];
        Context {
            gpu_time: Some(Arc::from([GpuTime { works, ..time }])),
            ..c
        }
    };
    for (serial, ops) in [
        (0, vec![launch(), launch()]),
        (
            1,
            vec![
                copy(Some(1), Some(Direction::HostToDevice), 10),
                copy(Some(1), Some(Direction::HostToDevice), 20),
            ],
        ),
        (
            2,
            vec![
                copy(Some(1), Some(Direction::HostToDevice), 10),
                copy(None, None, 20),
            ],
        ),
        (3, vec![copy(None, None, 20), launch()]),
    ] {
        let c = several(3, serial, 10_000 * (serial + 1), ops.len() as u32);
        for op in &ops {
            give(&mut sink, &c, op);
        }
    }
    finish(sink);
    let file = json(&files.first);
    let shown: Vec<_> = { works(&file).into_iter() }
        .map(|w| {
            (
                w["cat"].clone(),
                w["name"].clone(),
                w["args"]["bytes"].clone(),
                w["args"]["works"].clone(),
            )
        })
        .collect();
    let of = |cat: &str, name: &str, bytes: Value| (json!(cat), json!(name), bytes, json!(2));
    assert_eq!(
        shown,
        [
            of("kernel", "2 in one entry: 2 x program 0x7f00", Value::Null),
            of("gpu_memcpy", "Memcpy HtoD (Unknown -> Device)", json!(30)),
            of(
                "gpu_memcpy",
                "Memcpy (2 in one entry: copy h2d, fill)",
                json!(30)
            ),
            of(
                "kernel",
                "2 in one entry: fill, program 0x7f00",
                Value::Null
            ),
        ]
    );
    assert!(works(&file).iter().all(|w| w["args"].get("grid").is_none()));
}

/// Viewers take what overlaps in a track for nested, or drop it.
#[test]
fn slices_of_a_track_do_not_overlap() {
    let files = Files::default();
    let mut sink = files.sink(false, true);
    for (serial, begin, ns) in [
        (0, 1_000, 500),
        (1, 1_200, 100),
        (2, 1_500, 10),
        (3, 1_250, 900),
    ] {
        give(&mut sink, &timed(3, serial, 900, begin, ns), &launch());
    }
    finish(sink);
    let file = json(&files.first);
    let tracks: Vec<_> = { works(&file).into_iter() }
        .map(|w| {
            (
                w["tid"].as_u64().unwrap(),
                w["args"]["stream"].as_u64().unwrap(),
            )
        })
        .collect();
    assert_eq!(tracks, [(4, 4), (1_000_004, 4), (4, 4), (2_000_004, 4)]);
    let mut ends = BTreeMap::new();
    for work in works(&file) {
        let begin = work["ts"].as_f64().unwrap();
        let end = ends.insert(work["tid"].as_u64(), begin + work["dur"].as_f64().unwrap());
        assert!(end.is_none_or(|end| end <= begin), "{work}");
    }
}

#[test]
fn each_process_has_a_file_with_its_rank() {
    for has_more in [true, false] {
        let files = Files::default();
        let mut sink = files.sink(false, has_more);
        present(&mut sink, 7, 7, "zero");
        present(&mut sink, 9, 9, "one");
        let other = |serial, at| {
            let c = timed(5, serial, at, at + 10, 100);
            Context {
                at: At { pid: 9, ..c.at },
                gpu: Some(1),
                ..c
            }
        };
        give(&mut sink, &timed(3, 0, 1_000, 1_100, 50), &launch());
        give(&mut sink, &other(1, 2_000), &launch());
        give(&mut sink, &timed(3, 2, 3_000, 3_100, 50), &launch());
        give(&mut sink, &other(3, 4_000), &launch());
        finish(sink);
        let first = json(&files.first);
        assert_eq!(works(&first).len(), 2);
        assert_eq!(first["distributedInfo"]["rank"], 3);
        let made = files.made.borrow();
        assert_eq!(made.elsewhere, if has_more { 0 } else { 2 });
        assert_eq!(made.others, u64::from(!has_more));
        assert_eq!(made.files.len(), if has_more { 2 } else { 1 });
        if has_more {
            let further = files.further.borrow();
            assert_eq!(further.keys().collect::<Vec<_>>(), [&9]);
            let second = json(&further[&9]);
            assert_eq!(second.get("distributedInfo"), None);
            let on_gpu = { works(&second).into_iter() }.filter(|w| w["pid"] == 1);
            assert_eq!(on_gpu.count(), 2);
            assert_eq!((made.files[1].pid, made.files[1].rank), (9, None));
        }
    }
}

/// A submission that was found by a look has neither a thread nor the time of its doorbell.
#[test]
fn what_was_observed_has_no_calls() {
    let files = Files::default();
    let mut sink = files.sink(false, true);
    let c = timed(3, 0, 2_000, 1_100, 50);
    let observed = Context {
        at: At { tid: 0, ..c.at },
        how: How::Observed,
        gpu: None,
        ..c
    };
    give(&mut sink, &observed, &launch());
    finish(sink);
    let file = json(&files.first);
    let [work] = works(&file)[..] else {
        panic!("{file}")
    };
    assert_eq!((&work["pid"], &work["ts"]), (&json!(-1), &json!(1.1)));
    assert_eq!(work["args"].get("device"), None);
    let events = file["traceEvents"].as_array().unwrap();
    assert!(events.iter().all(|e| e["ph"] != "s" && e["ph"] != "f"));
    assert_eq!(file["nvcap"]["calls"], 0);
}

#[test]
fn a_compressed_file_has_the_same_bytes() {
    let [plain, packed] = [false, true].map(|packed| {
        let files = Files::default();
        let mut sink = files.sink(packed, true);
        for serial in 0..2_000 {
            let at = 1_000 * (serial + 1);
            give(
                &mut sink,
                &timed(3, serial, at, at + 10, 100 + serial),
                &launch(),
            );
            if serial % 500 == 0 {
                sink.flush().unwrap();
            }
        }
        finish(sink);
        let bytes = files.first.bytes.lock().unwrap();
        bytes.clone()
    });
    let mut unpacked = Vec::new();
    flate2::read::GzDecoder::new(&*packed)
        .read_to_end(&mut unpacked)
        .unwrap();
    assert!(packed.len() * 5 < plain.len() && unpacked == plain);
}

#[test]
fn a_trace_without_works_is_a_file_all_the_same() {
    let files = Files::default();
    finish(files.sink(false, true));
    let file = json(&files.first);
    assert_eq!(file["traceEvents"].as_array().unwrap().len(), 1);
    assert_eq!(file["deviceProperties"], json!([]));
}

/// Events for which a full disk has no room are counted.
#[test]
fn a_full_disk_is_counted() {
    let files = Files::default();
    *files.first.room.lock().unwrap() = Some(4_000);
    let mut sink = files.sink(false, true);
    for serial in 0..100 {
        let at = 1_000 * (serial + 1);
        give(&mut sink, &timed(3, serial, at, at + 10, 100), &launch());
        sink.flush().unwrap();
    }
    assert!(sink.unshown() > 0);
    finish(sink);
}

fn life(sink: &mut Kineto, tid: u32, life: Life) {
    let at = At {
        time_ns: 1,
        pid: 7,
        tid,
    };
    let process = Process { at, life };
    sink.record(&Record::Process(process), &model()).unwrap();
}

/// Names of threads are their own, also where a number is used again; and a program that makes threads without end costs no more than one that makes
/// a few.
#[test]
fn threads_that_have_ended_are_forgotten() {
    let files = Files::default();
    let mut sink = files.sink(false, true);
    let mut by = |serial: u64, tid: u32, name: &str| {
        let mut c = timed(3, serial, 1000, 2000 + 10 * serial, 5);
        (c.at.tid, c.thread) = (tid, Some(name.into()));
        life(&mut sink, 7, Life::Thread { child: tid });
        give(&mut sink, &c, &launch());
        life(&mut sink, tid, Life::Exit { process: false });
    };
    by(0, 50, "first");
    by(1, 51, "next");
    by(2, 50, "second");
    for n in 0..2000 {
        by(3 + n, 1000 + n as u32, "many");
    }
    let named = sink.files[0].named_tracks();
    assert!(named < 600, "{named} tracks");
    finish(sink);
    let all = json(&files.first);
    let names = all["traceEvents"].as_array().unwrap().iter();
    let names: Vec<&str> = names
        .filter(|e| e["name"] == "thread_name" && e["tid"] == 50)
        .filter_map(|e| e["args"]["name"].as_str())
        .collect();
    assert_eq!(names, ["thread 50 (first)", "thread 50 (second)"]);
}
