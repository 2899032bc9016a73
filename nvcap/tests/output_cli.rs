//! The command line as a user meets it: statuses, files, pipes, and the real capture where it is present.
#![cfg(feature = "cli")]

mod common;

use std::collections::HashSet;
use std::fs;
use std::io::{Read, Write};
use std::process::{Command, Stdio};

use common::cli::{Folder, argument, nvcap, text};
use common::schema::Schema;
use common::shared::shared;
use serde_json::Value;

/// Two submissions of one channel: SET_OBJECT and a semaphore release of a copy class; and a host WFI.
fn small_capture(second_prev_put: u32) -> Vec<u8> {
    let mut out = Vec::new();
    let mut record = |prev: u32, put: u32, words: &[u32]| {
        out.extend_from_slice(b"ORC1");
        out.extend_from_slice(&77u32.to_le_bytes());
        out.extend_from_slice(&(1000 + u64::from(put)).to_le_bytes());
        out.extend_from_slice(&0x7000_0090u64.to_le_bytes());
        for n in [0x10012, prev, put, 1] {
            out.extend_from_slice(&u32::to_le_bytes(n));
        }
        out.extend_from_slice(&0x7f00_0000u64.to_le_bytes());
        let entry = 0x2_0080_0000u64 | ((words.len() as u64) << 42);
        out.extend_from_slice(&entry.to_le_bytes());
        out.extend_from_slice(&(words.len() as u32 * 4).to_le_bytes());
        for w in words {
            out.extend_from_slice(&w.to_le_bytes());
        }
    };
    // INC_METHOD of subchannel 4: SET_OBJECT; SET_SEMAPHORE_A..PAYLOAD; LAUNCH_DMA = release one word, no transfer.
    record(
        0,
        1,
        &[
            0x2001_8000,
            0xc8b5,
            0x2003_8090,
            2,
            0x0460_ff70,
            9,
            0x2001_80c0,
            0x8,
        ],
    );
    record(second_prev_put, second_prev_put + 1, &[0x2001_801e, 0]);
    out
}

#[test]
fn a_complete_capture_ends_with_0_and_one_with_a_gap_with_3() {
    let folder = Folder::new("status");
    let (whole, gap, cut) = (folder.path("whole"), folder.path("gap"), folder.path("cut"));
    fs::write(&whole, small_capture(1)).unwrap();
    fs::write(&gap, small_capture(5)).unwrap();
    let bytes = small_capture(1);
    fs::write(&cut, &bytes[..bytes.len() - 3]).unwrap();

    let out = nvcap(&["decode", "--from", "orc", &whole]);
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    let shown = text(&out.stdout);
    assert!(
        shown
            .lines()
            .last()
            .unwrap()
            .starts_with("complete: 2 submissions")
    );
    assert!(shown.contains("release 0x20460ff70 = 9"), "{shown}");
    assert!(!shown.contains('\x1b'), "a pipe gets no colour");

    let out = nvcap(&["decode", "--from", "orc", &gap, "-q"]);
    assert_eq!(out.status.code(), Some(3));
    assert!(text(&out.stdout).contains("INCOMPLETE: 4 entries missing (channel 0x10012)"));

    let out = nvcap(&["decode", "--from", "orc", &cut, "--json"]);
    assert_eq!(out.status.code(), Some(3));
    let lines: Vec<Value> = text(&out.stdout)
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    let missing: Vec<_> = lines
        .iter()
        .filter(|l| l["type"] == "submission")
        .map(|l| l["missing"].as_u64().unwrap())
        .collect();
    assert_eq!(
        missing,
        [0, 3],
        "all that is whole, and the cut one's beginning"
    );
    let stop = lines.iter().find(|l| l["type"] == "stop").unwrap();
    assert_eq!(
        (&stop["entry"], &stop["why"]),
        (&0.into(), &"missing".into())
    );
    assert_eq!(lines.last().unwrap()["complete"], false);
    assert!(lines.iter().any(
        |l| l["type"] == "loss" && l["why"].as_str().unwrap().contains("ends within a record")
    ));

    let out = nvcap(&["decode", "--from", "orc", &cut, "--strict", "--json"]);
    assert_eq!(out.status.code(), Some(1));
    let error = text(&out.stderr);
    assert!(
        error.contains("not whole") && error.contains("entry 0 at byte"),
        "{error}"
    );
    assert!(text(&out.stdout).contains("\"type\":\"submission\""));
    let out = nvcap(&["decode", "--from", "orc", &whole, "--strict", "-q"]);
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
}

