//! Channels that release semaphores, by which a wait for another channel is told from one for the channel itself.

use nvcap_decode::decode::event::{Body, Context, Event, Operation, SemaphoreAction};
use nvcap_decode::record::ChannelId;
use nvcap_decode::wire::GpuVa;
use nvcap_decode::wire::hash::NumberMap;

/// Most semaphores that are remembered. When there are more, all are forgotten and learnt anew.
const MOST: usize = 1 << 16;

/// The channel that last released each semaphore, by process and address.
#[derive(Debug, Default)]
pub(crate) struct Releases(NumberMap<(u32, GpuVa), ChannelId>);

impl Releases {
    /// Takes note of what an event that is not shown releases.
    pub(crate) fn passed_over(&mut self, event: &Event<'_>) {
        if let Body::Operation(op) = &event.body {
            self.note(event.context, op);
        }
    }

    /// Takes note of what `op` releases.
    pub(crate) fn note(&mut self, c: &Context, op: &Operation) {
        match op {
            Operation::Semaphore(s)
                if matches!(
                    s.action,
                    SemaphoreAction::Release | SemaphoreAction::Reduction
                ) =>
            {
                self.put(c, s.address);
            }
            Operation::Copy(copy) => {
                if let Some(s) = &copy.semaphore {
                    self.put(c, s.address);
                }
            }
            Operation::Launch(l) => {
                for release in &l.releases {
                    self.put(c, release.address);
                }
            }
            _ => {}
        }
    }

    fn put(&mut self, c: &Context, address: GpuVa) {
        if self.0.len() >= MOST {
            self.0.clear();
        }
        self.0.insert((c.at.pid, address), c.channel);
    }

    /// The channel that last released the semaphore at this address of the context's process; `None` if no release was seen.
    pub(crate) fn channel(&self, c: &Context, address: GpuVa) -> Option<ChannelId> {
        self.of(c.at.pid, address)
    }

    /// Returns the channel that last released the semaphore at this address of a process.
    pub(crate) fn of(&self, pid: u32, address: GpuVa) -> Option<ChannelId> {
        self.0.get(&(pid, address)).copied()
    }
}
