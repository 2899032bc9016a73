//! Speed of the decoder: a capture repeated to 1 GiB of pushbuffer, one thread.
//!
//! `cargo bench -p nvcap --bench decode` takes `tests/captures/h200-mixed.orc.xz`; built without the feature `xz`, the
//! cut of it in `tests/fixtures`. `NVCAP_BENCH_MIB` is how much is decoded (1024 by default). Each figure is the best of
//! three runs, in megabytes (10^6) of pushbuffer a second of the thread's time on a CPU.

use std::{
    hint::black_box,
    path::PathBuf,
    time::{Duration, Instant},
};

use nvcap_decode::{
    decode::{
        DecodeOptions, Decoder, Wants,
        event::{Body, Event},
    },
    record::{Record, Submission},
    wire::stream::{Item, Stream},
};
use nvcap_recording::file::orc::Orc;

fn capture() -> PathBuf {
    let tests = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests");
    if cfg!(feature = "xz") {
        tests.join("captures/h200-mixed.orc.xz")
    } else {
        tests.join("fixtures/h200-cut.orc")
    }
}

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status
        .lines()
        .find(|l| l.starts_with("VmRSS:"))
        .unwrap_or_default();
    line.split_whitespace()
        .nth(1)
        .and_then(|n| n.parse().ok())
        .unwrap_or(0)
}

/// Nanoseconds this thread was on a CPU: what a busy machine does not falsify.
fn on_cpu() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let ns = text.split_whitespace().next().and_then(|n| n.parse().ok());
    Duration::from_nanos(ns.unwrap_or(0))
}

fn measure(name: &str, bytes: u64, mut run: impl FnMut() -> u64) {
    let mut best = Duration::MAX;
    let mut events = 0;
    for _ in 0..3 {
        let (wall, cpu) = (Instant::now(), on_cpu());
        events = black_box(run());
        let spent = on_cpu().saturating_sub(cpu);
        best = best.min(if spent.is_zero() {
            wall.elapsed()
        } else {
            spent
        });
    }
    let rate = bytes as f64 / best.as_secs_f64() / 1e6;
    println!(
        "{name:<44} {rate:>8.0} MB/s  {events:>12} events  {:>8} KiB resident",
        resident()
    );
}

fn main() {
    let path = capture();
    let mut channels = Vec::new();
    let mut submissions: Vec<Submission> = Vec::new();
    for record in Orc::open(&path).expect("the capture opens") {
        match record.expect("the capture is whole") {
            Record::Channel(c) => channels.push(*c),
            Record::Submission(s) => submissions.push(s),
            _ => {}
        }
    }
    let once: u64 = submissions
        .iter()
        .flat_map(|s| &s.segments)
        .map(|s| s.bytes.len() as u64)
        .sum();
    let mib: u64 = std::env::var("NVCAP_BENCH_MIB")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(1024);
    let times = ((mib << 20) / once).max(1);
    let bytes = once * times;
    println!(
        "{}: {once} bytes, {times} times, {bytes} bytes",
        path.display()
    );

    measure("words to runs", bytes, || {
        let mut stream = Stream::default();
        let mut runs = 0;
        for _ in 0..times {
            for segment in submissions.iter().flat_map(|s| &s.segments) {
                let len = segment.bytes.len() as u32;
                for item in stream.runs(&segment.bytes, len, &[]) {
                    runs += u64::from(matches!(item, Item::Run(_)));
                }
            }
        }
        runs
    });
    let cases = [
        (
            "statistics: method counts",
            Wants {
                entries: false,
                methods: false,
                operations: false,
            },
        ),
        (
            "operations",
            Wants {
                entries: false,
                methods: false,
                operations: true,
            },
        ),
        ("everything: entries, methods, operations", Wants::default()),
    ];
    for (name, wants) in cases {
        measure(name, bytes, || {
            let mut decoder = Decoder::new(DecodeOptions {
                wants,
                ..DecodeOptions::default()
            });
            for channel in &channels {
                decoder.channel(channel);
            }
            let mut events = 0;
            for _ in 0..times {
                for s in &submissions {
                    let context = decoder.context(s, 0);
                    decoder.submission(s, &context, &(), &mut |event: &Event<'_>| {
                        events += 1;
                        if let Body::Operation(operation) = event.body {
                            black_box(operation);
                        }
                    });
                }
            }
            black_box(decoder.counts());
            events
        });
    }
}
