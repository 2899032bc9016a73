//! A context, by the driver's handles.

/// A context of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Context {
    /// The client's handle.
    pub client: u32,
    /// The handle of the channel group that computes.
    pub group: u32,
    /// The driver's number of the GPU, where the driver tells it.
    pub gpu: Option<u32>,
}

impl std::fmt::Display for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { client, group, .. } = self;
        write!(f, "client {client:#x}, channel group {group:#x}")
    }
}
