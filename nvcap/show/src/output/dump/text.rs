//! The look as text: verdict first, then a table of channels, then each channel's entries, then the threads.

use nvcap_decode::hang::{EntryTarget, RingPlace, RingSize, TokenFrom};
use std::sync::Arc;

use super::stacks;
use super::verdict::{Word, is_known, name, semaphore, verdict, work};
use super::{LAST, Part, ReportOptions, Shown};
use crate::output::describe::describe;
use crate::output::method::class_name;
use crate::output::names::{EngineName, known_name, token_name};
use crate::output::plural::{plural, plural_of};
use crate::output::style::{Formatter, Plain, Role};
use nvcap_decode::decode::event::{Context, InlineContent, LaunchKind, Operation};
use nvcap_decode::hang::{ChannelFacts, ChannelState, Judged, ProcessReport, State, Step};
use nvcap_decode::record::{At, How};

/// Appends the look as text.
pub fn text(out: &mut Vec<u8>, shown: &Shown<'_>, options: &ReportOptions) {
    let mut f = Formatter::new(out, options.color);
    for process in &shown.report.processes {
        head(&mut f, shown, process, options);
        table(&mut f, shown, process, options);
        let mut idle = 0;
        for channel in of(shown, process) {
            let part = options.part(channel, shown.report.analysis.of(channel.id));
            let lacks = || shown.report.facts(channel.id).is_some_and(has_gaps);
            match part {
                Part {
                    undone: Some(0), ..
                } if !lacks() => idle += u64::from(!channel.steps.is_empty()),
                Part {
                    steps: [],
                    undone: None,
                } => {}
                part => entries(&mut f, shown, channel, part, options),
            }
        }
        if idle > 0 {
            f.line("", 0, Some(Role::Dim));
            f.text(format_args!(
                "all done on {}: --last N shows their newest entries",
                plural_of(idle, "channel", "channels")
            ));
            f.end();
            f.line("", 0, None);
            f.end();
        }
        threads(&mut f, process, options);
        notes(&mut f, shown, process, options);
    }
}

fn of<'a>(
    shown: &Shown<'a>,
    process: &'a ProcessReport,
) -> impl Iterator<Item = &'a ChannelState> + use<'a> {
    // Channels of Xid messages, then those that have work come first: the user looks for them.
    let look = shown.report;
    let mut all: Vec<&ChannelState> = look
        .rings
        .channels
        .iter()
        .filter(|c| c.pid == process.pid)
        .collect();
    all.sort_by_key(|c| {
        let failed = process.xids.iter().any(|x| x.channels.contains(&c.id));
        let judged = look.analysis.of(c.id);
        (!failed, judged.is_none_or(|j| j.state == State::Idle))
    });
    all.into_iter()
}

fn head(
    f: &mut Formatter<'_>,
    shown: &Shown<'_>,
    process: &ProcessReport,
    options: &ReportOptions,
) {
    let verdict = verdict(shown, process);
    let role = match verdict.word {
        Word::Hang | Word::Error => Role::Alarm,
        Word::Idle | Word::Moving => Role::Good,
        Word::Busy | Word::Unknown => Role::Operation,
    };
    f.line("", 0, Some(role));
    f.text(format_args!(
        "process {} {}: {}: {}",
        process.pid,
        Plain(known_name(&process.name).unwrap_or("?")),
        verdict.word.name().to_uppercase(),
        verdict.head
    ));
    f.end();
    for line in &verdict.lines {
        f.line("", 1, None);
        f.text(format_args!("{line}"));
        f.end();
    }
    for xid in &process.xids {
        f.line("", 1, Some(Role::Alarm));
        f.text(format_args!(
            "kernel log, {:.1} s after the machine's start: Xid {}, {}",
            xid.time_ns as f64 / 1e9,
            xid.code,
            xid.meaning()
        ));
        for (word, instance) in [
            ("GPU instance", xid.gpu_instance),
            ("compute instance", xid.compute_instance),
        ] {
            if let Some(number) = instance {
                f.text(format_args!("; {word} {number}"));
            }
        }
        let channels = xid.channels.iter().map(|id| name(shown.report, *id));
        let channels: Vec<String> = channels.collect();
        if !channels.is_empty() {
            f.text(format_args!("; {}", channels.join(" or ")));
        }
        if xid.is_of_unknown_process() {
            f.text(format_args!(
                "; on its GPU, of a process that no message names"
            ));
        }
        if !xid.text.is_empty() {
            f.text(format_args!(": {}", Plain(&xid.text)));
        }
        f.end();
        let channels = shown.report.rings.channels.iter();
        for channel in channels.filter(|c| xid.channels.contains(&c.id)) {
            last_of(f, shown, channel, options);
        }
    }
    f.line("", 0, None);
    f.end();
}

