//! One look at the rings of a process in which a channel was stopped. It finds the work that had not ended.

use std::collections::BTreeMap;
use std::time::Duration;

use nvcap_decode::decode::event::{ChipBy, Engine, Operation};
use nvcap_decode::hang::{self, Analysis, RingState, Values, unended};
use nvcap_decode::record::{ChannelId, CpuVa};
use nvcap_process::memory::{
    captured::SnapshotOptions,
    chip,
    decoded::{ByMaps, UndecodedChannel, decoded, decoder, read_values},
    scan,
    snapshot::{self, Snapshot},
};

use super::known::Known;
use super::noticed::Open;

/// Number of entries of each channel that are read: all that a ring of libcuda has.
const ENTRIES: u32 = 1023;
/// The most suspects of a fault that are reported.
const MOST: usize = 64;
/// Bits of the runlist in a token. Runlist 0 is the graphics engine's.
const RUNLIST: u32 = 0x007f_0000;

/// Findings of a look.
pub(super) struct Rings {
    pub(super) snapshot: Snapshot,
    pub(super) states: RingState,
    pub(super) values: Values,
    pub(super) analysis: Analysis,
}

/// Looks at a process; `None` where it cannot be read.
pub(super) fn rings(pid: u32) -> Option<Rings> {
    let options = SnapshotOptions {
        last: ENTRIES,
        before: 0,
        effort: scan::Effort::Habit,
        known_rings: &[],
        patience: Duration::ZERO,
    };
    let (memory, snapshot) = snapshot::take(pid, 0, options)
        .inspect_err(|e| log::info!("process {pid}: its rings cannot be read: {e}"))
        .ok()?;
    let mut decoder = decoder(None);
    for (minor, chip) in chip::chips() {
        decoder.chip(Some(minor), chip, ChipBy::Pci);
    }
    let undecoded: Vec<UndecodedChannel<'_>> = snapshot.channels.iter().map(Into::into).collect();
    let places = ByMaps::new(&snapshot.areas);
    let states = RingState {
        channels: decoded(&mut decoder, pid, &undecoded, &places),
    };
    drop(undecoded);
    let mut values = Values::default();
    let addresses = hang::addresses(&states);
    let places = scan::Places::new(&snapshot.areas);
    read_values(&memory, &places, pid, &addresses, &mut values);
    let analysis = hang::analyse(&states, &values);
    Some(Rings {
        snapshot,
        states,
        values,
        analysis,
    })
}

impl Rings {
    /// The channel of the trace whose error notifier lies at an address, by the order of channels.
    pub(super) fn channel_with(
        &self,
        notifier: u64,
        channels: &BTreeMap<ChannelId, Known>,
    ) -> Option<ChannelId> {
        let mut all = self.snapshot.channels.iter();
        let seen = all.find(|s| s.notifier.is_some_and(|n| n.address == notifier))?;
        traced(seen.found.ring, seen.found.userd, channels)
    }

    /// The work that had not ended of the channel `of`; without a channel, of all channels to which a fault with this token may
    /// belong. Also tells whether no other work can have caused the fault.
    pub(super) fn suspects(
        &self,
        channels: &BTreeMap<ChannelId, Known>,
        of: Option<(ChannelId, Option<&Known>)>,
        token: u32,
    ) -> (Vec<Open>, bool) {
        let mut all = Vec::new();
        let mut only_these = self.has_all(channels);
        let mut any = false;
        for (seen, state) in self.snapshot.channels.iter().zip(&self.states.channels) {
            let id = traced(seen.found.ring, seen.found.userd, channels);
            let is_meant = match of {
                Some((channel, _)) => id == Some(channel),
                None => token & RUNLIST != 0 || !matches!(state.engine, Engine::Copy(_)),
            };
            if !is_meant {
                continue;
            }
            any = true;
            let judged = self.analysis.of(state.id);
            let Some(judged) = judged.filter(|_| !seen.ring_gone) else {
                only_these = false;
                continue;
            };
            let found = unended(state, judged, &self.values);
            only_these &= found.is_whole;
            // Of a channel that the trace does not know, its work cannot be shown.
            let Some(id) = id else {
                only_these &= found.works.is_empty();
                continue;
            };
            let works = found.works.iter();
            all.extend(works.filter_map(|(step, op)| open(id, step.index, op)));
        }
        only_these &= any && all.len() <= MOST;
        all.truncate(MOST);
        (all, only_these)
    }

    /// Tells whether each channel on which the trace saw submissions was found.
    fn has_all(&self, channels: &BTreeMap<ChannelId, Known>) -> bool {
        let found: Vec<ChannelId> = { self.snapshot.channels.iter() }
            .filter_map(|s| traced(s.found.ring, s.found.userd, channels))
            .collect();
        let mut submitting = channels.iter().filter(|(_, c)| c.submits);
        submitting.all(|(id, _)| found.contains(id))
    }
}

/// The channel of the trace with this ring and USERD.
fn traced(ring: u64, userd: u64, channels: &BTreeMap<ChannelId, Known>) -> Option<ChannelId> {
    let is = |c: &Known| c.userd == Some(CpuVa(userd)) || c.ring == Some(CpuVa(ring));
    // The newest, should an older one have been at the same place.
    let (id, _) = channels.iter().rfind(|(_, c)| is(c))?;
    Some(*id)
}

/// Makes a suspect with a kernel's arguments. Names are searched for later.
fn open(channel: ChannelId, index: u32, op: &Operation) -> Option<Open> {
    let args = match op {
        Operation::Launch(l) => l.args.clone().unwrap_or_default(),
        _ => Vec::new(),
    };
    let suspect = hang::suspect(channel, index, op)?;
    Some(Open { suspect, args })
}
