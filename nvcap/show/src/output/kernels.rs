//! Names of kernels as people read them, worked out once for each.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use nvcap_decode::record::Kernel;

use super::arguments::{self, Argument};
use super::kernel_name;
use nvcap_decode::cubin::Param;
use nvcap_decode::decode::event::Launch;

/// The most names kept.
const MOST: usize = 1 << 16;

/// The forms of a name.
#[derive(Debug, PartialEq, Eq)]
pub struct Name {
    /// Demangled, with template arguments and parameters.
    pub full: String,
    /// Demangled, without template arguments and parameters.
    pub short: String,
    /// The types of its parameters, where the name has them.
    types: Option<Vec<String>>,
}

thread_local! {
    static NAMES: RefCell<HashMap<String, Arc<Name>>> = RefCell::default();
}

/// The forms of a kernel's name.
pub fn name(kernel: &Kernel) -> Arc<Name> {
    NAMES.with_borrow_mut(|names| {
        if let Some(name) = names.get(&kernel.name) {
            return name.clone();
        }
        if names.len() >= MOST {
            names.clear();
        }
        let name = Arc::new(Name {
            full: kernel_name::demangled(&kernel.name),
            short: kernel_name::short(&kernel.name),
            types: kernel_name::parameters(&kernel.name),
        });
        names.insert(kernel.name.clone(), name.clone());
        name
    })
}

/// A kernel's name for people: in full or short, with a question mark where it is a guess.
pub(crate) fn text(kernel: &Kernel, full: bool) -> String {
    let name = name(kernel);
    let text = if full { &name.full } else { &name.short };
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
