//! Moves channels to readers, and back to the session's own thread.

use std::sync::{Arc, atomic::Ordering};

use super::{
    balance::{Measured, Move},
    channel::ReadRing,
    process::now,
    readers::Task,
    session::Session,
};
use nvcap_decode::ledger::ReaderCost;

/// Time between two collections of the readers' findings, ns.
const COLLECT_NS: u64 = 1_000_000;

impl Session {
    /// Takes the findings of the readers. Channels whose rings they could not read come back.
    pub(super) fn collect(&mut self) {
        if self.readers.count() == 0 {
            return;
        }
        let collected = self.readers.collect(&mut self.out);
        self.sums.latest_ns = self.sums.latest_ns.max(collected.latest_ns);
        self.sums.longest_look_ns = self.sums.longest_look_ns.max(collected.longest_look_ns);
        for channel in collected.failed {
            let its = self.followed.iter().position(|f| f.channel.id == channel);
            if let Some(i) = its.filter(|i| self.followed[*i].reader.is_some()) {
                self.take_back(i);
                self.look(i, ReadRing::IfNeeded);
            }
        }
    }

    /// Lets the session's own thread look at a channel from now on.
    pub(super) fn take_back(&mut self, i: usize) {
        let f = &mut self.followed[i];
        let Some(reader) = f.reader.take() else {
            return;
        };
        let mut ring = f.ring.lock();
        ring.reader = None;
        // What the reader found comes before what is found from now on.
        self.readers.empty(reader, &mut self.out);
        drop(ring);
        self.scheduler.follow(f.channel.id);
    }

    /// Lets a reader look at a channel from now on.
    fn lend(&mut self, i: usize, reader: usize) {
        self.take_back(i);
        let f = &self.followed[i];
        let holder = f.holders.first().and_then(|pid| self.watched.get(pid));
        let Some(process) = holder.and_then(|w| w.program.process.clone()) else {
            return;
        };
        if !f.live || reader >= self.readers.count() && !self.readers.start() {
            return;
        }
        let task = Task {
            channel: f.channel.id,
            ring: Arc::clone(&f.ring),
            process,
        };
        self.scheduler.forget(f.channel.id);
        f.ring.came_at.store(now(), Ordering::Relaxed);
        f.ring().reader = Some(reader);
        self.followed[i].reader = Some(reader);
        self.readers.give(reader, task);
    }

    /// Spreads the channels over the threads, by the recent cost of looking at them.
    pub(super) fn spread(&mut self) {
        let now = now();
        if self.most_readers == 0 || !self.balance.is_due(now) {
            return;
        }
        let live = self.followed.iter().filter(|f| f.live);
        let all: Vec<Measured> = live
            .map(|f| Measured {
                channel: f.channel.id,
                reader: f.reader,
                looking_ns: f.ring.looking_ns.load(Ordering::Relaxed),
                came_at: f.ring.came_at.load(Ordering::Relaxed),
            })
            .collect();
        let readers = self.readers.count();
        for Move { channel, to } in self.balance.judge(now, &all, readers, self.most_readers) {
            let its = self.followed.iter().position(|f| f.channel.id == channel);
            let Some(i) = its else { continue };
            log::debug!("channel {}: looked at by {to:?}", channel.0);
            match to {
                Some(reader) => self.lend(i, reader.min(self.readers.count())),
                None => self.take_back(i),
            }
        }
    }

    /// Returns the next time at which this thread has something to do, ns.
    pub(super) fn until_next(&self) -> u64 {
        let next = self.scheduler.next();
        match self.readers.count() {
            0 => next,
            _ => next.min(now() + COLLECT_NS),
        }
    }

    /// Takes all channels back, and ends the readers.
    pub(super) fn end_readers(&mut self) -> Vec<ReaderCost> {
        for i in 0..self.followed.len() {
            self.take_back(i);
        }
        self.collect();
        self.readers.end()
    }
}
