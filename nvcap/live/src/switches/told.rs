//! News of context switches, and refusals.

use nvcap_decode::switches::Switch;

/// Users whose processes the driver tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All users. To a client that is not root it tells of other users' slices without their process, and at times that are not
    /// exact.
    AllUsers,
    /// The client's own user.
    OwnUser,
}

/// A GPU whose driver does not tell of its switches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Number N of `/dev/nvidiaN`.
    pub gpu: u32,
    /// The reason.
    pub why: String,
    /// Way out: what to do.
    pub remedy: &'static str,
}

/// News from a GPU, in the order in which they happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// A record.
    Switch(Switch),
    /// So many records are missing here.
    Missing(u64),
    /// Bytes that are no record of this kind.
    Strange,
}
