//! The look as text: verdict first, then a table of channels, then each channel's entries, then the threads.

use std::sync::Arc;

use super::verdict::{semaphore, verdict};
use super::{Options, Shown};
use crate::decode::event::{Context, InlineContent, LaunchKind, Operation};
use crate::hang::{ChannelFacts, ChannelScene, Judged, ProcessLook, State, Step};
use crate::output::describe::describe;
use crate::output::method::class_name;
use crate::output::names::EngineName;
use crate::output::style::{Formatter, Plain, Role};
use crate::record::{At, How};

/// Appends the look.
pub fn text(out: &mut Vec<u8>, shown: &Shown<'_>, options: &Options) {
    let mut f = Formatter::new(out, options.color);
    for process in &shown.look.processes {
        head(&mut f, shown, process);
        table(&mut f, shown, process);
        for channel in of(shown, process) {
            if !options.steps(channel, None).is_empty() {
                entries(&mut f, shown, channel, options);
            }
        }
        threads(&mut f, process);
        notes(&mut f, shown, process, options);
    }
}

fn of<'a>(
    shown: &Shown<'a>,
    process: &'a ProcessLook,
) -> impl Iterator<Item = &'a ChannelScene> + use<'a> {
    // What is at work first: it is what is looked for.
    let look = shown.look;
    let mut all: Vec<&ChannelScene> = look
        .scene
        .channels
        .iter()
        .filter(|c| c.pid == process.pid)
        .collect();
    all.sort_by_key(|c| {
        look.analysis
            .of(c.id)
            .is_none_or(|j| j.state == State::Idle)
    });
    all.into_iter()
}

fn head(f: &mut Formatter<'_>, shown: &Shown<'_>, process: &ProcessLook) {
    let verdict = verdict(shown, process);
    let role = match verdict.word {
        "hang" | "error" => Role::Alarm,
        "idle" | "moving" => Role::Good,
        _ => Role::Operation,
    };
    f.line("", 0, Some(role));
    f.text(format_args!(
        "process {} {}: {}: {}",
        process.pid,
        Plain(&process.name),
        verdict.word.to_uppercase(),
        verdict.head
    ));
    f.end();
    for line in &verdict.lines {
        f.line("", 1, None);
        f.text(format_args!("{line}"));
        f.end();
    }
    f.line("", 0, None);
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

fn table(f: &mut Formatter<'_>, shown: &Shown<'_>, process: &ProcessLook) {
    let mut mine = of(shown, process).peekable();
    if mine.peek().is_none() {
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
        let judged = shown.look.analysis.of(c.id);
        let line = judged.and_then(|j| j.line);
        let optional = |n: Option<u64>| n.map_or_else(|| "-".to_owned(), |n| n.to_string());
        f.line("", 0, None);
        f.text(format_args!(
            "{:>7} {:>4} {:<8} {:<6} {:>6} {:>6} {:>11} {:>11} {:>11}  ",
            c.id.0,
            optional(c.gpu.map(u64::from)),
            c.token
                .map_or_else(|| "-".to_owned(), |t| format!("{t:#07x}")),
            EngineName(c.engine),
            c.get,
            c.put,
            c.pending(),
            optional(line.and_then(|l| l.value)),
            // Of a channel that moves the value is newer than the ring's entries are.
            optional(line.map(|l| l.value.filter(|v| *v > l.newest).unwrap_or(l.newest))),
        ));
        if let Some(j) = judged {
            let role = match j.state {
                State::Idle => Role::Dim,
                _ => Role::Operation,
            };
            f.role(role, format_args!("{}", state(j.state)));
            if let Some(wait) = &j.wait {
                f.text(format_args!(": {}", semaphore(wait)));
            }
        }
        f.end();
    }
    f.line("", 0, None);
    f.end();
}

/// What a step is, in a column: done, what the GPU is at, what it waits at, and what it has not fetched.
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
    match j.line.and_then(|l| l.done) {
        Some(done) if step.position <= done => "done",
        Some(_) => "open",
        None => "fetched",
    }
}

