//! Slices of contexts, and the time for which each holder had an engine.

use std::collections::{BTreeMap, BTreeSet};

use super::record::{Instance, Switch, Who};

/// Longest time between two slices that counts as a switch. A switch of an H200 takes some 85 us. If no context has work, no context has
/// the engine between slices.
pub const LONGEST_SWITCH_NS: u64 = 1_000_000;

/// The most holders of a GPU whose sums are kept. The time of further holders counts as unknown.
const MOST_HOLDERS: usize = 1 << 16;

/// Sums of one holder's slices. A holder is a context of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Time for which the holder had the engine, ns.
    pub resident_ns: u64,
    /// Number of slices, including those that began before the measurement and those that have not ended.
    pub slices: u64,
    /// Longest slice, ns.
    pub longest_ns: u64,
}

impl Held {
    fn add(&mut self, ns: u64) {
        self.resident_ns = self.resident_ns.saturating_add(ns);
        self.slices += 1;
        self.longest_ns = self.longest_ns.max(ns);
    }

    /// Adds another holder's sums.
    pub fn join(&mut self, other: Self) {
        self.resident_ns = self.resident_ns.saturating_add(other.resident_ns);
        self.slices += other.slices;
        self.longest_ns = self.longest_ns.max(other.longest_ns);
    }
}

/// Sums of an engine: of the GPU, or of one MIG instance. The times of all holders, `switch_ns`, `nobody_ns` and `unknown_ns` add up to
/// `ns`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineSums {
    /// MIG instance, if the GPU is in that mode.
    pub instance: Option<Instance>,
    /// Time that was measured, ns.
    pub ns: u64,
    /// Holders: process and context.
    pub holders: BTreeMap<(Who, u32), Held>,
    /// Number of switches: slices that followed another one within [`LONGEST_SWITCH_NS`].
    pub switches: u64,
    /// Total time between the slices of these switches, ns.
    pub switch_ns: u64,
    /// Time in which no context had the engine, ns.
    pub nobody_ns: u64,
    /// Time in which the holder of the engine is not known because records are missing, ns.
    pub unknown_ns: u64,
    /// Number of slices whose beginning or end the driver did not report although no record is missing.
    pub incomplete: u64,
}

/// State of an engine.
#[derive(Clone, Debug)]
enum State {
    /// Nothing was reported yet.
    Begun,
    /// This holder has the engine since then.
    Held((Who, u32)),
    /// No context has the engine.
    Free,
    /// Unknown, because records are missing.
    Unknown,
}

/// Holder of an engine in a stretch of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Of {
    /// A context of a holder.
    Held((Who, u32)),
    /// No context, in a switch between two contexts that follow each other.
    Switch,
    /// No context.
    Nobody,
    /// An unknown holder.
    Unknown,
}

/// A stretch of an engine's time, ns of the GPU's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stretch {
    pub instance: Option<Instance>,
    pub from: u64,
    pub to: u64,
    pub of: Of,
}

#[derive(Clone, Debug)]
struct Engine {
    state: State,
    /// Doubts of the GPU that the state has taken into account.
    doubts: Doubts,
    /// Time up to which the sums are complete.
    at: u64,
    sums: EngineSums,
}

impl Engine {
    fn new(instance: Option<Instance>, began: u64) -> Self {
        Self {
            state: State::Begun,
            doubts: Doubts::NONE,
            at: began,
            sums: EngineSums {
                instance,
                ..EngineSums::default()
            },
        }
    }

    /// Adds a slice of a holder. `room` is the number of holders that may still be added.
    fn hold(&mut self, who: (Who, u32), ns: u64, room: &mut usize) {
        if let Some(held) = self.sums.holders.get_mut(&who) {
            held.add(ns);
        } else if let Some(left) = room.checked_sub(1) {
            *room = left;
            self.sums.holders.entry(who).or_default().add(ns);
        } else {
            self.sums.unknown_ns += ns;
        }
    }

    /// Takes the GPU's doubts until now into account.
    fn doubt(&mut self, doubts: Doubts) {
        if self.is_doubted(doubts) {
            self.state = State::Unknown;
        }
        self.doubts = doubts;
    }

    fn is_doubted(&self, doubts: Doubts) -> bool {
        let is_held = matches!(self.state, State::Held(_));
        self.doubts.losses != doubts.losses || !is_held && self.doubts.begun != doubts.begun
    }

