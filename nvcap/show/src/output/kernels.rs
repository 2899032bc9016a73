//! Names of kernels as people read them, each worked out once.
//!
//! Those of one thread are told apart: a trace shows no two kernels by one short name.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use nvcap_decode::record::Kernel;

use super::arguments::{self, Argument};
use super::kernel_name;
use super::kernel_short::{self, Taken};
use nvcap_decode::cubin::Param;
use nvcap_decode::decode::event::{Body, Event, InlineContent, Launch, Operation};
use nvcap_decode::wire::GpuVa;

/// The most names that are kept, and their bytes: where there are more, all are forgotten.
const MOST: usize = 1 << 16;
const MOST_BYTES: usize = 64 << 20;

/// The forms of a name.
#[derive(Debug, PartialEq, Eq)]
pub struct Name {
    /// Demangled, with template arguments and parameters.
    pub full: String,
    /// Demangled, without template arguments and parameters.
    pub short: String,
    /// The short name that no other kernel of the trace has, as text shows it: `reduce<Mean>`.
    pub shown: String,
    /// The names by which another trace may show it.
    pub(crate) forms: Vec<String>,
    /// The types of its parameters, where the name has them.
    types: Option<Vec<String>>,
}

impl Name {
    /// Bytes of the text.
    fn bytes(&self) -> usize {
        let types = self.types.iter().flatten();
        let lists = self.forms.iter().chain(types);
        let lists: usize = lists.map(|text| text.len() + size_of::<String>()).sum();
        self.full.len() + self.short.len() + self.shown.len() + lists
    }
}

/// Names that were worked out, by the mangled ones.
#[derive(Debug, Default)]
struct Known {
    names: HashMap<String, Arc<Name>>,
    bytes: usize,
}

impl Known {
    fn put(&mut self, mangled: &str, name: &Arc<Name>) {
        let bytes = mangled.len() + name.bytes();
        if self.names.len() >= MOST || self.bytes + bytes > MOST_BYTES {
            *self = Self::default();
        }
        if bytes <= MOST_BYTES {
            self.bytes += bytes;
            self.names.insert(mangled.to_owned(), name.clone());
        }
    }
}

thread_local! {
    static NAMES: RefCell<Known> = RefCell::default();
    static TAKEN: RefCell<Taken> = RefCell::default();
}

/// Returns the memory that an event writes with what is or may be code: its address, and the number of bytes.
pub(crate) fn code_written(event: &Event<'_>) -> Option<(GpuVa, u64)> {
    match &event.body {
        Body::Operation(Operation::Inline(i)) if i.content == Some(InlineContent::Code) => {
            Some((i.dst, i.bytes))
        }
        Body::Operation(Operation::Copy(c)) if !c.physical.1 => c.dst.map(|dst| (dst, c.bytes)),
        _ => None,
    }
}

/// The forms of a kernel's name.
pub fn name(kernel: &Kernel) -> Arc<Name> {
    of_mangled(&kernel.name)
}

/// The forms of a name that the compiler wrote.
pub(crate) fn of_mangled(mangled: &str) -> Arc<Name> {
    NAMES.with_borrow_mut(|names| {
        if let Some(name) = names.names.get(mangled) {
            return name.clone();
        }
        let full = kernel_name::demangled(mangled);
        let short = kernel_name::short(mangled);
        // A name that would be too long in full is shown as it is: its short form says more.
        let forms = match full == mangled {
            true => kernel_short::forms(&short),
            false => kernel_short::forms(&full),
        };
        let name = Arc::new(Name {
            shown: TAKEN.with_borrow_mut(|taken| taken.name(&full, &forms)),
            forms,
            full,
            short,
            types: kernel_name::parameters(mangled),
        });
        names.put(mangled, &name);
        name
    })
}

/// A kernel's name for people: in full or short, with a question mark where it is a guess.
pub(crate) fn text(kernel: &Kernel, full: bool) -> String {
    let name = name(kernel);
    let text = if full { &name.full } else { &name.shown };
    doubted(kernel, text)
}

/// A kernel's name without template arguments, which is the same in every trace, for sums and comparisons of traces.
pub(crate) fn bare(kernel: &Kernel) -> String {
    doubted(kernel, &name(kernel).short)
}

fn doubted(kernel: &Kernel, text: &str) -> String {
    let doubt = if kernel.certain { "" } else { "?" };
    format!("{text}{doubt}")
}

/// The arguments of a launch by the kernel's parameters; `None` where those or the arguments are not known.
pub(crate) fn arguments(launch: &Launch) -> Option<Vec<Argument>> {
    let kernel = launch.kernel.as_ref()?;
    let params: Vec<Param> = kernel
        .params
        .as_ref()?
        .iter()
        .zip(0..)
        .map(|(p, ordinal)| Param {
            ordinal,
            offset: p.offset,
            size: p.size,
        })
        .collect();
    let types = name(kernel);
    Some(arguments::typed(
        types.types.as_deref(),
        &params,
        launch.args.as_deref()?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names that are kept have a bound in bytes, and a kernel has the same name when it comes again.
    #[test]
    fn names_have_a_bound_in_bytes() {
        let long = |n: usize| format!("k{n:08}{}", "_a".repeat(8_000));
        let count = MOST_BYTES / 32_000;
        let most = 6 * (16 << 10);
        let mut first = Vec::new();
        for n in 0..count {
            first.push(of_mangled(&long(n)).shown.clone());
            let bytes = NAMES.with_borrow(|known| known.bytes);
            assert!(bytes <= MOST_BYTES, "{bytes}");
        }
        let (bytes, really) = NAMES.with_borrow(|known| {
            let all = known.names.iter().map(|(of, name)| of.len() + name.bytes());
            (known.bytes, all.sum::<usize>())
        });
        assert_eq!(bytes, really);
        assert!(
            NAMES.with_borrow(|known| known.names.len()) < count,
            "all were kept"
        );
        for n in [0, 1, 7] {
            assert_eq!(of_mangled(&long(n)).shown, first[n]);
        }
        // One that would not fit beside all others is not kept at all, and has a bound, too.
        let endless = "x".repeat(MOST_BYTES);
        assert!(of_mangled(&endless).bytes() < most);
        assert!(NAMES.with_borrow(|known| !known.names.contains_key(&endless)));
    }

    #[test]
    fn a_name_that_is_too_long_in_full_has_its_short_form() {
        // Each type has one before twice.
        let doubled = |n: u32| {
            let digit = char::from_digit(n, 36).unwrap_or('0').to_ascii_uppercase();
            format!("S{digit}_IS{digit}_S{digit}_E")
        };
        let args = (0..35).fold("1A1BIS_S_E".to_owned(), |name, n| name + &doubled(n));
        let name = of_mangled(&format!("_ZN4mine6kernelE{args}"));
        assert!(name.full.starts_with("_ZN4mine"), "{}", name.full);
        assert_eq!(
            (&*name.short, &*name.shown),
            ("mine::kernel", "mine::kernel")
        );
    }
}
