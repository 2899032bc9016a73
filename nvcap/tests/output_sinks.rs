//! The text and JSON sinks and the filter, on hand-made events.

mod common;

use common::schema::Schema;
use common::{Written, context, launch, operations, with_each};
use nvcap::decode::event::{Body, Context, Event, MethodWrite, Operation};
use nvcap::ledger::Ledger;
use nvcap::output::redact::Redactor;
use nvcap::output::stats::{Form, Stats};
use nvcap::output::style::Color;
use nvcap::output::text::Text;
use nvcap::output::{Detail, Sink, json, text};
use nvcap::record::{
    At, Channel, ChannelId, CpuVa, GpuVa, Life, Loss, Lost, Origin, Process, Record,
};
use serde_json::Value;

fn text_of(options: text::Options) -> Vec<String> {
    let written = Written::default();
    let mut sink = Text::new(written.output(), options);
    with_each(|e| sink.event(&e).unwrap());
    sink.flush().unwrap();
    written.text().lines().map(ToOwned::to_owned).collect()
}

fn json_of(options: json::Options) -> Vec<Value> {
    let written = Written::default();
    let mut sink = json::Json::new(written.output(), options);
    with_each(|e| sink.event(&e).unwrap());
    sink.finish(&Ledger::new()).unwrap();
    written
        .text()
        .lines()
        .map(|l| serde_json::from_str(l).unwrap_or_else(|e| panic!("{e}: {l}")))
        .collect()
}

#[test]
fn one_line_an_operation_with_all_columns() {
    let lines = text_of(text::Options::default());
    assert_eq!(lines.len(), operations().len() + 1, "and the stop");
    for line in &lines {
        assert!(
            line.starts_with("   0.000000000 py\"thon/4711:4712    gpu0 0x0000a gr   [warm up] "),
            "{line}"
        );
    }
    let rest: Vec<&str> = lines
        .iter()
        .map(|l| &l[l.find("] ").unwrap() + 2..])
        .collect();
    assert_eq!(
        rest,
        [
            "launch grid 4096x1x1 block 256x1x1 regs 16 smem 0 prog 0x7f0000001000 (640 B) \
             args 0x7f00a00000,0x7f00c00000,0x100000 qmd 0x201000100 then release 0x204000000 = 5",
            "launch (driver: companion) grid 0x0x0 block 256x1x1 regs 16 smem 0 prog 0x7f0000001000 (640 B) \
             qmd 0x201000100 then release 0x204000000 = 5",
            "copy h2d 1048576 B 0x7f0000200000 (pinned host memory, object 0x5c000019 of 56 MiB) -> 0x7f0000a00000 ce2 linear then release 0x204000010 = 9 timestamp",
            "fill 1048576 B of 0xdeadbeef -> 0x7f0000a00000 ce2 fill",
            "inline h2d 5 B -> 0x7f0000b00000 data 68656c6c6f",
            "semaphore acquire 0x204000020 >= 77 (host)",
            "barrier wfi",
            lines[7].split("] ").nth(1).unwrap(),
            "host yield",
            "stopped in entry 0 at byte 8: the entry ends inside a word, 3 B short",
        ]
    );
    assert!(rest[7].starts_with("bind subchannel 1 class 0xcbc0"));
}

#[test]
fn verbose_adds_methods_and_more_verbose_adds_words() {
    let methods = text_of(text::Options {
        detail: Detail::Methods,
        ..text::Options::default()
    });
    assert!(methods[0].contains("submission 0 position 41 put 41 -> 42, 1 entry, 12 B, get 40"));
    assert!(methods.iter().any(|l| l.contains("c8b5:0300")));
    assert!(!methods.iter().any(|l| l.contains("11111111")));
    let words = text_of(text::Options {
        detail: Detail::Words,
        ..text::Options::default()
    });
    assert!(
        words
            .iter()
            .any(|l| l.contains("entry 0 0x00000c0200800000 at 0x200800000 12 B sync"))
    );
    assert!(
        words
            .iter()
            .any(|l| l.contains("000000 11111111 11111111 11111111"))
    );
}

#[test]
fn colour_is_only_where_it_is_asked_for() {
    let plain = text_of(text::Options::default());
    assert!(!plain.iter().any(|l| l.contains('\x1b')), "not a terminal");
    let colored = text_of(text::Options {
        color: Color::Always,
        ..text::Options::default()
    });
    for line in &colored {
        assert!(line.contains('\x1b'));
        assert!(
            line.rfind("\x1b[0m") >= line.rfind("\x1b[1m"),
            "every colour ends: {line:?}"
        );
    }
    assert!(
        colored[1].starts_with("\x1b[2m"),
        "driver launches are dim as a whole"
    );
}

