//! Readings of the counts as tables.

use std::collections::BTreeMap;

use super::faults::Faults;
use super::gauges::{Gauge, Gauges};
use super::shares::Shares;
use super::table::{Cell, Column, Rank, Row, RowId, Table, number, text};
use crate::counts::channel::{Age, State, Sums};
use crate::counts::view::{ChannelView, GpuView, ProcessView, View};
use nvcap_show::output::plural::plural_of;

/// The columns of processes.
pub(crate) const PROCESSES: &[Column] = &[
    text("PID", 8),
    text("USER", 9).spare(1),
    text("COMM", 15),
    text("GPU", 3),
    number("AT WORK", 7),
    number("GPU%", 5),
    number("/s", 9),
    text("HISTORY", 12).spare(3),
    number("PENDING", 8),
    number("OLDEST", 8),
    text("STATE", 7),
    text("RUNNING", 28).spare(2),
    number("CHAN", 4).spare(4),
    number("LAST DONE", 9).spare(5),
    number("DONE", 12).spare(6),
    number("IN ALL", 12).spare(7),
    text("CONTAINER", 0).spare(8),
];

/// The columns of channels.
pub(crate) const CHANNELS: &[Column] = &[
    text("RING", 14),
    text("PID", 8),
    text("GPU", 3),
    number("/s", 9),
    number("PENDING", 8),
    number("UNFETCHED", 9).spare(1),
    number("OLDEST", 8),
    number("LAST DONE", 9).spare(2),
    text("STATE", 8),
    number("DONE", 12).spare(3),
    number("IN ALL", 12).spare(4),
    text("COMM", 0).spare(5),
];

/// Steps in the column of the history.
const HISTORY: usize = 12;

/// Identity of a process, beside what the counts say.
#[derive(Clone, Debug, Default)]
pub struct Who {
    /// Its user.
    pub user: String,
    /// Its container or pod.
    pub container: String,
    /// Its work at most moments of the last step.
    pub running: String,
}

/// One reading.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// The counts.
    pub view: View,
    /// Channels of each process.
    pub channels: BTreeMap<u32, Vec<ChannelView>>,
    /// Identities of the processes.
    pub who: BTreeMap<u32, Who>,
    /// Faults since the reading before.
    pub faults: Faults,
    /// Holders of the GPUs.
    pub shares: Shares,
    /// True if all processes that were named have ended.
    pub is_over: bool,
}

/// Numbers of the reading before, for rates.
#[derive(Debug, Default)]
struct Before {
    unix_ns: u64,
    cpu_ns: u64,
    submitted: BTreeMap<RowId, u64>,
}

/// The newest reading, and what the one before it said: rates are the difference.
#[derive(Debug, Default)]
pub struct Live {
    now: Reading,
    before: Before,
    gauges: Gauges,
    faults: Faults,
    hang_ns: u64,
}

fn process_id(pid: u32, gpu: Option<u32>) -> RowId {
    (u64::from(pid), gpu.map_or(0, |gpu| u64::from(gpu) + 1))
}

/// The row of a channel. The address of a ring is greater than any GPU's number, so that it is never the row of a process on a GPU.
fn channel_id(pid: u32, channel: &ChannelView) -> RowId {
    (u64::from(pid), channel.ring)
}

fn submitted(reading: &Reading) -> BTreeMap<RowId, u64> {
    let mut all = BTreeMap::new();
    for process in &reading.view.processes {
        for (gpu, of) in &process.gpus {
            all.insert(process_id(process.pid, *gpu), of.sums.submitted);
        }
    }
    for (pid, channels) in &reading.channels {
        for channel in channels {
            all.insert(channel_id(*pid, channel), channel.view.sums.submitted);
        }
    }
    all
}

impl Live {
    /// Begins without a reading. A channel whose work has waited for `hang_ns` may hang.
    pub fn new(hang_ns: u64) -> Self {
        Self {
            hang_ns,
            ..Self::default()
        }
    }

    /// Takes the next reading.
    pub fn take(&mut self, mut reading: Reading) {
        self.faults.append(std::mem::take(&mut reading.faults));
        self.before = Before {
            unix_ns: self.now.view.unix_ns,
            cpu_ns: self.now.view.cpu_ns,
            submitted: submitted(&self.now),
        };
        let on = |p: &'_ ProcessView| (p.pid, p.gpus.keys().copied().collect::<Vec<_>>());
        let of = reading.view.processes.iter().map(on);
        let of = of.flat_map(|(pid, gpus)| gpus.into_iter().map(move |gpu| (pid, gpu)));
        self.gauges.take(&reading.view.moments, of);
        self.now = reading;
    }

