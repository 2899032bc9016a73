//! The order of times in what is shown, and times that are not known.

use crate::common::events;
use crate::common::events::{Written, context, launch};
use crate::common::schema::Schema;
use nvcap_decode::decode::encode::Pushbuffer;
use nvcap_decode::decode::event::{Body, Context, Event};
use nvcap_decode::driver::Model;
use nvcap_decode::record::{At, ChannelId, How, Life, Loss, Lost, Process, Record, Submission};
use nvcap_decode::wire::GpuVa;
use nvcap_show::output::stats::{Form, Stats};
use nvcap_show::output::text::{Clock, Text};
use nvcap_show::output::{Detail, Sink, filter::Filter, json, text};
use nvcap_show::pipeline::WINDOW_NS;
use nvcap_show::pipeline::{Pipeline, PipelineOptions};
use serde_json::Value;

const PID: u32 = 70;

fn at(time_ns: u64) -> At {
    At {
        time_ns,
        pid: PID,
        tid: PID,
    }
}

/// A submission of one semaphore release: one line.
fn submission(time_ns: u64, channel: u32, position: u64) -> Record {
    let mut p = Pushbuffer::new();
    p.release(1, 0xcbc0, GpuVa(0x3000), position as u32)
        .expect("compute");
    Record::Submission(Submission {
        absent_ns: None,
        at: at(time_ns),
        channel: ChannelId(channel),
        token: Some(channel),
        position,
        gp_get: None,
        prev_put: position as u32,
        gp_put: position as u32 + 1,
        ip: None,
        doorbell: None,
        how: How::Trapped,
        late: false,
        thread: None,
        segments: vec![p.segment(GpuVa(0x1000))],
    })
}

/// Both outputs of a pipeline that orders by time; between records it takes what has come (`false`), or has nothing to do
/// (`true`).
fn shown(records: &[(Record, bool)]) -> (String, Vec<Value>) {
    let (lines, objects) = (Written::default(), Written::default());
    let clock = Clock::Monotonic;
    let options = text::TextOptions {
        clock,
        verbose: true,
        ..text::TextOptions::default()
    };
    let sinks: Vec<Box<dyn Sink>> = vec![
        Box::new(Text::new(lines.output(), options)),
        Box::new(json::Json::new(
            objects.output(),
            json::JsonOptions::default(),
        )),
    ];
    let mut pipeline = Pipeline::new(PipelineOptions::default(), sinks).in_time_order();
    for (record, idle) in records {
        pipeline.record(record.clone()).unwrap();
        if *idle {
            pipeline.flush().unwrap();
        }
    }
    let ledger = pipeline.finish().unwrap();
    assert!(ledger.is_complete(), "order within a channel is the ring's");
    let schema = Schema::of_output();
    let objects: Vec<Value> = objects
        .text()
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    for object in &objects {
        assert!(schema.check(object).is_ok(), "{}", schema.explain(object));
    }
    (lines.text(), objects)
}

/// Times and marks of the operations.
fn marked(objects: &[Value]) -> Vec<(u64, bool)> {
    let operations = objects.iter().filter(|o| o["type"] == "operation");
    operations
        .map(|o| (o["time_ns"].as_u64().unwrap(), o["out_of_order"] == true))
        .collect()
}

/// The times of lines, each with its mark.
fn times(lines: &str) -> Vec<&str> {
    let shown = lines.lines().filter(|l| l.contains("semaphore"));
    shown.map(|l| l[..12].trim_start()).collect()
}

const S: u64 = 1_000_000_000;

#[test]
fn lines_of_several_channels_come_by_time() {
    let came = [
        (submission(S + 40_000, 0, 0), false),
        (submission(S + 2_000, 1, 0), false),
        (submission(S + 41_000, 1, 1), false),
        (submission(S + 90_000_000, 2, 0), false),
        (submission(S + 30_000, 3, 0), false),
    ];
    let (lines, objects) = shown(&came);
    let expected = [
        S + 2_000,
        S + 30_000,
        S + 40_000,
        S + 41_000,
        S + 90_000_000,
    ];
    assert_eq!(marked(&objects), expected.map(|t| (t, false)));
    assert!(!lines.contains('<'), "{lines}");
}

#[test]
fn what_comes_behind_the_window_is_shown_and_marked() {
    let came = [
        (submission(S, 0, 0), false),
        (submission(S + WINDOW_NS + 5_000, 0, 1), false),
        // The first has left by now, and this is older.
        (submission(S - 7, 1, 0), false),
        (submission(S + WINDOW_NS + 6_000, 1, 1), false),
    ];
    let (lines, objects) = shown(&came);
    let expected = [
        (S, false),
        (S - 7, true),
        (S + WINDOW_NS + 5_000, false),
        (S + WINDOW_NS + 6_000, false),
    ];
    assert_eq!(marked(&objects), expected);
    let expected = ["1.000000 ", "0.999999<", "1.100005 ", "1.100006 "];
    assert_eq!(times(&lines), expected);
}

#[test]
fn a_quiet_moment_shows_what_waits() {
    let came = [(submission(S + 9, 0, 0), true), (submission(S, 1, 0), true)];
    let (_, objects) = shown(&came);
    assert_eq!(marked(&objects), [(S + 9, false), (S, true)]);
}

