//! Pages of made operations: what they hold, and, opened in a browser, what they do.

mod opened;
mod plots;

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::Value as Json;

use super::*;
use crate::export::browser;
use crate::export::made::{self, Place, give, timed};
use crate::pipeline::{Pipeline, PipelineOptions};
use nvcap_decode::decode::event::{Copy, CopyEngine, CopyMode, Direction, Graph, Launch};
use nvcap_decode::driver::ModelOptions;
use nvcap_decode::gpu_time::made_up::records;
use nvcap_decode::record::{At, How, Kernel, Loss, Lost};
use nvcap_decode::wire::GpuVa;

/// The name of a kernel that would leave its place in a careless page.
const HOSTILE: &str = "</script><img src=x onerror=\"document.title='lost'\"><!--<script>&lt;";

fn options() -> ReportOptions {
    ReportOptions {
        all: false,
        limit: MOST_OPERATIONS,
        file: "made <here>.pcapng".to_owned(),
        filtered: false,
        trace: Json::Null,
    }
}

fn context(channel: u32, serial: u64, time_ns: u64) -> Context {
    Context {
        at: At {
            time_ns,
            pid: 4711,
            tid: 4712,
        },
        thread: Some("trainer".into()),
        token: Some(channel),
        engine: match channel {
            7.. => Engine::Copy(Some(channel - 5)),
            _ => Engine::Graphics,
        },
        ..made::context(channel, serial, time_ns)
    }
}

fn launch(name: &str) -> Operation {
    let kernel = Kernel::called(At::default(), 0x7f00, name);
    Operation::Launch(Box::new(Launch {
        grid: Some([4096, 1, 1]),
        block: Some([256, 1, 1]),
        registers: Some(32),
        shared_bytes: Some(1024),
        kernel: Some(Arc::new(kernel)),
        args: Some(b"a secret of the user".to_vec()),
        ..made::launch()
    }))
}

