//! The file, read by SQLite again.

use std::path::PathBuf;
use std::sync::Arc;

use rusqlite::types::Value;
use serde_json::Value as Json;

use super::*;
use crate::export::made::{self, Place, context, give};
use crate::output::gpu_time::TimeReport;
use crate::output::stats::{Form, Stats};
use crate::pipeline::{Pipeline, PipelineOptions};
use nvcap_decode::decode::event::{
    Context, Copy, CopyEngine, CopyMode, GpuTime, Graph, Launch, LaunchKind, Moves, Operation,
};
use nvcap_decode::gpu_time::made_up;
use nvcap_decode::record::{At, Gpu, How, Kernel, Life, Process};
use nvcap_decode::wire::GpuVa;
use nvcap_recording::recording::{Item, Reader};

/// The file of a test, removed behind it.
struct File(PathBuf);

impl File {
    fn new(name: &str) -> Self {
        let name = format!("nvcap-nsys-{name}-{}.sqlite", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_file(&path);
        Self(path)
    }

    fn sink(&self) -> NsysSqlite {
        let options = NsysOptions {
            base_ns: Some(1_700_000_000_000_000_000),
            driver: Some("580.159.04".to_owned()),
        };
        NsysSqlite::new(Output::file(&self.0).unwrap(), options).unwrap()
    }

    /// The rows of a query, a value a column.
    fn rows(&self, sql: &str) -> Vec<Vec<Value>> {
        let db = Connection::open(&self.0).unwrap();
        let mut statement = db.prepare(sql).unwrap();
        let columns = statement.column_count();
        let rows = statement.query_map([], |row| (0..columns).map(|n| row.get(n)).collect());
        rows.unwrap().map(Result::unwrap).collect()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn model() -> Model {
    Model::new(nvcap_decode::driver::ModelOptions::default())
}

fn timed(channel: u32, serial: u64, begin: u64, ns: u64) -> Context {
    made::timed(context(channel, serial, begin - 10), begin, ns)
}

fn named(name: &str) -> Operation {
    let at = At::default();
    Operation::Launch(Box::new(Launch {
        kernel: Some(Arc::new(Kernel::called(at, 0x7f00, name))),
        shared_bytes: Some(1024),
        ..made::launch()
    }))
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

fn text(text: &str) -> Value {
    Value::Text(text.to_owned())
}

fn ints<const N: usize>(all: [i64; N]) -> Vec<Value> {
    all.map(Value::Integer).to_vec()
}

#[test]
fn each_work_is_a_row_of_its_table() {
    let file = File::new("rows");
    let mut sink = file.sink();
    let gpu = Gpu {
        at: At::default(),
        minor: 0,
        pci_device: 0x2335,
    };
    sink.record(&Record::Gpu(gpu), &model()).unwrap();
    let process = Process {
        at: At {
            time_ns: 1,
            pid: 7,
            tid: 7,
        },
        life: Life::Present {
            name: "train".to_owned(),
        },
    };
    sink.record(&Record::Process(process), &model()).unwrap();
    let softmax = "_Z7softmaxIfEvPKT_PS0_i";
    give(&mut sink, &timed(3, 0, 1_000, 50), &named(softmax));
    give(&mut sink, &timed(3, 1, 2_000, 60), &named(softmax));
    let h2d = Some(Direction::HostToDevice);
    give(
        &mut sink,
        &timed(4, 2, 3_000, 70),
        &copy(Some(1), h2d, 4096),
    );
    give(&mut sink, &timed(4, 3, 4_000, 80), &copy(None, None, 64));
    let memset = Operation::Launch(Box::new(Launch {
        kind: LaunchKind::DriverMemset,
        moves: Some(Moves {
            dst: Some(GpuVa(0x9000)),
            src: None,
            bytes: Some(512),
            value: Some(0),
        }),
        ..made::launch()
    }));
    give(&mut sink, &timed(3, 4, 5_000, 90), &memset);
    let graph = Operation::Graph(Box::new(Graph {
        replay: 0,
        nodes: 5,
        kernels: 5,
        memsets: 0,
        copies: 0,
        driver: 0,
        unresolved: 0,
        channels: Vec::new(),
        submissions: Vec::new(),
        bytes: 0,
        uploaded: false,
        conditional: false,
    }));
    give(&mut sink, &timed(3, 5, 6_000, 100), &graph);
    // A work of which the time is not known.
    give(&mut sink, &context(3, 6, 7_000), &named(softmax));
    // Two copies of one entry.
    let several = timed(4, 7, 8_000, 110);
    let time = several.gpu_time.as_deref().unwrap()[0];
    let several = Context {
        gpu_time: Some(Arc::from([GpuTime { works: 2, ..time }])),
        ..several
    };
    for bytes in [10, 20] {
        give(&mut sink, &several, &copy(Some(1), h2d, bytes));
    }
    sink.finish(&Ledger::new(), &model()).unwrap();
    drop(sink);

    let kernels = file.rows(
        "SELECT d.value, s.value, m.value, start, end, deviceId, streamId, correlationId, globalPid / 0x1000000 % 0x1000000,
           registersPerThread, gridX, gridY, gridZ, blockX, blockY, blockZ, sharedMemoryExecuted
         FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds d ON d.id = demangledName JOIN StringIds s ON s.id = shortName
         JOIN StringIds m ON m.id = mangledName ORDER BY start",
    );
    let names = [
        text("void softmax<float>(float const*, float*, int)"),
        text("softmax"),
        text(softmax),
    ];
    let row = |numbers: [i64; 14]| [names.to_vec(), ints(numbers)].concat();
    assert_eq!(
        kernels,
        [
            row([1_000, 1_050, 0, 4, 1, 7, 24, 7, 5, 3, 64, 1, 1, 1024]),
            row([2_000, 2_060, 0, 4, 2, 7, 24, 7, 5, 3, 64, 1, 1, 1024]),
        ]
    );
    // What is not known is not made up.
    let unknown = file.rows(
        "SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE contextId IS NULL AND staticSharedMemory IS NULL AND graphNodeId IS NULL",
    );
    assert_eq!(unknown, [ints([2])]);
    let copies = file.rows(
        "SELECT label, start, end, bytes, srcKind, dstKind, copyCount FROM CUPTI_ACTIVITY_KIND_MEMCPY
         JOIN ENUM_CUDA_MEMCPY_OPER ON id = copyKind ORDER BY start",
    );
    let row = |numbers: [i64; 6]| [vec![text("Host-to-Device")], ints(numbers)].concat();
    assert_eq!(
        copies,
        [
            row([3_000, 3_070, 4096, 7, 2, 1]),
            row([8_000, 8_110, 30, 7, 2, 2])
        ]
    );
    let memsets =
        "SELECT start, end, bytes, memKind FROM CUPTI_ACTIVITY_KIND_MEMSET ORDER BY start";
    assert_eq!(
        file.rows(memsets),
        [ints([4_000, 4_080, 64, 2]), ints([5_000, 5_090, 512, 2])]
    );
    let replays = "SELECT start, end, streamId FROM CUPTI_ACTIVITY_KIND_GRAPH_TRACE";
    assert_eq!(file.rows(replays), [ints([6_000, 6_100, 4])]);
    let gpus = "SELECT name, chipName, id FROM TARGET_INFO_GPU";
    let chip = || text("GH100");
    assert_eq!(file.rows(gpus), [vec![chip(), chip(), Value::Integer(0)]]);
    let processes = "SELECT name, pid, globalPid FROM PROCESSES";
    assert_eq!(
        file.rows(processes),
        [[vec![text("train")], ints([7, 7 << 24])].concat()]
    );
    let threads = "SELECT value, globalTid % 0x1000000 FROM ThreadNames JOIN StringIds ON id = nameId ORDER BY 2";
    let thread = |name: &str, tid| vec![text(name), Value::Integer(tid)];
    assert_eq!(
        file.rows(threads),
        [thread("train", 7), thread("worker", 8)]
    );
    let base = "SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME";
    assert_eq!(file.rows(base), [ints([1_700_000_000_000_000_000])]);
    let own =
        "SELECT name, value FROM NVCAP WHERE name NOT IN ('verdict', 'exit_status') ORDER BY name";
    let number = |name: &str, n| vec![text(name), Value::Integer(n)];
    assert_eq!(
        file.rows(own),
        [
            number("copies", 2),
            vec![text("driver"), text("580.159.04")],
            number("graph_replays", 1),
            number("kernels", 2),
            number("memsets", 2),
            number("untimed", 1),
            number("untimed_bytes", 0),
        ]
    );
    let said = vec![text(&verdict(&Ledger::new()))];
    assert_eq!(
        file.rows("SELECT value FROM NVCAP WHERE name = 'verdict'"),
        [said]
    );
}

/// Rows of finished transactions are in a file of which the end was not written.
#[test]
fn a_file_without_an_end_has_what_was_finished() {
    let file = File::new("killed");
    let mut sink = file.sink();
    for n in 0..ROWS + 10 {
        let at = 1_000 * (n + 1);
        give(&mut sink, &timed(3, n, at, 50), &named("update"));
    }
    drop(sink);
    let rows = file.rows("SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL");
    assert_eq!(rows, [ints([int(ROWS)])]);
}

#[test]
fn what_is_no_file_is_refused() {
    let place = Place::default();
    let out = Output::to(Box::new(place));
    let error = NsysSqlite::new(out, NsysOptions::default()).err().unwrap();
    assert!(error.to_string().contains("needs a file"), "{error}");
}

/// The first object of a JSON output.
fn first(place: &Place) -> Json {
    let bytes = place.bytes.lock().unwrap();
    let mut all = serde_json::Deserializer::from_slice(&bytes).into_iter();
    all.next().unwrap().unwrap()
}

fn recorded() -> Vec<Record> {
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/fixtures/training.pcapng"
    );
    let reader = Reader::new(std::fs::File::open(file).unwrap());
    let records = reader.filter_map(|item| match item.unwrap() {
        Item::Record(record) => Some(record),
        _ => None,
    });
    records.collect()
}

/// Sums in SQL, as the reports `cuda_gpu_kern_sum`, `cuda_gpu_mem_time_sum` and `cuda_gpu_mem_size_sum` of Nsight Systems have them, are those
/// of `nvcap time` and `nvcap stats`.
#[test]
fn sums_in_sql_are_those_of_time_and_stats() {
    for (name, records, least) in [
        ("training", recorded(), [90, 79]),
        ("made-up", made_up::records(400, How::Trapped), [390, 90]),
    ] {
        let file = File::new(name);
        let [time, stats] = [(); 2].map(|()| Place::default());
        let out = |place: &Place| Output::to(Box::new(place.clone()));
        let sinks: Vec<Box<dyn Sink>> = vec![
            Box::new(file.sink()),
            Box::new(TimeReport::new(out(&time), true, false)),
            Box::new(
                Stats::new(out(&stats), Form::Json, Detail::Operations, false).with_profile(None),
            ),
        ];
        let mut pipeline = Pipeline::new(PipelineOptions::default(), sinks)
            .with_gpu_time()
            .in_time_order();
        for record in records {
            pipeline.record(record).unwrap();
        }
        let _ = pipeline.finish().unwrap();
        let (time, stats) = (first(&time), first(&stats));
        let number = |of: &Json| i64::try_from(of.as_u64().unwrap()).unwrap();
        // Time, instances, average, least and most of each kernel, by name.
        let kernels = file.rows(
            "SELECT value, sum(end - start), count(*), CAST(avg(end - start) AS INTEGER), min(end - start), max(end - start)
             FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = demangledName GROUP BY value ORDER BY value",
        );
        let mut expected: Vec<Vec<Value>> = { time["kernels"].as_array().unwrap().iter() }
            .filter(|row| number(&row["gpu"]["timed"]) > 0)
            .map(|row| {
                let of = |name: &str| number(&row["gpu"][name]);
                let numbers = ["timed_ns", "timed", "mean_ns", "least_ns", "most_ns"].map(of);
                [vec![text(row["kernel"].as_str().unwrap())], ints(numbers)].concat()
            })
            .collect();
        expected.sort_by_key(|row| format!("{:?}", row[0]));
        assert_eq!(kernels, expected, "{name}");
        // Time and number of copies and memsets, by operation.
        let copies = file.rows(
            "SELECT label, sum(end - start), count(*), sum(bytes) FROM CUPTI_ACTIVITY_KIND_MEMCPY
             JOIN ENUM_CUDA_MEMCPY_OPER ON id = copyKind GROUP BY label
             UNION ALL SELECT 'memset', sum(end - start), count(*), sum(bytes) FROM CUPTI_ACTIVITY_KIND_MEMSET HAVING count(*) > 0
             ORDER BY label",
        );
        let label = |name: &str| match name.strip_prefix("copy ").unwrap_or(name) {
            "h2d" => "Host-to-Device",
            "d2h" => "Device-to-Host",
            "d2d" => "Device-to-Device",
            "fill" => "memset",
            _ => "Unknown",
        };
        let mut expected: Vec<Vec<Value>> = { time["copies"].as_array().unwrap().iter() }
            .filter(|row| number(&row["gpu"]["timed"]) > 0)
            .map(|row| {
                let gpu = &row["gpu"];
                let numbers = [&gpu["timed_ns"], &gpu["timed"], &row["bytes"]].map(number);
                [
                    vec![text(label(row["copies"].as_str().unwrap()))],
                    ints(numbers),
                ]
                .concat()
            })
            .collect();
        expected.sort_by_key(|row| format!("{:?}", row[0]));
        assert_eq!(copies, expected, "{name}");
        // Bytes that engines and kernels of the driver moved, with those of works whose times are not known.
        let sum = |sql: &str| match file.rows(sql)[0][0] {
            Value::Integer(n) => n,
            ref other => panic!("{name}: {other:?}"),
        };
        let in_tables = sum(
            "SELECT (SELECT coalesce(sum(bytes), 0) FROM CUPTI_ACTIVITY_KIND_MEMCPY)
               + (SELECT coalesce(sum(bytes), 0) FROM CUPTI_ACTIVITY_KIND_MEMSET)
               + (SELECT value FROM NVCAP WHERE name = 'untimed_bytes')",
        );
        let moved: i64 = { stats["moves"].as_array().unwrap().iter() }
            .filter(|row| !row["how"].as_str().unwrap().contains("inline"))
            .map(|row| number(&row["bytes"]))
            .sum();
        assert_eq!(in_tables, moved, "{name}");
        let count = |table: &str| sum(&format!("SELECT count(*) FROM CUPTI_ACTIVITY_KIND_{table}"));
        assert!(count("KERNEL") >= least[0] && count("MEMCPY") >= least[1]);
    }
}

/// Texts that the trace chooses take no more memory than a bound, and the file has them all.
#[test]
fn texts_are_remembered_up_to_a_bound() {
    let file = File::new("texts");
    let mut sink = file.sink();
    let long = |n: usize| format!("{n}{}", "x".repeat(1 << 20));
    let ids: Vec<i64> = (0..40).map(|n| sink.string(&long(n)).unwrap()).collect();
    assert_eq!(ids, (0..40).collect::<Vec<i64>>());
    assert_eq!(sink.string(&long(39)).unwrap(), 39);
    let remembered: usize = sink.strings.keys().map(String::len).sum();
    assert!(remembered < 18 << 20, "{remembered} bytes");
    // One that was forgotten is in the file twice.
    assert_eq!(sink.string(&long(0)).unwrap(), 40);
    sink.finish(&Ledger::new(), &model()).unwrap();
    drop(sink);
    let counts = file.rows("SELECT COUNT(*), COUNT(DISTINCT value) FROM StringIds");
    assert_eq!(counts, [ints([41, 40])]);
}

/// Names of threads that ended long ago are in the file, though no longer in memory.
#[test]
fn names_of_threads_that_have_ended_are_in_the_file() {
    let file = File::new("threads");
    let mut sink = file.sink();
    for tid in 100..1100 {
        for life in [
            Life::Present {
                name: format!("t{tid}"),
            },
            Life::Exit { process: false },
        ] {
            let at = At {
                time_ns: 1,
                pid: 7,
                tid,
            };
            let process = Record::Process(Process { at, life });
            sink.record(&process, &model()).unwrap();
        }
    }
    assert!(sink.facts.names().count() < 300);
    sink.finish(&Ledger::new(), &model()).unwrap();
    drop(sink);
    let sql = "SELECT COUNT(*), MIN(globalTid % 0x1000000), MAX(globalTid % 0x1000000) FROM ThreadNames JOIN StringIds ON id = nameId \
               WHERE value = 't' || (globalTid % 0x1000000)";
    assert_eq!(file.rows(sql), [ints([1000, 100, 1099])]);
}
