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
    /// The kernel has lost count of the registers that are taken, and refuses nothing.
    is_miscounted: bool,
    /// Most breakpoints that a thread had at any time.
    most: usize,
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
                    event: 1 << 40,
                    address: 0,
                    runs: false,
                };
                foreign
            ],
            ..Thread::default()
        };
        Shared(Rc::new(RefCell::new(Model {
            is_miscounted: seed % 2 == 1,
            most: 0,
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
        let mut birth = Birth::default();
        for (word, slot) in birth.breakpoints.iter_mut().zip(&slots) {
            let idle = if slot.runs { 0 } else { Birth::IDLE };
            *word = slot.event as u64 | idle;
        }
        // It inherits, then its birth is noted, then it shows and its birth is told.
        let time_ns = self.clock + 1 + self.any(2_000_000);
        let tid = self.threads.len() as u32 + 1;
        let thread = Thread {
            slots,
            birth: Some(Birth { time_ns, ..birth }),
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

    fn watch(&self, tid: u32, (_, address): (Stops, u64), _: Life) -> io::Result<(u64, Event)> {
        let mut model = self.0.borrow_mut();
        model.passes();
        model.events += 1;
        let event = model.events;
        let is_miscounted = model.is_miscounted;
        let slots = &mut model.threads.get_mut(&tid).unwrap().slots;
        if slots.len() >= REGISTERS && !is_miscounted {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        slots.push(Slot {
            event,
            address,
            runs: false,
        });
        let taken = slots.len();
        model.most = model.most.max(taken);
        model.passes();
        let slots = &mut model.threads.get_mut(&tid).unwrap().slots;
        let its = slots.iter_mut().filter(|slot| slot.event == event);
        its.for_each(|slot| slot.runs = true);
        model.passes();
        Ok((event as u64, Event(self.clone(), event)))
    }

    fn hits(&self, _: &Event) -> u64 {
        0
    }

    fn birth(&self, tid: u32) -> Option<Birth> {
        let mut model = self.0.borrow_mut();
        let told = model.threads[&tid].told;
        model.clock = model.clock.max(told);
        model.threads[&tid].birth
    }

    fn now(&self) -> u64 {
        let mut model = self.0.borrow_mut();
        model.passes();
        model.clock
    }
}

const LIFE: Life = Life {
    children: false,
    until_exec: true,
    from_exec: false,
};

/// However many threads come while a process is armed, in any order: each of them has each address watched at the end, once, where there are
/// registers for all; what is set by others stays, and where it leaves no room, that is said. No thread ever has more than there are registers,
/// which would let it make no other, even where the kernel has lost count of them.
#[test]
fn threads_that_come_meanwhile_lack_nothing() {
    let (mut closed, mut refused, mut shown_late) = (0, 0, 0);
    for seed in 0..12_000 {
        let foreign = seed as usize % 3;
        let model = Model::shared(seed / 3, foreign);
        let mut list: Vec<Armed<Event>> = Vec::new();
        let addresses = 1 + seed / 6 % 5;
        for address in 1..=addresses {
            let at = (Stops::AfterWrite, address);
            match Armed::new(&model, at, LIFE, list.len()) {
                Ok(armed) => list.push(armed),
                Err(e) => assert_eq!(e.raw_os_error(), Some(libc::ENOSPC)),
            }
        }
        // The records of births come later.
        for (tid, birth) in model.born() {
            for armed in &mut list {
                shown_late += usize::from(armed.thread_came((tid, birth), &model).unwrap());
            }
        }
        let whole = list.len() as u64 == addresses && list.iter().all(|a| !a.partial);
        let fits = addresses as usize + foreign <= REGISTERS;
        assert!(whole || !fits, "seed {seed}: there was a register for each");
        refused += usize::from(!whole);
        closed += list.iter().map(|a| a.closed).sum::<usize>();
        let inner = model.0.borrow();
        assert!(
            inner.most <= REGISTERS.max(foreign + list.len()),
            "seed {seed}: {}",
            inner.most
        );
        for (tid, thread) in &inner.threads {
            let has = &thread.slots;
            let others = has.iter().filter(|slot| slot.address == 0).count();
            assert_eq!(others, foreign, "seed {seed}: thread {tid} has {has:?}");
            let running = has.iter().filter(|slot| slot.runs);
            let distinct = BTreeSet::from_iter(running.map(|slot| slot.address));
            assert_eq!(
                distinct.len() + foreign,
                has.len(),
                "seed {seed}: thread {tid} has one twice, or one that runs nothing: {has:?}"
            );
            let lacks = (distinct.len() as u64) < addresses;
            assert!(!whole || !lacks, "seed {seed}: thread {tid} has {has:?}");
        }
        drop(inner);
    }
    let counts = [closed, refused, shown_late];
    assert!(counts.iter().all(|count| *count > 300), "{counts:?}");
}
