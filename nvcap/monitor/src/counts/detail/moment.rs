//! Submission that a channel is at, now.
//!
//! A submission's stamp is released half a microsecond before its kernel starts, and the next submission's stamp when that kernel has
//! ended. Between the two stamps the channel is at the kernel, although its number says that the submission is done. Copy engines release
//! the number after the copy.
//!
//! The moment is the time at which the number is read, and with it the words that kernels release at their ends. What is read later tells
//! only what the submission is.

use std::collections::BTreeMap;
use std::io;

use super::super::block::{self, Entries, Newest};
use super::super::decoding::Decoding;
use super::super::delay::SubmissionNumbers;
use super::super::find::{self, Readable};
use super::super::followed::Followed;
use super::submission::{Decoded, Doing, Programs};
use nvcap_decode::decode::event::Operation;
use nvcap_decode::wire::GpuVa;
use nvcap_process::memory::scan;
use nvcap_process::procfs::mem::ReadMemory;

const PAGE: u64 = 4096;
/// Pages of words that are read at a moment.
const MOST_PAGES: usize = 4;

/// GP_PUT and the number of a channel that had no work, and whether that is certain.
pub(super) type Idle = (u32, u32, bool);

/// The pages that have the words of a process's kernels, as of one moment.
#[derive(Debug, Default)]
pub(super) struct Words(BTreeMap<u64, Option<Box<[u8; PAGE as usize]>>>);

impl Words {
    /// Reads all pages again. Forgets them if one cannot be read.
    fn read(&mut self, memory: &impl ReadMemory) {
        for (page, bytes) in &mut self.0 {
            let bytes = bytes.get_or_insert_with(|| Box::new([0; PAGE as usize]));
            if memory.read_bytes(*page, bytes.as_mut_slice()).is_err() {
                self.0.clear();
                return;
            }
        }
    }

    /// Takes words that kernels release: their pages are read from the next moment on.
    fn learn(&mut self, words: &[(GpuVa, u32)], readable: &Readable) {
        for (at, _) in words {
            let page = at.0 & !(PAGE - 1);
            if self.0.len() < MOST_PAGES && readable.holds(page, PAGE) {
                self.0.entry(page).or_default();
            }
        }
    }
}

/// A process's memory, in which the words of kernels are those of the moment.
struct Then<'a, P> {
    words: &'a Words,
    memory: &'a P,
}

impl<P: ReadMemory> ReadMemory for Then<'_, P> {
    fn read_bytes(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
        let page = self.words.0.get(&(at & !(PAGE - 1)));
        let offset = (at % PAGE) as usize;
        let bytes = page.and_then(|p| p.as_ref()?.get(offset..offset + to.len()));
        match bytes {
            Some(bytes) => {
                to.copy_from_slice(bytes);
                Ok(())
            }
            None => self.memory.read_bytes(at, to),
        }
    }
}

/// State of a process and its channel, kept from moment to moment.
pub(super) struct Kept<'a> {
    pub decoding: &'a mut Decoding,
    pub words: &'a mut Words,
    /// GP_PUT and the number when the channel last had no work. As long as they are the same, nothing more need be read.
    pub idle: &'a mut Option<Idle>,
}

/// Work of a channel, and the programs of its kernels.
type Work = (Vec<Doing>, Programs);

/// Findings about a channel at one moment.
pub(super) struct Moment {
    /// Numbers of the newest submissions: done, and submitted; none unless both are certain.
    pub seen: Option<SubmissionNumbers>,
    /// Work that the channel is at; none if it has no work or no proven semaphore, or GP_PUT and the number cannot be read.
    pub at: Option<Work>,
}

/// Finds out what a channel is at.
pub(super) fn now(
    memory: &impl ReadMemory,
    readable: &Readable,
    followed: &Followed,
    kept: Kept<'_>,
) -> Moment {
    let mut seen = None;
    // What is pending there is never done.
    if followed.stopped.is_some() {
        return Moment { seen, at: None };
    }
    let at = look(memory, readable, followed, kept, &mut seen);
    Moment { seen, at }
}

