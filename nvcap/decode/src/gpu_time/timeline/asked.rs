//! A repeated question about a submission that waits.

/// The submission that was asked about last. It is asked about again and again while it waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) position: u64,
    /// Position of its last entry that has times.
    pub(super) own: Option<u64>,
    /// Number of records of reads up to which the submission is awaited.
    pub(super) reads: u64,
}
