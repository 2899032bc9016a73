//! Traces that other profilers made, as far as they tell what nvcap shows: kernels, copies and memsets with their times. For `nvcap time` and
//! `nvcap diff`.
//!
//! - `kineto`: the JSON of PyTorch's profiler; `bounded` guards its reader.
//! - `nsys`: the SQLite file of Nsight Systems.
//! - `about`: facts of a file beside its works, and the words for what such a file cannot tell.
//! - `names`: the form in which names of kernels are compared.
//! - `sums`: works by name, and the time of each GPU; `of_recording` has them of a recording.
//! - `times`, `diff`: what `nvcap time` shows of one file, and `nvcap diff` of two.

mod about;
mod bounded;
pub mod diff;
pub mod kineto;
mod names;
#[cfg(feature = "sqlite")]
pub mod nsys;
mod of_recording;
mod sums;
pub mod times;
mod work;

#[cfg(test)]
mod tests;

pub use about::{About, Format, Own};
pub use of_recording::OfRecording;
pub use sums::Sums;
pub use work::{What, Work};

/// Takes the works of a file, and says whether reading goes on.
pub trait Works {
    /// Takes a work.
    fn work(&mut self, work: &Work<'_>);

    /// Tells now and then whether reading goes on: `false` ends it.
    fn goes_on(&mut self) -> bool;
}
