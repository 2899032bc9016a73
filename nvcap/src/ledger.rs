//! The ledger: per channel, what was captured and what is known to be missing.
//!
//! A channel's ring positions are contiguous, so loss is not a matter of trust: a submission whose position is
//! not the end of the one before it is a gap of a known size, whether or not the source confessed to it. The
//! ledger does that sum itself from the [`Record`]s and believes no counter of the source's but those of losses
//! it cannot see (dropped records, doorbells of unknown channels). It knows no source, no decoder and no sink;
//! `output::ledger` shows it.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use crate::decode::{engine_of, event::Engine};
use crate::record::{Channel, ChannelId, Life, Loss, Lost, Origin, Record, Submission};

/// Exit status of a trace that is complete.
pub const STATUS_COMPLETE: u8 = 0;
/// Exit status of a trace that could not be made.
pub const STATUS_ERROR: u8 = 1;
/// Exit status of a command line that is not understood.
pub const STATUS_USAGE: u8 = 2;
/// Exit status of a trace that is known to lack something.
pub const STATUS_LOST: u8 = 3;

/// How many separate missing ranges of one channel are remembered. Beyond that the entries are still counted;
/// only the recognition of a range that is reported twice, or filled later, is given up for the oldest.
const RANGES_REMEMBERED: usize = 1024;

/// How many different reasons of blindness are kept in words; the others are counted.
const REASONS_KEPT: usize = 64;

/// What is known of one channel's stream.
#[derive(Clone, Debug, Default)]
pub struct ChannelLedger {
    /// The process, 0 where unknown.
    pub pid: u32,
    /// Its command name, where known.
    pub process: Option<String>,
    /// Device file minor number of the GPU, where known.
    pub gpu: Option<u32>,
    /// Work-submit token, where known.
    pub token: Option<u32>,
    /// What it feeds, where known.
    pub engine: Engine,
    /// Channel class, where known.
    pub class: Option<u32>,
    /// How the channel was learnt, where it was announced.
    pub origin: Option<Origin>,
    /// Entries in the ring, where known.
    pub ring_entries: Option<u32>,
    /// Submissions captured.
    pub submissions: u64,
    /// Ring entries captured.
    pub entries: u64,
    /// Pushbuffer bytes captured, the unreadable ones not included.
    pub bytes: u64,
    /// Ring entries known to be missing.
    pub gaps: u64,
    /// Pushbuffer bytes that were announced by an entry and could not be read.
    pub unreadable: u64,
    /// Submissions captured later than at their own doorbell. Not a loss.
    pub late: u64,
    /// Ring entries captured that had been captured before.
    pub repeated: u64,
    /// Submissions whose GP_PUT before does not fit the GP_PUT after of the one before.
    pub contradictions: u64,
    /// Position of the first entry seen or known to be missing.
    pub first: Option<u64>,
    /// Time of the first and the last submission, ns.
    pub times: Option<(u64, u64)>,
    /// Position that the next submission must have.
    next: Option<u64>,
    /// GP_PUT that the next submission must have found.
    next_put: Option<u32>,
    /// Missing ranges, ascending and apart.
    missing: Vec<Range<u64>>,
}