/// One line for a channel that an Xid message may be about: the work that runs, else the newest operation that the GPU fetched.
fn last_of(f: &mut Formatter<'_>, shown: &Shown<'_>, c: &ChannelState, options: &ReportOptions) {
    let running = shown.report.analysis.of(c.id);
    if let Some(running) = running.and_then(|j| j.running.as_ref()) {
        f.line("", 2, None);
        f.text(format_args!("channel {}: {}", c.id.0, work(running)));
        f.end();
        return;
    }
    let fetched = c.steps.iter().rev().filter(|s| !s.pending);
    let mut all = fetched.flat_map(|s| s.operations.iter().rev().map(move |o| (s, o)));
    let Some((step, op)) = all.find(|(_, op)| options.verbose || matters(op)) else {
        return;
    };
    let prefix = format!(
        "    channel {}, entry {}, the newest fetched: ",
        c.id.0, step.index
    );
    describe(f, &prefix, &context(c), op, options.redact.as_ref());
    f.end();
}

fn state(state: State) -> &'static str {
    match state {
        State::Idle => "idle",
        State::Running => "running",
        State::Waiting => "waiting",
        State::RunningAndWaiting => "running, then waits",
        State::Queued => "queued",
    }
}

/// Fewest idle channels that become one line of the table, where others are not idle.
const FOLDED: usize = 3;

/// Writes the table of the channels. The idle ones are one line where others are not idle, and the user asks neither for all channels nor for some of
/// them.
fn table(
    f: &mut Formatter<'_>,
    shown: &Shown<'_>,
    process: &ProcessReport,
    options: &ReportOptions,
) {
    let is_idle = |c: &&ChannelState| {
        let judged = shown.report.analysis.of(c.id);
        let stopped = shown.report.error_of(c.id).is_some();
        let is_idle = judged.is_some_and(|j| j.state == State::Idle && is_known(j));
        is_idle && !stopped && !options.chooses(c)
    };
    let (idle, busy): (Vec<_>, Vec<_>) = of(shown, process).partition(is_idle);
    let folds = !options.verbose && !busy.is_empty() && idle.len() >= FOLDED;
    let mine = match folds {
        true => busy,
        false => of(shown, process).collect(),
    };
    if mine.is_empty() {
        return;
    }
    f.line("", 0, Some(Role::Dim));
    f.text(format_args!(
        "{:>7} {:>4} {:<8} {:<6} {:>6} {:>6} {:>11} {:>11} {:>11}  {}",
        "channel",
        "gpu",
        "token",
        "engine",
        "GP_GET",
        "GP_PUT",
        "not fetched",
        "done",
        "submitted",
        "state"
    ));
    f.end();
    for c in mine {
        let judged = shown.report.analysis.of(c.id);
        let line = judged.and_then(|j| j.semaphore);
        let optional = |n: Option<u64>| n.map_or_else(|| "?".to_owned(), |n| n.to_string());
        f.line("", 0, None);
        f.text(format_args!(
            "{:>7} {:>4} {:<8} {:<6} {:>6} {:>6} {:>11} {:>11} {:>11}  ",
            c.id.0,
            optional(c.gpu.map(u64::from)),
            token_name(c.token),
            EngineName(c.engine),
            c.get,
            c.put,
            c.pending(),
            optional(judged.and_then(Judged::done)),
            // The value was read after the entries: if the channel moves, it can be higher than the newest payload in them.
            optional(line.map(|l| l.value.filter(|v| *v > l.newest).unwrap_or(l.newest))),
        ));
        if let Some(j) = judged {
            let role = match j.state {
                State::Idle => Role::Dim,
                _ => Role::Operation,
            };
            let error = shown.report.error_of(c.id);
            let word = match shown.report.trace_ns {
                _ if error.is_some() => "stopped",
                Some(_) if !is_known(j) && j.state == State::Idle => "not known",
                _ => state(j.state),
            };
            let role = if error.is_some() { Role::Alarm } else { role };
            f.role(role, format_args!("{word}"));
            if let Some(code) = error {
                f.text(format_args!(": Xid {code}"));
            } else if let Some(wait) = &j.wait {
                f.text(format_args!(": {}", semaphore(wait)));
            }
        }
        f.end();
    }
    if folds {
        f.line("", 0, Some(Role::Dim));
        let idle = plural(idle.len() as u64, "more channel");
        f.text(format_args!("        {idle} idle: -v shows them"));
        f.end();
    }
    f.line("", 0, None);
    f.end();
}

