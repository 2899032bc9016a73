//! GPUs whose driver does not report context switches.

/// A GPU whose driver does not report its context switches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Number N of `/dev/nvidiaN`.
    pub gpu: u32,
    /// The reason of the refusal.
    pub why: String,
    /// Remedy for the user.
    pub remedy: &'static str,
}
