//! The text and JSON sinks and the filter, on hand-made events.

use crate::common::events;
use crate::common::events::{Written, context, launch, operations, with_each};
use crate::common::schema::Schema;
use nvcap_decode::decode::event::{
    Body, ChipBy, ChipSettled, Context, Event, MethodWrite, Operation, SemaphoreAction,
};
use nvcap_decode::driver::Model;
use nvcap_decode::ledger::Ledger;
use nvcap_decode::record::RecordKind;
use nvcap_decode::record::{
    At, Channel, ChannelId, CpuVa, Gpu, How, Kernel, KernelParam, Life, Loss, Lost, NamedBy,
    Origin, Process, Record, Segment, Submission,
};
use nvcap_decode::wire::{GpuVa, Hole};
use nvcap_show::output::redact::Redactor;
use nvcap_show::output::stats::{Form, Stats};
use nvcap_show::output::style::Color;
use nvcap_show::output::text::Text;
use nvcap_show::output::{Detail, Sink, json, text};
use serde_json::Value;

fn text_of(options: text::TextOptions) -> Vec<String> {
    let written = Written::default();
    let mut sink = Text::new(written.output(), options);
    with_each(|e| sink.event(&e).unwrap());
    sink.flush().unwrap();
    written.text().lines().map(ToOwned::to_owned).collect()
}

fn json_of(options: json::JsonOptions) -> Vec<Value> {
    let written = Written::default();
    let mut sink = json::Json::new(written.output(), options);
    with_each(|e| sink.event(&e).unwrap());
    sink.finish(&Ledger::new(), &Model::default()).unwrap();
    written
        .text()
        .lines()
        .map(|l| serde_json::from_str(l).unwrap_or_else(|e| panic!("{e}: {l}")))
        .collect()
}

#[test]
fn one_short_line_for_each_thing_that_the_program_asked_for() {
    let lines = text_of(text::TextOptions::default());
    let begin = "   0.000000  ch3   gr   [warm up] ";
    let rest: Vec<&str> = lines
        .iter()
        .map(|l| l.strip_prefix(begin).unwrap_or_else(|| panic!("{l}")))
        .collect();
    assert_eq!(
        rest,
        [
            "launch prog 0x7f0000001000 grid 4096 block 256 args 0x7f00a00000,0x7f00c00000,0x100000",
            "copy h2d 1 MiB 0x7f0000200000 -> 0x7f0000a00000",
            "fill 1 MiB of 0xdeadbeef -> 0x7f0000a00000",
            "copy h2d 5 B inline -> 0x7f0000b00000 68656c6c6f",
            "memset 5 B of 0xfeedface -> 0x7f0000b00000",
            "launch prog 0x7f0000001000 grid 4096 block 256 cluster 4 cooperative \
             args 0x7f00a00000,0x7f00c00000,0x100000",
            "graph replay 7 of 2 kernels, 1 memset, 1 QMD not seen on 2 channels, uploaded",
            "wait until 0x204000020 >= 77",
            "stopped in entry 0 at byte 8: the entry ends inside a word, 3 B short",
        ]
    );
}