#[test]
fn a_channel_s_order_is_its_ring_s_whatever_the_times_say() {
    let came = [
        (submission(S + 9, 0, 0), false),
        (submission(S, 0, 1), false),
        (submission(S + 5, 1, 0), false),
    ];
    let (_, objects) = shown(&came);
    assert_eq!(
        marked(&objects),
        [(S + 5, false), (S + 9, false), (S, true)]
    );
}

#[test]
fn submissions_are_shown_before_their_process_s_end() {
    let exit = Record::Process(Process {
        at: at(S),
        life: Life::Exit { process: true },
    });
    let came = [(submission(S + 9, 0, 0), false), (exit, false)];
    let (lines, objects) = shown(&came);
    let types: Vec<&str> = objects.iter().filter_map(|o| o["type"].as_str()).collect();
    let (operation, end) = ("operation", "process");
    let place = |t: &str| types.iter().position(|o| *o == t).unwrap();
    assert!(place(operation) < place(end), "{types:?}");
    assert!(lines.contains("1.000000< pid 70 exited"), "{lines}");
}

#[test]
fn relative_times_are_of_the_trace_whatever_is_shown_of_it() {
    let exec = Record::Process(Process {
        at: at(S),
        life: Life::Thread { child: PID + 1 },
    });
    for verbose in [false, true] {
        let lines = Written::default();
        let options = text::TextOptions {
            verbose,
            ..text::TextOptions::default()
        };
        let mut sink = Text::new(lines.output(), options);
        sink.record(&exec, &Model::default()).unwrap();
        let (operation, mut context) = (launch(), context(0));
        context.at.time_ns = S + 1_234_567;
        let (context, body) = (&context, Body::Operation(&operation));
        sink.event(&Event {
            context,
            entry: 0,
            body,
        })
        .unwrap();
        sink.flush().unwrap();
        let text = lines.text();
        let shown = text.lines().find(|l| l.contains("launch")).unwrap();
        assert!(shown.starts_with("   0.001234  "), "{text}");
    }
}

/// An event of unknown time and process.
fn nobody() -> Context {
    Context {
        at: At::default(),
        ..context(0)
    }
}

#[test]
fn a_time_that_is_not_known_is_not_made_up() {
    let operation = launch();
    let (nobody, known) = (nobody(), context(1));
    for clock in [Clock::Relative, Clock::Monotonic, Clock::Delta] {
        let lines = Written::default();
        let options = text::TextOptions {
            clock,
            verbose: true,
            ..text::TextOptions::default()
        };
        let mut sink = Text::new(lines.output(), options);
        for context in [&nobody, &known, &nobody, &known] {
            let body = Body::Operation(&operation);
            sink.event(&Event {
                context,
                entry: 0,
                body,
            })
            .unwrap();
        }
        let loss = Record::Loss(Loss {
            at: At::default(),
            channel: None,
            what: Lost::UnknownChannel {
                token: None,
                count: 1,
            },
        });
        sink.record(&loss, &Model::default()).unwrap();
        sink.flush().unwrap();
        let text = lines.text();
        let all: Vec<&str> = text.lines().collect();
        for i in [0, 2] {
            assert!(all[i].starts_with("          ?  py\"thon/? "), "{}", all[i]);
        }
        assert!(!all[1].starts_with("          ?"), "{text}");
        assert!(
            all[4].starts_with("          ?  LOST 1 doorbell of token ?"),
            "{text}"
        );
        assert!(!text.contains('<'), "{text}");
    }
    let objects = Written::default();
    let mut sink = json::Json::new(objects.output(), json::JsonOptions::default());
    let body = Body::Operation(&operation);
    let context = &nobody;
    sink.event(&Event {
        context,
        entry: 0,
        body,
    })
    .unwrap();
    sink.flush().unwrap();
    let object: Value = serde_json::from_str(&objects.text()).unwrap();
    for member in ["time_ns", "pid", "tid"] {
        assert_eq!(object.get(member), Some(&Value::Null), "{object}");
    }
}

#[test]
fn statistics_without_times_have_no_rate() {
    let written = Written::default();
    let form = Form::Text { color: false };
    let mut sink = Stats::new(written.output(), form, Detail::Operations, true);
    let context = nobody();
    sink.event(&Event {
        context: &context,
        entry: 0,
        body: events::head(),
    })
    .unwrap();
    sink.finish(&nvcap_decode::ledger::Ledger::new(), &Model::default())
        .unwrap();
    let text = written.text();
    assert!(text.contains("total in ? s, ? B/s"), "{text}");
    assert!(text.contains(" gr     ?\n"), "the process: {text}");
}

#[test]
fn a_filter_compares_nothing_with_what_is_not_known() {
    let operation = launch();
    let (nobody, known) = (nobody(), context(1));
    for expression in [
        "pid<5000",
        "tid<5000",
        "time_ns<2000000000",
        "pid=0",
        "pid!=1",
    ] {
        let filter = Filter::parse(expression).unwrap();
        let matches = |context| {
            let body = Body::Operation(&operation);
            filter.matches(&Event {
                context,
                entry: 0,
                body,
            })
        };
        assert!(!matches(&nobody), "{expression}");
        assert_eq!(matches(&known), expression != "pid=0", "{expression}");
    }
}
