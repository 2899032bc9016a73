//! One look in decoded form: channels and the steps in their rings.

use std::collections::{BTreeMap, BTreeSet};

use crate::decode::event::{
    Body, Context, Engine, Launch, LaunchKind, Operation, SemaphoreAction, SemaphoreUnit, Stop,
};
use crate::decode::{Decoder, Places};
use crate::record::{ChannelId, Submission};
use crate::wire::GpuVa;

/// Operations of one ring entry.
#[derive(Clone, Debug)]
pub struct Step {
    /// Ring position, counted without wrapping from the oldest lap that is still in the ring.
    pub position: u64,
    /// Index in the ring.
    pub index: u32,
    /// True if the entry lies between GP_GET and GP_PUT, and is therefore not fetched.
    pub pending: bool,
    /// Operations of the entry, in order.
    pub operations: Vec<Operation>,
    /// Place at which decoding stopped, if it did.
    pub stop: Option<Stop>,
    /// Number of pushbuffer bytes to which the entry points.
    pub bytes: u64,
    /// Part of `bytes`: bytes that could not be read, or that were reused since.
    pub missing: u64,
}

/// A channel and the contents of its ring.
#[derive(Clone, Debug)]
pub struct ChannelState {
    /// Number of the channel in this look.
    pub id: ChannelId,
    /// Process of the channel.
    pub pid: u32,
    /// GPU by device file minor number.
    pub gpu: Option<u32>,
    /// Work-submit token.
    pub token: Option<u32>,
    /// Engine, as far as known.
    pub engine: Engine,
    /// Classes that the steps bind or use, by number.
    pub classes: BTreeSet<u32>,
    /// GP_GET.
    pub get: u32,
    /// GP_PUT.
    pub put: u32,
    /// Number of entries of the ring.
    pub entries: u32,
    /// The steps that were read, oldest first; the last is the one before GP_PUT.
    pub steps: Vec<Step>,
}

/// Returns the number of entries from one place in a ring to another.
fn ahead(from: u32, to: u32, entries: u32) -> u32 {
    let lap = u64::from(entries.max(1));
    ((u64::from(to) + lap - u64::from(from) % lap) % lap) as u32
}

impl ChannelState {
    /// Makes a channel without steps.
    #[must_use]
    pub fn new(id: ChannelId, pid: u32, get: u32, put: u32, entries: u32) -> Self {
        Self {
            id,
            pid,
            gpu: None,
            token: None,
            engine: Engine::Unknown,
            classes: BTreeSet::new(),
            get,
            put,
            entries,
            steps: Vec::new(),
        }
    }

    /// Tells whether a step launches a QMD that was not seen.
    #[must_use]
    pub fn has_unresolved(&self) -> bool {
        let unresolved =
            |op: &Operation| matches!(op, Operation::Launch(l) if l.kind == LaunchKind::Unresolved);
        self.steps
            .iter()
            .any(|s| s.operations.iter().any(unresolved))
    }

    /// Returns the channel's launches, in ring order.
    pub fn launches(&self) -> impl Iterator<Item = &Launch> {
        let operations = self.steps.iter().flat_map(|s| &s.operations);
        operations.filter_map(|op| match op {
            Operation::Launch(l) => Some(&**l),
            _ => None,
        })
    }

    /// Returns the launches of [`ChannelState::launches`], so that they can be completed.
    pub fn launches_mut(&mut self) -> impl Iterator<Item = &mut Launch> {
        let operations = self.steps.iter_mut().flat_map(|s| &mut s.operations);
        operations.filter_map(|op| match op {
            Operation::Launch(l) => Some(&mut **l),
            _ => None,
        })
    }

    /// Returns the number of entries that the GPU has not fetched.
    #[must_use]
    pub fn pending(&self) -> u32 {
        ahead(self.get, self.put, self.entries)
    }

