//! The ledger: an account, for each channel, of what was captured and what is known to be missing.
//!
//! A channel's ring positions are contiguous, so losses are found even if the source does not report them: a submission whose position is
//! not the end of the previous one leaves a gap of known size. The ledger computes these gaps itself from the [`Record`]s. From the source
//! it takes only counts of losses that it cannot see (dropped records, doorbells of unknown channels). It knows no source, no decoder and
//! no sink; `output::ledger` shows it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::decode::{Counts, event::Engine};
use crate::record::{ChannelId, Fault, Life, Loss, Lost, Record, RecordKind};

mod channel;
mod faults;
mod observed;
mod sampled;
mod switched;
mod trapped;
mod understanding;
mod untraced;

pub use channel::ChannelLedger;
pub use faults::Blame;
use faults::Faults;
pub use observed::{Margin, Observed, ReaderCost};
pub use sampled::Sampled;
pub use switched::Switched;
pub use trapped::{Captured, Windows};
pub use trapped::{Duty, Estimate, Trapped};
pub use understanding::Understanding;
pub use untraced::Untraced;
use untraced::{MORE_REASONS, REASONS_KEPT};

/// Exit status of a trace that is complete.
pub const STATUS_COMPLETE: u8 = 0;
/// Exit status of a trace that could not be made.
pub const STATUS_ERROR: u8 = 1;
/// Exit status of a command line that is not understood.
pub const STATUS_USAGE: u8 = 2;
/// Exit status of a trace that is known to be incomplete.
pub const STATUS_LOST: u8 = 3;
/// Exit status of a complete trace of processes none of which used a GPU.
pub const STATUS_NO_GPU: u8 = 4;
/// Exit status of a complete trace with something that could not be understood.
pub const STATUS_NOT_UNDERSTOOD: u8 = 5;
/// Exit status of a complete trace of a process for which the GPU faulted.
pub const STATUS_FAULTED: u8 = 6;

/// The most processes whose programs are kept to explain a trace without a GPU.
const PROGRAMS_KEPT: usize = 64;

/// Doorbells whose channel never became known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownDoorbells {
    /// Process id; 0 if unknown.
    pub pid: u32,
    /// Token that was written, if known.
    pub token: Option<u32>,
    /// Number of doorbells.
    pub count: u64,
}

/// Sums over all channels.
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
    pub merged: u64,
    pub repeated: u64,
    pub contradictions: u64,
    pub skipped: u64,
    pub doorbells: u64,
}

/// Account of what was captured and what is known to be missing. The caller gives it every record, then queries it.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    channels: BTreeMap<ChannelId, ChannelLedger>,
    dropped: BTreeMap<RecordKind, u64>,
    unknown: BTreeMap<(u32, Option<u32>), u64>,
    untraced: Vec<Untraced>,
    unshown: u64,
    names: HashMap<u32, String>,
    /// Channels whose process has no name yet, by process, so that a new name searches only these.
    unnamed: BTreeSet<(u32, ChannelId)>,
    /// Program that each process executed last, including processes that have ended.
    programs: BTreeMap<u32, String>,
    /// True if a process was seen to use a GPU: by a channel, a mapping of the driver's, or a call to the driver.
    gpu: bool,
    end_ns: u64,
    observed: Option<Observed>,
    trapped: Option<Trapped>,
    understood: Option<Understanding>,
    stacks: u64,
    stacks_lost: u64,
    stack_sample: Option<(u32, u64)>,
    left_out_of_stacks: BTreeMap<String, u64>,
    faults: Faults,
    sampled: Sampled,
    switched: Switched,
}

