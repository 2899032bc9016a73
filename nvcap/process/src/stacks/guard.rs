//! Parsers of other crates, kept from ending the trace.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs a parser of another crate on bytes from outside; `None` where it panics. gimli's search of `.eh_frame_hdr`, for one, subtracts
/// without a check, which panics in builds that check arithmetic.
pub(super) fn guarded<T>(parse: impl FnOnce() -> T) -> Option<T> {
    // What a parser leaves half done is memory of its own, and is read as any other.
    catch_unwind(AssertUnwindSafe(parse)).ok()
}
