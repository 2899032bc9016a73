//! Question for a submission that waits.

/// The submission that was asked for last: it is asked for again and again while it waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) position: u64,
    /// Its last entry that tells times.
    pub(super) own: Option<u64>,
    /// Number of records of reads up to which it is awaited.
    pub(super) reads: u64,
}
