//! Events with a stack, in JSON and text.

use std::sync::Arc;

use crate::common::events::{Written, context, launch};
use crate::common::schema::Schema;
use nvcap_decode::decode::event::{Body, Context, Event};
use nvcap_decode::driver::Model;
use nvcap_decode::ledger::Ledger;
use nvcap_decode::record::{At, Calls, Frame, Loss, Lost, Record, Stack, StackEnd};
use nvcap_show::output::filter::Filter;
use nvcap_show::output::text::{Text, TextOptions};
use nvcap_show::output::{Sink, json};
use serde_json::Value;

fn calls() -> Arc<Calls> {
    let native = Frame {
        module: "/usr/lib/libcuda.so.1".into(),
        symbol: Some("cuLaunchKernel".into()),
        offset: Some(0x4a),
        address: 0x2f_1b4a,
        ..Frame::default()
    };
    let inlined = Frame {
        symbol: Some("step<float>".into()),
        file: Some("a.cu".into()),
        line: Some(7),
        inlined: true,
        ..native.clone()
    };
    let python = Frame {
        symbol: Some("train".into()),
        file: Some("/data/a/train.py".into()),
        line: Some(12),
        python: true,
        ..Frame::default()
    };
    Arc::new(Calls {
        frames: vec![native, inlined, python, Frame::default()],
        api: Some("cuLaunchKernel".into()),
        end: StackEnd::NoFile,
    })
}

/// Two operations of one submission with a stack, and one of a submission without.
fn show(sink: &mut dyn Sink) {
    let with = Context {
        stack: Some(calls()),
        ..context(0)
    };
    let without = context(1);
    let operation = launch();
    for context in [&with, &with, &without] {
        let body = Body::Operation(&operation);
        sink.event(&Event {
            context,
            entry: 0,
            body,
        })
        .unwrap();
    }
}

/// The object of a ledger, which the schema allows.
fn json_of(ledger: &Ledger) -> Value {
    let written = Written::default();
    let mut sink = json::Json::new(written.output(), json::JsonOptions::default());
    sink.finish(ledger, &Model::default()).unwrap();
    let object: Value = serde_json::from_str(written.text().trim()).unwrap();
    Schema::of_output().check(&object).unwrap();
    object
}

/// The lines of a ledger.
fn text_of(ledger: &Ledger) -> String {
    let written = Written::default();
    let mut sink = Text::new(written.output(), TextOptions::default());
    sink.finish(ledger, &Model::default()).unwrap();
    written.text()
}

#[test]
fn the_first_object_of_a_submission_has_the_stack() {
    let schema = Schema::of_output();
    let written = Written::default();
    let mut sink = json::Json::new(written.output(), json::JsonOptions::default());
    show(&mut sink);
    let mut ledger = Ledger::new();
    ledger.record(&Record::Stack(Stack {
        at: At::default(),
        calls: calls(),
    }));
    let loss = Record::Loss(Loss {
        at: At::default(),
        channel: None,
        what: Lost::Stacks { count: 3 },
    });
    ledger.record(&loss);
    sink.record(&loss, &Model::default()).unwrap();
    sink.finish(&ledger, &Model::default()).unwrap();
    let text = written.text();
    let objects: Vec<Value> = text
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    for object in &objects {
        schema.check(object).unwrap();
    }
    assert_eq!(objects[0]["stack"].as_array().unwrap().len(), 4);
    assert_eq!(objects[0]["stack"][2]["python"], true);
    assert_eq!(objects[0]["stack_end"], "no_file");
    assert_eq!(
        (&objects[0]["api"], &objects[1]["api"]),
        (&"cuLaunchKernel".into(), &"cuLaunchKernel".into())
    );
    assert!(objects[1].get("stack").is_none() && objects[2].get("api").is_none());
    let ledger_object = objects.last().unwrap();
    let stacks = |taken, lost, every, passed| serde_json::json!({"taken": taken, "lost": lost, "every": every, "passed": passed, "left_out": []});
    assert_eq!(ledger_object["stacks"], stacks(1, 3, 1, 0));
    // A lost stack takes nothing else with it.
    assert!(ledger.is_complete() && ledger_object["complete"] == true);
}