#[test]
fn standard_input_is_read() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_nvcap"))
        .args(["decode", "--from", "orc", "-", "-q"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(&small_capture(1))
        .unwrap();
    let out = child.wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(0));
    assert!(text(&out.stdout).contains("complete: 2 submissions"));
}

#[test]
fn bad_use_says_what_to_do_and_ends_with_1_or_2() {
    for (args, status, says) in [
        #[cfg(feature = "trap")]
        (vec![], 2, "nothing to trace"),
        (
            vec!["decode", "--from", "orc", "/nonexistent/x"],
            1,
            "cannot read the capture",
        ),
        (vec!["decode", "--from", "pcap", "x"], 2, "possible values"),
        (
            vec!["decode", "--from", "orc", "x", "-e", "op=lunch"],
            2,
            "column 4",
        ),
        (
            vec!["decode", "--from", "orc", "/dev/null", "-o", "/"],
            1,
            "cannot write to /",
        ),
        (
            vec![
                "decode",
                "--from",
                "orc",
                "/dev/null",
                "--phases",
                "/dev/null/x",
            ],
            1,
            "cannot read the phases",
        ),
        (vec!["-p", "0"], 2, "0 is not in"),
        (vec!["-p", "1", "--", "true"], 2, "cannot be used with"),
        (vec!["--buffer", "3M", "-p", "1"], 2, "power of two"),
        (vec!["--duration", "0", "-p", "1"], 2, "seconds above 0"),
        (vec!["explain", "zzzz"], 1, "no hexadecimal number"),
        (vec!["explain", "1234"], 1, "no class 0x1234"),
        (vec!["explain", "c8b5", "FOO"], 1, "has no method"),
        (vec!["explain", "qmd", "/dev/null"], 1, "are no QMD"),
        (vec!["explain", "control"], 1, "give the number too"),
    ] {
        let out = nvcap(&args);
        let err = text(&out.stderr);
        assert_eq!(out.status.code(), Some(status), "{args:?}: {err}");
        assert!(err.contains(says), "{args:?}: {err}");
    }
}

#[test]
fn help_and_version_are_no_errors() {
    for args in [
        &["--help"][..],
        &["-h"],
        &["--version"],
        &["decode", "--help"],
        &["explain", "filter"],
    ] {
        let out = nvcap(args);
        assert_eq!(out.status.code(), Some(0));
        assert!(!out.stdout.is_empty());
    }
}

#[test]
fn explain_names_the_method_and_every_field() {
    let out = text(&nvcap(&["explain", "c8b5", "0300", "00000182"]).stdout);
    assert!(out.contains("HOPPER_DMA_COPY_A"));
    assert!(out.contains("method 0x0300 LAUNCH_DMA = 0x00000182"));
    for (field, value) in [
        ("DATA_TRANSFER_TYPE", "NON_PIPELINED"),
        ("SRC_MEMORY_LAYOUT", "PITCH"),
        ("SEMAPHORE_TYPE", "NONE"),
    ] {
        assert!(
            out.lines().any(|l| l.contains(field) && l.ends_with(value)),
            "{out}"
        );
    }
    assert!(text(&nvcap(&["explain", "control", "20801218"]).stdout).contains("NV2080_CTRL_CMD_"));
    assert!(
        text(&nvcap(&["explain", "status", "0x57"]).stdout).contains("NV_ERR_OBJECT_NOT_FOUND")
    );
    let json: Value =
        serde_json::from_slice(&nvcap(&["explain", "--json", "c8b5", "300", "182"]).stdout)
            .unwrap();
    assert_eq!(json["name"], "LAUNCH_DMA");
}

