//! Names of programs by their code, where a trace saw the code being uploaded.

use std::collections::BTreeSet;

use super::named_code::{is_same, sizes};
use super::{Ask, Name, Resolver};
use nvcap_decode::record::{Kernel, NamedBy};

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

    /// Returns the function of a name's image whose code equals the seen code exactly, if it is the only one.
    pub(super) fn exactly(&mut self, name: &Name, code: &[u8]) -> Option<Name> {
        let Name::Of(named) = name else {
            return None;
        };
        let mut fitting = self.fitting(code, Some(named.image)).into_iter();
        fitting.next().filter(|_| fitting.next().is_none())
    }

    /// The functions whose code equals the seen code, of one image or of all.
    fn fitting(&mut self, code: &[u8], image: Option<u64>) -> Vec<Name> {
        let of_size = self
            .images
            .with_code_size(&*self.space, &sizes(code), image);
        let all = of_size.into_iter().map(Name::Of);
        all.filter(|n| self.has_code(n, code) == Some(true))
            .collect()
    }

    /// Names programs without a record by their code alone. A program whose code equals that of several functions stays wanted.
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
    /// Keeps the code of a function that a kernel was certainly named by.
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

    /// Names programs by the code of functions that were named before, for programs of which memory holds nothing any more. Another module
    /// may have a function of the same code and another name, so that the name is not certain, and the program stays wanted.
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
