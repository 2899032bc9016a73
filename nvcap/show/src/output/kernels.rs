//! Names of kernels as people read them, worked out once for each.
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

/// The most names kept.
const MOST: usize = 1 << 16;

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

thread_local! {
    static NAMES: RefCell<HashMap<String, Arc<Name>>> = RefCell::default();
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
        if let Some(name) = names.get(mangled) {
            return name.clone();
        }
        if names.len() >= MOST {
            names.clear();
        }
        let full = kernel_name::demangled(mangled);
        let forms = kernel_short::forms(&full);
        let name = Arc::new(Name {
            shown: TAKEN.with_borrow_mut(|taken| taken.name(&full, &forms)),
            forms,
            full,
            short: kernel_name::short(mangled),
            types: kernel_name::parameters(mangled),
        });
        names.insert(mangled.to_owned(), name.clone());
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
