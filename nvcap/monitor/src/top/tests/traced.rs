//! Sums of traces: of captures, and of events that are made here.

use std::sync::Arc;

use super::*;
use nvcap_decode::decode::event::{
    Body, Context, DurationBy, Engine, Event, GpuDuration, GpuMoment, GpuTime, Graph, Operation,
    SubmissionHead,
};
use nvcap_decode::ledger::Ledger;
use nvcap_decode::record::{At, ChannelId, Fault, How, Loss, Lost, Record};
use nvcap_recording::file::orc::Orc;
use nvcap_recording::recording::{Item, Reader};
use nvcap_show::pipeline::{Pipeline, PipelineOptions};

const TRAINING: &[u8] = include_bytes!("../../../../../tests/fixtures/training.pcapng");
const H200: &[u8] = include_bytes!("../../../../../tests/fixtures/h200-cut.orc");

/// A capture, summed up.
fn capture() -> (Tally, Ledger) {
    let mut tally = Tally::default();
    let mut pipeline = Pipeline::new(PipelineOptions::default(), vec![Box::new(&mut tally)]);
    for record in Orc::new(H200).flatten() {
        pipeline.record(record).unwrap();
    }
    let ledger = pipeline.finish().unwrap();
    (tally, ledger)
}

/// A recording, as it is replayed.
pub(super) fn recording() -> (Tally, Ledger) {
    let mut reader = Reader::new(TRAINING);
    let info = reader.trace().cloned().unwrap();
    let mut tally = Tally::default();
    let mut pipeline = Pipeline::new(PipelineOptions::default(), vec![Box::new(&mut tally)]);
    pipeline.as_recorded(None, info.gpu_time, !info.in_order, true);
    for item in reader {
        if let Ok(Item::Record(record)) = item {
            pipeline.record(record).unwrap();
        }
    }
    let ledger = pipeline.finish().unwrap();
    (tally, ledger)
}

/// Faults are shown from their moment on, with what the record tells.
#[test]
fn faults_of_a_recording_are_shown_from_their_moment_on() {
    let (mut tally, _) = recording();
    let model = nvcap_decode::driver::Model::new(nvcap_decode::driver::ModelOptions::default());
    for (ns, code) in [(10, 31), (2 * SECOND, 13)] {
        let fault = Fault::of_notifier(At::of_process(tally.origin() + ns, 4711), code);
        let record = Record::Fault(Box::new(fault));
        tally.record(&record, &model).unwrap();
    }
    let lines = |until, offset| tally.faults(until, offset).lines();
    assert!(lines(9, 0).is_empty());
    assert_eq!(
        lines(10, 0),
        ["0.0 s  process 4711 train: Xid 31, a fault of the memory management unit"]
    );
    let both = lines(2 * SECOND, 1);
    assert_eq!(both.len(), 2);
    assert!(
        both[0].contains("Xid 13, an exception of the graphics engine"),
        "{both:?}"
    );
    let of_day = both[0].split(':').count();
    assert_eq!(of_day, 4, "the time of day: {both:?}");
}

fn submissions(tally: &Tally, span: (u64, u64)) -> u64 {
    let sums = tally.sums(span);
    sums.channels.values().map(|flow| flow.submissions).sum()
}

#[test]
fn all_is_counted_once() {
    for (tally, ledger) in [capture(), recording()] {
        let (all, end) = (ledger.totals().submissions, tally.length_ns());
        assert!(all > 10, "{all}");
        assert_eq!(submissions(&tally, (0, end)), all);
        assert_eq!(submissions(&tally, (0, u64::MAX)), all);
        // Parts make up the whole; they begin where a step does.
        let part = SECOND / 2;
        let parts = (0..=end / part).map(|n| submissions(&tally, (n * part, n * part + part - 1)));
        assert_eq!(parts.sum::<u64>(), all);
    }
}

