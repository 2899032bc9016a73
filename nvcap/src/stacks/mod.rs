//! Stacks of threads, read from outside while the threads run.
//!
//! - [`python`]: the frames of CPython.

pub(crate) mod python;
