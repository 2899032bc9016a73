//! Tests of arming threads that make others meanwhile, on a model of the kernel's breakpoints.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
};

use super::*;

/// Breakpoint of a thread.
#[derive(Clone, Copy, Debug)]
struct Slot {
    /// Event that the breakpoint belongs to.
    event: usize,
    /// Address of the breakpoint; 0 where others set it.
    address: u64,
    /// True if the breakpoint runs the program. One that was inherited before the program was attached does not.
    runs: bool,
}

#[derive(Default)]
struct Thread {
    slots: Vec<Slot>,
    birth: Option<Birth>,
    /// Time from which the thread shows.
    shows: u64,
    /// Time from which the thread's birth is told.
    told: u64,
}

/// A process whose threads make others at any moment.
struct Model {
    /// True if the kernel has lost count of the taken registers, and refuses nothing.
    is_miscounted: bool,
    /// The most breakpoints that a thread had at any time.
    most: usize,
    state: u64,
    clock: u64,
    threads: BTreeMap<u32, Thread>,
    events: usize,
    /// Number of threads that may still be made.
    left: u32,
}

impl Model {
    /// Makes a process of one thread, in which others have set `foreign` breakpoints.
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

    /// Draws a number below `below`.
    fn any(&mut self, below: u64) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 20) % below
    }

    /// Lets some time pass, in which threads may be made.
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

/// An event. It ends in all threads that have it when this value is dropped.
struct Event(Shared, usize);

impl Drop for Event {
    fn drop(&mut self) {
        let mut model = self.0.0.borrow_mut();
        let all = model.threads.values_mut();
        all.for_each(|thread| thread.slots.retain(|slot| slot.event != self.1));
    }
}

impl Shared {
    /// Returns the births, each of which is told by now.
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

/// However many threads come while a process is armed, in any order: at the end each has each address watched, once, if there are registers for
/// all. Breakpoints that others set stay, and where they leave no room, that is reported. No thread ever has more breakpoints than there are
/// registers, with which it could make no further thread, even where the kernel has lost count of them.
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
