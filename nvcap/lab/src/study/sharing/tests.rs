//! Tests of the way from times and channels to rules, with made-up data. Times are in thousandths of a
//! millisecond.

use super::joined::{Channel, Scene};
use super::rules::{Rule, Verdict};
use super::told::{Copies, Device, Kernel, ProcessAccount, Told};
use super::traced::{TracedChannel, TracedScenes};
use super::{Study, study, told};
use crate::bench::CopyEngine;
use crate::study::page;
use nvcap_decode::record::ChannelId;

const US: u64 = 1000;
const COMPUTE: [&str; 2] = ["GR0", "COPY0"];
const H2D: [&str; 1] = ["COPY2"];

/// A kernel of 4 ms that was launched at 0.
fn kernel(number: u32, stream: &str, start: u64) -> Kernel {
    Kernel {
        stream: stream.to_owned(),
        priority: 0,
        number,
        ns: 4000 * US,
        called: 0,
        returned: 2 * US,
        start: start * US,
        end: (start + 4000) * US,
        starts: vec![start * US],
        sms: 1,
        pauses: Vec::new(),
    }
}

fn copies(bytes: u64, way: &str, ends: impl Iterator<Item = u64>) -> Copies {
    Copies {
        stream: way.to_owned(),
        way: way.to_owned(),
        bytes,
        ends: ends.map(|t| t * US).collect(),
    }
}

fn process(pid: u32, kernels: Vec<Kernel>, copies: Vec<Copies>) -> ProcessAccount {
    ProcessAccount {
        pid,
        clock_error: US,
        kernels,
        copies,
    }
}

fn told(scenes: &[(&str, Vec<ProcessAccount>)]) -> Told {
    let scene = |(name, processes): &(&str, Vec<ProcessAccount>)| told::Scene {
        name: (*name).to_owned(),
        connections: None,
        processes: processes.clone(),
    };
    Told {
        device: Device {
            cuda: 13000,
            sms: 132,
            fill_blocks: 528,
            least_priority: 0,
            greatest_priority: -5,
        },
        scenes: scenes.iter().map(scene).collect(),
        notes: Vec::new(),
    }
}

/// Makes a trace of channels (number, process, runlist, engines), with the kernels and the sizes of
/// copies that went into each.
fn seen(
    channels: &[(u32, u32, Option<u32>, &[&str])],
    kernels: &[(u32, u32)],
    copies: &[(u64, u32, u64)],
) -> TracedScenes {
    let mut seen = TracedScenes::default();
    for (number, pid, runlist, engines) in channels {
        let found = TracedChannel {
            pid: *pid,
            gpu: Some(0),
            token: runlist.map(|r| r << 16 | number),
            chid: Some(*number),
            runlist: *runlist,
            group: Some((*pid, runlist.unwrap_or(0))),
            engines: engines.iter().map(ToString::to_string).collect(),
        };
        seen.channels.insert(ChannelId(*number), found);
    }
    for (kernel, channel) in kernels {
        seen.kernels.insert(*kernel, ChannelId(*channel));
    }
    for (bytes, channel, count) in copies {
        let of_size = seen.copies.entry(*bytes).or_default();
        of_size.insert(ChannelId(*channel), *count);
    }
    seen
}

fn studied(told: &Told, seen: &TracedScenes) -> Study {
    study(
        told,
        seen,
        told,
        Err("refused".to_owned()),
        "complete".to_owned(),
    )
}

fn rule<'a>(study: &'a Study, name: &str) -> &'a Rule {
    let rule = study.rules.iter().find(|r| r.rule == name);
    rule.unwrap_or_else(|| panic!("{name}: {:?}", study.rules))
}

fn verdicts(study: &Study) -> Vec<Verdict> {
    study.rules.iter().map(|r| r.verdict).collect()
}