#[test]
fn a_recording_on_the_screen() {
    let (tally, ledger) = recording();
    let mut state = State::new(Some(tally.length_ns()), SECOND);
    state.has_times = tally.has_times();
    let table = |state: &State| {
        let pid = state.of.as_ref().map(|(pid, _)| *pid);
        works::table(
            &tally,
            state.screen,
            pid,
            state.span(tally.length_ns()),
            None,
        )
    };
    let first = table(&state);
    assert_eq!(first.rows.len(), 1, "{first:?}");
    let lines = shown(&mut state, &first);
    let all = ledger.totals().submissions.to_string();
    assert!(
        lines[1].starts_with("processes, from the beginning  [paused]"),
        "{lines:#?}"
    );
    // One of the copies has no known time.
    let part = "times of 169 of 170 launches and copies: GPU TIME is >=";
    assert_eq!(lines[2].trim_end(), part);
    assert!(lines[4].contains(&all), "{lines:#?}");
    press(&mut state, &first, KeyCode::Char('k'));
    let kernels = table(&state);
    assert!(kernels.rows.len() == 3 && kernels.columns[5].name == "KERNEL");
    let lines = shown(&mut state, &kernels);
    assert!(lines[1].starts_with("kernels of process"), "{lines:#?}");
    let rows = state.rows(&kernels);
    let counts: Vec<_> = { rows.iter() }
        .map(|row| row.cells[if state.has_times { 0 } else { 2 }].rank.clone())
        .collect();
    let falls = |pair: &[super::super::table::Rank]| match pair {
        [
            super::super::table::Rank::Number(a),
            super::super::table::Rank::Number(b),
        ] => a >= b,
        _ => true,
    };
    assert!(counts.windows(2).all(falls), "{counts:?}");
    press(&mut state, &kernels, KeyCode::Char('m'));
    assert_eq!(state.screen, Screen::Copies);
    let copies = table(&state);
    assert!(!copies.rows.is_empty());
    shown(&mut state, &copies);
    press(&mut state, &copies, KeyCode::Char('c'));
    let channels = table(&state);
    let lines = shown(&mut state, &channels);
    assert!(
        lines[3].contains("QUEUED") && lines[3].contains("ENGINE"),
        "{lines:#?}"
    );
}

/// A capture that names no process.
#[test]
fn a_process_that_is_not_known_is_no_zero() {
    let (tally, _) = capture();
    let mut state = State::new(Some(tally.length_ns()), SECOND);
    let (span, mut whose) = ((0, u64::MAX), None);
    for screen in [
        Screen::Processes,
        Screen::Channels,
        Screen::Kernels,
        Screen::Copies,
    ] {
        state.screen = screen;
        let table = works::table(&tally, screen, whose, span, None);
        let column = table.columns.iter().position(|c| c.name == "PID").unwrap();
        assert!(!table.rows.is_empty(), "{screen:?}");
        for row in &table.rows {
            assert_eq!(row.cells[column].text, "?", "{screen:?}");
        }
        let row = &table.rows[0];
        whose = Some(row.pid);
        state.of = Some((row.pid, String::new()));
        let lines = shown(&mut state, &table);
        assert!(lines[1].contains(" of process ?"), "{lines:#?}");
    }
}

#[test]
fn to_and_fro_in_time() {
    let none = Table::default();
    let mut state = State::new(Some(100 * SECOND), 10 * SECOND);
    assert_eq!(state.span(0), (0, 100 * SECOND));
    press(&mut state, &none, KeyCode::Char('t'));
    assert_eq!(state.span(0), (90 * SECOND, 100 * SECOND));
    press(&mut state, &none, KeyCode::Right);
    press(&mut state, &none, KeyCode::Left);
    press(&mut state, &none, KeyCode::Char('['));
    assert_eq!(state.span(0), (79 * SECOND, 89 * SECOND));
    state.key(KeyEvent::new(KeyCode::Right, KeyModifiers::SHIFT), &none);
    assert_eq!(state.span(0).1, 99 * SECOND);
    for _ in 0..12 {
        press(&mut state, &none, KeyCode::Char('['));
    }
    assert_eq!(state.span(0), (0, 0));
    // It is paused until it is played, and at its end.
    state.passed(SECOND);
    assert_eq!(state.span(0).1, 0);
    press(&mut state, &none, KeyCode::Char(' '));
    state.passed(30 * SECOND);
    assert_eq!(state.span(0), (20 * SECOND, 30 * SECOND));
    state.passed(300 * SECOND);
    assert!(state.is_paused && state.span(0).1 == 100 * SECOND);
    press(&mut state, &none, KeyCode::Char(' '));
    assert_eq!(state.span(0).1, 0);
}