    /// Takes in GP_GET as it was read later than the steps. Entries fetched since are no longer pending, and neither are the steps up to
    /// the position `done`, the newest that the channel's semaphore shows as done.
    pub fn fetched_since(&mut self, get: u32, done: Option<u64>) {
        let passed = |done: &u64| self.steps.iter().rposition(|s| s.position == *done);
        let behind = |at: usize| (self.steps.len() - 1 - at) as u32;
        let by_done = done.as_ref().and_then(passed).map(behind);
        // More than the pending entries were fetched: GP_GET has passed the former GP_PUT.
        let by_get = self
            .pending()
            .saturating_sub(ahead(self.get, get, self.entries));
        let pending = by_done.map_or(by_get, |n| n.min(by_get));
        if pending < self.pending() {
            let lap = u64::from(self.entries);
            self.get = ((u64::from(self.put) + lap - u64::from(pending)) % lap) as u32;
        }
        let fetched = self.steps.len().saturating_sub(pending as usize);
        for (n, step) in self.steps.iter_mut().enumerate() {
            step.pending = n >= fetched;
        }
    }

    /// Adds a step: a submission of one ring entry, in ring order.
    pub fn decode(
        &mut self,
        decoder: &mut Decoder,
        context: &Context,
        places: &dyn Places,
        submission: &Submission,
    ) {
        let entries = u64::from(self.entries.max(1));
        let index = (submission.position % entries) as u32;
        let ahead = ahead(index, self.put, self.entries);
        let mut step = Step {
            position: submission.position,
            index,
            // The newest entry is one before GP_PUT.
            pending: ahead != 0 && ahead <= self.pending(),
            operations: Vec::new(),
            stop: None,
            bytes: 0,
            missing: 0,
        };
        let classes = &mut self.classes;
        decoder.submission(
            submission,
            context,
            places,
            &mut |event| match &event.body {
                Body::Submission(head) => (step.bytes, step.missing) = (head.bytes, head.missing),
                // The summary of a replay belongs to several submissions, not to this one.
                Body::Operation(Operation::Graph(_)) => {}
                Body::Operation(op) => {
                    if let Operation::Bind(b) = op {
                        classes.insert(b.class);
                    }
                    step.operations.push((*op).clone());
                }
                Body::Stop(stop) => step.stop = step.stop.or(Some(*stop)),
                Body::Entry(_) | Body::Method(_) | Body::Chip(_) => {}
            },
        );
        self.steps.push(step);
    }
}

/// One look.
#[derive(Clone, Debug, Default)]
pub struct RingState {
    /// Channels of all processes that were looked at.
    pub channels: Vec<ChannelState>,
}

/// Values of semaphores in memory now, by process and address.
#[derive(Clone, Debug, Default)]
pub struct Values {
    known: BTreeMap<(u32, GpuVa), u64>,
}

impl Values {
    /// Sets the 8 bytes at an address.
    pub fn set(&mut self, pid: u32, address: GpuVa, value: u64) {
        self.known.insert((pid, address), value);
    }

    /// Returns all values that are set for a process, by address.
    pub fn of(&self, pid: u32) -> impl Iterator<Item = (GpuVa, u64)> {
        let of = self.known.range((pid, GpuVa(0))..=(pid, GpuVa(u64::MAX)));
        of.map(|((_, address), value)| (*address, *value))
    }

    /// Returns the value of a semaphore; `None` if its memory was not read, or could not be.
    #[must_use]
    pub fn get(&self, pid: u32, address: GpuVa, wide: bool) -> Option<u64> {
        let value = *self.known.get(&(pid, address))?;
        Some(if wide { value } else { value & 0xffff_ffff })
    }
}

/// A write to a semaphore, by any unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub(super) struct Release {
    pub address: GpuVa,
    pub payload: u64,
}

/// A wait of an operation for a semaphore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Acquire {
    pub address: GpuVa,
    pub payload: u64,
    pub action: SemaphoreAction,
    pub wide: bool,
    /// True if plain numbers are compared (ACQ_STRICT_GEQ). The other modes compare modulo 2^32 or 2^64.
    pub strict: bool,
}