impl ChannelLedger {
    /// Nothing of this channel is known to be missing or wrong.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.gaps == 0 && self.unreadable == 0 && self.repeated == 0 && self.contradictions == 0
    }

    /// The stream was captured from the channel's first ring entry.
    #[must_use]
    pub fn from_start(&self) -> bool {
        self.first == Some(0) && self.origin != Some(Origin::Found)
    }

    /// The ranges of ring positions that are missing, as far as they are remembered, ascending.
    #[must_use]
    pub fn missing_ranges(&self) -> &[Range<u64>] {
        &self.missing
    }

    fn add_missing(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        // Everything that touches the new range melts into it.
        let from = self.missing.partition_point(|r| r.end < range.start);
        let to = self.missing.partition_point(|r| r.start <= range.end);
        let mut merged = range;
        let mut known = 0;
        for r in &self.missing[from..to] {
            merged = merged.start.min(r.start)..merged.end.max(r.end);
            known += r.end - r.start;
        }
        self.gaps += merged.end - merged.start - known;
        self.missing.splice(from..to, [merged]);
        if self.missing.len() > RANGES_REMEMBERED {
            self.missing.remove(0);
        }
    }

    /// Takes a captured range out of what is missing; returns how many entries that were.
    fn fill(&mut self, range: &Range<u64>) -> u64 {
        let mut filled = 0;
        let mut left = Vec::with_capacity(self.missing.len() + 1);
        for r in self.missing.drain(..) {
            let start = r.start.max(range.start);
            let end = r.end.min(range.end);
            if start >= end {
                left.push(r);
                continue;
            }
            filled += end - start;
            if r.start < start {
                left.push(r.start..start);
            }
            if end < r.end {
                left.push(end..r.end);
            }
        }
        self.missing = left;
        self.gaps -= filled;
        filled
    }

    fn submission(&mut self, s: &Submission) {
        self.submissions += 1;
        self.entries += s.segments.len() as u64;
        self.late += u64::from(s.late);
        let (first, last) = self.times.unwrap_or((s.at.time_ns, s.at.time_ns));
        self.times = Some((first.min(s.at.time_ns), last.max(s.at.time_ns)));
        if self.token.is_none() {
            self.token = s.token;
        }
        if self.pid == 0 {
            self.pid = s.at.pid;
        }
        for segment in &s.segments {
            let announced = announced_bytes(segment.entry);
            let holes: u64 = segment.holes.iter().map(|h| u64::from(h.len)).sum();
            let have = (segment.bytes.len() as u64).saturating_sub(holes);
            self.bytes += have;
            self.unreadable += announced.saturating_sub(have);
        }

        let seen = s.segments.len() as u64;
        let announced = self.announced_entries(s);
        let start = s.position;
        let end = start.saturating_add(seen);
        // Where its allocation was seen, the stream begins at position 0.
        let from_zero = (self.origin == Some(Origin::Allocated)).then_some(0);
        let Some(next) = self.next.or(from_zero) else {
            self.first = Some(start);
            self.after(s, end, announced);
            return;
        };
        self.first = Some(self.first.unwrap_or(next));
        if start < next {
            // Captured out of order, or twice.
            let again = start..end.min(next);
            let filled = self.fill(&again);
            self.repeated += (again.end - again.start).saturating_sub(filled);
            if end > next {
                self.after(s, end, announced);
            }
            return;
        }
        let gap = start - next;
        if gap > 0 {
            self.add_missing(next..start);
        }
        let fits = match (self.next_put, self.ring_entries) {
            (None, _) => true,
            (Some(put), Some(ring)) if ring > 0 => {
                (u64::from(put) + gap) % u64::from(ring) == u64::from(s.prev_put)
            }
            (Some(put), _) => gap > 0 || put == s.prev_put,
        };
        if !fits {
            self.contradictions += 1;
        }
        self.after(s, end, announced);
    }

    /// Moves on to what the next submission must be, and counts what this one announced and did not bring.
    fn after(&mut self, s: &Submission, end: u64, announced: Option<u64>) {
        let promised = s.position.saturating_add(announced.unwrap_or(0));
        if promised > end {
            self.add_missing(end..promised);
        } else if announced.is_some() && promised < end {
            self.contradictions += 1;
        }
        self.next = Some(end.max(promised));
        self.next_put = Some(s.gp_put);
    }

    /// How many entries GP_PUT says there are; `None` where a wrapped ring of unknown size leaves it open.
    fn announced_entries(&self, s: &Submission) -> Option<u64> {
        match self.ring_entries {
            Some(ring) if ring > 0 && s.gp_put < ring && s.prev_put < ring => {
                Some(u64::from((s.gp_put + ring - s.prev_put) % ring))
            }
            _ if s.gp_put >= s.prev_put => Some(u64::from(s.gp_put - s.prev_put)),
            _ => None,
        }
    }

    fn lost_entries(&mut self, position: u64, count: u64) {
        let end = position.saturating_add(count);
        self.add_missing(position..end);
        self.first = Some(self.first.unwrap_or(position).min(position));
        match self.next {
            // Told in place: the next submission follows the lost ones. What its GP_PUT must be is then only
            // known if the ring's size is.
            Some(next) if position <= next && end > next => {
                self.next_put = match (self.ring_entries, self.next_put) {
                    (Some(ring), Some(put)) if ring > 0 => {
                        Some(((u64::from(put) + (end - next)) % u64::from(ring)) as u32)
                    }
                    _ => None,
                };
                self.next = Some(end);
            }
            None => self.next = Some(end),
            _ => {}
        }
    }

    fn learn(&mut self, c: &Channel, name: Option<&String>) {
        self.pid = c.at.pid;
        self.process = name.cloned().or_else(|| self.process.take());
        self.gpu = c.gpu.or(self.gpu);
        self.token = c.token.or(self.token);
        if let Some(engine) = c.engine.map(engine_of).filter(|e| *e != Engine::Unknown) {
            self.engine = engine;
        }
        self.class = c.class.or(self.class);
        self.ring_entries = c.entries.or(self.ring_entries);
        // A channel announced again (its token became known) keeps how it was learnt first.
        self.origin = self.origin.or(Some(c.origin));
    }
}

