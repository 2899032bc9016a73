//! Names of programs by their code, where a trace saw the code being uploaded.

use std::collections::{BTreeMap, BTreeSet};

use super::{Ask, Name, Resolver};
use nvcap_decode::cubin::{Function, compare};
use nvcap_decode::record::{Kernel, NamedBy};

/// The most bytes of code that are kept of functions that were named.
const MOST_NAMED: usize = 4 << 20;

/// Bytes of an instruction.
const INSTRUCTION: usize = 16;
/// Code that is the same in a greater part is no contradiction.
const NEARLY: f64 = 0.9;

/// The code of functions that were named for certain, by its size: a module that is loaded again may be gone before its names are read.
#[derive(Default)]
pub(super) struct NamedCode {
    by_size: BTreeMap<u64, Vec<(Vec<u8>, Function, Kernel)>>,
    bytes: usize,
}

impl NamedCode {
    fn keep(&mut self, own: Vec<u8>, function: Function, kernel: &Kernel) {
        let here = self.by_size.entry(own.len() as u64).or_default();
        let is_known =
            |(code, _, of): &(Vec<u8>, _, Kernel)| of.name == kernel.name && *code == own;
        if self.bytes + own.len() <= MOST_NAMED && !here.iter().any(is_known) {
            self.bytes += own.len();
            here.push((own, function, kernel.clone()));
        }
    }

    /// Returns the kernel that had this code, if all that had it have one name.
    fn of(&self, code: &[u8]) -> Option<&Kernel> {
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

/// The sizes that a function may have whose uploaded code this is: zeros may follow it.
fn sizes(code: &[u8]) -> std::ops::RangeInclusive<u64> {
    compare::without_zeros(code).len().max(INSTRUCTION) as u64..=code.len() as u64
}

impl Resolver {
    /// Tells whether a function's code in its image is the code that was seen; `None` if that is not known.
    pub(super) fn has_code(&self, name: &Name, code: &[u8]) -> Option<bool> {
        let Name::Of(named) = name else {
            return None;
        };
        let function = self.images.function(*named)?;
        let own = self.images.code(&*self.space, *named)?;
        is_same(&own, function, code)
    }

    /// Returns the function of a name's image whose code is the very code that was seen, if there is one and no other.
    pub(super) fn exactly(&mut self, name: &Name, code: &[u8]) -> Option<Name> {
        let Name::Of(named) = name else {
            return None;
        };
        let mut fitting = self.fitting(code, Some(named.image)).into_iter();
        fitting.next().filter(|_| fitting.next().is_none())
    }

    /// The functions whose code is what was seen: of one image, or of all.
    fn fitting(&mut self, code: &[u8], image: Option<u64>) -> Vec<Name> {
        let of_size = self
            .images
            .with_code_size(&*self.space, &sizes(code), image);
        let all = of_size.into_iter().map(Name::Of);
        all.filter(|n| self.has_code(n, code) == Some(true))
            .collect()
    }

    /// By the code that was seen alone, for programs without a record. Those whose code is that of several functions stay wanted.
    pub(super) fn by_code(&mut self, wanted: &mut Vec<&Ask>, found: &mut Vec<Kernel>) {
        wanted.retain(|ask| {
            let Some(code) = &ask.code else {
                return true;
            };
            let fitting = self.fitting(code, None);
            let names: BTreeSet<_> = fitting.iter().map(|n| self.text(n)).collect();
            let Some(mut kernel) = fitting.first().and_then(|n| self.kernel(ask, n)) else {
                return true;
            };
            kernel.by = NamedBy::Code;
            kernel.certain = names.len() == 1;
            if kernel.certain {
                self.ambiguous.remove(&ask.program.0);
                if let Some(name) = fitting.first() {
                    self.keep_code(name, &kernel);
                }
            } else if !self.ambiguous.insert(ask.program.0) {
                return true;
            }
            if let Some(name) = fitting.first() {
                self.set_home(ask.program, name);
            }
            let ambiguous = !kernel.certain;
            found.push(kernel);
            ambiguous
        });
    }
}

impl Resolver {
    /// Keeps the code of a function that was named for certain by it.
    pub(super) fn keep_code(&mut self, name: &Name, kernel: &Kernel) {
        let Name::Of(named) = name else {
            return;
        };
        let function = self.images.function(*named).cloned();
        let own = self.images.code(&*self.space, *named);
        if let Some((own, function)) = own.zip(function) {
            self.named_code.keep(own, function, kernel);
        }
    }

    /// By the code of functions that were named before, for programs of which memory has nothing any more. Another module may have a function
    /// of the same code and another name: such a name is not certain, and they stay wanted.
    pub(super) fn by_named_code(&mut self, wanted: &[&Ask], found: &mut Vec<Kernel>) {
        for ask in wanted {
            if self.ambiguous.contains(&ask.program.0) {
                continue;
            }
            let known = ask.code.as_ref().and_then(|code| self.named_code.of(code));
            if let Some(known) = known {
                found.push(Kernel {
                    at: ask.at,
                    program: ask.program,
                    by: NamedBy::Code,
                    certain: false,
                    ..known.clone()
                });
                self.ambiguous.insert(ask.program.0);
            }
        }
    }
}

/// Tells whether code that was seen is a function's: the same but for relocations, and no longer than padding behind it allows.
/// Returns `None` if the code is nearly the same: the loader changes more than relocations tell in some functions.
fn is_same(own: &[u8], function: &Function, code: &[u8]) -> Option<bool> {
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
