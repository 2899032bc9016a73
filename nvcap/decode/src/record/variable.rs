//! Variables of a module.

/// A variable of a module, from the symbols of its image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Variable {
    /// Name as the compiler wrote it.
    pub name: String,
    /// Size, bytes.
    pub bytes: u64,
    /// True for a variable in constant memory (`__constant__`); false for one in global memory (`__device__`).
    pub constant: bool,
}
