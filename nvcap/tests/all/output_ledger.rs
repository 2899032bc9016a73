//! The ledger finds what is missing by itself, from ring positions and GP_PUT.

use crate::common::schema::Schema;
use nvcap_decode::decode::Counts;
use nvcap_decode::ledger::{Ledger, Observed};
use nvcap_decode::record::RecordKind;
use nvcap_decode::record::{
    At, Channel, ChannelId, Fault, How, Life, Loss, Lost, Origin, Process, Record, Segment,
    Submission,
};
use nvcap_decode::wire::{GpuVa, Hole};
use nvcap_show::output::ledger::{json, text, verdict};

const RING: u32 = 8;

fn at(time_ns: u64) -> At {
    At {
        time_ns,
        pid: 4711,
        tid: 4712,
    }
}

fn channel(origin: Origin, ring: Option<u32>) -> Record {
    Record::Channel(Box::new(Channel {
        at: at(1),
        id: ChannelId(0),
        gpu: Some(0),
        token: Some(0xa),
        class: Some(0xc86f),
        engine: Some(1),
        handle: None,
        ring_gpu: Some(GpuVa(0x2_0060_0000)),
        ring: None,
        entries: ring,
        userd: None,
        origin,
    }))
}

fn segment(bytes: usize) -> Segment {
    Segment {
        entry: 0x2_0080_0000 | ((bytes as u64 / 4) << 42),
        bytes: vec![0; bytes],
        holes: Vec::new(),
    }
}

/// `n` entries of 64 bytes each at `position`.
fn submission(position: u64, n: u32) -> Submission {
    Submission {
        absent_ns: None,
        at: at(1000 + position),
        channel: ChannelId(0),
        token: Some(0xa),
        position,
        gp_get: None,
        prev_put: (position % u64::from(RING)) as u32,
        gp_put: ((position + u64::from(n)) % u64::from(RING)) as u32,
        thread: None,
        ip: None,
        doorbell: None,
        how: How::Trapped,
        late: false,
        segments: (0..n).map(|_| segment(64)).collect(),
    }
}

fn lost(position: u64, count: u64) -> Record {
    Record::Loss(Loss {
        at: at(2),
        channel: Some(ChannelId(0)),
        what: Lost::Entries { position, count },
    })
}

fn ledger(records: impl IntoIterator<Item = Record>) -> Ledger {
    let mut l = Ledger::new();
    l.record(&channel(Origin::Allocated, Some(RING)));
    for r in records {
        l.record(&r);
    }
    l
}

fn sub(position: u64, n: u32) -> Record {
    Record::Submission(submission(position, n))
}

#[test]
fn a_contiguous_stream_is_complete_over_the_wrap() {
    let l = ledger((0..20).map(|i| sub(i * 3, 3)));
    assert!(l.is_complete());
    assert_eq!(l.exit_status(), 0);
    let t = l.totals();
    assert_eq!(
        (t.submissions, t.entries, t.bytes, t.gaps),
        (20, 60, 60 * 64, 0)
    );
    assert!(l.channel(ChannelId(0)).unwrap().from_start());
    assert_eq!(
        verdict(&l),
        "complete: 20 submissions on 1 channel, 60 entries, 3.8 KiB, nothing missing"
    );
}

#[test]
fn a_skipped_submission_is_a_gap_of_its_size() {
    let l = ledger([sub(0, 2), sub(5, 1)]);
    assert_eq!(l.totals().gaps, 3);
    assert_eq!(l.exit_status(), 3);
    assert!(verdict(&l).starts_with("INCOMPLETE: 3 entries missing (channel 0)"));
    let missing = l.channel(ChannelId(0)).unwrap().missing_ranges();
    assert_eq!((missing.len(), missing[0].clone()), (1, 2..5));
}

#[test]
fn what_the_source_confesses_is_not_counted_twice() {
    for records in [
        vec![sub(0, 2), lost(2, 3), sub(5, 1)],
        vec![sub(0, 2), sub(5, 1), lost(2, 3)],
        vec![lost(2, 3), sub(0, 2), sub(5, 1)],
    ] {
        let l = ledger(records);
        assert_eq!(l.totals().gaps, 3);
        assert_eq!(l.totals().contradictions, 0);
    }
}

