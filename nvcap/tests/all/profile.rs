//! Traces of other profilers, given to `nvcap time` and `nvcap diff`: nvcap's own exports against the recording that they are of, and files as those
//! profilers write them.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::common::cli::{Folder, argument, nvcap, refused, text};
use crate::common::files::fixture;
use crate::common::job;
use crate::common::schema::Schema;

/// Runs nvcap, which must end with the status; returns its first object, which must be of the schema.
fn object(args: &[&str], status: i32) -> Value {
    let out = nvcap(args);
    assert_eq!(
        out.status.code(),
        Some(status),
        "{args:?}: {}",
        text(&out.stderr)
    );
    let shown = text(&out.stdout);
    let object: Value = serde_json::from_str(shown.lines().next().unwrap()).unwrap();
    let schema = Schema::of_output();
    assert!(
        schema.check(&object).is_ok(),
        "{args:?}: {}",
        schema.explain(&object)
    );
    object
}

/// Exports of the fixture, in this folder.
fn exports(folder: &Folder) -> Vec<String> {
    let recording = argument(fixture("training.pcapng"));
    let mut all = vec![("kineto", "run.json"), ("kineto", "run.json.gz")];
    if cfg!(feature = "sqlite") {
        all.push(("nsys-sqlite", "run.sqlite"));
    }
    let made = all.into_iter().map(|(format, name)| {
        let file = folder.path(name);
        let out = nvcap(&["export", format, &recording, "-o", &file]);
        assert_eq!(out.status.code(), Some(3), "{}", text(&out.stderr));
        file
    });
    made.collect()
}

/// Rows of `nvcap time --json`: number of timed works, and their time, by name.
fn times(time: &Value) -> BTreeMap<String, (Value, Value)> {
    let rows = ["kernels", "copies"].map(|rows| time[rows].as_array().unwrap());
    let rows = rows.into_iter().flatten().map(|row| {
        let name = row["kernel"].as_str().or(row["copies"].as_str()).unwrap();
        let gpu = &row["gpu"];
        let total = gpu.get("timed_ns").unwrap_or(&gpu["total_ns"]);
        (name.to_owned(), (gpu["timed"].clone(), total.clone()))
    });
    rows.collect()
}

#[test]
fn an_export_has_the_sums_of_its_recording() {
    let folder = Folder::new("profile-exports");
    let recording = argument(fixture("training.pcapng"));
    let of_recording = object(&["time", "--json", &recording], 3);
    let expected = times(&of_recording);
    assert_eq!(expected.len(), 5);
    for export in exports(&folder) {
        let time = object(&["time", "--json", &export], 3);
        assert_eq!(times(&time), expected, "{export}");
        assert_eq!(time["of"]["untimed"], 1);
        let verdict = time["of"]["verdict"].as_str().unwrap();
        assert!(verdict.starts_with("INCOMPLETE"), "{verdict}");
        // All of the fixture is known but one copy, so that both know when the GPU was busy.
        let (gpu, of) = (&time["gpus"][0], &of_recording["gpus"][0]);
        let known = gpu["busy_ns"]
            .as_u64()
            .unwrap()
            .abs_diff(of["work"]["busy_ns"].as_u64().unwrap());
        assert!(known < 20_000, "{known}: {gpu} {of}");
        // The work without a time is in the recording alone, and is all that differs.
        let diff = object(&["diff", "--json", &recording, &export], 1);
        let rows = diff["rows"].as_array().unwrap();
        assert_eq!(rows.len(), 5);
        for row in rows {
            let (a, b) = (&row["a"], &row["b"]);
            assert_eq!((&a["timed"], &a["ns"]), (&b["timed"], &b["ns"]), "{row}");
            let untimed = u64::from(row["name"] == "copy d2h");
            assert_eq!(a["count"].as_u64().unwrap() - untimed, b["count"], "{row}");
            assert_eq!(a["bytes"] == b["bytes"], untimed == 0, "{row}");
        }
        // A file beside itself.
        let same = object(&["diff", "--json", &export, &export], 3);
        assert_eq!(same["differs"], false);
    }
}

#[cfg(feature = "sqlite")]
#[test]
fn exports_of_both_formats_are_equal() {
    let folder = Folder::new("profile-formats");
    let all = exports(&folder);
    let diff = object(&["diff", "--json", &all[1], &all[2]], 3);
    assert_eq!(diff["differs"], false);
    for row in diff["rows"].as_array().unwrap() {
        assert_eq!(row["a"], row["b"]);
    }
}

