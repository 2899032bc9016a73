//! A trace for Perfetto (ui.perfetto.dev, trace processor): a sink that writes its native format as the events come. docs/perfetto.md
//! says what is on which track.
//!
//! - `proto`: the messages.
//! - `packets`: the file: numbers for texts, clocks, a beginning anew behind a loss.
//! - `tracks`: which tracks there are.
//! - `changes`: the values of counters over time.
//! - `semaphores`, `waits`: which release a wait was for; how both are drawn.
//! - `sampled`: shares of kernels in samples of program counters.
//! - `switched`: slices of contexts, as the driver recorded them.
//! - `operation`: names and values of operations.
//! - `notes`: values of doorbells, times, losses and the ledger.
//! - `channel`: what is kept of a channel.
//! - `ranks`, `collectives`: collectives over ranks: kept, and drawn.

mod changes;
mod channel;
mod collectives;
mod notes;
mod operation;
mod packets;
mod proto;
mod ranks;
mod sampled;
mod semaphores;
mod switched;
mod tracks;
mod waits;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::sync::Arc;

use crate::output::fold::bytes_of;
use crate::output::gpu_time::when::{When, is_at_doorbell};
use crate::output::names::is_timed;
use crate::output::redact::Redactor;
use crate::output::releases::Releases;
use crate::output::text::is_mechanics;
use crate::output::writer::Output;
use crate::output::{Detail, Sink};
use crate::samples::Kernels;
use crate::shares::Holders;
use nvcap_decode::decode::event::{Body, Context, Event, GpuTime, Operation, Stop, SubmissionHead};
use nvcap_decode::driver::Model;
use nvcap_decode::ledger::Ledger;
use nvcap_decode::record::{Calls, ChannelId, Fault, Life, Loss, Process, Record};
use nvcap_decode::switches::Slices;

use changes::Changes;
use channel::Channel;
pub use packets::Clocks;
use packets::{Notes, Packets, Said, Value};
use ranks::Collectives;
use semaphores::{Released, Semaphores};
use tracks::{Place, Track, Tracks};

/// The most doorbells that wait for the first operation of their submission: a replay of a graph is told when the next submissions are there.
const WAITING: usize = 64;
/// Longest time that an entry was in the ring when a look finds it, ns.
const LOOKS_BACK_NS: u64 = 1_000_000_000;

/// Options of the trace that is written.
#[derive(Debug, Default)]
pub struct PerfettoOptions {
    /// True for all operations, those of the driver's mechanics too.
    pub all: bool,
    /// Hides users' data.
    pub redact: Option<Redactor>,
    /// Clocks of the traced machine at one moment, where known.
    pub clocks: Option<Clocks>,
}

/// A submission whose doorbell is not written yet.
#[derive(Debug)]
struct Doorbell {
    serial: u64,
    track: Track,
    time: u64,
    name: &'static str,
    notes: Notes,
    calls: Option<Arc<Calls>>,
}

/// The sink.
pub struct Perfetto {
    options: PerfettoOptions,
    packets: Packets,
    tracks: Tracks,
    channels: BTreeMap<ChannelId, Channel>,
    /// Entries of the rings of channels that have not submitted yet.
    rings: HashMap<ChannelId, (u32, u32)>,
    /// Amount of work at once, by GPU.
    working: BTreeMap<Option<u32>, Changes>,
    doorbells: VecDeque<Doorbell>,
    releases: Releases,
    semaphores: Semaphores,
    /// Kernels in which samples lie.
    sampled: Kernels,
    /// Contexts that have engines.
    slices: Slices,
    holders: Holders,
    collectives: Collectives,
    /// The arrow that was drawn last.
    flow: u64,
    /// The newest submission.
    newest: Option<u64>,
    /// The time at which all counters were written, ns.
    counted_all: u64,
}