fn replay() -> Operation {
    Operation::Graph(Box::new(Graph {
        replay: 0,
        nodes: 1,
        kernels: 1,
        memsets: 0,
        copies: 0,
        driver: 0,
        unresolved: 0,
        channels: Vec::new(),
        submissions: Vec::new(),
        bytes: 0,
        uploaded: false,
        conditional: false,
    }))
}

/// Puts in a submission at a time, which the GPU began `later` and worked on for `ns`; 0: its time is not known.
fn submit(tally: &mut Tally, serial: u64, at_ns: u64, later: u64, ns: u64) {
    let start = GpuMoment {
        host_ns: at_ns + later,
        host_error_ns: 0,
        gpu_ns: at_ns + later,
        gpu_error_ns: 0,
    };
    let duration = GpuDuration {
        ns,
        error_ns: 1,
        by: DurationBy::NextStamp,
    };
    let time = GpuTime {
        start: Some(start),
        duration: (ns > 0).then_some(duration),
        works: 1,
        ..GpuTime::default()
    };
    let context = Context {
        absent_ns: None,
        at: At {
            time_ns: at_ns,
            pid: 7,
            tid: 7,
        },
        thread: Some(Arc::from("train")),
        gpu: Some(0),
        channel: ChannelId(3),
        token: None,
        class: None,
        engine: Engine::Graphics,
        serial,
        how: How::Trapped,
        late: false,
        phase: None,
        stack: None,
        gpu_time: Some(Arc::from([time])),
        parts: None,
        identity: None,
    };
    let head = SubmissionHead {
        position: serial,
        gp_get: None,
        prev_put: 0,
        gp_put: 1,
        entries: 1,
        bytes: 100,
        missing: 0,
        ip: None,
    };
    let operation = replay();
    for body in [Body::Submission(head), Body::Operation(&operation)] {
        let event = Event {
            context: &context,
            entry: 0,
            body,
        };
        tally.event(&event).unwrap();
    }
}

#[test]
fn depth_of_the_queue_and_time_of_the_gpu() {
    let mut tally = Tally::default();
    // Five at once, a second of work each, one behind the other.
    for n in 0..5 {
        submit(&mut tally, n, 10 * SECOND + n, n * SECOND, SECOND);
    }
    submit(&mut tally, 5, 20 * SECOND, 0, SECOND / 2);
    let ledger = Ledger::new();
    let model = nvcap_decode::driver::Model::new(nvcap_decode::driver::ModelOptions::default());
    tally.finish(&ledger, &model).unwrap();
    let queued = |at| tally.queued(at).get(&ChannelId(3)).copied();
    assert_eq!(queued(0), Some(5));
    assert_eq!(queued(2 * SECOND + SECOND / 2), Some(3));
    assert_eq!(queued(9 * SECOND), Some(0));
    assert!(tally.has_times());
    let kernels = |span| works::table(&tally, Screen::Kernels, Some(7), span, None);
    let whole = kernels((0, u64::MAX));
    let cells: Vec<&str> = whole.rows[0]
        .cells
        .iter()
        .map(|c| c.text.as_str())
        .collect();
    let text = "graph replay (all its kernels)";
    assert_eq!(cells, ["5.50 s", "100.0", "6", "917 ms", "7", text]);
    // A work is counted where the GPU began it.
    let part = kernels((SECOND, 2 * SECOND + SECOND / 2));
    assert_eq!(part.rows[0].cells[0].text, "2.00 s");
    assert!(kernels((6 * SECOND, 9 * SECOND)).rows.is_empty());
    let process = works::table(&tally, Screen::Processes, None, (0, u64::MAX), None);
    assert_eq!(
        (process.rows[0].pid, process.rows[0].name.as_str()),
        (7, "train")
    );
    assert!(
        works::table(&tally, Screen::Kernels, Some(8), (0, u64::MAX), None)
            .rows
            .is_empty()
    );
}

