//! Users' data in the words of a submission, and what is put in its place.
//!
//! Hidden are the data words that carry contents to the GPU (inline writes, constants with kernels' arguments, the values of fills), all
//! words of classes and methods that are not known, and what could not be decoded. A QMD is kept, for it is the launch. Each run of words is
//! replaced by numbers that a hash with a secret key makes of it: equal runs stay equal within the recording, and nobody can find data by
//! comparing hashes of guessed values.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};

use nvcap_decode::decode::classes;
use nvcap_decode::decode::event::{Body, Event, InlineContent, MethodWrite, Operation};
use nvcap_decode::record::Submission;

/// The first method address of a bound class. Methods below are the host's, on every subchannel.
const FIRST_OF_CLASS: u16 = 0x100;

/// A data word: entry, byte offset, value.
#[derive(Clone, Copy)]
struct Word {
    entry: u32,
    offset: u32,
    data: u32,
}

impl Word {
    fn is_before(&self, next: Self) -> bool {
        self.entry == next.entry && self.offset + 4 == next.offset
    }
}

/// Collects the words of one submission that are to be hidden.
#[derive(Default)]
pub(super) struct Hidden {
    key: RandomState,
    /// Words of the inline write under way. Only its end tells whether it is a QMD, which is kept.
    run: Vec<Word>,
    runs: Vec<Vec<Word>>,
    /// Entries that were not decoded to their end: index, and byte offset from which on nothing was decoded.
    rests: Vec<(u32, u32)>,
}

/// Content of a method's data word.
enum Carries {
    Nothing,
    /// Users' data.
    Data,
    /// A part of an inline write, which may be a QMD.
    Inline,
}

impl Carries {
    fn of(write: &MethodWrite) -> Self {
        if write.class == 0 {
            return match write.method {
                FIRST_OF_CLASS.. => Self::Data,
                _ => Self::Nothing,
            };
        }
        // What a method of no known name carries is not known, either.
        if write.method >= FIRST_OF_CLASS && classes::method(write.class, write.method).is_none() {
            return Self::Data;
        }
        let name = write.id().to_string();
        if name == "LOAD_INLINE_DATA" {
            return Self::Inline;
        }
        // A QMD is kept.
        match crate::output::redact::carries_data(&name) && !name.contains("QMD") {
            true => Self::Data,
            false => Self::Nothing,
        }
    }
}

impl Hidden {
    pub(super) fn note(&mut self, event: &Event<'_>) {
        match &event.body {
            Body::Method(write) => {
                let word = Word {
                    entry: write.entry,
                    offset: write.offset,
                    data: write.data,
                };
                match Carries::of(write) {
                    Carries::Nothing => {}
                    Carries::Data => self.push(word),
                    Carries::Inline => self.run.push(word),
                }
            }
            Body::Operation(Operation::Inline(inline)) => {
                let mut run = std::mem::take(&mut self.run);
                if inline.content == Some(InlineContent::Qmd) {
                    let words = usize::try_from(inline.bytes.div_ceil(4)).unwrap_or(usize::MAX);
                    run.truncate(run.len().saturating_sub(words));
                }
                self.runs.push(run);
            }
            Body::Stop(stop) => self.rests.push((stop.entry, stop.offset)),
            _ => {}
        }
    }

    /// Adds a word of users' data: to the last run if it directly follows that run's last word, else to a new run.
    fn push(&mut self, word: Word) {
        let last = self.runs.last_mut();
        match last.and_then(|run| run.last().is_some_and(|l| l.is_before(word)).then_some(run)) {
            Some(run) => run.push(word),
            None => self.runs.push(vec![word]),
        }
    }

    /// Replaces everything in `submission` that was collected from its events, and forgets it.
    pub(super) fn hide(&mut self, submission: &mut Submission) {
        self.runs.push(std::mem::take(&mut self.run));
        for run in std::mem::take(&mut self.runs) {
            let mut hasher = self.key.build_hasher();
            run.iter().for_each(|w| hasher.write_u32(w.data));
            let mut stream = hasher.finish();
            for word in run {
                let segment = submission.segments.get_mut(word.entry as usize);
                let at = word.offset as usize;
                let place = segment.and_then(|s| s.bytes.get_mut(at..at + 4));
                if let Some(place) = place.and_then(|p| <&mut [u8; 4]>::try_from(p).ok()) {
                    replace(place, word.data, next(&mut stream));
                }
            }
        }
        for (entry, offset) in std::mem::take(&mut self.rests) {
            let Some(segment) = submission.segments.get_mut(entry as usize) else {
                continue;
            };
            if let Some(rest) = segment.bytes.get_mut(offset as usize..) {
                let mut hasher = self.key.build_hasher();
                hasher.write(rest);
                let mut stream = hasher.finish();
                rest.iter_mut().for_each(|b| *b = next(&mut stream) as u8);
            }
        }
    }
}

/// Replaces a data word by `hidden`. If the word at `place` is not the data word, it is a header with immediate data: then only the
/// header's 13 bits of data are replaced.
fn replace(place: &mut [u8; 4], data: u32, hidden: u32) {
    const IMMEDIATE: u32 = 0x1fff << 16;
    let word = u32::from_le_bytes(*place);
    let word = match word == data {
        true => hidden,
        false => word & !IMMEDIATE | hidden & IMMEDIATE,
    };
    *place = word.to_le_bytes();
}

/// The next of a stream of numbers (SplitMix64).
fn next(state: &mut u64) -> u32 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ z >> 31) >> 32) as u32
}
