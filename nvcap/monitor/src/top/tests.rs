//! The screens, drawn on a terminal of memory.

use std::collections::BTreeMap;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::Color;

use super::gauges::Gauge;
use super::live::{Live, Reading, Who};
use super::state::{Action, SECOND, Screen, State};
use super::table::Table;
use super::tally::Tally;
use super::view::{Around, draw};
use super::works;
use crate::counts::channel::{Age, Sums};
use crate::counts::view::{ChannelView, GpuView, ProcessView, View};
use nvcap_show::output::Sink as _;

mod screens;
mod traced;

/// Makes up a process of one channel, which has submitted `submitted`, of which `pending` are not done since `oldest` ns ago.
fn process(pid: u32, name: &str, submitted: u64, pending: u64, oldest: u64) -> ProcessView {
    let states = if pending > 0 {
        [0, 0, 1, 0]
    } else {
        [1, 0, 0, 0]
    };
    let of = GpuView {
        sums: Sums {
            submitted,
            done: submitted - pending,
        },
        pending,
        oldest: (pending > 0).then_some(Age {
            least_ns: oldest,
            most_ns: None,
        }),
        states,
        ..GpuView::default()
    };
    ProcessView {
        pid,
        name: name.to_owned(),
        gpus: BTreeMap::from([(Some(0), of)]),
        ..ProcessView::default()
    }
}

fn reading(second: u64, processes: Vec<ProcessView>) -> Reading {
    let channels = processes.iter().map(|p| {
        let of = { p.gpus.iter() }.map(|(gpu, view)| ChannelView {
            gpu: *gpu,
            ring: 0x2_0460_0000,
            view: view.clone(),
        });
        (p.pid, of.collect())
    });
    let who = |p: &ProcessView| Who {
        user: "ann".to_owned(),
        container: format!("research/pod-{}", p.pid),
        running: "gemm".to_owned(),
    };
    Reading {
        channels: channels.collect(),
        who: processes.iter().map(|p| (p.pid, who(p))).collect(),
        view: View {
            unix_ns: second * SECOND,
            processes,
            ..View::default()
        },
        ..Reading::default()
    }
}

/// Two processes, read twice: one submits 1000 a second, the other one has waited for a minute.
fn live() -> Live {
    let mut live = Live::new(30 * SECOND);
    live.take(reading(
        100,
        vec![
            process(4711, "python", 5000, 0, 0),
            process(5, "vadd\x1b[31m", 70, 2, 59 * SECOND),
        ],
    ));
    live.take(reading(
        101,
        vec![
            process(4711, "python", 6000, 0, 0),
            process(5, "vadd\x1b[31m", 70, 2, 60 * SECOND),
        ],
    ));
    live
}

fn drawn(state: &mut State, table: &Table, around: &Around, size: (u16, u16)) -> TestBackend {
    let mut terminal = Terminal::new(TestBackend::new(size.0, size.1)).unwrap();
    terminal
        .draw(|frame| draw(frame, state, table, around))
        .unwrap();
    terminal.backend().clone()
}

fn lines(of: &TestBackend) -> Vec<String> {
    let buffer = of.buffer();
    let width = usize::from(buffer.area.width.max(1));
    { buffer.content().chunks(width) }
        .map(|line| line.iter().map(|cell| cell.symbol()).collect::<String>())
        .collect()
}

fn shown(state: &mut State, table: &Table) -> Vec<String> {
    lines(&drawn(state, table, &Around::default(), (140, 24)))
}

fn press(state: &mut State, table: &Table, code: KeyCode) -> Action {
    state.key(KeyEvent::new(code, KeyModifiers::NONE), table)
}

fn typed(state: &mut State, table: &Table, text: &str) {
    for c in text.chars() {
        press(state, table, KeyCode::Char(c));
    }
}

