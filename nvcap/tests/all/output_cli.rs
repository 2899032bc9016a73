//! The command line as a user meets it: statuses, files, pipes, and the real capture where it is present.

use std::collections::HashSet;
use std::fs;
use std::io::{Read, Write};
use std::process::{Command, Stdio};

use crate::common::cli::{Folder, argument, nvcap, text};
use crate::common::files;
use crate::common::schema::Schema;
use serde_json::Value;

/// Appends a submission of one entry with these words.
fn submission(out: &mut Vec<u8>, prev: u32, put: u32, words: &[u32]) {
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
}

/// A capture of one submission.
fn one_submission(words: &[u32]) -> Vec<u8> {
    let mut out = Vec::new();
    submission(&mut out, 0, 1, words);
    out
}

/// Two submissions of one channel: SET_OBJECT and a semaphore release of a copy class; and a host WFI.
fn small_capture(second_prev_put: u32) -> Vec<u8> {
    let mut out = Vec::new();
    // INC_METHOD of subchannel 4: SET_OBJECT; SET_SEMAPHORE_A..PAYLOAD; LAUNCH_DMA = release one word, no transfer.
    submission(
        &mut out,
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
    submission(
        &mut out,
        second_prev_put,
        second_prev_put + 1,
        &[0x2001_801e, 0],
    );
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
    assert!(
        shown.contains("3 operations not shown (the driver's own, nodes of graphs): -v shows them"),
        "{shown}"
    );
    for args in [&["-v"][..], &["-e", "op=semaphore"]] {
        let out = nvcap(&[&["decode", "--from", "orc", &whole], args].concat());
        let shown = text(&out.stdout);
        assert!(shown.contains("release 0x20460ff70 = 9"), "{shown}");
        assert!(!shown.contains("not shown"), "{shown}");
        assert!(!shown.contains('\x1b'), "a pipe gets no colour");
    }
    // A filter by place leaves the level.
    let out = nvcap(&["decode", "--from", "orc", &whole, "-e", "channel=0"]);
    assert!(!text(&out.stdout).contains("release"), "{out:?}");

    let out = nvcap(&["decode", "--from", "orc", &gap, "-q"]);
    assert_eq!(out.status.code(), Some(3));
    assert!(text(&out.stdout).contains("INCOMPLETE: 4 entries missing (channel 0)"));

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

/// A command that reads others' files starts no program and connects to nothing.
#[test]
fn a_decoder_has_given_up_what_it_does_not_need() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_nvcap"))
        .args(["decode", "--from", "orc", "-", "-q"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // More than is read before the first record is decoded; the end is yet to come.
    stdin.write_all(&small_capture(1).repeat(4000)).unwrap();
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    for gone in ["Seccomp:\t2", "NoNewPrivs:\t1"] {
        assert!(status.contains(gone), "{status}");
    }
    drop(stdin);
    let out = child.wait_with_output().unwrap();
    assert!(text(&out.stdout).contains("8000 submissions"));
}

#[test]
fn bad_use_says_what_to_do_and_ends_with_1_or_2() {
    for (args, status, says) in [
        (
            vec!["-q"],
            2,
            "nothing to trace: give a command after -- (nvcap -- ./vadd)",
        ),
        (
            vec!["record"],
            2,
            "(nvcap record -- ./vadd), a process (nvcap record -p PID)",
        ),
        (vec!["time"], 2, "(nvcap time -- ./vadd)"),
        (vec!["stacks"], 2, "(nvcap stacks -- ./vadd)"),
        (
            vec!["export", "perfetto"],
            2,
            "(nvcap export perfetto -- ./vadd)",
        ),
        (
            vec!["export", "kineto"],
            2,
            "(nvcap export kineto -- ./vadd)",
        ),
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
        (vec!["-p", "0"], 2, "'0' is no process id"),
        (vec!["-p", "1,0"], 2, "'0' is no process id"),
        (
            vec!["dump", "-p", "nobody-is-called-so"],
            2,
            "no process is called 'nobody-is-called-so'",
        ),
        (vec!["--user", "root", "-p", "1"], 2, "cannot be used with"),
        (
            vec!["ioctls", "--user", "root", "-p", "1"],
            2,
            "cannot be used with",
        ),
        (
            vec!["maps", "--user", "root", "a.log"],
            2,
            "cannot be used with",
        ),
        (
            vec!["--exit-with-child", "-p", "1"],
            2,
            "cannot be used with",
        ),
        (vec!["-p", "1", "--", "true"], 2, "cannot be used with"),
        (vec!["--buffer", "3M", "-p", "1"], 2, "power of two"),
        (vec!["--buffer", "64MB", "-p", "1"], 2, "such as 64MiB"),
        (vec!["--buffer", "64MiB"], 2, "nothing to trace"),
        (vec!["--duration", "0", "-p", "1"], 2, "seconds above 0"),
        (vec!["explain", "zzzz"], 2, "no hexadecimal number"),
        (vec!["explain", "1234"], 1, "no class 0x1234"),
        (vec!["explain", "c8b5", "FOO"], 1, "has no method"),
        (vec!["explain", "qmd", "/dev/null"], 1, "is no QMD"),
        (vec!["explain", "control"], 2, "give the number too"),
    ] {
        let out = nvcap(&args);
        let err = text(&out.stderr);
        assert_eq!(out.status.code(), Some(status), "{args:?}: {err}");
        assert!(err.contains(says), "{args:?}: {err}");
    }
}

/// No trace was complete, so the status is not 0; and nothing was wrong, so standard error is empty.
#[test]
fn the_name_alone_says_what_there_is_and_what_to_type() {
    let out = nvcap(&[]);
    assert_eq!(out.status.code(), Some(2));
    assert!(out.stderr.is_empty(), "{}", text(&out.stderr));
    let said = text(&out.stdout);
    let first = said.lines().next().unwrap();
    assert!(
        first.contains("use a GPU") || first.contains("uses a GPU"),
        "{said}"
    );
    assert!(
        said.contains("\n  nvcap ") || said.contains("\n  sudo nvcap "),
        "{said}"
    );
    assert!(
        said.lines().last().unwrap().starts_with("nvcap -h "),
        "{said}"
    );
}

#[test]
fn short_help_is_a_screen_and_long_help_has_all_options() {
    let [short, long] = ["-h", "--help"].map(|how| text(&nvcap(&[how]).stdout));
    assert!(short.lines().count() <= 50, "{short}");
    for said in ["--doorbell", "Exit status:", "Advanced:"] {
        assert!(long.contains(said) && !short.contains(said), "{said}");
    }
    // That of a command stays as clap makes it.
    let of_command = text(&nvcap(&["decode", "-h"]).stdout);
    assert!(of_command.contains("Usage: nvcap decode"), "{of_command}");
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
fn the_version_says_what_was_built() {
    let short = text(&nvcap(&["-V"]).stdout);
    assert_eq!(short.lines().count(), 1, "{short}");
    let long = text(&nvcap(&["--version"]).stdout);
    let line = |begin: &str| {
        let found = long.lines().find_map(|l| l.strip_prefix(begin));
        found.unwrap_or_else(|| panic!("no {begin:?} in {long}"))
    };
    assert_eq!(line("nvcap "), env!("CARGO_PKG_VERSION"));
    assert_eq!(
        line("driver branches: "),
        "515 to 595 (515.43.04 to 595.45.04)"
    );
    assert!(line("files: ").contains("gzip"));
    let bpf = line("live tracing: ");
    assert!(
        bpf.contains("without BPF") || bpf.contains("Linux 5.17 on") && bpf.contains("5.15 on"),
        "{bpf}"
    );
    let commit = line("commit: ");
    assert!(short.contains(&format!("(commit {commit})")), "{short}");
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let git = |args: &[&str]| {
        let git = Command::new("git").args(args).current_dir(root).output();
        let git = git.ok().filter(|o| o.status.success())?;
        Some(text(&git.stdout).trim().to_owned())
    };
    let own = git(&["rev-parse", "--show-prefix"]).is_some_and(|p| p.is_empty());
    match git(&["rev-parse", "HEAD"]) {
        Some(head) if own => {
            let changed = git(&["status", "--porcelain", "--", "nvcap/src"]).unwrap_or_default();
            let marked = commit.strip_suffix("+changes");
            assert!(
                marked.is_some() || changed.is_empty(),
                "{commit}: {changed}"
            );
            assert!(
                head.starts_with(marked.unwrap_or(commit)),
                "{commit} of {head}"
            );
        }
        _ => assert_eq!(commit, "unknown"),
    }
}

#[test]
fn help_and_documents_have_every_status() {
    use nvcap_decode::ledger::{
        STATUS_COMPLETE, STATUS_ERROR, STATUS_FAULTED, STATUS_LOST, STATUS_NOT_UNDERSTOOD,
        STATUS_USAGE,
    };

    let help = text(&nvcap(&["--help"]).stdout);
    let statuses = help.split("Exit status:").nth(1).unwrap();
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    for status in [
        STATUS_COMPLETE,
        STATUS_ERROR,
        STATUS_USAGE,
        STATUS_LOST,
        STATUS_NOT_UNDERSTOOD,
        STATUS_FAULTED,
    ] {
        assert!(statuses.contains(&format!("\n  {status}  ")), "{status}");
        let page = fs::read_to_string(format!("{root}/docs/output.md")).unwrap();
        assert!(page.contains(&format!("\n| {status} | ")), "{status}");
        let readme = fs::read_to_string(format!("{root}/README.md")).unwrap();
        let line = readme.lines().find(|l| l.starts_with("Exit status: "));
        assert!(line.unwrap().contains(&format!(" {status} ")), "{status}");
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
    let args = ["decode", "--from", "orc", &capture, "--json", "-o", &file];
    let out = nvcap(&[&args[..], &["--force"]].concat());
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
        .args(["decode", "--from", "orc", &capture, "-v"])
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
    files::capture(name).map(argument)
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
    let count = |op: &str, of: &str| {
        let operations = stats["operations"].as_array().unwrap();
        let found = operations.iter().find(|o| o["op"] == op && o["of"] == of);
        found.map_or(0, |o| o["count"].as_u64().unwrap())
    };
    // decode_capture.rs says why it is these.
    assert_eq!(count("launch", ""), 4_329);
    assert_eq!(count("launch", "(driver: companion)"), 277);
    assert_eq!(count("launch", "(driver: memset)"), 11);
    assert_eq!(count("launch", "(driver: copy)"), 15);
    assert_eq!(count("launch", "(QMD not seen)"), 0);
    assert_eq!(count("graph", "replay"), 23);
    let ledger = all.last().unwrap();
    let understood = serde_json::json!({
        "whole": true, "kernels": 4_329, "launches": 4_355, "graph_nodes": 4_095, "graph_replays": 23,
        "qmds_from_memory": 0, "qmds_not_seen": 0, "methods": 749_608, "methods_of_unknown_class": 0, "stops": 0,
    });
    assert_eq!(ledger["understood"], understood);
}

/// Everything is there, and what a launch's QMD is was not seen: the replay of a graph that was made before the trace.
#[test]
fn what_was_not_understood_is_said_and_ends_with_5() {
    let folder = Folder::new("understood");
    let (replay, subchannel) = (folder.path("replay"), folder.path("subchannel"));
    // SET_OBJECT of Hopper's compute class; SEND_PCAS_A; SEND_SIGNALING_PCAS2_B.
    let pcas = [
        0x2001_2000,
        0xcbc0,
        0x2001_20ad,
        0x204_e000,
        0x2001_20b0,
        0xa,
    ];
    fs::write(&replay, one_submission(&pcas)).unwrap();
    // SET_OBJECT of a class that no table has, and a method of it.
    let unknown = [0x2001_c000, 0x1234, 0x2001_c040, 0];
    fs::write(&subchannel, one_submission(&unknown)).unwrap();
    for (file, says) in [
        (&replay, "the QMD of 1 of 1 launch was not seen"),
        (
            &subchannel,
            "1 of 2 method writes to a class that is not known (-v shows them; --chip NAME names the chip)",
        ),
    ] {
        let out = nvcap(&["decode", "--from", "orc", file]);
        assert_eq!(out.status.code(), Some(5), "{}", text(&out.stderr));
        let shown = text(&out.stdout);
        let verdict = shown.lines().last().unwrap();
        let whole = format!("nothing missing, but NOT ALL UNDERSTOOD: {says}");
        assert!(
            verdict.starts_with("complete: 1 submission") && verdict.ends_with(&whole),
            "{verdict}"
        );
        let out = nvcap(&["decode", "--from", "orc", file, "--json"]);
        assert_eq!(out.status.code(), Some(5));
        let shown = text(&out.stdout);
        let ledger: Value = serde_json::from_str(shown.lines().last().unwrap()).unwrap();
        assert_eq!(
            (&ledger["complete"], &ledger["understood"]["whole"]),
            (&true.into(), &false.into())
        );
        // A filter changes nothing in it.
        let out = nvcap(&["decode", "--from", "orc", file, "-e", "op=copy"]);
        assert_eq!(out.status.code(), Some(5));
        // Where nothing is decoded, nothing can be said of it.
        let out = nvcap(&["decode", "--from", "orc", file, "-q", "--json"]);
        assert_eq!(out.status.code(), Some(0));
        let ledger: Value = serde_json::from_str(&text(&out.stdout)).unwrap();
        assert!(ledger["understood"].is_null());
    }
    // What is lost outweighs it.
    let mut cut = one_submission(&pcas);
    cut.truncate(cut.len() - 3);
    fs::write(&replay, cut).unwrap();
    let out = nvcap(&["decode", "--from", "orc", &replay]);
    assert_eq!(out.status.code(), Some(3));
    // --chip names the chip of subchannels that nothing was seen bound to.
    fs::write(&subchannel, one_submission(&[0x2001_2044, 0])).unwrap();
    let chip_of = |args: &[&str]| {
        let out = nvcap(&[&["decode", "--from", "orc", &subchannel, "--json"], args].concat());
        assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
        let shown = text(&out.stdout);
        let objects = shown
            .lines()
            .map(|l| serde_json::from_str::<Value>(l).unwrap());
        let chips: Vec<_> = objects.filter(|o| o["type"] == "chip").collect();
        assert_eq!(chips.len(), 1, "{shown}");
        ["chip", "by", "assumed"].map(|m| chips[0][m].to_string())
    };
    assert_eq!(chip_of(&[]), ["\"GV100\"", "\"methods\"", "true"]);
    assert_eq!(
        chip_of(&["--chip", "gh100"]),
        ["\"GH100\"", "\"given\"", "false"]
    );
}

/// The bytes of the QMD of the first user launch of the capture whose grid is 4096 blocks wide.
#[cfg(feature = "xz")]
fn a_qmd() -> Option<Vec<u8>> {
    use nvcap_decode::decode::event::{Body, LaunchKind, Operation};
    use nvcap_decode::decode::{DecodeOptions, Decoder};
    use nvcap_decode::record::Record;
    use nvcap_recording::file::orc::Orc;

    let mut decoder = Decoder::new(DecodeOptions::default());
    for record in Orc::open(&files::capture("h200-mixed.orc.xz")?).unwrap() {
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
    assert!(text(&out.stderr).contains("(100 bytes) is no QMD"));
}

/// A standard stream that is full ends nothing by a panic: what is due is done, and the status says so.
#[test]
fn a_full_standard_stream_is_no_panic() {
    let full = || fs::OpenOptions::new().write(true).open("/dev/full");
    let folder = Folder::new("full-stream");
    let (gap, out) = (folder.path("gap"), folder.path("out"));
    fs::write(&gap, small_capture(5)).unwrap();
    let run = |args: &[&str], stdout: Stdio, stderr: Stdio| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nvcap"));
        command.args(args).stdout(stdout).stderr(stderr);
        command.output().unwrap()
    };
    let doctor = run(&["doctor"], Stdio::piped(), Stdio::piped());
    let usual = doctor.status.code();
    for (args, status) in [
        (&["doctor"][..], usual),
        (&["decode", "--from", "orc", &gap, "-o", &out], Some(3)),
        (&["decode", "--from", "orc", "/nonexistent/x"], Some(1)),
        (&["dump"], Some(2)),
        (&["dump", "-p", "4194305"], Some(1)),
        (&["--no-such-option"], Some(2)),
        (&["explain", "zzzz"], Some(2)),
    ] {
        let ended = run(args, Stdio::piped(), full().unwrap().into());
        assert_eq!(ended.status.code(), status, "{args:?} 2>/dev/full");
    }
    for args in [
        &["doctor"][..],
        &["explain", "c8b5"],
        &["decode", "--from", "orc", &gap],
        &["--version"],
        &["dump", "--help"],
    ] {
        let ended = run(args, full().unwrap().into(), Stdio::piped());
        let said = text(&ended.stderr);
        assert!(!said.contains("panicked"), "{args:?}: {said}");
        let status = ended.status.code();
        assert!(matches!(status, Some(1 | 3)), "{args:?}: {status:?}");
        assert!(said.contains("No space left"), "{args:?}: {said}");
        // A verdict of what is a trace, and of nothing else.
        let traced = args[0] == "decode";
        let counted = said.contains("captured but not written out");
        assert_eq!(counted, traced, "{args:?}: {said}");
        assert_eq!(said.contains("INCOMPLETE"), traced, "{args:?}: {said}");
    }
}

/// A mistake costs no file: neither one that was there nor the one that is read.
#[test]
fn an_output_file_is_not_lost_by_a_mistake() {
    let folder = Folder::new("mistake");
    let (capture, old, new) = (
        folder.path("capture"),
        folder.path("old"),
        folder.path("new"),
    );
    let bytes = small_capture(1);
    fs::write(&capture, &bytes).unwrap();
    fs::write(&old, "of yesterday").unwrap();
    for file in [&old, &new] {
        for args in [
            &["decode", "--from", "orc", "/nonexistent/x", "-o", file][..],
            &["dump", "-p", "4194305", "-o", file],
            &["dump", "-p", "4194305", "--stream", "-o", file],
            &["-p", "4194305", "-o", file],
            &["--how", "observe", "-p", "4194305", "-o", file],
            &["-o", file, "--", "/nonexistent/command"],
            &["ioctls", "-p", "4194305", "-o", file],
            &["channels", "-p", "4194305", "-o", file],
            &[
                "ioctls",
                "--from",
                "ioctl-log",
                "/nonexistent/x",
                "-o",
                file,
            ],
        ] {
            let at = args.iter().position(|a| *a == "-o").unwrap();
            let args = [&args[..at], &["--force"], &args[at..]].concat();
            let out = nvcap(&args);
            assert_eq!(
                out.status.code(),
                Some(1),
                "{args:?}: {}",
                text(&out.stderr)
            );
            assert_eq!(
                fs::read_to_string(&old).unwrap(),
                "of yesterday",
                "{args:?}"
            );
            assert!(!fs::exists(&new).unwrap(), "{args:?}");
        }
    }
    let (link, phases) = (folder.path("link"), folder.path("phases"));
    std::os::unix::fs::symlink(&capture, &link).unwrap();
    fs::write(&phases, "PHASE a 0 1\n").unwrap();
    for args in [
        &["decode", "--from", "orc", &capture, "-o", &capture][..],
        &["decode", "--from", "orc", &capture, "-o", &link],
        &["ioctls", "--from", "ioctl-log", &capture, "-o", &capture],
        &[
            "decode", "--from", "orc", &capture, "--phases", &phases, "-o", &phases,
        ],
    ] {
        let out = nvcap(args);
        let said = text(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains("it is read, too"), "{args:?}: {said}");
        assert_eq!(fs::read(&capture).unwrap(), bytes, "{args:?}");
        assert!(!fs::read(&phases).unwrap().is_empty(), "{args:?}");
    }
    let mut child = Command::new(env!("CARGO_BIN_EXE_nvcap"))
        .args(["decode", "--from", "orc", "-", "-o", &capture])
        .stdin(fs::File::open(&capture).unwrap())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(2));
    assert_eq!(fs::read(&capture).unwrap(), bytes);
    // And what is written at the end is written behind the rest, once.
    let args = [
        "decode",
        "--from",
        "orc",
        &capture,
        "--explain-streams",
        "--force",
        "-o",
        &old,
    ];
    assert_eq!(nvcap(&args).status.code(), Some(0));
    let shown = fs::read_to_string(&old).unwrap();
    let places = ["copy", "complete: 2", "streams: who"].map(|w| shown.find(w));
    assert!(
        places[1] < places[2] && places[1].is_some(),
        "{places:?} in {shown}"
    );
    assert!(!shown.contains("yesterday"));
}

#[test]
fn an_empty_capture_is_not_complete() {
    let folder = Folder::new("empty");
    let empty = folder.path("empty");
    fs::write(&empty, "").unwrap();
    let out = nvcap(&["decode", "--from", "orc", &empty]);
    assert_eq!(out.status.code(), Some(3));
    let shown = text(&out.stdout);
    let last = shown.lines().last().unwrap();
    assert!(
        last.starts_with("INCOMPLETE: untraced: the capture is empty"),
        "{shown}"
    );
    let out = nvcap(&["decode", "--from", "orc", &empty, "--strict"]);
    assert_eq!(out.status.code(), Some(1));
}

/// Names that others have made up (of phases, files, processes) reach no terminal as more than words.
#[test]
fn nothing_from_outside_moves_the_terminal() {
    let folder = Folder::new("escape");
    let (capture, phases, bad) = (
        folder.path("capture"),
        folder.path("phases"),
        folder.path("bad"),
    );
    fs::write(&capture, small_capture(1)).unwrap();
    let evil = "a\u{1b}[2J\u{202e}b\u{2028}c\u{200b}\u{feff}\u{9b}1md";
    fs::write(
        &phases,
        format!("PHASE {} 0 99999\n", evil.replace('\u{2028}', "\u{2066}")),
    )
    .unwrap();
    fs::write(&bad, format!("PHASE {evil} 1\n")).unwrap();
    let base = ["decode", "--from", "orc", &capture];
    let path = folder.path(&format!("no{evil}such"));
    for more in [
        &["--phases", &phases][..],
        &["--phases", &phases, "-s"],
        &["--phases", &phases, "--explain-streams", "-v"],
        &["--phases", &bad],
        &["--phases", &path],
        &["--phases", &phases, "--json"],
        &["--phases", &phases, "--json", "-s"],
        &["-o", &format!("{path}/x")],
        &["--channels", &path],
    ] {
        let out = nvcap(&[&base, more].concat());
        for shown in [text(&out.stdout), text(&out.stderr)] {
            for c in [
                '\u{1b}', '\u{202e}', '\u{2028}', '\u{2066}', '\u{200b}', '\u{feff}', '\u{9b}',
            ] {
                assert!(!shown.contains(c), "{more:?}: {c:?} in {shown}");
            }
        }
    }
}

#[test]
fn an_error_is_said_once() {
    let out = nvcap(&["decode", "--from", "orc", "/nonexistent/x"]);
    let said = text(&out.stderr);
    assert_eq!(said.matches("No such file").count(), 1, "{said}");
    let out = nvcap(&["decode", "--from", "orc", "/"]);
    let said = text(&out.stderr);
    assert_eq!(said.matches("Is a directory").count(), 1, "{said}");
    assert!(!said.contains("reading the capture failed"), "{said}");
    for command in ["channels", "maps"] {
        let out = nvcap(&[command, "-p", "4194303"]);
        let said = text(&out.stderr);
        assert!(said.contains("there is no such process"), "{said}");
        assert!(!said.contains("No such file"), "{said}");
    }
    let out = nvcap(&["explain", "zzzz"]);
    let said = text(&out.stderr);
    assert!(
        said.contains("'zzzz' is no hexadecimal number") && !said.contains("invalid digit"),
        "{said}"
    );
}

#[test]
fn explain_knows_no_method_between_two() {
    for data in [None, Some("182")] {
        for method in ["0301", "0302", "0x303"] {
            let args: Vec<&str> = ["explain", "c8b5", method]
                .into_iter()
                .chain(data)
                .collect();
            let out = nvcap(&args);
            let said = text(&out.stderr);
            assert_eq!(out.status.code(), Some(2), "{args:?}: {said}");
            assert!(said.contains("multiples of 4, such as 0x0300"), "{said}");
            assert_eq!(text(&out.stdout), "");
        }
    }
    // Part of a name, and a number that is none of a method.
    let out = nvcap(&["explain", "c8b5", "ADD"]);
    assert!(
        !text(&out.stderr).contains("multiples"),
        "{}",
        text(&out.stderr)
    );
}

#[test]
fn a_filter_that_nothing_matches_is_told() {
    let folder = Folder::new("matches-nothing");
    let capture = folder.path("small.orc");
    fs::write(&capture, small_capture(1)).unwrap();
    let of = |expression: &str| {
        let out = nvcap(&["decode", "--from", "orc", &capture, "-e", expression]);
        assert!(out.status.success(), "{}", text(&out.stderr));
        text(&out.stderr)
    };
    let told = of("op=launch");
    assert!(told.contains("nvcap: 0 of "), "{told}");
    assert!(told.contains("events matched the filter"), "{told}");
    assert!(!told.contains("work-submit token"), "{told}");
    assert!(!of("op=bind").contains("matched"));
    // A channel has one number; who means its token is told.
    assert!(!of("channel=0").contains("matched"));
    assert!(!of("token=0x10012").contains("matched"));
    let told = of("channel=0x10012");
    assert!(told.contains("token the work-submit token"), "{told}");
}

#[test]
fn a_filter_shows_the_channels_and_processes_of_what_it_lets_through_alone() {
    let Some(capture) = capture("h200-mixed.orc.xz") else {
        return;
    };
    let of = |args: &[&str]| {
        let base = ["decode", "--from", "orc", &capture, "-e", "serial=7"];
        let out = nvcap(&[&base[..], args].concat());
        assert!(out.status.success(), "{}", text(&out.stderr));
        text(&out.stdout)
    };
    let types: Vec<(String, Option<u64>)> = of(&["--json"])
        .lines()
        .map(|l| serde_json::from_str::<serde_json::Value>(l).unwrap())
        .map(|o| {
            let kind = o["type"].as_str().unwrap_or_default();
            (kind.to_owned(), o["channel"].as_u64())
        })
        .collect();
    let expected = [
        ("channel", Some(7)),
        ("submission", Some(7)),
        ("operation", Some(7)),
        ("operation", Some(7)),
        ("ledger", None),
    ];
    assert_eq!(types, expected.map(|(t, c)| (t.to_owned(), c)));
    let shown = of(&["-v"]);
    let channels: Vec<&str> = shown
        .lines()
        .filter_map(|l| l.split_once("  channel ").map(|(_, of)| of))
        .collect();
    assert_eq!(channels, ["7 token 0x30019"]);
}

#[test]
fn a_phase_that_is_not_there_is_an_error() {
    let folder = Folder::new("no-such-phase");
    let (capture, phases) = (folder.path("small.orc"), folder.path("phases"));
    fs::write(&capture, small_capture(1)).unwrap();
    fs::write(&phases, "PHASE first 0 1001\nPHASE second 1002 2000\n").unwrap();
    let base = ["decode", "--from", "orc", &capture, "-e"];
    let of = |expression: &str, more: &[&str]| {
        let out = nvcap(&[&base[..], &[expression], more].concat());
        (out.status.code(), text(&out.stderr))
    };
    let given = ["--phases", &phases];
    assert_eq!(of("phase=first", &given).0, Some(0));
    assert_eq!(of("phase~s*", &given).0, Some(0));
    for expression in ["phase=thrid", "!(phase!=thrid)", "op=bind || phase~thrid*"] {
        let (status, said) = of(expression, &given);
        assert_eq!(status, Some(1), "{expression}: {said}");
        assert!(said.contains("is called thrid"), "{said}");
        assert!(said.contains("it has first, second"), "{said}");
    }
    let (status, said) = of("phase=first", &[]);
    assert_eq!(status, Some(2), "{said}");
    assert!(said.contains("--phases FILE"), "{said}");
    // A line that is none.
    fs::write(&phases, "PHASE first 0 1001\nFASE second 1002 2000\n").unwrap();
    let (status, said) = of("phase=first", &given);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("line 2: 'FASE second"), "{said}");
}

#[test]
fn a_command_without_dashes_is_understood() {
    let out = nvcap(&["./vadd", "--size", "4"]);
    assert_eq!(out.status.code(), Some(2));
    let told = text(&out.stderr);
    assert!(told.contains("nvcap -- ./vadd ..."), "{told}");
    // Another mistake has no such remedy.
    let told = text(&nvcap(&["--sise", "4"]).stderr);
    assert!(!told.contains("nvcap -- "), "{told}");
}

#[test]
fn a_file_size_limit_is_a_full_disk() {
    let folder = Folder::new("limit");
    let (capture, out) = (folder.path("capture"), folder.path("out"));
    let mut bytes = Vec::new();
    for put in 0..500 {
        submission(&mut bytes, put, put + 1, &[0x2001_801e, put]);
    }
    fs::write(&capture, bytes).unwrap();
    // In units of 512 or 1024 bytes.
    let ended = Command::new("sh")
        .args(["-c", "ulimit -f 8; exec \"$@\"", "sh"])
        .arg(env!("CARGO_BIN_EXE_nvcap"))
        .args(["decode", "--from", "orc", &capture, "-vvv", "-o", &out])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(3), "{}: {said}", ended.status);
    assert!(said.contains("captured but not written out"), "{said}");
    assert!(said.contains("ulimit -f"), "{said}");
    assert!(fs::read(&out).unwrap().ends_with(b"\n"), "whole lines");
}

/// Returns the output of nvcap, which ends well, on a terminal of this number of columns, without colour.
#[cfg(feature = "xz")]
fn on_a_terminal(columns: u16, args: &[&str]) -> String {
    let (shown, status) = crate::common::cli::on_a_terminal(columns, false, args);
    assert_eq!(status, Some(0), "{shown}");
    shown
}

#[cfg(feature = "xz")]
#[test]
fn lines_fit_the_terminal_that_they_go_to() {
    let Some(orc) = capture("h200-mixed.orc.xz") else {
        return;
    };
    for columns in [80u16, 120] {
        let shown = on_a_terminal(columns, &["decode", &orc]);
        let lines: Vec<&str> = shown.lines().filter(|l| l.contains("  ch")).collect();
        assert!(lines.len() > 250, "{shown}");
        assert!(
            shown.contains("channels so far\n    time, s  ch    eng  what\n"),
            "{shown}"
        );
        // A hundred launches of one kernel.
        assert!(lines.iter().any(|l| l.ends_with(" x 100")), "{shown}");
        // Sums in the place of the table, which `-v` has.
        let sums = "\n     4225  prog 0x7f4f4f7a2b00\n";
        assert!(
            shown.contains(sums) && shown.contains("\n23 graph replays\n"),
            "{shown}"
        );
        assert!(!shown.contains("\nchannel  token "), "{shown}");
        let widest = lines.iter().map(|l| l.chars().count()).max();
        assert_eq!(widest, Some(columns.into()));
        let launch = lines.iter().find(|l| l.contains(" grid 4096 block 256 "));
        assert!(launch.unwrap().ends_with("..."), "{launch:?}");
    }
    // A terminal that does not know its own size cuts none.
    let shown = on_a_terminal(0, &["decode", &orc]);
    assert!(shown.lines().any(|l| l.chars().count() > 125), "{shown}");
    let verdict = on_a_terminal(40, &["decode", &orc, "-q"]);
    assert!(verdict.trim_end().ends_with("nothing missing"), "{verdict}");
}

/// Without a driver, as on a GPU machine, a GPU that is not there is an error that says what to do.
#[test]
fn shares_of_a_gpu_that_is_not_there() {
    let out = nvcap(&["share", "--gpu", "99", "--duration", "1"]);
    let said = text(&out.stderr);
    assert_eq!(
        (out.status.code(), out.stdout.len()),
        (Some(1), 0),
        "{said}"
    );
    let ways = [
        "driver is not loaded, or this container",
        "as a user who may use the GPU",
        "there is no GPU 99",
    ];
    assert!(ways.iter().any(|way| said.contains(way)), "{said}");
    let out = nvcap(&["share", "-a", "-p", "1"]);
    assert_eq!(out.status.code(), Some(2), "{}", text(&out.stderr));
}
