//! Python frames of a thread.

use super::Python;
use super::offsets::NONE;
use crate::procfs::mem::ReadMemory;

/// The most frames of a thread that are read.
pub(crate) const MOST_FRAMES: usize = 1024;
/// The most steps of a walk. The interpreter may have one frame of its own between any two of the program's.
const MOST_STEPS: usize = 2 * MOST_FRAMES;
/// The most times that a thread is walked.
const MOST_WALKS: usize = 10;
/// Number of walks in a row that must agree. A thread that repeatedly calls the same functions puts their frames at the same places, so two
/// walks over a mixture of old and new frames can be equal. This was seen once in 10,000 looks at a loop of empty functions, with CPython
/// 3.11. (A walk takes some microseconds, a call of an empty function 50 ns.)
const AGREEING: usize = 4;
/// Number of bytes of a frame that are read at once: enough for every field.
const FRAME_BYTES: usize = 128;
/// Tag bits of pointers in frames.
const TAG: u64 = 7;

/// A frame of a Python function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Address of the frame's code object.
    pub code: u64,
    /// Instruction, in the frame's form: an address; in 3.10 an index.
    pub instruction: u64,
}

/// The frames of a thread, the newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frames {
    /// The frames.
    pub frames: Vec<Frame>,
    /// True if newer frames are missing, because the thread ran too fast for them to be read.
    pub newest_missing: bool,
    /// True if older frames are missing: they could not be read, or there are too many.
    pub oldest_missing: bool,
}

/// One walk.
#[derive(Clone, Debug, Default)]
struct Walk {
    /// Address of each frame, and the frame; the newest first.
    frames: Vec<(u64, Frame)>,
    /// True if the walk reached the oldest frame.
    ended: bool,
}

impl Python {
    /// Returns the frames of a thread state. A running thread's frames change, so they are walked several times. The frames that `AGREEING`
    /// walks in a row have in common are accepted.
    pub fn frames<M: ReadMemory + ?Sized>(&self, memory: &M, state: u64) -> Frames {
        let mut walks: Vec<Walk> = Vec::new();
        while walks.len() < MOST_WALKS {
            walks.push(self.walk(memory, state));
            let agreeing = walks.last_chunk::<AGREEING>();
            if let Some([first, others @ ..]) = agreeing
                && others.iter().all(|w| w.is_like(first))
            {
                break;
            }
        }
        let from = walks.len().saturating_sub(AGREEING);
        common(walks.get(from..).unwrap_or_default())
    }

    fn walk<M: ReadMemory + ?Sized>(&self, memory: &M, state: u64) -> Walk {
        let mut walk = Walk::default();
        let o = &self.offsets.walk;
        let word = |at: u64, offset: u32| memory.word(at.checked_add(offset.into())?).ok();
        let mut at = word(state, o.state_frame);
        if o.cframe_frame != NONE {
            at = at
                .filter(|frame| *frame != 0)
                .and_then(|cframe| word(cframe, o.cframe_frame));
        }
        for _ in 0..MOST_STEPS {
            let Some(frame) = at else {
                return walk;
            };
            if frame == 0 {
                walk.ended = true;
                return walk;
            }
            if walk.frames.len() == MOST_FRAMES {
                return walk;
            }
            let Some((found, previous)) = self.frame(memory, frame) else {
                return walk;
            };
            if let Some(found) = found {
                walk.frames.push((frame, found));
            }
            at = Some(previous);
        }
        walk
    }

    /// Returns the frame at an address, and the address of its caller's frame. `None` at the end of the chain; no frame for one of the
    /// interpreter's own.
    fn frame<M: ReadMemory + ?Sized>(&self, memory: &M, at: u64) -> Option<(Option<Frame>, u64)> {
        let o = &self.offsets.walk;
        let mut bytes = [0; FRAME_BYTES];
        memory.read_bytes(at, &mut bytes).ok()?;
        let word = |offset: u32| {
            let (word, _) = bytes.get(offset as usize..)?.split_first_chunk::<8>()?;
            Some(u64::from_le_bytes(*word))
        };
        let previous = word(o.previous)?;
        if o.owner != NONE && u32::from(*bytes.get(o.owner as usize)?) >= o.first_inner_owner {
            return Some((None, previous));
        }
        let code = word(o.code)? & !TAG;
        if !self.is_code(memory, code) {
            return None;
        }
        let instruction = word(o.instruction)?;
        let instruction = if o.instruction_bytes == 4 {
            u64::from(instruction as u32)
        } else {
            instruction
        };
        Some((Some(Frame { code, instruction }), previous))
    }
}

impl Walk {
    /// Tells whether two walks found the same frames. The newest frame's instruction may differ. The instructions of its callers cannot
    /// differ, because the callers wait for the functions that they called.
    fn is_like(&self, other: &Self) -> bool {
        let newest = |w: &Self| w.frames.first().map(|(at, frame)| (*at, frame.code));
        self.ended == other.ended
            && newest(self) == newest(other)
            && self.frames.get(1..) == other.frames.get(1..)
    }
}

/// Returns the frames that walks have in common, from the oldest on; none if the walks differ and one of them did not reach the oldest
/// frame.
fn common(walks: &[Walk]) -> Frames {
    let Some((last, others)) = walks.split_last() else {
        return Frames::default();
    };
    let frames = |from: usize| {
        let frames = last.frames.get(from..).unwrap_or_default();
        frames.iter().map(|(_, frame)| *frame).collect()
    };
    if others.iter().all(|w| w.is_like(last)) {
        return Frames {
            frames: frames(0),
            newest_missing: false,
            oldest_missing: !last.ended,
        };
    }
    if walks.iter().any(|w| !w.ended) {
        return Frames {
            frames: Vec::new(),
            newest_missing: true,
            oldest_missing: true,
        };
    }
    let same = |other: &Walk| {
        let pairs = last.frames.iter().rev().zip(other.frames.iter().rev());
        pairs.take_while(|(a, b)| a == b).count()
    };
    let same = others.iter().map(same).min().unwrap_or(0);
    Frames {
        frames: frames(last.frames.len() - same),
        newest_missing: true,
        oldest_missing: false,
    }
}