/// Doorbells whose channel never became known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownDoorbells {
    /// The process, 0 where unknown.
    pub pid: u32,
    /// The token written, where known.
    pub token: Option<u32>,
    /// How many.
    pub count: u64,
}

/// Why something could not be followed, and how often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blindness {
    /// The process, 0 where unknown.
    pub pid: u32,
    /// In words.
    pub why: String,
    /// How many times.
    pub count: u64,
}

/// How near observing came to missing something of one channel.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Margin {
    /// The channel.
    pub channel: ChannelId,
    /// Looks at its ring.
    pub looks: u64,
    /// Times that its semaphore alone was looked at: the GPU was not past what had been read.
    pub glances: u64,
    /// Longest time between two looks or glances between which something came, ns.
    pub longest_ns: u64,
    /// Largest part of the ring that passed between two looks; 1 and more is a lap.
    pub largest_part: f64,
}

/// How observing went: what a source without a trap tells of its own work. None of it is a loss by itself; what was
/// lost is told as such, and this says why.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observed {
    /// Looks at rings.
    pub looks: u64,
    /// Times that a semaphore alone was looked at.
    pub glances: u64,
    /// Longest time between two looks or glances at a channel between which something came, ns.
    pub longest_ns: u64,
    /// Largest part of a ring that passed between two looks; 1 and more is a lap.
    pub largest_part: f64,
    /// Longest time by which a look at a used channel came later than was aimed at, ns.
    pub latest_ns: u64,
    /// Longest time that one look took, ns.
    pub longest_look_ns: u64,
    /// Longest time that looking after processes and mappings took in one go, looks at rings in between included, ns.
    pub longest_search_ns: u64,
    /// The margin of each channel.
    pub margins: Vec<Margin>,
    /// Longest time from the last look at a ring to when it was found gone, ns.
    pub tail_ns: u64,
    /// Length of the trace, ns.
    pub wall_ns: u64,
    /// CPU time that the whole program used, ns.
    pub cpu_ns: u64,
    /// CPU time of it that looking took, ns.
    pub reader_ns: u64,
    /// Share of one core that might be used, where one was given.
    pub budget: Option<f64>,
    /// Time for which nothing was looked at because that share was used up, ns.
    pub throttled_ns: u64,
    /// Times that a ring went round between two looks.
    pub laps: u64,
    /// Times of them that the ring may have gone round more often than was counted.
    pub rounds_unseen: u64,
    /// Entries that were overwritten while they were read.
    pub overwritten: u64,
    /// Entries whose pushbuffer memory was used again before it was read.
    pub reused: u64,
    /// Entries whose words no client writes.
    pub unparsable: u64,
    /// Times that a channel's payloads went on from another one with no ring position missing.
    pub jumps: u64,
}

