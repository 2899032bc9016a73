//! Variables of a module.

/// A variable of a module, as the symbols of its image have it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Variable {
    /// Its name as the compiler wrote it.
    pub name: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// True for one in constant memory (`__constant__`); others are in global memory (`__device__`).
    pub constant: bool,
}