/// Three streams of two kernels each in two channels: the third stands behind the first.
fn three_in_two(third_starts: u64) -> (Told, TracedScenes) {
    let kernels = vec![
        kernel(1, "0", 5),
        kernel(2, "0", 4010),
        kernel(3, "1", 8),
        kernel(4, "1", 4020),
        kernel(5, "2", third_starts),
        kernel(6, "2", third_starts + 4005),
    ];
    let told = told(&[
        (
            "streams_2",
            vec![process(7, kernels[..4].to_vec(), Vec::new())],
        ),
        ("streams_3", vec![process(7, kernels, Vec::new())]),
    ]);
    let channels: &[(u32, u32, Option<u32>, &[&str])] =
        &[(1, 7, Some(0), &COMPUTE), (2, 7, Some(0), &COMPUTE)];
    let seen = seen(
        channels,
        &[(1, 1), (2, 1), (3, 2), (4, 2), (5, 1), (6, 1)],
        &[],
    );
    (told, seen)
}

#[test]
fn a_stream_waits_in_the_channel_of_another() {
    let (told, seen) = three_in_two(4012);
    let study = studied(&told, &seen);
    let [two, three] = &study.scenes[..] else {
        panic!("{:?}", study.scenes);
    };
    assert_eq!(
        (two.streams, two.channels, two.late, two.at_once),
        (2, Some(2), 0, 2)
    );
    assert_eq!(
        (three.streams, three.channels, three.most_in_one),
        (3, Some(2), 2)
    );
    assert_eq!((three.late, three.late_behind_channel), (1, 1));
    assert_eq!(three.late_untraced, Some(1));
    let behind = three.kernels[4].behind.as_ref().unwrap();
    assert_eq!((behind.stream.as_str(), behind.after_ns), ("0", 2 * US));
    assert_eq!(rule(&study, "R2").verdict, Verdict::Shown);
    assert_eq!(
        rule(&study, "R2").evidence,
        "2 streams in 2 channels: 0 late, 0 of them behind a kernel of their own channel; \
         3 streams in 2 channels: 1 late, 1 of them behind a kernel of their own channel"
    );
    assert_eq!(rule(&study, "R1").verdict, Verdict::Shown);
    assert_eq!(rule(&study, "R3").verdict, Verdict::Shown);
}

#[test]
fn a_channel_that_nobody_waits_in() {
    let (told, seen) = three_in_two(9);
    assert_eq!(
        rule(&studied(&told, &seen), "R2").verdict,
        Verdict::Contradicted
    );
}

/// A kernel that waits behind another channel's kernel is no evidence for the rule.
#[test]
fn a_wait_for_another_channel() {
    let (told, seen) = three_in_two(4025);
    let study = studied(&told, &seen);
    assert_eq!(
        (study.scenes[1].late, study.scenes[1].late_behind_channel),
        (1, 0)
    );
    assert_eq!(rule(&study, "R2").verdict, Verdict::NotShown);
}

#[test]
fn what_the_trace_lacks_is_not_shown() {
    let (told, mut seen) = three_in_two(4012);
    seen.kernels.remove(&6);
    let study = studied(&told, &seen);
    assert_eq!(study.scenes[1].channels, None);
    for name in ["R1", "R2"] {
        assert_eq!(rule(&study, name).verdict, Verdict::NotShown, "{name}");
    }
    assert!(rule(&study, "R1").evidence.starts_with("9 of 10 kernels"));
    let study = studied(&told, &TracedScenes::default());
    assert!(verdicts(&study).iter().all(|v| *v == Verdict::NotShown));
}

/// Makes a study of two processes' kernels, which take turns of 2 ms, or take none.
fn pair(turns: bool) -> Study {
    let long = |number, phase: u64| {
        let mut kernel = kernel(number, "spin", 0);
        kernel.end = 20_000 * US;
        let pauses = (0..5).map(|i| ((i * 4000 + phase) * US, (i * 4000 + phase + 2000) * US));
        kernel.pauses = if turns { pauses.collect() } else { Vec::new() };
        kernel
    };
    let processes = vec![
        process(7, vec![long(1, 2000)], Vec::new()),
        process(8, vec![long(2, 0)], Vec::new()),
    ];
    let told = told(&[("pair_compute", processes)]);
    let channels: &[(u32, u32, Option<u32>, &[&str])] =
        &[(1, 7, Some(0), &COMPUTE), (2, 8, Some(0), &COMPUTE)];
    studied(&told, &seen(channels, &[(1, 1), (2, 2)], &[]))
}

