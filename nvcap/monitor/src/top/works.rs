//! The sums of a trace as tables.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::state::{SECOND, Screen};
use super::table::{Cell, Column, Row, Table, number, text};
use super::tally::{Channel, Flow, Spent, Step, Tally, Work};
use nvcap_decode::record::ChannelId;
use nvcap_show::output::names::{EngineName, token_name};
use nvcap_show::output::plural::plural_of;

const PROCESSES: &[Column] = &[
    text("PID", 8),
    text("USER", 9).spare(2),
    text("COMM", 15),
    text("GPU", 4),
    number("CHAN", 4).spare(4),
    number("/s", 9),
    number("SUBMITTED", 11).spare(1),
    number("QUEUED", 7).spare(3),
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
    number("SUBMITTED", 11).spare(1),
    number("QUEUED", 7).spare(2),
    number("UNFETCHED", 9).spare(3),
    number("GPU TIME", 9),
    number("LAUNCHES", 10),
    number("COPIES", 9),
    number("PUSHED", 10).spare(4),
    text("COMM", 0).spare(5),
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

/// Makes the table of a screen, of a process or all, and of a part of the time. `counted` is the least number of submissions in that time, where that
/// is known beside the trace, which may lack some of them.
pub fn table(
    tally: &Tally,
    screen: Screen,
    of: Option<u32>,
    span: (u64, u64),
    counted: Option<u64>,
) -> Table {
    let sums = tally.sums(span);
    match screen {
        Screen::Processes => processes(tally, &sums, span),
        Screen::Channels => channels(tally, &sums, of, span),
        Screen::Kernels => works(tally, &sums, (of, counted), false),
        Screen::Copies => works(tally, &sums, (of, counted), true),
    }
}

fn rate(n: u64, (from, to): (u64, u64)) -> Cell {
    let passed = to.saturating_sub(from);
    Cell::rate((passed > 0).then(|| n as f64 * SECOND as f64 / passed as f64))
}

impl Flow {
    /// The time on the GPU, where the GPU's times are known at all.
    fn gpu_time(&self, tally: &Tally) -> Cell {
        let is_part = self.unread > 0 || self.untimed > 0;
        Cell::time(tally.has_times().then_some(self.gpu_ns)).at_least(is_part)
    }

    /// Returns the cell of a number that is counted in what was read.
    fn counted(&self, n: u64) -> Cell {
        Cell::count(n).at_least(self.unread > 0)
    }
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
            of.flow.add(flow);
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
                rate(of.flow.submissions, span).at_least(of.flow.unread > 0),
                of.flow.counted(of.flow.submissions),
                Cell::known(of.queued),
                of.flow.gpu_time(tally),
                of.flow.counted(of.flow.launches),
                of.flow.counted(of.flow.copies),
            ],
            name: process.name,
            suspect: None,
        }
    };
    Table {
        columns: PROCESSES,
        rows: all.into_iter().map(row).collect(),
        empty: "no process has submitted anything".to_owned(),
        part: part_of(tally, sums, None),
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
        part: part_of(tally, sums, of),
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
            rate(flow.submissions, span).at_least(flow.unread > 0),
            flow.counted(flow.submissions),
            Cell::known(queued.get(&id).copied()),
            Cell::known(flow.unfetched.map(u64::from)),
            flow.gpu_time(tally),
            flow.counted(flow.launches),
            flow.counted(flow.copies),
            Cell::bytes(flow.bytes).at_least(flow.unread > 0),
            Cell::text(&name),
        ],
        name,
        suspect: None,
    }
}

/// Makes the table of kernels or copies, of a process or all.
fn works(
    tally: &Tally,
    sums: &Step,
    (of, counted): (Option<u32>, Option<u64>),
    copies: bool,
) -> Table {
    let chosen: Vec<(u32, &Work, &Spent)> = { sums.works.iter() }
        .filter_map(|(number, spent)| Some((*number, tally.work(*number)?, spent)))
        .filter(|(_, work, _)| work.is_copy == copies)
        .filter(|(_, work, _)| of.is_none_or(|pid| pid == work.pid))
        .collect();
    let timed = { chosen.iter() }.filter_map(|(_, _, spent)| spent.known_ns());
    let all_ns: u64 = timed.sum();
    let unread = Unread::of(&flow(tally, sums, of), counted);
    let sum = |of: fn(&Spent) -> u64| chosen.iter().map(|(_, _, spent)| of(spent)).sum();
    let (known, all): (u64, u64) = (sum(|s| s.timed), sum(|s| s.count));
    let whole = Whole {
        ns: all_ns,
        is_timed: known == all,
        is_read: !unread.any(),
    };
    let rows = chosen.into_iter().map(|(number, work, spent)| Row {
        id: (u64::from(number), 0),
        pid: work.pid,
        name: String::new(),
        cells: match copies {
            true => copy_cells(work, spent, whole),
            false => kernel_cells(work, spent, whole),
        },
        suspect: None,
    });
    let (columns, what, works, marks) = match copies {
        true => (
            COPIES,
            "copy",
            "copies",
            "GPU TIME is >=, GB/s and MEAN are of these",
        ),
        false => (
            KERNELS,
            "kernel",
            "launches",
            "GPU TIME is >=, % and MEAN are of these",
        ),
    };
    let known = if tally.has_times() { known } else { all };
    Table {
        columns,
        rows: rows.collect(),
        empty: format!("no {what} in this time"),
        part: part(unread, (known, all, works), marks),
    }
}

