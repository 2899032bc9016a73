//! `nvcap export kineto` of tests/fixtures/training.pcapng, against what the program that computes the fixture says ran.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use crate::common::cli::{Folder, argument, nvcap, refused, refused_on_a_terminal, text};
use crate::common::files::fixture;
use crate::common::training::{self, Ran};
use serde_json::Value;

fn file() -> String {
    argument(fixture("training.pcapng"))
}

/// The name that the export gives what ran.
fn name(ran: &Ran) -> &'static str {
    match (ran.kernel.map(|(name, _)| name), ran.bytes) {
        (Some("_Z5sgemmPKfS0_Pfiii"), _) => {
            "sgemm(float const*, float const*, float*, int, int, int)"
        }
        (Some("_Z7softmaxIfEvPKT_PS0_i"), _) => "void softmax<float>(float const*, float*, int)",
        (Some(_), _) => "update",
        (None, 0x40_0000) => "Memcpy HtoD (Unknown -> Device)",
        (None, _) => "Memcpy DtoH (Device -> Unknown)",
    }
}

/// A slice of the export, its times in ns.
#[derive(Clone, Debug)]
struct Slice {
    name: String,
    category: String,
    begin: u64,
    length: u64,
    args: Value,
}

impl Slice {
    fn of(event: &Value) -> Self {
        let ns = |us: &Value| (us.as_f64().unwrap() * 1000.0).round() as u64;
        Self {
            name: event["name"].as_str().unwrap().to_owned(),
            category: event["cat"].as_str().unwrap().to_owned(),
            begin: ns(&event["ts"]),
            length: ns(&event["dur"]),
            args: event["args"].clone(),
        }
    }

    fn end(&self) -> u64 {
        self.begin + self.length
    }

    fn error(&self, of: &str) -> u64 {
        self.args[of].as_u64().unwrap()
    }
}

/// Exports the fixture; returns the file, and its slices on the GPU by their streams.
fn exported(to: &str) -> (Value, BTreeMap<u64, Vec<Slice>>) {
    let out = nvcap(&["export", "kineto", &file(), "--rank", "0", "-o", to]);
    assert_eq!(out.status.code(), Some(3), "{}", text(&out.stderr));
    let file: Value = serde_json::from_slice(&fs::read(to).unwrap()).unwrap();
    let mut streams: BTreeMap<u64, Vec<Slice>> = BTreeMap::new();
    for event in file["traceEvents"].as_array().unwrap() {
        if event["ph"] == "X" && event["args"].get("stream").is_some() {
            let stream = event["args"]["stream"].as_u64().unwrap();
            streams.entry(stream).or_default().push(Slice::of(event));
        }
    }
    (file, streams)
}

/// Returns what ran on a channel and has times: the copy behind the loss has none.
fn truth(channel: u32) -> Vec<Ran> {
    let all = training::records(training::STEPS).1;
    let mut all: Vec<Ran> = { all.into_iter() }
        .filter(|r| r.channel == channel)
        .collect();
    if channel == 2 {
        all.remove(20);
    }
    all
}

/// The time that stretches cover together, ns.
fn covered(mut all: Vec<(u64, u64)>) -> u64 {
    all.sort_unstable();
    let (mut sum, mut until) = (0, 0);
    for (begin, end) in all {
        sum += end.saturating_sub(begin.max(until));
        until = until.max(end);
    }
    sum
}