#[test]
fn one_line_an_operation_with_all_columns_and_details() {
    let lines = text_of(text::TextOptions {
        verbose: true,
        ..text::TextOptions::default()
    });
    // And the chip and the stop.
    assert_eq!(lines.len(), operations().len() + 2);
    let begin = "   0.000000  py\"thon/4711:4712    gpu0 ch3   0x0000a gr   [warm up] ";
    let rest: Vec<&str> = lines
        .iter()
        .map(|l| l.strip_prefix(begin).unwrap_or_else(|| panic!("{l}")))
        .collect();
    assert!(rest[13].starts_with("bind subchannel 1 class 0xcbc0"));
    assert_eq!(
        [&rest[..7], &rest[8..9], &rest[10..13], &rest[14..]].concat(),
        [
            "decoded as for GH100: by the version of its QMDs",
            "launch grid 4096x1x1 block 256x1x1 regs 16 prog 0x7f0000001000 (640 B) \
             args 0x7f00a00000,0x7f00c00000,0x100000 qmd 0x201000100 then release 0x204000000 = 5",
            "launch (driver: companion) grid 0x0x0 block 256x1x1 regs 16 prog 0x7f0000001000 (640 B) \
             qmd 0x201000100 then release 0x204000000 = 5",
            "copy h2d 1048576 B 0x7f0000200000 (pinned host memory, object 0x5c000019 of 56 MiB) -> 0x7f0000a00000 ce2 linear then release 0x204000010 = 9 timestamp",
            "fill 1048576 B of 0xdeadbeef -> 0x7f0000a00000 ce2 fill",
            "inline h2d 5 B -> 0x7f0000b00000 data 68656c6c6f",
            "inline h2d 5 B -> 0x7f0000b00000 memset cefaedfece",
            "launch grid 4096x1x1 block 256x1x1 cluster 4x1x1 cooperative regs 16 prog 0x7f0000001000 (640 B) \
             args 0x7f00a00000,0x7f00c00000,0x100000 qmd 0x201000100 (released) then release 0x204000000 = 5",
            "graph replay 7 of 2 kernels, 1 memset, 1 QMD not seen on 2 channels in 2 submissions by 5120 B, uploaded",
            "semaphore acquire 0x204000020 >= 77 (host)",
            "barrier wfi",
            "host yield",
            "stopped in entry 0 at byte 8: the entry ends inside a word, 3 B short",
        ]
    );
}

#[test]
fn nodes_of_graphs_are_shown_to_those_who_ask() {
    let verbose = text::TextOptions {
        verbose: true,
        ..text::TextOptions::default()
    };
    let filtered = text::TextOptions {
        filtered: true,
        ..text::TextOptions::default()
    };
    for (options, nodes) in [
        (
            verbose,
            [
                "launch (driver: memset) node 2 of graph replay 7 8192 B -> 0x7f0000d00000 grid 4096x1x1 block 256x1x1 regs 16 \
                 prog 0x7f0000001000 (640 B) args 0x7f0000d00000,0x5a5a5a5a,0x800,0x0 qmd 0x201000400 (dependent) \
                 (QMD from memory) then release 0x204000000 = 5",
                "launch (QMD not seen) node 3 of graph replay 7 qmd 0x201000100 (dependent)",
            ],
        ),
        (
            filtered,
            [
                "memset 8 KiB of 0x5a5a5a5a -> 0x7f0000d00000 node 2 of graph replay 7",
                "launch (QMD not seen) qmd 0x201000100 node 3 of graph replay 7",
            ],
        ),
    ] {
        let lines = text_of(options);
        for node in nodes {
            assert!(
                lines.iter().any(|l| l.ends_with(node)),
                "{node}: {lines:#?}"
            );
        }
    }
    let lines = text_of(text::TextOptions::default());
    assert!(!lines.iter().any(|l| l.contains("of graph replay")));
}

/// Lines of these operations, each with its context.
fn lines_of(options: text::TextOptions, events: &[(Context, Operation)]) -> Vec<String> {
    let written = Written::default();
    let mut sink = Text::new(written.output(), options);
    for (context, operation) in events {
        let body = Body::Operation(operation);
        sink.event(&Event {
            context,
            entry: 0,
            body,
        })
        .unwrap();
    }
    sink.flush().unwrap();
    written.text().lines().map(ToOwned::to_owned).collect()
}

/// A context of a channel, without a phase.
fn on(channel: u32) -> Context {
    Context {
        channel: ChannelId(channel),
        serial: channel.into(),
        phase: None,
        ..context(0)
    }
}

