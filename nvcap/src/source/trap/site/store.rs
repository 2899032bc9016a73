//! What is known of a store.

/// A store that rings the doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Store {
    /// Index of the token's register, as in [`nvcap_common::Site::regs`].
    pub register: u32,
    /// Length of the instruction in bytes.
    pub len: u32,
    /// What the doorbell's address is made of, where that is one register and a displacement.
    pub address: Option<(u32, i64)>,
}