fn copy(bytes: u64, direction: Direction) -> Operation {
    Operation::Copy(Box::new(Copy {
        bytes,
        src: Some(GpuVa(0x1000)),
        dst: Some(GpuVa(0x2000)),
        physical: (false, false),
        mode: CopyMode::Linear,
        engine: CopyEngine::Copy(Some(2)),
        direction: Some(direction),
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

fn replay(nodes: u32) -> Operation {
    Operation::Graph(Box::new(Graph {
        replay: 0,
        nodes,
        kernels: nodes,
        memsets: 0,
        copies: 0,
        driver: 0,
        unresolved: 0,
        channels: Vec::new(),
        submissions: vec![1],
        bytes: 76 + u64::from(nodes),
        uploaded: false,
        conditional: false,
    }))
}

/// The page of what a sink was given.
fn page(options: ReportOptions, fill: impl FnOnce(&mut Report, &mut Ledger)) -> String {
    let memory = Place::default();
    let mut sink = Report::new(Output::to(Box::new(memory.clone())), options);
    let mut ledger = Ledger::new();
    fill(&mut sink, &mut ledger);
    let model = Model::new(ModelOptions::default());
    sink.finish(&ledger, &model).unwrap();
    let bytes = memory.bytes.lock().unwrap().clone();
    String::from_utf8(bytes).unwrap()
}

/// The data of a page.
fn data_of(page: &str) -> Json {
    let (_, rest) = page
        .split_once("<script type=\"application/json\" id=\"data\">")
        .unwrap();
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

/// Operations as a training has them: kernels of two channels that queue up, copies beside them, replays, one hostile name, a loss.
fn training(count: u64) -> String {
    page(options(), |sink, ledger| {
        let names: Vec<String> = (0..40)
            .map(|n| match n {
                3 => HOSTILE.to_owned(),
                _ => format!("gemm_bf16_{}x{}_stage{}", 64 << (n % 3), 64 << (n % 2), n),
            })
            .collect();
        let kernels: Vec<Operation> = names.iter().map(|n| launch(n)).collect();
        let mut random = 12345_u64;
        let mut next = |most: u64| {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1);
            (random >> 33) % most
        };
        let (mut submitted, mut free) = (1_000_000_000, [0_u64; 16]);
        for serial in 0..count {
            submitted += 300 + next(9_000);
            if serial % 20_000 == 19_000 {
                submitted += 40_000_000;
            }
            let channel = match serial % 16 {
                0..=9 => 3,
                10..=13 => 5,
                14 => 7,
                _ => 9,
            };
            let length = (1 << next(8)) * 90 + next(2_000);
            let start = (submitted + 4_000).max(free[channel as usize]);
            free[channel as usize] = start + length + 200;
            let op = match (channel, next(60)) {
                (7, n) => copy(28_672 << (n % 8), Direction::HostToDevice),
                (9, n) => copy(512 << (n % 12), Direction::DeviceToHost),
                (_, 0) => replay(1 << next(9)),
                (_, n) => kernels[(n * n / 95) as usize].clone(),
            };
            let context = timed(context(channel, serial, submitted), start, length);
            give(sink, &context, &op);
        }
        let loss = Record::Loss(Loss {
            at: context(5, 0, 1_005_000_000).at,
            channel: Some(ChannelId(5)),
            what: Lost::Entries {
                position: 7,
                count: 3,
            },
        });
        ledger.record(&loss);
        sink.record(&loss, &Model::new(ModelOptions::default()))
            .unwrap();
    })
}

/// Folder in which pages and pictures stay, to be looked at.
fn folder() -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target/report");
    std::fs::create_dir_all(&folder).unwrap();
    folder.canonicalize().unwrap()
}

#[test]
fn names_are_data_and_never_leave_their_place() {
    let page = training(64);
    assert!(!page.contains("onerror=\"doc"));
    assert!(!page.contains("<img") && !page.contains("<!--<script"));
    assert_eq!(page.matches("</script>").count(), 2, "data and script");
    let data = data_of(&page);
    let names = data["names"].as_array().unwrap();
    assert!(names.iter().any(|n| n == HOSTILE), "{names:?}");
    assert_eq!(data["file"], "made <here>.pcapng");
    // The script itself ends nowhere early.
    assert!(!page::SCRIPT.contains("</script") && !page::SCRIPT.contains("<!--"));
}

#[test]
fn a_page_has_no_users_data_and_asks_nobody() {
    let page = training(64);
    assert!(!page.contains("a secret"));
    let hex: String = b"a secret".iter().map(|b| format!("{b:02x}")).collect();
    assert!(!page.contains(&hex));
    assert!(page.contains("default-src 'none'"));
    let (_, rest) = page.split_once("script-src 'nonce-").unwrap();
    let nonce = rest.split_once('\'').unwrap().0;
    assert_eq!(nonce.len(), 32);
    assert_eq!(
        page.matches(nonce).count(),
        4,
        "policy twice, style, script"
    );
    assert_ne!(training(64).matches(nonce).count(), 4, "each page its own");
    // Every mark was replaced.
    assert!(!page.contains("{{"));
    for part in [page::PAGE, page::STYLE, page::SCRIPT] {
        for word in [
            " src=",
            "@import",
            "url(",
            "innerHTML",
            "fetch(",
            "WebSocket",
            "XMLHttp",
        ] {
            assert!(!part.contains(word), "{word}");
        }
    }
}

#[test]
fn what_has_no_room_in_the_timeline_is_said_and_counted() {
    let few = ReportOptions {
        limit: 10,
        ..options()
    };
    let page = page(few, |sink, _| {
        for serial in 0..25 {
            let at = 1_000 + 10 * serial;
            let context = timed(context(3, serial, at), at, 5);
            give(sink, &context, &launch("k"));
        }
    });
    let data = data_of(&page);
    assert_eq!(
        (&data["shown"], &data["operations"]),
        (&10.into(), &25.into())
    );
    assert_eq!(data["entries"], 25);
    assert_eq!(data["entries_shown"], 10);
    // The filter that lets the eleventh through, and not the tenth.
    assert_eq!(data["cut_ns"], 1_099);
    assert_eq!(data["kernels"][0]["launches"], 25);
}

#[test]
fn sums_are_those_of_the_statistics() {
    let data = data_of(&training(2_000));
    assert_eq!(data["submissions"], 2_000);
    assert_eq!(data["submitted"], 128_000);
    let moves = data["moves"].as_array().unwrap();
    assert_eq!(moves[0]["what"], "d2h");
    assert!(moves[0]["count"].as_u64() > Some(100));
    assert_eq!(data["gpu_time"]["kernels"][0]["works"], 1);
    assert_eq!(data["missing"], "INCOMPLETE: 3 entries missing (channel 5)");
    assert_eq!(data["losses"]["marks"][0]["what"], "3 entries missing");
}

#[test]
fn the_gpus_times_of_a_trace_are_in_its_page() {
    let memory = Place::default();
    let sink = Report::new(Output::to(Box::new(memory.clone())), options());
    let mut pipeline = Pipeline::new(PipelineOptions::default(), vec![Box::new(sink)])
        .with_gpu_time()
        .in_time_order();
    for record in records(40, How::Trapped) {
        pipeline.record(record).unwrap();
    }
    pipeline.finish().unwrap();
    let page = String::from_utf8(memory.bytes.lock().unwrap().clone()).unwrap();
    let data = data_of(&page);
    let columns = &data["columns"];
    assert!(data["entries"].as_u64() >= Some(50), "{}", data["entries"]);
    // Slices of 20.6 us, give or take what the clocks do: the column holds durations + 1.
    let durations = numbers(columns["duration"].as_str().unwrap());
    assert_eq!(durations.len() as u64, data["shown"].as_u64().unwrap());
    let slices = durations.iter().filter(|d| (19_577..21_577).contains(*d));
    assert!(slices.count() >= 30, "{durations:?}");
    // 16: the begin is the GPU's.
    let kinds = numbers(columns["kind"].as_str().unwrap());
    assert!(kinds.iter().filter(|k| **k & 16 != 0).count() >= 40);
    let busy = &data["gpu_time"]["gpus"][0]["work"]["busy_ns"];
    assert!(busy.as_u64() > Some(700_000), "{busy}");
    let process = &data["channels"][0]["process"];
    assert_eq!(process, "simulated");
}

/// The numbers of a column.
fn numbers(text: &str) -> Vec<i64> {
    let mut bytes = Vec::new();
    let packed = browser::bytes_of(text);
    let mut unpacked = flate2::read::ZlibDecoder::new(packed.as_slice());
    io::Read::read_to_end(&mut unpacked, &mut bytes).unwrap();
    let (mut all, mut value, mut word, mut shift) = (Vec::new(), 0_i64, 0_u64, 0);
    for byte in bytes {
        word |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte < 0x80 {
            value += (word >> 1) as i64 ^ -((word & 1) as i64);
            all.push(value);
            (word, shift) = (0, 0);
        }
    }
    all
}