#[test]
fn processes_take_turns() {
    let study = pair(true);
    let rule = rule(&study, "R4");
    assert_eq!(rule.verdict, Verdict::Shown, "{}", rule.evidence);
    assert_eq!(
        rule.evidence,
        "of 20.000 ms in which both kernels had begun and not ended, both ran for 0.000 ms; \
         process 7 was stopped 5 times, ran 2.000 ms and stood still 2.000 ms at a time (medians); \
         process 8 was stopped 5 times, ran 2.000 ms and stood still 2.000 ms at a time (medians); runlists 0 and 0"
    );
}

#[test]
fn processes_at_the_same_time() {
    let study = pair(false);
    assert_eq!(rule(&study, "R4").verdict, Verdict::Contradicted);
}

/// Makes a kernel beside another process's copies, each of which takes this long.
fn beside(copy_takes: u64, copies_on: u32) -> Study {
    let ends = |each: u64| (1..100).map(move |i| i * each);
    let told = told(&[
        (
            "alone_copies",
            vec![process(8, Vec::new(), vec![copies(4096, "h2d", ends(80))])],
        ),
        (
            "pair_compute_copies",
            vec![
                process(7, vec![kernel(1, "spin", 0)], Vec::new()),
                process(8, Vec::new(), vec![copies(8192, "h2d", ends(copy_takes))]),
            ],
        ),
    ]);
    let channels: &[(u32, u32, Option<u32>, &[&str])] =
        &[(1, 7, Some(0), &COMPUTE), (2, 8, Some(copies_on), &H2D)];
    studied(
        &told,
        &seen(channels, &[(1, 1)], &[(4096, 2, 99), (8192, 2, 99)]),
    )
}

#[test]
fn copies_beside_another_process() {
    let verdict = |study: &Study| rule(study, "R5").verdict;
    let study = beside(82, 1);
    assert_eq!(verdict(&study), Verdict::Shown, "{:?}", rule(&study, "R5"));
    assert_eq!(rule(&study, "R1").verdict, Verdict::Shown);
    assert_eq!(verdict(&beside(200, 1)), Verdict::Contradicted);
    assert_eq!(verdict(&beside(110, 1)), Verdict::NotShown);
    // On the same runlist nothing follows.
    assert_eq!(verdict(&beside(82, 0)), Verdict::NotShown);
}

#[test]
fn engines_and_runlists() {
    let study = beside(82, 1);
    assert_eq!(rule(&study, "R6").verdict, Verdict::Shown);
    assert_eq!(
        rule(&study, "R6").evidence,
        "runlist 0: COPY0, GR0; runlist 1: COPY2"
    );
    assert_eq!(rule(&study, "R7").verdict, Verdict::Shown);
    let (told, mut seen) = three_in_two(9);
    for channel in seen.channels.values_mut() {
        channel.engines.truncate(1);
    }
    seen.channels.get_mut(&ChannelId(2)).unwrap().runlist = Some(3);
    let study = studied(&told, &seen);
    assert_eq!(rule(&study, "R6").verdict, Verdict::Contradicted);
    assert_eq!(rule(&study, "R7").verdict, Verdict::Contradicted);
    assert_eq!(rule(&study, "R7").evidence, "GR0: 0, 3");
}

#[test]
fn groups_are_numbered() {
    let study = pair(true);
    let groups = study
        .channels
        .iter()
        .map(|c: &Channel| (c.number, c.group, c.used));
    assert_eq!(
        groups.collect::<Vec<_>>(),
        [(1, Some(0), true), (2, Some(1), true)]
    );
}

