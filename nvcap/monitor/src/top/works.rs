//! The sums of a trace as tables.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::state::{SECOND, Screen};
use super::table::{Cell, Column, Row, Table, number, text};
use super::tally::{Channel, Flow, Spent, Step, Tally, Work};
use nvcap_decode::record::ChannelId;
use nvcap_show::output::names::{EngineName, token_name};
use nvcap_show::output::units::Nanoseconds;

const PROCESSES: &[Column] = &[
    text("PID", 8),
    text("USER", 9),
    text("COMM", 15),
    text("GPU", 4),
    number("CHAN", 4),
    number("/s", 9),
    number("SUBMITTED", 11),
    number("QUEUED", 7),
    number("GPU TIME", 9),
    number("LAUNCHES", 10),
    number("COPIES", 9),
];

const CHANNELS: &[Column] = &[
    text("CHANNEL", 8),
    text("PID", 8),
    text("GPU", 3),
    text("ENGINE", 6),
    number("/s", 9),
    number("SUBMITTED", 11),
    number("QUEUED", 7),
    number("UNFETCHED", 9),
    number("GPU TIME", 9),
    number("LAUNCHES", 10),
    number("COPIES", 9),
    number("PUSHED", 10),
    text("COMM", 0),
];

const KERNELS: &[Column] = &[
    number("GPU TIME", 9),
    number("%", 5),
    number("LAUNCHES", 10),
    number("MEAN", 9),
    text("PID", 8),
    text("KERNEL", 0),
];

const COPIES: &[Column] = &[
    number("GPU TIME", 9),
    number("COPIES", 9),
    number("BYTES", 10),
    number("GB/s", 7),
    number("MEAN", 9),
    text("PID", 8),
    text("COPY", 0),
];

/// The table of a screen: of a process or all, of a part of the time.
pub fn table(tally: &Tally, screen: Screen, of: Option<u32>, span: (u64, u64)) -> Table {
    let sums = tally.sums(span);
    match screen {
        Screen::Processes => processes(tally, &sums, span),
        Screen::Channels => channels(tally, &sums, of, span),
        Screen::Kernels => works(tally, &sums, of, false),
        Screen::Copies => works(tally, &sums, of, true),
    }
}

fn rate(n: u64, (from, to): (u64, u64)) -> Cell {
    let passed = to.saturating_sub(from);
    Cell::rate((passed > 0).then(|| n as f64 * SECOND as f64 / passed as f64))
}

/// A time, where the GPU's times are known at all.
fn gpu_time(tally: &Tally, ns: u64) -> Cell {
    Cell::time(tally.has_times().then_some(ns))
}

#[derive(Default)]
struct OfProcess {
    flow: Flow,
    gpus: BTreeSet<u32>,
    channels: u64,
    queued: Option<u64>,
}

fn processes(tally: &Tally, sums: &Step, span: (u64, u64)) -> Table {
    let queued = tally.queued(span.1);
    let mut all: BTreeMap<u32, OfProcess> = BTreeMap::new();
    for (id, channel) in tally.channels() {
        let of = all.entry(channel.pid).or_default();
        of.gpus.extend(channel.gpu);
        of.channels += 1;
        if let Some(n) = queued.get(id) {
            *of.queued.get_or_insert(0) += n;
        }
        if let Some(flow) = sums.channels.get(id) {
            of.flow.submissions += flow.submissions;
            of.flow.gpu_ns += flow.gpu_ns;
            of.flow.launches += flow.launches;
            of.flow.copies += flow.copies;
        }
    }
    let row = |(pid, of): (u32, OfProcess)| {
        let process = tally.processes().get(&pid).cloned().unwrap_or_default();
        let gpus: Vec<String> = of.gpus.iter().map(u32::to_string).collect();
        Row {
            id: (u64::from(pid), 0),
            pid,
            cells: vec![
                Cell::pid(pid),
                Cell::text(&process.user),
                Cell::text(&process.name),
                Cell::text(&gpus.join(",")),
                Cell::count(of.channels),
                rate(of.flow.submissions, span),
                Cell::count(of.flow.submissions),
                Cell::known(of.queued),
                gpu_time(tally, of.flow.gpu_ns),
                Cell::count(of.flow.launches),
                Cell::count(of.flow.copies),
            ],
            name: process.name,
            suspect: None,
        }
    };
    Table {
        columns: PROCESSES,
        rows: all.into_iter().map(row).collect(),
        empty: "no process has submitted anything".to_owned(),
    }
}

fn channels(tally: &Tally, sums: &Step, of: Option<u32>, span: (u64, u64)) -> Table {
    let queued = tally.queued(span.1);
    let chosen = tally.channels().iter();
    let chosen = chosen.filter(|(_, channel)| of.is_none_or(|pid| pid == channel.pid));
    Table {
        columns: CHANNELS,
        rows: chosen
            .map(|(id, channel)| channel_row(tally, sums, *id, channel, &queued, span))
            .collect(),
        empty: "no channel".to_owned(),
    }
}