/// The sums over all channels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(
    missing_docs,
    reason = "the fields are the sums of those of ChannelLedger with the same name"
)]
pub struct Totals {
    pub channels: u64,
    pub submissions: u64,
    pub entries: u64,
    pub bytes: u64,
    pub gaps: u64,
    pub unreadable: u64,
    pub late: u64,
    pub repeated: u64,
    pub contradictions: u64,
}

/// What was captured and what is known to be missing. Feed it every record, then ask.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    channels: BTreeMap<ChannelId, ChannelLedger>,
    dropped: BTreeMap<&'static str, u64>,
    unknown: BTreeMap<(u32, Option<u32>), u64>,
    blind: Vec<Blindness>,
    unshown: u64,
    names: HashMap<u32, String>,
    end_ns: u64,
    observed: Option<Observed>,
}

impl Ledger {
    /// An empty ledger, which is complete.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes one record into account. Records of one channel must come in the order the source gave them.
    pub fn record(&mut self, record: &Record) {
        self.end_ns = self.end_ns.max(record_time(record));
        match record {
            Record::Submission(s) => self.channels.entry(s.channel).or_default().submission(s),
            Record::Channel(c) => {
                let name = self.names.get(&c.at.pid);
                self.channels.entry(c.id).or_default().learn(c, name);
            }
            Record::Loss(loss) => self.loss(loss),
            Record::Process(p) => match &p.life {
                Life::Present { name } | Life::Exec { name } => {
                    self.names.insert(p.at.pid, name.clone());
                    for c in self.channels.values_mut() {
                        if c.pid == p.at.pid && c.process.is_none() {
                            c.process = Some(name.clone());
                        }
                    }
                }
                Life::Fork { child } => {
                    if let Some(name) = self.names.get(&p.at.pid).cloned() {
                        self.names.insert(*child, name);
                    }
                }
                Life::Exit { process: true } => {
                    self.names.remove(&p.at.pid);
                }
                Life::Thread { .. } | Life::Exit { process: false } => {}
            },
            Record::Ioctl(_) | Record::Mapping(_) | Record::Unmapping(_) => {}
        }
    }

    fn loss(&mut self, loss: &Loss) {
        match &loss.what {
            Lost::Entries { position, count } => match loss.channel {
                Some(id) => self
                    .channels
                    .entry(id)
                    .or_default()
                    .lost_entries(*position, *count),
                None => self.blind(
                    loss.at.pid,
                    "ring entries of an unnamed channel were overwritten",
                    *count,
                ),
            },
            Lost::Records { kind, count } => *self.dropped.entry(kind).or_default() += count,
            Lost::UnknownChannel { token, count } => {
                *self.unknown.entry((loss.at.pid, *token)).or_default() += count;
            }
            Lost::Blind { why } => self.blind(loss.at.pid, why, 1),
        }
    }

    fn blind(&mut self, pid: u32, why: &str, count: u64) {
        if let Some(known) = self.blind.iter_mut().find(|b| b.pid == pid && b.why == why) {
            known.count += count;
        } else if self.blind.len() < REASONS_KEPT {
            self.blind.push(Blindness {
                pid,
                why: why.to_owned(),
                count,
            });
        } else {
            let more = "more reasons than are kept in words";
            match self.blind.last_mut() {
                Some(last) if last.why == more => last.count += count,
                _ => self.blind.push(Blindness {
                    pid: 0,
                    why: more.to_owned(),
                    count,
                }),
            }
        }
    }

