//! Commands that read files know each format by its content: a log of ioctls as a recording, code in a recording.

use std::fs;
use std::process::{Command, Stdio};

use crate::common::cli::{Folder, argument, nvcap, refused, text};
use crate::common::files::{capture, fixture};
use nvcap_decode::record::Record;
use nvcap_recording::recording::{Item, Reader};

#[test]
fn a_log_of_ioctls_becomes_a_recording() {
    let folder = Folder::new("formats-log");
    let log = argument(fixture("h200-ioctl-part.log.gz"));
    let file = folder.path("run.pcapng");
    for from in [&[] as &[&str], &["--from", "ioctl-log"]] {
        let args: Vec<&str> = ["export", "pcapng", &log, "--force", "-o", &file]
            .into_iter()
            .chain(from.iter().copied())
            .collect();
        let out = nvcap(&args);
        assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    }
    let (mut ioctls, mut how) = (0, String::new());
    for item in Reader::new(fs::File::open(&file).unwrap()) {
        match item.unwrap() {
            Item::Trace(info) => how = info.how,
            Item::Record(Record::Ioctl(_)) => ioctls += 1,
            _ => {}
        }
    }
    assert_eq!((ioctls, how.as_str()), (291, "ioctl-log"));
    // What the log is shown as.
    for command in [
        &["ioctls", "--json"][..],
        &["ioctls", "-vv"],
        &["channels", "--json"],
        &["maps", "--json"],
    ] {
        let of = |file: &str| {
            let args: Vec<&str> = command.iter().copied().chain([file]).collect();
            nvcap(&args)
        };
        let (of_log, of_recording) = (of(&log), of(&file));
        assert_eq!(of_log.status, of_recording.status, "{command:?}");
        assert!(of_log.stdout.len() > 100, "{command:?}");
        assert!(of_log.stdout == of_recording.stdout, "{command:?}");
    }
    // Other commands need submissions.
    let none = "holds no submissions: it is a log of ioctls: nvcap ioctls ";
    let lines = [
        (vec!["decode", &log], 1, none),
        (vec!["decode", "--from", "ioctl-log", &log], 1, none),
        (vec!["export", "csv", &log], 1, none),
        (
            vec!["code", "vadd", &log],
            1,
            "has no code: it is a log of ioctls",
        ),
    ];
    refused(&[], &lines);
}

#[test]
fn a_cut_log_becomes_a_recording_that_says_so() {
    let folder = Folder::new("formats-log-cut");
    let packed = fs::read(fixture("h200-ioctl-part.log.gz")).unwrap();
    let (cut, file) = (folder.path("cut.log.gz"), folder.path("run.pcapng"));
    fs::write(&cut, &packed[..packed.len() / 2]).unwrap();
    let out = nvcap(&["export", "pcapng", &cut, "-o", &file]);
    assert_eq!(out.status.code(), Some(3), "{}", text(&out.stderr));
    let shown = nvcap(&["ioctls", &file]);
    let said = text(&shown.stderr);
    assert_eq!(shown.status.code(), Some(3));
    assert!(said.contains("nvcap: INCOMPLETE: untraced:"), "{said}");
    // A text without a line of a log, called one.
    let text_file = folder.path("text");
    fs::write(&text_file, "no log\n").unwrap();
    let named = [
        "export",
        "pcapng",
        "--from",
        "ioctl-log",
        &text_file,
        "--force",
        "-o",
        &file,
    ];
    refused(&[], &[(named.to_vec(), 1, "it is no log")]);
}

#[test]
fn code_of_a_recording_is_that_of_its_capture() {
    let Some(run) = capture("h200-graphs.orc.xz") else {
        return;
    };
    let folder = Folder::new("formats-code");
    let (run, file) = (argument(run), folder.path("run.pcapng.gz"));
    let plain = folder.path("run.pcapng");
    let out = nvcap(&["export", "pcapng", &run, "-o", &plain]);
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    let mut packed = flate2::write::GzEncoder::new(
        fs::File::create(&file).unwrap(),
        flate2::Compression::fast(),
    );
    std::io::copy(&mut fs::File::open(&plain).unwrap(), &mut packed).unwrap();
    packed.finish().unwrap();
    // The program whose upload the capture has (cli_code.rs).
    let program = "0x7fc0cb7a0000";
    let wanted = nvcap(&["code", program, &run]).stdout;
    assert!(wanted.len() > 1_000);
    for file in [&plain, &file] {
        let shown = nvcap(&["code", program, file]);
        assert!(shown.stdout == wanted, "{}", text(&shown.stderr));
    }
    // From a pipe, by the program; a name takes two readings.
    let piped = |command: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_nvcap"))
            .args(command)
            .stdin(Stdio::from(fs::File::open(&plain).unwrap()))
            .output()
            .unwrap()
    };
    assert!(piped(&["code", program, "-"]).stdout == wanted);
    let said = text(&piped(&["code", "vadd", "-"]).stderr);
    assert!(said.contains("can be read once only"), "{said}");
    // Other commands know it from a pipe, too.
    let said = text(&piped(&["stacks", "-"]).stderr);
    assert!(
        said.contains("- has no stacks: they are recorded with --stacks"),
        "{said}"
    );
    let shown = piped(&["decode", "-q", "-"]);
    assert_eq!(shown.status.code(), Some(0), "{}", text(&shown.stderr));
}

/// JSON lines that were cut, whose ledger says that something is missing, or that are not all nvcap's: the sums are shown, and not called
/// whole.
#[test]
fn stacks_of_json_that_lacks_something() {
    let submission =
        r#"{"type":"submission","serial":1,"pid":7,"stack":[{"symbol":"main","module":"a"}]}"#;
    let ledger = |complete: bool| {
        format!(
            r#"{{"type":"ledger","complete":{complete},"verdict":"INCOMPLETE: 3 entries missing"}}"#
        )
    };
    let folder = std::env::temp_dir().join(format!("nvcap-stacks-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let file = folder.join("trace.json");
    for (lines, code, said) in [
        (vec![submission.to_owned(), ledger(true)], 0, ""),
        (
            vec![submission.to_owned(), ledger(false)],
            3,
            "3 entries missing",
        ),
        (vec![submission.to_owned()], 3, "the trace has no ledger"),
        (
            vec![submission.to_owned(), "no JSON".to_owned(), ledger(true)],
            3,
            "no JSON of nvcap's",
        ),
    ] {
        fs::write(&file, lines.join("\n")).unwrap();
        let out = nvcap(&["stacks", file.to_str().unwrap()]);
        assert_eq!(out.status.code(), Some(code), "{}", text(&out.stderr));
        assert!(text(&out.stderr).contains(said), "{}", text(&out.stderr));
        assert!(text(&out.stdout).contains("main"), "{}", text(&out.stdout));
    }
    fs::remove_dir_all(&folder).unwrap();
}
