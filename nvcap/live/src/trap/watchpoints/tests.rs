//! Arming of threads that make others meanwhile, on a model of the kernel's breakpoints.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
};

use super::*;

/// Breakpoint of a thread.
#[derive(Clone, Copy, Debug)]
struct Slot {
    /// The event that it is of.
    event: usize,
    /// Its address, 0 where others set it.
    address: u64,
    /// It runs the program: none that was inherited before the program was there does.
    runs: bool,
}

#[derive(Default)]
struct Thread {
    slots: Vec<Slot>,
    birth: Option<Birth>,
    /// Time from which it shows.
    shows: u64,
    /// Time from which its birth is told.
    told: u64,
}

/// A process whose threads make others at any moment.
struct Model {
    state: u64,
    clock: u64,
    threads: BTreeMap<u32, Thread>,
    events: usize,
    /// Threads that may still be made.
    left: u32,
}

impl Model {
    /// A process of one thread, which `foreign` breakpoints are set in by others.
    fn shared(seed: u64, foreign: usize) -> Shared {
        let first = Thread {
            slots: vec![
                Slot {
                    event: 0,
                    address: 0,
                    runs: false,
                };
                foreign
            ],
            ..Thread::default()
        };
        Shared(Rc::new(RefCell::new(Model {
            state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            clock: 1 << 30,
            threads: BTreeMap::from([(1, first)]),
            events: 0,
            left: 12,
        })))
    }

    /// A number below `below`.
    fn any(&mut self, below: u64) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 20) % below
    }

    /// Some time passes, in which threads may be made.
    fn passes(&mut self) {
        self.clock += 1 + self.any(300_000);
        if self.left == 0 || self.any(3) > 0 {
            return;
        }
        self.left -= 1;
        let makers = Vec::from_iter(self.threads.iter().filter(|t| t.1.shows <= self.clock));
        let makers = Vec::from_iter(makers.into_iter().map(|t| *t.0));
        let parent = makers[self.any(makers.len() as u64) as usize];
        let slots = self.threads[&parent].slots.clone();
        // It inherits, then its birth is noted, then it shows and its birth is told.
        let time_ns = self.clock + 1 + self.any(2_000_000);
        let tid = self.threads.len() as u32 + 1;
        let thread = Thread {
            slots,
            birth: Some(Birth {
                time_ns,
                parent,
                pad: 0,
            }),
            shows: time_ns - self.any(time_ns - self.clock),
            told: time_ns,
        };
        self.threads.insert(tid, thread);
    }
}

#[derive(Clone)]
struct Shared(Rc<RefCell<Model>>);

/// An event, which ends in all threads that have it when this is dropped.
struct Event(Shared, usize);

impl Drop for Event {
    fn drop(&mut self) {
        let mut model = self.0.0.borrow_mut();
        let all = model.threads.values_mut();
        all.for_each(|thread| thread.slots.retain(|slot| slot.event != self.1));
    }
}

impl Shared {
    /// The births, each of which is told by now.
    fn born(&self) -> Vec<(u32, Birth)> {
        let mut model = self.0.borrow_mut();
        let last = model.threads.values().map(|thread| thread.told).max();
        model.clock = model.clock.max(last.unwrap_or(0));
        model.left = 0;
        let all = model.threads.iter();
        all.filter_map(|(tid, thread)| Some((*tid, thread.birth?)))
            .collect()
    }
}

impl Threads for Shared {
    type Event = Event;

    fn all(&self) -> io::Result<Vec<u32>> {
        let mut model = self.0.borrow_mut();
        model.passes();
        let clock = model.clock;
        let shown = model.threads.iter().filter(|t| t.1.shows <= clock);
        Ok(shown.map(|t| *t.0).collect())
    }

