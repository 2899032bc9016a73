//! Output of `--explain-streams` at the end of a trace: the streams that shared each channel, and the submissions that stood behind another's wait. A
//! section of text, or one JSON object.

use std::{collections::BTreeMap, fmt::Write as _, io};

use serde_json::{Value as Json, json};

use super::{
    Detail, Sink,
    names::{EngineName, known_engine},
    names::{gpu_name, known_pid, pid_name, token_name},
    writer::Output,
};
use nvcap_decode::{
    decode::{
        engine_of as engine_of_number,
        event::{Engine, Event, SemaphoreAction},
    },
    driver::{
        Model,
        report::{self, GpuReport, Shared, Sharing},
    },
    ledger::Ledger,
    record::{ChannelId, Life, Record},
};

/// The sink.
pub struct Streams {
    out: Output,
    json: bool,
    sharing: Sharing,
    /// Spread of channels over runlists when there were the most channels: the channels of ended processes are gone at the end.
    spread: Vec<GpuReport>,
    most: usize,
}

impl Streams {
    /// Text at the end of the trace.
    #[must_use]
    pub fn text(out: Output) -> Self {
        Self::new(out, false)
    }

    /// One JSON object (`type` = `streams`) at the end of the trace.
    #[must_use]
    pub fn json(out: Output) -> Self {
        Self::new(out, true)
    }

    fn new(out: Output, json: bool) -> Self {
        Self {
            out,
            json,
            sharing: Sharing::default(),
            spread: Vec::new(),
            most: 0,
        }
    }

    /// Keeps the spread of channels, if there were never more of them.
    fn look(&mut self, model: &Model) {
        let now = model.channels().count();
        if now >= self.most && now != 0 {
            self.most = now;
            self.spread = report::spread(model);
        }
    }
}

impl Sink for Streams {
    fn detail(&self) -> Option<Detail> {
        Some(Detail::Operations)
    }

    fn sees_all(&self) -> bool {
        true
    }

    fn event(&mut self, event: &Event<'_>) -> io::Result<()> {
        self.sharing.event(event);
        Ok(())
    }

    fn before(&mut self, record: &Record, model: &Model) -> io::Result<()> {
        // The process's channels are freed by this record.
        if let Record::Process(p) = record
            && matches!(p.life, Life::Exit { .. } | Life::Exec { .. })
        {
            self.look(model);
        }
        Ok(())
    }

