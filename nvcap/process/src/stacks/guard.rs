//! Guard that keeps panics of other crates' parsers from ending the trace.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs another crate's parser on bytes from outside; `None` if the parser panics. For example, gimli's search of `.eh_frame_hdr` subtracts
/// without a check, which panics in builds that check arithmetic.
pub(super) fn guarded<T>(parse: impl FnOnce() -> T) -> Option<T> {
    // Data that a parser leaves half done is its own memory, and is dropped or read like any other.
    catch_unwind(AssertUnwindSafe(parse)).ok()
}
