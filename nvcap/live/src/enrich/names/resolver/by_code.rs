//! Names of programs by their code, where a trace saw the code being uploaded.

use std::collections::BTreeSet;

use super::{Ask, Name, Resolver};
use nvcap_decode::cubin::{Function, compare};
use nvcap_decode::record::{Kernel, NamedBy};

/// Bytes of an instruction.
const INSTRUCTION: usize = 16;
/// Code that is the same in a greater part is no contradiction.
const NEARLY: f64 = 0.9;

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
        // Zeros may follow a function's code.
        let least = compare::without_zeros(code).len().max(INSTRUCTION) as u64;
        let sizes = least..=code.len() as u64;
        let of_size = self.images.with_code_size(&*self.space, &sizes, image);
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
