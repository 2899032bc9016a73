//! Tests of the report on times that are known, known in part, and not known.

use super::super::sentence::verdict;
use super::*;

fn work(busy_ns: u64, ns: u64, empty_ns: (u64, u64), waited_ns: u64) -> Intervals {
    let mut work = Intervals::default();
    work.busy_ns = busy_ns;
    work.idle = Idle {
        ns,
        empty_ns,
        waited_ns,
        ..Idle::default()
    };
    work
}

#[test]
fn a_sentence_says_what_was_lacking() {
    let cases = [
        (
            work(950_000, 50_000, (0, 50_000), 0),
            "GPU-bound; work ran in 95.0 % of 1.00 ms; in 0 % of the rest work waited for a semaphore, and when other work was submitted is not known well enough",
        ),
        (
            work(100_000, 900_000, (540_000, 720_000), 90_000),
            "launch-bound; work ran in 10.0 % of 1.00 ms; in 60..80 % of the rest nothing was submitted, in 10 % work waited for a semaphore",
        ),
        (
            work(100_000, 900_000, (90_000, 90_000), 720_000),
            "bound by waits for semaphores; work ran in 10.0 % of 1.00 ms; in 10 % of the rest nothing was submitted, in 80 % work waited for a semaphore",
        ),
        (
            work(400_000, 600_000, (0, 60_000), 0),
            "bound by waits between submissions; work ran in 40.0 % of 1.00 ms; in 0..10 % of the rest nothing was submitted, in 0 % work waited for a semaphore",
        ),
        (
            work(2_000, 0, (0, 0), 0),
            "GPU-bound; work ran in 100.0 % of 2.00 us",
        ),
    ];
    for (work, expected) in cases {
        assert_eq!(sentence(&work, Parts::default(), 1.0, None), expected);
    }
    // What is no tenth of a per cent is no rest.
    assert_eq!(
        sentence(
            &work(2_000_000, 100, (100, 100), 0),
            Parts::default(),
            1.0,
            None
        ),
        "GPU-bound; work ran in 100.0 % of 2.00 ms"
    );
    let mut none = work(0, 0, (0, 0), 0);
    none.unknown_ns = 7_000;
    assert_eq!(
        sentence(&none, Parts::default(), 1.0, None),
        "how busy it was is not known (7.00 us)"
    );
    let mut unknown = work(2_000, 0, (0, 0), 0);
    unknown.unknown_ns = 7_000;
    assert_eq!(
        sentence(&unknown, Parts::default(), 1.0, Some(0.05)),
        "too little is known for a verdict; work ran in 22..100 % of the 9.00 us that were looked at; of 7.00 us nothing is known"
    );
}

#[test]
fn of_little_there_is_no_verdict() {
    let few = work(900, 100, (100, 100), 0);
    assert_eq!(verdict(&few, Parts::default(), 0.49), None);
    assert!(verdict(&few, Parts::default(), 0.5).is_some());
    assert_eq!(
        sentence(&few, Parts::default(), 0.02, None),
        "too little is known for a verdict (starts of 2.0 % of the work); what is known to have run took 90.0 % of 1.00 us"
    );
    // What is not known decides whether the GPU was at work for nine tenths of the time.
    let mut nearly = few.clone();
    nearly.unknown_ns = 300;
    assert_eq!(verdict(&nearly, Parts::default(), 1.0), Some("GPU-bound"));
    assert_eq!(
        sentence(&nearly, Parts::default(), 1.0, None),
        "GPU-bound; work ran in 69..92 % of 1.30 us; in 100 % of the rest nothing was submitted, in 0 % work waited for a semaphore; of 300 ns nothing is known"
    );
    nearly.unknown_ns = 400;
    assert_eq!(verdict(&nearly, Parts::default(), 1.0), None);
    // Short copies between replays, of which every second one is timed: what the others may have taken is decided by those.
    let mut short = work(660, 60, (60, 60), 0);
    (short.unknown_ns, short.estimated_ns, short.unknown_about_ns) = (280, 280, 10);
    assert_eq!(
        sentence(&short, Parts::default(), 0.75, None),
        "launch-bound; work ran in 66..94 % of 1.00 us; in 100 % of the rest nothing was submitted, in 0 % work waited for a semaphore; \
         in 280 ns works may have run whose times were not seen: if they are like the others of their channels, work ran in about 67 %"
    );
    // Were they as long as the time in which they lie, the GPU would be the limit.
    short.unknown_about_ns = 280;
    assert_eq!(verdict(&short, Parts::default(), 0.75), Some("GPU-bound"));
    let mut half = work(100, 900, (900, 900), 0);
    half.unknown_ns = 1_000;
    assert!(verdict(&half, Parts::default(), 1.0).is_some());
    half.unknown_ns += 1;
    assert_eq!(verdict(&half, Parts::default(), 1.0), None);
}