impl Ledger {
    /// Makes an empty ledger, which is complete.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes in one record. Records of one channel must come in the order in which the source gave them.
    pub fn record(&mut self, record: &Record) {
        self.end_ns = self.end_ns.max(record_time(record));
        self.gpu |= matches!(
            record,
            Record::Ioctl(_)
                | Record::Mapping(_)
                | Record::Channel(_)
                | Record::Submission(_)
                | Record::Skipped(_)
                | Record::Fault(_)
                | Record::Samples(_)
        );
        match record {
            Record::Submission(s) => {
                let channel = self.channels.entry(s.channel).or_default();
                let is_nobodys = channel.pid == 0;
                channel.submission(s);
                if is_nobodys {
                    self.note_unnamed(s.channel);
                }
            }
            Record::Channel(c) => {
                let name = self.names.get(&c.at.pid);
                self.channels.entry(c.id).or_default().learn(c, name);
                self.note_unnamed(c.id);
            }
            Record::Loss(loss) => self.loss(loss),
            Record::Skipped(p) => {
                let channel = self.channels.entry(p.channel).or_default();
                let is_nobodys = channel.pid == 0;
                channel.skipped(p);
                if is_nobodys {
                    self.note_unnamed(p.channel);
                }
            }
            Record::Stack(_) => self.stacks += 1,
            Record::Fault(f) => self.faults.add(f),
            Record::Samples(s) => self.sampled.add(s),
            Record::Switches(s) => self.switched.add(s),
            Record::Process(p) => match &p.life {
                Life::Present { name } | Life::Exec { name } => {
                    self.names.insert(p.at.pid, name.clone());
                    if self.programs.len() < PROGRAMS_KEPT || self.programs.contains_key(&p.at.pid)
                    {
                        self.programs.insert(p.at.pid, name.clone());
                    }
                    self.name_channels(p.at.pid, name);
                }
                Life::Fork { child } => {
                    if let Some(name) = self.names.get(&p.at.pid).cloned() {
                        self.names.insert(*child, name);
                    }
                }
                Life::Exit { process: true } => {
                    self.names.remove(&p.at.pid);
                }
                Life::Identity(_) | Life::Thread { .. } | Life::Exit { process: false } => {}
            },
            Record::Ioctl(_)
            | Record::Mapping(_)
            | Record::Unmapping(_)
            | Record::Gpu(_)
            | Record::QmdCopy(_)
            | Record::Kernel(_)
            | Record::Stamps(_)
            | Record::Snapshot(_) => {}
        }
    }

    /// Records a channel whose process has no name.
    fn note_unnamed(&mut self, id: ChannelId) {
        if let Some(channel) = self.channels.get(&id)
            && channel.process.is_none()
        {
            self.unnamed.insert((channel.pid, id));
        }
    }