#[test]
fn text_has_the_frames_below_the_first_line() {
    let written = Written::default();
    let mut sink = Text::new(written.output(), TextOptions::default());
    show(&mut sink);
    sink.flush().unwrap();
    let text = written.text();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines[1..5],
        [
            " > libcuda.so.1(cuLaunchKernel+0x4a) [0x2f1b4a]",
            " > libcuda.so.1(step<float>+0x4a) [inlined] a.cu:7",
            " > python(train) /data/a/train.py:12",
            " > no file [0x0]",
        ]
    );
    let frames = lines.iter().filter(|l| l.starts_with(" > ")).count();
    assert_eq!((lines.len(), frames), (7, 4));
}

#[test]
fn a_sample_is_told_as_one_and_nothing_is_lost() {
    let mut ledger = Ledger::new();
    ledger.record(&Record::Stack(Stack {
        at: At::default(),
        calls: calls(),
    }));
    ledger.add_stack_sample(10, 8);
    assert!(ledger.is_complete());
    let object = json_of(&ledger);
    let stacks =
        serde_json::json!({"taken": 1, "lost": 0, "every": 10, "passed": 8, "left_out": []});
    assert_eq!(
        (&object["stacks"], &object["complete"]),
        (&stacks, &true.into())
    );
    let text = text_of(&ledger);
    assert!(
        text.contains("1 stack taken: a sample, of one in 10 doorbells (8 passed over)"),
        "{text}"
    );
    assert!(!text.contains("lost"), "{text}");
}

/// Parts that bounds leave out of stacks are counted by reason; no submission is missing for them.
#[test]
fn what_stacks_lack_is_counted_and_submissions_are_complete() {
    let mut ledger = Ledger::new();
    for (what, count) in [("symbols", 2), ("files", 1), ("symbols", 3), ("none", 0)] {
        ledger.add_left_out_of_stacks(what, count);
    }
    assert!(ledger.is_complete());
    let object = json_of(&ledger);
    assert_eq!(
        (&object["stacks"]["left_out"], &object["complete"]),
        (
            &serde_json::json!([{"what": "files", "count": 1}, {"what": "symbols", "count": 5}]),
            &true.into()
        )
    );
    let text = text_of(&ledger);
    for line in ["files (1)", "symbols (5)"] {
        let line = format!(
            "stacks lack names or callers (no submission is missing for that): not read: {line}\n"
        );
        assert!(text.contains(&line), "{text}");
    }
    assert!(text.contains("complete: 0 submissions"), "{text}");
    // Reasons come from a recording, too: their number is bounded.
    for n in 0..1000 {
        ledger.add_left_out_of_stacks(&n.to_string(), u64::MAX);
    }
    assert!(ledger.left_out_of_stacks().count() <= 65);
}

#[test]
fn filters_compare_the_api_and_any_frame() {
    let operation = launch();
    let with = Context {
        stack: Some(calls()),
        ..context(0)
    };
    let without = context(1);
    for (expression, shown) in [
        ("api == \"cuLaunchKernel\"", true),
        ("api=cuMemcpyAsync", false),
        ("api~cuLaunch*", true),
        ("api!=cuLaunchKernel", false),
        ("frame=train", true),
        ("frame=trai", false),
        ("frame~\"*<float>*\"", true),
        ("frame=cuMemcpyAsync,train", true),
        ("frame~*train.py*", false),
        ("frame!=train", false),
        ("frame!~*gemm*", true),
        ("frame=\"[no file]\"", true),
        ("frame=copy", false),
    ] {
        let filter = Filter::parse(expression).unwrap_or_else(|e| panic!("{e}"));
        let matches = |context| {
            let body = Body::Operation(&operation);
            filter.matches(&Event {
                context,
                entry: 0,
                body,
            })
        };
        assert_eq!(matches(&with), shown, "{expression}");
        // Without a stack nothing is true of it.
        assert!(!matches(&without), "{expression}");
        assert!(filter.of_stack().is_some() && !filter.asks_for_kind());
    }
    assert_eq!(Filter::parse("op=launch").unwrap().of_stack(), None);
}
