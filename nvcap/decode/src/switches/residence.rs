//! Slices of contexts, and how long each holder had an engine.

use std::collections::{BTreeMap, BTreeSet};

use super::record::{Instance, Switch, Who};

/// Longest time between two slices that counts as a switch. A switch of an H200 takes some 85 us; between contexts of which none has
/// work nobody has the engine.
pub const LONGEST_SWITCH_NS: u64 = 1_000_000;

/// The most holders of a GPU whose sums are kept; who had the engine is not known of what comes beyond.
const MOST_HOLDERS: usize = 1 << 16;

/// Sums of one holder's slices. A holder is a context of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Time for which it had the engine, ns.
    pub resident_ns: u64,
    /// Number of slices, with those that began before the measurement and those that have not ended.
    pub slices: u64,
    /// Its longest slice, ns.
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
    /// The MIG instance, where the GPU is in that mode.
    pub instance: Option<Instance>,
    /// Time that was measured, ns.
    pub ns: u64,
    /// Holders: process and context.
    pub holders: BTreeMap<(Who, u32), Held>,
    /// Number of switches: slices that followed another one within [`LONGEST_SWITCH_NS`].
    pub switches: u64,
    /// Time between the slices of these switches, ns.
    pub switch_ns: u64,
    /// Time in which no context had the engine, ns.
    pub nobody_ns: u64,
    /// Time of which it is not known who had the engine, because records are missing, ns.
    pub unknown_ns: u64,
    /// Slices whose begin or end the driver did not tell although no record is missing.
    pub incomplete: u64,
}

/// State of an engine.
#[derive(Clone, Debug)]
enum State {
    /// Nothing was told yet.
    Begun,
    /// This holder has it since then.
    Held((Who, u32)),
    /// Nobody has it.
    Free,
    /// Records are missing.
    Unknown,
}

/// Holder of an engine in a stretch of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Of {
    /// A context of it.
    Held((Who, u32)),
    /// Nobody, between two contexts that follow each other.
    Switch,
    /// Nobody.
    Nobody,
    /// It is not known who.
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
    /// Number of the GPU's losses that the state knows of.
    losses: u64,
    /// Time up to which the sums go.
    at: u64,
    sums: EngineSums,
}

impl Engine {
    fn new(instance: Option<Instance>, began: u64) -> Self {
        Self {
            state: State::Begun,
            losses: 0,
            at: began,
            sums: EngineSums {
                instance,
                ..EngineSums::default()
            },
        }
    }

    /// Adds a slice of a holder. `room`: number of holders that may still come.
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

    /// Knows of the GPU's losses until now.
    fn lose(&mut self, losses: u64) {
        if self.losses != losses {
            (self.losses, self.state) = (losses, State::Unknown);
        }
    }