impl Perfetto {
    /// Writes to `out`.
    pub fn new(out: Output, options: PerfettoOptions) -> Self {
        Self {
            packets: Packets::new(out, options.clocks),
            options,
            tracks: Tracks::default(),
            channels: BTreeMap::new(),
            rings: HashMap::new(),
            working: BTreeMap::new(),
            doorbells: VecDeque::new(),
            releases: Releases::default(),
            semaphores: Semaphores::default(),
            sampled: Kernels::default(),
            slices: Slices::default(),
            holders: Holders::default(),
            collectives: Collectives::default(),
            flow: 0,
            newest: None,
            counted_all: 0,
        }
    }

    fn next_flow(&mut self) -> u64 {
        self.flow += 1;
        self.flow
    }

    /// The time of a submission, ns; that of what came before where it has none.
    fn time(&self, c: &Context) -> u64 {
        c.at.time().unwrap_or(self.packets.now())
    }

    fn channel(&mut self, c: &Context) -> &mut Channel {
        let rings = &mut self.rings;
        self.channels.entry(c.channel).or_insert_with(|| {
            let place = Place {
                gpu: c.gpu,
                pid: c.at.pid,
                engine: c.engine,
                channel: c.channel,
            };
            Channel::new(place, rings.remove(&c.channel).map(|r| r.0))
        })
    }

    /// Takes a submission that was not seen before. `head` is none where a filter hides it.
    fn submission(&mut self, c: &Context, head: Option<&SubmissionHead>) {
        self.newest = Some(c.serial);
        let time = self.time(c);
        if let Some(name) = &c.thread {
            let tid = if c.at.tid == 0 { c.at.pid } else { c.at.tid };
            self.tracks.name_if_new(c.at.pid, tid, name);
        }
        self.doorbell(c, head, time);
        if self.doorbells.len() > WAITING
            && let Some(oldest) = self.doorbells.pop_front()
        {
            self.ring(oldest, None);
        }
        let (at_doorbell, gpu) = (is_at_doorbell(c), c.gpu);
        let channel = self.channel(c);
        let ring = channel.ring.filter(|n| *n > 0);
        if let (Some(head), Some(entries)) = (head, ring)
            && let Some(get) = head.gp_get.filter(|get| *get < entries)
        {
            let place = channel.place;
            let fill =
                (u64::from(head.gp_put) + u64::from(entries) - u64::from(get)) % u64::from(entries);
            let track = self.tracks.of(&mut self.packets, Track::Fill(place));
            self.packets.counter(track, time, fill as i64);
        }
        for entry in c.gpu_time.iter().flat_map(|all| all.iter()) {
            self.entry(c, entry, time);
        }
        // Nothing that is still to come was there before its doorbell.
        let until = match at_doorbell {
            true => time,
            false => time.saturating_sub(LOOKS_BACK_NS),
        };
        self.count(c.channel, gpu, until);
        // Channels that are idle now have values to tell, too.
        if until > self.counted_all.saturating_add(LOOKS_BACK_NS / 10) {
            self.counted_all = until;
            self.count_all(time.saturating_sub(LOOKS_BACK_NS));
        }
    }

    /// Counts an entry.
    fn entry(&mut self, c: &Context, time: &GpuTime, there: u64) {
        let when = When::of(c, time);
        let Some(begin) = when.begin else { return };
        let end = when.end.unwrap_or(begin);
        let depth = &mut self.channel(c).depth;
        depth.add(there.min(begin), 1);
        depth.add(end, -1);
        if when.end.is_some() {
            let working = self.working.entry(c.gpu).or_default();
            working.add(begin, 1);
            working.add(end, -1);
        }
    }

    /// Writes counters of a channel and its GPU.
    fn count(&mut self, channel: ChannelId, gpu: Option<u32>, until: u64) {
        let (packets, tracks) = (&mut self.packets, &mut self.tracks);
        if let Some(channel) = self.channels.get_mut(&channel) {
            channel.count((packets, tracks), until);
        }
        self.count_gpu(gpu, until);
    }