/// Returns a step's state in a word. `open`: fetched, and not done. `fetched`: it is not known whether the step is done.
fn mark(step: &Step, judged: Option<&Judged>) -> &'static str {
    let Some(j) = judged else { return "" };
    if j.running
        .as_ref()
        .is_some_and(|w| w.position == step.position)
    {
        return "runs";
    }
    if j.wait.as_ref().is_some_and(|w| w.position == step.position) {
        return "waits";
    }
    if step.pending {
        return "queued";
    }
    match j.semaphore.and_then(|l| l.done) {
        Some(done) if step.position <= done => "done",
        Some(_) => "open",
        None => "fetched",
    }
}

/// Tells whether an operation matters in an incident. The driver's preparations for a launch do not.
fn matters(op: &Operation) -> bool {
    match op {
        Operation::Inline(i) => !matches!(
            i.content,
            Some(
                InlineContent::ConstantBank
                    | InlineContent::Qmd
                    | InlineContent::QmdPart
                    | InlineContent::Code
                    | InlineContent::Semaphore
                    | InlineContent::TextureHeader
            )
        ),
        Operation::Launch(l) => l.kind != LaunchKind::Companion,
        Operation::Barrier(_) | Operation::Bind(_) => false,
        _ => true,
    }
}

fn entries(
    f: &mut Formatter<'_>,
    shown: &Shown<'_>,
    c: &ChannelState,
    part: Part<'_>,
    options: &ReportOptions,
) {
    let judged = shown.report.analysis.of(c.id);
    f.line("", 0, Some(Role::Operation));
    f.text(format_args!("channel {}", c.id.0));
    if c.token.is_some() {
        f.text(format_args!(" {}", token_name(c.token)));
    }
    f.text(format_args!(" {}", EngineName(c.engine)));
    for class in &c.classes {
        f.text(format_args!(" {}", class_name(*class).unwrap_or("?")));
    }
    let Part { steps, undone } = part;
    match (c.entries, undone) {
        (_, Some(undone)) => {
            let entries = plural_of(undone as u64, "entry", "entries");
            f.text(format_args!(", {entries} not done"));
            if undone > LAST as usize {
                f.text(format_args!(", the oldest {LAST}"));
            }
        }
        // The recording does not tell how many entries the ring has.
        (0, None) => f.text(format_args!(
            ", newest {}",
            plural_of(steps.len() as u64, "entry", "entries")
        )),
        (entries, None) => f.text(format_args!(
            ", newest {} of {}",
            steps.len(),
            plural_of(entries.into(), "entry", "entries")
        )),
    }
    f.end();
    if let Some(facts) = shown.report.facts(c.id) {
        gaps(f, facts);
    }
    let context = context(c);
    for step in steps {
        let mark = mark(step, judged);
        let mut prefix = format!("  {:>5} {mark:<7} ", step.index);
        let mut any = false;
        for op in step
            .operations
            .iter()
            .filter(|op| options.verbose || matters(op))
        {
            describe(f, &prefix, &context, op, options.redact.as_ref());
            f.end();
            any = true;
            prefix = " ".repeat(prefix.len());
        }
        if step.missing > 0 || step.stop.is_some() {
            f.line(&prefix, 0, Some(Role::Alarm));
            if step.missing > 0 {
                f.text(format_args!(
                    "{} of {} B could not be read or were used again",
                    step.missing, step.bytes
                ));
            } else if let Some(stop) = step.stop {
                f.text(format_args!("decoding stopped at byte {}", stop.offset));
            }
            f.end();
        } else if !any {
            f.line(&prefix, 0, Some(Role::Dim));
            if step.bytes == 0 {
                f.text(format_args!("control entry"));
            } else {
                f.text(format_args!(
                    "{} B, {} of the driver's own (-v)",
                    step.bytes,
                    plural(step.operations.len() as u64, "operation")
                ));
            }
            f.end();
        }
    }
    f.line("", 0, None);
    f.end();
}

fn has_gaps(facts: &ChannelFacts) -> bool {
    let counts = [
        facts.overwritten,
        facts.recycled,
        facts.elsewhere,
        facts.ring_gone.into(),
    ];
    facts.unreadable > 0 || counts.iter().any(|n| *n > 0)
}

