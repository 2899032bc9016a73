//! Waits for semaphores, and the arrows from the releases that ended them.

use super::Perfetto;
use super::operation;
use super::packets::{Said, Value};
use super::semaphores::Released;
use crate::output::gpu_time::when::When;
use nvcap_decode::decode::event::{Context, Operation, Semaphore};
use nvcap_decode::record::ChannelId;

impl Perfetto {
    /// Draws a wait for a semaphore, and the arrow from the release that ended it.
    pub(super) fn wait(
        &mut self,
        c: &Context,
        entry: u32,
        (op, semaphore): (&Operation, &Semaphore),
        waits_for: Option<ChannelId>,
        when: When,
    ) {
        let described = operation::describe(op, waits_for, None);
        let mut said = Said {
            name: &described.name,
            category: described.category,
            notes: described.notes,
            ..Said::default()
        };
        said.notes.extend(self.notes(c));
        let waited = when
            .wait
            .filter(|(_, _, w)| w.semaphore == semaphore.address)
            .map(|(begin, end, _)| (begin, end));
        let timed = waited.map(|w| w.1).or(when.begin);
        let release = self.semaphores.release(c.at.pid, semaphore).copied();
        let release = release.filter(|r| r.channel != c.channel);
        // Where its time is known a wait ends no earlier than the release was made; else that is the earliest that it can end.
        let time = timed.unwrap_or_else(|| {
            let released = release.map_or(0, |r| r.time);
            self.time(c).max(released)
        });
        if let Some((begin, _)) = waited {
            said.to = Vec::from_iter(self.arrow_to(c.serial, begin));
            said.notes
                .push(("waited_ns", Value::Number(time.saturating_sub(begin))));
            let track = self.draw(c, (begin, time), said);
            if let Some(release) = release {
                let flow = self.release(release, semaphore, time);
                let acquired = Said {
                    name: "acquired",
                    category: "wait",
                    to: vec![flow],
                    ..Said::default()
                };
                self.instant(track, time, &acquired);
            }
            return;
        }
        said.to = Vec::from_iter(self.arrow_to(c.serial, time));
        if let Some(release) = release {
            said.to.push(self.release(release, semaphore, time));
        }
        let track = self.beside(c, entry, when);
        self.instant(track, time, &said);
    }

    /// Writes a release that ended a wait at `until`, and begins an arrow there.
    fn release(&mut self, release: Released, semaphore: &Semaphore, until: u64) -> u64 {
        let flow = self.next_flow();
        let said = Said {
            name: "release",
            category: "semaphore",
            notes: vec![
                ("semaphore", Value::Address(semaphore.address.0)),
                ("payload", Value::Number(release.payload)),
            ],
            from: Some(flow),
            to: Vec::new(),
        };
        self.instant(release.track, release.time.min(until), &said);
        flow
    }
}