#[test]
fn quiet_shows_the_ledger_alone() {
    let written = Written::default();
    let mut sink = Text::new(
        written.output(),
        text::Options {
            quiet: true,
            ..text::Options::default()
        },
    );
    assert_eq!(sink.detail(), None);
    with_each(|e| sink.event(&e).unwrap());
    sink.finish(&Ledger::new()).unwrap();
    assert_eq!(
        written.text(),
        "complete: 0 submissions on 0 channels, 0 entries, 0 B, nothing missing\n"
    );
}

#[test]
fn a_loss_is_a_line_of_its_own() {
    let written = Written::default();
    let mut sink = Text::new(written.output(), text::Options::default());
    let loss = Record::Loss(Loss {
        at: At::default(),
        channel: Some(ChannelId(2)),
        what: Lost::Entries {
            position: 17,
            count: 3,
        },
    });
    sink.record(&loss).unwrap();
    sink.flush().unwrap();
    assert!(
        written
            .text()
            .contains("LOST 3 entries of channel 2 from position 17")
    );
}

#[test]
fn every_json_object_has_the_common_members_and_operations_their_own() {
    let objects = json_of(json::Options {
        detail: Detail::Words,
        ..json::Options::default()
    });
    for o in &objects {
        for member in ["type", "time_ns", "pid", "tid", "token"] {
            assert!(o.get(member).is_some(), "{member} in {o}");
        }
    }
    let of = |op: &str| objects.iter().find(|o| o["op"] == op).unwrap();
    let launch = of("launch");
    assert_eq!(launch["grid"], serde_json::json!([4096, 1, 1]));
    assert_eq!(launch["block"], serde_json::json!([256, 1, 1]));
    assert_eq!(launch["args"], "0000a0007f0000000000c0007f00000000001000");
    assert_eq!(launch["kind"], "user");
    assert_eq!(launch["engine"], "gr");
    assert_eq!(launch["phase"], "warm up");
    assert_eq!(launch["thread"], "py\"thon");
    assert_eq!(
        (&launch["token"], &launch["tid"]),
        (&10.into(), &4712.into())
    );
    let copy = of("copy");
    assert_eq!(copy["bytes"], 1 << 20);
    assert_eq!(copy["engine"], "ce2");
    assert_eq!(copy["mode"], "linear");
    assert_eq!(copy["direction"], "h2d");
    let kind = |k: &str| objects.iter().find(|o| o["type"] == k).unwrap();
    assert_eq!(kind("submission")["position"], 41);
    assert_eq!(kind("entry")["raw"], "0x00000c0200800000");
    assert_eq!(kind("entry")["position"], 41);
    assert_eq!(kind("entry")["data"], "11".repeat(12));
    assert_eq!(kind("method")["data"], 0x182);
    assert_eq!(kind("stop")["why"], "cut");
    assert_eq!(objects.last().unwrap()["type"], "ledger");
}

#[test]
fn no_json_object_names_a_member_twice() {
    // A map would hide it: look at the text.
    let written = Written::default();
    let mut sink = json::Json::new(
        written.output(),
        json::Options {
            detail: Detail::Words,
            ..json::Options::default()
        },
    );
    with_each(|e| sink.event(&e).unwrap());
    sink.flush().unwrap();
    for line in written.text().lines() {
        let top = top_level_members(line);
        let mut unique = top.clone();
        unique.sort();
        unique.dedup();
        assert_eq!(unique.len(), top.len(), "{line}");
    }
}

/// Names of the members of a JSON object, duplicates included.
fn top_level_members(line: &str) -> Vec<String> {
    let (mut depth, mut names, mut chars) = (0, Vec::new(), line.chars().peekable());
    while let Some(c) = chars.next() {
        match c {
            '{' | '[' => depth += 1,
            '}' | ']' => depth -= 1,
            '"' => {
                let mut name = String::new();
                while let Some(c) = chars.next() {
                    match c {
                        '\\' => {
                            chars.next();
                        }
                        '"' => break,
                        c => name.push(c),
                    }
                }
                if depth == 1 && chars.peek() == Some(&':') {
                    names.push(name);
                }
            }
            _ => {}
        }
    }
    names
}