fn gaps(f: &mut Formatter<'_>, facts: &ChannelFacts) {
    let mut say = |n: u64, one: &str, many: &str| {
        if n > 0 {
            f.line("  ", 0, Some(Role::Alarm));
            f.text(format_args!("{}", plural_of(n, one, many)));
            f.end();
        }
    };
    say(
        u64::from(facts.overwritten),
        "entry was written over while it was read, and is left out",
        "entries were written over while they were read, and are left out",
    );
    say(
        u64::from(facts.recycled),
        "entry's pushbuffer bytes were used again by newer ones",
        "entries' pushbuffer bytes were used again by newer ones",
    );
    say(
        facts.unreadable,
        "pushbuffer byte could not be read",
        "pushbuffer bytes could not be read",
    );
    say(
        u64::from(facts.elsewhere),
        "entry points to memory that the process has not mapped at that address: it cannot be decoded from here",
        "entries point to memory that the process has not mapped at that address: they cannot be decoded from here",
    );
    say(
        u64::from(facts.ring_gone),
        "ring could not be read any more",
        "rings could not be read any more",
    );
}

fn context(c: &ChannelState) -> Context {
    Context {
        absent_ns: None,
        at: At {
            time_ns: 0,
            pid: c.pid,
            tid: 0,
        },
        thread: None::<Arc<str>>,
        gpu: c.gpu,
        channel: c.id,
        token: c.token,
        class: None,
        engine: c.engine,
        serial: 0,
        how: How::Observed,
        late: false,
        phase: None,
        stack: None,
        gpu_time: None,
        parts: None,
        identity: None,
    }
}

fn threads(f: &mut Formatter<'_>, process: &ProcessReport, options: &ReportOptions) {
    if process.threads.is_empty() {
        return;
    }
    f.line("", 0, Some(Role::Dim));
    f.text(format_args!(
        "{:>8} {:<16} {:<5} {:>9}  {}",
        "thread", "name", "state", "cpu s", "in"
    ));
    f.end();
    for t in &process.threads {
        f.line("", 0, None);
        f.text(format_args!(
            "{:>8} {:<16} {:<5} {:>9.2}  ",
            t.tid,
            Plain(&t.name),
            t.state,
            // USER_HZ, which is 100 on every Linux that has NVIDIA's driver.
            t.ticks as f64 / 100.0
        ));
        match (t.call, t.syscall) {
            (Some(call), _) => f.text(format_args!("{call}")),
            (None, Some(n)) => f.text(format_args!("system call {n}")),
            (None, None) if t.state == 'R' => f.text(format_args!("the program")),
            (None, None) => f.text(format_args!("?")),
        }
        if let Some(argument) = t.argument {
            f.text(format_args!("({argument:#x}, ...)"));
        }
        if let Some(wchan) = &t.wchan {
            f.text(format_args!(" {}", Plain(wchan)));
        }
        f.end();
        stacks::of_thread(f, t, options.full_stacks);
    }
    f.line("", 0, None);
    f.end();
}

fn notes(
    f: &mut Formatter<'_>,
    shown: &Shown<'_>,
    process: &ProcessReport,
    options: &ReportOptions,
) {
    for note in &process.notes {
        f.line("", 0, Some(Role::Dim));
        f.text(format_args!("note: {}", Plain(note)));
        f.end();
    }
    if !options.verbose {
        return;
    }
    f.line("", 0, Some(Role::Dim));
    f.text(format_args!(
        "read in {:.1} ms: channels found in {:.1} ms, rings and pushbuffers read in {:.1} ms; {} never used",
        shown.report.took_ns as f64 / 1e6,
        process.finding_ns as f64 / 1e6,
        process.reading_ns as f64 / 1e6,
        plural_of(process.unused as u64, "slot was", "slots were")
    ));
    f.end();
    for facts in &process.channels {
        f.line("", 0, Some(Role::Dim));
        f.text(format_args!(
            "channel {}: ring {:#x}, USERD {:#x}; ",
            facts.channel.0, facts.ring, facts.userd
        ));
        f.text(format_args!(
            "place {}, size {}, {}{}, token {}",
            match facts.place {
                RingPlace::Habit => "by libcuda's habit",
                RingPlace::Alike => "as with another channel",
                RingPlace::Given => "as given",
                RingPlace::Sought => "searched for",
            },
            match facts.size {
                RingSize::Habit => "by habit (USERD lies right behind)",
                RingSize::Wrapped => "proven (the last entry is followed by the first)",
                RingSize::Room => "assumed (all the room there is)",
            },
            match facts.target {
                EntryTarget::Parses => "its newest entry's bytes parse as methods",
                EntryTarget::Readable =>
                    "its newest entry points to mapped memory that does not parse",
                EntryTarget::Elsewhere => "its entries' addresses are not the process's",
                EntryTarget::Unused => "never used",
            },
            if facts.moved { ", seen moving" } else { "" },
            match facts.token_from {
                Some(TokenFrom::Notifier) => "from its error notifier, by the order of channels",
                Some(TokenFrom::Given) => "as given",
                None => "not known",
            }
        ));
        f.end();
    }
}