/// Returns the semaphore releases of an operation, in order.
pub(super) fn releases(op: &Operation) -> Vec<Release> {
    match op {
        Operation::Semaphore(s) if s.action == SemaphoreAction::Release => vec![Release {
            address: s.address,
            payload: s.payload,
        }],
        Operation::Copy(c) => c
            .semaphore
            .iter()
            .map(|s| Release {
                address: s.address,
                payload: s.payload,
            })
            .collect(),
        Operation::Launch(l) => l
            .releases
            .iter()
            .map(|r| Release {
                address: r.address,
                payload: r.payload,
            })
            .collect(),
        // An inline write of four bytes of the program's data can be the release for which another channel waits.
        Operation::Inline(i) if i.bytes == 4 || i.bytes == 8 => {
            let mut value = [0; 8];
            let len = i.head.len().min(8);
            match (value.get_mut(..len), i.head.get(..len)) {
                (Some(to), Some(from)) => to.copy_from_slice(from),
                _ => return Vec::new(),
            }
            vec![Release {
                address: i.dst,
                payload: u64::from_le_bytes(value),
            }]
        }
        _ => Vec::new(),
    }
}

/// Returns the acquire of an operation.
pub(super) fn acquire(op: &Operation) -> Option<Acquire> {
    match op {
        Operation::Semaphore(s) => match s.action {
            SemaphoreAction::AcquireEqual
            | SemaphoreAction::AcquireGreaterEqual
            | SemaphoreAction::AcquireAnd
            | SemaphoreAction::AcquireNor => Some(Acquire {
                address: s.address,
                payload: s.payload,
                action: s.action,
                wide: s.wide,
                // In SEM_EXECUTE this is OPERATION (2:0) = 2; the older SEMAPHORED has no such operation.
                strict: s.unit == SemaphoreUnit::Host && s.execute & 7 == 2,
            }),
            SemaphoreAction::Release | SemaphoreAction::Reduction | SemaphoreAction::Other(_) => {
                None
            }
        },
        _ => None,
    }
}

impl Acquire {
    /// Tells whether a value ends the wait. Greater-or-equal compares modulo 2^32 (or 2^64) unless strict: it is met if the difference is
    /// not negative.
    pub(super) fn is_met_by(&self, value: u64) -> bool {
        match self.action {
            SemaphoreAction::AcquireEqual => value == self.payload,
            SemaphoreAction::AcquireGreaterEqual if self.strict => value >= self.payload,
            SemaphoreAction::AcquireGreaterEqual if self.wide => {
                value.wrapping_sub(self.payload) as i64 >= 0
            }
            SemaphoreAction::AcquireGreaterEqual => {
                (value as u32).wrapping_sub(self.payload as u32) as i32 >= 0
            }
            SemaphoreAction::AcquireAnd => value & self.payload != 0,
            SemaphoreAction::AcquireNor => {
                let both = value | self.payload;
                if self.wide {
                    !both != 0
                } else {
                    !(both as u32) != 0
                }
            }
            SemaphoreAction::Release | SemaphoreAction::Reduction | SemaphoreAction::Other(_) => {
                true
            }
        }
    }
}

/// Returns every semaphore address, with its process, whose value the analysis needs.
#[must_use]
pub fn addresses(scene: &RingState) -> BTreeSet<(u32, GpuVa)> {
    let mut all = BTreeSet::new();
    for channel in &scene.channels {
        for op in channel.steps.iter().flat_map(|s| &s.operations) {
            all.extend(acquire(op).map(|a| (channel.pid, a.address)));
            // An inline write is a semaphore release only if some channel acquires that address.
            if !matches!(op, Operation::Inline(_)) {
                all.extend(releases(op).iter().map(|r| (channel.pid, r.address)));
            }
        }
    }
    all
}
