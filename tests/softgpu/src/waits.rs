//! A program in step goes on only so far as those who trace it have read, so that how fast either of them is decides nothing.

use std::process::exit;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use nvcap_process::in_step::{GUARD, Kind};

use crate::clock::monotonic;
use crate::in_step::{InStep, Next};
use crate::layout::{Channel, ENTRIES, PUSHBUFFER};
use crate::memory::Memory;
use crate::plan::{Cursor, Submission};
use crate::say::say;

/// Submissions made before anybody told of their channels.
static UNTOLD: AtomicU64 = AtomicU64::new(0);
/// Submissions made since, by this process.
static IN_STEP: AtomicU64 = AtomicU64::new(0);
/// Time at which somebody last told of the channel that was about to be submitted to, ns; 0 before the first submission.
static TOLD_AT: AtomicU64 = AtomicU64::new(0);
/// All traces of this process have ended: channels of which nobody has told are not waited for.
static DESERTED: AtomicBool = AtomicBool::new(false);
/// The pause after a submission that nobody has told of, at first.
const PAUSE: Duration = Duration::from_micros(100);
/// Number of such submissions after which the pause doubles.
const DOUBLES: u64 = 500;

impl InStep {
    /// Returns the action that is due before this submission, for which the channel is locked.
    pub fn next(
        &self,
        memory: &Memory,
        channel: Channel,
        before: Cursor,
        next: &Submission,
    ) -> Next {
        let now = monotonic();
        let _ = TOLD_AT.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
        let ahead = |read| unread(before.position, read);
        let told = self
            .table
            .told(&memory.pids(), Kind::Ring, channel.ring(), ahead);
        let ahead = match told {
            Some(told) => told.ahead,
            None if self.options.follow => return self.slowly(now),
            None if DESERTED.load(Ordering::Relaxed) => return Next::Go,
            None => before.position,
        };
        if told.is_some() {
            TOLD_AT.store(now, Ordering::Relaxed);
        }
        let entries = next.entries.len() as u64;
        let most = self.options.window.min(u64::from(ENTRIES) - 1 - entries);
        if ahead > most {
            return Next::Wait(most);
        }
        // Whoever reads takes care of memory that may be used again while it reads: half of it is left alone.
        let moved = moves(channel, before.offset, next);
        if ahead > 0 && memory.unread_bytes(channel) + moved > PUSHBUFFER / 2 {
            return Next::Wait(0);
        }
        if ahead == 0 {
            memory.all_read(channel);
        }
        memory.moved_by(channel, moved);
        Next::Go
    }

    /// Answer while nobody has told of the channel and nobody may have come: whoever comes, however late, finds the program at work, and not further
    /// on than it was when he came.
    fn slowly(&self, now: u64) -> Next {
        if now.saturating_sub(TOLD_AT.load(Ordering::Relaxed)) > GUARD.as_nanos() as u64 {
            give_up(format_args!(
                "after {} s nobody has told of a channel",
                GUARD.as_secs()
            ));
        }
        let untold = UNTOLD.fetch_add(1, Ordering::Relaxed);
        let pause = PAUSE * (1 << (untold / DOUBLES).min(16));
        Next::Slowly(pause.min(GUARD))
    }

    /// Waits until at most `most` of a channel's entries are unread. The channel is not locked: others go on.
    pub fn wait(&self, memory: &Memory, channel: Channel, most: u64) {
        let ahead = |read| unread(memory.position(channel), read);
        self.wait_for(memory, channel, most, ahead);
    }

    /// Waits until all that was submitted by now has been read, of channels that were submitted to since [`Memory::trace_from_here`].
    pub fn drain(&self, memory: &Memory, channels: &[Channel]) {
        for channel in channels {
            let position = memory.position(*channel);
            if position == memory.traced_from(*channel) {
                continue;
            }
            let ahead = |read| {
                let now = memory.position(*channel);
                position.saturating_sub(now - unread(now, read))
            };
            self.wait_for(memory, *channel, 0, ahead);
        }
    }

    fn wait_for(&self, memory: &Memory, channel: Channel, most: u64, ahead: impl Fn(u64) -> u64) {
        let (pids, unknown) = (memory.pids(), !self.options.follow);
        let waited = self
            .table
            .wait(&pids, Kind::Ring, channel.ring(), most, unknown, ahead);
        if let Err(e) = waited {
            give_up(format_args!("channel {:#x}: {e}", channel.token()));
        }
        let told = self.table.told(&pids, Kind::Ring, channel.ring(), |_| 0);
        if unknown && told.is_none() {
            DESERTED.store(true, Ordering::Relaxed);
        }
    }

    /// Counts a submission that was made, and says so where a test asked for it.
    pub fn made(&self, memory: &Memory, channels: &[Channel]) {
        let made = IN_STEP.fetch_add(1, Ordering::Relaxed) + 1;
        if self.options.say == Some(made) {
            self.drain(memory, channels);
            say(&format!("read {made}"));
        }
    }
}

/// Counts the entries between what was read and a position.
fn unread(position: u64, read: u64) -> u64 {
    position.wrapping_sub(read) & u64::from(ENTRIES - 1)
}

/// Returns how far a submission moves on in a channel's pushbuffer memory, bytes, with what is left out at its end.
fn moves(channel: Channel, mut offset: u64, next: &Submission) -> u64 {
    let mut moved = 0;
    for entry in &next.entries {
        let len = entry.bytes.len() as u64;
        if let Some((at, _)) = nvcap_decode::wire::entry::segment_of(entry.raw, 0) {
            let from = at.0 - channel.pushbuffer();
            moved += len;
            if from < offset {
                moved += PUSHBUFFER - offset;
            }
            offset = from + len;
        }
    }
    moved
}

/// The guard against hanging ends the program.
fn give_up(why: std::fmt::Arguments<'_>) -> ! {
    eprintln!("softgpu: {why}");
    exit(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;
    use crate::stream::Shape;

    #[test]
    fn what_is_left_out_at_the_end_of_memory_counts_as_used() {
        let plan = Plan {
            shape: Shape {
                seed: 5,
                image: 0,
                burst: 1,
                big_one_in: 1,
                launches_only: false,
                kernels: false,
                module_every: 0,
                rounds: None,
                timed: None,
                code: false,
            },
            channels: Channel::first(1, 1),
            submissions: 9,
        };
        let channel = plan.channels[0];
        let (mut offset, mut sum) = (0, 0);
        for s in plan.stream(0) {
            sum += moves(channel, offset, &s);
            let last = s.entries.last().expect("one entry");
            let (at, _) = nvcap_decode::wire::entry::segment_of(last.raw, 0).expect("a segment");
            offset = at.0 - channel.pushbuffer() + last.bytes.len() as u64;
        }
        // Where it is by now, and whole rounds.
        assert!(sum > 2 * PUSHBUFFER);
        assert_eq!(sum % PUSHBUFFER, offset);
    }

    #[test]
    fn unread_entries_are_counted_round_the_ring() {
        assert_eq!(unread(10, 4), 6);
        assert_eq!(unread(2050, 1023), 3);
        assert_eq!(unread(5000, 5000 % 1024), 0);
    }
}
