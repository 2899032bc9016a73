//! Names that a hostile program has chosen, in every place of a recording that has one: nothing that is shown or written of them acts on a
//! terminal, begins a line, ends a script or is a mark-up.

use std::fs;
use std::path::Path;

use nvcap_decode::record::{Container, Identity, Life, Pod, Process, Record};
use nvcap_recording::recording::TraceInfo;

use crate::cli_shares;
use crate::common::cli::{Folder, nvcap, text};
use crate::common::job::{self, BEGIN};

const EVIL: &str = "</script><img src=x onerror=alert(1)>\u{1b}[2J\u{7}\nEVIL\r\u{202e}\u{9b}1m\u{2028}\u{200b}\"'&";

fn identity() -> Identity {
    let evil = || Some(EVIL.to_owned());
    Identity {
        comm: EVIL.to_owned(),
        inner_pid: None,
        uid: Some(1),
        user: evil(),
        cgroup: evil(),
        container: Some(Container {
            id: EVIL.to_owned(),
            runtime: evil(),
            name: evil(),
        }),
        pod: Some(Pod {
            uid: EVIL.to_owned(),
            qos: evil(),
            name: evil(),
            namespace: evil(),
        }),
        gpus: Vec::new(),
    }
}

/// A job of two ranks and shares of two GPUs, with this name everywhere.
fn records() -> Vec<Record> {
    let job = job::run(3, &[2, 3]);
    let mut records = job.records.concat();
    let mut executed = Vec::new();
    for record in &mut records {
        match record {
            Record::Process(p) => {
                p.life = Life::Present {
                    name: EVIL.to_owned(),
                };
                executed.push(Record::Process(Process {
                    life: Life::Exec {
                        name: EVIL.to_owned(),
                    },
                    ..p.clone()
                }));
            }
            Record::Submission(s) => s.thread = Some(EVIL.into()),
            Record::Kernel(k) => k.name = format!("{}{EVIL}", k.name),
            _ => {}
        }
    }
    let mut windows = cli_shares::records(2);
    for record in &mut windows {
        if let Record::Switches(window) = record {
            for (_, known) in &mut window.processes {
                *known = Some(identity());
            }
        }
    }
    [executed, records, windows].concat()
}

fn files(of: &Path, all: &mut Vec<(String, Vec<u8>)>) {
    if of.is_dir() {
        for entry in fs::read_dir(of).unwrap() {
            files(&entry.unwrap().path(), all);
        }
    } else {
        all.push((of.display().to_string(), fs::read(of).unwrap()));
    }
}

fn harmless(what: &str, shown: &str) {
    let acts = |c: char| (c.is_control() && c != '\n') || "\u{202e}\u{2028}\u{200b}".contains(c);
    let bad = shown.find(acts).map(|at| &shown[at..]);
    let bad = bad.map(|from| from.chars().take(60).collect::<String>());
    assert_eq!(bad, None, "{what}");
    let forged = shown.lines().find(|line| line.starts_with("EVIL"));
    assert_eq!(forged, None, "{what}");
}

#[test]
fn no_name_acts_on_whoever_reads_it() {
    let folder = Folder::new("names");
    let file = folder.path("run.pcapng");
    let info = TraceInfo {
        program: EVIL.to_owned(),
        driver: Some(EVIL.to_owned()),
        monotonic_ns: BEGIN,
        realtime_ns: 1_700_000_000_000_000_000,
        how: "trap".to_owned(),
        gpu_time: true,
        command: vec![EVIL.to_owned(), EVIL.to_owned()],
        ..TraceInfo::default()
    };
    fs::write(&file, job::recorded(&records(), 1, info)).unwrap();
    let mut shown = 0;
    for line in [
        "decode",
        "decode -v",
        "decode --json",
        "stats",
        "stats --json",
        "time",
        "time --json",
        "share",
        "share --json",
        "ranks",
        "ranks --json",
        "channels",
        "channels --json",
        "dump",
        "stacks",
    ] {
        let args: Vec<&str> = line.split(' ').chain([file.as_str()]).collect();
        let out = nvcap(&args);
        for part in [text(&out.stdout), text(&out.stderr)] {
            shown += usize::from(part.contains("onerror"));
            harmless(line, &part);
        }
    }
    assert!(shown > 8, "{shown} of the commands show the name");
    for (line, name) in [
        ("export csv", "csv"),
        ("export kineto", "trace.json"),
        ("report", "page.html"),
    ] {
        let path = folder.path(name);
        let args: Vec<&str> = line
            .split(' ')
            .chain([file.as_str(), "-o", &path])
            .collect();
        let out = nvcap(&args);
        harmless(line, &text(&out.stderr));
        let mut written = Vec::new();
        files(Path::new(&path), &mut written);
        assert!(!written.is_empty(), "{line}: {}", text(&out.stderr));
        let all: Vec<String> = { written.iter() }
            .map(|(_, bytes)| String::from_utf8(bytes.clone()).unwrap())
            .collect();
        assert!(all.iter().any(|text| text.contains("onerror")), "{line}");
        for ((name, _), text) in written.iter().zip(&all) {
            match line {
                "report" => assert!(
                    !text.contains("</script><img") && !text.contains("<img src=x"),
                    "{name}"
                ),
                _ => harmless(name, text),
            }
        }
    }
}