#[test]
fn the_process_and_the_gpu_stand_where_there_are_several() {
    let other = Context {
        at: At {
            pid: 5000,
            ..on(1).at
        },
        ..on(1)
    };
    let third = Context {
        gpu: Some(1),
        ..on(2)
    };
    let events = [on(0), other, third].map(|c| (c, launch()));
    let lines = lines_of(text::TextOptions::default(), &events);
    for (line, begin) in lines.iter().zip([
        "   0.000000  ch0   gr   launch",
        "   0.000000  py\"thon/5000     ch1   gr   launch",
        "   0.000000  py\"thon/4711     gpu1 ch2   gr   launch",
    ]) {
        assert!(line.starts_with(begin), "{lines:#?}");
    }
}

#[test]
fn a_wait_names_the_channel_that_it_is_for_and_is_not_one_for_its_own() {
    let Operation::Semaphore(acquire) = events::semaphore() else {
        unreachable!()
    };
    let mut release = acquire.clone();
    release.action = SemaphoreAction::Release;
    let (release, acquire) = (Operation::Semaphore(release), events::semaphore());
    let events = [
        (on(1), acquire.clone()),
        (on(1), release),
        (on(2), acquire.clone()),
        (on(1), acquire.clone()),
    ];
    let lines = lines_of(text::TextOptions::default(), &events);
    let ends: Vec<&str> = lines.iter().map(|l| &l[l.find("ch").unwrap()..]).collect();
    assert_eq!(
        ends,
        [
            "ch1   gr   wait until 0x204000020 >= 77",
            "ch2   gr   wait for ch1 until 0x204000020 >= 77",
        ]
    );
    // A copy's and a kernel's own releases are as good, and another process's are not.
    let (Operation::Copy(mut copy), Operation::Launch(mut kernel)) = (events::copy(), launch())
    else {
        unreachable!()
    };
    let address = GpuVa(0x2_0400_0020);
    copy.semaphore.as_mut().unwrap().address = address;
    kernel.releases[0].address = address;
    for op in [Operation::Copy(copy), Operation::Launch(kernel)] {
        let mut elsewhere = on(3);
        elsewhere.at.pid = 9;
        let events = [
            (on(1), op),
            (on(2), acquire.clone()),
            (elsewhere, acquire.clone()),
        ];
        let lines = lines_of(text::TextOptions::default(), &events);
        assert!(lines[1].contains("wait for ch1 until"), "{lines:#?}");
        assert!(lines[2].contains("wait until"), "{lines:#?}");
    }
}

#[test]
fn fills_in_a_row_are_two_lines_and_none_is_lost() {
    let fills = |n: u64| {
        (0..n).map(|i| {
            let Operation::Copy(mut fill) = events::fill() else {
                unreachable!()
            };
            fill.dst = Some(GpuVa(0x1000 + i));
            (on(1), Operation::Copy(fill))
        })
    };
    let said = |options: text::TextOptions, n| {
        let events: Vec<_> = fills(n).chain([(on(1), launch())]).collect();
        let lines = lines_of(options, &events);
        let said = lines
            .iter()
            .map(|l| l[l.find("gr   ").unwrap() + 5..].to_owned());
        said.collect::<Vec<_>>()
    };
    let short = text::TextOptions::default;
    let all = said(short(), 65);
    assert_eq!(all.len(), 3, "{all:#?}");
    assert_eq!(all[0], "fill 1 MiB of 0xdeadbeef -> 0x1000");
    assert_eq!(all[1], "64 more fills like it");
    // One more is itself as short.
    let all = said(short(), 2);
    assert_eq!(all[1], "fill 1 MiB of 0xdeadbeef -> 0x1001");
    let filtered = text::TextOptions {
        filtered: true,
        ..short()
    };
    assert_eq!(said(filtered, 65).len(), 66);
    // Another channel's is another.
    let events: Vec<_> = fills(3)
        .enumerate()
        .map(|(i, (_, op))| (on(i as u32), op))
        .collect();
    assert_eq!(lines_of(short(), &events).len(), 3);
}

