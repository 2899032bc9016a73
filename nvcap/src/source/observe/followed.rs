//! A channel among others: which processes have it, when it is looked at next, and how near it came to a loss.

use super::{
    channel::{Follower, Looked},
    discover::{self, Dropped},
};
use crate::ledger::Margin;

/// A channel, and which processes have it.
#[derive(Debug)]
pub struct Followed {
    /// Its ring.
    pub follower: Follower,
    /// The processes that have it; the first is the one that it is read from.
    pub holders: Vec<u32>,
    /// When to look at it, ns.
    pub due: u64,
    /// When something was last found in it, ns.
    pub moved: u64,
    /// The longest time in which nothing came, ns, of late: a long one is forgotten little by little.
    pub pause: u64,
    /// How near it came to a loss.
    pub margin: Margin,
    /// Somebody has it.
    pub live: bool,
}

impl Followed {
    /// Of a process; to be looked at at once.
    pub fn new(follower: Follower, holder: u32) -> Self {
        let margin = Margin {
            channel: follower.announced.id,
            ..Margin::default()
        };
        Self {
            follower,
            holders: vec![holder],
            due: 0,
            moved: 0,
            pause: 0,
            margin,
            live: true,
        }
    }

    /// Takes what a look at `begun` gave.
    pub fn take(&mut self, looked: Looked, begun: u64) {
        if looked.glanced {
            self.margin.glances += 1;
            return;
        }
        self.margin.looks += 1;
        if looked.fresh == 0 {
            return;
        }
        let part = looked.fresh as f64 / f64::from(self.follower.announced.entries.unwrap_or(1));
        self.margin.largest_part = self.margin.largest_part.max(part);
        self.margin.longest_ns = self.margin.longest_ns.max(looked.elapsed);
        if self.moved > 0 {
            self.pause = (begun - self.moved).max(self.pause - self.pause / 16);
        }
        self.moved = begun;
    }

    /// What is to be said when nobody has it any more.
    pub fn dropped(&self, now: u64) -> Dropped {
        let looked = self.follower.looked;
        Dropped {
            hot: self.follower.hot,
            said: self.follower.gone(now),
            looked,
            busy: looked.saturating_sub(self.moved) < discover::quiet(self.pause),
        }
    }

    /// When to look again after a look at `begun`, ns.
    pub fn next(&self, begun: u64) -> u64 {
        let interval = self.follower.interval();
        if self.follower.behind {
            begun
        } else if self.follower.hot && !self.follower.glances() {
            begun + interval
        } else {
            // Together: a glance costs less than that this thread wakes up for it.
            (begun / interval + 1) * interval
        }
    }
}