#[test]
fn events_are_what_ran() {
    let folder = Folder::new("kineto-events");
    let (file, streams) = exported(&folder.path("run.json"));
    assert_eq!(streams.keys().collect::<Vec<_>>(), [&1, &2, &3]);
    let mut calls = BTreeMap::new();
    let mut arrows = BTreeMap::<u64, Vec<(String, f64)>>::new();
    for event in file["traceEvents"].as_array().unwrap() {
        match event["ph"].as_str().unwrap() {
            "X" if event["cat"] == "doorbell" => {
                calls.insert(event["args"]["correlation"].as_u64().unwrap(), event);
            }
            end @ ("s" | "f") => {
                let ends = arrows.entry(event["id"].as_u64().unwrap()).or_default();
                ends.push((end.to_owned(), event["ts"].as_f64().unwrap()));
            }
            _ => {}
        }
    }
    for channel in 0..3 {
        let slices = &streams[&(u64::from(channel) + 1)];
        let truth = truth(channel);
        assert_eq!(slices.len(), truth.len());
        for (slice, ran) in slices.iter().zip(&truth) {
            assert_eq!(slice.name, name(ran));
            assert!(slice.begin.abs_diff(ran.begin) <= slice.error("begin_error_ns"));
            assert!(slice.length.abs_diff(ran.length) <= slice.error("duration_error_ns"));
            let call = calls[&slice.args["correlation"].as_u64().unwrap()];
            assert_eq!(call["tid"], ran.tid);
            assert_eq!(Slice::of(call).begin, ran.doorbell);
            match ran.kernel {
                Some((_, [x, y, z])) => {
                    assert_eq!(slice.category, "kernel");
                    assert_eq!(slice.args["grid"], serde_json::json!([x, y, z]));
                    assert_eq!(slice.args["registers per thread"], 64);
                }
                None => {
                    assert_eq!(slice.category, "gpu_memcpy");
                    assert_eq!(slice.args["bytes"], ran.bytes);
                    let rate = slice.args["memory bandwidth (GB/s)"].as_f64().unwrap();
                    let bytes = rate * slice.length as f64;
                    assert!((bytes - f64::from(ran.bytes)).abs() < 1.0, "{slice:?}");
                }
            }
        }
        // In a track nothing overlaps.
        assert!(slices.windows(2).all(|w| w[0].end() <= w[1].begin));
    }
    // Each arrow has two ends, and leads forward.
    assert_eq!(arrows.len(), 169);
    for (id, ends) in &arrows {
        let [(from, at), (to, until)] = &ends[..] else {
            panic!("{id}: {ends:?}")
        };
        assert!((&**from, &**to) == ("s", "f") && at <= until, "{ends:?}");
    }
    // As `nvcap time` sums up.
    let time = nvcap(&["time", "--json", &self::file()]).stdout;
    let time = text(&time);
    let time: Value = serde_json::from_str(time.lines().next().unwrap()).unwrap();
    let mut sums = BTreeMap::<&str, u64>::new();
    for slice in streams.values().flatten() {
        *sums.entry(&slice.name).or_default() += slice.length;
    }
    let rows = ["kernels", "copies"].map(|rows| time[rows].as_array().unwrap());
    let rows: Vec<&Value> = rows.into_iter().flatten().collect();
    assert_eq!(rows.len(), sums.len());
    for row in rows {
        let of = row["kernel"].as_str().or(row["copies"].as_str()).unwrap();
        let of = match of {
            "copy h2d" => "Memcpy HtoD (Unknown -> Device)",
            "copy d2h" => "Memcpy DtoH (Device -> Unknown)",
            kernel => kernel,
        };
        assert_eq!(row["gpu"]["timed_ns"], sums[of], "{of}");
    }
    assert_eq!(file["nvcap"]["untimed"], 1);
    assert_eq!(file["nvcap"]["exit_status"], 3);
}

/// PyPI's HolisticTraceAnalysis finds in the file what is in it, and that is what ran.
#[test]
#[ignore = "needs Python with HolisticTraceAnalysis: bash .ci/run --nightly runs it"]
fn holistic_trace_analysis_finds_what_ran() {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let python = target.join("kineto/venv/bin/python");
    if !python.exists() {
        println!(
            "NOT RUN holistic_trace_analysis_finds_what_ran: no Python with HolisticTraceAnalysis, whose installation takes a minute; bash .ci/run --nightly installs it where python3 and pip are there"
        );
        return;
    }
    let folder = Folder::new("kineto-hta");
    let traces = folder.path("traces");
    fs::create_dir(&traces).unwrap();
    let (_, streams) = exported(&format!("{traces}/run.json"));
    let check = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/kineto/check.py");
    let out = Command::new(python)
        .arg(check)
        .arg(&traces)
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", text(&out.stderr));
    let found: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(found["ranks"], serde_json::json!([0]));
    // Each work is connected with its doorbell.
    assert_eq!(found["links"]["0"], 169);
    let is = |told: &Value, ns: u64| {
        let told = told.as_f64().unwrap() * 1000.0;
        assert!((told - ns as f64).abs() < 20.0, "{told}: {ns}");
    };
    let slices: Vec<&Slice> = streams.values().flatten().collect();
    let ran: Vec<Ran> = (0..3).flat_map(truth).collect();
    // Kernels and copies by their names.
    let names: BTreeSet<&str> = slices.iter().map(|s| &*s.name).collect();
    let rows = found["kernels"].as_array().unwrap();
    assert_eq!(rows.len(), names.len());
    for row in rows {
        let of = row["name"].as_str().unwrap();
        let here = || slices.iter().filter(|s| s.name == of);
        let sum: u64 = here().map(|s| s.length).sum();
        is(&row["sum (us)"], sum);
        is(&row["max (us)"], here().map(|s| s.length).max().unwrap());
        let true_sum: u64 = { ran.iter() }
            .filter(|r| name(r) == of)
            .map(|r| r.length)
            .sum();
        let error: u64 = here().map(|s| s.error("duration_error_ns")).sum();
        assert!(sum.abs_diff(true_sum) <= error, "{of}");
        let kind = if of.starts_with("Memcpy") {
            "MEMORY"
        } else {
            "COMPUTATION"
        };
        assert_eq!(row["kernel_type"], kind);
    }
    // How long the GPU computed, and how long it was idle.
    let stretches = |kernels: bool| -> Vec<(u64, u64)> {
        { slices.iter() }
            .filter(|s| !kernels || s.category == "kernel")
            .map(|s| (s.begin, s.end()))
            .collect()
    };
    let all = stretches(false);
    let first = all.iter().map(|s| s.0).min().unwrap();
    let whole = all.iter().map(|s| s.1).max().unwrap() - first;
    let (busy, computing) = (covered(all), covered(stretches(true)));
    let row = &found["temporal"][0];
    is(&row["kernel_time(us)"], whole);
    is(&row["compute_time(us)"], computing);
    is(&row["idle_time(us)"], whole - busy);
    is(&row["non_compute_time(us)"], busy - computing);
    let true_computing = { ran.iter() }
        .filter(|r| r.kernel.is_some())
        .map(|r| (r.begin, r.begin + r.length));
    let errors = |kernels: bool| -> u64 {
        { slices.iter() }
            .filter(|s| !kernels || s.category == "kernel")
            .map(|s| s.error("begin_error_ns") + s.error("duration_error_ns"))
            .sum()
    };
    assert!(computing.abs_diff(covered(true_computing.collect())) <= errors(true));
    let true_all: Vec<_> = { ran.iter() }
        .map(|r| (r.begin, r.begin + r.length))
        .collect();
    assert!(busy.abs_diff(covered(true_all)) <= errors(false));
    // The gaps of each stream, and why: the program was late.
    for (stream, slices) in &streams {
        let of = |row: &&Value| row["stream"] == *stream;
        let rows: Vec<&Value> = found["idle"]
            .as_array()
            .unwrap()
            .iter()
            .filter(of)
            .collect();
        let told = |row: &Value| row["idle_time"].as_f64().unwrap() * 1000.0;
        let sum: f64 = rows.iter().map(|row| told(row)).sum();
        let gaps: u64 = slices.windows(2).map(|w| w[1].begin - w[0].end()).sum();
        // It rounds them to 10 ns.
        assert!((sum - gaps as f64).abs() < 100.0, "{stream}: {sum} {gaps}");
        let late = rows.iter().find(|row| row["idle_category"] == "host_wait");
        assert!(told(late.unwrap()) > 0.99 * sum, "{rows:?}");
    }
}