#[test]
fn processes_with_rates_and_suspects() {
    let live = live();
    let mut state = State::new(None, 10 * SECOND);
    let table = live.processes();
    let around = Around {
        head: live.head(),
        color: true,
        ..Around::default()
    };
    let screen = drawn(&mut state, &table, &around, (200, 24));
    let lines = lines(&screen);
    assert!(
        lines[0].starts_with(
            "nvcap top  00:01:41 UTC  2 processes, 2 channels, 2 pending, 1 channel may hang"
        ),
        "{lines:#?}"
    );
    assert!(lines[2].contains("/s\u{2193}"), "{lines:#?}");
    // Sorted by the rate; the waiting one is marked, and its name does nothing to the terminal.
    assert!(
        lines[3].contains("4711") && lines[3].contains(" 1000 "),
        "{lines:#?}"
    );
    assert!(lines[3].contains("ann") && lines[3].contains("research/pod-4711"));
    assert!(
        lines[4].starts_with("!        5 ann       vadd"),
        "{lines:#?}"
    );
    assert!(lines[4].contains("60.0 s") && lines[4].contains("waiting"));
    assert!(!lines[4].contains('\x1b'));
    let red = |y: u16| screen.buffer()[(5, y)].fg == Color::Red;
    assert!(red(4) && !red(3));
    press(&mut state, &table, KeyCode::Char('h'));
    assert!(shown(&mut state, &table)[3].starts_with("!        5"));
}

/// The looks at the GPU up to a reading: half of the last hundred found the first process at work.
fn with_looks(mut of: Reading, works: u64, all: u64) -> Reading {
    of.view.moments.all = all;
    of.view.moments.gpus.insert(Some(0), works);
    of.view.moments.processes.insert((4711, Some(0)), works);
    of
}

fn at_work() -> Live {
    let mut live = Live::new(30 * SECOND);
    let processes = || {
        vec![
            process(4711, "python", 5000, 0, 0),
            process(5, "vadd", 70, 0, 0),
        ]
    };
    live.take(with_looks(reading(100, processes()), 100, 100));
    live.take(with_looks(reading(101, processes()), 150, 200));
    live
}

#[test]
fn a_gauge_for_each_gpu() {
    let live = at_work();
    let table = live.processes();
    let around = Around {
        gauges: live.gauges(),
        color: true,
        ..Around::default()
    };
    for (width, bar) in [(80, 20), (200, 40)] {
        let mut state = State::new(None, SECOND);
        let screen = drawn(&mut state, &table, &around, (width, 24));
        let lines = lines(&screen);
        let full = "\u{2588}".repeat(bar / 2);
        let rest = "\u{2591}".repeat(bar / 2);
        let begin = format!("GPU 0  {full}{rest}  50 % ");
        assert!(lines[1].starts_with(&begin), "{lines:#?}");
        assert!(
            lines[1]
                .trim_end()
                .ends_with("\u{2588}\u{2585}  python 4711 50 %")
        );
        assert_eq!(screen.buffer()[(8, 1)].fg, Color::Green);
        let row = lines.iter().find(|l| l.starts_with("      4711")).unwrap();
        // A narrow terminal leaves out the user, the history and what runs.
        let words: Vec<_> = row.split_whitespace().skip(1).take(7).collect();
        let wide = ["ann", "python", "0", "50", "%", "-", "0"];
        let narrow = ["python", "0", "50", "%", "-", "0", "0"];
        assert_eq!(words, if width == 200 { wide } else { narrow });
        assert_eq!(row.contains(" gemm "), width == 200, "{row}");
    }
    assert_eq!(
        live.about(),
        "at work: share of 100 looks since the last reading"
    );
}

#[test]
fn without_colour_there_is_none() {
    let live = at_work();
    let mut state = State::new(None, SECOND);
    let table = live.processes();
    let around = Around {
        gauges: live.gauges(),
        ..Around::default()
    };
    assert_eq!(around.gauges.len(), 1);
    let screen = drawn(&mut state, &table, &around, (100, 10));
    let plain = |cell: &ratatui::buffer::Cell| cell.fg == Color::Reset && cell.bg == Color::Reset;
    assert!(screen.buffer().content().iter().all(plain));
}