#[test]
fn short_lines_fit_the_width_and_long_ones_are_whole() {
    let widths = |options| {
        let lines = text_of(options);
        // What went wrong is never cut.
        let operations = lines.iter().filter(|l| !l.contains("stopped"));
        operations.map(|l| l.chars().count()).max().unwrap()
    };
    let whole = widths(text::TextOptions::default());
    assert!(whole > 100);
    for width in [60, 80, 100] {
        let options = text::TextOptions {
            width: Some(width),
            ..text::TextOptions::default()
        };
        assert_eq!(widths(options.clone()), width);
        let lines = text_of(options.clone());
        let launch = lines.iter().find(|l| l.contains("launch")).unwrap();
        assert!(launch.ends_with("..."), "{launch}");
        let verbose = text::TextOptions {
            verbose: true,
            ..options
        };
        assert!(widths(verbose) > 180);
    }
}

#[test]
fn a_chip_that_is_only_assumed_is_always_said() {
    let lines = |by, verbose| {
        let written = Written::default();
        let options = text::TextOptions {
            verbose,
            ..text::TextOptions::default()
        };
        let mut sink = Text::new(written.output(), options);
        let chip = "GH100";
        let context = context(0);
        let body = Body::Chip(ChipSettled { chip, by });
        sink.event(&Event {
            context: &context,
            entry: 0,
            body,
        })
        .unwrap();
        sink.flush().unwrap();
        written.text()
    };
    for (by, says) in [
        (ChipBy::Given, "as --chip says"),
        (ChipBy::Pci, "by its PCI id"),
        (ChipBy::Bound, "by a class that was bound"),
        (ChipBy::QmdVersion, "by the version of its QMDs"),
    ] {
        assert_eq!(lines(by, false), "");
        let said = lines(by, true);
        assert!(
            said.ends_with(&format!("decoded as for GH100: {says}\n")),
            "{said}"
        );
    }
    for (by, says) in [
        (
            ChipBy::Methods,
            "assumed from the methods used; --chip NAME says another",
        ),
        (
            ChipBy::Channel,
            "assumed from the channel's class; --chip NAME says another",
        ),
    ] {
        for verbose in [false, true] {
            let said = lines(by, verbose);
            assert!(
                said.ends_with(&format!("decoded as for GH100: {says}\n")),
                "{said}"
            );
        }
    }
}

