//! Result of a look in one number, for scripts: the exit status of `nvcap dump`.

use super::verdict::{Word, verdict};
use super::{Shown, Verdict};

/// Exit status of `nvcap dump`. A status below 10 tells how the look went, one from 10 on tells what was seen. 1 to 3 mean the same as for a trace.
/// docs/hang.md has the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Status {
    /// The GPU has done all that was submitted.
    Idle = 0,
    /// A process could not be looked at, or the answer could not be written.
    Error = 1,
    /// Idle as far as could be read; something could not be read.
    Unread = 3,
    /// The process uses no GPU.
    NoGpu = 4,
    /// Every channel that has work moved between two looks.
    Moving = 10,
    /// There is work that is not done, and it may be slow or stuck: there was one look, or only other channels moved.
    Busy = 11,
    /// The process uses a GPU, but no channel was found that could be read; or, of a trace, how far the GPU was is not known.
    Unknown = 12,
    /// Nothing moved between two looks, and there is work that is not done.
    Hang = 13,
    /// The driver has stopped a channel after an error.
    Stopped = 14,
}

impl Status {
    /// The number that a shell sees.
    #[must_use]
    pub fn code(self) -> u8 {
        self as u8
    }

    /// Returns the worse of two processes' statuses, which is the greater number; but `Error` (1) outweighs all others except `Hang` and `Stopped`: a
    /// script must learn that some process could not be looked at.
    #[must_use]
    pub fn worst(self, other: Self) -> Self {
        let weight = |status| match status {
            Self::Error => (Self::Unknown.code(), 1),
            other => (other.code(), 0),
        };
        if weight(other) > weight(self) {
            other
        } else {
            self
        }
    }
}

impl Verdict {
    /// Returns the verdict as an exit status.
    #[must_use]
    pub fn status(&self) -> Status {
        match self.word {
            Word::Idle => Status::Idle,
            Word::Moving if self.stuck => Status::Busy,
            Word::Moving => Status::Moving,
            Word::Busy => Status::Busy,
            Word::Unknown => Status::Unknown,
            Word::Hang => Status::Hang,
            Word::Error => Status::Stopped,
        }
    }
}

/// The status of a whole look: the status of its worst process.
#[must_use]
pub fn status(shown: &Shown<'_>) -> Status {
    let all = shown.report.processes.iter();
    let worst = all
        .map(|process| verdict(shown, process).status())
        .fold(Status::Idle, Status::worst);
    if worst == Status::Idle && shown.report.is_incomplete() {
        Status::Unread
    } else {
        worst
    }
}

#[cfg(test)]
mod tests {
    use super::Status::{self, *};

    #[test]
    fn the_worst_of_several_counts() {
        let rising = [
            Idle, Unread, NoGpu, Moving, Busy, Unknown, Error, Hang, Stopped,
        ];
        for (i, a) in rising.into_iter().enumerate() {
            for (j, b) in rising.into_iter().enumerate() {
                assert_eq!(Status::worst(a, b), rising[i.max(j)], "{a:?} {b:?}");
            }
        }
    }
}