    fn count_gpu(&mut self, gpu: Option<u32>, until: u64) {
        let (packets, tracks) = (&mut self.packets, &mut self.tracks);
        if let Some(working) = self.working.get_mut(&gpu) {
            while let Some((time, value)) = working.next(until) {
                let track = tracks.of(packets, Track::Working(gpu));
                packets.counter(track, time, value);
            }
        }
    }

    fn count_all(&mut self, until: u64) {
        let all: Vec<_> = self.channels.values().map(|c| c.place).collect();
        for place in all {
            self.count(place.channel, place.gpu, until);
        }
        let gpus: Vec<_> = self.working.keys().copied().collect();
        for gpu in gpus {
            self.count_gpu(gpu, until);
        }
    }

    fn doorbell(&mut self, c: &Context, head: Option<&SubmissionHead>, time: u64) {
        self.doorbells.push_back(Doorbell {
            serial: c.serial,
            track: match c.at.tid {
                0 => Track::Seen(c.at.pid),
                tid => Track::Thread(c.at.pid, tid),
            },
            time,
            name: match is_at_doorbell(c) {
                true => "doorbell",
                false => "submission seen",
            },
            notes: notes::of_doorbell(c, head),
            calls: c.stack.clone(),
        });
    }

    /// Writes a doorbell, with the arrow that begins at it.
    fn ring(&mut self, doorbell: Doorbell, from: Option<u64>) {
        let track = self.tracks.of(&mut self.packets, doorbell.track);
        let said = Said {
            name: doorbell.name,
            category: "submission",
            notes: doorbell.notes,
            from,
            to: Vec::new(),
        };
        let calls = doorbell.calls.as_deref().map(notes::callstack);
        self.packets
            .instant_with(track, doorbell.time, &said, calls);
    }

    /// The arrow from the doorbell of this submission, if none was drawn yet and it leads forward in time.
    fn arrow_to(&mut self, serial: u64, time: u64) -> Option<u64> {
        let at = self
            .doorbells
            .iter()
            .position(|d| d.serial == serial && d.time <= time)?;
        let doorbell = self.doorbells.remove(at)?;
        let flow = self.next_flow();
        self.ring(doorbell, Some(flow));
        Some(flow)
    }

    fn operation(&mut self, c: &Context, entry: u32, op: &Operation) {
        let wait = semaphores::wait(op);
        let waits_for = wait
            .and_then(|s| self.releases.channel(c, s.address))
            .filter(|of| *of != c.channel);
        self.releases.note(c, op);
        let is_mechanics = is_mechanics(c, entry, op, &self.releases);
        let when = c
            .gpu_time_of(entry)
            .map_or_else(When::default, |t| When::of(c, t));
        // What takes time of the GPU is drawn, whoever asked for it.
        if self.options.all || !is_mechanics || is_timed(op) {
            match wait {
                Some(s) => self.wait(c, entry, (op, s), waits_for, when),
                None => self.show(c, entry, op, when),
            }
        }
        let time = self.time(c);
        let ended = when.end.or(when.begin).unwrap_or(time);
        if !is_mechanics && bytes_of(op) > 0 {
            let moved = i64::try_from(bytes_of(op)).unwrap_or(i64::MAX);
            self.channel(c).bytes.add(ended, moved);
        }
        let mut released = Vec::new();
        semaphores::releases(op, &mut |address, payload| {
            released.push((address, payload));
        });
        for (address, payload) in released {
            let released = Released {
                channel: c.channel,
                track: self.beside(c, entry, when),
                time: ended,
                payload,
            };
            self.semaphores.put(c.at.pid, address, released);
        }
    }

    /// Returns the track for a moment of an entry.
    fn beside(&mut self, c: &Context, entry: u32, when: When) -> Track {
        let channel = self.channel(c);
        match when.begin {
            Some(_) => channel.beside(c.serial, entry),
            None => channel.untimed(),
        }
    }