#[test]
fn a_sentence_says_what_the_work_was() {
    let with = |busy, idle, empty, of: Parts| sentence(&work(busy, idle, empty, 0), of, 1.0, None);
    let of = |copies_ns, replays_ns, peers_ns| Parts {
        copies_ns,
        replays_ns,
        peers_ns,
    };
    for (said, expected) in [
        (
            with(950_000, 50_000, (0, 0), of(0, 0, 700_000)),
            "waiting for peers; work ran in 95.0 % of 1.00 ms, and in 70.0 % it was a collective that waited for another rank; in 0 % of the rest nothing was submitted, in 0 % work waited for a semaphore",
        ),
        (
            // Peers are the lesser part of what it lacks.
            with(500_000, 500_000, (400_000, 500_000), of(0, 0, 100_000)),
            "launch-bound; work ran in 50.0 % of 1.00 ms, and in 10.0 % it was a collective that waited for another rank; in 80..100 % of the rest nothing was submitted, in 0 % work waited for a semaphore",
        ),
        (
            with(1_000_000, 0, (0, 0), of(600_000, 0, 0)),
            "copy-bound; work ran in 100.0 % of 1.00 ms; in 60.0 % copies alone ran",
        ),
        (
            with(1_000_000, 0, (0, 0), of(0, 830_000, 0)),
            "GPU-bound by graph replays; work ran in 100.0 % of 1.00 ms; replays of graphs took 83.0 % of the work",
        ),
        (
            with(100_000, 900_000, (0, 800_000), of(0, 0, 0)),
            "launch-bound, or bound by waits between submissions; work ran in 10.0 % of 1.00 ms; in 0 % of the rest work waited for a semaphore, and when other work was submitted is not known well enough",
        ),
    ] {
        assert_eq!(said, expected);
    }
    // A program that waits for the GPU and then pauses, looked at now and then.
    let mut paused = work(100_000, 900_000, (0, 800_000), 0);
    paused.idle.dry_ns = (0, 700_000);
    assert_eq!(
        verdict(&paused, Parts::default(), 1.0),
        Some("waiting for the host, or bound by waits between submissions")
    );
    let mut dry = work(100_000, 900_000, (800_000, 850_000), 0);
    dry.idle.dry_ns = (700_000, 720_000);
    assert_eq!(
        sentence(&dry, Parts::default(), 1.0, None),
        "waiting for the host; work ran in 10.0 % of 1.00 ms; in 89..94 % of the rest nothing was submitted (78..80 % behind work that had been submitted ahead: the program waited, for the GPU or for something else), in 0 % work waited for a semaphore"
    );
}