#[test]
fn sorting_by_any_column() {
    let live = live();
    let table = live.processes();
    let mut state = State::new(None, SECOND);
    let first = |state: &mut State| shown(state, &table)[3].clone();
    press(&mut state, &table, KeyCode::Char('1'));
    assert!(first(&mut state).starts_with("!        5"));
    press(&mut state, &table, KeyCode::Char('r'));
    assert!(first(&mut state).contains("4711"));
    press(&mut state, &table, KeyCode::Char('>'));
    press(&mut state, &table, KeyCode::F(6));
    assert_eq!(state.order().column, 2);
    assert!(first(&mut state).contains("python"));
    press(&mut state, &table, KeyCode::Char('<'));
    assert_eq!(state.order().column, 1);
    for _ in 0..table.columns.len() {
        press(&mut state, &table, KeyCode::Char('>'));
        first(&mut state);
    }
    // What is not known is behind, whichever way round.
    let oldest = table
        .columns
        .iter()
        .position(|c| c.name == "OLDEST")
        .unwrap();
    while state.order().column != oldest {
        press(&mut state, &table, KeyCode::Char('>'));
    }
    assert!(first(&mut state).starts_with("!        5"));
    press(&mut state, &table, KeyCode::Char('r'));
    assert!(first(&mut state).starts_with("!        5"));
}

#[test]
fn filtering_by_text() {
    let live = live();
    let table = live.processes();
    let mut state = State::new(None, SECOND);
    press(&mut state, &table, KeyCode::Char('/'));
    // Letters are text now, not keys.
    typed(&mut state, &table, "Pyq");
    let lines = shown(&mut state, &table);
    assert!(lines[23].starts_with("Only rows with: Pyq_"), "{lines:#?}");
    assert!(lines[3].contains("no row has this text"), "{lines:#?}");
    press(&mut state, &table, KeyCode::Backspace);
    press(&mut state, &table, KeyCode::Enter);
    let lines = shown(&mut state, &table);
    assert!(lines[1].contains("with \"Py\""), "{lines:#?}");
    assert!(lines[3].contains("python") && lines[4].trim().is_empty());
    press(&mut state, &table, KeyCode::Esc);
    assert!(shown(&mut state, &table)[4].contains("vadd"));
}

#[test]
fn into_a_process_and_back() {
    let live = live();
    let table = live.processes();
    let mut state = State::new(None, SECOND);
    press(&mut state, &table, KeyCode::Down);
    press(&mut state, &table, KeyCode::Enter);
    assert_eq!(state.screen, Screen::Channels);
    let pid = state.of.as_ref().map(|(pid, _)| *pid);
    assert_eq!(pid, Some(5));
    let channels = live.channels(pid);
    let lines = shown(&mut state, &channels);
    assert!(
        lines[1].starts_with("channels of process 5 vadd"),
        "{lines:#?}"
    );
    assert!(lines[3].contains("0x204600000") && lines[3].contains("waiting"));
    assert!(lines[4].trim().is_empty());
    press(&mut state, &channels, KeyCode::Char('k'));
    assert_eq!((state.screen, pid), (Screen::Kernels, Some(5)));
    press(&mut state, &Table::default(), KeyCode::Esc);
    assert_eq!(state.screen, Screen::Channels);
    press(&mut state, &Table::default(), KeyCode::Esc);
    assert_eq!((state.screen, state.of.clone()), (Screen::Processes, None));
    // All channels; there is no process whose kernels could be shown.
    press(&mut state, &table, KeyCode::Char('c'));
    press(&mut state, &live.channels(None), KeyCode::Char('k'));
    assert_eq!(state.screen, Screen::Channels);
    assert_eq!(live.channels(None).rows.len(), 2);
    assert!(live.channels(Some(99)).empty.contains("has ended"));
}

