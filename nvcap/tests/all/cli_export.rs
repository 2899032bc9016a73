//! `nvcap export`: where files go, what they say and what is refused.

use crate::common::files;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use crate::common::cli::{Folder, argument, nvcap, refused, refused_on_a_terminal, text};

fn capture() -> String {
    argument(files::fixture("h200-cut.orc"))
}

#[test]
fn a_trace_for_perfetto_goes_where_it_is_told_and_has_the_verdict() {
    let folder = Folder::new("export-perfetto");
    let (capture, file) = (capture(), folder.path("run.pftrace"));
    let out = nvcap(&["export", "perfetto", &capture, "-o", &file]);
    let said = text(&out.stderr);
    let decoded = nvcap(&["decode", &capture, "-q"]);
    assert_eq!(out.status.code(), decoded.status.code(), "{said}");
    assert!(said.contains("INCOMPLETE: 307 entries missing"), "{said}");
    assert!(
        said.contains("run.pftrace: open it at https://ui.perfetto.dev"),
        "{said}"
    );
    assert!(out.stdout.is_empty());
    let mode = fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let bytes = fs::read(&file).unwrap();
    // The first packet, with a clock snapshot.
    assert_eq!(bytes[0], 10);
    let piped = nvcap(&["export", "perfetto", &capture]);
    assert!(piped.stdout == bytes, "the same bytes");
    assert!(text(&piped.stderr).contains("INCOMPLETE"));
    assert!(!text(&piped.stderr).contains("ui.perfetto.dev"));
}

#[test]
fn a_full_disk_is_counted() {
    let out = nvcap(&["export", "perfetto", &capture(), "-o", "/dev/full"]);
    let said = text(&out.stderr);
    assert_eq!(out.status.code(), Some(3), "{said}");
    assert!(said.contains("cannot write to /dev/full"), "{said}");
    assert!(said.contains("captured but not written out"), "{said}");
}

#[test]
fn what_makes_no_sense_is_refused() {
    let capture = capture();
    let lines = [
        (vec![&*capture, "--json"], 2, "for another program"),
        (vec![&*capture, "-o", &*capture], 2, "it is read, too"),
        (vec!["--", "true"], 2, "name a file with -o"),
        (vec![], 2, "nothing to trace"),
        (vec![&*capture, "-p", "1"], 2, "cannot be used with"),
        (vec!["--strict", "-p", "1"], 2, "of a FILE"),
    ];
    refused(&["export", "perfetto"], &lines);
    let help = text(&nvcap(&["export", "perfetto", "--help"]).stdout);
    assert!(
        help.contains("--stacks") && !help.contains("--json"),
        "{help}"
    );
}

#[test]
fn a_filter_chooses_what_is_written() {
    let size = |more: &[&str]| {
        let capture = capture();
        let all: Vec<&str> = ["export", "perfetto", &capture]
            .into_iter()
            .chain(more.iter().copied())
            .collect();
        nvcap(&all).stdout.len()
    };
    let (all, copies, verbose) = (size(&[]), size(&["-e", "op=copy"]), size(&["-v"]));
    assert!(copies < all && all < verbose, "{copies} {all} {verbose}");
    let hidden = nvcap(&["export", "perfetto", &capture(), "--redact"]).stdout;
    let shown = nvcap(&["export", "perfetto", &capture()]).stdout;
    let hash = |bytes: &[u8]| bytes.windows(4).filter(|w| w == b" B #").count();
    assert!(hash(&hidden) > 0 && hash(&shown) == 0);
}

#[test]
fn a_terminal_gets_no_bytes() {
    let words = "is a terminal; name a file with -o";
    refused_on_a_terminal(&["export", "perfetto", &capture()], words);
}

/// A recording's tables in a fleet's folder are those of `export parquet`, at the places of its hour and host, and their owner's alone;
/// what is no recording is refused, and leaves nothing; the others are exported all the same.
#[cfg(feature = "parquet")]
#[test]
fn tables_of_a_fleet_lie_by_day_hour_and_host() {
    let folder = Folder::new("export-partitions");
    let (fleet, plain) = (folder.path("fleet"), folder.path("plain"));
    let recording = argument(files::fixture("training.pcapng"));
    let args = ["export", "partitions", "--host=a/b", "-o", &fleet];
    let capture = capture();
    let both = [&args[..], &[&capture, &recording]].concat();
    for force in [&[][..], &["--force"]] {
        let out = nvcap(&[&both[..], force].concat());
        let said = text(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{said}");
        assert!(
            said.contains("nothing in it tells when it was made"),
            "{said}"
        );
        assert!(said.contains("00000.parquet"), "{said}");
    }
    nvcap(&["export", "parquet", &recording, "-o", &plain]);
    let tables = fs::read_dir(&fleet).unwrap().map(|e| e.unwrap().path());
    let mut names = Vec::new();
    for table in tables {
        let name = table.file_name().unwrap().to_string_lossy().into_owned();
        let file = table.join("date=2023-11-14/hour=22/host=a_b/1700000000000000000-00000.parquet");
        let mode = fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
        let same = fs::read(format!("{plain}/{name}.parquet")).unwrap();
        assert!(fs::read(&file).unwrap() == same, "{name}");
        names.push(name);
    }
    names.sort();
    let all = [
        "channels",
        "faults",
        "kernels",
        "ledger",
        "losses",
        "operations",
        "samples",
        "slices",
        "submissions",
    ];
    assert_eq!(names, all);
}
