//! Filter expressions, on hand-made events.

use crate::common::events;
use crate::common::events::{companion, context, copy, launch, method};
use nvcap_decode::decode::event::{Body, DurationBy, Event, GpuDuration, GpuTime};
use nvcap_show::output::Detail;
use nvcap_show::output::filter::{Field, Filter};

fn passes(expression: &str, body: &Body<'_>) -> bool {
    let context = context(7);
    Filter::parse(expression)
        .unwrap_or_else(|e| panic!("{e}"))
        .matches(&Event {
            context: &context,
            entry: 0,
            body: body.clone(),
        })
}

#[test]
fn filters_say_yes_and_no() {
    let (launch, copy, companion) = (launch(), copy(), companion());
    let (launch, copy, companion) = (
        Body::Operation(&launch),
        Body::Operation(&copy),
        Body::Operation(&companion),
    );
    for (expression, body, expected) in [
        ("op=launch", &launch, true),
        ("op=launch", &copy, false),
        ("op=launch,copy", &copy, true),
        ("op!=launch", &copy, true),
        ("op=copy && bytes>1M", &copy, false),
        ("op=copy && bytes>=1M", &copy, true),
        ("op=copy&&bytes>1023K", &copy, true),
        ("bytes=1MiB", &copy, true),
        ("bytes=1024KiB", &copy, true),
        ("bytes>1MB", &copy, true),
        ("bytes<=1MB", &copy, false),
        ("bytes>0", &launch, false),
        ("!(bytes>0)", &launch, true),
        ("channel=3", &launch, true),
        ("channel=0xa", &launch, false),
        ("channel.id=3", &launch, true),
        ("channel=ch3", &launch, true),
        ("channel=CH2,ch3", &launch, true),
        ("channel=ch2", &launch, false),
        ("gpu=gpu0", &launch, true),
        ("gpu=gpu1", &launch, false),
        ("engine=gr0", &launch, true),
        ("op~mem*", &copy, false),
        ("op~cop*", &copy, true),
        ("op=fill,wait", &copy, false),
        ("op!=fill", &copy, true),
        ("token=10", &launch, true),
        ("token=0xa", &launch, true),
        ("token=0xb", &launch, false),
        ("tid=4712 && pid=4711", &launch, true),
        ("gpu=1 || gpu=0", &launch, true),
        ("engine=copy", &copy, true),
        ("engine=ce2", &copy, true),
        ("engine=ce1", &copy, false),
        ("engine=copy", &launch, false),
        ("engine=gr", &launch, true),
        ("engine=compute", &launch, true),
        ("grid.x>1", &launch, true),
        ("grid.x>4096", &launch, false),
        ("block=256", &launch, true),
        ("kind=user", &launch, true),
        ("kind=driver", &launch, false),
        ("kind=driver", &companion, true),
        ("kind=companion", &companion, true),
        ("phase='warm up'", &launch, true),
        ("phase~warm*", &launch, true),
        ("phase!~warm*", &launch, false),
        ("thread~py*on", &launch, true),
        ("thread~tho", &launch, true),
        ("thread~thou", &launch, false),
        ("direction=h2d", &copy, true),
        ("late", &copy, false),
        ("!late", &copy, true),
        ("qmd=0x201000100", &launch, true),
        ("mode=linear && dst>0x7f0000000000", &copy, true),
        ("method=0x300", &launch, false),
        ("type=operation", &launch, true),
    ] {
        assert_eq!(passes(expression, body), expected, "{expression}");
    }
    assert!(passes("method=0x300", &method()));
    assert!(passes("class=0xc8b5 && data=0x182", &method()));
    assert!(!passes("op=launch", &method()));
    assert!(
        passes("op=launch", &events::stop()),
        "where decoding stopped is always shown"
    );
}

