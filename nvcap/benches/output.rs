//! Bytes of command stream that one thread shows in a second, by form: `cargo bench -p nvcap --bench output
//! [-- MEGABYTES FORM]`. It reads `tests/captures/h200-mixed.orc.xz` again and again as if the trace went on.

use std::path::Path;
use std::time::Duration;

use nvcap_decode::record::{At, Record, Submission};
use nvcap_recording::file::orc::Orc;
use nvcap_show::output::stats::{Form, Stats};
use nvcap_show::output::text::Text;
use nvcap_show::output::writer::Output;
use nvcap_show::output::{Detail, Sink, json, text};
use nvcap_show::pipeline::{Pipeline, PipelineOptions};

fn main() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/captures/h200-mixed.orc.xz");
    let megabytes = std::env::args()
        .filter_map(|a| a.parse::<u64>().ok())
        .next()
        .unwrap_or(128);
    let records: Vec<Record> = Orc::open(&path)
        .expect("the capture can be opened")
        .collect::<Result<_, _>>()
        .expect("the capture is whole");
    let bytes: u64 = records
        .iter()
        .map(|r| match r {
            Record::Submission(s) => s.segments.iter().map(|s| s.bytes.len() as u64).sum(),
            _ => 0,
        })
        .sum();
    let rounds = (megabytes << 20).div_ceil(bytes);
    println!("{rounds} times {bytes} bytes of command stream");

    let null = || Output::to(Box::new(std::io::sink()));
    let json = |detail, quiet| -> Vec<Box<dyn Sink>> {
        let options = json::JsonOptions {
            detail,
            quiet,
            ..json::JsonOptions::default()
        };
        vec![Box::new(json::Json::new(null(), options))]
    };
    let text = |detail| -> Vec<Box<dyn Sink>> {
        let options = text::TextOptions {
            detail,
            ..text::TextOptions::default()
        };
        vec![Box::new(Text::new(null(), options))]
    };
    let stats = Stats::new(null(), Form::Json, Detail::Operations, false);
    run(
        "ledger (-q)",
        json(Detail::Operations, true),
        &records,
        rounds,
        bytes,
    );
    run(
        "statistics (-s)",
        vec![Box::new(stats)],
        &records,
        rounds,
        bytes,
    );
    run(
        "operations, JSON",
        json(Detail::Operations, false),
        &records,
        rounds,
        bytes,
    );
    run(
        "operations, JSON, by time",
        json(Detail::Operations, false),
        &records,
        rounds,
        bytes,
    );
    run(
        "operations, text",
        text(Detail::Operations),
        &records,
        rounds,
        bytes,
    );
    let few = rounds.div_ceil(16);
    run(
        "methods, JSON (-v)",
        json(Detail::Methods, false),
        &records,
        few,
        bytes,
    );
    run(
        "methods, text (-v)",
        text(Detail::Methods),
        &records,
        few,
        bytes,
    );
}

fn run(name: &str, sinks: Vec<Box<dyn Sink>>, records: &[Record], rounds: u64, bytes: u64) {
    // A word on the command line chooses the forms that have it in their name.
    let mut words = std::env::args()
        .skip(1)
        .filter(|a| !a.starts_with('-') && a.parse::<u64>().is_err());
    if words.next().is_some_and(|w| !name.contains(&w)) {
        return;
    }
    let mut pipeline = Pipeline::new(PipelineOptions::default(), sinks);
    // As a live trace has it.
    if name.contains("by time") {
        pipeline = pipeline.in_time_order();
    }
    // Making the records is the source's work, not measured here.
    let mut spent = Duration::ZERO;
    for round in 0..rounds {
        let batch: Vec<Record> = records.iter().filter_map(|r| later(r, round)).collect();
        let start = now();
        for record in batch {
            pipeline
                .record(record)
                .expect("a sink that takes everything");
        }
        spent += now().saturating_sub(start);
    }
    let ledger = pipeline.finish().expect("a sink that takes everything");
    let rate = (rounds * bytes) as f64 / spent.as_secs_f64() / 1e6;
    println!("{name:<25} {rate:>8.0} MB/s  ({} B)", ledger.totals().bytes);
}

/// More than the capture takes.
const SPAN_NS: u64 = 1_000_000_000;

/// The record as it would be in the given round of an endless trace: times and ring positions go on.
fn later(record: &Record, round: u64) -> Option<Record> {
    match record {
        Record::Submission(s) => Some(Record::Submission(Submission {
            at: At {
                time_ns: s.at.time_ns + round * SPAN_NS,
                ..s.at
            },
            position: s.position + round * 1024,
            ..s.clone()
        })),
        other => (round == 0).then(|| other.clone()),
    }
}

/// Time this thread has had a CPU, so that other work on the machine does not count.
fn now() -> Duration {
    let mut t = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `t` is a timespec that the call may write to.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) };
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}
