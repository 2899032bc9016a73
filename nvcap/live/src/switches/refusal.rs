//! GPUs whose driver tells of no switches.

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