#[test]
fn filters_of_launches_and_replays() {
    let all = [
        events::memset_node(),
        events::cooperative(),
        events::unresolved(),
        events::graph(),
        events::companion(),
    ];
    let [memset, cooperative, unresolved, graph, companion] = all.each_ref().map(Body::Operation);
    for (expression, body, expected) in [
        ("kind=driver_memset && bytes=8K", &memset, true),
        ("kind=driver", &memset, true),
        ("kind=driver", &unresolved, false),
        ("kind=driver_graph", &memset, false),
        ("dst=0x7f0000d00000", &memset, true),
        ("src>0", &memset, false),
        ("replay=7 && place=2", &memset, true),
        ("replay=7", &graph, true),
        ("replay>=0", &cooperative, false),
        ("place>=0", &companion, false),
        ("launch.how=dependent", &memset, true),
        ("launch.how=released", &cooperative, true),
        ("launch.how=scheduled", &companion, true),
        ("launch.how=dependent,released", &companion, false),
        ("cluster=4", &cooperative, true),
        ("cluster>0", &memset, false),
        ("cooperative", &cooperative, true),
        ("cooperative", &memset, false),
        ("!cooperative", &memset, true),
        ("op=graph", &graph, true),
        ("op=graph", &memset, false),
        ("op=launch", &graph, false),
        ("nodes=4 && kernels=2", &graph, true),
        ("nodes>0", &memset, false),
        ("bytes=5K", &graph, true),
        ("type=chip", &events::chip(), true),
        ("type=operation", &events::chip(), false),
        ("serial=7", &events::chip(), true),
    ] {
        assert_eq!(passes(expression, body), expected, "{expression}");
    }
}

#[test]
fn a_filter_that_names_methods_asks_for_them() {
    for (expression, detail) in [
        ("op=launch", Detail::Operations),
        ("op=launch || method=SEND_PCAS_A", Detail::Methods),
        ("!(data=0)", Detail::Methods),
        ("type=entry", Detail::Words),
    ] {
        assert_eq!(
            Filter::parse(expression).unwrap().detail(),
            detail,
            "{expression}"
        );
    }
}

#[test]
fn the_documentation_lists_every_field_and_every_word() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/filters.md");
    let page = std::fs::read_to_string(path).unwrap();
    for field in Field::all() {
        let row = format!("| `{}` |", field.name());
        let line = page
            .lines()
            .find(|l| l.starts_with(&row))
            .unwrap_or_else(|| panic!("docs/filters.md lacks {row}"));
        assert!(line.contains(field.about()), "{line}");
        for word in field.choices() {
            assert!(line.contains(&format!("`{word}`")), "{word} in {line}");
        }
    }
}

#[test]
fn an_assumption_is_shown_whatever_was_asked_for() {
    use nvcap_decode::decode::event::{ChipBy, ChipSettled};

    for (by, shown) in [
        (ChipBy::Methods, true),
        (ChipBy::Channel, true),
        (ChipBy::Pci, false),
        (ChipBy::QmdVersion, false),
    ] {
        let chip = Body::Chip(ChipSettled { chip: "GH100", by });
        assert_eq!(passes("op=launch", &chip), shown, "{by:?}");
        assert!(passes("type=chip", &chip));
    }
}

#[test]
fn times_of_the_gpu_are_compared_where_they_are_known() {
    let time = GpuTime {
        duration: Some(GpuDuration {
            ns: 1_500_000,
            error_ns: 300,
            by: DurationBy::NextStamp,
        }),
        queued: Some((10_000, 30_000)),
        ..GpuTime::default()
    };
    let (launch, companion) = (launch(), companion());
    let passes = |expression: &str, body: &Body<'_>, times: &[GpuTime], entry| {
        let mut context = context(7);
        context.gpu_time = Some(times.into());
        let filter = Filter::parse(expression).unwrap_or_else(|e| panic!("{e}"));
        filter.matches(&Event {
            context: &context,
            entry,
            body: body.clone(),
        })
    };
    let launch = Body::Operation(&launch);
    let companion = Body::Operation(&companion);
    for (expression, is) in [
        ("gpu_ns>1ms", true),
        ("gpu_ns==1.5ms", true),
        ("gpu_ns<1500us", false),
        ("queued_ns>=20us && queued_ns<=20000", true),
        // Not known: neither is true.
        ("gpu_start_ns>0", false),
        ("gpu_start_ns==0", false),
        ("gpu_start_ns!=0", false),
        ("!(gpu_start_ns>0)", true),
    ] {
        assert_eq!(passes(expression, &launch, &[time], 0), is, "{expression}");
    }
    // The entry's own time, and none of what takes no time.
    assert!(!passes(
        "gpu_ns>=0",
        &launch,
        &[time, GpuTime::default()],
        1
    ));
    assert!(passes("gpu_ns>=0", &launch, &[GpuTime::default(), time], 1));
    assert!(!passes("gpu_ns>=0", &companion, &[time], 0));
    let filter = |text| Filter::parse(text).unwrap();
    assert_eq!(
        filter("op=launch && !(queued_ns>1us)").of_gpu_time(),
        Some(Field::Queued)
    );
    assert_eq!(filter("op=launch && time_ns>1s").of_gpu_time(), None);
}

