//! The verdict on each process, in a few sentences: what is read first in an incident.

use nvcap_decode::wire::GpuVa;
use std::collections::VecDeque;
use std::fmt::Write as _;

use crate::output::names::{EngineName, token_name};
use crate::output::plural::{plural, plural_of};
use crate::output::{fault, kernels};
use nvcap_decode::decode::event::{Copy, Launch};
use nvcap_decode::hang::xid::meaning;
use nvcap_decode::hang::{
    ChannelState, Judged, ProcessReport, Progress, Report, Root, State, Thread, Wait, Work,
    WorkKind,
};
use nvcap_decode::record::ChannelId;

use super::Shown;

/// The verdict on one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The verdict in one word.
    pub word: Word,
    /// The sentence behind the word.
    pub head: String,
    /// The reasons, a line for each channel.
    pub lines: Vec<String>,
    /// True if some channel has work that is not done and did not move, even if others moved.
    pub stuck: bool,
}

/// A verdict in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// All that was submitted is done.
    Idle,
    /// Something moved between two looks.
    Moving,
    /// There is work that is not done; one look cannot say more.
    Busy,
    /// No channel was found that could be read; or, of a trace, some channel's tracking semaphore has no known value.
    Unknown,
    /// Nothing moved between two looks, and there is work that is not done.
    Hang,
    /// The driver has stopped a channel.
    Error,
}

impl Word {
    /// The word as it is shown, in small letters.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Moving => "moving",
            Self::Busy => "busy",
            Self::Unknown => "unknown",
            Self::Hang => "hang",
            Self::Error => "error",
        }
    }
}

/// Judges one process of a look.
#[must_use]
pub fn verdict(shown: &Shown<'_>, process: &ProcessReport) -> Verdict {
    let look = shown.report;
    let mine: Vec<Mine<'_>> = look
        .rings
        .channels
        .iter()
        .filter(|c| c.pid == process.pid)
        .filter_map(|c| Some((c, look.analysis.of(c.id)?)))
        .collect();
    let mut lines = stopped(look, &mine);
    let stopped = lines.len();
    lines.extend(process.faults.iter().map(fault::in_short));
    let has_error = stopped > 0 || !process.faults.is_empty();
    lines.extend(at_work(look, &mine));
    lines.extend(mine.iter().filter_map(|(c, j)| {
        let wait = j.wait.as_ref()?;
        Some(format!("{}: {}", name(look, c.id), waits(look, c.id, wait)))
    }));
    let mut cycles: VecDeque<String> = deadlocks(look, &mine, shown.moved.is_some()).collect();
    let has_cycle = !cycles.is_empty();
    let busy = mine.iter().filter(|(_, j)| j.state != State::Idle).count();
    let moved = shown.moved.map(|m| (m, of_process(look, process, m)));
    let (word, head) = match &moved {
        _ if mine.is_empty() => (Word::Unknown, nothing_found(process)),
        Some((m, own)) => with_time(m, own, busy, mine.len()),
        None if process.has_ended && busy > 0 && mine.iter().all(|(_, j)| is_known(j)) => {
            (Word::Unknown, has_ended(busy, mine.len()))
        }
        None => at_once(look, &mine, (busy, has_cycle)),
    };
    // What holds up all else is the headline.
    let in_head = !has_error && matches!(word, Word::Busy | Word::Hang);
    let cycle = if in_head { cycles.pop_front() } else { None };
    lines.extend(cycles);
    lines.extend(queued(look, &mine));
    let head = match (has_error, &moved) {
        (false, _) => match cycle {
            Some(cycle) => format!("{cycle}; {head}"),
            None => head,
        },
        (true, Some(_)) => format!("{}; {head}", stopped_of(stopped, mine.len(), 0)),
        (true, None) => stopped_of(stopped, mine.len(), busy),
    };
    if word == Word::Idle && !mine.is_empty() {
        lines.extend(cpu(&process.threads));
    }
    if let Some((m, own)) = &moved {
        lines.extend(rates(look, m, own));
    }
    Verdict {
        word: if has_error { Word::Error } else { word },
        head,
        lines,
        stuck: moved.is_some_and(|(_, own)| own.channels.iter().any(|c| c.is_still() && c.busy)),
    }
}