#[test]
fn what_is_not_known_is_no_zero() {
    let mut account = Account::default();
    for (name, ns) in [("timed", Some(500)), ("untimed", None)] {
        let row = account.rows.entry(What::Kernel(name.to_owned()));
        let row = row.or_default();
        row.text = name.to_owned();
        row.count = 2;
        ns.into_iter().for_each(|ns| row.durations.add(ns));
        row.total = ns.map(|ns| Total {
            least_ns: ns,
            about_ns: 2 * ns,
            most_ns: 3 * ns,
        });
    }
    let mut work = work(0, 0, (0, 0), 0);
    work.unknown_ns = 7_000;
    let channel = ChannelTime {
        work: work.clone(),
        ..ChannelTime::default()
    };
    account.gpus.insert(Whose::Process(0), work);
    account
        .channels
        .insert(nvcap_decode::record::ChannelId(3), channel);
    let mut out = Vec::new();
    account.text(&mut out, false, None);
    let text = String::from_utf8(out).expect("text");
    let line = |of: &str| {
        let line = text.lines().find(|l| l.ends_with(of));
        let line = line.unwrap_or_else(|| panic!("{of}: {text}"));
        line.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(line("  timed")[..2], ["100.0", "~1.00"]);
    assert_eq!(line("  untimed")[..2], ["?", "?"]);
    assert_eq!(line("channel 3 (?), process ?")[..3], ["?", "?", "?"]);
    assert!(text.starts_with("the GPU of process ?: how busy it was is not known"));
    assert!(!line("channel 3 (?), process ?").contains(&"ns".to_owned()));
    let json = account.json();
    let untimed = &json["kernels"][1];
    assert_eq!(untimed["kernel"], "untimed");
    for member in ["total_ns", "mean_ns", "least_ns", "p50_ns", "most_ns"] {
        assert!(untimed["gpu"][member].is_null(), "{member}: {untimed}");
    }
    assert!(json["gpus"][0]["pid"].is_null() && json["gpus"][0]["verdict"].is_null());
    assert!(json["channels"][0]["pid"].is_null());
    assert!(json["channels"][0]["queued_p50_ns"].is_null());
}

/// At 80 columns a kernel's name has room, and every line fits.
#[test]
fn tables_fit_a_terminal() {
    let mut account = Account::default();
    let name =
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>";
    let row = account.rows.entry(What::Kernel(name.to_owned()));
    let row = row.or_default();
    row.text = name.to_owned();
    row.count = 1_234_567;
    row.durations.add(12_345_678);
    account
        .gpus
        .insert(Whose::Gpu(0), work(2_000, 0, (0, 0), 0));
    let channel = ChannelTime {
        work: work(100_000, 900_000, (90_000, 890_000), 720_000),
        ..ChannelTime::default()
    };
    account
        .channels
        .insert(nvcap_decode::record::ChannelId(0), channel);
    for width in [80, 120] {
        let mut out = Vec::new();
        account.text(&mut out, false, Some(width));
        let text = String::from_utf8(out).expect("text");
        for line in text.lines() {
            assert!(line.chars().count() <= width, "{width}: {line}");
        }
        let head = text
            .lines()
            .find(|l| l.ends_with("kernel"))
            .expect("a head");
        let row = text.lines().find(|l| l.contains("void")).expect("a row");
        assert_eq!(head.find("kernel"), row.find("void"), "{text}");
        assert!(row.contains("void at::native::vectori"), "{width}: {row}");
        assert!(head.contains("median") == (width == 120), "{head}");
    }
    let mut out = Vec::new();
    account.text(&mut out, false, None);
    assert!(String::from_utf8(out).expect("text").contains(name));
}

#[test]
fn times_of_each_process_are_those_of_several() {
    let of_each = |of: &[(u64, u64, u64)]| {
        let of = (1..).zip(of.iter().copied()).collect();
        let row = Row {
            of,
            ..Row::default()
        };
        row.of_each()
    };
    let (long, short) = ((3, 3, 30_000), (2, 1, 10_000));
    assert_eq!(of_each(&[]), None);
    assert_eq!(of_each(&[long]), None);
    // The time of the other one is not known.
    assert_eq!(of_each(&[long, (2, 0, 0)]), None);
    let both = of_each(&[long, short, (2, 0, 0)]).unwrap();
    assert_eq!(both, "10.0 us..30.0 us");
}

/// A line whose time is a part of the others' says so: its shares are of that part.
#[test]
fn parts_of_another_time_say_of_which() {
    let mut account = Account::default();
    for (id, busy_ns, idle_ns) in [(0, 170_000, 830_000), (1, 170_000, 0)] {
        let channel = ChannelTime {
            work: work(busy_ns, idle_ns, (idle_ns, idle_ns), 0),
            ..ChannelTime::default()
        };
        let id = nvcap_decode::record::ChannelId(id);
        account.channels.insert(id, channel);
    }
    let mut out = Vec::new();
    account.text(&mut out, false, None);
    let text = String::from_utf8(out).expect("text");
    let of = |of: &str| text.lines().find(|l| l.contains(of)).expect("a line");
    assert!(of("channel 0").ends_with("process ?"), "{text}");
    assert!(
        of("channel 1").ends_with("process ?, over 170 us"),
        "{text}"
    );
}