    /// Ends a stretch at a time. `room` is the one of [`Engine::hold`].
    fn pass(&mut self, to: u64, of: Of, room: &mut usize) -> Stretch {
        let from = self.at;
        // Records of a time before the measurement determine the state at its beginning.
        self.at = from.max(to);
        let passed = self.at - from;
        self.sums.ns += passed;
        match of {
            Of::Held(who) => self.hold(who, passed, room),
            Of::Switch => {
                self.sums.switches += 1;
                self.sums.switch_ns += passed;
            }
            Of::Nobody => self.sums.nobody_ns += passed,
            Of::Unknown => self.sums.unknown_ns += passed,
        }
        Stretch {
            instance: self.sums.instance,
            from,
            to: self.at,
            of,
        }
    }

    /// Takes in a beginning or an end. Returns the stretch that it ends.
    fn take(&mut self, switch: &Switch, room: &mut usize) -> Stretch {
        let who = (switch.who(), switch.context);
        let begins = switch.tag.begins();
        let passed = switch.time_ns.saturating_sub(self.at);
        let of = match (&self.state, begins) {
            (State::Unknown, _) => Of::Unknown,
            // A holder whose slice ends first has had the engine since before.
            (State::Begun, false) => Of::Held(who),
            (State::Begun, true) => Of::Nobody,
            (State::Free, true) if passed <= LONGEST_SWITCH_NS => Of::Switch,
            (State::Free, true) => Of::Nobody,
            (State::Held(held), false) if switch.may_end(*held) => Of::Held(*held),
            // An end without a beginning; or a beginning without an end before it, or with another holder's.
            (State::Free, false) | (State::Held(_), _) => {
                self.sums.incomplete += 1;
                Of::Unknown
            }
        };
        self.state = match begins {
            true => State::Held(who),
            false => State::Free,
        };
        self.pass(switch.time_ns, of, room)
    }

    /// Returns the holder of the engine since the last record.
    fn now(&self) -> Of {
        match self.state {
            State::Held(who) => Of::Held(who),
            // Without a record it is unknown whether anybody had the engine.
            State::Begun | State::Unknown => Of::Unknown,
            State::Free => Of::Nobody,
        }
    }

    /// Returns the sums at a time. A lasting slice is counted until then.
    fn sums(&self, now: u64, doubts: Doubts, mut room: usize) -> EngineSums {
        let mut to = self.clone();
        to.doubt(doubts);
        to.pass(now, to.now(), &mut room);
        to.sums
    }

    /// Ends the slice of a holder whose process has ended by a time, so that its contexts are gone. Returns the stretch that this ends.
    fn ended(&mut self, by: u64, room: &mut usize) -> Option<Stretch> {
        let State::Held(who) = self.state else {
            return None;
        };
        self.state = State::Free;
        Some(self.pass(by, Of::Held(who), room))
    }

    /// Begins new sums at a time. The holder of the engine stays known.
    fn restart(&mut self, now: u64) {
        let instance = self.sums.instance;
        self.at = self.at.max(now);
        self.sums = EngineSums {
            instance,
            ..EngineSums::default()
        };
    }
}

/// Counts, since the first record, of the events at which the holders of a GPU's engines became unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Doubts {
    /// Losses of records, and ends of slices whose engine is not known.
    losses: u64,
    /// Slices that began on an unknown engine, among those that nobody had.
    begun: u64,
}

impl Doubts {
    const NONE: Self = Self {
        losses: 0,
        begun: 0,
    };
}

/// Residence of contexts on a GPU's engines, from its records in their order.
#[derive(Clone, Debug)]
pub struct Residence {
    began: u64,
    doubts: Doubts,
    /// Doubts at the time when the sums began. After a later doubt, nothing is known about an engine that is reported for the first time.
    doubts_before: Doubts,
    engines: BTreeMap<Option<Instance>, Engine>,
    /// Lasting slices whose engine was not reported, of a GPU that has MIG instances.
    unplaced: BTreeSet<(Who, u32)>,
    /// Engines that processes have.
    holding: BTreeSet<(u32, Option<Instance>)>,
    /// Number of holders that may still be added.
    room: usize,
}

impl Residence {
    /// Begins at a GPU time, ns.
    #[must_use]
    pub const fn new(began: u64) -> Self {
        Self {
            began,
            doubts: Doubts::NONE,
            doubts_before: Doubts::NONE,
            engines: BTreeMap::new(),
            unplaced: BTreeSet::new(),
            holding: BTreeSet::new(),
            room: MOST_HOLDERS,
        }
    }

    /// Takes the next record.
    pub fn take(&mut self, switch: &Switch) {
        let _ = self.take_stretch(switch);
    }

