//! Recordings of an H100: modules that are loaded, a context that is made, and copies that the front end fetches.

use serde_json::Value;

use crate::common::cli::{Folder, argument, nvcap, text};
use crate::common::files::{capture, xz_fixture};
use crate::common::schema::Schema;
use crate::output_sinks::has_each_member_once;
use nvcap_decode::ledger::Ledger;
use nvcap_decode::record::{Record, Variable};
use nvcap_recording::recording::{EndInfo, Item, Reader, Writer};

/// The operations of a recording, and its text without `-v`.
fn shown(name: &str) -> (Vec<Value>, String) {
    let file = argument(xz_fixture(name).expect("a fixture"));
    let out = nvcap(&["decode", "--json", &file]);
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    let lines = text(&out.stdout);
    lines.lines().for_each(has_each_member_once);
    let objects = lines
        .lines()
        .map(|l| serde_json::from_str(l).expect("an object"));
    let operations = objects.filter(|o: &Value| o["type"] == "operation");
    let brief = nvcap(&["decode", &file]);
    (operations.collect(), text(&brief.stdout).to_string())
}

/// The copies and memsets of the program itself: bytes, and the means.
fn moved(operations: &[Value]) -> Vec<(&str, u64)> {
    let of_program = operations.iter().filter(|o| o["part_of"].is_null());
    of_program
        .filter_map(|o| {
            let bytes = o["bytes"].as_u64()?;
            match o["op"].as_str()? {
                "copy" if !o["dst"].is_null() && bytes > 0 => Some(("copy", bytes)),
                "inline" if o["content"] == "data" => {
                    Some((o["data"].as_str().unwrap_or("stream"), bytes))
                }
                _ => None,
            }
        })
        .collect()
}

/// `modules mod.cubin 5`: five times, the program loads a module of 12 functions, 2 variables and 2 constants, copies 4,096 B to the GPU and
/// launches one kernel. CUPTI counts 5 kernels, 5 copies, no memset.
#[test]
fn modules_are_loaded() {
    let (operations, brief) = shown("h100-modules.pcapng.xz");
    assert_eq!(moved(&operations), [("stream", 4096); 5]);
    let loads: Vec<_> = operations.iter().filter(|o| o["op"] == "load").collect();
    let of = |part: &str| loads.iter().filter(|l| l["part_of"] == part).count();
    assert_eq!((of("context"), of("module")), (1, 5));
    for module in loads.iter().filter(|l| l["part_of"] == "module") {
        assert_eq!(module["code_bytes"], 896);
        assert_eq!(module["data_bytes"], 4000 + 28 + 412 + 16);
        // Both constants are in one bank; of the functions libcuda has loaded the one that was asked for.
        assert_eq!(
            (&module["variables"], &module["constant_banks"]),
            (&2.into(), &1.into())
        );
        assert_eq!(module["functions"], 1);
    }
    let lines = |word: &str| brief.lines().filter(|l| l.contains(word)).count();
    assert_eq!(lines("module loaded: 896 B of code"), 5, "{brief}");
    assert_eq!(lines("context created"), 1, "{brief}");
    assert_eq!(
        (lines("copy"), lines("fill"), lines("memset")),
        (5, 0, 0),
        "{brief}"
    );
    assert_eq!(lines("launch f3"), 5, "{brief}");
    assert_eq!(
        lines("2 variables, 1 constant bank, 1 function"),
        5,
        "{brief}"
    );
    // Its writes are there for whoever asks.
    let file = argument(xz_fixture("h100-modules.pcapng.xz").expect("a fixture"));
    let all = nvcap(&["decode", "-v", &file]);
    let writes = text(&all.stdout).matches("inline ").count();
    assert!(writes > 5 + 5 * 5, "{writes}");
    assert_eq!(text(&all.stdout).matches("1 function: f3").count(), 5);
}

/// The same recording with the variables of tests/gpu/module.cu beside the kernel's name, as a trace finds them in the image.
#[test]
fn variables_of_a_module_are_named() {
    let folder = Folder::new("loads-named");
    let fixture = xz_fixture("h100-modules.pcapng.xz").expect("a fixture");
    let from = nvcap_recording::file::packed::open(&fixture).unwrap();
    let (mut out, mut ledger) = (Vec::new(), Ledger::new());
    let mut reader = Reader::new(from);
    let mut writer = Writer::new(reader.trace().unwrap().clone(), 1);
    writer.begin_section(&mut out);
    for item in reader {
        let Item::Record(mut record) = item.unwrap() else {
            continue;
        };
        if let Record::Kernel(kernel) = &mut record {
            let all = [
                ("d1", 4000, false),
                ("d2", 28, false),
                ("c1", 400, true),
                ("c2", 12, true),
            ];
            kernel.variables = all
                .map(|(name, bytes, constant)| Variable {
                    name: name.to_owned(),
                    bytes,
                    constant,
                })
                .to_vec();
        }
        ledger.record(&record);
        writer.record(&record, &mut out);
    }
    writer.end(EndInfo::default(), &ledger, b"{}", &mut out);
    let file = folder.path("named.pcapng");
    std::fs::write(&file, out).unwrap();
    let all = nvcap(&["decode", "-v", &file]);
    let line =
        "2 variables (d1 4000 B, d2 28 B), 1 constant bank (c1 400 B, c2 12 B), 1 function: f3";
    let text_of = text(&all.stdout);
    assert_eq!(text_of.matches(line).count(), 5, "{text_of}");
    let brief = nvcap(&["decode", &file]);
    let line = "2 variables, 1 constant bank, 1 function";
    assert_eq!(text(&brief.stdout).matches(line).count(), 5);
    let schema = Schema::of_output();
    let json = nvcap(&["decode", "--json", &file]);
    let mut loads = 0;
    for line in text(&json.stdout).lines() {
        let object: Value = serde_json::from_str(line).unwrap();
        assert!(schema.check(&object).is_ok(), "{}", schema.explain(&object));
        if object["part_of"] == "module" && object["op"] == "load" {
            loads += 1;
            let symbols = object["symbols"].as_array().unwrap();
            assert_eq!(symbols.len(), 4);
            assert_eq!(
                symbols[2],
                serde_json::json!({"name": "c1", "bytes": 400, "constant": true})
            );
        }
    }
    assert_eq!(loads, 5);
}