/// The whole that the rows of works are parts of.
#[derive(Clone, Copy)]
struct Whole {
    /// Sum of the known times, ns.
    ns: u64,
    /// True if the time of each is known.
    is_timed: bool,
    /// True if all that was submitted was read.
    is_read: bool,
}

/// The sums of a process, or of all.
fn flow(tally: &Tally, sums: &Step, of: Option<u32>) -> Flow {
    let mut all = Flow::default();
    for (id, flow) in &sums.channels {
        let pid = tally.channels().get(id).map(|c| c.pid);
        if of.is_none() || pid == of {
            all.add(flow);
        }
    }
    all
}

/// The part that a trace lacks.
#[derive(Clone, Copy)]
struct Unread {
    /// Number of ring entries, by the trace itself.
    entries: u64,
    /// Least number of submissions that are missing, and number of all, where the count of all has more than the trace.
    missing: Option<(u64, u64)>,
}

impl Unread {
    fn of(flow: &Flow, counted: Option<u64>) -> Self {
        let missing = |all: u64| (all.saturating_sub(flow.submissions), all);
        Self {
            entries: flow.unread,
            missing: counted.map(missing).filter(|(missing, _)| *missing > 0),
        }
    }

    fn any(self) -> bool {
        self.entries > 0 || self.missing.is_some()
    }
}

/// Tells how much of the whole the numbers are of; empty where it is all. `timed` has the number of works with a known time, the number of all, and a
/// word for them; `marks` says what that means for the columns of times.
fn part(unread: Unread, timed: (u64, u64, &str), marks: &str) -> String {
    let mut parts = Vec::new();
    match unread.missing {
        Some((missing, all)) => parts.push(format!(
            "{missing} of {all} submissions are missing here: counts are >="
        )),
        None if unread.entries > 0 => {
            let entries = plural_of(unread.entries, "ring entry was", "ring entries were");
            parts.push(format!("{entries} not read, or not whole: counts are >="));
        }
        None => {}
    }
    let (known, all, what) = timed;
    if known < all {
        parts.push(format!("times of {known} of {all} {what}: {marks}"));
    }
    parts.join("; ")
}

/// Tells how much of the whole the numbers of processes and channels are of; empty where it is all.
fn part_of(tally: &Tally, sums: &Step, of: Option<u32>) -> String {
    let all = flow(tally, sums, of);
    let untimed = if tally.has_times() { all.untimed } else { 0 };
    let timed = (all.works - untimed, all.works, "launches and copies");
    part(Unread::of(&all, None), timed, "GPU TIME is >=")
}

/// The cell with the time of the works of a kind: at least that, where not all are timed or read. Without any known time the cell is empty, and
/// the count sorts.
fn total(spent: &Spent, whole: Whole) -> Cell {
    let is_part = spent.timed < spent.count || !whole.is_read;
    Cell::time(spent.known_ns()).at_least(is_part)
}

fn mean(spent: &Spent) -> Cell {
    Cell::time((spent.timed > 0).then(|| spent.ns / spent.timed.max(1)))
}

fn kernel_cells(work: &Work, spent: &Spent, whole: Whole) -> Vec<Cell> {
    let share = spent
        .known_ns()
        .map(|ns| ns as f64 * 100.0 / whole.ns.max(1) as f64);
    let share = share.map_or_else(Cell::none, |share| {
        Cell::shown(format!("{share:.1}"), share)
    });
    vec![
        total(spent, whole),
        share.marked(!whole.is_timed || !whole.is_read, "~"),
        Cell::count(spent.count).at_least(!whole.is_read),
        mean(spent),
        Cell::pid(work.pid),
        Cell::text(&work.text),
    ]
}

fn copy_cells(work: &Work, spent: &Spent, whole: Whole) -> Vec<Cell> {
    let speed = (spent.ns > 0).then(|| spent.timed_bytes as f64 / spent.ns as f64);
    vec![
        total(spent, whole),
        Cell::count(spent.count).at_least(!whole.is_read),
        Cell::bytes(spent.bytes).at_least(!whole.is_read),
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
        let whole = Whole {
            ns: 5_000_000,
            is_timed: false,
            is_read: true,
        };
        assert_eq!(total(&spent(10), whole).text, ">=50.0 us");
        assert_eq!(total(&spent(1000), whole).text, "5.00 ms");
        let lossy = Whole {
            is_read: false,
            ..whole
        };
        assert_eq!(total(&spent(1000), lossy).text, ">=5.00 ms");
        assert_eq!(mean(&spent(10)).text, "5.00 us");
        assert_eq!(total(&spent(0), whole).text, Cell::none().text);
    }
}