    /// Number of submissions of a process until the newest reading.
    pub fn submitted(&self, pid: u32) -> Option<u64> {
        let process = self.now.view.processes.iter().find(|p| p.pid == pid)?;
        Some(process.gpus.values().map(|gpu| gpu.sums.submitted).sum())
    }

    /// The GPUs with the processes that are shown.
    pub fn gauges(&self) -> Vec<Gauge> {
        let processes = &self.now.view.processes;
        self.gauges.gpus(|pid| {
            let process = processes.iter().find(|p| p.pid == pid);
            process.map_or_else(String::new, |p| p.name.clone())
        })
    }

    /// Returns the lines of the faults since the first reading.
    pub fn faults(&self) -> Vec<String> {
        self.faults.lines()
    }

    /// Returns text that says who is not shown, or how many moments the shares of the last step are of; and what tells who had the GPUs.
    pub fn about(&self) -> String {
        let text = self.missing().unwrap_or_else(|| {
            let looks = plural_of(self.gauges.looks, "look", "looks");
            format!("at work: share of {looks} since the last reading")
        });
        match self.now.shares.about() {
            Some(shares) => format!("{text}; {shares}"),
            None => text,
        }
    }

    /// Tells whether all processes that were named have ended.
    pub fn is_over(&self) -> bool {
        self.now.is_over
    }

    /// Tells whether nothing has been read.
    pub(crate) fn is_empty(&self) -> bool {
        self.now.view.unix_ns == 0
    }

    fn passed(&self) -> Option<u64> {
        let passed = self.now.view.unix_ns.saturating_sub(self.before.unix_ns);
        (self.before.unix_ns > 0 && passed > 0).then_some(passed)
    }

    fn rate(&self, id: RowId, now: u64) -> Option<f64> {
        let before = *self.before.submitted.get(&id)?;
        Some(now.saturating_sub(before) as f64 * 1e9 / self.passed()? as f64)
    }

    /// Returns the time for which the oldest pending submission has waited, ns, if a channel waits and that is long enough for a hang.
    fn suspect(&self, of: &GpuView) -> Option<u64> {
        let oldest = of.oldest.map(|Age { least_ns, .. }| least_ns)?;
        let waits = of.states.get(State::Waiting as usize) > Some(&0);
        (waits && oldest >= self.hang_ns).then_some(oldest)
    }

    /// Returns a line on the whole host.
    pub fn head(&self) -> String {
        let view = &self.now.view;
        let second = view.unix_ns / 1_000_000_000 % 86_400;
        let mut all = Sums::default();
        let (mut channels, mut pending, mut suspects) = (0, 0, 0);
        for of in view.processes.iter().flat_map(|p| p.gpus.values()) {
            all.add(of.sums);
            channels += of.channels();
            pending += of.pending;
        }
        for of in self.now.channels.values().flatten() {
            suspects += u64::from(self.suspect(&of.view).is_some());
        }
        let mut line = format!(
            "{:02}:{:02}:{:02} UTC  {}, {}, {pending} pending",
            second / 3600,
            second / 60 % 60,
            second % 60,
            plural_of(view.processes.len() as u64, "process", "processes"),
            plural_of(channels, "channel", "channels"),
        );
        if suspects > 0 {
            line += &format!(", {} may hang", plural_of(suspects, "channel", "channels"));
        }
        if let Some(passed) = self.passed() {
            let cpu = view.cpu_ns.saturating_sub(self.before.cpu_ns);
            line += &format!(
                "; nvcap {:.2} % of a core",
                cpu as f64 * 100.0 / passed as f64
            );
        }
        line
    }

    /// Returns text on the processes that are not shown, and why.
    fn missing(&self) -> Option<String> {
        let others = self.now.view.refused.len();
        (others > 0).then(|| {
            let others = plural_of(others as u64, "process", "processes");
            format!(
                "{others} may not be read: {}",
                nvcap_process::procfs::mem::remedy()
            )
        })
    }

    /// The processes.
    pub fn processes(&self) -> Table {
        let mut rows = Vec::new();
        for process in &self.now.view.processes {
            if process.gpus.is_empty() {
                rows.push(self.process(process, None, &GpuView::default()));
            }
            for (gpu, of) in &process.gpus {
                rows.push(self.process(process, *gpu, of));
            }
        }
        let empty = match self.is_empty() {
            true => "looking for processes that use a GPU ...",
            false => "no process that is meant uses a GPU yet: waiting for those to come",
        };
        Table {
            columns: PROCESSES,
            rows,
            empty: empty.to_owned(),
            ..Table::default()
        }
    }

