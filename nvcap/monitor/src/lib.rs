//! Watching a whole host (Linux): counts of all processes, metrics, the screen of `nvcap top`, and looks at processes that hang.
//!
//! | module | contents |
//! | --- | --- |
//! | [`counts`] | submissions of all processes, counted exactly by the numbers that the GPU keeps |
//! | [`dump`] | one look at processes: read, decoded and judged |
//! | `serve` | the counts as metrics over HTTP (feature `serve`), and sent to a collector (feature `otlp`) |
//! | [`top`] | tables, keys and drawing of `nvcap top`; no I/O, no clock |
//! | [`watch`] | waiting for processes that hang |

#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

pub mod counts;
pub mod dump;
#[cfg(feature = "serve")]
pub mod serve;
pub mod top;
pub mod watch;