    fn record(&mut self, record: &Record, _model: &Model) -> io::Result<()> {
        if let Record::Channel(c) = record {
            self.sharing.channel(c);
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    fn unshown(&self) -> u64 {
        self.out.unshown()
    }

    fn finish(&mut self, ledger: &Ledger, model: &Model) -> io::Result<()> {
        self.look(model);
        let out = self.out.object();
        if self.json {
            let mut object = to_json(&self.spread, &self.sharing);
            if let Some(map) = object.as_object_mut() {
                map.insert("type".into(), "streams".into());
                let end = Some(ledger.end_ns()).filter(|end| *end != 0);
                map.insert("time_ns".into(), end.into());
                for nobodys in ["pid", "tid", "token"] {
                    map.insert(nobodys.into(), Json::Null);
                }
            }
            super::json::write(out, &object);
            out.push(b'\n');
        } else {
            let text = to_text(&self.spread, &self.sharing);
            out.extend_from_slice(super::style::plain_lines(&text).as_bytes());
        }
        self.out.end_object()?;
        self.out.flush()
    }
}

/// Returns the spread of channels over runlists, in words.
#[must_use]
pub(crate) fn spread_text(spread: &[GpuReport]) -> String {
    let mut text = String::new();
    for gpu in spread {
        let channels: usize = gpu.runlists.iter().map(report::Runlist::channels).sum();
        let groups: usize = gpu.runlists.iter().map(groups_of).sum();
        let _ = writeln!(
            text,
            "  {}{}: {}{} on {}",
            gpu_name(gpu.gpu),
            gpu.chip.as_ref().map_or(String::new(), |c| format!(" {c}")),
            count(channels, "channel"),
            in_groups(groups),
            count(gpu.runlists.len(), "runlist")
        );
        for runlist in &gpu.runlists {
            let number = runlist
                .number
                .map_or_else(|| "?".to_owned(), |n| n.to_string());
            let engines = match runlist.engines.is_empty() {
                true => "?".to_owned(),
                false => runlist.engines.join("+"),
            };
            let _ = writeln!(
                text,
                "    runlist {number:<3} {engines:<12} {}{}",
                count(runlist.channels(), "channel"),
                in_groups(groups_of(runlist))
            );
        }
    }
    text
}

/// The number of channel groups of a runlist whose handle is known.
fn groups_of(runlist: &report::Runlist) -> usize {
    runlist
        .groups
        .iter()
        .filter(|(_, g, _)| g.is_some())
        .count()
}

fn in_groups(groups: usize) -> String {
    match groups {
        0 => String::new(),
        n => format!(" in {}", count(n, "group")),
    }
}

fn count(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// The engine's name.
fn engine_of(shared: &Shared) -> Engine {
    shared.engine.map_or(shared.runs_on, engine_of_number)
}

fn token_of(shared: &Shared) -> String {
    token_name(shared.token)
}

fn compares(action: SemaphoreAction) -> &'static str {
    match action {
        SemaphoreAction::AcquireEqual => "==",
        SemaphoreAction::AcquireGreaterEqual => ">=",
        SemaphoreAction::AcquireAnd => "&",
        SemaphoreAction::AcquireNor => "nor",
        SemaphoreAction::Release | SemaphoreAction::Reduction | SemaphoreAction::Other(_) => "?",
    }
}

fn to_text(spread: &[GpuReport], sharing: &Sharing) -> String {
    let mut text = String::from("streams: who shared which channel\n");
    text.push_str(&spread_text(spread));
    let mut all: Vec<(ChannelId, &Shared)> = sharing
        .channels()
        .filter(|(_, s)| s.submissions != 0)
        .collect();
    all.sort_by_key(|(id, s)| (s.pid, s.gpu, s.token, *id));
    for (id, shared) in &all {
        channel_text(&mut text, *id, shared);
    }
    if all.is_empty() {
        text.push_str("  no submissions\n");
        return text;
    }
    let among = all.iter().filter(|(_, s)| s.known_threads() > 1).count();
    let behind: u64 = all.iter().map(|(_, s)| s.behind).sum();
    if among != 0 {
        let _ = writeln!(
            text,
            "  {} took work of several threads: it runs in the order in which it was committed, one after another.",
            count(among, "channel")
        );
    }
    if behind != 0 {
        text.push_str(
            "  A channel's entries are executed in order: what is behind a wait starts only when the wait is over,\n  \
             also where it belongs to another stream. More channels (CUDA_DEVICE_MAX_CONNECTIONS, up to 32) or fewer\n  \
             streams with waits part them.\n",
        );
    } else if all.iter().any(|(_, s)| s.get_known) {
        text.push_str("  No submission was seen to stand behind a wait of its own channel.\n");
    } else {
        text.push_str(
            "  GP_GET was not captured, so it cannot be told what stood behind a wait of its own channel.\n",
        );
    }
    text
}

fn channel_text(text: &mut String, id: ChannelId, shared: &Shared) {
    let _ = write!(
        text,
        "  channel {:<3} {:<8} {} {:<5} pid {}: {}",
        id.0,
        token_of(shared),
        gpu_name(shared.gpu),
        EngineName(engine_of(shared)),
        super::names::pid_name(shared.pid),
        super::plural::plural(shared.submissions, "submission")
    );
    if shared.known_threads() > 1 {
        let mut by_count: Vec<(&u32, &u64)> =
            shared.threads.iter().filter(|(t, _)| **t != 0).collect();
        by_count.sort_by_key(|(_, n)| std::cmp::Reverse(**n));
        let list: Vec<String> = by_count
            .iter()
            .take(6)
            .map(|(tid, n)| format!("{tid} ({n})"))
            .collect();
        let more = if by_count.len() > 6 { ", ..." } else { "" };
        let _ = write!(
            text,
            " of {}: {}{more}",
            super::plural::plural(by_count.len() as u64, "thread"),
            list.join(", ")
        );
    }
    if shared.waits != 0 {
        let waits = usize::try_from(shared.waits).unwrap_or(usize::MAX);
        let _ = write!(text, "; {}", count(waits, "wait"));
    }
    text.push('\n');
    if shared.behind == 0 {
        return;
    }
    let _ = write!(
        text,
        "    {} committed while the GPU had not passed an earlier wait of this channel",
        shared.behind
    );
    if shared.behind_other_thread != 0 {
        let _ = write!(
            text,
            ", {} of them behind another thread's",
            shared.behind_other_thread
        );
    }
    text.push('\n');
    if let Some(b) = shared.example {
        let _ = writeln!(
            text,
            "    such as #{} (thread {}) behind #{} (thread {}), which waits for {:#x} {} {:#x}",
            b.serial,
            pid_name(b.tid),
            b.wait.serial,
            pid_name(b.wait.tid),
            b.wait.address,
            compares(b.wait.action),
            b.wait.payload
        );
    }
}

fn to_json(spread: &[GpuReport], sharing: &Sharing) -> Json {
    let gpus: Vec<Json> = spread
        .iter()
        .map(|g| {
            let runlists: Vec<Json> = g
                .runlists
                .iter()
                .map(|r| {
                    let groups: Vec<Json> = r
                        .groups
                        .iter()
                        .map(|(pid, tsg, channels)| {
                            let ids: Vec<u32> = channels.iter().map(|c| c.0).collect();
                            json!({ "pid": known_pid(*pid), "tsg": tsg, "channels": ids })
                        })
                        .collect();
                    json!({ "runlist": r.number, "engines": r.engines, "groups": groups })
                })
                .collect();
            json!({ "gpu": g.gpu, "chip": g.chip, "runlists": runlists })
        })
        .collect();
    let channels: Vec<Json> = sharing
        .channels()
        .filter(|(_, s)| s.submissions != 0)
        .map(|(id, s)| {
            let threads: BTreeMap<String, u64> =
                s.threads.iter().map(|(t, n)| (pid_name(*t), *n)).collect();
            json!({
                "channel": id.0,
                "pid": known_pid(s.pid),
                "gpu": s.gpu,
                "token": s.token,
                "engine": known_engine(engine_of(s)),
                "gp_get_known": s.get_known,
                "submissions": s.submissions,
                "threads": threads,
                "waits": s.waits,
                "behind_a_wait": s.behind,
                "behind_another_threads_wait": s.behind_other_thread,
                "example": s.example.map(|b| json!({
                    "serial": b.serial,
                    "tid": known_pid(b.tid),
                    "wait_serial": b.wait.serial,
                    "wait_tid": known_pid(b.wait.tid),
                    "address": b.wait.address,
                    "payload": b.wait.payload,
                })),
            })
        })
        .collect();
    json!({ "gpus": gpus, "channels": channels })
}