#[test]
fn redaction_leaves_no_user_data() {
    let redact = Some(Redactor::default());
    let objects = json_of(json::Options {
        detail: Detail::Words,
        redact: redact.clone(),
        ..json::Options::default()
    });
    let all = objects.iter().map(ToString::to_string).collect::<String>();
    let lines = text_of(text::Options {
        detail: Detail::Words,
        redact,
        ..text::Options::default()
    })
    .join("\n");
    for (form, out) in [("json", &all), ("text", &lines)] {
        for secret in [
            "68656c6c6f",
            "7f00a00000",
            "0000a0007f",
            "deadbeef",
            "3735928559",
            "11111111",
        ] {
            assert!(!out.contains(secret), "{secret} in {form}: {out}");
        }
    }
    let launch = objects.iter().find(|o| o["op"] == "launch").unwrap();
    assert_eq!(launch["args"]["redacted_bytes"], 20);
    assert_eq!(launch["args"]["hash"].as_str().unwrap().len(), 8);
    assert_eq!(
        launch["grid"],
        serde_json::json!([4096, 1, 1]),
        "geometry stays"
    );
}

#[test]
fn statistics_add_up() {
    let written = Written::default();
    let mut sink = Stats::new(written.output(), Form::Json, Detail::Methods, true);
    with_each(|e| sink.event(&e).unwrap());
    with_each(|e| sink.event(&e).unwrap());
    sink.finish(&Ledger::new()).unwrap();
    let stats: Value = serde_json::from_str(written.text().lines().next().unwrap()).unwrap();
    let operations_json = stats["operations"].as_array().unwrap();
    let count: u64 = operations_json
        .iter()
        .map(|o| o["count"].as_u64().unwrap())
        .sum();
    assert_eq!(count, 2 * operations().len() as u64);
    let h2d = operations_json.iter().find(|o| o["of"] == "h2d").unwrap();
    assert_eq!(h2d["bytes"], 2 << 20);
    assert_eq!(stats["method_writes"], 4);
    assert_eq!(stats["channels"][0]["submissions"], 2);
    assert_eq!(stats["phases"]["warm up"]["submissions"], 2);
    assert_eq!(stats["stops"], 2);
    let launches = operations()
        .iter()
        .filter(|o| matches!(o, Operation::Launch(_)))
        .count();
    assert_eq!(launches, 2);

    let written = Written::default();
    let mut sink = Stats::new(
        written.output(),
        Form::Text { color: false },
        Detail::Operations,
        true,
    );
    with_each(|e| sink.event(&e).unwrap());
    sink.finish(&Ledger::new()).unwrap();
    let text = written.text();
    assert!(text.contains("launch (driver: companion)"), "{text}");
    assert!(text.lines().last().unwrap().starts_with("complete"));
}

/// Records of every kind that a sink shows.
fn records() -> Vec<Record> {
    let at = At {
        time_ns: 5,
        pid: 1,
        tid: 0,
    };
    let life = |life| Record::Process(Process { at, life });
    let loss = |channel, what| Record::Loss(Loss { at, channel, what });
    let mut channel = Channel {
        at,
        id: ChannelId(3),
        gpu: Some(1),
        token: Some(0xa),
        class: Some(0xc86f),
        engine: Some(0x0b),
        handle: Some((1, 2)),
        ring_gpu: Some(GpuVa(0x1000)),
        ring: Some(CpuVa(0x1000)),
        entries: Some(1024),
        userd: Some(CpuVa(0x3000)),
        origin: Origin::Found,
    };
    let full = Record::Channel(Box::new(channel.clone()));
    channel.id = ChannelId(4);
    channel.gpu = None;
    channel.token = None;
    channel.class = None;
    channel.engine = None;
    channel.handle = None;
    channel.ring_gpu = None;
    channel.ring = None;
    channel.entries = None;
    channel.userd = None;
    vec![
        life(Life::Present {
            name: "a\"b".into(),
        }),
        life(Life::Fork { child: 2 }),
        life(Life::Thread { child: 3 }),
        life(Life::Exec { name: "c".into() }),
        life(Life::Exit { process: true }),
        full,
        Record::Channel(Box::new(channel)),
        loss(
            Some(ChannelId(3)),
            Lost::Entries {
                position: 1,
                count: 2,
            },
        ),
        loss(
            None,
            Lost::Records {
                kind: "ioctl",
                count: 1,
            },
        ),
        loss(
            None,
            Lost::UnknownChannel {
                token: Some(1),
                count: 1,
            },
        ),
        loss(None, Lost::Blind { why: "dark".into() }),
    ]
}