/// `macro_copy` (tests/gpu/macro_copy.cu): 18 times one copy device to host, one within the device, two host to device, and two to symbols.
#[test]
fn copies_are_fetched() {
    let (operations, brief) = shown("h100-fetched.pcapng.xz");
    let moved = moved(&operations);
    let of = |what: &str| {
        let of: Vec<u64> = moved.iter().filter(|m| m.0 == what).map(|m| m.1).collect();
        of
    };
    let mut fetched = of("fetched");
    fetched.sort_unstable();
    let sizes = [1, 4, 63, 256, 1000];
    let mut wanted: Vec<u64> = sizes.iter().flat_map(|n| [*n; 4]).collect();
    wanted.extend([1024; 2]);
    assert_eq!(fetched, wanted);
    // 18 to the host, and those of 4,096 B and more to the device.
    assert_eq!(of("copy").len(), 18 + 16);
    assert!(
        of("stream").is_empty() && of("fill").is_empty(),
        "{moved:?}"
    );
    let lines = brief.lines().filter(|l| l.contains("inline, fetched 0x"));
    assert_eq!(lines.count(), 22, "{brief}");
}

/// A process of graphs under CUPTI, attached to: each kernel is launched through one program of CUPTI's.
#[test]
fn kernels_are_told_under_a_profiler() {
    let Some(file) = capture("h200-graphs-cupti.orc.xz") else {
        panic!("a capture");
    };
    let out = nvcap(&[
        "decode",
        "--json",
        "-e",
        "op=launch&&kind=user",
        &argument(file),
    ]);
    let lines = text(&out.stdout);
    let launches: Vec<Value> = lines
        .lines()
        .map(|l| serde_json::from_str(l).expect("an object"))
        .filter(|o: &Value| o["op"] == "launch")
        .collect();
    assert_eq!(launches.len(), 2569);
    let stand_in = 0x7f31_7f7a_0000_u64;
    assert!(launches.iter().all(|l| l["stand_in"] == stand_in));
    let unknown = launches.iter().filter(|l| l["program"] == stand_in).count();
    assert_eq!(unknown, 0, "their constants tell them");
    let programs: std::collections::BTreeSet<_> =
        launches.iter().map(|l| l["program"].as_u64()).collect();
    assert!(programs.len() > 8, "{programs:x?}");
}

/// The program of this recording copies 5 times, by inline writes; the copy engines' 91 copies are the driver's, for its context.
#[test]
fn the_driver_s_copies_are_no_copies_of_the_program_in_statistics() {
    let file = argument(xz_fixture("h100-modules.pcapng.xz").expect("a fixture"));
    let object = |args: &[&str]| {
        let out = nvcap(&[args, &[&file]].concat());
        assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
        let first = text(&out.stdout).lines().next().expect("a line").to_owned();
        serde_json::from_str::<Value>(&first).expect("an object")
    };
    let stats = object(&["stats", "--json"]);
    let moves = stats["moves"].as_array().expect("moves");
    let of = |how: &str| moves.iter().filter(|m| m["how"] == how).count();
    assert!(of("the driver, for a context") > 0 && of("the driver, for a module") > 0);
    let copied = stats["histograms"]["copy_bytes"].as_array();
    assert_eq!(copied.map(Vec::len), Some(0), "{stats}");
    let by = object(&["stats", "--json", "--by", "channel"]);
    let rows = by["by"]["rows"].as_array().expect("rows");
    assert!(rows.iter().all(|row| row["copies"] == 0), "{rows:?}");
    // Written as elsewhere, and known by the end.
    assert!(
        rows.iter().any(|row| row["name"] == "ch0 gr token 0x0000a"),
        "{rows:?}"
    );
}

/// A pattern that nothing matches is no likeness.
#[test]
fn a_comparison_of_nothing_says_so() {
    let file = argument(xz_fixture("h100-modules.pcapng.xz").expect("a fixture"));
    let out = nvcap(&["diff", "-e", "kernel=f4", &file, &file]);
    assert_eq!(out.status.code(), Some(0));
    let said = text(&out.stderr);
    let times = said.matches("matched the filter: nothing matched kernel=f4");
    assert_eq!(times.count(), 2, "{said}");
}
