//! Several launches or copies in one ring entry: how many they are is known beforehand, and none of them shows the time of all as its own.

use std::collections::HashMap;
use std::io;

use crate::common::events::{Written, context, copy, head, launch};
use crate::common::files;
use crate::common::schema::Schema;
use nvcap_decode::decode::event::{
    Body, Context, DurationBy, Event, GpuDuration, GpuTime, LaunchKind, Operation,
};
use nvcap_decode::driver::Model;
use nvcap_decode::ledger::Ledger;
use nvcap_decode::record::Record;
use nvcap_show::output::filter::Filter;
use nvcap_show::output::gpu_time::TimeReport;
use nvcap_show::output::stats::{By, Form, Stats};
use nvcap_show::output::text::{Text, TextOptions};
use nvcap_show::output::{Detail, Sink, json};
use nvcap_show::pipeline::{Pipeline, PipelineOptions};
use serde_json::Value;

/// Counts the timed operations of each entry, and keeps what the times say of them.
#[derive(Default)]
struct Works {
    found: HashMap<(u64, u32), u32>,
    told: HashMap<(u64, u32), u32>,
}

impl Sink for Works {
    fn detail(&self) -> Option<Detail> {
        Some(Detail::Operations)
    }

    fn event(&mut self, event: &Event<'_>) -> io::Result<()> {
        let Body::Operation(op) = &event.body else {
            return Ok(());
        };
        let is_timed = match op {
            Operation::Launch(l) => l.replay.is_none() && l.kind != LaunchKind::Companion,
            Operation::Graph(_) => true,
            Operation::Copy(copy) => copy.dst.is_some(),
            _ => false,
        };
        if is_timed {
            let at = (event.context.serial, event.entry);
            *self.found.entry(at).or_default() += 1;
            let time = event.context.gpu_time_of(event.entry).expect("asked for");
            self.told.insert(at, time.works);
        }
        Ok(())
    }