fn look(
    memory: &impl ReadMemory,
    readable: &Readable,
    followed: &Followed,
    kept: Kept<'_>,
    seen: &mut Option<SubmissionNumbers>,
) -> Option<Work> {
    let Kept {
        decoding,
        words,
        idle,
    } = kept;
    let tracking = followed.tracking_address()?;
    let found = followed.found();
    let size = found.entries.max(1);
    // GP_PUT is read first: all entries up to it were submitted before the moment.
    let (_, put) = scan::get_put(memory, found.userd).ok()?;
    let done = find::number(memory, tracking.0)?;
    if let Some((last_put, last_done, is_certain)) = *idle
        && (last_put, last_done) == (put, done)
    {
        *seen = is_certain.then_some(SubmissionNumbers {
            done,
            submitted: done,
        });
        return None;
    }
    words.read(memory);
    let index = (put % size + size - 1) % size;
    let raw = memory.word(found.ring + 8 * u64::from(index)).ok()?;
    let release = find::release_of(memory, readable, raw).filter(|r| r.address == tracking);
    let Some(release) = release else {
        // The memory of the newest entry was used again already.
        return Some(unread());
    };
    let newest = Newest {
        put,
        number: release.payload,
    };
    let pending = newest.number.wrapping_sub(done);
    if pending.cast_signed() < 0 {
        return None;
    }
    if pending >= size {
        return Some(unread());
    }
    let mut submissions = Submissions {
        memory,
        readable,
        followed,
        tracking,
        newest,
        decoding,
    };
    let last = submissions.decoded(done);
    if let Some(last) = &last {
        words.learn(last.ends.words(), readable);
    }
    let then = Then {
        words: &*words,
        memory,
    };
    let last = Last::of(last, &then, readable);
    *seen = last.is_done().map(|is_done| SubmissionNumbers {
        done: done.wrapping_sub(u32::from(!is_done)),
        submitted: newest.number,
    });
    if last.runs == Some(true) {
        return last.kernels.map(at_kernels);
    }
    if pending == 0 {
        *idle = Some((put, done, seen.is_some()));
        return None;
    }
    Some(match submissions.decoded(done.wrapping_add(1)) {
        Some(next) => at_next(&next, last, &then, readable),
        None => last.kernels.map_or_else(unread, at_kernels),
    })
}

/// Submissions of a channel, by their numbers.
struct Submissions<'a, P> {
    memory: &'a P,
    readable: &'a Readable,
    followed: &'a Followed,
    tracking: GpuVa,
    newest: Newest,
    decoding: &'a mut Decoding,
}

impl<P: ReadMemory> Submissions<'_, P> {
    /// The content of a submission; none if it cannot be found, or its memory may have been used again.
    fn decoded(&mut self, number: u32) -> Option<Decoded> {
        let found = self.followed.found();
        let at = (found, self.tracking);
        let Entries {
            position,
            segments,
            is_doubtful,
        } = block::submission(self.memory, self.readable, at, self.newest, number)?;
        let mut decoded = Decoded::default();
        let mut to = |operation: &Operation| decoded.operation(operation);
        let channel = (found, self.followed.gpu);
        self.decoding.decode(channel, position, segments, &mut to);
        (!is_doubtful || decoded.ends.agree()).then_some(decoded)
    }
}

/// The newest submission that is done by its number: its kernels may still run.
struct Last {
    /// True if the submission could be read.
    is_read: bool,
    /// Its content, if it has kernels or replays a graph.
    kernels: Option<Decoded>,
    /// True if its kernels run; none if it has none, or no word that tells it can be read.
    runs: Option<bool>,
}

impl Last {
    fn of(last: Option<Decoded>, then: &impl ReadMemory, readable: &Readable) -> Self {
        let is_read = last.is_some();
        let kernels = last.filter(|l| !l.programs.is_empty() || l.ends.replays());
        Self {
            is_read,
            runs: kernels.as_ref().and_then(|l| l.ends.run(then, readable)),
            kernels,
        }
    }

    /// Tells whether it is done; none if that is not known.
    fn is_done(&self) -> Option<bool> {
        match (&self.kernels, self.runs) {
            (_, Some(runs)) => Some(!runs),
            // Without kernels it is done with its number. Nobody knows of one that cannot be read, or whose kernels' words cannot be.
            (None, None) => self.is_read.then_some(true),
            (Some(_), None) => None,
        }
    }
}

fn unread() -> Work {
    (vec![Doing::Unread], Vec::new())
}

/// The work of a channel that is at the kernels of a submission.
fn at_kernels(submission: Decoded) -> Work {
    let kernels = submission.programs.iter().map(|(p, _)| Doing::Kernel(*p));
    let mut at: Vec<Doing> = kernels.collect();
    if at.is_empty() {
        at.push(Doing::Graph);
    }
    (at, submission.programs)
}

/// The work of a channel that is at the submission after the last one, unless it is still at the kernels of that.
fn at_next(next: &Decoded, last: Last, then: &impl ReadMemory, readable: &Readable) -> Work {
    let open = |(at, payload): &(GpuVa, u64)| {
        find::is_open(then, readable, *at, *payload as u32) == Some(true)
    };
    if next.waits.iter().any(open) {
        return (vec![Doing::Wait], Vec::new());
    }
    if let Some(kernels) = last.kernels {
        // What is between its end and the next one's stamp, a microsecond, counts as its own.
        return at_kernels(kernels);
    }
    let at = match next.copies.is_empty() {
        false => next.copies.iter().map(|path| Doing::Copy(path)).collect(),
        true if last.is_read => vec![Doing::Other],
        // The submission before could not be read: the channel may be at its kernel.
        true => vec![Doing::Unread],
    };
    (at, Vec::new())
}
