//! What is learnt beside the stream of submissions, and told as records: it stands between a source and the pipeline.
//!
//! - [`images`]: QMDs that a process wrote before it was attached to, found in its memory.
//! - `enriched`: a live source with what is learnt beside it (feature `trap`).
//!
//! All reading of foreign memory that is no ring and no pushbuffer is done here; the decoder is told facts.

#[cfg(feature = "trap")]
pub(crate) mod enriched;
#[cfg(target_os = "linux")]
pub(crate) mod images;