    fn instant(&mut self, track: Track, time: u64, said: &Said<'_>) {
        let track = self.tracks.of(&mut self.packets, track);
        self.packets.instant(track, time, said);
    }

    fn notes(&self, c: &Context) -> Notes {
        let mut notes = vec![("submission", Value::Number(c.serial))];
        if let Some(phase) = &c.phase {
            notes.push(("phase", Value::Text(phase.to_string())));
        }
        if c.late {
            notes.push(("late", Value::Truth(true)));
        }
        notes
    }

    /// Draws an operation that does not wait.
    fn show(&mut self, c: &Context, entry: u32, op: &Operation, when: When) {
        let described = operation::describe(op, None, self.options.redact.as_ref());
        let is_first = is_timed(op) && !self.channel(c).is_drawn(c.serial, entry);
        let mut said = Said {
            name: &described.name,
            category: described.category,
            notes: described.notes,
            ..Said::default()
        };
        said.notes.extend(self.notes(c));
        let time = when.begin.unwrap_or(self.time(c));
        said.to = Vec::from_iter(self.arrow_to(c.serial, time));
        let (Some(begin), true) = (when.begin, is_first) else {
            let track = self.beside(c, entry, when);
            self.instant(track, time, &said);
            return;
        };
        if let Some(time) = c.gpu_time_of(entry) {
            said.notes.extend(notes::of_times(time));
        }
        let Some(end) = when.end else {
            let track = self.beside(c, entry, when);
            self.channel(c).set_drawn(c.serial, entry, track);
            self.instant(track, begin, &said);
            return;
        };
        let drawn = self.draw(c, (begin, end), said);
        self.channel(c).set_drawn(c.serial, entry, drawn);
    }

    /// Draws a slice in a row with room, or, where there is none, an instant that says how long it was. Returns the track.
    fn draw(&mut self, c: &Context, (begin, end): (u64, u64), mut said: Said<'_>) -> Track {
        let channel = self.channel(c);
        let Some(row) = channel.row(begin, end) else {
            let track = channel.untimed();
            said.notes
                .push(("not_drawn_ns", Value::Number(end - begin)));
            self.instant(track, begin, &said);
            return track;
        };
        let track = self.tracks.of(&mut self.packets, row);
        self.packets.slice(track, (begin, end), &said);
        row
    }

    fn stop(&mut self, c: &Context, stop: &Stop) {
        let track = self.beside(c, stop.entry, When::default());
        let time = self.time(c);
        let said = Said {
            name: "not decoded",
            category: "loss",
            notes: vec![
                ("submission", Value::Number(c.serial)),
                ("why", Value::Once(stop.to_string())),
            ],
            ..Said::default()
        };
        self.instant(track, time, &said);
    }

    fn life(&mut self, p: &Process) {
        let pid = p.at.pid;
        match &p.life {
            Life::Present { name } | Life::Exec { name } => {
                if matches!(p.life, Life::Present { .. }) && self.tracks.begins(pid) {
                    self.forget(pid);
                }
                let tid = if p.at.tid == 0 { pid } else { p.at.tid };
                self.tracks.name(pid, tid, name);
                self.tracks.name_if_new(pid, pid, name);
            }
            Life::Exit { process: true } => {
                if let Some(forgotten) = self.tracks.ended(pid) {
                    self.forget(forgotten);
                }
            }
            Life::Fork { child } => {
                if self.tracks.begins(*child) {
                    self.forget(*child);
                }
            }
            Life::Thread { child } => self.tracks.thread_begins(pid, *child),
            // The first thread's track is the process's, which goes with it.
            Life::Exit { process: false } if p.at.tid != pid => {
                self.tracks.thread_ends(pid, p.at.tid);
            }
            Life::Identity(_) | Life::Exit { process: false } => {}
        }
    }