fn channel_row(
    tally: &Tally,
    sums: &Step,
    id: ChannelId,
    channel: &Channel,
    queued: &HashMap<ChannelId, u64>,
    span: (u64, u64),
) -> Row {
    let flow = sums.channels.get(&id).copied().unwrap_or_default();
    let name = tally.processes().get(&channel.pid);
    let name = name.map(|p| p.name.clone()).unwrap_or_default();
    let shown = match channel.token {
        Some(_) => token_name(channel.token),
        None => format!("{} (no)", id.0),
    };
    let gpu = channel.gpu.map(u64::from);
    Row {
        id: (u64::from(id.0), 0),
        pid: channel.pid,
        cells: vec![
            Cell::shown(shown, f64::from(id.0)),
            Cell::pid(channel.pid),
            Cell::known(gpu),
            Cell::text(&EngineName(channel.engine).to_string()),
            rate(flow.submissions, span),
            Cell::count(flow.submissions),
            Cell::known(queued.get(&id).copied()),
            Cell::known(flow.unfetched.map(u64::from)),
            gpu_time(tally, flow.gpu_ns),
            Cell::count(flow.launches),
            Cell::count(flow.copies),
            Cell::bytes(flow.bytes),
            Cell::text(&name),
        ],
        name,
        suspect: None,
    }
}

/// Kernels or copies, of a process or all.
fn works(tally: &Tally, sums: &Step, of: Option<u32>, copies: bool) -> Table {
    let chosen: Vec<(u32, &Work, &Spent)> = { sums.works.iter() }
        .filter_map(|(number, spent)| Some((*number, tally.work(*number)?, spent)))
        .filter(|(_, work, _)| work.is_copy == copies)
        .filter(|(_, work, _)| of.is_none_or(|pid| pid == work.pid))
        .collect();
    let timed = { chosen.iter() }.filter_map(|(_, _, spent)| spent.known_ns());
    let all_ns: u64 = timed.sum();
    let rows = chosen.into_iter().map(|(number, work, spent)| Row {
        id: (u64::from(number), 0),
        pid: work.pid,
        name: String::new(),
        cells: match copies {
            true => copy_cells(work, spent),
            false => kernel_cells(work, spent, all_ns),
        },
        suspect: None,
    });
    let (columns, what) = match copies {
        true => (COPIES, "copy"),
        false => (KERNELS, "kernel"),
    };
    Table {
        columns,
        rows: rows.collect(),
        empty: format!("no {what} in this time"),
    }
}

/// The cell with the time of the works of a kind. `>` is before it where not all are timed: they took longer. Without any known time the
/// cell is empty, and the count sorts.
fn total(spent: &Spent) -> Cell {
    match spent.known_ns() {
        None => Cell::none(),
        Some(ns) => {
            let least = if spent.timed < spent.count { ">" } else { "" };
            Cell::shown(format!("{least}{}", Nanoseconds(ns)), ns as f64)
        }
    }
}

fn mean(spent: &Spent) -> Cell {
    Cell::time((spent.timed > 0).then(|| spent.ns / spent.timed.max(1)))
}

fn kernel_cells(work: &Work, spent: &Spent, all_ns: u64) -> Vec<Cell> {
    let share = spent
        .known_ns()
        .map(|ns| ns as f64 * 100.0 / all_ns.max(1) as f64);
    vec![
        total(spent),
        share.map_or_else(Cell::none, |share| {
            Cell::shown(format!("{share:.1}"), share)
        }),
        Cell::count(spent.count),
        mean(spent),
        Cell::pid(work.pid),
        Cell::text(&work.text),
    ]
}

fn copy_cells(work: &Work, spent: &Spent) -> Vec<Cell> {
    let speed = (spent.ns > 0).then(|| spent.timed_bytes as f64 / spent.ns as f64);
    vec![
        total(spent),
        Cell::count(spent.count),
        Cell::bytes(spent.bytes),
        speed.map_or_else(Cell::none, |speed| {
            Cell::shown(format!("{speed:.1}"), speed)
        }),
        mean(spent),
        Cell::pid(work.pid),
        Cell::text(&work.text),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten of a thousand launches of one kernel were timed, and they were slow.
    #[test]
    fn what_was_not_timed_is_not_guessed() {
        let spent = |timed| Spent {
            count: 1000,
            timed,
            ns: timed * 5_000,
            ..Spent::default()
        };
        assert_eq!(total(&spent(10)).text, ">50.0 us");
        assert_eq!(total(&spent(1000)).text, "5.00 ms");
        assert_eq!(mean(&spent(10)).text, "5.00 us");
        assert_eq!(total(&spent(0)).text, Cell::none().text);
    }
}
