//! Two recordings of one program, compared operation by operation: what `nvcap diff` shows.
//!
//! `collect` reduces each recording to lines of text without handles, addresses and channel numbers, and the addresses
//! beside them. `align` pairs the channels of both, aligns their lines, and says of each pair of aligned lines whether the addresses
//! are the same ones, too: those that were paired before. `sums` compares counts. [`mod@text`] and `mod@json` show it.

mod addresses;
mod align;
mod collect;
mod json;
mod line;
mod sums;
pub mod text;

pub use align::{Options, compare};
pub use collect::{Collect, RecordingLines, Words};
pub use json::object;
pub use text::{Shown, text};
