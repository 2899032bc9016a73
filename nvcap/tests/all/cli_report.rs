//! `nvcap report`: where the page goes, what it says of a real capture, and what is refused. What the page does in a browser is tested
//! beside its code. Numbers are those of tests/captures/h200-mixed, as `nvcap stats` has them.

use crate::common::files;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use crate::common::cli::{
    Folder, argument, nvcap, page_data, refused, refused_on_a_terminal, text,
};
use serde_json::Value;

fn cut() -> String {
    argument(files::fixture("h200-cut.orc"))
}

#[test]
fn a_page_goes_where_it_is_told_and_has_the_verdict() {
    let folder = Folder::new("report");
    let (capture, file) = (cut(), folder.path("run.html"));
    let out = nvcap(&["report", &capture, "-o", &file]);
    let said = text(&out.stderr);
    let decoded = nvcap(&["decode", &capture, "-q"]);
    assert_eq!(out.status.code(), decoded.status.code(), "{said}");
    assert!(said.contains("INCOMPLETE: 307 entries missing"), "{said}");
    assert!(said.contains("run.html: open it in a browser"), "{said}");
    assert!(out.stdout.is_empty());
    let mode = fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let page = page_data(&fs::read_to_string(&file).unwrap());
    assert!(page["missing"].as_str().unwrap().contains("307 entries"));
    assert_eq!(page["ledger"]["complete"], false);
    assert_eq!(page["exit_status"], 3);
    let piped = nvcap(&["report", &capture]);
    assert_eq!(page_data(&text(&piped.stdout)), {
        let mut same = page;
        same["file"] = capture.clone().into();
        same
    });
    assert!(text(&piped.stderr).contains("INCOMPLETE"));
}

#[test]
fn a_page_says_what_the_statistics_say() {
    let (Some(capture), Some(phases)) = (
        files::capture("h200-mixed.orc.xz"),
        files::capture("h200-mixed.phases"),
    ) else {
        return;
    };
    let (capture, phases) = (argument(capture), argument(phases));
    let stats = nvcap(&["stats", &capture, "--phases", &phases, "--json"]);
    let line = text(&stats.stdout);
    let line = line.lines().next().unwrap();
    let stats: Value = serde_json::from_str(line).unwrap();
    let out = nvcap(&["report", &capture, "--phases", &phases]);
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    let page = page_data(&text(&out.stdout));
    for part in ["kernels", "moves", "thresholds", "graphs", "costs"] {
        assert_eq!(page[part], stats[part], "{part}");
    }
    let pinned = page["thresholds"].as_array().unwrap().iter();
    let mut pinned = pinned.filter(|t| t["series"] == "h2d_pinned");
    let pinned = pinned.next().unwrap();
    assert_eq!(
        (&pinned["up_to"], &pinned["from"]),
        (&24576.into(), &28672.into())
    );
    assert_eq!(page["submissions"], 600);
    assert!(page["phases"].as_array().unwrap().len() > 50);
    // The driver's own are counted where they are not shown.
    let all = nvcap(&["report", &capture, "-v"]);
    let all = page_data(&text(&all.stdout));
    let (few, own) = (
        page["shown"].as_u64().unwrap(),
        page["mechanics"].as_u64().unwrap(),
    );
    assert_eq!(all["shown"], few + own);
    assert_eq!(all["mechanics"], 0);
    let copies = nvcap(&[
        "report",
        &capture,
        "-e",
        "op=copy && op!=inline,launch",
        "--limit",
        "5",
    ]);
    let copies = page_data(&text(&copies.stdout));
    assert_eq!(
        (&copies["shown"], &copies["operations"]),
        (&5.into(), &171.into())
    );
    // What the page tells to type shows the rest.
    let rest = format!(
        "op=copy && op!=inline,launch && time_ns>{}",
        copies["cut_ns"]
    );
    let rest = page_data(&text(&nvcap(&["report", &capture, "-e", &rest]).stdout));
    assert!(rest["shown"].as_u64() >= Some(166), "{}", rest["shown"]);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let capture = cut();
    let lines = [
        (vec![&*capture, "--json"], 2, "nvcap stats"),
        (vec![&*capture, "-o", &*capture], 2, "it is read, too"),
        (vec![&*capture, "--limit", "0"], 2, "--limit"),
        (vec!["/nowhere"], 1, "cannot read the capture"),
        (vec![], 2, "FILE"),
    ];
    refused(&["report"], &lines);
    let full = nvcap(&["report", &capture, "-o", "/dev/full"]);
    let said = text(&full.stderr);
    assert_eq!(full.status.code(), Some(3), "{said}");
    assert!(said.contains("captured but not written out"), "{said}");
    assert!(!said.contains("open it in a browser"), "{said}");
}

#[test]
fn a_terminal_gets_no_page() {
    let words = "name a file with -o, such as -o report.html";
    refused_on_a_terminal(&["report", &cut()], words);
}