#[cfg(unix)]
#[test]
fn an_output_file_is_its_owners_alone() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new("mode");
    let (capture, file) = (folder.path("capture"), folder.path("out.jsonl"));
    fs::write(&capture, small_capture(1)).unwrap();
    fs::write(
        &file,
        "something longer that was there before\n".repeat(1000),
    )
    .unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let out = nvcap(&["decode", "--from", "orc", &capture, "--json", "-o", &file]);
    assert_eq!(out.status.code(), Some(0));
    assert!(out.stdout.is_empty());
    assert!(
        text(&out.stderr).contains("complete: 2 submissions"),
        "the verdict is said"
    );
    assert_eq!(
        fs::metadata(&file).unwrap().permissions().mode() & 0o777,
        0o600
    );
    let content = fs::read_to_string(&file).unwrap();
    assert!(!content.contains("before"));
    assert!(
        content
            .lines()
            .last()
            .unwrap()
            .contains("\"type\":\"ledger\"")
    );
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_told_and_counted() {
    let folder = Folder::new("full");
    let capture = folder.path("capture");
    fs::write(&capture, small_capture(1)).unwrap();
    let out = nvcap(&[
        "decode",
        "--from",
        "orc",
        &capture,
        "--json",
        "-o",
        "/dev/full",
    ]);
    let err = text(&out.stderr);
    assert_eq!(out.status.code(), Some(3), "{err}");
    assert!(err.contains("cannot write to /dev/full"), "{err}");
    assert!(err.contains("captured but not written out"), "{err}");
}

#[test]
fn a_reader_that_goes_away_ends_it_quietly() {
    let folder = Folder::new("pipe");
    let capture = folder.path("capture");
    // More output than a pipe holds.
    let mut bytes = Vec::new();
    let one = small_capture(1);
    for _ in 0..20_000 {
        bytes.extend_from_slice(&one);
    }
    fs::write(&capture, bytes).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_nvcap"))
        .args(["decode", "--from", "orc", &capture])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 10];
    child
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut first)
        .unwrap();
    drop(child.stdout.take());
    let out = child.wait_with_output().unwrap();
    assert_eq!(text(&out.stderr), "");
    assert_eq!(out.status.code(), Some(0));
}

/// A capture of the real machine, as an argument.
fn capture(name: &str) -> Option<String> {
    shared(&format!("captures/{name}")).map(argument)
}

fn lines(args: &[&str]) -> Option<String> {
    let orc = capture("h200-mixed.orc.xz")?;
    let phases = capture("h200-mixed.phases")?;
    let mut all = vec![
        "decode", "--from", "orc", &orc, "--json", "--phases", &phases,
    ];
    all.extend(args);
    let out = nvcap(&all);
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    Some(text(&out.stdout))
}

fn objects(args: &[&str]) -> Option<Vec<Value>> {
    let lines = lines(args)?;
    Some(
        lines
            .lines()
            .map(|l| serde_json::from_str(l).unwrap())
            .collect(),
    )
}

#[cfg(feature = "xz")]
#[test]
fn the_h200_capture_reads_as_it_was_made() {
    let Some(all) = objects(&["-e", "op=launch && kind=user"]) else {
        return;
    };
    let launch = |phase: &str| {
        all.iter()
            .find(|o| o["phase"] == phase)
            .unwrap_or_else(|| panic!("no launch in {phase}"))
    };
    let vadd = launch("vadd_4096x256");
    assert_eq!(vadd["grid"], serde_json::json!([4096, 1, 1]));
    assert_eq!(vadd["block"], serde_json::json!([256, 1, 1]));
    // Three pointers and the number of elements.
    let args = vadd["args"].as_str().unwrap();
    assert_eq!(args.len(), 2 * 28, "{args}");
    assert!(
        args.ends_with("00001000"),
        "1,048,576 little-endian: {args}"
    );
    let odd = launch("grid_7_5_3_block_32_4_2");
    assert_eq!(odd["grid"], serde_json::json!([7, 5, 3]));
    assert_eq!(odd["block"], serde_json::json!([32, 4, 2]));
    let ledger = all.last().unwrap();
    assert_eq!(
        (&ledger["submissions"], &ledger["complete"]),
        (&600.into(), &true.into())
    );
    assert_eq!(ledger["bytes"], 3_149_368);
    assert!(
        all.iter()
            .all(|o| o["type"] != "operation" || o["kind"] == "user")
    );
}