#[test]
fn it_goes_where_it_is_told_and_has_the_verdict() {
    let folder = Folder::new("kineto-places");
    let (plain, packed) = (folder.path("run.json"), folder.path("run.json.gz"));
    for path in [&plain, &packed] {
        let out = nvcap(&["export", "kineto", &file(), "-o", path]);
        let said = text(&out.stderr);
        assert_eq!(out.status.code(), Some(3), "{said}");
        assert!(said.contains("INCOMPLETE: 3 entries missing"), "{said}");
        let content = "process 4711 train: 90 kernels, 79 copies, 0 memsets; left out, for its times are not known: 1";
        assert!(said.contains(&format!("{path}: {content}")), "{said}");
        let mode = fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
    let mut unpacked = Vec::new();
    flate2::read::GzDecoder::new(fs::File::open(&packed).unwrap())
        .read_to_end(&mut unpacked)
        .unwrap();
    assert!(fs::read(&plain).unwrap() == unpacked);
    let piped = nvcap(&["export", "kineto", &file()]);
    assert!(piped.stdout == unpacked, "the same bytes");
    let trace: Value = serde_json::from_slice(&unpacked).unwrap();
    // Nobody said which rank it is.
    assert_eq!(trace.get("distributedInfo"), None);
    let given = ["--rank", "1=7", "--rank", "4711=3", "--world-size", "8"];
    let piped = nvcap(&[&["export", "kineto", &file()][..], &given].concat());
    let trace: Value = serde_json::from_slice(&piped.stdout).unwrap();
    let expected = serde_json::json!({"rank": 3, "world_size": 8});
    assert_eq!(trace["distributedInfo"], expected);
    // A recording without the GPU's times.
    let capture = argument(fixture("h200-cut.orc"));
    let out = nvcap(&["export", "kineto", &capture]);
    let said = text(&out.stderr);
    assert!(
        said.contains("0 kernels") && said.contains("--gpu-time takes"),
        "{said}"
    );
    let trace: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert!(trace["nvcap"]["untimed"].as_u64().unwrap() > 0);
    assert_eq!(trace.get("baseTimeNanoseconds"), None);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let file = file();
    let lines = [
        (vec![&*file, "--json"], 2, "for another program"),
        (vec![&*file, "-o", &*file], 2, "it is read, too"),
        (vec![&*file, "--rank", "first"], 2, "is no rank"),
        (vec![&*file, "--world-size", "0"], 2, "not in 1.."),
        (vec!["--", "true"], 2, "name a file with -o"),
        (vec![], 2, "nothing to trace"),
        (vec!["--strict", "-p", "1"], 2, "of a FILE"),
    ];
    refused(&["export", "kineto"], &lines);
    let help = text(&nvcap(&["export", "kineto", "--help"]).stdout);
    assert!(
        help.contains("--stacks") && help.contains("--rank") && !help.contains("--json"),
        "{help}"
    );
    let words = "is a terminal; name a file with -o";
    refused_on_a_terminal(&["export", "kineto", &file], words);
    let full = nvcap(&["export", "kineto", &file, "-o", "/dev/full"]);
    let said = text(&full.stderr);
    assert_eq!(full.status.code(), Some(3), "{said}");
    assert!(said.contains("captured but not written out"), "{said}");
}