/// The reason for the state of a process in one line: channels that wait for one another, or the first of the verdict's lines.
#[must_use]
pub fn cause(shown: &Shown<'_>, process: &ProcessReport) -> Option<String> {
    let look = shown.report;
    let is_mine = |id: &ChannelId| {
        let mut channels = look.rings.channels.iter();
        channels.any(|c| c.id == *id && c.pid == process.pid)
    };
    let mut cycles = look.analysis.cycles.iter();
    let cycle = cycles.find(|cycle| cycle.channels.iter().any(is_mine));
    match cycle {
        Some(cycle) => Some(cycle_of(look, &cycle.channels, shown.moved.is_some())),
        None => verdict(shown, process).lines.into_iter().next(),
    }
}

/// A channel of the process that is judged.
type Mine<'a> = (&'a ChannelState, &'a Judged);

/// A line for each channel that the driver has stopped.
fn stopped(look: &Report, mine: &[Mine<'_>]) -> Vec<String> {
    let lines = mine.iter().filter_map(|(c, _)| {
        let code = xid(look.error_of(c.id)?);
        let channel = name(look, c.id);
        Some(format!(
            "{channel}: the driver has stopped it after an error: {code}"
        ))
    });
    lines.collect()
}

/// A line for each channel with work that runs; the channel that holds up the most others comes first.
fn at_work(look: &Report, mine: &[Mine<'_>]) -> Vec<String> {
    let mut running: Vec<(ChannelId, &Work)> = mine
        .iter()
        .filter_map(|(c, j)| Some((c.id, j.running.as_ref()?)))
        .collect();
    running.sort_by_key(|(channel, work)| {
        let held = look.analysis.blocked.iter();
        let held = held.filter(|b| b.root == Root::Work { channel: *channel });
        std::cmp::Reverse((held.count(), work.behind))
    });
    let lines = running.into_iter();
    lines
        .map(|(channel, running)| format!("{}: {}", name(look, channel), work(running)))
        .collect()
}

/// Returns a line for each cycle of waits that one of the channels is in. `stays`: an earlier look shows that the cycle lasts.
fn deadlocks<'a>(
    look: &'a Report,
    mine: &'a [Mine<'a>],
    stays: bool,
) -> impl Iterator<Item = String> + 'a {
    let is_mine = |id: &ChannelId| mine.iter().any(|(c, _)| c.id == *id);
    look.analysis
        .cycles
        .iter()
        .filter(move |cycle| cycle.channels.iter().any(is_mine))
        .map(move |cycle| cycle_of(look, &cycle.channels, stays))
}

/// Returns a line for each channel whose work nobody is known to be at.
fn queued<'a>(look: &'a Report, mine: &'a [Mine<'a>]) -> impl Iterator<Item = String> + 'a {
    let queued = mine.iter().filter(|(_, j)| j.state == State::Queued);
    queued.map(|(c, j)| {
        format!(
            "{}: {} not fetched; what it is at cannot be told from here",
            name(look, c.id),
            plural_of(j.pending.into(), "entry is", "entries are")
        )
    })
}

/// The sentence about a process of which the driver has stopped channels.
fn stopped_of(stopped: usize, channels: usize, busy: usize) -> String {
    let text = match stopped {
        0 => "the GPU faulted".to_owned(),
        _ => format!(
            "the driver has stopped {} after an error",
            of(stopped, channels)
        ),
    };
    match busy {
        0 => text,
        _ => format!("{text}; {} work that is not done", have(busy, channels)),
    }
}

/// Returns the sentence about a process that had ended while, as far as is known, some of its work was not done.
fn has_ended(busy: usize, channels: usize) -> String {
    format!(
        "it has ended, and nothing of it runs any more; by the newest time stamps before that {} work that was not done",
        have(busy, channels)
            .replace("have", "had")
            .replace("has", "had")
    )
}