#[cfg(feature = "xz")]
#[test]
fn everything_of_the_h200_capture_fits_the_schema() {
    let schema = Schema::of_output();
    for args in [
        &["-vv"][..],
        &["-vv", "--redact", "-e", "serial<150"],
        &["-s", "-v"],
    ] {
        let Some(all) = lines(args) else { return };
        let (mut methods, mut seen) = (0, HashSet::new());
        for line in all.lines() {
            // A method that was checked once need not be checked a thousand times.
            if line.starts_with("{\"type\":\"method\"") {
                methods += 1;
                let class = line.find("\"class\":").unwrap();
                if !seen.insert(&line[class..line.find(",\"data\":").unwrap()]) {
                    continue;
                }
            }
            let o: Value = serde_json::from_str(line).unwrap();
            if schema.check(&o).is_err() {
                panic!("{}\n{o}", schema.explain(&o));
            }
            assert!(
                o["type"] != "method" || !o["name"].is_null(),
                "no unknown method: {o}"
            );
        }
        if args == ["-vv"] {
            assert_eq!(methods, 749_608);
        }
    }
}

#[cfg(feature = "xz")]
#[test]
fn statistics_of_the_h200_capture() {
    let Some(all) = objects(&["-s"]) else { return };
    let stats = all.iter().find(|o| o["type"] == "stats").unwrap();
    assert_eq!(stats["method_writes"], 749_608);
    let launches: u64 = stats["operations"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|o| o["op"] == "launch")
        .map(|o| {
            assert_ne!(o["of"], "(QMD not seen)");
            o["count"].as_u64().unwrap()
        })
        .sum();
    assert_eq!(launches, 2833);
}

/// The bytes of the QMD of the first user launch of the capture whose grid is 4096 blocks wide.
#[cfg(feature = "xz")]
fn a_qmd() -> Option<Vec<u8>> {
    use nvcap::decode::event::{Body, LaunchKind, Operation};
    use nvcap::decode::{Decoder, Options};
    use nvcap::record::Record;
    use nvcap::source::file::orc::Orc;

    let mut decoder = Decoder::new(Options::default());
    for record in Orc::open(&shared("captures/h200-mixed.orc.xz")?).unwrap() {
        let Record::Submission(s) = record.unwrap() else {
            continue;
        };
        let context = decoder.context(&s, 0);
        let mut found = None;
        decoder.submission(&s, &context, &(), &mut |event| {
            if let Body::Operation(Operation::Launch(l)) = &event.body
                && l.kind == LaunchKind::User
                && l.grid == Some([4096, 1, 1])
            {
                found = found.or(l.qmd);
            }
        });
        if let Some(address) = found {
            let mut qmd = vec![0; 384];
            assert!(decoder.shadow().read(s.at.pid, address, &mut qmd));
            return Some(qmd);
        }
    }
    panic!("the capture has such a launch");
}

#[cfg(feature = "xz")]
#[test]
fn explain_reads_a_real_qmd() {
    let Some(qmd) = a_qmd() else { return };
    let folder = Folder::new("qmd");
    let file = folder.path("qmd");
    fs::write(&file, &qmd).unwrap();
    for args in [
        &["explain", "qmd", &file][..],
        &["explain", "qmd", &file, "cbc0"],
    ] {
        let out = text(&nvcap(args).stdout);
        assert!(out.starts_with("QMD version 04_00, 384 bytes\n"), "{out}");
        for (field, value) in [
            ("GRID_WIDTH", "0x1000 (4096)"),
            ("CTA_THREAD_DIMENSION0", "0x100 (256)"),
        ] {
            let fits = |l: &&str| l.contains(&format!(" {field} ")) && l.ends_with(value);
            assert!(out.lines().any(|l| fits(&l)), "{field} {value} in {out}");
        }
    }
    let json: Value =
        serde_json::from_slice(&nvcap(&["explain", "--json", "qmd", &file]).stdout).unwrap();
    assert_eq!(json["version"], serde_json::json!([4, 0]));
    fs::write(&file, &qmd[..100]).unwrap();
    let out = nvcap(&["explain", "qmd", &file]);
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out.stderr).contains("the 100 bytes of"));
}