/// What matters in an incident: the driver's preparations of a launch are left out.
fn matters(op: &Operation) -> bool {
    match op {
        Operation::Inline(i) => !matches!(
            i.content,
            Some(InlineContent::ConstantBank | InlineContent::Qmd | InlineContent::Code)
        ),
        Operation::Launch(l) => l.kind != LaunchKind::Companion,
        Operation::Barrier(_) | Operation::Bind(_) => false,
        _ => true,
    }
}

fn entries(f: &mut Formatter<'_>, shown: &Shown<'_>, c: &ChannelScene, options: &Options) {
    let judged = shown.look.analysis.of(c.id);
    f.line("", 0, Some(Role::Operation));
    f.text(format_args!("channel {}", c.id.0));
    if let Some(token) = c.token {
        f.text(format_args!(" {token:#07x}"));
    }
    f.text(format_args!(" {}", EngineName(c.engine)));
    for class in &c.classes {
        f.text(format_args!(" {}", class_name(*class).unwrap_or("?")));
    }
    let steps = options.steps(c, judged);
    f.text(format_args!(
        ", newest {} of {} entries",
        steps.len(),
        c.entries
    ));
    f.end();
    if let Some(facts) = shown.look.facts(c.id) {
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
                    "{} B, {} operations of the driver's own (-v)",
                    step.bytes,
                    step.operations.len()
                ));
            }
            f.end();
        }
    }
    f.line("", 0, None);
    f.end();
}

fn gaps(f: &mut Formatter<'_>, facts: &ChannelFacts) {
    let mut say = |n: u64, words: &str| {
        if n > 0 {
            f.line("  ", 0, Some(Role::Alarm));
            f.text(format_args!("{n} {words}"));
            f.end();
        }
    };
    say(
        u64::from(facts.overwritten),
        "entries were written over while they were read, and are left out",
    );
    say(
        u64::from(facts.recycled),
        "entries' pushbuffer bytes were used again by newer ones",
    );
    say(facts.unreadable, "pushbuffer bytes could not be read");
    say(
        u64::from(facts.elsewhere),
        "entries point to memory that the process has not mapped at that address: they cannot be decoded from here",
    );
    say(
        u64::from(facts.ring_gone),
        "ring could not be read any more",
    );
}

fn context(c: &ChannelScene) -> Context {
    Context {
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
    }
}

fn threads(f: &mut Formatter<'_>, process: &ProcessLook) {
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
            (None, None) => f.text(format_args!("-")),
        }
        if let Some(argument) = t.argument {
            f.text(format_args!("({argument:#x}, ...)"));
        }
        if let Some(wchan) = &t.wchan {
            f.text(format_args!(" {}", Plain(wchan)));
        }
        f.end();
    }
    f.line("", 0, None);
    f.end();
}

fn notes(f: &mut Formatter<'_>, shown: &Shown<'_>, process: &ProcessLook, options: &Options) {
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
        "read in {:.1} ms: channels found in {:.1} ms, rings and pushbuffers read in {:.1} ms; {} slots were never used",
        shown.look.took_ns as f64 / 1e6,
        process.finding_ns as f64 / 1e6,
        process.reading_ns as f64 / 1e6,
        process.unused
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
                "habit" => "by libcuda's habit",
                "alike" => "as with another channel",
                "given" => "as given",
                _ => "searched for",
            },
            match facts.size {
                "habit" => "by habit (USERD lies right behind)",
                "wrapped" => "proven (the last entry is followed by the first)",
                _ => "assumed (all the room there is)",
            },
            match facts.target {
                "parses" => "its newest entry's bytes parse as methods",
                "readable" => "its newest entry points to mapped memory that does not parse",
                "elsewhere" => "its entries' addresses are not the process's",
                _ => "never used",
            },
            if facts.moved { ", seen moving" } else { "" },
            match facts.token_from {
                Some("notifier") => "from its error notifier, by the order of channels",
                Some(_) => "as given",
                None => "not known",
            }
        ));
        f.end();
    }
}