    /// A stretch up to a time is over. `room`: as of [`Engine::hold`].
    fn pass(&mut self, to: u64, of: Of, room: &mut usize) -> Stretch {
        let from = self.at;
        // Records of a time before the measurement tell the state at its begin.
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

    /// Takes a begin or an end. Returns the stretch that it ends.
    fn take(&mut self, switch: &Switch, room: &mut usize) -> Stretch {
        let who = (switch.who(), switch.context);
        let begins = switch.tag.begins();
        let passed = switch.time_ns.saturating_sub(self.at);
        let of = match (&self.state, begins) {
            (State::Unknown, _) => Of::Unknown,
            // Whose slice ends first has had the engine since before.
            (State::Begun, false) => Of::Held(who),
            (State::Begun, true) => Of::Nobody,
            (State::Free, true) if passed <= LONGEST_SWITCH_NS => Of::Switch,
            (State::Free, true) => Of::Nobody,
            (State::Held(held), false) if switch.may_end(*held) => Of::Held(*held),
            // An end without a begin; a begin without an end before it, or another one's end.
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

    /// Returns who has the engine since the last record.
    fn now(&self) -> Of {
        match self.state {
            State::Held(who) => Of::Held(who),
            // Without a record nobody is known to have had the engine, nor that nobody had it.
            State::Begun | State::Unknown => Of::Unknown,
            State::Free => Of::Nobody,
        }
    }

    /// The sums at a time: the slice that lasts is counted until then.
    fn sums(&self, now: u64, losses: u64, mut room: usize) -> EngineSums {
        let mut to = self.clone();
        to.lose(losses);
        to.pass(now, to.now(), &mut room);
        to.sums
    }

    /// The process that holds it has ended by a time: its contexts are gone. Returns the stretch that this ends.
    fn ended(&mut self, by: u64, room: &mut usize) -> Option<Stretch> {
        let State::Held(who) = self.state else {
            return None;
        };
        self.state = State::Free;
        Some(self.pass(by, Of::Held(who), room))
    }

    /// Begins new sums at a time; who has the engine stays known.
    fn restart(&mut self, now: u64) {
        let instance = self.sums.instance;
        self.at = self.at.max(now);
        self.sums = EngineSums {
            instance,
            ..EngineSums::default()
        };
    }
}

/// Residence of contexts on a GPU's engines, from its records in their order.
#[derive(Clone, Debug)]
pub struct Residence {
    began: u64,
    /// Number of times that records were missing, of the sums before, too.
    losses: u64,
    /// That number when the sums began: behind a later loss nothing is known of an engine that is told of for the first time.
    losses_before: u64,
    engines: BTreeMap<Option<Instance>, Engine>,
    /// The engines that processes have.
    holding: BTreeSet<(u32, Option<Instance>)>,
    /// Number of holders that may still come.
    room: usize,
}

impl Residence {
    /// The residence from a GPU time on, ns.
    #[must_use]
    pub const fn new(began: u64) -> Self {
        Self {
            began,
            losses: 0,
            losses_before: 0,
            engines: BTreeMap::new(),
            holding: BTreeSet::new(),
            room: MOST_HOLDERS,
        }
    }

    /// Takes the next record.
    pub fn take(&mut self, switch: &Switch) {
        let _ = self.take_stretch(switch);
    }

    /// The same. Returns the stretch of its engine's time that the record ends.
    pub(super) fn take_stretch(&mut self, switch: &Switch) -> Option<Stretch> {
        let instance = switch.instance;
        let engine = { self.engines.entry(instance) }.or_insert_with(|| {
            let mut engine = Engine::new(instance, self.began);
            engine.losses = self.losses_before;
            engine
        });
        if !switch.tag.begins() && !switch.tag.ends() {
            return None;
        }
        engine.lose(self.losses);
        if let State::Held((Who::Process(pid), _)) = engine.state {
            self.holding.remove(&(pid, instance));
        }
        let stretch = engine.take(switch, &mut self.room);
        if let State::Held((Who::Process(pid), _)) = engine.state {
            self.holding.insert((pid, instance));
        }
        Some(stretch)
    }

    /// Records are missing from here on, until the next one: it is not known who had which engine. An engine takes note of that when it is
    /// looked at: a file may tell of many engines and many losses.
    pub fn lost(&mut self) {
        self.losses += 1;
        self.holding.clear();
    }

    /// The processes that have an engine after the last record.
    pub fn holding(&self) -> impl Iterator<Item = u32> {
        self.holding.iter().map(|(pid, _)| *pid)
    }

    /// A process has ended by a GPU time, and all records until then were taken: the driver tells of no end of a context whose channel is
    /// gone when it looks. Nobody has from then on what the process had.
    pub fn ended(&mut self, pid: u32, by: u64) {
        self.ended_stretches(pid, by, |_| {});
    }

    /// The same. Gives the stretches that this ends.
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

    /// Returns the stretches that last: their ends are not known.
    pub(super) fn lasting(&self) -> impl Iterator<Item = Stretch> {
        let engines = self.engines.iter();
        engines.map(|(instance, engine)| Stretch {
            instance: *instance,
            from: engine.at,
            to: engine.at,
            of: match engine.losses == self.losses {
                true => engine.now(),
                false => Of::Unknown,
            },
        })
    }

    /// The sums of each engine at a GPU time. A GPU without any record has none: its driver has told of no switch.
    #[must_use]
    pub fn sums(&self, now: u64) -> Vec<EngineSums> {
        let engines = self.engines.values();
        engines
            .map(|e| e.sums(now, self.losses, self.room))
            .collect()
    }

    /// Begins new sums at a GPU time.
    pub fn restart(&mut self, now: u64) {
        self.began = self.began.max(now);
        for engine in self.engines.values_mut() {
            engine.lose(self.losses);
            engine.restart(now);
        }
        (self.losses_before, self.room) = (self.losses, MOST_HOLDERS);
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::Tag;
    use super::*;

    fn switch(tag: Tag, pid: u32, time_ns: u64) -> Switch {
        Switch {
            tag,
            pid,
            context: pid * 10,
            time_ns,
            ..Switch::default()
        }
    }

    fn of(records: &[(Tag, u32, u64)]) -> Residence {
        let mut residence = Residence::new(1_000);
        for (tag, pid, time) in records {
            residence.take(&switch(*tag, *pid, *time));
        }
        residence
    }

    fn held(sums: &EngineSums, pid: u32) -> Held {
        let context = pid * 10;
        sums.holders
            .get(&(Who::Process(pid), context))
            .copied()
            .unwrap_or_default()
    }

    /// All times of an engine add up to the time that was measured.
    fn adds_up(sums: &EngineSums) {
        let held: u64 = sums.holders.values().map(|h| h.resident_ns).sum();
        let all = held + sums.switch_ns + sums.nobody_ns + sums.unknown_ns;
        assert_eq!(all, sums.ns, "{sums:?}");
    }

    #[test]
    fn slices_switches_and_what_lasts() {
        // Process 1 has it before; 2 has it at the end.
        let residence = of(&[
            (Tag::END, 1, 1_100),
            (Tag::BEGIN, 2, 1_185),
            (Tag::END, 2, 2_000),
            (Tag::BEGIN, 1, 2_085),
            (Tag::END, 1, 3_000),
            (Tag::BEGIN, 2, 3_085),
        ]);
        let [sums] = &residence.sums(4_000)[..] else {
            panic!("one engine");
        };
        adds_up(sums);
        assert_eq!((sums.ns, sums.switches, sums.switch_ns), (3_000, 3, 255));
        let expected = Held {
            resident_ns: 100 + 915,
            slices: 2,
            longest_ns: 915,
        };
        assert_eq!(held(sums, 1), expected);
        assert_eq!(held(sums, 2).resident_ns, 815 + 915);
        assert_eq!(
            (sums.nobody_ns, sums.unknown_ns, sums.incomplete),
            (0, 0, 0)
        );
    }

    #[test]
    fn nobody_has_an_engine_before_the_first_begin_and_in_long_pauses() {
        let long = 1_500 + LONGEST_SWITCH_NS + 1;
        let records = [
            (Tag::BEGIN, 1, 1_400),
            (Tag::END, 1, 1_500),
            (Tag::BEGIN, 1, long),
            (Tag::END, 1, long + 10),
        ];
        let sums = &of(&records).sums(long + 30)[0];
        adds_up(sums);
        assert_eq!((sums.switches, sums.switch_ns), (0, 0));
        assert_eq!(sums.nobody_ns, 400 + LONGEST_SWITCH_NS + 1 + 20);
    }

    #[test]
    fn times_with_missing_records_are_unknown() {
        let mut residence = of(&[(Tag::BEGIN, 1, 1_100)]);
        residence.lost();
        residence.take(&switch(Tag::END, 2, 5_000));
        residence.take(&switch(Tag::BEGIN, 1, 5_085));
        let sums = &residence.sums(6_000)[0];
        adds_up(sums);
        assert_eq!(sums.unknown_ns, 3_900);
        assert_eq!(
            (held(sums, 1).resident_ns, held(sums, 2).resident_ns),
            (915, 0)
        );
        residence.lost();
        assert_eq!(residence.sums(7_000)[0].unknown_ns, 3_900 + 1_915);
    }

    #[test]
    fn an_engine_that_is_first_told_of_behind_a_loss_was_unknown_before() {
        for (tag, known) in [(Tag::END, 0), (Tag::BEGIN, 1_000)] {
            let mut residence = Residence::new(1_000);
            residence.lost();
            residence.take(&switch(tag, 1, 5_000));
            let sums = &residence.sums(6_000)[0];
            adds_up(sums);
            assert_eq!((sums.unknown_ns, held(sums, 1).resident_ns), (4_000, known));
        }
    }

    #[test]
    fn the_end_of_a_process_that_is_gone_is_its_own() {
        let mut gone = switch(Tag::END, 0, 2_000);
        gone.context = 0;
        let mut residence = of(&[(Tag::BEGIN, 1, 1_000)]);
        residence.take(&gone);
        let sums = &residence.sums(2_000)[0];
        adds_up(sums);
        assert_eq!(held(sums, 1).resident_ns, 1_000);
        assert_eq!(sums.incomplete, 0);
    }

    #[test]
    fn the_end_of_a_context_that_another_user_has_is_no_end_of_a_process_slice() {
        let hidden = Switch {
            context: 0x77,
            ..switch(Tag::END, 0, 2_000)
        };
        let mut residence = of(&[(Tag::BEGIN, 1, 1_000)]);
        residence.take(&hidden);
        let sums = &residence.sums(2_000)[0];
        adds_up(sums);
        assert_eq!((held(sums, 1).resident_ns, sums.incomplete), (0, 1));
        assert_eq!(sums.unknown_ns, 1_000);
    }

    #[test]
    fn sums_of_very_many_holders_are_bounded() {
        let mut residence = Residence::new(0);
        for (pid, time) in (1..).zip((0..MOST_HOLDERS as u64 + 3).map(|i| 100 * i)) {
            residence.take(&switch(Tag::BEGIN, pid, time));
            residence.take(&switch(Tag::END, pid, time + 100));
        }
        let now = 100 * (MOST_HOLDERS as u64 + 3);
        let sums = &residence.sums(now)[0];
        adds_up(sums);
        assert_eq!((sums.holders.len(), sums.unknown_ns), (MOST_HOLDERS, 300));
        residence.restart(now);
        residence.take(&switch(Tag::BEGIN, 7, now));
        let sums = &residence.sums(now + 50)[0];
        assert_eq!(held(sums, 7).resident_ns, 50);
    }

    /// As many MIG instances as a file can name, and as many losses and ends as a record can tell: each would be looked at some ten
    /// thousand million times.
    #[test]
    fn losses_and_ends_do_not_look_at_all_engines() {
        let mut residence = Residence::new(0);
        for number in 0..=u16::MAX {
            let instance = Some(Instance {
                gpu: number as u8,
                compute: Some((number >> 8) as u8),
            });
            let begin = switch(Tag::BEGIN, 7, 5);
            residence.take(&Switch { instance, ..begin });
        }
        for pid in 0..1 << 18 {
            residence.ended(1_000 + pid, 10);
        }
        assert_eq!(residence.holding().count(), 1 << 16);
        residence.ended(7, 10);
        for _ in 0..1 << 18 {
            residence.lost();
        }
        let sums = residence.sums(30);
        assert_eq!(sums.len(), 1 << 16);
        let right = |e: &EngineSums| held(e, 7).resident_ns == 5 && e.unknown_ns == 20;
        assert!(sums.iter().all(right));
    }

    #[test]
    fn nobody_has_what_a_process_had_that_has_ended() {
        let mut residence = of(&[(Tag::BEGIN, 1, 1_000)]);
        residence.ended(2, 3_000);
        assert_eq!(residence.holding().collect::<Vec<_>>(), [1]);
        residence.ended(1, 3_000);
        assert_eq!(residence.holding().count(), 0);
        let sums = &residence.sums(9_000)[0];
        adds_up(sums);
        assert_eq!((held(sums, 1).resident_ns, sums.nobody_ns), (2_000, 6_000));
        residence.take(&switch(Tag::BEGIN, 2, 9_000 + LONGEST_SWITCH_NS));
        let sums = &residence.sums(9_000 + LONGEST_SWITCH_NS)[0];
        adds_up(sums);
        assert_eq!((sums.switches, sums.incomplete), (0, 0));
    }

    #[test]
    fn what_does_not_fit_is_counted_and_its_time_unknown() {
        let records = [
            (Tag::BEGIN, 1, 1_000),
            (Tag::BEGIN, 2, 2_000),
            (Tag::END, 3, 3_000),
            (Tag::END, 3, 4_000),
            (Tag(0x55), 9, 4_500),
        ];
        let sums = &of(&records).sums(4_000)[0];
        adds_up(sums);
        assert_eq!((sums.incomplete, sums.unknown_ns), (3, 3_000));
    }

    #[test]
    fn instances_are_engines_of_their_own() {
        let mut residence = Residence::new(0);
        for gpu in [1, 2] {
            let instance = Some(Instance {
                gpu,
                compute: Some(0),
            });
            let begin = switch(Tag::BEGIN, gpu.into(), 0);
            residence.take(&Switch { instance, ..begin });
        }
        let sums = residence.sums(100);
        let all: Vec<_> = sums.iter().map(|s| s.instance.map(|i| i.gpu)).collect();
        assert_eq!(all, [Some(1), Some(2)]);
        for (engine, pid) in sums.iter().zip(1..) {
            adds_up(engine);
            assert_eq!(held(engine, pid).resident_ns, 100);
        }
    }

    #[test]
    fn sums_begin_anew_and_the_holder_stays_known() {
        let mut residence = of(&[(Tag::BEGIN, 1, 1_000)]);
        residence.restart(5_000);
        let sums = &residence.sums(6_000)[0];
        adds_up(sums);
        assert_eq!((sums.ns, held(sums, 1).resident_ns), (1_000, 1_000));
        assert!(Residence::new(0).sums(1_000).is_empty());
    }

    #[test]
    fn times_that_go_back_take_nothing_away() {
        let records = [
            (Tag::BEGIN, 1, 9_000),
            (Tag::END, 1, 3_000),
            (Tag::BEGIN, 1, u64::MAX),
            (Tag::END, 1, 0),
        ];
        adds_up(&of(&records).sums(0)[0]);
    }
}