    /// Sets a process's name in its channels that have none.
    fn name_channels(&mut self, pid: u32, name: &str) {
        let of = (pid, ChannelId(0))..=(pid, ChannelId(u32::MAX));
        let ids: Vec<_> = self.unnamed.range(of).copied().collect();
        for key in ids {
            self.unnamed.remove(&key);
            if let Some(c) = self.channels.get_mut(&key.1)
                && c.pid == pid
                && c.process.is_none()
            {
                c.process = Some(name.to_owned());
            }
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
                None => self.add_untraced(
                    loss.at.pid,
                    "ring entries of an unnamed channel were overwritten",
                    *count,
                ),
            },
            Lost::Records { kind, count } => {
                let known = self.dropped.entry(*kind).or_default();
                *known = known.saturating_add(*count);
            }
            Lost::UnknownChannel { token, count } => {
                let known = self.unknown.entry((loss.at.pid, *token)).or_default();
                *known = known.saturating_add(*count);
            }
            Lost::Stacks { count } => {
                self.stacks_lost = self.stacks_lost.saturating_add(*count);
            }
            Lost::Notifiers { .. } => self.faults.add_unread(loss.at.pid),
            Lost::Untraced { why } => self.add_untraced(loss.at.pid, why, 1),
        }
    }

    fn add_untraced(&mut self, pid: u32, why: &str, count: u64) {
        untraced::add(&mut self.untraced, pid, why, count);
    }

    /// Returns the faults of the GPU in the order in which they came, as many as are kept.
    #[must_use]
    pub fn faults(&self) -> &[Fault] {
        self.faults.kept()
    }

    /// Returns the number of all faults.
    #[must_use]
    pub fn fault_count(&self) -> u64 {
        self.faults.count()
    }

    /// Returns the processes whose error notifiers were not read at their end, in the order in which they ended (as many as are kept), and
    /// the number of all. A fault in the last moment of these is not reported.
    #[must_use]
    pub fn unread_notifiers(&self) -> (&[u32], u64) {
        self.faults.unread()
    }

    /// Returns the causes of the faults: one for each process and kind of fault.
    #[must_use]
    pub fn blames(&self) -> Vec<Blame<'_>> {
        self.faults.blames()
    }

    /// Completes each fault that is kept: `complete` sets the kernels of its suspects.
    pub fn name_suspects(&mut self, complete: impl FnMut(&mut Fault)) {
        self.faults.each(complete);
    }

    /// Sets the engine that a channel feeds, found in the stream, if the channel's record did not give it.
    pub fn learn_engine(&mut self, id: ChannelId, engine: Engine) {
        let channel = self.channels.entry(id).or_default();
        if channel.engine == Engine::Unknown {
            channel.engine = engine;
        }
    }

    /// Counts objects that were captured but could not be written out (a full disk).
    pub fn add_unshown(&mut self, count: u64) {
        self.unshown = self.unshown.saturating_add(count);
    }

    /// Returns the number of objects that were captured but could not be written out.
    #[must_use]
    pub fn unshown(&self) -> u64 {
        self.unshown
    }

    /// Returns the account of context switches that the driver recorded; `None` if none were recorded.
    #[must_use]
    pub fn switched(&self) -> Option<Switched> {
        (self.switched.windows > 0).then_some(self.switched)
    }

    /// Returns the account of samples of program counters; `None` if there were none.
    #[must_use]
    pub fn sampled(&self) -> Option<Sampled> {
        (self.sampled.windows > 0).then_some(self.sampled)
    }

    /// Returns the number of stacks that were taken at doorbells (`--stacks`), and of stacks that were lost. A lost stack makes nothing
    /// else incomplete.
    #[must_use]
    pub fn stacks(&self) -> (u64, u64) {
        (self.stacks, self.stacks_lost)
    }

    /// Records that the stack was taken at one in `every` doorbells, and that `skipped` doorbells were skipped.
    pub fn add_stack_sample(&mut self, every: u32, skipped: u64) {
        self.stack_sample = Some((every, skipped));
    }

    /// Returns the number of doorbells per stack that was taken, and the number of doorbells that were skipped; `None` if stacks were not
    /// sampled.
    #[must_use]
    pub fn stack_sample(&self) -> Option<(u32, u64)> {
        self.stack_sample
    }

    /// Counts parts that stacks lack because of a limit on reading or a file that could not be read. No submission is missing for them.
    pub fn add_left_out_of_stacks(&mut self, what: &str, count: u64) {
        if count == 0 {
            return;
        }
        let is_full = self.left_out_of_stacks.len() >= REASONS_KEPT;
        let what = match is_full && !self.left_out_of_stacks.contains_key(what) {
            true => MORE_REASONS,
            false => what,
        };
        let known = self.left_out_of_stacks.entry(what.to_owned()).or_default();
        *known = known.saturating_add(count);
    }

    /// Returns words for the parts that stacks lack, each with a count. They make stacks incomplete, not submissions.
    pub fn left_out_of_stacks(&self) -> impl Iterator<Item = (&str, u64)> {
        let all = self.left_out_of_stacks.iter();
        all.map(|(what, count)| (what.as_str(), *count))
    }

    /// Takes in the decoder's counts, from which the ledger says how much was understood.
    pub fn understand(&mut self, counts: Counts) {
        self.understood = Some(counts.into());
    }

    /// Returns the part of the captured bytes that was understood; `None` if nothing was decoded.
    #[must_use]
    pub fn understood(&self) -> Option<&Understanding> {
        self.understood.as_ref()
    }

    /// Adds the account of observing, at its end.
    pub fn add_observed(&mut self, observed: Observed) {
        self.observed = Some(observed);
    }

    /// Returns the account of observing; `None` if nothing was observed.
    #[must_use]
    pub fn observed(&self) -> Option<&Observed> {
        self.observed.as_ref()
    }

    /// Adds the account of the trap, at its end.
    pub fn add_trapped(&mut self, trapped: Trapped) {
        self.trapped = Some(trapped);
    }

    /// Returns the account of the trap; `None` if nothing was trapped.
    #[must_use]
    pub fn trapped(&self) -> Option<&Trapped> {
        self.trapped.as_ref()
    }

    /// Returns the channels by their number in this trace.
    pub fn channels(&self) -> impl Iterator<Item = (ChannelId, &ChannelLedger)> {
        self.channels.iter().map(|(id, c)| (*id, c))
    }

    /// Returns one channel.
    #[must_use]
    pub fn channel(&self, id: ChannelId) -> Option<&ChannelLedger> {
        self.channels.get(&id)
    }

    /// Returns the number of dropped records, by kind.
    pub fn dropped(&self) -> impl Iterator<Item = (RecordKind, u64)> + '_ {
        self.dropped.iter().map(|(k, n)| (*k, *n))
    }

    /// Returns the doorbells of channels that never became known.
    pub fn unknown_doorbells(&self) -> impl Iterator<Item = UnknownDoorbells> + '_ {
        self.unknown
            .iter()
            .map(|(&(pid, token), &count)| UnknownDoorbells { pid, token, count })
    }

    /// Returns the reasons for which the source could not follow something.
    #[must_use]
    pub fn untraced(&self) -> &[Untraced] {
        &self.untraced
    }

    /// Returns the time of the last record, ns.
    #[must_use]
    pub fn end_ns(&self) -> u64 {
        self.end_ns
    }

    /// Returns the time from the first submission to the last, ns; `None` without two at different times.
    #[must_use]
    pub fn duration_ns(&self) -> Option<u64> {
        let times = || self.channels.values().filter_map(|c| c.times);
        let first = times().map(|t| t.0).min()?;
        let last = times().map(|t| t.1).max()?;
        Some(last - first).filter(|ns| *ns > 0)
    }

    /// Returns the sums over all channels.
    #[must_use]
    pub fn totals(&self) -> Totals {
        let mut t = Totals::default();
        for c in self.channels.values() {
            t.channels += u64::from(c.submissions > 0 || c.doorbells > 0);
            // A recording may have any positions and counts.
            for (sum, count) in [
                (&mut t.submissions, c.submissions),
                (&mut t.entries, c.entries),
                (&mut t.bytes, c.bytes),
                (&mut t.gaps, c.gaps),
                (&mut t.unreadable, c.unreadable),
                (&mut t.late, c.late),
                (&mut t.merged, c.merged),
                (&mut t.repeated, c.repeated),
                (&mut t.contradictions, c.contradictions),
                (&mut t.skipped, c.skipped),
                (&mut t.doorbells, c.doorbells),
            ] {
                *sum = sum.saturating_add(count);
            }
        }
        t
    }

    /// Tells whether nothing is known to be missing.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.channels.values().all(ChannelLedger::is_complete)
            && self.dropped.values().all(|n| *n == 0)
            && self.unknown.values().all(|n| *n == 0)
            && self.untraced.is_empty()
            && self.unshown == 0
    }

    /// Returns the programs of the traced processes, each once, if none of the processes was seen to use a GPU (no channel, no mapping of a
    /// GPU's memory). `None` if one did, if something may be missing, or if no process was traced.
    #[must_use]
    pub fn without_gpu(&self) -> Option<Vec<&str>> {
        if self.gpu || self.programs.is_empty() || !self.is_complete() {
            return None;
        }
        let mut all: Vec<&str> = Vec::new();
        for name in self.programs.values() {
            if !all.contains(&name.as_str()) {
                all.push(name);
            }
        }
        Some(all)
    }

    /// Returns the exit status of this verdict: [`STATUS_COMPLETE`], [`STATUS_LOST`], [`STATUS_NO_GPU`], [`STATUS_FAULTED`] or
    /// [`STATUS_NOT_UNDERSTOOD`].
    #[must_use]
    pub fn exit_status(&self) -> u8 {
        match &self.understood {
            _ if !self.is_complete() => STATUS_LOST,
            _ if self.without_gpu().is_some() => STATUS_NO_GPU,
            _ if self.faults.are_of_processes() => STATUS_FAULTED,
            Some(u) if !u.is_whole() => STATUS_NOT_UNDERSTOOD,
            _ => STATUS_COMPLETE,
        }
    }
}

