//! Whole screens of 80 and of 200 columns, as files of `screens` beside this one. `NVCAP_WRITE_FIXTURES=1 cargo test -p nvcap-monitor screens::`
//! writes them anew.

use super::*;
use crate::top::faults::Faulted;
use crate::top::shares::tests::view;
use crate::top::shares::{Part, Shares};
use nvcap_decode::switches::Who;

fn screen(name: &str, state: &mut State, table: &Table, around: &Around) {
    for width in [80, 200] {
        let drawn = lines(&drawn(state, table, around, (width, 12)));
        let drawn: String = drawn
            .iter()
            .map(|l| l.trim_end().to_owned() + "\n")
            .collect();
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/top/tests/screens");
        let path = format!("{folder}/{name}-{width}.txt");
        if std::env::var_os("NVCAP_WRITE_FIXTURES").is_some() {
            std::fs::write(path, drawn).unwrap();
            continue;
        }
        let expected = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            drawn == expected,
            "{path} has\n{expected}and there is\n{drawn}"
        );
    }
}

/// Two processes on one GPU, one at work and one that hangs.
fn machine() -> Live {
    let mut live = Live::new(30 * SECOND);
    for (n, works) in [40, 90, 190, 280].into_iter().enumerate() {
        let n = n as u64;
        let processes = vec![
            process(4711, "python3", 5000 + 1000 * n, 0, 0),
            process(5, "vadd", 70, 2, (57 + n) * SECOND),
        ];
        let mut part = Part::default();
        part.add(&[view(0, &[(Who::Process(4711), 648)], 0)]);
        live.take(Reading {
            shares: Shares::Of(part),
            ..with_looks(reading(100 + n, processes), works, 100 * (n + 1))
        });
    }
    live
}

#[test]
fn of_processes_and_channels() {
    let live = machine();
    let around = Around {
        head: live.head(),
        about: live.about(),
        gauges: live.gauges(),
        ..Around::default()
    };
    let mut state = State::new(None, 10 * SECOND);
    screen("processes", &mut state, &live.processes(), &around);
    press(&mut state, &live.processes(), KeyCode::Enter);
    let channels = live.channels(Some(4711));
    screen("channels", &mut state, &channels, &around);
    press(&mut state, &channels, KeyCode::Char('?'));
    screen("help", &mut state, &channels, &around);
}

/// A line for each of the newest faults, and none where there were none.
#[test]
fn of_faults() {
    let mut live = machine();
    let mut next = reading(104, vec![process(5, "vadd", 70, 2, 60 * SECOND)]);
    for (pid, name, text) in [
        (5, "vadd", "Xid 13, an exception of the graphics engine"),
        (
            4711,
            "python3",
            "Xid 31 in writes(int, float*, long long), a write to the page at 0x7f37c4800000, where nothing is mapped",
        ),
    ] {
        next.faults.add(Faulted {
            time_ns: 104 * SECOND,
            of_day: true,
            pid,
            name: name.to_owned(),
            gpu: None,
            text: text.to_owned(),
        });
    }
    live.take(next);
    let around = Around {
        head: live.head(),
        about: live.about(),
        faults: live.faults(),
        ..Around::default()
    };
    let mut state = State::new(None, 10 * SECOND);
    screen("faults", &mut state, &live.processes(), &around);
}

#[test]
fn of_a_part_of_the_kernels() {
    let tally = traced::of_a_part();
    let mut state = State::new(Some(tally.length_ns()), 10 * SECOND);
    state.screen = Screen::Kernels;
    let kernels = works::table(&tally, Screen::Kernels, None, (0, u64::MAX), None);
    let around = Around {
        about: "observing it costs up to 10 % of a core (--observe-cpu)".to_owned(),
        ..Around::default()
    };
    screen("part", &mut state, &kernels, &around);
}

/// The column that rows are sorted by is never left out, and no column is cut.
#[test]
fn columns_are_left_out_as_a_whole() {
    let live = machine();
    let table = live.processes();
    let names = |width, sorted| -> Vec<&str> {
        let shown = table.fitting(width, sorted).into_iter();
        shown.map(|at| table.columns[at].name).collect()
    };
    let narrow = [
        "PID", "COMM", "GPU", "AT WORK", "GPU%", "/s", "PENDING", "OLDEST", "STATE",
    ];
    assert_eq!(names(79, 6), narrow);
    assert!(names(79, 16).contains(&"CONTAINER"));
    assert_eq!(names(10, 6), ["PID", "/s"]);
    assert_eq!(names(400, 6).len(), table.columns.len());
    let mut state = State::new(None, 10 * SECOND);
    let around = Around {
        head: live.head(),
        about: live.about(),
        ..Around::default()
    };
    for width in 60..200 {
        let drawn = lines(&drawn(&mut state, &table, &around, (width, 12)));
        let heads = drawn[2]
            .split_whitespace()
            .map(|w| w.trim_end_matches('\u{2193}'));
        let words = ["AT", "WORK", "IN", "ALL", "LAST", "DONE"];
        let known = |w: &str| words.contains(&w) || table.columns.iter().any(|c| c.name == w);
        assert!(heads.clone().all(known), "{width}: {}", drawn[2]);
        assert!(!drawn[0].trim_end().ends_with([',', ';']), "{}", drawn[0]);
    }
}

#[test]
fn of_kernels() {
    let (tally, _) = traced::recording();
    let mut state = State::new(Some(tally.length_ns()), 10 * SECOND);
    let span = state.span(tally.length_ns());
    let processes = works::table(&tally, Screen::Processes, None, span, None);
    screen("recording", &mut state, &processes, &Around::default());
    press(&mut state, &processes, KeyCode::Char('k'));
    let kernels = works::table(&tally, Screen::Kernels, None, span, None);
    screen("kernels", &mut state, &kernels, &Around::default());
}