    /// Takes the next record. Returns the stretch of its engine's time that the record ends.
    pub(super) fn take_stretch(&mut self, switch: &Switch) -> Option<Stretch> {
        let instance = switch.instance;
        let has_instances = self.engines.last_key_value().is_some_and(|e| e.0.is_some());
        if has_instances && instance.is_none() {
            self.take_unplaced(switch);
            return None;
        }
        if !has_instances && instance.is_some() {
            self.forget_whole();
        }
        let engine = { self.engines.entry(instance) }.or_insert_with(|| {
            let mut engine = Engine::new(instance, self.began);
            engine.doubts = self.doubts_before;
            engine
        });
        if !switch.tag.begins() && !switch.tag.ends() {
            return None;
        }
        engine.doubt(self.doubts);
        if let State::Held((Who::Process(pid), _)) = engine.state {
            self.holding.remove(&(pid, instance));
        }
        let stretch = engine.take(switch, &mut self.room);
        if let State::Held((Who::Process(pid), _)) = engine.state {
            self.holding.insert((pid, instance));
        }
        Some(stretch)
    }

    /// Takes in a record without a MIG instance, of a GPU that has instances. The driver gives no instance for contexts that are another
    /// user's, the driver's own, or gone.
    fn take_unplaced(&mut self, switch: &Switch) {
        let who = (switch.who(), switch.context);
        let is_named = matches!(who.0, Who::Process(_));
        if switch.tag.begins() && !is_named && self.unplaced.len() < MOST_HOLDERS {
            self.unplaced.insert(who);
            self.doubts.begun += 1;
        } else if switch.tag.begins() || switch.tag.ends() && !self.unplaced.remove(&who) {
            self.lost();
        }
    }

    /// Drops the engine of the whole GPU, unless a process has held it, once the GPU is known to have MIG instances. Records without an
    /// instance, of contexts whose process is not known, then belong to no engine.
    fn forget_whole(&mut self) {
        let is_of_process = |(who, _): &(Who, u32)| matches!(who, Who::Process(_));
        let whole = self.engines.get(&None);
        if whole.is_some_and(|e| !e.sums.holders.keys().any(is_of_process)) {
            self.engines.remove(&None);
            self.lost();
        }
    }

    /// Records that records are missing from here until the next one, so that the holders of the engines are unknown. An engine takes this
    /// into account only when it is next looked at, because a file may have many engines and many losses.
    pub fn lost(&mut self) {
        self.doubts.losses += 1;
        self.unplaced.clear();
        self.holding.clear();
    }

    /// Returns the processes that have an engine after the last record.
    pub fn holding(&self) -> impl Iterator<Item = u32> {
        self.holding.iter().map(|(pid, _)| *pid)
    }

    /// Ends the slices of a process that has ended by a GPU time, once all records until then were taken in. The driver reports no end of a
    /// context whose channel is gone when it looks. From then on nobody has the engines that the process had.
    pub fn ended(&mut self, pid: u32, by: u64) {
        self.ended_stretches(pid, by, |_| {});
    }

    /// Ends the slices of a process like [`Residence::ended`], and gives each stretch that this ends to `each`.
    pub(super) fn ended_stretches(&mut self, pid: u32, by: u64, mut each: impl FnMut(Stretch)) {
        let next = |all: &BTreeSet<_>| all.range((pid, None)..).next().copied();
        while let Some(held) = next(&self.holding).filter(|held| held.0 == pid) {
            self.holding.remove(&held);
            let engine = self.engines.get_mut(&held.1);
            if let Some(stretch) = engine.and_then(|e| e.ended(by, &mut self.room)) {
                each(stretch);
            }
        }
    }

    /// Returns the lasting stretches, whose ends are not known.
    pub(super) fn lasting(&self) -> impl Iterator<Item = Stretch> {
        let engines = self.engines.iter();
        engines.map(|(instance, engine)| Stretch {
            instance: *instance,
            from: engine.at,
            to: engine.at,
            of: match engine.is_doubted(self.doubts) {
                false => engine.now(),
                true => Of::Unknown,
            },
        })
    }

    /// Returns the sums of each engine at a GPU time. A GPU without any record has no engine: its driver has reported no switch.
    #[must_use]
    pub fn sums(&self, now: u64) -> Vec<EngineSums> {
        let engines = self.engines.values();
        engines
            .map(|e| e.sums(now, self.doubts, self.room))
            .collect()
    }

    /// Begins new sums at a GPU time.
    pub fn restart(&mut self, now: u64) {
        self.began = self.began.max(now);
        for engine in self.engines.values_mut() {
            engine.doubt(self.doubts);
            engine.restart(now);
        }
        (self.doubts_before, self.room) = (self.doubts, MOST_HOLDERS);
    }
}

#[cfg(test)]
mod tests;
