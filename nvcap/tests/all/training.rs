//! tests/fixtures/training.pcapng in each program that shows recordings. What it should show is known from the program that computes the
//! fixture (`tables/training.rs`): which kernels and copies ran, when, and for how long.

use crate::common::training;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::cli::{Folder, argument, nvcap, page_data, text};
use crate::common::files::fixture;
use crate::common::training::Ran;
use crate::common::tshark;
use nvcap_decode::record::Record;
use serde_json::{Value, json};

/// Kernels as they are shown, by their names as the compiler writes them.
const SHOWN: [(&str, &str, &str); 3] = [
    (
        "_Z5sgemmPKfS0_Pfiii",
        "sgemm(float const*, float const*, float*, int, int, int)",
        "sgemm",
    ),
    (
        "_Z7softmaxIfEvPKT_PS0_i",
        "void softmax<float>(float const*, float*, int)",
        "softmax<float>",
    ),
    ("update", "update", "update"),
];

fn file() -> String {
    argument(fixture("training.pcapng"))
}

/// Returns the work that ran.
fn ran() -> Vec<Ran> {
    training::records(training::STEPS).1
}

/// A kernel's full name and its short one; of a copy both are what it is called.
fn names(ran: &Ran) -> (&'static str, &'static str) {
    let Some((mangled, _)) = ran.kernel else {
        let name = match ran.bytes {
            0x40_0000 => "copy h2d",
            _ => "copy d2h",
        };
        return (name, name);
    };
    let shown = SHOWN.iter().find(|(name, ..)| *name == mangled);
    shown.map(|(_, full, short)| (*full, *short)).unwrap()
}

/// Runs a command on the fixture, of which something is missing: it must end with `status`. Its standard output.
fn shown(args: &[&str], status: i32) -> String {
    let out = nvcap(args);
    let said = text(&out.stderr);
    assert_eq!(out.status.code(), Some(status), "{args:?}: {said}");
    text(&out.stdout)
}

