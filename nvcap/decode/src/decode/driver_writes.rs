//! Memory that the driver writes inline on its own account: QMDs, and the words that QMDs release. And programs that a profiler
//! puts into QMDs.

use super::{
    event::{InlineContent, Launch},
    shadow::Space,
    view,
};
use crate::wire::hash::NumberSet;

/// The most addresses of a kind that are kept; libcuda takes both from pools and uses them again.
const MOST: usize = 1 << 16;
/// Alignment of a QMD.
const ALIGN: u64 = 256;

/// Addresses of QMDs and of the words that they release.
#[derive(Debug, Default)]
pub(super) struct DriverWrites {
    qmds: NumberSet<(Space, u64)>,
    releases: NumberSet<(Space, u64)>,
    /// Programs that a profiler has put in the place of others.
    stand_ins: NumberSet<(Space, u64)>,
}

impl DriverWrites {
    /// Takes in a QMD of `class` (0 if unknown) that lies at `address`.
    pub(super) fn qmd(&mut self, space: Space, class: u32, address: u64, qmd: &[u8]) {
        if self.qmds.len() >= MOST {
            self.qmds.clear();
        }
        self.qmds.insert((space, address));
        for word in view::releases(class, qmd) {
            if self.releases.len() >= MOST {
                self.releases.clear();
            }
            self.releases.insert((space, word.0));
        }
    }

    /// Takes in a launch: where another kernel of the process was seen to be run through its program, it is known to be a stand-in
    /// for a program that is not known.
    pub(super) fn launch(&mut self, space: Space, launch: &mut Launch) {
        match (launch.stand_in, launch.program) {
            (Some(stand_in), _) => {
                if self.stand_ins.len() >= MOST {
                    self.stand_ins.clear();
                }
                self.stand_ins.insert((space, stand_in.0));
            }
            (None, Some(program)) if self.stand_ins.contains(&(space, program.0)) => {
                launch.stand_in = Some(program);
                launch.kernel = None;
            }
            _ => {}
        }
    }

    /// Content of a write of `bytes` bytes to `dst`, where its address tells it.
    pub(super) fn content(&self, space: Space, dst: u64, bytes: u64) -> Option<InlineContent> {
        if matches!(bytes, 4 | 8 | 16) && self.releases.contains(&(space, dst)) {
            return Some(InlineContent::Semaphore);
        }
        // A QMD has up to 384 bytes.
        let begin = dst & !(ALIGN - 1);
        let known = |at: u64| self.qmds.contains(&(space, at));
        let inside =
            known(begin) || begin.checked_sub(ALIGN).is_some_and(known) && dst - begin < 128;
        (inside && bytes < ALIGN).then_some(InlineContent::QmdPart)
    }

    /// Forgets a process's memory.
    pub(super) fn forget(&mut self, space: Space) {
        self.qmds.retain(|a| a.0 != space);
        self.releases.retain(|a| a.0 != space);
        self.stand_ins.retain(|a| a.0 != space);
    }
}
