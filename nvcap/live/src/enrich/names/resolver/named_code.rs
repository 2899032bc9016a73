//! The code of functions that were named, and the comparison of uploaded code with a function's.

use std::{collections::BTreeMap, ops::RangeInclusive};

use nvcap_decode::cubin::{Function, compare};
use nvcap_decode::record::Kernel;

/// The most bytes of code that are kept of functions that were named.
const MOST_NAMED: usize = 4 << 20;

/// Bytes of an instruction.
const INSTRUCTION: usize = 16;
/// Share of equal code from which code counts as nearly the same, which is no contradiction.
const NEARLY: f64 = 0.9;

/// The code of functions that were named for certain, by its size. It names a module that is loaded again and gone before its names are
/// read.
#[derive(Default)]
pub(super) struct NamedCode {
    by_size: BTreeMap<u64, Vec<(Vec<u8>, Function, Kernel)>>,
    bytes: usize,
}

impl NamedCode {
    pub(super) fn keep(&mut self, own: Vec<u8>, function: Function, kernel: &Kernel) {
        let here = self.by_size.entry(own.len() as u64).or_default();
        let is_known =
            |(code, _, of): &(Vec<u8>, _, Kernel)| of.name == kernel.name && *code == own;
        if self.bytes + own.len() <= MOST_NAMED && !here.iter().any(is_known) {
            self.bytes += own.len();
            here.push((own, function, kernel.clone()));
        }
    }

    /// Returns the kernel with this code, if all kernels with it have one name.
    pub(super) fn of(&self, code: &[u8]) -> Option<&Kernel> {
        let mut fitting = self
            .by_size
            .range(sizes(code))
            .flat_map(|(_, here)| here)
            .filter(|(own, function, _)| is_same(own, function, code) == Some(true))
            .map(|(_, _, kernel)| kernel);
        let first = fitting.next()?;
        fitting.all(|k| k.name == first.name).then_some(first)
    }
}

/// The possible sizes of a function whose uploaded code this is. (Zeros may follow the code.)
pub(super) fn sizes(code: &[u8]) -> RangeInclusive<u64> {
    let least = compare::without_zeros(code).len().max(INSTRUCTION);
    least.min(code.len()) as u64..=code.len() as u64
}

/// Tells whether seen code is a function's: equal except for relocations, and at most longer by the padding that may follow. `None` if
/// the code is nearly the same: in some functions the loader changes more than the relocations tell.
pub(super) fn is_same(own: &[u8], function: &Function, code: &[u8]) -> Option<bool> {
    // What was seen may be the first part of it, and end within an instruction.
    let whole = own.len().min(code.len()) & !(INSTRUCTION - 1);
    let (own, code) = (own.get(..whole)?, code.get(..whole)?);
    let likeness = compare::compare(own, &function.relocations, code);
    if likeness.is_equal() {
        return Some(true);
    }
    log::debug!(
        "{}: {likeness:?} of {} bytes of code against {} that were uploaded",
        function.name,
        own.len(),
        code.len()
    );
    (likeness.ratio() < NEARLY).then_some(false)
}