    fn watch(&self, tid: u32, (_, address): (Stops, u64), _: Life) -> io::Result<Event> {
        let mut model = self.0.borrow_mut();
        model.passes();
        model.events += 1;
        let event = model.events;
        let slots = &mut model.threads.get_mut(&tid).unwrap().slots;
        if slots.len() == REGISTERS {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        slots.push(Slot {
            event,
            address,
            runs: false,
        });
        model.passes();
        let slots = &mut model.threads.get_mut(&tid).unwrap().slots;
        let its = slots.iter_mut().filter(|slot| slot.event == event);
        its.for_each(|slot| slot.runs = true);
        model.passes();
        Ok(Event(self.clone(), event))
    }

    fn hits(&self, _: &Event) -> u64 {
        0
    }

    fn birth(&self, tid: u32) -> Option<Birth> {
        let model = self.0.borrow();
        let thread = &model.threads[&tid];
        thread.birth.filter(|_| thread.told <= model.clock)
    }

    fn wait_for_birth(&self) {
        let mut model = self.0.borrow_mut();
        model.clock += BIRTH_IS_TOLD.as_nanos() as u64;
        model.passes();
    }

    fn now(&self) -> u64 {
        let mut model = self.0.borrow_mut();
        model.passes();
        model.clock
    }
}

/// The same when a birth's record is read.
struct Told(Shared, Birth);

impl Threads for Told {
    type Event = Event;

    fn all(&self) -> io::Result<Vec<u32>> {
        self.0.all()
    }

    fn watch(&self, tid: u32, at: (Stops, u64), life: Life) -> io::Result<Event> {
        self.0.watch(tid, at, life)
    }

    fn hits(&self, event: &Event) -> u64 {
        self.0.hits(event)
    }

    fn birth(&self, _: u32) -> Option<Birth> {
        Some(self.1)
    }

    fn wait_for_birth(&self) {}

    fn now(&self) -> u64 {
        self.0.now()
    }
}

const LIFE: Life = Life {
    children: false,
    until_exec: true,
    from_exec: false,
};

/// However many threads come while a process is armed, in any order: each of them has each address watched at the end, where there are registers
/// for all; what is set by others stays, and where it leaves no room, that is said.
#[test]
fn threads_that_come_meanwhile_lack_nothing() {
    let (mut twins, mut refused, mut shown_late) = (0, 0, 0);
    for seed in 0..12_000 {
        let foreign = seed as usize % 3;
        let model = Model::shared(seed, foreign);
        let mut list: Vec<Armed<Event>> = Vec::new();
        let addresses = 1 + seed / 3 % 4;
        for address in 1..=addresses {
            let at = (Stops::AfterWrite, address);
            match Armed::new(&model, at, LIFE, &mut list) {
                Ok(armed) => list.push(armed),
                Err(e) => assert!(is_full(&e)),
            }
        }
        // The records of births come later.
        let born = model.born();
        for (tid, birth) in born {
            let came = all_thread_came(&mut list, tid, &Told(model.clone(), birth));
            shown_late += came.unwrap().len();
        }
        let whole = list.len() as u64 == addresses && list.iter().all(|a| !a.partial);
        let fits = addresses as usize + foreign <= REGISTERS;
        assert!(whole || !fits, "seed {seed}: there was a register for each");
        refused += usize::from(!whole);
        let inner = model.0.borrow();
        for (tid, thread) in &inner.threads {
            let has = &thread.slots;
            let others = has.iter().filter(|slot| slot.address == 0).count();
            assert_eq!(others, foreign, "seed {seed}: thread {tid} has {has:?}");
            let running = has.iter().filter(|slot| slot.runs);
            let distinct = BTreeSet::from_iter(running.map(|slot| slot.address));
            twins += usize::from(distinct.len() + foreign < has.len());
            let lacks = (distinct.len() as u64) < addresses;
            assert!(!whole || !lacks, "seed {seed}: thread {tid} has {has:?}");
        }
        drop(inner);
    }
    let counts = [twins, refused, shown_late];
    assert!(counts.iter().all(|count| *count > 300), "{counts:?}");
}