#[test]
fn a_full_gpu_and_the_null_stream() {
    let mut first = kernel(1, "first", 0);
    first.starts = (0..4).map(|i| i * 1000 * US).collect();
    let mut second = kernel(2, "second", 1000);
    second.end = 2000 * US;
    second.called = 100 * US;
    let null = [
        ("blocking 1", 0),
        ("null", 4010),
        ("blocking 2", 8020),
        ("non-blocking", 20),
    ];
    let null = null
        .iter()
        .zip(3..)
        .map(|((stream, start), n)| kernel(n, stream, *start));
    let told = told(&[
        (
            "fill_higher",
            vec![process(7, vec![first, second], Vec::new())],
        ),
        ("null_stream", vec![process(7, null.collect(), Vec::new())]),
    ]);
    let study = studied(&told, &TracedScenes::default());
    let texts: Vec<&str> = study.findings.iter().map(|f| f.text.as_str()).collect();
    assert_eq!(
        texts,
        [
            "a kernel launched 0.100 ms after one of 4 blocks (on 1 SMs) started 1.000 ms after that one's first block, when 1 of its \
             blocks had started; it had ended 2.000 ms before the other",
            "its kernel started 0.010 ms after the end of a blocking stream's that was launched before it, the next blocking stream's 0.010 ms after \
             its own end; a non-blocking stream's kernel ran 3.980 ms beside the first",
        ]
    );
}

#[test]
fn text_and_page() {
    let (told, seen) = three_in_two(4012);
    let study = studied(&told, &seen);
    let text = study.text();
    assert!(text.starts_with("CUDA 13.0, 132 SMs, 528 blocks"), "{text}");
    assert!(text.contains("\nR2 shown: "), "{text}");
    assert!(text.contains("\nR8 cannot be shown here: "), "{text}");
    // Of the scenes of streams, the kernels of the largest.
    let shown: Vec<&str> = study.shown().map(|s: &Scene| s.name.as_str()).collect();
    assert_eq!(shown, ["streams_3"]);
    assert!(text.ends_with("\nthe trace: complete\n"), "{text}");
    let html = page::of_sharing(&study);
    for wanted in [
        "<h2>streams_3</h2>",
        ">channel 1, stream 0</text>",
        "<title>stream 2, kernel 0: 4.012 to 8.012 ms, behind stream 0</title>",
    ] {
        assert!(html.contains(wanted), "{wanted}: {html}");
    }
}

#[test]
fn copy_engines_that_share_a_physical_one() {
    let engine = |name: &str, physical: &[u32]| CopyEngine {
        engine: name.to_owned(),
        physical: physical.to_vec(),
    };
    let (told, seen) = (told(&[]), TracedScenes::default());
    let with = |engines: Vec<CopyEngine>| {
        let ledger = "complete".to_owned();
        study(&told, &seen, &told, Ok(engines), ledger)
    };
    // As on a GA106.
    let shared = with(vec![
        engine("COPY0", &[5]),
        engine("COPY1", &[4]),
        engine("COPY2", &[4]),
        engine("COPY3", &[5]),
    ]);
    let r8 = rule(&shared, "R8");
    assert_eq!(r8.verdict, Verdict::Shown);
    assert_eq!(
        r8.evidence,
        "COPY0, COPY3 share physical engine 5; COPY1, COPY2 share physical engine 4"
    );
    assert!(shared.notes.is_empty());
    let apart = with(vec![engine("COPY0", &[0, 1]), engine("COPY1", &[2])]);
    let r8 = rule(&apart, "R8");
    assert_eq!(r8.verdict, Verdict::NotShown);
    assert!(
        r8.evidence.starts_with(
            "COPY0 alone has physical engines 0, 1; COPY1 alone has physical engine 2"
        )
    );
    let refused = studied(&told, &seen);
    assert_eq!(rule(&refused, "R8").verdict, Verdict::NotShown);
    assert_eq!(refused.notes, ["the copy engines' physical ones: refused"]);
}