#[test]
fn a_beginning_that_was_not_captured_is_missing_where_it_was_seen() {
    assert_eq!(ledger([sub(4, 1)]).totals().gaps, 4);
    let mut found = Ledger::new();
    found.record(&channel(Origin::Found, Some(RING)));
    found.record(&sub(4, 1));
    assert!(found.is_complete());
    assert!(!found.channel(ChannelId(0)).unwrap().from_start());
}

#[test]
fn announced_entries_that_a_record_lacks_are_missing() {
    let mut s = submission(0, 4);
    s.segments.truncate(1);
    let l = ledger([Record::Submission(s)]);
    assert_eq!(l.totals().gaps, 3);
}

#[test]
fn a_gap_filled_late_is_no_gap() {
    let l = ledger([sub(0, 2), sub(4, 1), sub(2, 2)]);
    assert!(l.is_complete(), "{}", verdict(&l));
    assert!(l.channel(ChannelId(0)).unwrap().missing_ranges().is_empty());
}

#[test]
fn the_same_entries_twice_are_no_complete_trace() {
    let l = ledger([sub(0, 2), sub(0, 2)]);
    assert_eq!(l.totals().repeated, 2);
    assert_eq!(l.exit_status(), 3);
}

#[test]
fn gp_put_that_contradicts_the_position_is_noticed() {
    let mut s = submission(2, 1);
    s.prev_put = 4;
    s.gp_put = 5;
    let l = ledger([sub(0, 2), Record::Submission(s)]);
    assert_eq!((l.totals().contradictions, l.totals().gaps), (1, 0));
    assert!(!l.is_complete());
}

#[test]
fn holes_and_short_segments_are_unreadable_bytes() {
    let mut s = submission(0, 2);
    s.segments[0].holes.push(Hole { offset: 8, len: 16 });
    s.segments[1].bytes.truncate(60);
    let l = ledger([Record::Submission(s)]);
    assert_eq!((l.totals().unreadable, l.totals().bytes), (20, 128 - 20));
    assert!(verdict(&l).contains("20 B could not be read"));
}

#[test]
fn a_late_capture_is_counted_and_is_no_loss() {
    let mut s = submission(0, 1);
    s.late = true;
    let l = ledger([Record::Submission(s)]);
    assert_eq!(l.totals().late, 1);
    assert!(l.is_complete());
}

/// The reason for fewer submissions than entries is said: their doorbells are not known.
#[test]
fn entries_that_were_read_late_together_are_said_to_be_one_submission() {
    let mut late = submission(0, 5);
    late.late = true;
    let together = "(4 were read late with those before them, as one submission)";
    let l = ledger([Record::Submission(late), sub(5, 2)]);
    assert!(l.is_complete());
    assert_eq!((l.totals().submissions, l.totals().entries), (2, 7));
    // What a doorbell committed at once is one submission in truth.
    assert_eq!(l.totals().merged, 4);
    let said = format!("complete: 2 submissions on 1 channel, 7 entries {together}, ");
    assert!(verdict(&l).starts_with(&said), "{}", verdict(&l));
    let mut out = Vec::new();
    nvcap_show::output::ledger::json(&mut out, &l);
    let json: serde_json::Value = serde_json::from_slice(&out).unwrap();
    assert_eq!(
        (&json["merged"], &json["channels"][0]["merged"]),
        (&4.into(), &4.into())
    );
    let l = ledger([sub(0, 7)]);
    assert!(!verdict(&l).contains("read late"), "{}", verdict(&l));
}

#[test]
fn every_other_kind_of_loss_makes_it_incomplete_and_is_named() {
    for (what, words) in [
        (
            Lost::Records {
                kind: RecordKind::Submission,
                count: 7,
            },
            "7 records dropped (submission)",
        ),
        (
            Lost::UnknownChannel {
                token: Some(0xb),
                count: 2,
            },
            "2 doorbells of unknown channels",
        ),
        (
            Lost::Untraced {
                why: "no debug register left".into(),
            },
            "untraced: no debug register left",
        ),
    ] {
        let l = ledger([
            sub(0, 1),
            Record::Loss(Loss {
                at: at(5),
                channel: None,
                what,
            }),
        ]);
        assert_eq!(l.exit_status(), 3);
        assert!(verdict(&l).contains(words), "{}", verdict(&l));
    }
    let mut l = ledger([sub(0, 1)]);
    l.add_unshown(3);
    assert_eq!(l.exit_status(), 3);
    assert!(verdict(&l).contains("3 objects captured but not written out"));
}