    /// Forgets the channels of a process: nothing of them comes any more.
    fn forget(&mut self, pid: u32) {
        let of: Vec<_> = self.channels.values().map(|c| c.place).collect();
        for place in of.into_iter().filter(|p| p.pid == pid) {
            self.count(place.channel, place.gpu, u64::MAX);
            self.channels.remove(&place.channel);
        }
        self.rings.retain(|_, (_, of)| *of != pid);
        self.tracks.forget(pid);
    }

    fn loss(&mut self, loss: &Loss) {
        let (name, notes) = notes::of_loss(loss);
        let time = loss.at.time().unwrap_or(self.packets.now());
        let said = Said {
            name,
            category: "loss",
            notes,
            ..Said::default()
        };
        self.instant(Track::Trace, time, &said);
    }

    fn fault(&mut self, fault: &Fault) {
        let time = fault.at.time().unwrap_or(self.packets.now());
        let said = Said {
            name: "fault of the GPU",
            category: "fault",
            notes: notes::of_fault(fault),
            ..Said::default()
        };
        self.instant(Track::Trace, time, &said);
    }

    /// Writes the ledger, as values of an instant at the end.
    fn ledger(&mut self, ledger: &Ledger) {
        let said = Said {
            name: match ledger.is_complete() {
                true => "ledger: complete",
                false => "ledger: INCOMPLETE",
            },
            category: "ledger",
            notes: notes::of_ledger(ledger),
            ..Said::default()
        };
        let time = ledger.end_ns().max(self.packets.now());
        self.packets.at(time);
        self.instant(Track::Trace, time, &said);
    }

    fn ring_all(&mut self) {
        while let Some(doorbell) = self.doorbells.pop_front() {
            self.ring(doorbell, None);
        }
    }
}

impl Sink for Perfetto {
    fn detail(&self) -> Option<Detail> {
        Some(Detail::Operations)
    }

    fn event(&mut self, event: &Event<'_>) -> io::Result<()> {
        self.collectives.collector.event(event)?;
        let c = event.context;
        let time = self.time(c);
        self.packets.at(time);
        let is_new = self.newest.is_none_or(|newest| c.serial > newest);
        match &event.body {
            Body::Submission(head) => self.submission(c, Some(head)),
            Body::Operation(op) => {
                if is_new {
                    self.submission(c, None);
                }
                self.operation(c, event.entry, op);
            }
            Body::Stop(stop) => self.stop(c, stop),
            Body::Entry(_) | Body::Method(_) | Body::Chip(_) => return Ok(()),
        }
        self.packets.end()
    }

    fn record(&mut self, record: &Record, model: &Model) -> io::Result<()> {
        self.collectives.collector.record(record, model)?;
        match record {
            Record::Process(p) => self.life(p),
            Record::Channel(c) => {
                if let Some(entries) = c.entries {
                    match self.channels.get_mut(&c.id) {
                        Some(channel) => channel.ring = Some(entries),
                        None => {
                            self.rings.insert(c.id, (entries, c.at.pid));
                        }
                    }
                }
            }
            Record::Loss(loss) => self.loss(loss),
            Record::Fault(fault) => self.fault(fault),
            Record::Kernel(kernel) => {
                self.sampled.add(kernel);
                return Ok(());
            }
            Record::Samples(window) => self.samples(window),
            Record::Switches(window) => self.switches(window),
            _ => return Ok(()),
        }
        self.packets.end()
    }

    fn is_for_later(&self) -> bool {
        true
    }

    fn flush(&mut self) -> io::Result<()> {
        self.packets.flush()
    }

    fn unshown(&self) -> u64 {
        self.packets.unshown()
    }

    fn finish(&mut self, ledger: &Ledger, model: &Model) -> io::Result<()> {
        self.ring_all();
        self.count_all(u64::MAX);
        self.packets.end()?;
        self.collectives.collector.finish(ledger, model)?;
        self.collectives()?;
        self.last_slices();
        self.ledger(ledger);
        self.packets.end()?;
        self.packets.flush()
    }
}
