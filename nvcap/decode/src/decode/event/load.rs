//! Work that the driver submits on its own account: making contexts and loading modules.

use crate::record::Variable;

/// Work of the driver that submissions can be a part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize),
    serde(rename_all = "snake_case")
)]
pub enum PartOf {
    /// Making of a context.
    Context,
    /// Loading of a module, or of functions of one.
    Module,
}

impl PartOf {
    /// Returns words for the whole work, once it is done.
    #[must_use]
    pub const fn done(self) -> &'static str {
        match self {
            Self::Context => "context created",
            Self::Module => "module loaded",
        }
    }

    /// Returns the name in JSON, tables and filters.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Context => "context",
            Self::Module => "module",
        }
    }
}

/// A context that was made, or a module that was loaded: a summary of all its submissions.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Load {
    /// Kind of the work.
    pub part_of: PartOf,
    /// Number of ring entries.
    pub entries: u64,
    /// Bytes of code.
    pub code_bytes: u64,
    /// Number of writes and copies that brought code.
    pub code_writes: u64,
    /// Bytes of variables and constants.
    pub data_bytes: u64,
    /// Number of writes, copies and fills of variables and constants.
    pub data_writes: u64,
    /// Number of variables that the driver's table lists and that were written; `None` if no table was seen.
    pub variables: Option<u64>,
    /// Number of constant banks that were written beside the variables; `None` if no table was seen, because only the table tells them from
    /// other writes.
    pub constant_banks: Option<u64>,
    /// Number of functions in the code; `None` if a copy engine brought some of it, because that code is not in the stream.
    pub functions: Option<u64>,
    /// Mangled names of those functions that were known by then, in the order of their addresses.
    pub kernels: Vec<String>,
    /// Variables by name, those of constant memory last. They are taken from the image of those functions, if it has as many variables as
    /// were written.
    pub symbols: Vec<Variable>,
}
