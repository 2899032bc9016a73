//! Output of `nvcap ioctls`, `channels` and `maps`, held against the schemas in docs/, with the forms of what is not
//! known: `?` in text, null in JSON, 0 where it is a real zero.

use std::io::Write;
use std::sync::{Arc, Mutex};

use crate::common::cli::{argument, nvcap, text};
use crate::common::files::{capture, fixture};
use crate::common::schema::Schema;
use nvcap_decode::record::RecordKind;
use nvcap_decode::record::{At, Device, Ioctl, Life, Loss, Lost, Process, Record};
use nvcap_show::output::ioctls::{IoctlOptions, Ioctls};
use nvcap_show::output::writer::Output;
use nvcap_show::pipeline::{Pipeline, PipelineOptions};
use serde_json::Value;

/// The logs that are there: a part, and the whole of an H200.
fn logs() -> Vec<String> {
    let whole = capture("h200-ioctl.log.gz");
    let all = [Some(fixture("h200-ioctl-part.log.gz")), whole];
    all.into_iter().flatten().map(argument).collect()
}

fn of_log(command: &str, more: &[&str], log: &str) -> String {
    let mut args = vec![command];
    args.extend(more);
    args.extend(["--from", "ioctl-log", log]);
    let out = nvcap(&args);
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    text(&out.stdout)
}

fn objects(lines: &str) -> Vec<Value> {
    let all = lines.lines().map(serde_json::from_str);
    all.collect::<Result<_, _>>().unwrap()
}

#[test]
fn ioctls_in_json_fit_their_schema() {
    let schema = Schema::of("ioctls");
    for log in logs() {
        for more in [&["--json"][..], &["--json", "-vv"]] {
            let all = objects(&of_log("ioctls", more, &log));
            assert!(all.len() > 300);
            for object in &all {
                if schema.check(object).is_err() {
                    panic!("{object}\n{}", schema.explain(object));
                }
            }
        }
    }
    // A number where null is meant, and a member that nobody has described, do not fit.
    let log = &logs()[0];
    let object = objects(&of_log("ioctls", &["--json"], log)).remove(0);
    for (member, value) in [("pid", 0), ("time_ns", 0), ("surprise", 1)] {
        let mut wrong = object.clone();
        wrong[member] = value.into();
        assert!(schema.check(&wrong).is_err(), "{member}");
    }
}

#[test]
fn channels_and_maps_in_json_fit_their_schemas() {
    for log in logs() {
        for command in ["channels", "maps"] {
            let schema = Schema::of(command);
            let whole: Value = serde_json::from_str(&of_log(command, &["--json"], &log)).unwrap();
            assert!(whole.as_array().unwrap().len() >= 8);
            schema
                .check(&whole)
                .unwrap_or_else(|e| panic!("{command}: {e}"));
            let mut wrong = whole.clone();
            wrong[0]["pid"] = 0.into();
            assert!(schema.check(&wrong).is_err());
        }
    }
}

#[test]
fn a_log_has_no_times_and_no_processes_and_none_are_made_up() {
    let log = &logs()[0];
    for (n, line) in of_log("ioctls", &[], log).lines().enumerate() {
        let mut columns = line.split_whitespace();
        let number = format!("#{}", n + 1);
        assert_eq!(columns.next(), Some(number.as_str()), "{line}");
        assert_eq!(columns.next(), Some("?"), "{line}");
    }
    for object in objects(&of_log("ioctls", &["--json"], log)) {
        for member in ["time_ns", "pid", "tid", "token"] {
            assert_eq!(object.get(member), Some(&Value::Null), "{object}");
        }
    }
    let table = of_log("channels", &[], log);
    let row = table.lines().find(|l| l.starts_with("  0x0000a ")).unwrap();
    let columns: Vec<&str> = row.split_whitespace().collect();
    // A log has the rings and no submissions: GP_GET and GP_PUT are not known, and the GPU's number is 0.
    assert_eq!(columns[1], "0", "{row}");
    assert_eq!(columns[10..12], ["?/?", "?"], "{row}");
    assert!(of_log("maps", &[], log).starts_with("process ?\n"));
}

/// Keeps what is written.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<u8>>>);

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn shown(json: bool, records: &[Record]) -> String {
    let kept = Kept::default();
    let out = Output::to(Box::new(kept.clone()));
    let mut sink = match json {
        true => Ioctls::json(out, IoctlOptions::default()),
        false => Ioctls::text(out, IoctlOptions::default()),
    };
    let mut pipeline = Pipeline::new(PipelineOptions::default(), vec![Box::new(&mut sink)]);
    for record in records {
        pipeline.record(record.clone()).unwrap();
    }
    pipeline.finish().unwrap();
    let bytes = kept.0.lock().unwrap().clone();
    text(&bytes)
}

fn call(time_ns: u64) -> Record {
    Record::Ioctl(Box::new(Ioctl {
        at: At {
            time_ns,
            pid: 7,
            tid: 8,
        },
        end_ns: Some(time_ns + 1500),
        device: Device::Control,
        fd: Some(3),
        file: 0,
        named_file: 0,
        request: 0xc008_46d6,
        result: Some(0),
        input: Default::default(),
        output: Default::default(),
        nested: None,
    }))
}

fn loss(what: Lost) -> Record {
    let (at, channel) = (At::default(), None);
    Record::Loss(Loss { at, channel, what })
}

#[test]
fn losses_are_said_and_fit_the_schema() {
    let why = || "no \u{1b}[31m\u{202e}sight".to_owned();
    let records = [
        call(1000),
        loss(Lost::Records {
            kind: RecordKind::Driver,
            count: 1,
        }),
        loss(Lost::Untraced { why: why() }),
    ];
    let schema = Schema::of("ioctls");
    let objects = objects(&shown(true, &records));
    for object in &objects {
        assert!(schema.check(object).is_ok(), "{}", schema.explain(object));
    }
    assert_eq!(objects[1]["time_ns"], Value::Null);
    assert_eq!(objects[1]["count"], 1);
    assert_eq!(objects[2]["why"], why());
    let lines = shown(false, &records);
    assert!(lines.contains("LOST 1 record (driver): "), "{lines}");
    assert!(lines.contains("UNTRACED: no ?[31m?sight"), "{lines}");
}

#[test]
fn a_call_that_comes_late_is_marked() {
    let records = [
        call(2_000_000_000),
        call(1_000_000_000),
        call(2_000_000_000),
    ];
    let lines = shown(false, &records);
    let starts: Vec<&str> = lines.lines().map(|l| &l[..20]).collect();
    assert_eq!(
        starts,
        [
            "   0.000000000 7:8  ",
            "  -1.000000000<7:8  ",
            "   0.000000000 7:8  "
        ]
    );
    let marks: Vec<bool> = objects(&shown(true, &records))
        .iter()
        .map(|o| o["out_of_order"] == true)
        .collect();
    assert_eq!(marks, [false, true, false]);
}

#[test]
fn an_unreadable_name_is_not_known() {
    let at = At {
        time_ns: 5,
        pid: 7,
        tid: 7,
    };
    let life = Life::Exec {
        name: String::new(),
    };
    let line = shown(false, &[Record::Process(Process { at, life })]);
    assert!(line.ends_with("exec: ?\n"), "{line}");
}
