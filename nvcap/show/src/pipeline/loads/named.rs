//! Names of functions in code that was loaded.

use std::collections::BTreeMap;
use std::ops::Range;

use nvcap_decode::record::{Kernel, Variable};

/// The most pieces of code that are remembered of a process.
const MOST: usize = 1 << 12;
/// The most names that are kept of a process, functions and variables each, and the longest.
const MOST_NAMES: usize = 1 << 12;
const LONGEST_NAME: usize = 1 << 10;

/// Code as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Written {
    /// Memory that it was written to.
    pub(super) at: Range<u64>,
    /// Hash of its bytes; none where they are not in the stream.
    pub(super) hash: Option<u64>,
}

#[derive(Debug)]
struct Code {
    written: Written,
    /// Functions with names, by address.
    names: BTreeMap<u64, Kernel>,
}

/// Names by the code's beginning. They hold until other code is written there.
#[derive(Debug, Default)]
pub(super) struct Named {
    codes: BTreeMap<u64, Code>,
    names: usize,
    /// Variables of all kernels.
    variables: usize,
    /// Kernels by the times of their launches, which may be ahead: a recording's names come first.
    coming: BTreeMap<(u64, u64), Kernel>,
}

impl Named {
    /// Takes code that is written. Names hold on where the same code was there before.
    pub(super) fn write(&mut self, written: Written) {
        let before = self.codes.get(&written.at.start);
        if before.is_some_and(|b| b.written == written && written.hash.is_some()) {
            return;
        }
        if self.codes.len() >= MOST {
            *self = Self::default();
        }
        let (start, end) = (written.at.start, written.at.end);
        let first = { self.codes.range(..start).next_back() }
            .filter(|(_, code)| code.written.at.end > start)
            .map_or(start, |(first, _)| *first);
        let over: Vec<u64> = self
            .codes
            .range(first..end.max(start))
            .map(|c| *c.0)
            .collect();
        for gone in over.into_iter().filter_map(|at| self.codes.remove(&at)) {
            self.names -= gone.names.len();
            let variables = gone.names.values().map(|k| k.variables.len());
            self.variables -= variables.sum::<usize>();
        }
        let names = BTreeMap::new();
        self.codes.insert(start, Code { written, names });
    }

    /// Takes a function's name, which is that of the code that lies there at the kernel's time.
    pub(super) fn take(&mut self, kernel: &Kernel) {
        if self.coming.len() < MOST_NAMES && kernel.name.len() <= LONGEST_NAME {
            let at = (kernel.at.time_ns, kernel.program.0);
            let mut kernel = kernel.clone();
            let is_short = |v: &Variable| v.name.len() <= LONGEST_NAME;
            let room = MOST_NAMES.saturating_sub(self.variables);
            if kernel.variables.len() > room || !kernel.variables.iter().all(is_short) {
                kernel.variables.clear();
            }
            self.variables += kernel.variables.len();
            if let Some(before) = self.coming.insert(at, kernel) {
                self.variables -= before.variables.len();
            }
        }
    }

    /// Forgets all names, not which code lies where.
    pub(super) fn forget(&mut self) {
        self.codes.values_mut().for_each(|code| code.names.clear());
        self.coming.clear();
        (self.names, self.variables) = (0, 0);
    }

    /// Gives code the names whose times have come, by the time of the records.
    pub(super) fn until(&mut self, time: u64) {
        while let Some(first) = self.coming.first_entry().filter(|e| e.key().0 <= time) {
            let kernel = first.remove();
            self.name(kernel);
        }
    }

    fn name(&mut self, kernel: Kernel) {
        self.variables -= kernel.variables.len();
        let program = kernel.program.0;
        let Some((_, code)) = self.codes.range_mut(..=program).next_back() else {
            return;
        };
        if !code.written.at.contains(&program) {
            return;
        }
        if let Some(before) = code.names.remove(&program) {
            self.names -= 1;
            self.variables -= before.variables.len();
        }
        let is_known = kernel.certain && kernel.is_known();
        if is_known && self.names < MOST_NAMES {
            self.names += 1;
            self.variables += kernel.variables.len();
            code.names.insert(program, kernel);
        }
    }

    /// Returns the functions with names in code that begins there.
    pub(super) fn of(&self, start: u64) -> impl Iterator<Item = &Kernel> {
        self.codes
            .get(&start)
            .into_iter()
            .flat_map(|code| code.names.values())
    }
}