#[test]
fn everything_in_json_fits_the_schema() {
    let schema = Schema::of_output();
    for redact in [None, Some(Redactor::default())] {
        let written = Written::default();
        let mut sink = json::Json::new(
            written.output(),
            json::Options {
                detail: Detail::Words,
                redact,
                ..json::Options::default()
            },
        );
        let mut stats = Stats::new(written.output(), Form::Json, Detail::Methods, true);
        let mut ledger = Ledger::new();
        for r in records() {
            ledger.record(&r);
            sink.record(&r).unwrap();
        }
        with_each(|e| sink.event(&e).unwrap());
        with_each(|e| stats.event(&e).unwrap());
        sink.finish(&ledger).unwrap();
        stats.finish(&ledger).unwrap();
        for line in written.text().lines() {
            let value: Value = serde_json::from_str(line).unwrap();
            if schema.check(&value).is_err() {
                panic!("{}\n{line}", schema.explain(&value));
            }
        }
    }
}

#[test]
fn the_schema_refuses_what_is_wrong() {
    let schema = Schema::of_output();
    let objects = json_of(json::Options::default());
    let good = objects.iter().find(|o| o["op"] == "launch").unwrap();
    assert_eq!(schema.check(good), Ok(()));
    for (member, wrong) in [
        ("grid", serde_json::json!([1, 2])),
        ("grid", serde_json::json!("1x2x3")),
        ("token", serde_json::json!("0xa")),
        ("kind", serde_json::json!("mine")),
        ("surprise", serde_json::json!(1)),
        ("time_ns", serde_json::json!(-1)),
    ] {
        let mut bad = good.clone();
        bad[member] = wrong;
        assert!(schema.check(&bad).is_err(), "{member}");
    }
    let mut bad = good.clone();
    bad.as_object_mut().unwrap().remove("tid");
    assert!(schema.check(&bad).is_err());
}

#[test]
fn operations_in_json_are_what_serde_makes_of_them() {
    let objects = json_of(json::Options::default());
    let shown: Vec<&Value> = objects
        .iter()
        .filter(|o| o["type"] == "operation")
        .collect();
    assert_eq!(shown.len(), operations().len());
    let mut bare = launch();
    if let Operation::Launch(l) = &mut bare {
        (l.qmd_version, l.grid, l.args) = (None, None, None);
        l.cluster = Some([2, 1, 1]);
        l.constant_banks.push(l.constant_banks[0].clone());
        l.releases.clear();
    }
    let written = Written::default();
    let mut sink = json::Json::new(written.output(), json::Options::default());
    let context = context(0);
    let body = Body::Operation(&bare);
    sink.event(&Event {
        context: &context,
        body,
    })
    .unwrap();
    sink.flush().unwrap();
    let more: Value = serde_json::from_str(&written.text()).unwrap();
    let all = operations();
    for (shown, op) in shown
        .into_iter()
        .chain([&more])
        .zip(all.iter().chain([&bare]))
    {
        let expected = serde_json::to_value(op).unwrap();
        for (name, value) in expected.as_object().unwrap() {
            assert_eq!(&shown[name], value, "{name} of {op:?}");
        }
    }
}

#[test]
fn data_words_of_one_method_are_one_line_of_text() {
    let written = Written::default();
    let mut sink = Text::new(
        written.output(),
        text::Options {
            detail: Detail::Methods,
            ..text::Options::default()
        },
    );
    let (first, second) = (context(0), context(1));
    let Body::Method(word) = common::inline_method() else {
        unreachable!()
    };
    let mut put = |context: &Context, offset, data| {
        let body = Body::Method(MethodWrite {
            offset,
            data,
            ..word
        });
        sink.event(&Event { context, body }).unwrap();
    };
    put(&first, 8, 1);
    put(&first, 12, 2);
    put(&first, 16, 3);
    put(&first, 24, 4);
    put(&second, 28, 5);
    sink.flush().unwrap();
    let text = written.text();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    assert!(
        lines[0].ends_with("LOAD_INLINE_DATA x3 = 00000001 00000002 00000003"),
        "{text}"
    );
    assert!(
        lines[1].ends_with("LOAD_INLINE_DATA = 00000004"),
        "a header lies between"
    );
    assert!(
        lines[2].ends_with("LOAD_INLINE_DATA = 00000005"),
        "another submission"
    );
    assert!(
        lines[2].starts_with("   0.001234567"),
        "with its own columns"
    );
}
