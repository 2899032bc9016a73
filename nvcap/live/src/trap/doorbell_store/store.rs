//! A decoded store.

/// A store that rings the doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Store {
    /// Index of the token's register, as in [`nvcap_common::Site::regs`].
    pub register: u32,
    /// Length of the instruction in bytes.
    pub len: u32,
    /// Register and displacement that make the doorbell's address, where it is made of one register and a
    /// displacement.
    pub address: Option<(u32, i64)>,
}
