//! `--explain-streams`: at the end of a trace, which channels were shared by what, and which submissions stood
//! behind another's wait. A section of text, or one JSON object.

use std::{collections::BTreeMap, fmt::Write as _, io};

use serde_json::{Value as Json, json};

use super::{Detail, Sink, channels::gpu_name, writer::Output};
use crate::{
    decode::event::{Event, SemaphoreAction},
    driver::{
        Model, Options,
        report::{self, GpuReport, Shared, Sharing},
    },
    ledger::Ledger,
    record::{ChannelId, Life, Record},
};

/// The sink.
pub struct Streams {
    out: Output,
    json: bool,
    model: Model,
    sharing: Sharing,
    /// Channels at their most: those of processes that end are gone by the end of the trace.
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
            model: Model::new(Options::default()),
            sharing: Sharing::default(),
            spread: Vec::new(),
            most: 0,
        }
    }

    /// How channels are spread, when there were most of them.
    fn look(&mut self) {
        let now = self.model.channels().count();
        if now >= self.most && now != 0 {
            self.most = now;
            self.spread = report::spread(&self.model);
        }
    }
}

impl Sink for Streams {
    fn detail(&self) -> Option<Detail> {
        Some(Detail::Operations)
    }

    fn event(&mut self, event: &Event<'_>) -> io::Result<()> {
        self.sharing.event(event);
        Ok(())
    }

    fn record(&mut self, record: &Record) -> io::Result<()> {
        match record {
            Record::Submission(_) | Record::Loss(_) => return Ok(()),
            Record::Channel(c) => self.sharing.channel(c),
            // Before channels go.
            Record::Process(p) if matches!(p.life, Life::Exit { .. } | Life::Exec { .. }) => {
                self.look();
            }
            _ => {}
        }
        let _ = self.model.record(record);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    fn unshown(&self) -> u64 {
        self.out.unshown()
    }

    fn finish(&mut self, _: &Ledger) -> io::Result<()> {
        self.look();
        let out = self.out.object();
        if self.json {
            let mut object = to_json(&self.spread, &self.sharing);
            if let Some(map) = object.as_object_mut() {
                map.insert("type".into(), "streams".into());
            }
            // Writing to a vector does not fail.
            let _ = serde_json::to_writer(&mut *out, &object);
            out.push(b'\n');
        } else {
            out.extend_from_slice(to_text(&self.spread, &self.sharing).as_bytes());
        }
        self.out.end_object()?;
        self.out.flush()
    }
}

/// How channels are spread over runlists, in words.
#[must_use]
pub fn spread_text(spread: &[GpuReport]) -> String {
    let mut text = String::new();
    for gpu in spread {
        let channels: usize = gpu.runlists.iter().map(report::Runlist::channels).sum();
        let groups: usize = gpu.runlists.iter().map(|r| r.groups.len()).sum();
        let _ = writeln!(
            text,
            "  {}{}: {channels} channels in {groups} groups on {} runlists",
            gpu_name(gpu.gpu),
            gpu.chip.as_ref().map_or(String::new(), |c| format!(" {c}")),
            gpu.runlists.len()
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
                "    runlist {number:<3} {engines:<12} {} channels in {} groups",
                runlist.channels(),
                runlist.groups.len()
            );
        }
    }
    text
}

fn name_of(id: ChannelId, shared: &Shared) -> String {
    match shared.token {
        Some(token) => format!("{token:#x}"),
        None => format!("#{}", id.0),
    }
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
    let mut serialised = false;
    let mut shown = 0;
    for (id, shared) in sharing.channels().filter(|(_, s)| s.submissions != 0) {
        shown += 1;
        let _ = write!(
            text,
            "  channel {} ({} {}, pid {}): {} submissions",
            name_of(id, shared),
            gpu_name(shared.gpu),
            shared.engine_name(),
            shared.pid,
            shared.submissions
        );
        let known: Vec<(&u32, &u64)> = shared.threads.iter().filter(|(t, _)| **t != 0).collect();
        if known.len() > 1 {
            let mut by_count = known.clone();
            by_count.sort_by_key(|(_, n)| std::cmp::Reverse(**n));
            let list: Vec<String> = by_count
                .iter()
                .take(6)
                .map(|(tid, n)| format!("{tid} ({n})"))
                .collect();
            let _ = write!(text, " of {} threads: {}", known.len(), list.join(", "));
            if known.len() > 6 {
                text.push_str(", ...");
            }
        }
        let _ = writeln!(text, "; {} waits", shared.waits);
        if shared.behind != 0 {
            serialised = true;
            let _ = write!(
                text,
                "    {} were committed while the GPU had not passed an earlier wait of this channel",
                shared.behind
            );
            if shared.behind_other_thread != 0 {
                let _ = write!(
                    text,
                    ", {} of them another thread's",
                    shared.behind_other_thread
                );
            }
            text.push('\n');
            if let Some(b) = shared.example {
                let _ = writeln!(
                    text,
                    "    such as #{} (thread {}) behind #{} (thread {}), which waits for {:#x} {} {:#x}",
                    b.serial,
                    b.tid,
                    b.wait.serial,
                    b.wait.tid,
                    b.wait.address,
                    compares(b.wait.action),
                    b.wait.payload
                );
            }
        }
    }
    if shown == 0 {
        text.push_str("  no submissions\n");
        return text;
    }
    if serialised {
        text.push_str(
            "  A channel's entries are executed in order: what is behind a wait starts only when the wait is over,\n  \
             also where it belongs to another stream. More channels (CUDA_DEVICE_MAX_CONNECTIONS, up to 32) or fewer\n  \
             streams with waits part them.\n",
        );
    } else {
        text.push_str("  No submission was seen to stand behind a wait of its own channel.\n");
    }
    text
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
                            json!({ "pid": pid, "tsg": tsg, "channels": ids })
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
                s.threads.iter().map(|(t, n)| (t.to_string(), *n)).collect();
            json!({
                "channel": id.0,
                "pid": s.pid,
                "gpu": s.gpu,
                "token": s.token,
                "engine": s.engine_name(),
                "submissions": s.submissions,
                "threads": threads,
                "waits": s.waits,
                "behind_a_wait": s.behind,
                "behind_another_threads_wait": s.behind_other_thread,
                "example": s.example.map(|b| json!({
                    "serial": b.serial,
                    "tid": b.tid,
                    "wait_serial": b.wait.serial,
                    "wait_tid": b.wait.tid,
                    "address": b.wait.address,
                    "payload": b.wait.payload,
                })),
            })
        })
        .collect();
    json!({ "gpus": gpus, "channels": channels })
}