#[test]
fn the_chosen_row_stays_chosen_and_on_the_screen() {
    let mut live = Live::new(SECOND);
    let all = (1..=50).map(|pid| process(pid, "many", u64::from(pid), 0, 0));
    live.take(reading(1, all.collect()));
    let table = live.processes();
    let mut state = State::new(None, SECOND);
    press(&mut state, &table, KeyCode::Char('1'));
    let around = Around::default();
    drawn(&mut state, &table, &around, (80, 14));
    press(&mut state, &table, KeyCode::PageDown);
    press(&mut state, &table, KeyCode::PageDown);
    let at = |state: &State| state.rows(&table)[state.chosen(&state.rows(&table))].pid;
    assert_eq!(at(&state), 21);
    assert!(lines(&drawn(&mut state, &table, &around, (80, 14)))[12].contains(" 21 "));
    press(&mut state, &table, KeyCode::Char('r'));
    assert_eq!(at(&state), 21);
    press(&mut state, &table, KeyCode::Home);
    assert_eq!(at(&state), 50);
    press(&mut state, &table, KeyCode::Up);
    press(&mut state, &table, KeyCode::End);
    press(&mut state, &table, KeyCode::Down);
    assert_eq!(at(&state), 1);
}

#[test]
fn paused_help_and_the_end() {
    let table = live().processes();
    let mut state = State::new(None, SECOND);
    press(&mut state, &table, KeyCode::Char(' '));
    assert!(state.is_paused && shown(&mut state, &table)[1].contains("[PAUSED]"));
    press(&mut state, &table, KeyCode::Char('?'));
    assert!(
        shown(&mut state, &table)
            .concat()
            .contains("sort by another column")
    );
    press(&mut state, &table, KeyCode::Enter);
    assert!(!state.helps && state.screen == Screen::Processes);
    assert_eq!(press(&mut state, &table, KeyCode::Char('q')), Action::Quit);
    let control = |c| KeyEvent::new(KeyCode::Char(c), KeyModifiers::CONTROL);
    assert_eq!(state.key(control('c'), &table), Action::Quit);
    assert_eq!(state.key(control('z'), &table), Action::Suspend);
}

#[test]
fn terminals_of_any_size() {
    let live = live();
    let around = Around {
        head: live.head(),
        about: "about the table".to_owned(),
        notice: Some("a notice that is longer than the terminal is wide, by far".to_owned()),
        gauges: vec![Gauge::default(); 8],
        faults: vec!["a fault that is told".to_owned(); 9],
        color: true,
    };
    let none = Table::default();
    for (width, height) in [
        (40, 10),
        (1, 1),
        (0, 0),
        (3, 2),
        (20, 5),
        (300, 100),
        (80, 3),
    ] {
        for table in [&live.processes(), &live.channels(None), &none] {
            let mut state = State::new(None, SECOND);
            for key in ['j', '?', 'q', '/', 'x'] {
                drawn(&mut state, table, &around, (width, height));
                press(&mut state, table, KeyCode::Char(key));
                press(&mut state, table, KeyCode::PageDown);
            }
        }
    }
    let mut state = State::new(None, SECOND);
    let small = lines(&drawn(
        &mut state,
        &live.processes(),
        &Around::default(),
        (40, 10),
    ));
    assert!(
        small[3].contains("4711") && small[3].contains("python"),
        "{small:#?}"
    );
}

#[test]
fn nothing_to_show_says_why() {
    let mut state = State::new(None, SECOND);
    let mut live = Live::new(SECOND);
    assert!(shown(&mut state, &live.processes())[3].contains("looking for processes"));
    live.take(reading(1, Vec::new()));
    assert!(shown(&mut state, &live.processes())[3].contains("waiting for those to come"));
    live.take(reading(
        2,
        vec![ProcessView {
            pid: 7,
            ..ProcessView::default()
        }],
    ));
    assert!(shown(&mut state, &live.processes())[3].contains("no chan"));
}