/// A trace as torch.profiler writes one, of a run with the fixture's kernels, one of them more often.
fn torch() -> String {
    let event = |cat: &str, name: &str, ts: f64, dur: f64, bytes: Option<u64>| {
        json!({"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": dur,
            "args": {"External id": 3, "device": 0, "context": 1, "stream": 7, "correlation": 9, "bytes": bytes}})
    };
    let mut events = vec![
        json!({"ph": "X", "cat": "cpu_op", "name": "aten::softmax", "pid": 7, "tid": 7, "ts": 5.0, "dur": 9.5, "args": {"Sequence number": 1}}),
        event(
            "gpu_memcpy",
            "Memcpy HtoD (Pinned -> Device)",
            0.25,
            90.0,
            Some(4 << 20),
        ),
        event("gpu_memset", "Memset (Device)", 90.5, 1.0, Some(64)),
    ];
    for n in 0..41 {
        let softmax = "void softmax<float>(float const*, float*, int)";
        events.push(event(
            "kernel",
            softmax,
            100.0 + 50.0 * f64::from(n),
            31.125,
            None,
        ));
    }
    json!({"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H200"}],
        "distributedInfo": {"backend": "nccl", "rank": 1, "world_size": 2}, "traceEvents": events, "traceName": "x.json"})
    .to_string()
}

