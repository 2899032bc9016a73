//! From records to what a person or a program reads: the pipeline, the filter, and the sinks.
//!
//! | module | contents |
//! | --- | --- |
//! | [`pipeline`] | records in order, to ledger, driver model, decoder, filter, sinks |
//! | [`output`] | text, JSON, statistics, recordings; the filter; names of kernels and their arguments |
//! | [`export`] | files that other programs open: Perfetto, tables (CSV, Parquet), a page for a browser |
//! | [`diff`] | two recordings aligned, operation by operation |
//! | [`code`] | code of kernels: images and their bytes, choosing, listing |

// A standard stream that is full or closed must not end a trace: `output::writer` and `output::message` know what to do then.
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod code;
pub mod diff;
pub mod export;
pub mod output;
pub mod pipeline;