#[test]
fn an_unknown_ring_size_leaves_gaps_visible() {
    let mut l = Ledger::new();
    l.record(&channel(Origin::Allocated, None));
    for r in [sub(0, 6), sub(6, 3), sub(12, 1), lost(13, 2), sub(15, 1)] {
        l.record(&r);
    }
    assert_eq!((l.totals().gaps, l.totals().contradictions), (5, 0));
}

#[test]
fn many_separate_gaps_are_all_counted_in_bounded_memory() {
    let l = ledger((0..5000).map(|i| sub(i * 2, 1)));
    assert_eq!(l.totals().gaps, 4999);
    assert!(l.channel(ChannelId(0)).unwrap().missing_ranges().len() <= 1024);
}

#[test]
fn hostile_positions_do_not_panic() {
    let mut s = submission(0, 1);
    s.position = u64::MAX;
    s.prev_put = u32::MAX;
    s.gp_put = 0;
    let l = ledger([
        sub(0, 1),
        Record::Submission(s.clone()),
        lost(u64::MAX, u64::MAX),
        Record::Submission(s),
        sub(1, 1),
    ]);
    assert!(!l.is_complete());
}

#[test]
fn the_table_names_the_channel_and_the_process() {
    let mut l = Ledger::new();
    l.record(&Record::Process(Process {
        at: at(0),
        life: Life::Present {
            name: "py\x1b[31mthon".into(),
        },
    }));
    l.record(&channel(Origin::Allocated, Some(RING)));
    l.record(&sub(0, 2));
    let mut out = Vec::new();
    text(&mut out, &l, false);
    let out = String::from_utf8(out).unwrap();
    let row = out.lines().nth(1).unwrap();
    assert_eq!(
        row.split_whitespace().collect::<Vec<_>>(),
        ["0", "py?[31mthon/4711", "0x0000a", "gr", "1", "2", "128"]
    );
    assert!(
        out.lines()
            .last()
            .unwrap()
            .starts_with("complete: 1 submission ")
    );
    assert!(!out.contains('\x1b'));
}

#[test]
fn duration_and_rate_are_of_the_submissions_alone() {
    let at_ms = |position: u64, ms: u64| {
        let mut s = submission(position, 4);
        s.at.time_ns = 1_000_000_000 + ms * 1_000_000;
        Record::Submission(s)
    };
    let said = |l: &Ledger| {
        let mut out = Vec::new();
        text(&mut out, l, false);
        json(&mut out, l);
        String::from_utf8(out).unwrap()
    };
    // 1,600 submissions of 256 B in 400 ms.
    let l = ledger((0..1600).map(|i| at_ms(i * 4, i * 400 / 1599)));
    assert_eq!(l.duration_ns(), Some(400_000_000));
    let shown = said(&l);
    let line = "400.0 KiB in 400 ms, from the first submission to the last: 4000 submissions/s, 1000.0 KiB/s";
    assert!(shown.contains(line), "{shown}");
    assert!(shown.contains("\"duration_ns\":400000000,"), "{shown}");
    // One submission, or several at one time, have no rate.
    for n in [0, 1, 2] {
        let l = ledger((0..n).map(|i| at_ms(i * 4, 7)));
        let shown = said(&l);
        assert!(!shown.contains("submissions/s"), "{shown}");
        assert!(shown.contains("\"duration_ns\":null,"), "{shown}");
    }
}

#[test]
fn the_json_ledger_says_the_same() {
    let l = ledger([sub(0, 2), sub(5, 1)]);
    let mut out = Vec::new();
    json(&mut out, &l);
    let v: serde_json::Value = serde_json::from_slice(&out).unwrap();
    assert_eq!(v["type"], "ledger");
    assert_eq!(v["complete"], false);
    assert_eq!(v["gaps"], 3);
    assert_eq!(v["channels"][0]["missing"], serde_json::json!([[2, 5]]));
    assert_eq!(v["channels"][0]["token"], 10);
    assert_eq!(v["time_ns"], 1005);
}