#[test]
fn a_trace_of_torch_profiler_stands_beside_a_recording() {
    let folder = Folder::new("profile-torch");
    let (recording, file) = (
        argument(fixture("training.pcapng")),
        folder.path("torch.json"),
    );
    fs::write(&file, torch()).unwrap();
    let time = object(&["time", "--json", &file], 0);
    assert_eq!(
        (&time["of"]["rank"], &time["of"]["world_size"]),
        (&json!(1), &json!(2))
    );
    assert_eq!(
        (&time["of"]["verdict"], &time["of"]["untimed"]),
        (&json!(null), &json!(null))
    );
    assert_eq!(time["kernels"][0]["gpu"]["total_ns"], 41 * 31_125);
    assert_eq!(time["gpus"][0]["name"], "NVIDIA H200");
    let shown = text(&nvcap(&["time", &file]).stdout);
    assert!(
        !shown.contains("complete") && !shown.contains("bound"),
        "{shown}"
    );
    assert!(
        shown
            .trim_end()
            .ends_with("nor whether it has all that ran"),
        "{shown}"
    );
    // From a pipe.
    let mut piped = Command::new(env!("CARGO_BIN_EXE_nvcap"))
        .args(["time", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    piped
        .stdin
        .take()
        .unwrap()
        .write_all(torch().as_bytes())
        .unwrap();
    let out = piped.wait_with_output().unwrap();
    assert_eq!((out.status.code(), text(&out.stdout)), (Some(0), shown));

    let diff = object(&["diff", "--json", &file, &recording], 1);
    let rows = diff["rows"].as_array().unwrap();
    let row = |name: &str| rows.iter().find(|row| row["name"] == name).unwrap();
    let softmax = row("void softmax<float>(float const*, float*, int)");
    assert_eq!(
        (&softmax["a"]["count"], &softmax["b"]["count"]),
        (&json!(41), &json!(40))
    );
    assert_eq!(
        (&row("memset")["b"]["count"], &row("copy h2d")["b"]["count"]),
        (&json!(0), &json!(40))
    );
    assert_eq!(
        row("update")["a"],
        json!({"count": 0, "timed": 0, "ns": null, "bytes": 0})
    );
    assert_eq!(diff["b"]["format"], "recording");
    let brief = text(&nvcap(&["diff", &file, &recording]).stdout);
    assert!(
        brief.contains("a trace of torch.profiler (Kineto): submissions, channels"),
        "{brief}"
    );
    assert!(brief.contains("a recording, INCOMPLETE"), "{brief}");
}

#[test]
fn files_that_are_cut_or_of_other_kinds_say_so() {
    let folder = Folder::new("profile-kinds");
    let all = exports(&folder);
    let (whole, cut) = (fs::read(&all[1]).unwrap(), folder.path("cut.json.gz"));
    fs::write(&cut, &whole[..whole.len() / 2]).unwrap();
    let out = nvcap(&["time", &cut]);
    assert_eq!(out.status.code(), Some(3), "{}", text(&out.stderr));
    assert!(
        text(&out.stdout).contains("NOT READ TO ITS END"),
        "{}",
        text(&out.stdout)
    );
    let out = nvcap(&["diff", &all[0], &cut]);
    assert_eq!(out.status.code(), Some(1), "{}", text(&out.stderr));

    let (chrome, early) = (folder.path("chrome.json"), folder.path("early.json"));
    fs::write(
        &chrome,
        r#"{"traceEvents": [{"ph": "X", "name": "task", "ts": 1, "dur": 2}]}"#,
    )
    .unwrap();
    fs::write(&early, r#"{"schemaVersion": 1, "traceEv"#).unwrap();
    let trace = folder.path("torch.json");
    fs::write(&trace, torch()).unwrap();
    refused(
        &["time"],
        &[
            (vec![&*chrome], 1, "has no kernel, copy or memset of a GPU"),
            (vec![&*early], 1, "has no whole kernel"),
            (vec![&*trace, "-e", "op=launch"], 2, "that -e asks for"),
            (vec![&*trace, "--by", "process"], 2, "that --by asks for"),
            (vec![&*trace, &*trace], 1, "is no recording of nvcap's"),
        ],
    );
    let recording = argument(fixture("training.pcapng"));
    refused(
        &["diff"],
        &[
            (
                vec![&*trace, &*recording, "-e", "op=launch"],
                2,
                "leave them out",
            ),
            (
                vec![&*trace, &*recording, "--any-data"],
                2,
                "leave them out",
            ),
            (vec![&*chrome, &*recording], 2, "has no kernel"),
            (vec!["-", "-"], 2, "only one of the two"),
        ],
    );
    let reads = "torch.profiler writes one: nvcap time and nvcap diff read it";
    for command in ["decode", "stats", "report"] {
        refused(&[command], &[(vec![&*trace], 1, reads)]);
    }
    refused(&[], &[(vec![&*trace], 2, "nvcap time ")]);
}

#[cfg(feature = "sqlite")]
#[test]
fn databases_of_others_are_refused() {
    let folder = Folder::new("profile-databases");
    let all = exports(&folder);
    let db = fs::read(&all[2]).unwrap();
    let (packed, cut) = (folder.path("run.sqlite.gz"), folder.path("cut.sqlite"));
    fs::write(&cut, &db[..db.len() / 2]).unwrap();
    let to = fs::File::create(&packed).unwrap();
    let mut gzip = flate2::write::GzEncoder::new(to, flate2::Compression::fast());
    gzip.write_all(&db).unwrap();
    gzip.finish().unwrap();
    let lines = [
        (vec![&*cut], 1, "cannot read the SQLite database"),
        (vec![&*packed], 1, "decompressed first"),
    ];
    refused(&["time"], &lines);
    refused(
        &["decode"],
        &[(vec![&*all[2]], 1, "nvcap time and nvcap diff read it")],
    );
}

/// Ranks of a job by the exports of its recording, one file a rank, as torch.profiler writes them: who held up whom is what the recording tells.
#[test]
fn ranks_are_compared_by_their_traces() {
    let folder = Folder::new("profile-ranks");
    let job = job::run(80, &[4, 9, 4]);
    let node = folder.path("node.pcapng");
    let booted = 1_700_000_000_000_000_000;
    fs::write(
        &node,
        job::written(job.records.iter().flatten(), 1, true, booted),
    )
    .unwrap();
    let ranks: Vec<String> = (0..3)
        .map(|n| format!("{}={n}", job::FIRST_PID + n))
        .collect();
    let named: Vec<&str> = { ranks.iter() }.flat_map(|rank| ["--rank", rank]).collect();
    let first = folder.path("node.json.gz");
    let export = ["export", "kineto", &node, "--world-size", "3", "-o", &first];
    let out = nvcap(&[&export[..], &named].concat());
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    let files: Vec<String> = { 1..3 }
        .map(|n| folder.path(&format!("node.{}.json.gz", job::FIRST_PID + n)))
        .collect();
    let files = [&*first, &files[0], &files[1]];
    let found = |args: &[&str]| -> Value {
        let out = nvcap(&[&["ranks", "--json"], args].concat());
        assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
        serde_json::from_str(text(&out.stdout).lines().next().unwrap()).unwrap()
    };
    let (told, of_recording) = (found(&files), found(&[&[&*node], &named[..]].concat()));
    let verdict = of_recording["verdict"].as_str().unwrap();
    assert!(
        verdict.starts_with("rank 1 comes last in 100.0 % of 80"),
        "{verdict}"
    );
    // The stream stands for the communicator, which is said.
    let said = told["verdict"].as_str().unwrap();
    assert!(
        said.starts_with(&format!(
            "{verdict}; not certain: the communicator of rank "
        )),
        "{said}"
    );
    let kind = |of: &Value| of["communicators"][0]["kinds"][0].clone();
    for member in [
        "calls",
        "matched",
        "timed",
        "attributed",
        "skew_ns",
        "waited_ns",
    ] {
        assert_eq!(kind(&told)[member], kind(&of_recording)[member], "{member}");
    }
    for rank in 0..3 {
        let of = |all: &Value| all["ranks"][rank]["compute_ns"].clone();
        assert_eq!(of(&told), of(&of_recording), "{rank}");
    }
    assert_eq!(told["ranks"][2]["world_size"], 3);
    let shown = text(&nvcap(&[&["ranks"], &files[..]].concat()).stdout);
    assert!(shown.contains("compared as they stand"), "{shown}");
    // Files of one kind, of one clock.
    let (moved, timeless) = (folder.path("moved.json"), folder.path("timeless.json"));
    let base = json!({"schemaVersion": 1, "baseTimeNanoseconds": 5, "traceEvents": [
        {"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 2, "args": {"device": 0, "stream": 7}}]});
    fs::write(&moved, base.to_string()).unwrap();
    fs::write(&timeless, torch()).unwrap();
    refused(
        &["ranks"],
        &[
            (vec![files[0], &*node], 1, "by files of one kind"),
            (vec![files[0], &*moved], 1, "count from two moments"),
            (vec![files[0], &*timeless], 1, "does not say from when on"),
        ],
    );
}