#[test]
fn verbose_adds_methods_and_more_verbose_adds_words() {
    let methods = text_of(text::TextOptions {
        detail: Detail::Methods,
        ..text::TextOptions::default()
    });
    assert!(methods[0].contains("submission 0 position 41 put 41 -> 42, 1 entry, 12 B, get 40"));
    assert!(methods.iter().any(|l| l.contains("c8b5:0300")));
    assert!(!methods.iter().any(|l| l.contains("11111111")));
    let words = text_of(text::TextOptions {
        detail: Detail::Words,
        ..text::TextOptions::default()
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
    let plain = text_of(text::TextOptions::default());
    assert!(!plain.iter().any(|l| l.contains('\x1b')), "not a terminal");
    let colored = text_of(text::TextOptions {
        color: Color::Always,
        ..text::TextOptions::default()
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
        text::TextOptions {
            quiet: true,
            ..text::TextOptions::default()
        },
    );
    assert_eq!(sink.detail(), None);
    with_each(|e| sink.event(&e).unwrap());
    sink.finish(&Ledger::new(), &Model::default()).unwrap();
    assert_eq!(
        written.text(),
        "complete: 0 submissions on 0 channels, 0 entries, 0 B, nothing missing\n"
    );
}

#[test]
fn a_loss_is_a_line_of_its_own() {
    let written = Written::default();
    let mut sink = Text::new(written.output(), text::TextOptions::default());
    let loss = Record::Loss(Loss {
        at: At::default(),
        channel: Some(ChannelId(2)),
        what: Lost::Entries {
            position: 17,
            count: 3,
        },
    });
    sink.record(&loss, &Model::default()).unwrap();
    sink.flush().unwrap();
    assert!(
        written
            .text()
            .contains("LOST 3 entries of channel 2 from position 17")
    );
}

#[test]
fn json_objects_have_common_members_and_operations_their_own() {
    let objects = json_of(json::JsonOptions {
        detail: Detail::Words,
        ..json::JsonOptions::default()
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

/// An inline write of unknown content is shown: it may be what the program copied.
#[test]
fn an_inline_write_of_unknown_content_is_shown() {
    let Operation::Inline(mut unknown) = events::inline() else {
        unreachable!()
    };
    unknown.content = None;
    let written = Written::default();
    let mut sink = Text::new(written.output(), text::TextOptions::default());
    let event = Event {
        context: &context(7),
        entry: 0,
        body: Body::Operation(&Operation::Inline(unknown)),
    };
    sink.event(&event).unwrap();
    sink.flush().unwrap();
    let said = written.text();
    assert!(
        said.contains("write h2d 5 B inline -> 0x7f0000b00000 68656c6c6f"),
        "{said}"
    );
}

#[test]
fn no_json_object_names_a_member_twice() {
    // A map would hide it: look at the text.
    let written = Written::default();
    let mut sink = json::Json::new(
        written.output(),
        json::JsonOptions {
            detail: Detail::Words,
            ..json::JsonOptions::default()
        },
    );
    with_each(|e| sink.event(&e).unwrap());
    sink.flush().unwrap();
    written.text().lines().for_each(has_each_member_once);
}

/// Fails where a JSON object has a member twice.
pub(crate) fn has_each_member_once(line: &str) {
    let top = top_level_members(line);
    let mut unique = top.clone();
    unique.sort();
    unique.dedup();
    assert_eq!(unique.len(), top.len(), "{line}");
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
    let objects = json_of(json::JsonOptions {
        detail: Detail::Words,
        redact: redact.clone(),
        ..json::JsonOptions::default()
    });
    let all = objects.iter().map(ToString::to_string).collect::<String>();
    let text = |verbose| {
        let options = text::TextOptions {
            detail: Detail::Words,
            verbose,
            redact: redact.clone(),
            ..text::TextOptions::default()
        };
        text_of(options).join("\n")
    };
    let (short, long) = (text(false), text(true));
    for (form, out) in [("json", &all), ("text", &short), ("text -v", &long)] {
        for secret in [
            "68656c6c6f",
            "7f00a00000",
            "0000a0007f",
            "deadbeef",
            "3735928559",
            "11111111",
            // The word of a memset, by a macro and by a kernel.
            "cefaedfe",
            "4277009102",
            "5a5a5a5a",
            "1515870810",
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

/// Arguments one by one have no values, either, nor what their pointers point into.
#[test]
fn redaction_leaves_no_value_of_an_argument() {
    let mut known = launch();
    let Operation::Launch(l) = &mut known else {
        panic!("a launch");
    };
    let param = |offset| KernelParam { offset, size: 8 };
    l.kernel = Some(std::sync::Arc::new(Kernel {
        at: At::default(),
        program: GpuVa(0x1000),
        name: "_Z3addPfS_l".to_owned(),
        bytes: None,
        params: Some([0, 8].map(param).to_vec()),
        by: NamedBy::Record,
        certain: true,
        driver: false,
        variables: Vec::new(),
    }));
    let shown = |redact| {
        let written = Written::default();
        let options = json::JsonOptions {
            redact,
            ..json::JsonOptions::default()
        };
        let mut sink = json::Json::new(written.output(), options);
        let context = context(0);
        let body = Body::Operation(&known);
        sink.event(&Event {
            context: &context,
            entry: 0,
            body,
        })
        .unwrap();
        sink.finish(&Ledger::new(), &Model::default()).unwrap();
        let first = written.text().lines().next().unwrap().to_owned();
        serde_json::from_str::<Value>(&first).unwrap()["arguments"].clone()
    };
    let (plain, hidden) = (shown(None), shown(Some(Redactor::default())));
    assert!(!plain[0]["value"].is_null(), "{plain}");
    for n in 0..2 {
        assert!(hidden[n]["value"].is_null() && hidden[n]["memory"].is_null());
        assert_eq!(hidden[n]["size"], 8);
    }
}

/// A channel's token may be told behind its last submission.
#[test]
fn statistics_have_the_tokens_that_the_ledger_knows() {
    let written = Written::default();
    let form = Form::Text { color: false };
    let mut sink = Stats::new(written.output(), form, Detail::Operations, true);
    let context = Context {
        token: None,
        ..on(1)
    };
    with_each(|e| {
        let context = &context;
        sink.event(&Event { context, ..e }).unwrap();
    });
    let mut ledger = Ledger::new();
    ledger.record(&Record::Channel(Box::new(Channel {
        token: Some(0xa),
        ..Channel::bare(context.at, context.channel, Origin::Found)
    })));
    sink.finish(&ledger, &Model::default()).unwrap();
    // Of the statistics, not of the ledger behind them.
    let text = written.text();
    let head = text
        .lines()
        .position(|l| l.trim_end().ends_with("engine process"));
    let row = text.lines().nth(head.expect("the table of channels") + 1);
    assert!(row.is_some_and(|r| r.contains(" 0x0000a ")), "{text}");
}

#[test]
fn statistics_add_up() {
    let written = Written::default();
    let mut sink = Stats::new(written.output(), Form::Json, Detail::Methods, true);
    with_each(|e| sink.event(&e).unwrap());
    with_each(|e| sink.event(&e).unwrap());
    sink.finish(&Ledger::new(), &Model::default()).unwrap();
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
    assert_eq!(launches, 5);
    let of = |of: &str| operations_json.iter().find(|o| o["of"] == of).unwrap();
    assert_eq!(
        (&of("(driver: memset)")["bytes"], &of("replay")["bytes"]),
        (&16_384.into(), &10_240.into())
    );
    assert_eq!(
        (&of("memset")["bytes"], &of("(QMD not seen)")["count"]),
        (&10.into(), &2.into())
    );

    let written = Written::default();
    let mut sink = Stats::new(
        written.output(),
        Form::Text { color: false },
        Detail::Operations,
        true,
    );
    with_each(|e| sink.event(&e).unwrap());
    sink.finish(&Ledger::new(), &Model::default()).unwrap();
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
        Record::Gpu(Gpu {
            at,
            minor: 1,
            pci_device: 0x2335,
        }),
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
                kind: RecordKind::Ioctl,
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
        loss(None, Lost::Untraced { why: "dark".into() }),
    ]
}

#[test]
fn everything_in_json_fits_the_schema() {
    let schema = Schema::of_output();
    for redact in [None, Some(Redactor::default())] {
        let written = Written::default();
        let mut sink = json::Json::new(
            written.output(),
            json::JsonOptions {
                detail: Detail::Words,
                redact,
                ..json::JsonOptions::default()
            },
        );
        let mut stats = Stats::new(written.output(), Form::Json, Detail::Methods, true);
        let mut ledger = Ledger::new();
        for r in records() {
            ledger.record(&r);
            sink.record(&r, &Model::default()).unwrap();
        }
        with_each(|e| sink.event(&e).unwrap());
        with_each(|e| stats.event(&e).unwrap());
        sink.finish(&ledger, &Model::default()).unwrap();
        stats.finish(&ledger, &Model::default()).unwrap();
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
    let objects = json_of(json::JsonOptions::default());
    let good = objects.iter().find(|o| o["op"] == "launch").unwrap();
    assert_eq!(schema.check(good), Ok(()));
    for (member, wrong) in [
        ("how", serde_json::json!("pcas")),
        ("pcas", serde_json::json!("schedules")),
        ("pcas", serde_json::json!({"other": 256})),
        (
            "moves",
            serde_json::json!({"dst": 1, "src": null, "bytes": null}),
        ),
        ("qmd_from", serde_json::json!("memory")),
        ("cooperative", serde_json::json!(null)),
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
    // Each that every object of a kind has.
    for (kind, member) in [
        ("launch", "tid"),
        ("launch", "pcas"),
        ("launch", "replay"),
        ("launch", "shared_reserved_bytes"),
        ("inline", "fill"),
        ("graph", "nodes"),
        ("graph", "submissions"),
        ("chip", "assumed"),
    ] {
        let named = |o: &&Value| o["op"] == kind || o["type"] == kind;
        let mut bad = objects.iter().find(named).unwrap().clone();
        assert_eq!(schema.check(&bad), Ok(()));
        bad.as_object_mut().unwrap().remove(member).unwrap();
        assert!(schema.check(&bad).is_err(), "{kind} without {member}");
    }
    let mut other = good.clone();
    other["pcas"] = serde_json::json!({"other": 5});
    assert_eq!(schema.check(&other), Ok(()));
}

#[test]
fn operations_in_json_are_what_serde_makes_of_them() {
    let objects = json_of(json::JsonOptions::default());
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
    let mut sink = json::Json::new(written.output(), json::JsonOptions::default());
    let context = context(0);
    let body = Body::Operation(&bare);
    sink.event(&Event {
        context: &context,
        entry: 0,
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
        text::TextOptions {
            verbose: true,
            detail: Detail::Methods,
            ..text::TextOptions::default()
        },
    );
    let (first, second) = (context(0), context(1));
    let Body::Method(word) = events::inline_method() else {
        unreachable!()
    };
    let mut put = |context: &Context, offset, data| {
        let body = Body::Method(MethodWrite {
            offset,
            data,
            ..word
        });
        sink.event(&Event {
            context,
            entry: 0,
            body,
        })
        .unwrap();
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
    assert!(lines[2].starts_with("   0.001234 "), "with its own columns");
}

/// A submission whose one entry has 12 bytes announced, 4 of them read.
fn half_read() -> Submission {
    Submission {
        absent_ns: None,
        at: At::default(),
        channel: ChannelId(0),
        token: None,
        position: 41,
        gp_get: None,
        prev_put: 41,
        gp_put: 42,
        ip: None,
        doorbell: None,
        how: How::Trapped,
        late: false,
        thread: None,
        segments: vec![Segment {
            entry: events::RAW,
            bytes: vec![0, 0, 0, 0, 0x11, 0x22, 0x33, 0x44],
            holes: vec![Hole { offset: 0, len: 4 }],
        }],
    }
}

#[test]
fn bytes_that_were_not_read_are_no_words() {
    let s = half_read();
    let body = events::entry(&s.segments[0].bytes);
    let c = context(0);
    let show = |sink: &mut dyn Sink| {
        sink.record(&Record::Submission(s.clone()), &Model::default())
            .unwrap();
        let event = Event {
            context: &c,
            entry: 0,
            body: body.clone(),
        };
        sink.event(&event).unwrap();
        sink.flush().unwrap();
    };
    let written = Written::default();
    show(&mut Text::new(
        written.output(),
        text::TextOptions {
            detail: Detail::Words,
            ..text::TextOptions::default()
        },
    ));
    let text = written.text();
    let lines: Vec<&str> = text.lines().skip(1).map(str::trim_start).collect();
    let words: Vec<&str> = lines
        .iter()
        .map(|l| &l[l.find("--").or(l.find("000004")).unwrap()..])
        .collect();
    assert_eq!(
        words,
        ["-- 4 B not read", "000004 44332211", "-- 4 B not read"]
    );
    let written = Written::default();
    show(&mut json::Json::new(
        written.output(),
        json::JsonOptions {
            detail: Detail::Words,
            ..json::JsonOptions::default()
        },
    ));
    let object: Value = serde_json::from_str(written.text().trim()).unwrap();
    assert_eq!(object["data"], "11223344");
    assert_eq!(object["missing"], 8);
    assert_eq!(object["holes"], serde_json::json!([[0, 4], [8, 4]]));
    Schema::of_output().check(&object).unwrap();
}