    /// Adds which engine a channel feeds, where its record did not say and the stream tells.
    pub fn learn_engine(&mut self, id: ChannelId, engine: Engine) {
        let channel = self.channels.entry(id).or_default();
        if channel.engine == Engine::Unknown {
            channel.engine = engine;
        }
    }

    /// Counts objects that were captured but could not be written out (a full disk).
    pub fn add_unshown(&mut self, count: u64) {
        self.unshown += count;
    }

    /// Objects that were captured but could not be written out.
    #[must_use]
    pub fn unshown(&self) -> u64 {
        self.unshown
    }

    /// Adds how observing went, at its end.
    pub fn add_observed(&mut self, observed: Observed) {
        self.observed = Some(observed);
    }

    /// How observing went; `None` where nothing was observed.
    #[must_use]
    pub fn observed(&self) -> Option<&Observed> {
        self.observed.as_ref()
    }

    /// The channels by their number in this trace.
    pub fn channels(&self) -> impl Iterator<Item = (ChannelId, &ChannelLedger)> {
        self.channels.iter().map(|(id, c)| (*id, c))
    }

    /// One channel.
    #[must_use]
    pub fn channel(&self, id: ChannelId) -> Option<&ChannelLedger> {
        self.channels.get(&id)
    }

    /// Records dropped, by kind.
    pub fn dropped(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        self.dropped.iter().map(|(k, n)| (*k, *n))
    }

    /// Doorbells of channels that never became known.
    pub fn unknown_doorbells(&self) -> impl Iterator<Item = UnknownDoorbells> + '_ {
        self.unknown
            .iter()
            .map(|(&(pid, token), &count)| UnknownDoorbells { pid, token, count })
    }

    /// What the source could not follow.
    #[must_use]
    pub fn blindness(&self) -> &[Blindness] {
        &self.blind
    }

    /// Time of the last record, ns.
    #[must_use]
    pub fn end_ns(&self) -> u64 {
        self.end_ns
    }

    /// The sums.
    #[must_use]
    pub fn totals(&self) -> Totals {
        let mut t = Totals::default();
        for c in self.channels.values() {
            t.channels += u64::from(c.submissions > 0);
            t.submissions += c.submissions;
            t.entries += c.entries;
            t.bytes += c.bytes;
            t.gaps += c.gaps;
            t.unreadable += c.unreadable;
            t.late += c.late;
            t.repeated += c.repeated;
            t.contradictions += c.contradictions;
        }
        t
    }

    /// Nothing is known to be missing.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.channels.values().all(ChannelLedger::is_complete)
            && self.dropped.values().all(|n| *n == 0)
            && self.unknown.values().all(|n| *n == 0)
            && self.blind.is_empty()
            && self.unshown == 0
    }

    /// The exit status that says so: [`STATUS_COMPLETE`] or [`STATUS_LOST`].
    #[must_use]
    pub fn exit_status(&self) -> u8 {
        if self.is_complete() {
            STATUS_COMPLETE
        } else {
            STATUS_LOST
        }
    }
}

/// Pushbuffer bytes that a ring entry announces: LENGTH in bits 62:42, in words; 0 for a control entry.
fn announced_bytes(entry: u64) -> u64 {
    ((entry >> 42) & 0x1f_ffff) * 4
}

fn record_time(record: &Record) -> u64 {
    match record {
        Record::Ioctl(r) => r.end_ns.unwrap_or(r.at.time_ns),
        Record::Mapping(r) => r.at.time_ns,
        Record::Unmapping(r) => r.at.time_ns,
        Record::Process(r) => r.at.time_ns,
        Record::Channel(r) => r.at.time_ns,
        Record::Submission(r) => r.at.time_ns,
        Record::Loss(r) => r.at.time_ns,
    }
}