/// The first JSON object of a command's output.
fn object(args: &[&str], status: i32) -> Value {
    let lines = shown(args, status);
    serde_json::from_str(lines.lines().next().unwrap()).unwrap()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

/// A time that nvcap tells differs from the true one by no more than nvcap says.
fn is_within(told: &Value, error: &Value, truth: u64) {
    let off = number(told).abs_diff(truth);
    assert!(off <= number(error), "{told} +- {error} is {truth}");
}

#[test]
fn each_operation_has_its_name_and_its_times() {
    let lines = shown(&["decode", "--json", &file()], 3);
    let all: Vec<Value> = { lines.lines() }
        .map(|line| serde_json::from_str(line).unwrap())
        .filter(|o: &Value| o["op"] == "launch" || o["op"] == "copy")
        .collect();
    let mut truth = ran();
    truth.sort_by_key(|r| r.doorbell);
    assert_eq!(all.len(), truth.len());
    let mut timed = 0;
    for (object, ran) in all.iter().zip(&truth) {
        assert_eq!(object["time_ns"], ran.doorbell);
        assert_eq!(object["channel"], ran.channel);
        assert_eq!(object["tid"], ran.tid);
        match ran.kernel {
            Some((mangled, grid)) => {
                assert_eq!(object["kernel_mangled"], mangled);
                assert_eq!(object["kernel"], names(ran).0);
                assert_eq!(object["grid"], json!(grid));
            }
            None => assert_eq!(object["bytes"], ran.bytes),
        }
        // Behind the loss one copy has no times.
        if object["gpu_ns"].is_null() {
            continue;
        }
        timed += 1;
        is_within(
            &object["gpu_start_ns"],
            &object["gpu_start_error_ns"],
            ran.begin,
        );
        is_within(&object["gpu_ns"], &object["gpu_ns_error"], ran.length);
        let queued = number(&object["queued_least_ns"])..=number(&object["queued_most_ns"]);
        assert!(queued.contains(&(ran.begin - ran.doorbell)), "{object}");
    }
    assert_eq!(timed, truth.len() - 1);
}

/// Expected values of one row of `nvcap stats --by`.
#[derive(Default)]
struct Row {
    submissions: u64,
    launches: u64,
    copies: u64,
    bytes_copied: u64,
    lengths: Vec<u64>,
}

impl Row {
    fn add(&mut self, ran: &Ran) {
        self.submissions += 1;
        self.launches += u64::from(ran.kernel.is_some());
        self.copies += u64::from(ran.kernel.is_none());
        self.bytes_copied += u64::from(ran.bytes);
        self.lengths.push(ran.length);
    }

    /// Durations are off by 3 us at most, as the fixture's semaphores are read (of a copy it is not known for how long it was fetched);
    /// quantiles by 3 % more (docs/gpu-time.md).
    fn holds(mut self, row: &Value) {
        for (member, count) in [
            ("submissions", self.submissions),
            ("launches", self.launches),
            ("copies", self.copies),
            ("bytes_copied", self.bytes_copied),
        ] {
            assert_eq!(row[member], count, "{member}: {row}");
        }
        self.lengths.sort_unstable();
        let (times, many) = (&row["gpu"], self.lengths.len());
        assert!(many as u64 - number(&times["timed"]) <= 1, "{row}");
        let near = |member: &str, truth: u64, share: u64| {
            let told = number(&times[member]);
            let off = 3_000 + truth * share / 100;
            assert!(told.abs_diff(truth) <= off, "{member} is {truth}: {row}");
        };
        near("least_ns", self.lengths[0], 0);
        near("most_ns", self.lengths[many - 1], 0);
        near("mean_ns", self.lengths.iter().sum::<u64>() / many as u64, 1);
        for (member, percent) in [("p50_ns", 50), ("p90_ns", 90), ("p99_ns", 99)] {
            // Of equal shares on both sides either is right.
            let [low, high] = [0, 1].map(|more| (many * percent / 100 + more).clamp(1, many) - 1);
            let told = number(&times[member]);
            let (least, most) = (self.lengths[low], self.lengths[high]);
            assert!(
                told + 3_000 + least / 33 >= least && told <= most + 3_000 + most / 33,
                "{member} is {least} to {most}: {row}"
            );
        }
    }
}

#[test]
fn sums_by_each_key_are_those_of_what_ran() {
    let folder = Folder::new("training-stats");
    let phases = folder.path("phases");
    let truth = ran();
    let half = truth.iter().map(|r| r.doorbell).max().unwrap() / 2 + truth[0].doorbell / 2;
    let end = half * 2;
    fs::write(
        &phases,
        format!("PHASE early 0 {half}\nPHASE late {half} {end}\n"),
    )
    .unwrap();
    let key = |by: &str, ran: &Ran| match by {
        "kernel" => names(ran).0.to_owned(),
        "channel" => format!("ch{} ", ran.channel),
        "thread" => match ran.tid {
            4711 => "trainer/4711".to_owned(),
            _ => "loader/4711:4712".to_owned(),
        },
        "phase" => if ran.doorbell < half { "early" } else { "late" }.to_owned(),
        _ => "gpu0".to_owned(),
    };
    for (by, many) in [
        ("kernel", 3),
        ("channel", 3),
        ("thread", 2),
        ("phase", 2),
        ("gpu", 1),
    ] {
        let mut wanted = BTreeMap::<String, Row>::new();
        for ran in { truth.iter() }.filter(|r| by != "kernel" || r.kernel.is_some()) {
            wanted.entry(key(by, ran)).or_default().add(ran);
        }
        let args = ["stats", "--json", "--by", by, "--phases", &phases, &file()];
        let stats = object(&args, 3);
        let rows = stats["by"]["rows"].as_array().unwrap();
        assert_eq!((rows.len(), wanted.len()), (many, many), "{by}");
        for (name, row) in wanted {
            let of = rows
                .iter()
                .find(|r| r["name"].as_str().unwrap().starts_with(&name));
            row.holds(of.unwrap_or_else(|| panic!("{by} {name}: {rows:?}")));
        }
    }
    // The tables without --by have the same launches.
    let stats = object(&["stats", "--json", &file()], 3);
    for kernel in stats["kernels"].as_array().unwrap() {
        let name = kernel["kernel"].as_str().unwrap();
        let count = truth.iter().filter(|r| names(r).0 == name).count();
        assert_eq!(kernel["launches"], count, "{name}");
    }
}

#[test]
#[ignore = "needs tshark: cargo xtask test runs it where it is"]
fn display_filters_of_tshark_count_what_the_statistics_count() {
    if !tshark::is_here("display_filters_of_tshark_count_what_the_statistics_count") {
        return;
    }
    let folder = Folder::new("training-tshark");
    let decoded = folder.path("decoded.pcapng");
    let args = ["export", "wireshark", &file(), "-o", &decoded];
    assert_eq!(nvcap(&args).status.code(), Some(3));
    tshark::install(&folder);
    let stats = object(&["stats", "--json", &file()], 3);
    let launches = |is: &dyn Fn(&str) -> bool| -> u64 {
        { stats["kernels"].as_array().unwrap().iter() }
            .filter(|k| is(k["kernel"].as_str().unwrap()))
            .map(|k| number(&k["launches"]))
            .sum()
    };
    let copies = |most: u64| -> u64 {
        { stats["moves"].as_array().unwrap().iter() }
            .filter(|m| number(&m["least"]) > most)
            .map(|m| number(&m["count"]))
            .sum()
    };
    let truth = ran();
    let count = |is: &dyn Fn(&Ran) -> bool| truth.iter().filter(|r| is(r)).count() as u64;
    for (filter, in_stats, in_truth) in [
        (
            "nvcap.op == \"launch\"",
            launches(&|_| true),
            count(&|r| r.kernel.is_some()),
        ),
        (
            "nvcap.kernel contains \"gemm\"",
            launches(&|name| name.contains("gemm")),
            count(&|r| names(r).1 == "sgemm"),
        ),
        (
            "nvcap.copy.bytes > 100000",
            copies(100_000),
            count(&|r| r.bytes > 100_000),
        ),
        (
            "nvcap.copy.bytes > 1000",
            copies(1000),
            count(&|r| r.bytes > 1000),
        ),
    ] {
        let packets = tshark::values(&folder, &decoded, filter, "frame.number").len() as u64;
        assert!(packets > 0);
        assert_eq!(
            (packets, packets),
            (in_stats, in_truth),
            "{filter}: statistics, truth"
        );
    }
    // Each launch by its name, and the sum of their times.
    let fields = ["-T", "fields", "-e", "nvcap.kernel", "-e", "nvcap.gpu_ns"];
    let args = ["-r", &decoded, "-Y", "nvcap.op == \"launch\""];
    let lines = tshark::tshark(&folder, &[&args[..], &fields[..]].concat());
    let mut sums = BTreeMap::<&str, u64>::new();
    for line in lines.lines() {
        let (name, ns) = line.split_once('\t').unwrap();
        *sums.entry(name).or_default() += ns.parse::<u64>().unwrap();
    }
    for kernel in stats["gpu_time"]["kernels"].as_array().unwrap() {
        let name = kernel["kernel"].as_str().unwrap();
        assert_eq!(kernel["gpu"]["timed_ns"], sums[name], "{name}");
    }
    assert_eq!(sums.len(), SHOWN.len());
}

/// The trace for Perfetto, read by Perfetto's bindings: each kernel and copy is a slice with its name, begin and duration.
#[test]
#[ignore = "needs Python with Perfetto's bindings: cargo xtask test runs it where it is"]
fn slices_of_perfetto_are_what_ran() {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let python = target.join("perfetto/venv/bin/python");
    if !python.exists() {
        println!(
            "NOT RUN slices_of_perfetto_are_what_ran: no Python with Perfetto's bindings; cargo xtask test installs it where python3 and pip are there"
        );
        return;
    }
    let folder = Folder::new("training-perfetto");
    let trace = folder.path("run.pftrace");
    let args = ["export", "perfetto", &file(), "-o", &trace];
    assert_eq!(nvcap(&args).status.code(), Some(3));
    let check = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/perfetto/check.py");
    let out = Command::new(python)
        .arg(check)
        .args([&trace, "--slices"])
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", text(&out.stderr));
    let sums: Value = serde_json::from_slice(&out.stdout).unwrap();
    let slices = sums["each"].as_array().unwrap();
    let mut drawn = 0;
    for channel in 0..3 {
        let track = format!("channel {channel}");
        let on = slices.iter().filter(|s| s["track"][3] == track.as_str());
        let mut truth: Vec<Ran> = { ran().into_iter() }
            .filter(|r| r.channel == channel)
            .collect();
        // The copy behind the loss has no times.
        if channel == 2 {
            truth.remove(20);
        }
        assert_eq!(on.clone().count(), truth.len(), "{track}");
        for (slice, ran) in on.zip(&truth) {
            // Without template arguments: the same in every trace.
            let short = names(ran).1.split('<').next().unwrap();
            assert_eq!(slice["name"], short);
            let args = &slice["args"];
            is_within(&slice["begin"], &args["begin_error_ns"], ran.begin);
            is_within(&slice["duration"], &args["duration_error_ns"], ran.length);
            match ran.kernel {
                Some(_) => assert_eq!(args["kernel"], names(ran).0),
                None => assert_eq!(args["bytes"], ran.bytes),
            }
            drawn += 1;
        }
    }
    assert_eq!(drawn, slices.len());
    assert_eq!(sums["kinds"]["launch"], 90);
    assert_eq!(sums["kinds"]["copy"], 80);
}

#[test]
fn the_report_has_the_kernels_with_their_times() {
    let page = shown(&["report", &file()], 3);
    let data = page_data(&page);
    let truth = ran();
    let stats = object(&["stats", "--json", &file()], 3);
    assert_eq!(data["gpu_time"], stats["gpu_time"]);
    for (mangled, full, short) in SHOWN {
        let times: Vec<u64> = { truth.iter() }
            .filter(|r| r.kernel.is_some_and(|(name, _)| name == mangled))
            .map(|r| r.length)
            .collect();
        let kernels = |of: &Value| {
            let mut all = of.as_array().unwrap().iter();
            all.find(|k| k["kernel"] == full).cloned().unwrap()
        };
        assert_eq!(kernels(&data["kernels"])["launches"], times.len());
        let told = kernels(&data["gpu_time"]["kernels"]);
        assert_eq!(told["count"], times.len());
        let sum: u64 = times.iter().sum();
        let off = number(&told["gpu"]["total_ns"]).abs_diff(sum);
        assert!(off < sum / 20, "{full}: {sum}, {told}");
        // In the timeline, and in its search.
        assert!(data["names"].as_array().unwrap().contains(&json!(short)));
    }
    assert_eq!(data["shown"], truth.len());
}

#[test]
fn commands_that_read_files_answer_or_say_why_not() {
    let file = file();
    let time = shown(&["time", &file], 3);
    assert!(time.starts_with("GPU 0: launch-bound; work ran in 40.0 % of 35.9 ms"));
    for (_, full, _) in SHOWN {
        assert!(time.lines().any(|l| l.ends_with(full)), "{full}: {time}");
    }
    // All that was captured is done; three entries were not.
    let dump = shown(&["dump", &file], 3);
    assert!(dump.starts_with("process 4711 train: IDLE"), "{dump}");
    let last = "launch grid 1024x1x1 block 256x1x1 regs 64 update";
    assert!(
        dump.contains("all done on 3 channels") && !dump.contains(last),
        "{dump}"
    );
    let dump = shown(&["dump", "--last", "20", &file], 3);
    assert!(dump.contains(last) && dump.contains("3 entries missing"));
    let channels = shown(&["channels", &file], 3);
    assert!(channels.contains("copy (H2D)") && channels.contains("copy (D2H)"));
    assert!(shown(&["ioctls", &file], 0).contains("NV_ERR_OBJECT_NOT_FOUND"));
    // What the recording does not have is said in one line, with what to type.
    for (args, words) in [
        (
            vec!["stacks", &*file],
            "has no stacks: they are recorded with --stacks",
        ),
        (
            vec!["code", "update", &file],
            "has launches of 0x7f0000020000, but not the upload of its code",
        ),
        (vec!["code", "vadd", &file], "has no kernel named vadd"),
        (vec!["code", "0x7f0000030000", &file], "0x7f0000030000"),
    ] {
        let out = nvcap(&args);
        let said = text(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{args:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.contains(words), "{args:?}: {said}");
        assert!(out.stdout.is_empty());
    }
    let maps = nvcap(&["maps", &file]);
    let said = text(&maps.stderr);
    assert!(said.contains("tells of no mapping"), "{said}");
}

/// Launches by kernel are all launches, whether a program has a name or not.
#[test]
fn launches_of_programs_without_a_name_are_compared() {
    let folder = Folder::new("training-unnamed");
    let (records, truth) = training::records(training::STEPS);
    let without = |name: &str, is_left_out: &dyn Fn(&str) -> bool| {
        let mut records = records.clone();
        records.retain(|r| !matches!(r, Record::Kernel(k) if is_left_out(&k.name)));
        let path = folder.path(name);
        fs::write(&path, training::written(&records, false)).unwrap();
        path
    };
    let some = without("some.pcapng", &|name| name == "update");
    let none = without("none.pcapng", &|_| true);
    let launches = truth.iter().filter(|r| names(r).1 == "update").count() as u64;
    let sums = |a: &str, b: &str| -> Vec<(String, u64, u64)> {
        let found = object(&["diff", "--json", a, b], 1);
        let sums = found["sums"].as_array().unwrap().iter();
        sums.map(|s| (s["name"].to_string(), number(&s["a"]), number(&s["b"])))
            .collect()
    };
    let found = sums(&file(), &some);
    let of = |name: &str| found.iter().find(|s| s.0.contains(name)).cloned();
    let named = of("update").unwrap_or_else(|| panic!("{found:?}"));
    assert_eq!((named.1, named.2), (launches, 0));
    let unnamed = of("program#").unwrap_or_else(|| panic!("{found:?}"));
    assert_eq!((unnamed.1, unnamed.2), (0, launches));
    assert_eq!(found.len(), 2, "{found:?}");
    // Lines tell which of them it is.
    let text = shown(&["diff", "-U0", &file(), &some], 1);
    assert!(
        text.lines()
            .any(|l| l.starts_with('+') && l.ends_with(" program#1")),
        "{text}"
    );
    // Where one has no names at all, its programs are no other kernels.
    shown(&["diff", &file(), &none], 3);
}

/// One kernel has another name: that is all that nvcap diff finds.
#[test]
fn a_renamed_kernel_is_the_one_difference() {
    let folder = Folder::new("training-diff");
    let (mut records, truth) = training::records(training::STEPS);
    let mut renamed = 0;
    for record in &mut records {
        if let Record::Kernel(kernel) = record
            && kernel.name == "update"
        {
            kernel.name = "refresh".to_owned();
            renamed += 1;
        }
    }
    assert_eq!(renamed, 1);
    let other = folder.path("other.pcapng");
    fs::write(&other, training::written(&records, false)).unwrap();
    let launches = truth.iter().filter(|r| names(r).1 == "update").count();
    // The fixture lacks entries: no difference, but perhaps not all was compared.
    shown(&["diff", &file(), &file()], 3);
    let text = shown(&["diff", "-U0", &file(), &other], 1);
    let of = |sign: char| -> Vec<&str> {
        let heads = [&*format!("{sign}{sign}{sign} ")];
        { text.lines() }
            .filter(|l| l.starts_with(sign) && !heads.iter().any(|h| l.starts_with(h)))
            .collect()
    };
    let (gone, come) = (of('-'), of('+'));
    assert_eq!((gone.len(), come.len()), (launches, launches), "{text}");
    for (gone, come) in gone.iter().zip(&come) {
        assert!(gone.contains("update"), "{gone}");
        assert_eq!(&gone[1..].replace("update", "refresh"), &come[1..]);
    }
    assert!(
        text.contains(&format!(
            "{launches} lines of the first and {launches} of the second alone, in {launches} hunks"
        )),
        "{text}"
    );
    let found = object(&["diff", "--json", &file(), &other], 1);
    let mut sums: Vec<_> = { found["sums"].as_array().unwrap().iter() }
        .map(|s| {
            assert_eq!(s["of"], "kernel", "{s}");
            (
                s["name"].as_str().unwrap(),
                number(&s["a"]),
                number(&s["b"]),
            )
        })
        .collect();
    sums.sort_unstable();
    let launches = launches as u64;
    assert_eq!(sums, [("refresh", 0, launches), ("update", launches, 0)]);
}

/// A duration is known well enough to be counted, or not, the same everywhere.
#[test]
fn statistics_count_the_same_durations_in_each_place() {
    let stats = object(&["stats", "--json", &file()], 3);
    let bars = stats["histograms"]["gpu_ns"].as_array().expect("bars");
    let drawn: u64 = bars.iter().map(|bar| number(&bar["count"])).sum();
    assert_eq!(drawn, number(&stats["gpu_time"]["durations"]));
    assert!(
        drawn < number(&stats["gpu_time"]["entries"]),
        "one is not known"
    );
}