fn record_time(record: &Record) -> u64 {
    match record {
        Record::Ioctl(r) => r.end_ns.unwrap_or(r.at.time_ns),
        other => other.at().time_ns,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{At, Channel, Origin, Process};

    fn at(pid: u32) -> At {
        At::of_process(1, pid)
    }

    fn channel(pid: u32, id: u32) -> Record {
        Record::Channel(Box::new(Channel::bare(
            at(pid),
            ChannelId(id),
            Origin::Found,
        )))
    }

    fn present(pid: u32) -> Record {
        let name = format!("p{pid}");
        Record::Process(Process {
            at: at(pid),
            life: Life::Present { name },
        })
    }

    /// Test of many processes that have a channel each: a process's name searches only that process's channels.
    #[test]
    fn a_name_is_given_to_its_process_s_channels_alone() {
        let mut ledger = Ledger::new();
        for pid in 1..2000 {
            ledger.record(&present(pid));
            ledger.record(&channel(pid, pid));
            assert!(ledger.unnamed.is_empty(), "it has its name");
        }
        for id in 2000..2010 {
            ledger.record(&channel(3000 + id % 2, id));
        }
        assert_eq!(ledger.unnamed.len(), 10);
        ledger.record(&present(3001));
        assert_eq!(ledger.unnamed.len(), 5);
        let name = |id| ledger.channel(ChannelId(id))?.process.clone();
        assert_eq!(name(7).as_deref(), Some("p7"));
        assert_eq!((name(2001).as_deref(), name(2002)), (Some("p3001"), None));
    }
}