/// How much was understood: a line of what a profiler would count, and what could not be understood in the verdict.
#[test]
fn the_ledger_says_how_much_was_understood() {
    let shown = |ledger: &Ledger| {
        let (mut words, mut object) = (Vec::new(), Vec::new());
        text(&mut words, ledger, false);
        json(&mut object, ledger);
        let object: serde_json::Value = serde_json::from_slice(&object).unwrap();
        let schema = Schema::of_output();
        assert!(schema.check(&object).is_ok(), "{}", schema.explain(&object));
        (String::from_utf8(words).unwrap(), object)
    };
    let mut l = ledger([sub(0, 2)]);
    let (words, object) = shown(&l);
    assert!(!words.contains("launched") && object["understood"].is_null());

    // All of it.
    let whole = Counts {
        methods: 70,
        launches: 12,
        kernels: 10,
        nodes: 8,
        qmds_from_memory: 3,
        graphs: 2,
        ..Counts::default()
    };
    l.understand(whole);
    let (words, object) = shown(&l);
    let line = "launched 10 kernels and 2 kernels of the driver's own; 8 of all in 2 graph replays; 3 QMDs known from the process's memory\n";
    assert!(words.contains(line), "{words}");
    assert_eq!((l.is_complete(), l.exit_status()), (true, 0));
    assert!(verdict(&l).ends_with("nothing missing"));
    assert_eq!(
        object["understood"],
        serde_json::json!({
            "whole": true, "kernels": 10, "launches": 12, "graph_nodes": 8, "graph_replays": 2, "qmds_from_memory": 3,
            "qmds_not_seen": 0, "methods": 70, "methods_of_unknown_class": 0, "stops": 0,
        })
    );

    // Each by itself, and all together.
    let (unresolved, classless, stops) = (
        "the QMD of 1 of 12 launches was not seen",
        "5 of 70 method writes to a class that is not known (-v shows them; --chip NAME names the chip)",
        "1 entry could not be read to the end",
    );
    let one = |change: fn(&mut Counts)| {
        let mut counts = whole;
        change(&mut counts);
        counts
    };
    for (counts, says) in [
        (
            one(|c| (c.kernels, c.unresolved) = (9, 1)),
            unresolved.to_owned(),
        ),
        (one(|c| c.classless = 5), classless.to_owned()),
        (one(|c| c.stops = 1), stops.to_owned()),
        (
            one(|c| (c.kernels, c.unresolved, c.classless, c.stops) = (9, 1, 5, 1)),
            format!("{unresolved}; {classless}; {stops}"),
        ),
    ] {
        l.understand(counts);
        assert_eq!((l.is_complete(), l.exit_status()), (true, 5));
        let whole = format!("nothing missing, but NOT ALL UNDERSTOOD: {says}");
        assert!(verdict(&l).ends_with(&whole), "{}", verdict(&l));
        let (words, object) = shown(&l);
        assert!(words.ends_with(&format!("{whole}\n")));
        assert!(
            words.contains("and 2 kernels of the driver's own"),
            "{words}"
        );
        assert_eq!(
            (&object["complete"], &object["understood"]["whole"]),
            (&true.into(), &false.into())
        );
    }

    // What is lost comes first.
    let mut l = ledger([sub(0, 2), sub(5, 1)]);
    l.understand(one(|c| c.stops = 1));
    assert_eq!(l.exit_status(), 3);
    let v = verdict(&l);
    assert!(
        v.starts_with("INCOMPLETE: ") && v.ends_with(&format!(", but NOT ALL UNDERSTOOD: {stops}")),
        "{v}"
    );
}

/// Ends of processes whose error notifiers were not read: a fault there is not told, which the verdict says.
#[test]
fn notifiers_that_were_not_read_are_told() {
    let unread = |pid| {
        Record::Loss(Loss {
            at: At::of_process(9, pid),
            channel: None,
            what: Lost::Notifiers { count: 3 },
        })
    };
    let mut l = ledger([sub(0, 2), unread(7)]);
    let told = "nothing missing; a fault at the end of process 7 is not told: it was gone before its error notifiers were read";
    assert!(verdict(&l).ends_with(told), "{}", verdict(&l));
    assert_eq!((l.is_complete(), l.exit_status()), (true, 0));
    let mut out = Vec::new();
    json(&mut out, &l);
    let object: serde_json::Value = serde_json::from_slice(&out).unwrap();
    assert_eq!(object["unread_notifiers"], serde_json::json!([7]));
    l.record(&unread(8));
    let told = "a fault at the end of 2 processes is not told: they were gone before their error notifiers were read";
    assert!(verdict(&l).ends_with(told), "{}", verdict(&l));
    // Of one a fault is known: its end is told.
    let fault = Fault::of_notifier(At::of_process(5, 8), 31);
    l.record(&Record::Fault(Box::new(fault)));
    let v = verdict(&l);
    assert!(
        v.contains("a fault at the end of process 7 is not told"),
        "{v}"
    );
    assert_eq!(l.exit_status(), 6);
}

