//! Channels that the driver has stopped after an error, by the error notifiers in the process's memory.
//!
//! They are read where a channel waits, and at no other reading: a channel that makes progress is not stopped.

use std::collections::BTreeMap;

use super::{channel::State, find::Search, followed::Followed};
use nvcap_process::memory::notifier::{self, Notifier};
use nvcap_process::procfs::mem::ReadMemory;

/// The most notifiers that are read of a process, which can map any number of pages: as many as a runlist has channels.
const MOST: usize = 2048;

/// Places of a process's error notifiers.
#[derive(Debug, Default)]
pub(super) struct Errors {
    pages: Vec<u64>,
    slots: BTreeMap<u64, usize>,
}

impl Errors {
    /// Returns the places that a search found.
    pub(super) fn of(search: &Search) -> Self {
        Self {
            pages: search.notifiers.iter().copied().take(MOST).collect(),
            slots: search.slots.clone(),
        }
    }

    /// Takes note of the channels that are stopped.
    pub(super) fn look(&self, memory: &impl ReadMemory, channels: &mut BTreeMap<u64, Followed>) {
        let waits = |f: &Followed| f.count.state() == State::Waiting;
        if !channels.values().any(waits) {
            for followed in channels.values_mut() {
                followed.stopped = None;
            }
            return;
        }
        let at = self.pages.iter();
        let all: Vec<Notifier> = at.filter_map(|at| notifier::read(memory, *at)).collect();
        let own = self.own(&all, channels);
        let first = all.iter().find_map(Notifier::fault);
        for (followed, own) in channels.values_mut().zip(own) {
            followed.stopped = match own {
                Some(own) => own.fault(),
                // Whose error it is, is not known: what waits may wait for that.
                None => first.filter(|_| waits(followed)),
            };
        }
    }

    /// The notifier of each channel, where the order of the channels tells it.
    fn own(&self, all: &[Notifier], channels: &BTreeMap<u64, Followed>) -> Vec<Option<Notifier>> {
        let slot = |f: &Followed| Some((*self.slots.get(&f.ring)?, None));
        match channels.values().map(slot).collect::<Option<Vec<_>>>() {
            Some(slots) => notifier::pair(all, &slots),
            None => vec![None; channels.len()],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fakes::{Fake, FakeProcess};
    use super::super::tests::Test;
    use super::super::view::View;

    /// A process of two channels, of which the first has work that is not done, at two readings.
    fn with_errors(notify: impl Fn(&Fake)) -> (Test, Fake, View) {
        let mut test = Test::new();
        let memory = test.start(10, FakeProcess::new(1));
        memory.work(0, 1, 5);
        memory.work(1, 1, 7);
        test.round();
        memory.submit(0, 6, 6);
        notify(&memory);
        test.round();
        let view = test.round();
        (test, memory, view)
    }

    fn of(view: &View) -> ([u64; 4], String, u64) {
        let of = view.processes[0].gpus.values().next().unwrap();
        (of.states, of.words(), of.pending)
    }

    #[test]
    fn a_channel_that_the_driver_has_stopped_does_not_wait() {
        let tokens = |m: &Fake, errors: [Option<u32>; 2]| {
            m.notify(0, 0xa, errors[0]);
            m.notify(1, 0xb, errors[1]);
        };
        let (_, _, view) = with_errors(|m| tokens(m, [None, None]));
        assert_eq!(of(&view), ([1, 0, 1, 0], "waiting".into(), 1));
        // Its own error, and that of the channel beside it.
        let (mut test, memory, view) = with_errors(|m| tokens(m, [Some(31), None]));
        assert_eq!(of(&view), ([1, 0, 0, 1], "Xid 31".into(), 1));
        let (_, _, view) = with_errors(|m| tokens(m, [None, Some(13)]));
        assert_eq!(of(&view), ([0, 0, 1, 1], "Xid 13".into(), 1));
        // The removal at a context's end is no error.
        let (_, _, view) = with_errors(|m| tokens(m, [Some(45), None]));
        assert_eq!(of(&view).1, "waiting");
        // Two with one token: whose error it is, is not known.
        let (_, _, view) = with_errors(|m| {
            tokens(m, [None, Some(31)]);
            m.notify(1, 0xa, Some(31));
        });
        assert_eq!(of(&view), ([1, 0, 0, 1], "Xid 31".into(), 1));
        // Another context's channel, which is made in its place, works.
        tokens(&memory, [None, None]);
        memory.done(0, 6);
        assert_eq!(of(&test.round()), ([1, 1, 0, 0], "working".into(), 0));
    }
}