/// A trace of 40 replays, 2 of them timed; 7 entries were overwritten before they were read, in the last second.
pub(super) fn of_a_part() -> Tally {
    let mut tally = Tally::default();
    for n in 0..40 {
        let ns = if n % 20 == 0 { 5_000 } else { 0 };
        submit(&mut tally, n, SECOND + n * SECOND / 20, 0, ns);
    }
    let loss = Record::Loss(Loss {
        at: At::of_process(3 * SECOND, 7),
        channel: Some(ChannelId(3)),
        what: Lost::Entries {
            position: 40,
            count: 7,
        },
    });
    let model = nvcap_decode::driver::Model::new(nvcap_decode::driver::ModelOptions::default());
    tally.record(&loss, &model).unwrap();
    tally.finish(&Ledger::new(), &model).unwrap();
    tally
}

#[test]
fn a_number_that_is_of_a_part_says_so() {
    let tally = of_a_part();
    let of = |screen, span| {
        let table = works::table(&tally, screen, Some(7), span, None);
        let cells: Vec<String> = { table.rows[0].cells.iter() }
            .map(|c| c.text.clone())
            .collect();
        (cells, table.part)
    };
    let (cells, part) = of(Screen::Kernels, (0, u64::MAX));
    assert_eq!(cells[..4], [">=10.0 us", "~100.0", ">=40", "5.00 us"]);
    assert_eq!(
        part,
        "7 ring entries were not read, or not whole: counts are >=; times of 2 of 40 launches: GPU TIME is >=, % and MEAN are of these"
    );
    // Before the loss all launches were counted.
    let (cells, part) = of(Screen::Kernels, (0, SECOND - 1));
    assert_eq!(cells[..4], [">=5.00 us", "~100.0", "20", "5.00 us"]);
    assert_eq!(
        part,
        "times of 1 of 20 launches: GPU TIME is >=, % and MEAN are of these"
    );
    let (cells, part) = of(Screen::Processes, (0, u64::MAX));
    assert_eq!(cells[6], ">=40", "{cells:?}");
    assert_eq!(cells[8..10], [">=10.0 us", ">=40"], "{cells:?}");
    assert!(part.ends_with("times of 2 of 40 launches and copies: GPU TIME is >="));
    // The count of all has more, or no more, than the trace.
    let counted = |n| works::table(&tally, Screen::Kernels, Some(7), (0, SECOND - 1), Some(n));
    let (less, same) = (counted(5_020), counted(20));
    assert_eq!(less.rows[0].cells[2].text, ">=20");
    let missing = "5000 of 5020 submissions are missing here: counts are >=; times of 1 of ";
    assert!(less.part.starts_with(missing), "{}", less.part);
    assert_eq!(same.rows[0].cells[2].text, "20");
    assert!(!same.part.contains("missing"), "{}", same.part);
    // Where all is known, nothing is said.
    let (tally, _) = recording();
    let whole = works::table(&tally, Screen::Kernels, None, (0, u64::MAX), None);
    assert_eq!(whole.part, "");
    let other = works::table(&of_a_part(), Screen::Kernels, Some(8), (0, u64::MAX), None);
    assert_eq!(other.part, "", "the loss is of another process");
}

#[test]
fn long_traces_have_longer_steps() {
    let mut tally = Tally::default();
    for n in 0..20_000 {
        submit(&mut tally, n, SECOND + n * SECOND, 0, 10);
    }
    assert_eq!(submissions(&tally, (0, u64::MAX)), 20_000);
    let some = submissions(&tally, (10_000 * SECOND, 11_000 * SECOND));
    assert!((1_000..1_020).contains(&some), "{some}");
}