/// Observing states its margin, its cost, and why what is missing is missing.
#[test]
fn observing_states_its_margin_and_its_cost() {
    let mut ledger = Ledger::new();
    ledger.record(&channel(Origin::Found, Some(RING)));
    ledger.record(&Record::Submission(submission(0, 3)));
    let shown = |ledger: &Ledger| {
        let (mut words, mut object) = (Vec::new(), Vec::new());
        text(&mut words, ledger, false);
        json(&mut object, ledger);
        let object: serde_json::Value = serde_json::from_slice(&object).unwrap();
        let schema = Schema::of_output();
        assert!(schema.check(&object).is_ok(), "{}", schema.explain(&object));
        (String::from_utf8(words).unwrap(), object)
    };
    let (words, object) = shown(&ledger);
    assert!(!words.contains("observed") && object["observed"].is_null());

    let good = Observed {
        looks: 12,
        peeks: 40,
        longest_ns: 1_500_000,
        largest_part: 0.375,
        wall_ns: 1_000_000_000,
        cpu_ns: 250_000_000,
        reader_ns: 200_000_000,
        ..Observed::default()
    };
    ledger.add_observed(good.clone());
    let (words, object) = shown(&ledger);
    for part in [
        "observed 1 submission on 1 channel without a trap in 12 looks",
        "at most 1.50 ms and 37.5 % of a ring",
        "CPU used: 25.0 % of one core, 20.0 % to look",
        "complete: 1 submission",
    ] {
        assert!(words.contains(part), "no {part:?} in\n{words}");
    }
    assert_eq!(object["observed"]["largest_part"], 0.375);
    assert_eq!(object["observed"]["peeks"], 40);
    assert_eq!(object["observed"]["reasons"], serde_json::json!([]));

    // A short time is no 0.
    let short = Observed {
        longest_ns: 20_000,
        ..good.clone()
    };
    ledger.add_observed(short);
    let words = shown(&ledger).0;
    assert!(words.contains("at most 20.0 us and 37.5 %"), "{words}");

    // The reason names the remedy, and is not the budget's fault where none was given.
    let lapped = Observed { laps: 2, ..good };
    for (budget, throttled_ns, why) in [
        (Some(0.05), 9_000_000, "raise --observe-cpu"),
        (None, 0, "nvcap came too late"),
    ] {
        ledger.add_observed(Observed {
            budget,
            throttled_ns,
            reused: 1,
            ..lapped.clone()
        });
        let (words, object) = shown(&ledger);
        assert!(words.contains("a ring went round between two looks 2 times"));
        assert!(words.contains(why), "{words}");
        assert!(words.contains("1 entry whose memory was used again"));
        assert_eq!(object["observed"]["reasons"].as_array().unwrap().len(), 2);
    }
}

/// Attached while a long queue runs, nothing new may be submitted: that is no idle GPU.
#[test]
fn a_trace_without_a_submission_says_nothing_of_those_before() {
    let of = |origin| {
        let mut l = Ledger::new();
        l.record(&channel(origin, Some(RING)));
        verdict(&l)
    };
    let complete = "complete: 0 submissions on 0 channels, 0 entries, 0 B, nothing missing";
    assert_eq!(of(Origin::Allocated), complete);
    let found = of(Origin::Found);
    assert_eq!(
        found,
        format!(
            "{complete}; what was submitted before is not seen and may run on (nvcap dump shows what of it is not done)"
        )
    );
}

#[test]
fn one_reason_of_many_processes_is_one_line() {
    let untraced = |pid, why: &str| {
        Record::Loss(Loss {
            at: At {
                time_ns: 1,
                pid,
                tid: 0,
            },
            channel: None,
            what: Lost::Untraced { why: why.into() },
        })
    };
    let mut l = ledger([]);
    for pid in [11, 12, 13, 12] {
        l.record(&untraced(pid, "no rights"));
    }
    l.record(&untraced(14, "no answer"));
    let mut out = Vec::new();
    text(&mut out, &l, false);
    let out = String::from_utf8(out).unwrap();
    let lines: Vec<_> = out.lines().filter(|l| l.starts_with("untraced")).collect();
    assert_eq!(
        lines,
        [
            "untraced in processes 11, 12, 13: no rights (4 times)",
            "untraced in process 14: no answer"
        ],
        "{out}"
    );
    assert!(verdict(&l).contains("untraced: no rights and 1 reason more"));
}
