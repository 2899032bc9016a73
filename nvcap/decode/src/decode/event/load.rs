//! Work that the driver submits on its own account: contexts that it makes and modules that it loads.

use crate::record::Variable;

/// Work of the driver that submissions can be a part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize),
    serde(rename_all = "snake_case")
)]
pub enum PartOf {
    /// A context that is made.
    Context,
    /// A module that is loaded, or functions of one.
    Module,
}

impl PartOf {
    /// Words for the whole of it, once it is done.
    #[must_use]
    pub const fn done(self) -> &'static str {
        match self {
            Self::Context => "context created",
            Self::Module => "module loaded",
        }
    }

    /// Its name in JSON, tables and filters.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Context => "context",
            Self::Module => "module",
        }
    }
}

/// A context that was made, or a module that was loaded, by all the submissions of it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Load {
    /// Kind of the work.
    pub part_of: PartOf,
    /// Ring entries that it took.
    pub entries: u64,
    /// Bytes of code, and the writes and copies that brought it.
    pub code_bytes: u64,
    /// Writes and copies of code.
    pub code_writes: u64,
    /// Bytes of variables and constants.
    pub data_bytes: u64,
    /// Writes, copies and fills of variables and constants.
    pub data_writes: u64,
    /// Variables that the driver's table lists and that were written; `None` where no table was seen.
    pub variables: Option<u64>,
    /// Constant banks that were written beside the variables; `None` where no table was seen, which tells them from other writes.
    pub constant_banks: Option<u64>,
    /// Functions in the code; `None` where a copy engine brought some of it, so that it is not in the stream.
    pub functions: Option<u64>,
    /// Names of those functions that were known by then, as the compiler wrote them, in the order of their addresses.
    pub kernels: Vec<String>,
    /// Variables by name, those of constant memory last: of the image that those functions are of, where it has as many as were written.
    pub symbols: Vec<Variable>,
}
