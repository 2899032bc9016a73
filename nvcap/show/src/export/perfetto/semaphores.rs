//! Releases that waits were for.

use std::collections::{HashMap, VecDeque};

use super::tracks::Track;
use nvcap_decode::decode::event::{Operation, Semaphore, SemaphoreAction};
use nvcap_decode::record::ChannelId;
use nvcap_decode::wire::GpuVa;

/// The most semaphores that are remembered. When there are more, all are forgotten and learnt anew.
const MOST: usize = 1 << 16;
/// Number of releases of one semaphore that are remembered.
const REMEMBERED: usize = 16;

/// A release that was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Released {
    pub channel: ChannelId,
    /// The track that shows it.
    pub track: Track,
    /// Time of the release, ns.
    pub time: u64,
    /// The number that it wrote.
    pub payload: u64,
}

/// The last releases of each semaphore, by process and address.
#[derive(Debug, Default)]
pub(super) struct Semaphores(HashMap<(u32, GpuVa), VecDeque<Released>>);

impl Semaphores {
    pub(super) fn put(&mut self, pid: u32, address: GpuVa, released: Released) {
        if self.0.len() >= MOST {
            self.0.clear();
        }
        let all = self.0.entry((pid, address)).or_default();
        if all.len() >= REMEMBERED {
            all.pop_front();
        }
        all.push_back(released);
    }

    /// The first release, as far as is remembered, that ends this wait.
    pub(super) fn release(&self, pid: u32, wait: &Semaphore) -> Option<&Released> {
        let all = self.0.get(&(pid, wait.address))?;
        all.iter().find(|r| ends(wait, r.payload))
    }
}

/// Tells whether a semaphore with this value ends a wait. Values wrap: a value up to half the range ahead is greater.
fn ends(wait: &Semaphore, value: u64) -> bool {
    let (value, payload) = match wait.wide {
        true => (value, wait.payload),
        false => (value & 0xffff_ffff, wait.payload & 0xffff_ffff),
    };
    match wait.action {
        SemaphoreAction::AcquireEqual => value == payload,
        SemaphoreAction::AcquireGreaterEqual if wait.wide => {
            value.wrapping_sub(payload) <= u64::MAX / 2
        }
        SemaphoreAction::AcquireGreaterEqual => {
            (value as u32).wrapping_sub(payload as u32) <= u32::MAX / 2
        }
        SemaphoreAction::AcquireAnd => value & payload != 0,
        SemaphoreAction::AcquireNor => {
            let all = if wait.wide { u64::MAX } else { 0xffff_ffff };
            !(value | payload) & all != 0
        }
        SemaphoreAction::Release | SemaphoreAction::Reduction | SemaphoreAction::Other(_) => false,
    }
}

/// Returns the semaphore that an operation waits for; none if the operation is no wait.
pub(super) fn wait(op: &Operation) -> Option<&Semaphore> {
    match op {
        Operation::Semaphore(s) if is_wait(s.action) => Some(s),
        _ => None,
    }
}

fn is_wait(action: SemaphoreAction) -> bool {
    crate::output::text::is_wait(action)
}

/// Gives the releases of an operation: addresses and numbers. The number of a reduction is not known.
pub(super) fn releases(op: &Operation, each: &mut dyn FnMut(GpuVa, u64)) {
    match op {
        Operation::Semaphore(s) if s.action == SemaphoreAction::Release => {
            each(s.address, s.payload);
        }
        Operation::Copy(copy) => {
            if let Some(s) = &copy.semaphore {
                each(s.address, s.payload);
            }
        }
        Operation::Launch(l) => {
            for r in &l.releases {
                each(r.address, r.payload);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvcap_decode::decode::event::SemaphoreUnit;

    fn acquire(action: SemaphoreAction, payload: u64, wide: bool) -> Semaphore {
        Semaphore {
            unit: SemaphoreUnit::Host,
            action,
            address: GpuVa(0x1000),
            payload,
            wide,
            timestamp: false,
            reduction: None,
            wait_for_idle: false,
            execute: 0,
        }
    }

    #[test]
    fn the_first_release_that_is_enough_ends_a_wait() {
        let mut all = Semaphores::default();
        let put = |all: &mut Semaphores, payload| {
            all.put(
                7,
                GpuVa(0x1000),
                Released {
                    channel: ChannelId(1),
                    track: Track::Trace,
                    time: payload * 10,
                    payload,
                },
            );
        };
        for payload in 1..=40 {
            put(&mut all, payload);
        }
        let of = |action, payload| {
            let wait = acquire(action, payload, false);
            all.release(7, &wait).map(|r| r.payload)
        };
        assert_eq!(of(SemaphoreAction::AcquireGreaterEqual, 38), Some(38));
        assert_eq!(of(SemaphoreAction::AcquireGreaterEqual, 41), None);
        // The one that ended it is forgotten: the first that is known.
        assert_eq!(of(SemaphoreAction::AcquireGreaterEqual, 3), Some(25));
        assert_eq!(of(SemaphoreAction::AcquireEqual, 30), Some(30));
        assert_eq!(of(SemaphoreAction::AcquireEqual, 3), None);
        assert_eq!(of(SemaphoreAction::AcquireAnd, 32), Some(32));
        assert_eq!(of(SemaphoreAction::Release, 30), None);
        let other = acquire(SemaphoreAction::AcquireEqual, 30, false);
        assert_eq!(all.release(8, &other), None);
    }

    #[test]
    fn values_wrap() {
        let narrow = acquire(SemaphoreAction::AcquireGreaterEqual, 0xffff_fffe, false);
        assert!(ends(&narrow, 1) && !ends(&narrow, 0xffff_fffd));
        let wide = acquire(SemaphoreAction::AcquireGreaterEqual, 0xffff_fffe, true);
        assert!(!ends(&wide, 1) && ends(&wide, 0x1_0000_0000));
        let nor = acquire(SemaphoreAction::AcquireNor, 0xffff_ff00, false);
        assert!(ends(&nor, 0xf) && !ends(&nor, 0xff));
    }
}