#[test]
fn words_of_text_are_words_of_filters() {
    use nvcap_decode::decode::event::{Operation, SemaphoreAction};
    let wait = events::semaphore();
    let mut release = wait.clone();
    if let Operation::Semaphore(s) = &mut release {
        s.action = SemaphoreAction::Release;
    }
    for (body, are, are_not) in [
        (
            &events::memset_node(),
            &["launch", "memset"][..],
            &["fill", "copy", "inline"][..],
        ),
        (&events::inline(), &["inline", "copy"], &["memset", "fill"]),
        (&events::inline_fill(), &["inline", "memset"], &["copy"]),
        (&events::fill(), &["copy", "fill"], &["memset", "inline"]),
        (&events::copy(), &["copy"], &["fill", "memset", "inline"]),
        (&wait, &["wait", "acquire", "semaphore"], &["release"]),
        (&release, &["release", "semaphore"], &["wait", "acquire"]),
    ] {
        let body = Body::Operation(body);
        for (words, is) in [(are, true), (are_not, false)] {
            for word in words {
                assert_eq!(passes(&format!("op={word}"), &body), is, "{word} {body:?}");
                assert_eq!(
                    passes(&format!("op!={word}"), &body),
                    !is,
                    "{word} {body:?}"
                );
                assert_eq!(passes(&format!("op~{word}"), &body), is, "{word} {body:?}");
            }
        }
    }
}

/// The time of the first column of text: from the first record on, to the microsecond.
#[test]
fn the_time_of_text_is_a_field() {
    use nvcap_decode::record::{At, Life, Process, Record};
    let (context, launch) = (context(7), launch());
    let event = Event {
        context: &context,
        entry: 0,
        body: Body::Operation(&launch),
    };
    let begin = Record::Process(Process {
        at: At {
            time_ns: context.at.time_ns - 30_000_999,
            pid: 7,
            tid: 7,
        },
        life: Life::Exit { process: true },
    });
    for (expression, expected) in [
        ("time>0.03", true),
        ("time>30ms", true),
        ("time=0.030001", true),
        ("time>0.030001", false),
        ("time<30_100us && time>=0.03s", true),
        ("time<0.03", false),
        ("time>1", false),
    ] {
        let mut filter = Filter::parse(expression).unwrap_or_else(|e| panic!("{e}"));
        assert!(!filter.asks_for_kind(), "{expression}");
        assert!(!filter.matches(&event), "no record yet: {expression}");
        filter.record(&begin);
        assert_eq!(filter.takes(&event), expected, "{expression}");
    }
}

#[test]
fn what_there_is_is_said_where_nothing_matched() {
    let (context, launch, copy) = (context(7), launch(), copy());
    let said = |expression: &str| {
        let mut filter = Filter::parse(expression).unwrap_or_else(|e| panic!("{e}"));
        for op in [&launch, &copy] {
            filter.takes(&Event {
                context: &context,
                entry: 0,
                body: Body::Operation(op),
            });
        }
        filter.unmatched()
    };
    for (expression, expected) in [
        ("op=launch", None),
        ("!(pid=4711)", None),
        (
            "pid=1",
            Some("nothing matched pid=1; there is 1 process: 4711"),
        ),
        (
            "channel=ch4 && op=copy",
            Some("nothing matched channel=ch4; there is 1 channel: ch3"),
        ),
        (
            "kernel=zzzz",
            Some("nothing matched kernel=zzzz; no event has kernel"),
        ),
        (
            "op=memset",
            Some("nothing matched op=memset; there are 2 words of operations: copy, launch"),
        ),
        ("thread=py_thon", None),
        (
            "late",
            Some("nothing matched late; late is false for all events"),
        ),
        (
            "op=copy && kind=user",
            Some("each comparison was true for some event, all together for none"),
        ),
        (
            "engine=ce3 || gpu=1",
            Some(
                "nothing matched engine=ce3 (did you mean ce2?); there are 2 engines: ce2, gr; nothing matched gpu=1; there is 1 GPU: gpu0",
            ),
        ),
        (
            "bytes>1G",
            Some("nothing matched bytes>1G; there is 1 value of bytes: 1048576"),
        ),
    ] {
        if expression.starts_with("thread") {
            let said = said(expression).unwrap();
            assert!(said.contains("did you mean py\"thon?"), "{said}");
            continue;
        }
        assert_eq!(said(expression).as_deref(), expected, "{expression}");
    }
}