/// Returns the word and the sentence for a single look, at a process or at the end of a trace. `busy` channels have work; `has_cycle`: some wait for
/// each other.
fn at_once(look: &Report, mine: &[Mine<'_>], (busy, has_cycle): (usize, bool)) -> (Word, String) {
    match look.trace_ns {
        Some(ns) if !mine.iter().all(|(_, j)| is_known(j)) => {
            (Word::Unknown, not_recorded(ns, mine.len()))
        }
        _ if busy == 0 => (Word::Idle, idle(mine.len())),
        Some(ns) => (
            Word::Busy,
            format!(
                "{} work that was not done by the newest time stamps, {}",
                have(busy, mine.len()),
                moment(ns)
            ),
        ),
        None => {
            let but = match has_cycle {
                true => "one look may see this of work that goes on, too (--watch 2 tells)",
                false => "one look cannot tell slow from stuck (--watch 2 does)",
            };
            let have = have(busy, mine.len());
            (Word::Busy, format!("{have} work that is not done; {but}"))
        }
    }
}

/// Tells whether the value of a channel's own semaphore is known.
pub(super) fn is_known(judged: &Judged) -> bool {
    judged.semaphore.is_some_and(|s| s.value.is_some())
}

fn moment(ns: u64) -> String {
    format!("{:.6} s after the trace's first doorbell", ns as f64 / 1e9)
}

fn not_recorded(ns: u64, channels: usize) -> String {
    format!(
        "what {} had submitted {}; a recording of a trace does not tell how far the GPU was with it, unless it was made with --gpu-time: \
         GP_GET is that of each channel's newest doorbell",
        plural(channels as u64, "channel"),
        moment(ns)
    )
}

/// Returns `2 of 20 channels`.
fn of(some: usize, all: usize) -> String {
    format!("{some} of {}", plural(all as u64, "channel"))
}

/// Returns `2 of 20 channels have`.
fn have(some: usize, all: usize) -> String {
    let have = if some == 1 { "has" } else { "have" };
    format!("{} {have}", of(some, all))
}

fn idle(channels: usize) -> String {
    format!(
        "the GPU has done all that was submitted on {}: whatever is waited for, it is not in a ring",
        plural(channels as u64, "channel")
    )
}

fn nothing_found(process: &ProcessReport) -> String {
    if process.notes.is_empty() {
        "no channel was found: it has not submitted work by a ring that is mapped into it"
            .to_owned()
    } else {
        "no channel was found that could be read; the notes below say what is there".to_owned()
    }
}

/// Returns the part of the movement that belongs to one process's channels.
fn of_process(look: &Report, process: &ProcessReport, movement: &Progress) -> Progress {
    let mut own = movement.clone();
    let pid_of = |id| {
        look.rings
            .channels
            .iter()
            .find(|c| c.id == id)
            .map(|c| c.pid)
    };
    own.channels
        .retain(|c| pid_of(c.channel) == Some(process.pid));
    own
}

fn with_time(m: &Progress, own: &Progress, at_work: usize, channels: usize) -> (Word, String) {
    let seconds = m.ns as f64 / 1e9;
    let moving = own.channels.iter().filter(|c| !c.is_still()).count();
    if own.is_hang() {
        (
            Word::Hang,
            format!(
                "nothing moved in {seconds:.1} s, and {} work that is not done",
                have(at_work, channels)
            ),
        )
    } else if moving > 0 {
        (
            Word::Moving,
            format!(
                "{} moved in {seconds:.1} s: it is at work, not stuck",
                of(moving, channels)
            ),
        )
    } else {
        (
            Word::Idle,
            format!("{} (and nothing moved in {seconds:.1} s)", idle(channels)),
        )
    }
}

/// A line for each channel that moved, with what it submitted, fetched and finished; and a line that lists the stuck channels.
fn rates(look: &Report, m: &Progress, own: &Progress) -> Vec<String> {
    let seconds = m.ns as f64 / 1e9;
    let mut lines = Vec::new();
    for c in own.channels.iter().filter(|c| !c.is_still()) {
        let mut line = format!(
            "{}: {} submitted, {} fetched",
            name(look, c.channel),
            plural_of(c.submitted, "entry", "entries"),
            c.fetched
        );
        if let Some(done) = c.done {
            // More is done than GP_GET and GP_PUT moved: they went round the ring an unknown number of times.
            if done > c.submitted.max(c.fetched) + 1 {
                line = name(look, c.channel) + ": the ring has gone round";
            }
            let _ = write!(line, ", {done} done ({:.1}/s)", done as f64 / seconds);
        }
        lines.push(line);
    }
    let stuck: Vec<String> = own
        .channels
        .iter()
        .filter(|c| c.is_still() && c.busy)
        .map(|c| name(look, c.channel))
        .collect();
    if !stuck.is_empty() && !own.is_hang() {
        lines.push(format!(
            "not moving, with work that is not done: {}",
            stuck.join(", ")
        ));
    }
    lines
}

/// Names a channel: `channel 3 (gpu0 0x0000d gr)`.
pub(super) fn name(look: &Report, id: ChannelId) -> String {
    let mut text = format!("channel {}", id.0);
    if let Some(c) = look.rings.channels.iter().find(|c| c.id == id) {
        text.push_str(" (");
        if let Some(gpu) = c.gpu {
            let _ = write!(text, "gpu{gpu} ");
        }
        if c.token.is_some() {
            let _ = write!(text, "{} ", token_name(c.token));
        }
        let _ = write!(text, "{})", EngineName(c.engine));
    }
    text
}

pub(super) fn work(work: &Work) -> String {
    let mut text = match &work.kind {
        WorkKind::Kernel(l) => format!("a kernel has not ended: {}", kernel(l)),
        WorkKind::Copy(c) => format!("a copy has not ended: {}", copy(c)),
        WorkKind::Other => {
            "what it fetched is not done, and is neither a kernel nor a copy that could be read"
                .to_owned()
        }
    };
    let _ = write!(text, " (entry {})", work.index);
    if work.others > 0 {
        let _ = write!(text, ", or one of {} more in that entry", work.others);
    }
    if work.behind > 0 {
        let _ = write!(text, "; {} behind it", plural(work.behind, "submission"));
    }
    if !work.certain {
        text.push_str("; by GP_GET alone, its semaphore cannot be read");
    }
    text
}

/// Kernel, grid and block of a launch.
pub(super) fn kernel(l: &Launch) -> String {
    let of = |d: Option<[u32; 3]>| {
        d.map_or_else(|| "?".to_owned(), |d| format!("{}x{}x{}", d[0], d[1], d[2]))
    };
    let mut text = format!("grid {} block {}", of(l.grid), of(l.block));
    if let Some(kernel) = &l.kernel {
        return format!("{} {text}", kernels::text(kernel, true));
    }
    match (l.program, l.qmd) {
        (Some(program), _) => {
            let _ = write!(text, " prog {program:#x}");
        }
        (None, Some(qmd)) => {
            let _ = write!(text, " qmd {qmd:#x} (its contents were not seen)");
        }
        (None, None) => {}
    }
    text
}

fn copy(c: &Copy) -> String {
    let end = |a: Option<GpuVa>| a.map_or_else(|| "?".to_owned(), |a| format!("{a:#x}"));
    format!("{} B {} -> {}", c.bytes, end(c.src), end(c.dst))
}

/// Describes a wait: `semaphore 0x20460fff0 >= 956 (now 955)`.
pub(super) fn semaphore(wait: &Wait) -> String {
    let value = match wait.value {
        Some(value) => format!("now {value}"),
        None => "its value cannot be read".to_owned(),
    };
    format!(
        "semaphore {:#x} {} {} ({value})",
        wait.address, wait.mode, wait.payload
    )
}

fn waits(look: &Report, id: ChannelId, wait: &Wait) -> String {
    let mut text = format!(
        "{} {}",
        if wait.value.is_some() {
            "waits for"
        } else {
            "may wait for"
        },
        semaphore(wait)
    );
    let _ = write!(text, " at entry {}", wait.index);
    if let Some(r) = wait.releasers.first() {
        let who = if r.channel == id {
            "this channel".to_owned()
        } else {
            name(look, r.channel)
        };
        let how = if r.kernel {
            "at its end by the kernel of"
        } else {
            "by"
        };
        let _ = write!(text, "; released {how} {who}, entry {}", r.index);
        if wait.releasers.len() > 1 {
            let _ = write!(text, " (and {} more)", wait.releasers.len() - 1);
        }
    } else if let Some(r) = wait.overwritten.last() {
        let _ = write!(
            text,
            "; {} had released it (entry {}), and something has written over it since",
            name(look, r.channel),
            r.index
        );
    } else {
        text.push_str("; nothing that this process has submitted releases it");
        if let Some(r) = wait.last {
            let _ = write!(
                text,
                ": the last to write there is {}, entry {}, with {}",
                name(look, r.channel),
                r.index,
                r.payload
            );
        } else {
            text.push_str(": the CPU, another process or another GPU must");
        }
    }
    let root = look.analysis.blocked.iter().find(|b| b.channel == id);
    match root.map(|b| b.root) {
        Some(Root::Work { channel })
            if channel != id || wait.releasers.first().is_some_and(|r| !r.kernel) =>
        {
            let _ = write!(text, "; held up by the work of channel {}", channel.0);
        }
        Some(Root::NobodyReleases { channel }) if channel != id => {
            let _ = write!(text, "; in the end by the wait of channel {}", channel.0);
        }
        Some(Root::Cycle { index }) => {
            let cycle = look.analysis.cycles.get(index);
            text.push_str(&in_cycle(id, cycle.map_or(&[], |c| &c.channels)));
        }
        _ => {}
    }
    text
}

/// Tells of the cycle of waits that a channel's wait is in, or comes to in the end.
fn in_cycle(id: ChannelId, cycle: &[ChannelId]) -> String {
    let numbers: Vec<String> = cycle.iter().map(|c| c.0.to_string()).collect();
    match cycle {
        [one] if *one == id => "; behind this wait".to_owned(),
        [one] => format!("; held up by channel {}, which waits for itself", one.0),
        _ => format!(
            "; {} channels {} that wait for one another",
            if cycle.contains(&id) {
                "one of the"
            } else {
                "held up by the"
            },
            numbers.join(", ")
        ),
    }
}

fn cycle_of(look: &Report, channels: &[ChannelId], stays: bool) -> String {
    let word = match stays {
        true => "DEADLOCK",
        false => "DEADLOCK, if it stays so",
    };
    let names: Vec<String> = channels.iter().map(|c| name(look, *c)).collect();
    match names.as_slice() {
        [one] => format!("{word}: {one} waits for what it is itself to release later"),
        [first, rest @ ..] => format!(
            "{word}: {first} waits for {}, which waits for the first",
            rest.join(", which waits for ")
        ),
        [] => String::new(),
    }
}

/// Sums up the states of the threads, in words.
fn cpu(threads: &[Thread]) -> Option<String> {
    if threads.is_empty() {
        return None;
    }
    let count = |state: char| threads.iter().filter(|t| t.state == state).count();
    let mut text = format!(
        "{}: {} running",
        plural(threads.len() as u64, "thread"),
        count('R')
    );
    for (state, words) in [
        ('S', "sleeping"),
        ('D', "in the kernel, not to be woken by signals"),
        ('T', "stopped"),
    ] {
        if count(state) > 0 {
            let _ = write!(text, ", {} {words}", count(state));
        }
    }
    Some(text)
}

/// The error's code with its meaning, where it is a usual one.
fn xid(code: u32) -> String {
    format!("Xid {code}, {}", meaning(code))
}
