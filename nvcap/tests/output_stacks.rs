//! Events with a stack, in JSON and text.
#![cfg(feature = "output")]

mod common;

use std::sync::Arc;

use common::schema::Schema;
use common::{Written, context, launch};
use nvcap::decode::event::{Body, Context, Event};
use nvcap::driver::Model;
use nvcap::ledger::Ledger;
use nvcap::output::text::{Text, TextOptions};
use nvcap::output::{Sink, json};
use nvcap::record::{At, Calls, Frame, Loss, Lost, Record, Stack, StackEnd};
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
    assert_eq!(ledger_object["stacks"]["lost"], 3);
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