    fn process(&self, process: &ProcessView, gpu: Option<u32>, of: &GpuView) -> Row {
        let id = process_id(process.pid, gpu);
        let who = self.now.who.get(&process.pid).cloned().unwrap_or_default();
        let state = match (process.shares, of.channels()) {
            (Some(parent), _) => Cell::text(&format!("with {parent}")),
            (None, 0) => Cell::text("no channel yet"),
            (None, _) => Cell::text(&of.words()),
        };
        let at = (Some(process.pid), gpu);
        let share = self.gauges.share(at).map(|share| 100.0 * share);
        let had = self.now.shares.of(process.pid, gpu);
        let history = Cell {
            text: self.gauges.history(at, HISTORY),
            rank: share.map_or(Rank::None, Rank::Number),
        };
        let [oldest, last_done] = self.times(of);
        let mut cells = vec![
            Cell::pid(process.pid),
            Cell::text(&who.user),
            Cell::text(&process.name),
            gpu_cell(gpu),
            share.map_or_else(Cell::none, |share| {
                Cell::shown(format!("{share:.0} %"), share)
            }),
            had.map_or_else(Cell::none, |(had, is_least)| {
                let digits = usize::from(had < 99.95);
                Cell::shown(format!("{had:.digits$}"), had).marked(is_least, "~")
            }),
            Cell::rate(self.rate(id, of.sums.submitted)),
            history,
            Cell::count(of.pending),
            oldest,
            state,
            Cell::text(&who.running),
            Cell::count(of.channels()),
            last_done,
        ];
        cells.extend(sums(of));
        cells.push(Cell::text(&who.container));
        Row {
            id,
            pid: process.pid,
            name: process.name.clone(),
            cells,
            suspect: self.suspect_of(process.pid, gpu),
        }
    }

    /// Returns the longest wait of a process's channels on a GPU that may hang. Each channel is asked, for one that works would hide another one.
    fn suspect_of(&self, pid: u32, gpu: Option<u32>) -> Option<u64> {
        let channels = self.now.channels.get(&pid)?;
        let on_it = channels.iter().filter(|c| c.gpu == gpu);
        on_it.filter_map(|c| self.suspect(&c.view)).max()
    }

    /// The channels of a process, or of all.
    pub fn channels(&self, of: Option<u32>) -> Table {
        let mut rows = Vec::new();
        for process in &self.now.view.processes {
            if of.is_some_and(|pid| pid != process.pid) {
                continue;
            }
            for channel in self.now.channels.get(&process.pid).into_iter().flatten() {
                rows.push(self.channel(process, channel));
            }
        }
        let empty = match of {
            Some(pid) if !self.now.view.processes.iter().any(|p| p.pid == pid) => {
                format!("process {pid} has ended, or uses no GPU any more (Esc goes back)")
            }
            Some(pid) => format!("process {pid} has no channel yet (Esc goes back)"),
            None => "no channel yet".to_owned(),
        };
        Table {
            columns: CHANNELS,
            rows,
            empty,
            ..Table::default()
        }
    }

    fn channel(&self, process: &ProcessView, channel: &ChannelView) -> Row {
        let (id, of) = (channel_id(process.pid, channel), &channel.view);
        let mut cells = vec![
            Cell::shown(format!("{:#x}", channel.ring), channel.ring as f64),
            Cell::pid(process.pid),
            gpu_cell(channel.gpu),
            Cell::rate(self.rate(id, of.sums.submitted)),
            Cell::count(of.pending),
            Cell::count(of.unfetched),
        ];
        cells.extend(self.times(of));
        cells.push(Cell::text(&of.words()));
        cells.extend(sums(of));
        cells.push(Cell::text(&process.name));
        Row {
            id,
            pid: process.pid,
            name: process.name.clone(),
            cells,
            suspect: self.suspect(of),
        }
    }

    /// Two cells: the age of the oldest pending submission, and how long ago the last one was done.
    fn times(&self, of: &GpuView) -> [Cell; 2] {
        let ago = of.progress_unix_ns.map(|then| {
            let ago = self.now.view.unix_ns.saturating_sub(then);
            // Finer is not known.
            ago / 1_000_000 * 1_000_000
        });
        [
            Cell::time(of.oldest.map(|age| age.least_ns)),
            Cell::time(ago),
        ]
    }
}

fn gpu_cell(gpu: Option<u32>) -> Cell {
    gpu.map_or_else(Cell::none, |gpu| Cell::shown(gpu, f64::from(gpu)))
}

/// Two cells: submissions done since counting began, and since the channels' beginnings.
fn sums(of: &GpuView) -> [Cell; 2] {
    let least = if !of.doubts.is_empty() { "~" } else { "" };
    let done = of.sums.done;
    [
        Cell::shown(format!("{least}{done}"), done as f64),
        Cell::known(of.in_all.map(|all| all.done)),
    ]
}