    fn record(&mut self, _: &Record, _: &Model) -> io::Result<()> {
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn finish(&mut self, _: &Ledger, _: &Model) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn how_many_works_an_entry_has_is_what_is_decoded() {
    let mut several = 0;
    for name in [
        "h200-mixed.orc.xz",
        "h200-graphs.orc.xz",
        "h200-graphs-cupti.orc.xz",
    ] {
        let Some(path) = files::capture(name) else {
            continue;
        };
        let file = nvcap_recording::file::packed::open(&path).expect("it opens");
        let mut works = Works::default();
        let mut pipeline =
            Pipeline::new(PipelineOptions::default(), vec![Box::new(&mut works)]).with_gpu_time();
        for record in nvcap_recording::file::orc::Orc::new(file) {
            pipeline.record(record.expect("whole")).expect("taken");
        }
        pipeline.finish().expect("taken");
        assert!(works.found.len() > 100, "{name}");
        let wrong: Vec<_> = { works.found.iter() }
            .map(|(at, found)| (at, *found, works.told[at]))
            .filter(|(_, found, told)| found != told)
            .collect();
        assert!(wrong.is_empty(), "{name}: {wrong:?}");
        several += works.found.values().filter(|n| **n > 1).count();
    }
    println!("{several} entries have several");
}

/// A submission of one entry that worked for 30 us, with these operations, as JSON and text.
fn shown(works: u32, operations: &[Operation]) -> (Vec<Value>, String) {
    shown_of(&timed(works), operations)
}

fn shown_of(context: &Context, operations: &[Operation]) -> (Vec<Value>, String) {
    let (objects, lines) = (Written::default(), Written::default());
    let mut json = json::Json::new(objects.output(), json::JsonOptions::default());
    let mut text = Text::new(lines.output(), TextOptions::default());
    let bodies = [head()]
        .into_iter()
        .chain(operations.iter().map(Body::Operation));
    for body in bodies {
        let event = Event {
            context,
            entry: 0,
            body,
        };
        json.event(&event).unwrap();
        text.event(&event).unwrap();
    }
    json.flush().unwrap();
    text.flush().unwrap();
    let schema = Schema::of_output();
    let objects = objects.text();
    let read = |line| serde_json::from_str(line).unwrap();
    let objects: Vec<Value> = objects.lines().map(read).collect();
    for object in &objects {
        assert!(schema.check(object).is_ok(), "{}", schema.explain(object));
    }
    (objects, lines.text())
}

fn timed(works: u32) -> Context {
    timed_within(works, 300)
}

fn timed_within(works: u32, error_ns: u64) -> Context {
    let time = GpuTime {
        duration: Some(GpuDuration {
            ns: 30_000,
            error_ns,
            by: DurationBy::NextStamp,
        }),
        works,
        ..GpuTime::default()
    };
    let mut context = context(7);
    context.gpu_time = Some([time].into());
    context
}

#[test]
fn the_time_of_several_is_counted_once() {
    let (objects, text) = shown(2, &[launch(), copy()]);
    let sum = |kind: &str, member: &str| -> Option<u64> {
        let of = objects.iter().filter(|o| o["type"] == kind);
        of.map(|o| o[member].as_u64()).sum()
    };
    assert_eq!(sum("submission", "gpu_ns"), Some(30_000));
    assert_eq!(sum("operation", "gpu_ns"), None, "both null");
    assert_eq!(sum("operation", "gpu_works"), Some(4));
    for o in objects.iter().filter(|o| o["type"] == "operation") {
        assert!(o["gpu_ns"].is_null() && o.get("gpu_ns_by").is_none(), "{o}");
        assert_eq!(o["gpu_works_ns"], 30_000, "{o}");
    }
    assert_eq!(text.matches("30.0 us*  ").count(), 2, "{text}");

    let (objects, text) = shown(1, &[launch()]);
    let own = objects.last().unwrap();
    assert_eq!(
        (&own["gpu_ns"], own.get("gpu_works")),
        (&30_000.into(), None)
    );
    assert!(text.contains("30.0 us  ") && !text.contains('*'), "{text}");
}

#[test]
fn an_error_that_shows_stands_behind_the_time() {
    let text_of = |error_ns| shown_of(&timed_within(1, error_ns), &[launch(), launch()]).1;
    // Three digits are shown: 300 ns of 30.0 us are the last of them.
    assert!(!text_of(300).contains("+-"));
    let text = text_of(2_000);
    assert_eq!(text.matches("30.0 us +-2.00 us  ").count(), 2, "{text}");
}

#[test]
fn a_filter_finds_no_time_of_one_of_several() {
    let launch = launch();
    for (works, body, is) in [
        (1, Body::Operation(&launch), true),
        (2, Body::Operation(&launch), false),
        (2, head(), true),
    ] {
        let filter = Filter::parse("gpu_ns>=30us").unwrap();
        let context = timed(works);
        let event = Event {
            context: &context,
            entry: 0,
            body,
        };
        assert_eq!(filter.matches(&event), is, "{works}");
    }
}

/// A duration whose end was hardly seen is counted nowhere, and text shows no more of it than the longest that it can be.
#[test]
fn stats_and_time_count_the_same_durations() {
    let (sums, times) = (Written::default(), Written::default());
    let stats = Stats::new(sums.output(), Form::Json, Detail::Operations, false);
    let mut sinks: [Box<dyn Sink>; 2] = [
        Box::new(stats.with_profile(None)),
        Box::new(TimeReport::new(times.output(), true, false)),
    ];
    let by = Written::default();
    let table = Stats::new(by.output(), Form::Json, Detail::Operations, false);
    let mut table = table.with_profile(Some(By::Thread));
    let launch = launch();
    for (serial, error_ns) in (0..).zip([300, 300, 400_000]) {
        let context = Context {
            serial,
            ..timed_within(1, error_ns)
        };
        for body in [head(), Body::Operation(&launch)] {
            let event = Event {
                context: &context,
                entry: 0,
                body,
            };
            table.event(&event).unwrap();
            for sink in &mut sinks {
                sink.event(&event).unwrap();
            }
        }
    }
    let (ledger, model) = (Ledger::new(), Model::default());
    table.finish(&ledger, &model).unwrap();
    for sink in &mut sinks {
        sink.finish(&ledger, &model).unwrap();
    }
    let read = |of: &Written, kind: &str| -> Value {
        let text = of.text();
        let mut all = text.lines().map(|l| serde_json::from_str(l).unwrap());
        all.find(|o: &Value| o["type"] == kind).expect(kind)
    };
    let stats = read(&sums, "stats");
    let counts = stats["histograms"]["gpu_ns"].as_array().unwrap().iter();
    let counted: u64 = counts.map(|bucket| bucket["count"].as_u64().unwrap()).sum();
    let time = read(&times, "gpu_time");
    assert_eq!((counted, &time["durations"]), (2, &2.into()));
    assert_eq!(time["entries"], 3);
    let by = read(&by, "stats")["by"]["rows"].clone();
    assert_eq!(by[0]["gpu"]["timed"], 2, "{by}");

    let (objects, text) = shown_of(&timed_within(1, 400_000), &[launch]);
    assert!(text.contains("<430 us  "), "{text}");
    let own = objects.last().unwrap();
    assert_eq!(
        (&own["gpu_ns"], &own["gpu_ns_error"]),
        (&30_000.into(), &400_000.into())
    );
}
